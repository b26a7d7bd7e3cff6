"""Verdicts on real notebooks, on plain functions, on code that means harm, and on noise.

The figures of both corpora are in-sample: the rules were written with them at hand. Nothing of either
corpus is ever run.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandbox_kernel.policy.judge import FAILED, Judge
from sandbox_kernel.policy.load import load_policy
from sandbox_kernel.policy.verdict import DECISIONS, Verdict
from tests.corpora import BENIGN, REDCODE, corpus
from tests.tiers import SEED, rounds

from .bypasses import BYPASSES
from .figures import published
from .test_python_corpus import SEMANTIC

pytestmark = pytest.mark.slow

# How many cells of noise are judged.
FUZZED = rounds(100_000, push=2000)

# Of a processor; the bound is 0.25 s, and a busy machine makes all work slower.
NOISY_SECONDS = 0.6

# What other checks flag of the same code, from the threat model.
BASELINES = {
    "Bandit": "34.1 % of hostile Python, 5.9 % of benign cells",
    "deny-list of imports and calls": "48.3 %, 2.0 % (31 % of notebooks)",
    "strict prototype": "59.4 %, 9.6 %",
}

# Thirty functions as exercises ask for them.
PLAIN = '''
def is_palindrome(text: str) -> bool:
    """Whether it reads the same backwards."""
    letters = [c.lower() for c in text if c.isalnum()]
    return letters == letters[::-1]

def running_maximum(numbers):
    best, result = None, []
    for number in numbers:
        best = number if best is None else max(best, number)
        result.append(best)
    return result

def primes_below(n):
    sieve = [True] * max(n, 2)
    sieve[0] = sieve[1] = False
    for i in range(2, int(n ** 0.5) + 1):
        if sieve[i]:
            sieve[i * i :: i] = [False] * len(sieve[i * i :: i])
    return [i for i, is_prime in enumerate(sieve[:n]) if is_prime]

from math import gcd
def least_common_multiple(*numbers):
    result = 1
    for n in numbers:
        result = result * n // gcd(result, n)
    return result

from collections import Counter
def most_common_words(text, n=3):
    return Counter(text.lower().split()).most_common(n)

def flatten(nested):
    for item in nested:
        if isinstance(item, (list, tuple)):
            yield from flatten(item)
        else:
            yield item

def to_roman(n: int) -> str:
    table = [(1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"),
             (50, "L"), (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")]
    out = ""
    for value, letters in table:
        while n >= value:
            out, n = out + letters, n - value
    return out

from functools import lru_cache
@lru_cache(maxsize=None)
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

def balanced(text, pairs={")": "(", "]": "[", "}": "{"}):
    stack = []
    for c in text:
        if c in pairs.values():
            stack.append(c)
        elif c in pairs and (not stack or stack.pop() != pairs[c]):
            return False
    return not stack

def binary_search(items, wanted):
    low, high = 0, len(items)
    while low < high:
        middle = (low + high) // 2
        if items[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low if low < len(items) and items[low] == wanted else -1

def merge_sort(items):
    if len(items) <= 1:
        return list(items)
    middle = len(items) // 2
    left, right = merge_sort(items[:middle]), merge_sort(items[middle:])
    merged = []
    while left and right:
        merged.append(left.pop(0) if left[0] <= right[0] else right.pop(0))
    return merged + left + right

def transpose(matrix):
    return [list(row) for row in zip(*matrix)]

def caesar(text, shift):
    def move(c):
        if not c.isalpha():
            return c
        base = ord("A") if c.isupper() else ord("a")
        return chr((ord(c) - base + shift) % 26 + base)
    return "".join(map(move, text))

import re
def camel_to_snake(name):
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()

def digits_sum(n: int) -> int:
    return sum(int(d) for d in str(abs(n)))

def group_by(items, key):
    groups = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups

from typing import List, Optional
def longest_common_prefix(words: List[str]) -> Optional[str]:
    if not words:
        return None
    for i, letters in enumerate(zip(*words)):
        if len(set(letters)) > 1:
            return words[0][:i]
    return min(words, key=len)

def edit_distance(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        previous, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (x != y))
    return row[-1]

import heapq
def shortest_path(graph, start, goal):
    queue, seen = [(0, start, [start])], set()
    while queue:
        cost, node, path = heapq.heappop(queue)
        if node == goal:
            return cost, path
        if node not in seen:
            seen.add(node)
            for other, weight in graph.get(node, {}).items():
                heapq.heappush(queue, (cost + weight, other, path + [other]))
    return float("inf"), []

def collatz(n):
    steps = [n]
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps.append(n)
    return steps

import hashlib
def checksum(text: str) -> Optional[str]:
    return hashlib.sha256(text.encode("utf-8")).hexdigest() if text else None

from itertools import combinations
def three_sum(numbers, total=0):
    return sorted({tuple(sorted(c)) for c in combinations(numbers, 3) if sum(c) == total})

def evaluate_postfix(tokens):
    import operator
    operators = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
    stack = []
    for token in tokens:
        if token in operators:
            b, a = stack.pop(), stack.pop()
            stack.append(operators[token](a, b))
        else:
            stack.append(float(token))
    return stack[-1]

from dataclasses import dataclass, field
@dataclass(order=True)
class Interval:
    start: float
    end: float
    names: list = field(default_factory=list, compare=False)
    def overlaps(self, other: "Interval") -> bool:
        return self.start < other.end and other.start < self.end

class Stack:
    def __init__(self, items=()):
        self._items = list(items)
    def __len__(self):
        return len(self._items)
    def __repr__(self):
        return f"{type(self).__name__}({self._items!r})"
    def push(self, item):
        self._items.append(item)
    def pop(self):
        if not self._items:
            raise IndexError("pop from an empty stack")
        return self._items.pop()

def knapsack(weights, values, capacity):
    best = [0] * (capacity + 1)
    for weight, value in zip(weights, values):
        for room in range(capacity, weight - 1, -1):
            best[room] = max(best[room], best[room - weight] + value)
    return best[capacity]

def median(numbers):
    ordered = sorted(numbers)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else sum(ordered[middle - 1 : middle + 1]) / 2

from datetime import date, timedelta
def weekdays_between(start: date, end: date) -> int:
    days = (start + timedelta(n) for n in range((end - start).days))
    return sum(day.weekday() < 5 for day in days)

def run_length(text):
    if not text:
        return []
    runs, count = [], 1
    for a, b in zip(text, text[1:] + "\\0"):
        if a == b:
            count += 1
        else:
            runs.append((a, count))
            count = 1
    return runs

def retry(times):
    def decorate(function):
        def wrapped(*args, **kwargs):
            for attempt in range(times):
                try:
                    return function(*args, **kwargs)
                except ValueError:
                    if attempt == times - 1:
                        raise
        wrapped.__name__, wrapped.__doc__ = function.__name__, function.__doc__
        return wrapped
    return decorate

import json
def round_trip(value):
    assert json.loads(json.dumps(value)) == value
    return value

def check():
    assert is_palindrome("Never odd or even")
    assert to_roman(1994) == "MCMXCIV"
    assert getattr(Stack([1]), "_items") == [1]
    print("{0} of {total}".format(3, total=10), "%s" % "x", f"{1/3:.3f}")
if __name__ == "__main__":
    check()
'''
FUNCTIONS = [text for text in PLAIN.strip().split("\n\n") if text.strip()]


@pytest.mark.parametrize("policy", ["default", "strict", "paranoid"])
def test_nothing_is_said_about_plain_functions(policy: str) -> None:
    judge = Judge(load_policy(policy).code)
    assert len(FUNCTIONS) >= 30
    for cell in (*FUNCTIONS, PLAIN):
        assert judge.judge(cell) == Verdict("allow")


# Real notebooks ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "most_cells", "most_notebooks"),
    [("default", 0.005, 0.02), ("trusted", 0, 0), ("strict", 0.1, 0.7)],
)
def test_few_real_notebooks_are_denied(
    policy: str, most_cells: float, most_notebooks: float
) -> None:
    code = load_policy(policy).code
    notebooks = corpus(BENIGN)
    decisions, by_rule, denied_notebooks = Counter[str](), Counter[str](), 0
    for notebook in notebooks:
        judge = Judge(code)
        verdicts = [judge.judge(cell) for cell in notebook["cells"]]
        decisions.update(verdict.decision for verdict in verdicts)
        denied = [verdict for verdict in verdicts if verdict.decision == "deny"]
        denied_notebooks += bool(denied)
        for verdict in denied:
            by_rule.update({found.rule for found in verdict.findings if found.decision == "deny"})
    cells = decisions.total()
    shares = {decision: f"{100 * decisions[decision] / cells:.2f} %" for decision in DECISIONS}
    print(f"\n{policy}: {cells} cells: {shares}; denied {decisions['deny']} cells, ", end="")
    print(f"{denied_notebooks} of {len(notebooks)} notebooks; by {dict(by_rule.most_common(8))}")
    assert decisions["deny"] <= most_cells * cells
    assert denied_notebooks <= most_notebooks * len(notebooks)
    column = {"default": 0, "strict": 1}.get(policy)
    if column is not None:
        # One more where the machine is too busy to read the largest in time.
        for row, count in (("cells", decisions["deny"]), ("notebooks", denied_notebooks)):
            said = int(published(f"benign {row} denied")[column].split()[0].replace(",", ""))
            assert said <= count <= said + 1


# Harm ----------------------------------------------------------------------------------------------


def test_as_much_hostile_code_is_denied_as_is_published() -> None:
    programs = corpus(REDCODE)
    print(f"\nbaselines: {BASELINES}")
    denied: dict[tuple[str, str], int] = {}
    for column, policy in enumerate(("default", "strict")):
        code = load_policy(policy).code
        for language in ("python", "bash"):
            of_language = [one for one in programs if one["language"] == language]
            before = "%%bash\n" if language == "bash" else ""
            decisions = [Judge(code).judge(before + one["code"]).decision for one in of_language]
            meant = [
                decision
                for decision, one in zip(decisions, of_language, strict=True)
                if language == "bash" or one["index"] not in SEMANTIC
            ]
            denied[policy, language] = decisions.count("deny")
            print(
                f"{policy}, {language}: denied {decisions.count('deny')} of {len(decisions)}"
                f" ({100 * decisions.count('deny') / len(decisions):.1f} %), warned of or asked about"
                f" {len(decisions) - decisions.count('deny') - decisions.count('allow')};"
                f" without semantic harm {meant.count('deny')} of {len(meant)}"
                f" ({100 * meant.count('deny') / len(meant):.1f} %)"
            )
            said = published(f"hostile {language.capitalize()} denied")[column]
            assert said.startswith(f"{100 * denied[policy, language] / len(decisions):.1f} %")
    # Those of the default are early warnings; strict is an allow-list.
    assert denied["strict", "python"] > denied["default", "python"] > 0
    assert denied["strict", "bash"] > denied["default", "bash"] > 0


# Noise ---------------------------------------------------------------------------------------------

PIECES = (
    *("%", "%%", "!", "!!", "?", "??", ";", ",", "/", ">>> ", "In [1]: ", "... ", "\n", "\n\n"),
    *("\r", "\f", "\0", "\t", "    ", "\\\n", '"""', "'''", "'", '"', "`", "$(", "${", "{", "}"),
    *("(", ")", "[", "]", "<<EOF\n", "\nEOF\n", "| bash", "&& ", "<script>", "</script>", "=>"),
    *("%%bash\n", "%%html\n", "%%javascript\n", "%time ", "y = !", "y = %sx ", "exec(", "eval('"),
    *("lambda: ", "async ", "await ", "match x:\n case ", "*", "**", ":=", "@", "f'{", "b'", "\\x"),
    *("\ud800", "\udfff", "ﬁ", "ⅈ", "\u2028", "\x85", "é", "🙂", "0x", "9" * 5000, "_" * 300),
    *("import os\n", "__import__('os')", ".__class__", "getattr(x, 'y')", "get_ipython()", "{x}"),
)


def noise(number: int, cells: list[str], seed: int = SEED) -> Iterator[str]:
    """Cells of the corpora, cut, joined, repeated and strewn with pieces."""
    chance = random.Random(seed)
    for _ in range(number):
        text = chance.choice(cells)[:4000]
        for _ in range(chance.randint(1, 6)):
            at, upto = sorted(chance.choices(range(len(text) + 1), k=2))
            match chance.randrange(6):
                case 0:
                    text = text[:at] + chance.choice(PIECES) + text[at:]
                case 1:
                    text = text[:at] + text[upto:]
                case 2:
                    text = text[:at] + text[at : at + 40] * chance.randint(1, 20) + text[at:]
                case 3:
                    text = text[:at] + chance.choice(cells)[:1000] + text[upto:]
                case 4:
                    text = chance.choice(PIECES) * chance.randint(1, 50) + text
                case _:
                    text = text[:at] + chr(chance.choice((chance.randrange(128), 0xD800, 0x2028)))
        yield text


def processor_seconds() -> float:
    """Of this thread and of the forks it has waited for."""
    times = os.times()
    return time.thread_time() + times.children_user + times.children_system


def test_noise_gets_a_verdict() -> None:
    cells = [cell for notebook in corpus(BENIGN) for cell in notebook["cells"]]
    for program in corpus(REDCODE):
        cells.append(("%%bash\n" if program["language"] == "bash" else "") + program["code"])
    cells += [bypass.cell for bypass in BYPASSES] * 20
    judges = [Judge(load_policy(policy).code) for policy in ("default", "strict", "paranoid")]
    decisions, seconds, slowest = Counter[str](), [], 0.0
    for number, text in enumerate(noise(FUZZED * 9 // 10, cells)):
        began, began_at = processor_seconds(), time.perf_counter()
        verdict = judges[number % len(judges)].judge(text)
        slowest = max(slowest, time.perf_counter() - began_at)
        seconds.append(processor_seconds() - began)
        decisions[verdict.decision] += 1
        is_sound(verdict, text)
    seconds.sort()
    p99 = seconds[len(seconds) * 99 // 100]
    print(f"\n{dict(decisions)}; p99 {1e3 * p99:.1f} ms, slowest {1e3 * seconds[-1]:.0f} ms")
    assert seconds[-1] < NOISY_SECONDS
    assert slowest < 2  # on the clock: of 0.25 s, on a busy machine


def is_sound(verdict: Verdict, text: str) -> None:
    """The check itself did not fail, and all places are in the text."""
    lines = text.count("\n") + text.count("\r") + text.count("\f") + 1
    for found in verdict.findings:
        assert found.about != FAILED
        assert 1 <= found.line <= lines
        assert 0 <= found.column <= len(text) + 1


TEXT = st.one_of(
    st.text(max_size=200),
    st.lists(st.sampled_from(PIECES) | st.text(max_size=12), max_size=30).map("".join),
    st.lists(st.sampled_from([bypass.cell for bypass in BYPASSES]), max_size=3).map("\n".join),
)
JUDGES = [Judge(load_policy(policy).code) for policy in ("default", "strict")]


@settings(
    max_examples=max(FUZZED // 10, 1),
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(TEXT, st.lists(TEXT, max_size=2))
def test_any_text_gets_a_verdict(text: str, expressions: list[str]) -> None:
    for judge in JUDGES:
        verdict = judge.judge(text, expressions)
        assert verdict.decision in DECISIONS
        assert FAILED not in {found.about for found in verdict.findings}
