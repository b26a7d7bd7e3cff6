"""One script, two kernels: what plain ipykernel says, the sandboxed kernel says."""

from __future__ import annotations

import pytest

from .declared import DECLARED, Declared
from .differences import Difference, differences, undeclared
from .exchange import Exchange
from .kernels import PLAIN, SANDBOXED
from .recorder import Recording
from .script import SCRIPT
from .side_by_side import recordings

pytestmark = [pytest.mark.conformance, pytest.mark.process]


@pytest.fixture(scope="session")
def both() -> tuple[Recording, Recording]:
    plain, sandboxed = recordings(PLAIN, SANDBOXED)
    return plain, sandboxed


@pytest.fixture(scope="session")
def every_difference(both: tuple[Recording, Recording]) -> list[Difference]:
    return [found for exchange in SCRIPT for found in differences(exchange, *both)]


@pytest.mark.parametrize("exchange", SCRIPT, ids=lambda exchange: exchange.name)
def test_same_as_plain(exchange: Exchange, both: tuple[Recording, Recording]) -> None:
    wrong = undeclared(differences(exchange, *both))
    if wrong:
        # The whole of it and nothing else: a traceback of this line would only be in the way.
        pytest.fail("\n".join(map(str, wrong)), pytrace=False)


@pytest.mark.parametrize("declared", DECLARED, ids=lambda declared: declared.what)
def test_declared_difference_still_occurs(
    declared: Declared, every_difference: list[Difference]
) -> None:
    assert any(found.is_declared_by(declared) for found in every_difference)


def test_all_messages_carry_one_session_id(both: tuple[Recording, Recording]) -> None:
    # JupyterLab drops a message whose session differs from that of the one before it.
    for recording in both:
        messages = [message for said in recording.said.values() for message in said]
        assert len({message.header["session"] for message in messages}) == 1


def test_no_message_id_is_used_twice(both: tuple[Recording, Recording]) -> None:
    for recording in both:
        ids = [message.header["msg_id"] for said in recording.said.values() for message in said]
        assert len(set(ids)) == len(ids)


def test_every_exchange_of_the_script_has_a_name_of_its_own() -> None:
    assert len({exchange.name for exchange in SCRIPT}) == len(SCRIPT)
