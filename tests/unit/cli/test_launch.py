from __future__ import annotations

import json
from pathlib import Path
from typing import NoReturn
from unittest.mock import Mock

import pytest

from sandbox_kernel.cli.launch import PASSED_ON
from sandbox_kernel.cli.launcher import Launcher, _serve


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


def test_the_ports_are_open_before_the_policy_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that finds nobody there tries again only a tenth of a second later."""
    ports = {f"{name}_port": 50_000 for name in ("shell", "iopub", "stdin", "control", "hb")}
    file = tmp_path / "kernel.json"
    file.write_text(json.dumps({"transport": "tcp", "ip": "127.0.0.1", "key": "k", **ports}))
    done: list[str] = []

    class Read(Exception):
        pass

    def load(_: object) -> NoReturn:
        done.append("read")
        raise Read

    bound = "sandbox_kernel.relay.frontend.FrontendSockets"
    monkeypatch.setattr(bound, lambda *_: done.append("bound"))
    monkeypatch.setattr("zmq.Context", Mock())
    monkeypatch.setattr("sandbox_kernel.policy.load.load_policy", load)
    launcher = Mock(spec=Launcher, connection_file=file, session="session")
    with pytest.raises(Read):
        _serve(launcher, None, None, None)
    assert done == ["bound", "read"]


def test_without_ports_nothing_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    launcher = Mock(spec=Launcher, connection_file=tmp_path / "none.json", session="session")
    assert _serve(launcher, None, None, None) == 1
    launcher.dismiss.assert_called_once_with()
    launcher.adopt.assert_not_called()
    assert "cannot read the connection file" in capsys.readouterr().err
