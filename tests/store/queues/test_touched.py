"""``TouchedQueues`` while a flush goes through it: each queue once, whatever changes meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from rmqpy.store.queues.consume_queue import ConsumeQueue
from rmqpy.store.queues.touched import TouchedQueues
from rmqpy.testing.memory_files import MemoryFiles

QUEUES = [ConsumeQueue(MemoryFiles(), f"/q/T/{number}", 200) for number in range(6)]
STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "discard", "next", "begin"]), st.integers(0, 5)), max_size=60
)


@given(STEPS)
def test_a_flush_examines_each_queue_once(steps: list[tuple[str, int]]) -> None:
    """Those that were there when it began and were not removed before their turn, and perhaps some
    that were added meanwhile. A flush that was given up leaves no queue out of the next one.
    """
    touched = TouchedQueues(set(), 100)
    expected: set[ConsumeQueue] = set()
    flush: Iterator[ConsumeQueue] = iter(())
    examined: list[ConsumeQueue] = []
    model: dict[ConsumeQueue, None] = {}
    for step, number in [*steps, *[("next", 0)] * 7, ("begin", 0), *[("next", 0)] * 7]:
        queue = QUEUES[number]
        if step == "add":
            touched.add(queue)
            model[queue] = None
        elif step == "discard":
            touched.discard(queue)
            model.pop(queue, None)
            expected.discard(queue)
        elif step == "begin":
            flush = touched.walk()
            expected, examined = set(model), []
        else:
            found = next(flush, None)
            if found is None:
                assert not expected
            else:
                assert found in model
                expected.discard(found)
                examined.append(found)
                assert len(examined) == len(set(examined))
        assert set(touched) == set(model) and len(touched) == len(model)
        assert all((each in touched) == (each in model) for each in QUEUES)
    assert not expected
