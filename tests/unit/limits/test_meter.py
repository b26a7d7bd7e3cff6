from __future__ import annotations

import subprocess
import sys

from sandbox_kernel.limits.meter import Meter, host_virtual_memory, process_tree, read_usage

HOLD = "import sys; data = bytearray(64 << 20); print('up', flush=True); sys.stdin.read()"


def test_a_tree_includes_grandchildren_and_their_memory() -> None:
    spawn = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {HOLD!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", spawn], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        assert len(list(process_tree(parent.pid))) == 2
        usage = read_usage(parent.pid)
        assert usage.processes == 2
        assert usage.memory_bytes > 64 << 20
        parent.communicate("")


def test_a_tree_that_is_gone_uses_nothing() -> None:
    done = subprocess.Popen(["true"])
    done.wait()
    assert read_usage(done.pid).processes == 0


def test_cpu_is_a_percentage_between_two_answers() -> None:
    meter = Meter()
    burn = "print('up', flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", burn], stdout=subprocess.PIPE) as burner:
        assert burner.stdout is not None
        burner.stdout.readline()
        assert meter.usage_reply(burner.pid)["kernel_cpu"] == 0
        while read_usage(burner.pid).cpu_seconds < 0.2:
            pass
        assert 5 < meter.usage_reply(burner.pid)["kernel_cpu"] <= 110
        burner.kill()


def test_the_hosts_memory_has_the_keys_frontends_read() -> None:
    memory = host_virtual_memory()
    assert memory["total"] > memory["available"] > 0
    assert memory["active"] > 0
