"""A person's view: JupyterLab in a real browser, a notebook, Run All."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
import pytest
from playwright.sync_api import Page, sync_playwright

from tests.kernel import eventually

pytestmark = [pytest.mark.browser, pytest.mark.process, pytest.mark.slow]

CHROMIUM_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@contextmanager
def jupyterlab(root: Path, path: str) -> Iterator[str]:
    """A JupyterLab server on a port of its own choice; its address."""
    runtime = root.parent / "runtime"
    environment = {**os.environ, "PATH": path, "JUPYTER_RUNTIME_DIR": str(runtime)}
    environment |= {"HOME": str(root.parent), "JUPYTER_CONFIG_DIR": str(root.parent / "config")}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--port=0"]
    command += ["--IdentityProvider.token=", f"--ServerApp.root_dir={root}"]
    with subprocess.Popen(
        command, env=environment, cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        address = ""

        def is_up() -> bool:
            nonlocal address
            try:
                for info in runtime.glob("jpserver-*.json"):
                    address = json.loads(info.read_text())["url"]
                return bool(address) and urllib.request.urlopen(f"{address}api").status == 200
            except (urllib.error.URLError, json.JSONDecodeError):  # it is just being written
                return False

        try:
            eventually(is_up, within=60, what="JupyterLab")
            yield address
        finally:
            server.terminate()
            try:
                server.wait(timeout=30)
            except subprocess.TimeoutExpired:
                server.kill()  # a server that is told to stop while it starts a kernel may not


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    chromium = shutil.which("chromium")
    assert chromium is not None
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_ARGUMENTS)
        # Tall, so that JupyterLab renders all cells.
        yield browser.new_page(viewport={"width": 1280, "height": 2400})
        browser.close()


def run_all(page: Page, address: str, sources: list[tuple[str, list[str]]], root: Path) -> None:
    cells = [
        nbformat.v4.new_code_cell(source, metadata={"tags": tags} if tags else {})
        for source, tags in sources
    ]
    kernelspec = {"name": "sandboxed-python", "display_name": "Sandboxed Python"}
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernelspec})
    nbformat.write(notebook, root / "book.ipynb")
    page.goto(f"{address}lab/tree/book.ipynb?reset")
    page.get_by_text("Sandboxed Python | Idle").wait_for(timeout=60_000)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.locator("li[data-command='runmenu:run-all']").click()


def output(page: Page, cell: int) -> Any:
    return page.locator(".jp-Notebook .jp-Cell").nth(cell).locator(".jp-OutputArea")


def test_run_all_goes_on_after_a_cell_that_kills_its_kernel(page: Page, tmp_path: Path) -> None:
    root = tmp_path / "notebooks"
    root.mkdir()
    sources = [
        ("print('hello from', __import__('os').getpid())", []),
        ("import os; os.kill(os.getpid(), 9)", ["raises-exception"]),
        ("print('a fresh', 'sandbox')", []),
    ]
    with jupyterlab(root, os.environ["PATH"]) as address:
        run_all(page, address, sources, root)
        output(page, 2).get_by_text("a fresh sandbox").wait_for(timeout=30_000)
        assert "hello from 2" in output(page, 0).inner_text()
        assert "SandboxLost" in output(page, 1).inner_text()
        page.get_by_text("Sandboxed Python | Idle").wait_for(timeout=10_000)


def test_a_slider_moved_in_the_browser_changes_the_kernel(page: Page, tmp_path: Path) -> None:
    root = tmp_path / "notebooks"
    root.mkdir()
    sources = [
        (
            "import ipywidgets as w\nslider = w.IntSlider(value=3)\necho = w.Label()\n"
            "slider.observe(lambda change: setattr(echo, 'value', f'kernel has {change.new}'), 'value')\n"
            "w.VBox([slider, echo])",
            [],
        ),
    ]
    with jupyterlab(root, os.environ["PATH"]) as address:
        run_all(page, address, sources, root)
        handle = page.locator(".jp-OutputArea .noUi-handle")
        handle.wait_for(timeout=30_000)
        handle.press("ArrowRight")
        page.get_by_text(re.compile("kernel has 4")).wait_for(timeout=10_000)


def test_the_reason_is_shown_where_there_is_no_sandbox(page: Page, tmp_path: Path) -> None:
    root, tools = tmp_path / "notebooks", tmp_path / "bin"
    root.mkdir()
    tools.mkdir()
    for name in ("sh", "rm"):
        (tools / name).symlink_to(shutil.which(name) or name)
    with jupyterlab(root, str(tools)) as address:
        cells = [("print('ran')", []), ("print('ran too')", [])]
        run_all(page, address, cells, root)
        output(page, 0).get_by_text("apt-get install bubblewrap").wait_for(timeout=30_000)
        assert "ran too" not in output(page, 1).inner_text()
