"""Tests of queues without new messages for longer than the log is kept: their next offsets."""

from __future__ import annotations

import pytest
from harness.store import MemoryRig

from rmqpy.model.errors import RemoteProtocolError
from rmqpy.store.queues.expired_ends import ExpiredQueueEnds
from rmqpy.testing.memory_files import MemoryFiles

PATH = "/store/rmqpy/queue-ends"
QUEUE_FILE = 400 // 20


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


def answer(end: int) -> bytes:
    """Return the answer of a leader about queue 0 of Topic."""
    return b'{"wanted": false, "ends": {"Topic": {"0": %d}}}' % end


def test_ends_are_durable_and_only_grow(files: MemoryFiles) -> None:
    ends = ExpiredQueueEnds(files, PATH)
    assert not ends.is_requested and ends.ends == {} and not files.exists(PATH)
    ends.request()
    assert ExpiredQueueEnds(files, PATH).is_requested
    ends.merge_answer(answer(7))
    ends.merge_answer(answer(5))
    reopened = ExpiredQueueEnds(files, PATH)
    assert not reopened.is_requested and reopened.ends == {("Topic", 0): 7}
    assert reopened.encode([], 100) == answer(7)
    reopened.forget("Other")
    reopened.forget("Topic")
    assert ExpiredQueueEnds(files, PATH).ends == {}


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"wanted": 0, "ends": 3}', answer(-1), answer(1 << 62), b"\xff"]
)
def test_an_invalid_answer_is_refused(files: MemoryFiles, body: bytes) -> None:
    ends = ExpiredQueueEnds(files, PATH)
    ends.request()
    with pytest.raises(RemoteProtocolError):
        ends.merge_answer(body)
    assert ends.is_requested and ends.ends == {}


def test_a_damaged_file_requests_the_ends_until_the_leader_cannot_provide_them(
    files: MemoryFiles,
) -> None:
    files.replace_bytes(PATH, b"{")
    ends = ExpiredQueueEnds(files, PATH)
    assert ends.is_requested
    ends.mark_unavailable()
    assert not ExpiredQueueEnds(files, PATH).is_requested


@pytest.mark.parametrize("end", [15, 3 * QUEUE_FILE + 5])
def test_offsets_continue_at_the_end_of_the_leader(make_rig: type[MemoryRig], end: int) -> None:
    """The gap is within a file of the queue, or covers several files."""
    rig = make_rig(flag=True)
    store = rig.open()
    for number in range(24):
        rig.put(store, number)
    assert store.reader.max_queue_offset("Topic", 0) == 12
    store.queue_ends.merge_answer(answer(end))
    store.set_role(slave=False)
    store.queues.correct_min_offsets(store.log.max_offset)
    rig.put(store, 24)
    store.dispatch()
    assert store.reader.max_queue_offset("Topic", 0) == end + 1
    page = store.reader.get_message("Topic", 0, end, 32, None)
    assert len(page.messages) == 1
    silent = store.queue_ends.encode(store.queues.items(), store.log.max_offset - 1)
    assert silent == b'{"wanted": false, "ends": {"Topic": {"0": %d, "1": 12}}}' % end
    store.close_without_flush()
    reopened = rig.open()
    assert reopened.reader.max_queue_offset("Topic", 0) == end + 1
    reopened.close_without_flush()
