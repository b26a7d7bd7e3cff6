"""What a cell can reach from inside. Each check succeeds outside (control) and has a host witness."""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import socket
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel import Kernel, inside, outside, running_kernel

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    os.environ["SANDBOX_KERNEL_HOME"] = str(tmp_path_factory.mktemp("state"))
    with running_kernel(cwd=tmp_path_factory.mktemp("notebooks")) as kernel:
        yield kernel


def test_no_connection_reaches_the_host(sandbox: Kernel) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.5)
        port = server.getsockname()[1]
        code = textwrap.dedent(f"""
            import socket
            try:
                socket.create_connection(("127.0.0.1", {port}), timeout=5).close()
                print("connected")
            except OSError as error:
                print("refused")
        """)
        assert outside(code) == "connected\n"
        server.accept()[0].close()
        assert inside(sandbox, code) == "refused\n"
        with pytest.raises(TimeoutError):  # the witness saw nobody
            server.accept()


def test_there_is_no_network_but_loopback(sandbox: Kernel) -> None:
    code = "import socket; print(sorted(name for _, name in socket.if_nameindex()))"
    assert inside(sandbox, code) == "['lo']\n"
    routes = "print(len(open('/proc/net/route').readlines()) - 1)"
    assert inside(sandbox, routes) == "0\n"
    assert inside(sandbox, "print(open('/proc/net/unix').read().count('@'))") == "0\n"


def test_abstract_sockets_of_the_host_are_out_of_reach(sandbox: Kernel) -> None:
    name = f"\0sandbox-kernel-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        server.settimeout(0.5)
        code = textwrap.dedent(f"""
            import socket
            with socket.socket(socket.AF_UNIX) as client:
                try:
                    client.connect({name!r})
                    print("connected")
                except OSError:
                    print("refused")
        """)
        assert outside(code) == "connected\n"
        server.accept()[0].close()
        assert inside(sandbox, code) == "refused\n"
        with pytest.raises(TimeoutError):
            server.accept()


def test_no_host_process_is_visible_or_can_be_signalled(sandbox: Kernel) -> None:
    with subprocess.Popen(["sleep", "600"]) as witness:
        try:
            visible = textwrap.dedent(f"""
                import os
                pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
                names = []
                for pid in pids:
                    try:
                        names.append(os.readlink(f"/proc/{{pid}}/cwd") + open(f"/proc/{{pid}}/comm").read())
                    except OSError:
                        pass  # ended, or somebody else's
                print(any("sleep" in name for name in names), {witness.pid} in pids)
            """)
            assert outside(visible) == "True True\n"
            assert inside(sandbox, visible).startswith("False ")
            kill = textwrap.dedent(f"""
                import os
                try:
                    os.kill({witness.pid}, 0)
                    print("reached")
                except OSError:
                    print("no such process")
            """)
            assert outside(kill) == "reached\n"
            assert inside(sandbox, kill) == "no such process\n"
            assert inside(sandbox, "print(os.getpid() < 10)") == "True\n"
            assert witness.poll() is None
        finally:
            witness.kill()


@pytest.mark.parametrize("place", ["home", "tmp", "var"])
def test_host_files_are_unreadable(sandbox: Kernel, place: str) -> None:
    directory = {"home": Path.home(), "tmp": Path("/tmp"), "var": Path("/var/tmp")}[place]
    canary = directory / f"canary-{secrets.token_hex(8)}"
    canary.write_text("secret")
    canary.chmod(0o644)
    try:
        code = textwrap.dedent(f"""
            try:
                print(open({str(canary)!r}).read())
            except OSError as error:
                print(type(error).__name__)
        """)
        assert outside(code) == "secret\n"
        assert inside(sandbox, code) == "FileNotFoundError\n"
    finally:
        canary.unlink()


@pytest.mark.parametrize(
    "path",
    ["/etc/shadow", "/etc/hostname", "/etc/machine-id", "/sys/kernel", "/proc/kcore", "/boot"],
)
def test_system_files_with_secrets_are_absent(sandbox: Kernel, path: str) -> None:
    if not Path(path).exists():
        pytest.skip(f"{path} is not on this host either")
    code = f"import os; print(os.access({path!r}, os.R_OK))"
    assert inside(sandbox, code) == "False\n"


def test_only_temporary_places_are_writable(sandbox: Kernel) -> None:
    code = textwrap.dedent("""
        import os
        places = []
        for root, directories, _ in os.walk("/"):
            if root.startswith("/proc/"):
                directories.clear()
                continue
            if os.access(root, os.W_OK):
                places.append(root)
        mounts = [line.split() for line in open("/proc/self/mounts")]
        kind = {mount[1]: mount[2] for mount in mounts}
        def mount_of(path):
            while path not in kind:
                path = os.path.dirname(path)
            return path
        print(sorted({mount_of(place) for place in places} - {m for m in kind if kind[m] in ("tmpfs", "devpts")}))
    """)
    assert inside(sandbox, code) == "[]\n"


def test_nothing_written_survives_the_kernel(tmp_path: Path) -> None:
    name = f"written-{secrets.token_hex(8)}"
    code = textwrap.dedent(f"""
        import os
        done = []
        for place in ["/tmp", "/dev/shm", os.path.expanduser("~"), "/var/tmp", os.getcwd(), "/", "/etc", "/run", "/usr"]:
            try:
                open(os.path.join(place, {name!r}), "w").write("x")
                done.append(place)
            except OSError:
                pass
        print(done)
    """)
    with running_kernel(cwd=tmp_path) as kernel:
        written = inside(kernel, code)
        assert "/tmp" in written
        assert str(tmp_path) not in written
    found = subprocess.run(
        ["find", "/tmp", "/dev/shm", "/var/tmp", "/home", str(Path.home()), "-xdev", "-name", name],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout == ""
    with running_kernel(cwd=tmp_path) as kernel:
        probe = f"import os; print(os.path.exists('/tmp/{name}'))"
        assert inside(kernel, probe) == "False\n"


def test_privileges_are_gone_for_good(sandbox: Kernel) -> None:
    code = textwrap.dedent("""
        status = dict(line.split(":", 1) for line in open("/proc/self/status"))
        names = ("NoNewPrivs", "Seccomp", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
        print({name: int(status[name], 16) for name in names})
    """)
    capabilities = dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), 0)
    expected = {"NoNewPrivs": 1, "Seccomp": 2, **capabilities}
    assert inside(sandbox, code) == f"{expected}\n"
    assert outside(code) != f"{expected}\n"
    # The host's own view of the same process.
    for pid in sandbox.sandboxed_pids():
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        )
        assert int(status["CapEff"], 16) == 0
        assert int(status["Seccomp"]) == 2
        assert int(status["NoNewPrivs"]) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="about a wrapper started by root")
def test_root_runs_cells_under_an_unrelated_uid(sandbox: Kernel) -> None:
    assert sandbox.value("__import__('os').getuid()") == 1000
    status = Path(f"/proc/{sandbox.kernel_pid}/status").read_text()
    uids = {int(uid) for uid in status.split("Uid:")[1].splitlines()[0].split()}
    assert len(uids) == 1
    assert min(uids) >= 60_000
    assert not [user for user in pwd.getpwall() if user.pw_uid in uids and user.pw_name != "nobody"]


def test_every_namespace_is_its_own(sandbox: Kernel) -> None:
    for kind in ("user", "pid", "net", "ipc", "uts", "mnt", "cgroup"):
        code = f"import os; print(os.readlink('/proc/self/ns/{kind}'))"
        namespace = inside(sandbox, code).strip()
        assert namespace != outside(code).strip(), kind
        if os.geteuid() == 0:
            assert str(Path(f"/proc/{sandbox.kernel_pid}/ns/{kind}").readlink()) == namespace


@pytest.mark.every_level(always=True)
def test_a_variable_that_the_policy_names_enters_and_no_other(tmp_path: Path, level: str) -> None:
    given = {"WANTED": "some value", "OTHER": "secret"}
    policy = "environment: {pass: [WANTED, ABSENT]}"
    with running_kernel(cwd=tmp_path, level=level, policy=policy, env=given) as kernel:
        names = "{n: os.environ.get(n) for n in ('WANTED', 'OTHER', 'ABSENT')}"
        found = kernel.run(f"import os\n{names}").result
        assert found == "{'WANTED': 'some value', 'OTHER': None, 'ABSENT': None}"
        seen = [pid for pid, line in command_lines() if b"some value" in line]
        assert seen == [], "every user of the host can read command lines"


def command_lines() -> Iterator[tuple[int, bytes]]:
    """Those of all processes of the host."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            yield int(entry.name), (entry / "cmdline").read_bytes()


def test_secrets_in_the_environment_do_not_enter(tmp_path: Path) -> None:
    canaries = {f"CANARY_{n}_TOKEN": secrets.token_hex(12) for n in range(200)}
    with running_kernel(cwd=tmp_path, env=canaries) as kernel:
        code = textwrap.dedent("""
            import glob, os
            text = repr(dict(os.environ))
            for path in glob.glob("/proc/[0-9]*/environ") + glob.glob("/proc/[0-9]*/cmdline"):
                try:
                    text += open(path, errors="replace").read()
                except OSError:
                    pass
            print(text)
        """)
        text = inside(kernel, code)
        assert not [name for name, value in canaries.items() if name in text or value in text]
        wrapper = Path(f"/proc/{kernel.wrapper_pid}/environ").read_text()
        assert all(value in wrapper for value in canaries.values())  # the control


def test_the_frontends_key_and_connection_file_do_not_enter(tmp_path: Path) -> None:
    connection_file = tmp_path / "kernel.json"
    with running_kernel(cwd=tmp_path, connection_file=str(connection_file)) as kernel:
        key = kernel.manager.session.key.decode()
        assert key in connection_file.read_text()
        code = textwrap.dedent(f"""
            import os
            try:
                print(open({str(connection_file)!r}).read())
            except PermissionError:
                print("hidden")
            found = []
            for root, _, files in os.walk("/"):
                if root.startswith(("/proc", "/sys", "/usr", "/dev")) or "site-packages" in root:
                    continue
                for name in files:
                    try:
                        with open(os.path.join(root, name), "rb") as file:
                            if {key.encode()!r} in file.read(1 << 20):
                                found.append(os.path.join(root, name))
                    except OSError:
                        pass
            print(found)
        """)
        assert inside(kernel, code) == "hidden\n[]\n"


def test_only_harmless_devices_exist(sandbox: Kernel) -> None:
    code = textwrap.dedent("""
        import os, stat
        nodes = []
        for root, _, files in os.walk("/dev"):
            for name in files:
                mode = os.lstat(os.path.join(root, name)).st_mode
                if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
                    nodes.append(os.path.join(root, name))
        print(sorted(nodes))
    """)
    allowed = {"full", "null", "random", "tty", "urandom", "zero", "ptmx", "console"}
    devices = eval(inside(sandbox, code))
    assert {Path(device).name for device in devices if "/pts/" not in device} <= allowed
    assert "/dev/null" in devices


def test_no_descriptor_is_inherited(sandbox: Kernel) -> None:
    code = textwrap.dedent("""
        import os
        for fd in os.listdir("/proc/self/fd"):
            try:
                print(os.readlink(f"/proc/self/fd/{fd}"))
            except OSError:
                pass
    """)
    kinds = {line.split(":")[0] for line in inside(sandbox, code).splitlines()}
    assert kinds <= {"pipe", "socket", "anon_inode", "/dev/null", "/proc/2/fd"}, kinds


def test_the_supervisor_cannot_be_read_or_ended_by_a_cell(sandbox: Kernel) -> None:
    code = textwrap.dedent("""
        import os, signal
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGSTOP, signal.SIGHUP):
            os.kill(1, number)
        try:
            open("/proc/1/mem", "rb")
            print("readable")
        except OSError:
            print("not readable")
    """)
    assert inside(sandbox, code) == "not readable\n"
    assert inside(sandbox, "open('/proc/self/mem', 'rb').close(); print('control')") == "control\n"
    assert sandbox.value("1 + 1") == 2


def test_the_run_directory_is_read_only_and_holds_no_other_kernel(sandbox: Kernel) -> None:
    code = textwrap.dedent("""
        import os
        try:
            open("/run/sandbox/inner/boot.py", "a")
            print("writable")
        except OSError as error:
            print(error.strerror)
        try:
            os.unlink("/run/sandbox/inner-1")
            print("replaced")
        except OSError as error:
            print(error.strerror)
    """)
    lines = inside(sandbox, code).splitlines()
    assert set(lines) <= {"Read-only file system", "Permission denied"}
    assert sandbox.value("1 + 1") == 2
