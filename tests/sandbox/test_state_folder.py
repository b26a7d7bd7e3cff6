"""A kernel with a state folder that is not its user's alone runs nothing and leaves nothing there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kernel import running_kernel

pytestmark = pytest.mark.process


@pytest.mark.parametrize("how", ["link", "open", "open above"])
def test_a_kernel_makes_nothing_in_a_state_folder_that_it_refuses(tmp_path: Path, how: str) -> None:
    home = real = tmp_path / "above" / "state"
    real.mkdir(parents=True)
    if how == "link":
        home = tmp_path / "link"
        home.symlink_to(real)
    else:
        (real if how == "open" else real.parent).chmod(0o777)
    work = tmp_path / "work"
    work.mkdir()
    with running_kernel(cwd=work, env={"SANDBOX_KERNEL_HOME": str(home)}) as kernel:
        refused = kernel.run("1 + 1")
        assert refused.ename in ("SandboxUnavailable", "AuditUnavailable")
        assert "It has changed nothing there" in refused.evalue
    assert list(real.iterdir()) == []
