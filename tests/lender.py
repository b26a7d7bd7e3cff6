"""One kernel for many tests, where a start takes long: lent to each in turn, tidy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import Empty
from types import TracebackType

from tests.kernel import TIMEOUT, Kernel, running_kernel

TIDY_SECONDS = 20
# What tests may leave in a kernel is taken away; what cannot be is an error, and the kernel is ended.
TIDY = """
import os, shutil, signal, threading
for _pid in filter(str.isdecimal, os.listdir('/proc')):
    _name = open(f'/proc/{_pid}/comm').read().strip()
    assert int(_pid) in (1, os.getpid()) or _name == 'checkpoint', f'{_name} is left'
# Not those of libraries, which stay.
assert threading.active_count() <= %d, f'left: {threading.enumerate()}'
# With SIGCHLD ignored, for example, nobody is told what children used.
_ignored = sorted(each for each in signal.valid_signals() if signal.getsignal(each) is signal.SIG_IGN)
assert [int(each) for each in _ignored] == %s, f'ignored: {_ignored}'
_home = %r
for _folder in ('/tmp', '/dev/shm', '/home/sandbox'):
    for _entry in os.scandir(_folder):
        if _home.startswith(_entry.path):
            continue  # the notebook's folder is in there
        shutil.rmtree(_entry.path) if _entry.is_dir(follow_symlinks=False) else os.remove(_entry.path)
os.chdir(_home)
get_ipython().run_line_magic('reset', '-f')
"""
ABOUT = """
import os, signal, threading
print(threading.active_count())
print([int(each) for each in sorted(signal.valid_signals()) if signal.getsignal(each) is signal.SIG_IGN])
print(os.getcwd())
"""


class Lender:
    """Has a kernel of one level; starts another when a test has spoilt it."""

    def __init__(self, level: str, folder: Path) -> None:
        self._level = level
        self._folder = folder
        self._kernel: Kernel | None = None
        self._tidy = ""
        self._number = 0
        self._running = ExitStack()

    def __enter__(self) -> Lender:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._running.close()

    @contextmanager
    def lend(self) -> Iterator[Kernel]:
        kernel = self._kernel or self._start()
        self._kernel = None
        # What another test has not read is not for this one.
        client = kernel.manager.client()
        client.start_channels()
        client.wait_for_ready(timeout=TIMEOUT)
        kernel.client = client
        try:
            yield kernel
            if self._is_tidy(kernel):
                self._kernel = kernel
        finally:
            client.stop_channels()
            if self._kernel is None:
                self._running.close()

    def _start(self) -> Kernel:
        self._number += 1
        place = self._folder / str(self._number)
        notebooks = place / "notebooks"
        notebooks.mkdir(parents=True)
        # Cells run as another user.
        notebooks.chmod(0o755)
        kernel = self._running.enter_context(
            running_kernel(
                level=self._level,
                cwd=notebooks,
                env={
                    "SANDBOX_KERNEL_HOME": str(place / "state"),
                    "PYDEVD_DISABLE_FILE_VALIDATION": "1",
                },
                connection_file=str(place / "kernel.json"),
            )
        )
        # The first error of a kernel takes Python a while to show.
        assert kernel.run("1 / 0").ename == "ZeroDivisionError"
        threads, ignored, working_directory = kernel.run(ABOUT).text().splitlines()
        self._tidy = TIDY % (int(threads), ignored, working_directory)
        # It has the same identity as those that are lent: each would take the other's replies.
        kernel.client.stop_channels()
        return kernel

    def _is_tidy(self, kernel: Kernel) -> bool:
        if not kernel.manager.is_alive():
            return False
        try:
            outcome = kernel.run(self._tidy, timeout=TIDY_SECONDS)
        except (Empty, TimeoutError):
            print("the kernel does not answer: the next test gets another one")
            return False
        if outcome.status != "ok":
            print(f"the next test gets another kernel: {outcome.ename}: {outcome.evalue}")
        return outcome.status == "ok"
