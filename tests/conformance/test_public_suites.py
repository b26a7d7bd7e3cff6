"""The tests of nbclient and ipykernel pass on the sandboxed kernel, but for known ones."""

from __future__ import annotations

import pytest

from .suites import SUITES, expected_failures, run, sources, surprises, table

pytestmark = [pytest.mark.conformance, pytest.mark.slow, pytest.mark.process]


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("project", SUITES)
def test_public_suite_passes(project: str, capsys: pytest.CaptureFixture[str]) -> None:
    suite = SUITES[project]
    outcomes = run(suite, sources(suite))
    with capsys.disabled():
        print(f"\n{table({project: outcomes})}")
    wrong = surprises(outcomes, expected_failures(suite))
    if wrong:
        pytest.fail("\n".join(wrong), pytrace=False)
