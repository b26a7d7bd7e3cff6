from __future__ import annotations

import os

import pytest

from sandbox_kernel.relay.loop import Loop


def test_a_readable_descriptor_calls_its_handler() -> None:
    loop = Loop()
    read_end, write_end = os.pipe()
    seen = []

    def handle() -> None:
        seen.append(os.read(read_end, 10))
        loop.stop()

    loop.watch(read_end, handle)
    os.write(write_end, b"x")
    loop.run()
    assert seen == [b"x"]
    os.close(read_end)
    os.close(write_end)


def test_timers_fire_in_order_and_not_when_cancelled() -> None:
    loop, seen = Loop(), []
    loop.call_later(0.3, lambda: (seen.append("late"), loop.stop()))
    loop.call_later(0.01, lambda: seen.append("early"))
    loop.call_later(0.005, lambda: seen.append("never")).cancel()
    loop.run()
    assert seen == ["early", "late"]


def test_a_source_forgotten_in_the_same_round_is_not_called() -> None:
    loop, seen = Loop(), []
    pipes = [os.pipe() for _ in range(2)]

    def handler(own: int, other: int) -> None:
        seen.append(own)
        loop.forget(pipes[other][0])
        loop.stop()

    for own, other in ((0, 1), (1, 0)):
        loop.watch(pipes[own][0], lambda own=own, other=other: handler(own, other))
        os.write(pipes[own][1], b"x")
    loop.run()
    assert len(seen) == 1
    for pipe in pipes:
        for end in pipe:
            os.close(end)


def test_forgetting_twice_is_harmless() -> None:
    loop = Loop()
    read_end, write_end = os.pipe()
    loop.watch(read_end, lambda: None)
    loop.forget(read_end)
    loop.forget(read_end)
    os.close(read_end)
    os.close(write_end)


class Closing:
    """Has a descriptor until it is closed, as an `InnerChannel` does."""

    def __init__(self) -> None:
        self.file, self.other_end = os.pipe()

    def fileno(self) -> int:
        if self.file < 0:
            raise ValueError("closed")  # noqa: EM101 - what an epoll says
        return self.file

    def close(self) -> int:
        closed, self.file = self.file, -1
        os.close(closed)
        return closed


def test_a_source_that_is_closed_can_be_forgotten_and_its_number_is_anothers() -> None:
    loop, seen = Loop(), []
    old = Closing()
    loop.watch(old, lambda: seen.append("old"))
    number = old.close()
    new = Closing()
    assert new.file == number
    loop.watch(new, lambda: (os.read(new.file, 10), seen.append("new")))
    loop.forget(old)
    os.write(new.other_end, b"x")
    loop.step(1000)
    assert seen == ["new"]
    loop.forget(new)
    for descriptor in (old.other_end, new.other_end, new.file):
        os.close(descriptor)


def test_a_handler_is_not_called_for_what_another_source_with_its_number_had() -> None:
    loop, seen = Loop(), []
    first, second = Closing(), Closing()

    def replace(mine: Closing, other: Closing) -> None:
        seen.append("replaced")
        loop.forget(mine)
        loop.forget(other)
        number = other.close()
        newcomer = Closing()
        assert newcomer.file == number
        loop.watch(newcomer, lambda: seen.append("called for nothing"))

    loop.watch(first, lambda: replace(first, second))
    loop.watch(second, lambda: replace(second, first))
    for each in (first, second):
        os.write(each.other_end, b"x")
    loop.step(1000)
    assert seen == ["replaced"]


def test_an_exception_of_a_handler_is_told_and_the_loop_goes_on() -> None:
    loop, seen = Loop(), []
    read_end, write_end = os.pipe()
    os.write(write_end, b"x")

    def fail() -> None:
        os.read(read_end, 10)
        raise OverflowError

    loop.failed = lambda source, error: seen.append((source, type(error)))
    loop.watch(read_end, fail)
    loop.call_later(0.01, lambda: 1 // 0)
    loop.call_later(0.05, loop.stop)
    loop.run()
    assert seen == [(read_end, OverflowError), (None, ZeroDivisionError)]
    os.close(read_end)
    os.close(write_end)


def test_an_exception_that_nobody_is_told_of_ends_the_loop() -> None:
    loop = Loop()
    loop.call_later(0, lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        loop.run()
