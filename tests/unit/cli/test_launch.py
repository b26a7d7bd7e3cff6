from __future__ import annotations

import pytest

from sandbox_kernel.cli.launch import PASSED_ON


@pytest.mark.parametrize(
    "option",
    [
        "--HistoryManager.hist_file=:memory:",
        "--HistoryManager.enabled=False",
        "--InlineBackend.figure_format=retina",
        "--matplotlib=inline",
    ],
)
def test_options_about_running_cells_pass(option: str) -> None:
    assert PASSED_ON.match(option)


@pytest.mark.parametrize(
    "option",
    [
        "--HistoryManager.hist_file=/etc/passwd",
        "--HistoryManager.hist_file=:memory:x",
        "--IPKernelApp.kernel_class=evil",
        "--Session.key=known",
        "--ip=0.0.0.0",
        "--transport=tcp",
        "-c",
        "code",
        "--ext=evil",
    ],
)
def test_options_that_could_redirect_do_not(option: str) -> None:
    assert not PASSED_ON.match(option)
