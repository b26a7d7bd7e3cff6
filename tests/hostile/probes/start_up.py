"""Start-up files by their names, and programs that have more rights than who runs them.

Files that must not be touched even by the control (``file:PATH``) are changed by it in an overlay, in
namespaces made for that.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import partial

from tests.hostile.probes.attack import TARGETS, add, be_nobody, probe, read
from tests.hostile.probes.writing import write

START_UP = "files that run later"
POWER = "programs with power"

# Files that run later, by name --------------------------------------------------------------------


def replace(path: str) -> bool:
    """Change it, or make it."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return write(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def change(path: str) -> bool:
    """The same where its folder is there: an environment below /tmp could be made up in a /tmp of one's own."""
    return write(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


START_UP_FILES = {
    "what every program loads": "/etc/ld.so.preload",
    "the table of cron": "/etc/crontab",
    "a job of cron": "/etc/cron.d/probe",
    "a job at night": "/etc/cron.daily/probe",
    "the list of users": "/etc/passwd",
    "the list of passwords": "/etc/shadow",
    "who may become root": "/etc/sudoers.d/probe",
    "what every shell reads": "/etc/profile.d/probe.sh",
    "a service": "/etc/systemd/system/probe.service",
    "a rule for devices": "/etc/udev/rules.d/99-probe.rules",
    "the names of hosts": "/etc/hosts",
    "a program of the system": "/usr/bin/env",
    "a library of the system": "/usr/lib/libprobe.so",
    "a program before those of the system": "/usr/local/bin/ls",
    "what root's shell reads": "/root/.bashrc",
    "who may log in as root": "/root/.ssh/authorized_keys",
    "IPython's start-up": "/root/.ipython/profile_default/startup/00-probe.py",
    "the server's configuration": "/root/.jupyter/jupyter_server_config.py",
    "a kernel of Jupyter's": "/usr/local/share/jupyter/kernels/probe/kernel.json",
}
for what, path in START_UP_FILES.items():
    # In a container these are an image's: that they stay as they are is seen on the host.
    add(START_UP, what, partial(replace, path), control="apart", witness=f"file:{path}")
for what in (
    "a path file",
    "sitecustomize",
    "the kernelspec",
    "the code inside",
    "the interpreter",
):
    add(
        START_UP,
        f"{what} of the environment",
        lambda what=what: change(TARGETS["environment"][what]),
        control="apart",
        witness="environment",
    )


@probe(START_UP, control="apart", witness="environment")
def a_compiled_module_of_the_environment() -> bool:
    path = TARGETS["environment"]["a compiled module"]
    if os.path.isdir(os.path.dirname(os.path.dirname(path))):
        os.makedirs(os.path.dirname(path), exist_ok=True)
    return write(path, os.O_WRONLY | os.O_CREAT)


# Programs with power ------------------------------------------------------------------------------


@probe(POWER, witness="kernel:rights")
def a_setuid_program_in_the_notebooks_folder() -> bool:
    be_nobody()
    done = subprocess.run([f"{TARGETS['folder']}/setuid-id", "-u"], capture_output=True)
    return done.stdout == b"0\n"


@probe(POWER, witness="kernel:rights")
def a_setgid_program_in_the_notebooks_folder() -> bool:
    be_nobody()
    done = subprocess.run([f"{TARGETS['folder']}/setgid-id", "-g"], capture_output=True)
    return done.stdout == b"0\n"


@probe(POWER, witness="kernel:rights")
def a_program_with_capabilities_in_the_notebooks_folder() -> bool:
    be_nobody()
    command = [f"{TARGETS['folder']}/capable-cat", "/proc/self/status"]
    done = subprocess.run(command, capture_output=True, text=True)
    if not done.stdout:
        raise PermissionError(1, done.stderr)
    fields = dict(line.split(":\t", 1) for line in done.stdout.splitlines())
    return int(fields["CapEff"], 16) != 0


@probe(POWER, witness="kernel:rights")
def a_setuid_program_of_the_system() -> bool:
    be_nobody()
    su = shutil.which("su", path="/usr/bin:/bin")
    if su is None:
        raise FileNotFoundError(2, "su")
    with subprocess.Popen([su], stdin=subprocess.PIPE, stdout=-1, stderr=-1) as program:
        try:
            # It has its rights from the moment it runs, and then waits for a password.
            while read(f"/proc/{program.pid}/comm") != b"su\n":
                if program.poll() is not None:
                    return False
            status = read(f"/proc/{program.pid}/status").decode()
        finally:
            program.kill()
    return status.split("Uid:")[1].split()[1] == "0"


@probe(POWER, witness="kernel:rights")
def a_file_of_ones_own_is_given_to_root_with_setuid() -> bool:
    path = f"{TARGETS['scratch']}/own-{os.getpid()}"
    write(path, os.O_WRONLY | os.O_CREAT)
    os.chown(path, 0, 0)
    os.chmod(path, 0o4755)
    return os.stat(path).st_uid == 0
