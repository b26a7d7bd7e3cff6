"""The rules on shell text."""

from __future__ import annotations

from typing import Final

from sandbox_kernel.policy.verdict import Rule

RULES: Final[tuple[Rule, ...]] = (
    Rule("shell.command", "low", "it starts a program that the policy does not simply allow", "Do it in Python, or have the operator list this command", "host_files"),
    Rule("shell.unparseable", "high", "it is no shell text that can be read, so nobody knows what it does", "Check quotes and brackets", "host_files"),
    Rule("shell.too_deep", "high", "it wraps commands within commands too deeply to read", "Write the command out, so that it can be read before it runs", "host_files"),
    Rule("shell.dynamic_command", "high", "it runs a command whose name is only known when it runs", "Write the command out, so that it can be read before it runs", "host_files"),
    Rule("shell.interpolated", "low", "it puts a value into the command that is only known when it runs", "Quote it, or pass it as an argument to subprocess.run([...])", "host_files"),
    Rule("shell.obfuscated", "high", "it decodes text and runs it as a command", "Write the command out, so that it can be read before it runs", "host_files"),
    Rule("shell.hidden_command", "high", "it makes an ordinary tool run another command", "Write the command out, so that it can be read before it runs", "host_files"),
    Rule("shell.other_language", "medium", "it runs code in a language that is not checked", "Write it in Python", "host_files"),
    Rule("shell.delete_system", "critical", "it deletes the home directory, system files or everything", "Name the files or the one directory that is to go", "host_files"),
    Rule("shell.delete_recursive", "medium", "it deletes a directory with all it holds", "Use shutil.rmtree on the exact directory, after a look at it", "host_files"),
    Rule("shell.device", "critical", "it reads or overwrites a disk or another device", "Use ordinary files", "host_files"),
    Rule("shell.system_write", "high", "it writes to system files, start-up files or scheduled jobs", "Write to /tmp, which ends with the kernel", "host_files"),
    Rule("shell.library_write", "medium", "it changes installed libraries", "Put the changed module beside the notebook, under a name of its own", "host_files"),
    Rule("shell.download", "low", "it fetches something from the network", "Put the data into the notebook's folder beforehand", "network"),
    Rule("shell.upload", "high", "it sends a file to another host", "Show results in the notebook", "network"),
    Rule("shell.pipe_to_shell", "critical", "it runs whatever a server sends, unseen", "Put the script into the notebook's folder, and read it before it runs", "network"),
    Rule("shell.run_download", "high", "it runs a file that was downloaded just before", "Put the script into the notebook's folder, and read it before it runs", "network"),
    Rule("shell.reverse_shell", "critical", "it hands a shell to another host", "Leave it out: there is no harmless use of this", "network"),
    Rule("shell.network", "medium", "it uses a tool for raw connections or remote logins", "Put the data into the notebook's folder beforehand", "network"),
    Rule("shell.metadata_address", "critical", "it asks the cloud's metadata service, which hands out credentials", "Ask the operator for what is needed", "network"),
    Rule("shell.sensitive_path", "high", "it names a file that holds credentials or accounts", "Ask the operator for what is needed", "host_files"),
    Rule("shell.system_path", "low", "it looks at system directories, or climbs several folders up", "Use platform, psutil or shutil, and paths below the notebook's folder", "host_files"),
    Rule("shell.environment", "low", "it shows the whole environment, which may hold secrets", "Read the one variable that is needed", "environment"),
    Rule("shell.environment_hook", "high", "it sets a variable that makes later programs load other code", "Set it for the one program that needs it", "host_files"),
    Rule("shell.sudo", "medium", "it runs a command as another user", "Leave sudo out: the sandbox has no other user", "no_privileges"),
    Rule("shell.privilege", "high", "it asks for other rights than the notebook's own", "Do without: the sandbox grants none", "no_privileges"),
    Rule("shell.permissions", "medium", "it opens files to everybody or changes modes of whole trees", "Change the mode of the one file", "host_files"),
    Rule("shell.users", "critical", "it changes user accounts", "Ask the operator", "no_privileges"),
    Rule("shell.kill", "high", "it ends processes by name or all at once", "End the one process that was started, by its number", "processes"),
    Rule("shell.system_control", "high", "it controls services, jobs, the firewall or the machine", "Ask the operator", "no_privileges"),
    Rule("shell.install", "low", "it installs software", "Ask for it to be installed beforehand", "network"),
    Rule("shell.cover_tracks", "high", "it erases histories or logs", "Leave them: the sandbox is discarded anyway", "host_files"),
    Rule("shell.background", "low", "it leaves a process running after the cell", "Run it to its end", "processes"),
    Rule("shell.fork_bomb", "critical", "it starts processes without end", "Bound the number of processes", "limits"),
    Rule("shell.git_config", "medium", "it changes git's settings or the keys for remote logins", "Set it for one command: git -c user.name=… commit", "ephemeral"),
)  # fmt: skip
