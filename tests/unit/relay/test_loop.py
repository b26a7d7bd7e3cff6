from __future__ import annotations

import os

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
