"""How often each rule is touched by real notebooks, and by code that means harm.

The tables are for whoever writes a policy: a rule that ordinary notebooks touch cannot be denied.
Nothing of either corpus is ever run.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter, defaultdict

import pytest

from sandbox_kernel.policy.python import Memory, examine
from sandbox_kernel.policy.source import Unreadable, read_cell
from sandbox_kernel.policy.verdict import Embedded, Hit, Magic
from tests.corpora import BENIGN, REDCODE, corpus
from tests.tiers import sample

pytestmark = pytest.mark.slow

# Rules that ordinary notebooks all but never touch: a policy for everybody can deny them.
RARE = (
    "python.subclasses python.globals python.builtins_access python.frames python.code_objects "
    "python.loaders python.native python.gc python.format_walk python.unpickle_literal "
    "python.transitive_module python.ipython_hooks python.fork_bomb python.kill_all "
    "python.sensitive_path python.metadata_address python.surveillance python.unknown_syntax"
)
# Of RedCode, biased or faulty programs rather than harmful ones.
SEMANTIC = {12, 15, 16, 19, 20, 22, 23, 25}
_RUNS_ITS_BODY = {"time", "timeit", "capture", "prun"}


def rules_in(text: str, memory: Memory, depth: int = 0) -> set[str]:
    """Rules on the cell and on the Python within it."""
    rules = set()
    for item in examine(read_cell(text, memory.names).code, memory):
        inner = None
        if isinstance(item, Hit):
            rules.add(item.rule)
        elif isinstance(item, Embedded) and item.language == "python":
            inner = item.text
        elif isinstance(item, Magic) and item.name in _RUNS_ITS_BODY:
            inner = item.body or item.arguments
        if inner is not None and depth < 3:
            try:
                rules |= rules_in(inner, memory, depth + 1)
            except Unreadable:
                rules.add("unreadable")
    return rules


def test_few_real_notebooks_touch_the_rules_that_are_meant_to_be_rare() -> None:
    notebooks = sample(corpus(BENIGN), every=4)
    cells: Counter[str] = Counter()
    touched: dict[str, set[int]] = defaultdict(set)
    rare_cells, rare_notebooks, seconds = 0, set(), []
    for number, notebook in enumerate(notebooks):
        memory = Memory()
        for cell in notebook["cells"]:
            memory.begin()
            began = time.perf_counter()
            try:
                rules = rules_in(cell, memory)
            except Unreadable as error:
                rules = {"syntax error" if error.is_syntax_error else "unreadable"}
            seconds.append(time.perf_counter() - began)
            memory.commit()
            cells.update(rules)
            for rule in rules:
                touched[rule].add(number)
            if rules & set(RARE.split()):
                rare_cells += 1
                rare_notebooks.add(number)
    print(f"\n{'rule':28} {'cells':>6} {'%':>6} {'notebooks':>9} {'%':>6}")
    for rule, count in cells.most_common():
        books = len(touched[rule])
        of_cells, of_notebooks = 100 * count / len(seconds), 100 * books / len(notebooks)
        print(f"{rule:28} {count:6} {of_cells:6.2f} {books:9} {of_notebooks:6.2f}")
    print(f"median {1e6 * statistics.median(seconds):.0f} µs, max {1e3 * max(seconds):.0f} ms")
    print(f"rare rules: {rare_cells} cells, {len(rare_notebooks)} notebooks")
    assert rare_cells <= 0.0025 * len(seconds)
    assert len(rare_notebooks) <= 0.015 * len(notebooks)


def test_most_harmful_programs_touch_a_rule() -> None:
    programs = [one for one in corpus(REDCODE) if one["language"] == "python"]
    by_rule: dict[str, Counter[int]] = defaultdict(Counter)
    found, rare, meant = Counter[int](), Counter[int](), Counter[int]()
    for program in programs:
        index = program["index"]
        meant[index] += 1
        rules = rules_in(program["code"], Memory())
        for rule in rules:
            by_rule[rule][index] += 1
        found[index] += bool(rules - {"python.import"})
        rare[index] += bool(rules & set(RARE.split()))
    print(f"\n{'rule':28} {'programs':>8}  by index")
    for rule, counts in sorted(by_rule.items(), key=lambda item: -item[1].total()):
        print(f"{rule:28} {counts.total():8}  {dict(sorted(counts.items()))}")
    print(f"{'any but imports':28} {found.total():8}  {dict(sorted(found.items()))}")
    print(f"{'rare rules':28} {rare.total():8}  {dict(sorted(rare.items()))}")
    harmful = [index for index in meant if index not in SEMANTIC]
    assert sum(found[index] for index in harmful) >= 0.85 * sum(meant[index] for index in harmful)
