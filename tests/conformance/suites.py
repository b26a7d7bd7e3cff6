"""Run the public test suites of nbclient and ipykernel against the sandboxed kernel.

    python -m tests.conformance.suites [--plain] [--path DIR] [SUITE…]

The suites start a kernel called `python3`. A kernelspec of that name, put on
JUPYTER_PATH, beats the one that ipykernel installs, so they run unchanged.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

from .kernels import PLAIN, REPOSITORY, private_environment, write_sandboxed_spec

CACHE = REPOSITORY / ".cache" / "suites"
EXPECTED = Path(__file__).with_name("expected.toml")
GIVEN_FOLDER = "SANDBOX_KERNEL_SUITES"


@dataclass(frozen=True)
class Suite:
    """A project whose tests drive a kernel over the wire."""

    project: str
    # Only tests that start a kernel say something about ours; the rest test the project itself.
    paths: tuple[str, ...]


SUITES = {
    suite.project: suite
    for suite in (
        Suite("nbclient", ("tests",)),
        Suite(
            "ipykernel",
            tuple(
                f"tests/test_{name}.py"
                for name in ("message_spec", "kernel", "async", "subshells", "debugger")
            ),
        ),
    )
}


class SuiteUnavailableError(Exception):
    """The tests of a project could not be had."""


@dataclass
class Outcomes:
    """What became of each test, by its id."""

    by_test: dict[str, str] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)

    def of(self, outcome: str) -> set[str]:
        return {test for test, became in self.by_test.items() if became == outcome}


def sources(suite: Suite, given: Path | None = None) -> Path:
    """A folder with the project's `tests` and its pyproject.toml, of the installed version."""
    given = given or (Path(os.environ[GIVEN_FOLDER]) if GIVEN_FOLDER in os.environ else None)
    name = f"{suite.project}-{version(suite.project)}"
    if given is not None:
        for folder in (given / suite.project, given / name, given):
            if (folder / suite.paths[0]).exists():
                return folder
        message = f"no {suite.paths[0]} of {suite.project} under {given}"
        raise SuiteUnavailableError(message)
    folder = CACHE / name
    if not folder.exists():
        _fetch(suite, name)
    return folder


def _fetch(suite: Suite, name: str) -> None:
    """Unpack the tests from the sdist on the package index; pip only asks it for metadata."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
        download = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
        download += ["--no-binary", suite.project, "--dest", temporary]
        download += [f"{suite.project}=={version(suite.project)}"]
        done = subprocess.run(download, capture_output=True, text=True, check=False)
        archive = Path(temporary, f"{name}.tar.gz")
        if not archive.exists():
            message = f"pip could not download the sdist of {name}; give a checkout with --path"
            message += f" or {GIVEN_FOLDER}\n{done.stderr}"
            raise SuiteUnavailableError(message)
        with tarfile.open(archive) as sdist:
            # The package itself stays out: in the working directory it would shadow the
            # installed one.
            wanted = [
                member
                for member in sdist.getmembers()
                if member.name.startswith(f"{name}/tests/")
                or member.name == f"{name}/pyproject.toml"
            ]
            sdist.extractall(temporary, members=wanted, filter="data")
        if not Path(temporary, name, "tests").is_dir():
            message = f"the sdist of {name} has no tests; give a checkout with --path"
            raise SuiteUnavailableError(message)
        _put_in_place(Path(temporary, name), CACHE / name)


def _plugins() -> str:
    """A folder with the pytest plugins that the suites need and this project does not.

    They stay out of the environment: pytest-asyncio warns of a setting that only its users
    have, and a warning is an error in this project's own tests.
    """
    folder = CACHE / "plugins"
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
            install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
            install += ["--target", f"{temporary}/plugins"]
            install += ["pytest-asyncio>=1.3", "pytest-cov>=4", "coverage"]
            subprocess.run(install, check=True)
            _put_in_place(Path(temporary, "plugins"), folder)
    return str(folder)


def _put_in_place(made: Path, place: Path) -> None:
    """Rename at once, so that a test process beside this one never sees half of it."""
    try:
        made.rename(place)
    except OSError:
        if not place.exists():
            raise


def run(suite: Suite, source: Path, *, plain: bool = False) -> Outcomes:
    """Run the suite in a process of its own, on our kernel or on plain ipykernel.

    What fails is tried once more. Some of these tests depend on time: a print, say, arrives in two pieces
    if a timer of ipykernel's fires in the middle of it.
    """
    outcomes = _run(suite, source, suite.paths, plain)
    expected = {} if plain else expected_failures(suite)
    again = sorted(outcomes.of("failed") - set(expected))
    if again:
        second = _run(suite, source, [_node(source, test) for test in again], plain)
        outcomes.by_test |= second.by_test
        outcomes.why |= second.why
    return outcomes


def _node(source: Path, test: str) -> str:
    """What pytest calls a test by, from what its report does: `tests.test_a.TestB::test_c`."""
    place, _, name = test.partition("::")
    parts = place.split(".")
    for end in range(len(parts), 0, -1):
        file = "/".join(parts[:end]) + ".py"
        if (source / file).is_file():
            return "::".join((file, *parts[end:], name))
    return test


def _run(suite: Suite, source: Path, tests: Sequence[str], plain: bool) -> Outcomes:
    # Who tidies up after a kernel that was killed may still be at it.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        home, report = Path(temporary), Path(temporary, "report.xml")
        environment = private_environment(home)
        # Suites also call console scripts (`jupyter execute`).
        environment["PATH"] = os.pathsep.join(
            (str(Path(sys.executable).parent), environment.get("PATH", ""))
        )
        environment["PYTHONPATH"] += os.pathsep + _plugins()
        # On a host where IPython was ever used there is a profile; a test looks for it.
        (home / "ipython" / "profile_default").mkdir(parents=True)
        if not plain:
            write_sandboxed_spec(home / "jupyter" / "kernels", PLAIN)
            environment["JUPYTER_PATH"] = str(home / "jupyter")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += ["--timeout", "60", f"--junitxml={report}", "-o", "junit_family=xunit1"]
        # Both projects turn warnings into errors, those of newer dependencies included.
        command += ["-o", "filterwarnings=", "-o", "asyncio_default_fixture_loop_scope=function"]
        done = subprocess.run(
            [*command, *tests],
            cwd=source,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if not report.exists():
            message = f"the tests of {suite.project} did not run:\n{done.stdout}{done.stderr}"
            raise SuiteUnavailableError(message)
        return _read(report)


def _read(report: Path) -> Outcomes:
    outcomes = Outcomes()
    for case in ElementTree.parse(report).iter("testcase"):
        test = f"{case.get('classname')}::{case.get('name')}"
        for tag, outcome in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
            found = case.find(tag)
            if found is not None:
                outcomes.by_test[test] = outcome
                lines = (found.text or found.get("message") or "").splitlines()
                told = [line for line in lines if line.startswith("E ")] or lines
                outcomes.why[test] = "\n    ".join(told[:20])
                break
        else:
            # A test that failed in its body and again in its teardown is reported twice.
            outcomes.by_test.setdefault(test, "passed")
    return outcomes


def expected_failures(suite: Suite) -> dict[str, str]:
    """Test ids with the reason why they cannot pass."""
    reasons: dict[str, str] = tomllib.loads(EXPECTED.read_text()).get(suite.project, {})
    return reasons


def surprises(outcomes: Outcomes, expected: dict[str, str]) -> list[str]:
    """What did not go as expected, one line each."""
    failed = outcomes.of("failed")
    lines = [
        f"unexpected failure: {test}\n    {outcomes.why[test]}"
        for test in sorted(failed - set(expected))
    ]
    for test in sorted(set(expected) - failed):
        became = outcomes.by_test.get(test, "not there")
        lines.append(f"expected to fail, but {became}: {test}")
    return lines


def table(results: dict[str, Outcomes]) -> str:
    """One line per suite: passed, failed, skipped, and how many failures were expected."""
    lines = [f"{'suite':<12}{'passed':>8}{'failed':>8}{'skipped':>9}{'expected':>10}"]
    for project, outcomes in results.items():
        count = Counter(outcomes.by_test.values())
        known = len(outcomes.of("failed") & set(expected_failures(SUITES[project])))
        lines.append(
            f"{project:<12}{count['passed']:>8}{count['failed']:>8}{count['skipped']:>9}{known:>10}"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suite", nargs="*", default=list(SUITES), help=", ".join(SUITES))
    parser.add_argument("--plain", action="store_true", help="run on plain ipykernel instead")
    parser.add_argument("--path", type=Path, help="a folder with checkouts of the projects")
    options = parser.parse_args()
    results, complaints = {}, []
    for project in options.suite:
        suite = SUITES[project]
        results[project] = run(suite, sources(suite, options.path), plain=options.plain)
        expected = {} if options.plain else expected_failures(suite)
        complaints += surprises(results[project], expected)
    print(table(results), *complaints, sep="\n")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
