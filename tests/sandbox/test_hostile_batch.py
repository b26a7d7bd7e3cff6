"""`sandbox-kernel run` and notebooks that mean harm to who runs them: terminal, results, other notebooks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

from sandbox_kernel.cli import main, run_client
from sandbox_kernel.outputs.receipt import RECEIPT_MIME
from tests.kernel import UNCHECKED, isolation

pytestmark = pytest.mark.process

CLIPBOARD = "\x1b]52;c;ZXZpbA==\x07"
PAINT = f"{CLIPBOARD}\x1b]0;title\x07\x1b[2J\x9b2J\u202e\r[bold red]paint[/]"
# A message with a header that client libraries trip over.
UNREADABLE = """
from IPython import get_ipython
kernel = get_ipython().kernel
message = kernel.session.msg("stream", {"name": "stdout", "text": "x"}, parent=kernel.get_parent())
message["header"]["version"] = "x\\x1b[2J"
kernel.session.send(kernel.iopub_socket, message)
"""
# What the kernel replies to later cells, with something else in it.
PATCHES_REPLIES = """
from IPython import get_ipython
kernel = get_ipython().kernel
honest = kernel.do_execute
async def do_execute(*arguments, **options):
    return await honest(*arguments, **options) | {!r}
kernel.do_execute = do_execute
"""
SAYS = """
from IPython import get_ipython
kernel = get_ipython().kernel
for kind, content in {!r}:
    message = kernel.session.msg(kind, content, parent=kernel.get_parent())
    kernel.session.send(kernel.iopub_socket, message)
"""
# Output widgets that claim what the next requests of this client will put out.
CLAIMS = """
from comm import create_comm
from IPython import get_ipython
mine = get_ipython().kernel.get_parent()["header"]["msg_id"]
head, _, number = mine.rpartition("_")
state = {"_model_module": "@jupyter-widgets/output", "_model_name": "OutputModel", "outputs": []}
for later in range(40):
    comm = create_comm(target_name="jupyter.widget", data={"state": state}, metadata={})
    comm.send({"method": "update", "state": {"msg_id": f"{head}_{int(number) + later}"}})
print("claimed")
"""
# A kernel that Jupyter takes for ours and that no limit holds.
UNLIMITED = (
    "import sys; from ipykernel.kernelapp import IPKernelApp as a; a.launch_instance(sys.argv[2:])"
)


@pytest.fixture(autouse=True)
def policy(tmp_path: Path, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "policy" / "batch.yaml"
    path.parent.mkdir()
    limits = "limits: {wall: 5s, grace: 500ms}"
    base = f"extends: {UNCHECKED}\n{limits}\n"
    path.write_text(base if level == "process" else f"{base}{isolation(level)}")
    path.chmod(0o600)
    monkeypatch.setenv("SANDBOX_KERNEL_POLICY", str(path))


def write(path: Path, *sources: str) -> Path:
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


def obeyed(text: str) -> set[str]:
    """The characters that a terminal does not just show."""
    return {character for character in text if not character.isprintable()} - {"\n"}


def test_nothing_of_a_notebook_reaches_the_terminal_as_a_command(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / f"[bold]{CLIPBOARD.replace('/', '')}"
    folder.mkdir()
    book = write(
        folder / f"\x1b[2J\u202e[link=x]{CLIPBOARD}.ipynb",
        f"{PAINT!r}\n# {PAINT}",
        f"print({PAINT!r}, flush=True)",
        f"import sys; print({PAINT!r}, file=sys.stderr)",
        f"class Paint:\n    def __repr__(self): return {PAINT!r}\nPaint()",
        f"raise type({PAINT!r}, (Exception,), {{}})({PAINT!r})",
        f"raise KeyError # {PAINT}",
        UNREADABLE,
    )
    broken = tmp_path / f"{CLIPBOARD}broken.ipynb"
    broken.write_text(f'{{"nbformat": "{CLIPBOARD}"')
    assert obeyed(book.read_text()) | obeyed(str(book))  # the control: it is there
    assert main(["run", "--keep-going", str(book), str(broken)]) == 1
    said = capfd.readouterr()
    assert obeyed(said.out) == set()
    assert obeyed(said.err) == set()
    # And it is not taken for markup, which would not be shown.
    assert "[bold red]paint" in said.out
    assert "[link=x]" in said.out
    assert "cell 5" in said.out
    assert "UnreadableMessage" in said.out


def test_a_terminal_without_the_characters_of_a_cell_ends_no_run(tmp_path: Path) -> None:
    books = [write(tmp_path / f"{name}.ipynb", "print('\u4f60\u00e9')") for name in ("a", "b")]
    command = [sys.executable, "-P", "-m", "sandbox_kernel", "run", *map(str, books)]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(b"1 cell") == 2


def test_a_command_line_with_a_strangers_file_name_is_refused_without_painting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in ([f"{CLIPBOARD}.ipynb"], [f"--{CLIPBOARD}", "x.ipynb"]):
        with pytest.raises(SystemExit) as caught:
            main(["run", *arguments])
        assert caught.value.code == 2
        assert obeyed(capsys.readouterr().err) == set()


@pytest.mark.every_level
def test_a_message_that_cannot_be_read_ends_its_notebook_and_no_other(
    tmp_path: Path, level: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    hostile = write(tmp_path / "hostile.ipynb", "print('before')", UNREADABLE, "1")
    honest = write(tmp_path / "honest.ipynb", "20 + 1")
    assert main(["run", "--json", "-o", str(out), str(hostile), str(honest)]) == 1
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert [cell["outcome"] for cell in first["cells"]] == ["ok", "UnreadableMessage"]
    assert "ValueError: invalid literal for int()" in first["cells"][1]["error"]
    assert first["not_run"] == 1
    assert second["cells"][0]["result"] == "21"
    saved = nbformat.read(out / "hostile.ipynb", as_version=4)
    assert saved.cells[0].outputs[0].text == "before\n"
    assert saved.cells[2].outputs == []


@pytest.mark.every_level
def test_no_cell_can_claim_what_later_cells_put_out(
    tmp_path: Path, level: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    book = write(tmp_path / "claims.ipynb", CLAIMS, "print('later')", "6 * 7")
    assert main(["run", "--json", "-o", str(out), str(book)]) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert [cell["result"] for cell in cells] == ["claimed", "later", "42"]
    saved = nbformat.read(out / "claims.ipynb", as_version=4)
    for cell in saved.cells:
        assert [RECEIPT_MIME in output.get("data", {}) for output in cell.outputs] == [False, True]


def test_a_kernel_that_does_not_answer_ends_its_notebook_and_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the kernel says: this one has no limits, and goes on with its cell."""
    spec = tmp_path / "kernels" / "unlimited"
    spec.mkdir(parents=True)
    argv = [sys.executable, "-c", UNLIMITED, "sandbox_kernel", "-f", "{connection_file}"]
    (spec / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "x"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    monkeypatch.setattr(run_client, "SLACK_SECONDS", 0.0)
    slow = write(tmp_path / "slow.ipynb", "1", "import time; time.sleep(600)", "2")
    quick = write(tmp_path / "quick.ipynb", "20 + 1")
    started = time.monotonic()
    assert main(["run", "--json", "--keep-going", "-k", "unlimited", str(slow), str(quick)]) == 1
    assert time.monotonic() - started < 60
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert [cell["outcome"] for cell in first["cells"]] == ["ok", "Overdue"]
    assert "did not answer within 5.5 s" in first["cells"][1]["error"]
    assert first["not_run"] == 1
    assert second["cells"][0]["result"] == "21"


def test_outputs_that_a_notebook_brings_along_are_not_saved_as_its_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forged = nbformat.v4.new_output(
        "display_data", data={RECEIPT_MIME: {"outcome": "ok"}, "text/plain": "forged"}
    )
    cells = [
        nbformat.v4.new_code_cell(source, outputs=[forged], execution_count=1)
        for source in (" \n\t", "1", "2", "1 / 0", "3")
    ]
    cells[2].metadata["tags"] = ["skip-execution"]
    book, out = tmp_path / "forged.ipynb", tmp_path / "out"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), book)
    assert main(["run", "--json", "-o", str(out), str(book)]) == 1
    shown = json.loads(capsys.readouterr().out)["cells"]
    assert [cell["outcome"] for cell in shown] == ["ok", "skipped", "ZeroDivisionError"]
    saved = nbformat.read(out / "forged.ipynb", as_version=4)
    assert "forged" not in json.dumps(saved)
    assert [bool(cell.outputs) for cell in saved.cells] == [False, True, False, True, False]


@pytest.mark.parametrize(
    "expressions",
    [
        "x",
        ["x"],
        {"_exit_code": "x"},
        {"_exit_code": {"data": "x"}},
        {"_exit_code": {"data": {"text/plain": ["x"]}}},
        {"_exit_code": {"data": {"text/plain": 10**4000}}},
        {"_exit_code": {"data": {"text/plain": PAINT}}},
    ],
    ids=lambda value: str(value)[:50].encode("ascii", "replace").decode(),
)
def test_a_reply_of_another_shape_is_no_mistake_of_ours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], expressions: object
) -> None:
    patch = PATCHES_REPLIES.format({"user_expressions": expressions})
    book = write(tmp_path / "replies.ipynb", patch, "!exit 3", "20 + 1")
    assert main(["run", "--json", str(book)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["problem"] is None
    assert [cell["warning"] for cell in shown["cells"]] == [None, None, None]
    assert shown["cells"][2]["result"] == "21"


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        ({"status": "aborted"}, "status aborted"),
        ({"status": 5}, "no status"),
        ({"status": "error", "ename": "ok", "evalue": {}, "traceback": "x"}, "error"),
    ],
)
def test_only_a_cell_that_was_run_to_its_end_is_ok(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, object], outcome: str
) -> None:
    book = write(tmp_path / "status.ipynb", PATCHES_REPLIES.format(change), "1")
    assert main(["run", "--json", str(book)]) == 1
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert [cell["outcome"] for cell in cells] == ["ok", outcome]


def test_an_exception_whose_name_is_ok_is_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("ok", "skipped", "")
    book = write(
        tmp_path / "names.ipynb", *(f"raise type({name!r}, (Exception,), {{}})" for name in names)
    )
    assert main(["run", "--json", "--keep-going", str(book)]) == 1
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert [cell["outcome"] for cell in cells] == ["error", "error", "error"]
    assert main(["run", str(book)]) == 1
    assert "1 cell, 1 failed, 2 not run" in capsys.readouterr().out


@pytest.mark.every_level
def test_an_output_that_cannot_be_saved_costs_no_other(
    tmp_path: Path, level: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    deep = "value = []\nfor _ in range(600): value = [value]\n"
    odd = [
        ("display_data", {"data": {"text/plain": "x"}, "execution_count": "x"}),
        ("display_data", {"data": {"text/plain": 5}, "metadata": {}}),
        ("display_data", {"data": {}, "metadata": {}, "transient": {"display_id": ["x"]}}),
        ("display_data", {"data": {}, "metadata": {}, "transient": 5}),
        ("stream", {"name": "stdout", "text": 5}),
    ]
    book = write(
        tmp_path / "odd.ipynb",
        "print('before')",
        f"{deep}from IPython.display import display\n"
        "display({'application/json': value}, raw=True)",
        *(SAYS.format([each]) for each in odd),
        "print('after')",
    )
    assert main(["run", "--json", "-o", str(out), str(book)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert {cell["outcome"] for cell in shown["cells"]} == {"ok"}
    saved = nbformat.read(out / "odd.ipynb", as_version=4)
    nbformat.validate(saved)
    first, too_deep, *others, last = saved.cells
    assert first.outputs[0].text == "before\n"
    assert "nested too deeply" in too_deep.outputs[0].text
    for cell in others:
        assert "outputs of this cell are left out" in cell.outputs[0].text
    assert last.outputs[0].text == "after\n"
    for cell in saved.cells:
        assert RECEIPT_MIME in cell.outputs[-1].data
        assert type(cell.execution_count) is int


def test_copies_of_a_large_output_are_not_made_without_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As many as there are displays of that name: 1.5 GB, of a message of 3 MB."""
    out = tmp_path / "out"
    book = write(
        tmp_path / "copies.ipynb",
        "from IPython.display import display, update_display\n"
        "for _ in range(500): display({'text/plain': 'small'}, raw=True, display_id='x')",
        "update_display({'text/plain': 'x' * 3_000_000}, raw=True, display_id='x')",
        "print('after')",
    )
    assert main(["run", "--json", "-o", str(out), str(book)]) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert "more than 256 MiB" in cells[1]["result"]
    saved = nbformat.read(out / "copies.ipynb", as_version=4)
    assert (out / "copies.ipynb").stat().st_size < 1 << 20
    assert [len(cell.outputs) for cell in saved.cells] == [501, 2, 2]
    assert saved.cells[0].outputs[0].data["text/plain"] == "small"


def test_outputs_that_take_long_to_read_are_all_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """nbclient gives up after four seconds, without a word."""
    read = run_client.NotebookClient.process_message

    def slowly(self: object, msg: dict[str, object], *more: object) -> object:
        time.sleep(0.06 if msg["msg_type"] == "stream" else 0)
        return read(self, msg, *more)

    monkeypatch.setattr(run_client.NotebookClient, "process_message", slowly)
    out = tmp_path / "out"
    book = write(
        tmp_path / "slow.ipynb", "for n in range(100): print(n, flush=True)", "print('after')"
    )
    assert main(["run", "--json", "-o", str(out), str(book)]) == 0
    saved = nbformat.read(out / "slow.ipynb", as_version=4)
    texts = [output.text for output in saved.cells[0].outputs if "text" in output]
    assert "".join(texts).split() == [str(n) for n in range(100)]


def test_a_notebook_whose_name_is_as_long_as_a_name_may_be_is_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"{'x' * 249}.ipynb"
    book = write(tmp_path / name, "1")
    assert main(["run", "--json", "-o", str(tmp_path / "out"), str(book)]) == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == [name]


def test_the_whole_error_of_a_failed_cell_is_shown_below_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deep = "\n".join(f"def f{n}(): return f{n + 1}()" for n in range(20))
    book = write(
        tmp_path / "errors.ipynb",
        f"{deep}\ndef f20(): raise ValueError('the end of it')\nf0()",
        "from IPython.display import clear_output\ntry: 1 / 0\nfinally: clear_output()",
    )
    assert main(["run", "--keep-going", str(book)]) == 1
    text = capsys.readouterr().out
    below = text[text.index("└") :]
    assert "✘ cell 1: ValueError" in below
    for n in range(20):
        assert f"f{n + 1}()" in below
    assert "ValueError: the end of it" in below
    assert "ZeroDivisionError: division by zero" in below
    assert "2 cells, 2 failed" in text.splitlines()[-1]


def test_a_failed_command_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    book = write(
        tmp_path / "commands.ipynb",
        "!exit 3",
        "!true",
        "%pip frobnicate",
        "!true\n!exit 4",
        "100 % 7, 'a!b'",
    )
    assert main(["run", "--json", str(book)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [cell["warning"] for cell in shown["cells"]] == [
        "its command failed with exit code 3",
        None,
        "its command failed with exit code 1",
        "the last of its 2 commands failed with exit code 4",
        None,
    ]
    assert shown["warnings"] == 3
    assert main(["run", str(write(book, "!exit 3"))]) == 0
    text = capsys.readouterr().out
    assert "│ ⚠ │ !exit 3" in text
    assert "⚠ cell 1: its command failed with exit code 3" in text
    assert "1 cell, 1 warning" in text.splitlines()[-1]


def test_no_cell_is_warned_of_for_a_command_of_an_earlier_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    book = write(
        tmp_path / "stale.ipynb",
        "!exit 3",
        "if False:\n    !true",
        "%sx true",
        "_exit_code",
        "for _ in range(1):\n    !exit 4",
        "!exit 4",
        "!exit 5\n1 / 0",
        "if False:\n    !true",
    )
    assert main(["run", "--json", "--keep-going", str(book)]) == 1
    cells = json.loads(capsys.readouterr().out)["cells"]
    failed = "its command failed with exit code"
    warnings = [cell["warning"] for cell in cells]
    assert warnings == [f"{failed} 3", None, None, None, f"{failed} 4", f"{failed} 4", None, None]
    assert cells[3]["result"] == "3", "a notebook may look at it"
