"""How often each shell rule is hit in real notebooks and in hostile scripts: reasons for a policy.

Nothing of either corpus is ever run.
"""

from __future__ import annotations

import re
from collections import Counter

import pytest

from sandbox_kernel.policy import shell
from sandbox_kernel.policy.source import Unreadable
from sandbox_kernel.policy.verdict import Hit
from tests.corpora import BENIGN, REDCODE, corpus

pytestmark = pytest.mark.slow
# Rules that a policy for everyday work may well deny: rarely benign, by the figures printed here.
RARELY_BENIGN = frozenset(
    f"shell.{name}"
    for name in (
        *("too_deep", "obfuscated", "hidden_command", "delete_system", "device", "system_write"),
        *("pipe_to_shell", "reverse_shell", "metadata_address", "sensitive_path", "privilege"),
        *("environment_hook", "users", "kill", "system_control", "cover_tracks", "fork_bomb"),
        *("unparseable", "upload"),
    )
)
# Ideas of the hostile corpus that a reader of shell text can see at all; the others are about what
# a correct script means.
SEEN = (1, 5, 7, 9, 13, 21)


def shell_texts(cell: str) -> list[str]:
    whole = re.match(r"\s*%%(?:bash|sh|shell)\b[^\n]*\n(.*)", cell, re.DOTALL)
    if whole:
        return [whole[1]]
    if re.match(r"\s*%%(?!time|capture)", cell):
        return []
    return re.findall(r"^[ \t]*!(?!=)((?:.*\\\n)*.*)$", cell, re.MULTILINE)


def hit_rules(text: str) -> set[str]:
    try:
        return {item.rule for item in shell.examine(text) if isinstance(item, Hit)}
    except Unreadable:
        return {"unreadable"}


def test_rarely_benign_rules_are_rare_in_notebooks_and_common_in_hostile_scripts() -> None:
    cells: Counter[str] = Counter()
    notebooks: Counter[str] = Counter()
    denied_cells = denied_notebooks = number_of_cells = number_of_notebooks = 0
    for notebook in corpus(BENIGN):
        of_notebook: set[str] = set()
        for cell in notebook["cells"]:
            of_cell = {rule for text in shell_texts(cell) for rule in hit_rules(text)}
            cells.update(of_cell)
            denied_cells += bool(of_cell & RARELY_BENIGN)
            of_notebook |= of_cell
            number_of_cells += 1
        notebooks.update(of_notebook)
        denied_notebooks += bool(of_notebook & RARELY_BENIGN)
        number_of_notebooks += 1

    hostile: Counter[str] = Counter()
    denied: Counter[int] = Counter()
    scripts: Counter[int] = Counter()
    for record in corpus(REDCODE):
        if record["language"] == "bash":
            found = hit_rules(record["code"])
            hostile.update(found)
            scripts[record["index"]] += 1
            denied[record["index"]] += bool(found & RARELY_BENIGN)

    print(f"\n{'rule':26}{'cells':>7}{'notebooks':>11}{'hostile':>9}")
    for rule in [rule.id for rule in shell.RULES] + ["unreadable"]:
        mark = "*" if rule in RARELY_BENIGN else " "
        print(f"{mark}{rule:25}{cells[rule]:7}{notebooks[rule]:11}{hostile[rule]:9}")
    print(f"any of *: {denied_cells}/{number_of_cells} cells, ", end="")
    print(f"{denied_notebooks}/{number_of_notebooks} notebooks; hostile by index: ", end="")
    print({index: f"{denied[index]}/{scripts[index]}" for index in sorted(scripts)})

    assert cells["unreadable"] == 0
    assert denied_cells <= 0.001 * number_of_cells
    assert denied_notebooks <= 0.005 * number_of_notebooks
    assert sum(denied[index] for index in SEEN) >= 0.4 * sum(scripts[index] for index in SEEN)
