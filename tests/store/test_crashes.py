"""Tests with kills, power losses and failing disks at any moment: no promised message is lost, and
none is stored twice.
"""

from __future__ import annotations

import random

import pytest
from attrs import define, field
from harness.store import (
    CLASSIC_COUNT,
    CrashingFiles,
    KilledError,
    MemoryRig,
    SingleNodeProposer,
    bodies_of,
    read_all,
)

from rmqpy.model.codes import PutMessageStatus
from rmqpy.model.errors import StoreError
from rmqpy.model.flags import TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from rmqpy.store.message_store import MessageStore

SEEDS = (*range(25), 54, 151, 1070, 1787)
"""The last four once found a bug."""
ROUNDS = 4
LAST = 1 << 50


@pytest.fixture
def rig(any_mode_rig: MemoryRig) -> MemoryRig:
    return any_mode_rig


@define
class Sent:
    """A message that was put.

    ``queued``: it has a consume queue unit. ``committed`` and ``flushed``: it may have been
    acknowledged as such.
    """

    number: int
    body: bytes
    offset: int
    end: int
    queued: bool
    committed: bool = False
    flushed: bool = False


@define
class History:
    """A store under a random schedule, and its messages in the order of the log."""

    rig: MemoryRig
    rng: random.Random
    sent: list[Sent] = field(factory=list)
    next_number: int = 0
    unreported: int = 0
    """The number of messages in a put that never returned."""

    def run(self, store: MessageStore, steps: int) -> None:
        for _ in range(steps):
            action = self.rng.choices(
                ["put", "batch", "commit", "turn", "flush", "queues", "index", "time"],
                [8, 2, 3, 5, 2, 1, 1, 1],
            )[0]
            if action in ("put", "batch"):
                self.put(store, batch=action == "batch")
            elif action == "commit":
                store.appender.commit()
            elif action == "turn":
                store.appender.commit()
                store.dispatch()
            elif action == "flush":
                self.rig.flush(store)
            elif action == "queues":
                store.flush_tracker.flush_queues()
            elif action == "index":
                store.catch_up_index()
            else:
                self.rig.clock.advance(self.rng.choice([1, 900, 5000]))
            for message in self.sent:
                message.committed |= message.end <= store.log.confirm_offset
                message.flushed |= message.end <= min(
                    store.log.flushed_offset, store.log.confirm_offset
                )

    def put(self, store: MessageStore, batch: bool) -> None:
        kind = self.rng.choice([0, 0, 0, 0, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK])
        numbers = range(self.next_number, self.next_number + self.rng.randint(1, 4))
        self.next_number = numbers.stop
        queue_id = self.rng.randint(0, 3)
        drafts = [
            self.rig.draft(
                number,
                body=b"%d:" % number + b"x" * self.rng.choice([0, 20, 200, 700]),
                queue_id=queue_id,
                sys_flag=0 if batch else kind,
            )
            for number in numbers
        ]
        self.unreported = len(drafts)
        results = store.appender.put(drafts, batch=batch)
        self.unreported = 0
        if batch:
            (result,) = results
            offsets = result.physical_offsets
            ends = [result.end] * len(drafts)
        else:
            offsets = tuple(result.physical_offsets[0] for result in results)
            ends = [result.end for result in results]
        assert {result.status for result in results} == {PutMessageStatus.PUT_OK}
        for draft, number, offset, end in zip(drafts, numbers, offsets, ends, strict=True):
            body = bytes(draft.body)
            self.sent.append(Sent(number, body, int(offset), int(end), draft.sys_flag == 0))

    def check(self, store: MessageStore, promise: str) -> None:
        """Check that the store has a prefix of the messages, with all that were promised.

        ``promise`` is "committed" or "flushed".
        """
        while store.catch_up_index():
            pass
        present = [message for message in self.sent if self.has(store, message)]
        assert present == self.sent[: len(present)], "a message is lost before a later one"
        for message in self.sent[len(present) :]:
            is_promised = message.flushed if promise == "flushed" else message.committed
            assert not is_promised, f"lost {message}"
        bodies = bodies_of(store)
        queued = [message.body for message in present if message.queued]
        assert bodies >= set(queued)
        records = sum(map(len, read_all(store).values()))
        more = records - len(queued) - (CLASSIC_COUNT if store.opened.divided_offset else 0)
        assert 0 <= more <= self.unreported, "a message is stored twice"
        for message in present:
            found = store.reader.query_message("Topic", f"key{message.number}", 64, 0, LAST)
            places = [int.from_bytes(record[28:36]) for record in found.messages]
            rolled_back = not message.queued and message.offset not in places
            assert rolled_back or places.count(message.offset) == 1, message
            if message.queued:
                assert message.offset in places
        self.sent = present

    @staticmethod
    def has(store: MessageStore, message: Sent) -> bool:
        record = store.reader.message_at(message.offset)
        if record is None:
            return False
        return bytes(record[88 : 88 + len(message.body)]) == message.body


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_random_kills_and_power_losses_lose_no_promised_message(
    rig: MemoryRig, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """A kill keeps every committed message, a power loss every flushed one; the queues are dense,
    their units point to their messages, and every key leads to its message.
    """
    if seed % 2:  # No queue is kept open for writing.
        monkeypatch.setattr("rmqpy.store.queues.table.OPEN_PERCENT", 0)
    history = History(rig, random.Random(seed))
    for _ in range(ROUNDS):
        store = history.rig.open()
        history.run(store, history.rng.randint(1, 60))
        ending = history.rng.choice(["kill", "kill", "crash", "crash", "shutdown"])
        if ending == "shutdown":
            store.shutdown()
            assert store.health.failure is None
        else:
            history.rig = history.rig.after_end(ending)
        store = history.rig.open()
        history.check(store, "flushed" if ending == "crash" else "committed")
        history.rig = history.rig.after_end("kill")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_every_store_starts_after_a_power_loss_during_write_back(
    make_rig: type[MemoryRig], seed: int
) -> None:
    """Any of the pages after the last sync may be on disk: a hole that whole records follow is no
    damage there. The store starts, twice, with a prefix that contains every flushed message.
    """
    rng = random.Random(seed)
    history = History(make_rig(), rng)
    for _ in range(ROUNDS):
        store = history.rig.open()
        history.run(store, rng.randint(1, 60))
        if rng.random() < 0.5:
            store.flush_tracker.flush_queues()
            history.run(store, rng.randint(1, 20))
        history.rig = history.rig.after(history.rig.files.tear(rng))
        store = history.rig.open()
        history.check(store, "flushed")
        history.rig = history.rig.after(history.rig.files.tear(rng))
        store = history.rig.open()
        history.check(store, "committed")
        history.rig = history.rig.after_end("kill")


@pytest.mark.slow
@pytest.mark.parametrize("open_percent", [10, 0])
@pytest.mark.parametrize("end", ["kill", "crash"])
@pytest.mark.parametrize("flag", [False, True], ids=["classic", "dledger"])
def test_a_process_may_end_at_every_operation_of_a_run(
    make_rig: type[MemoryRig],
    monkeypatch: pytest.MonkeyPatch,
    flag: bool,
    end: str,
    open_percent: int,
) -> None:
    """The same short run ends at each operation of the file layer in turn, with queues that are
    kept open for writing, and without.
    """
    monkeypatch.setattr("rmqpy.store.queues.table.OPEN_PERCENT", open_percent)
    for number in range(400):
        files = CrashingFiles()
        files.dies_at = number
        rig = make_rig(files=files, flag=flag)
        history = History(rig, random.Random(7))
        try:
            store = rig.open()
            history.run(store, 60)
            store.shutdown()
        except KilledError:
            pass
        else:
            assert number > 60
            return
        store = rig.after_end(end).open()
        history.check(store, "committed" if end == "kill" else "flushed")
        store.shutdown()
    pytest.fail("the run never ends")


@pytest.mark.slow
@pytest.mark.parametrize("end", ["kill", "crash"])
@pytest.mark.parametrize("flag", [False, True], ids=["classic", "dledger"])
def test_a_process_may_end_at_every_operation_of_a_recovery(
    make_rig: type[MemoryRig], flag: bool, end: str
) -> None:
    """The recovery of a store with a torn tail ends at each operation in turn."""
    rig = make_rig(flag=flag)
    history = History(rig, random.Random(3))
    store = rig.open()
    history.run(store, 60)
    rig.flush(store)
    (torn,) = rig.put(store, 5000)
    rig.flush(store)
    path, position = rig.place(torn)
    rig.edit(path, position + 100, b"\xff" * 30)
    left = rig.files.kill()
    for number in range(100):
        files = CrashingFiles()
        for path, node in left.nodes.items():
            files.put(path, bytes(node.data))
        attempt = make_rig(files=files, flag=flag)
        files.dies_at = number
        try:
            attempt.open().close_without_flush()
        except KilledError:
            store = attempt.after_end(end).open()
            history.check(store, "flushed")
            store.shutdown()
        else:
            assert number > 10
            return
    pytest.fail("the recovery never ends")


# ------------------------------------------------------------------------------- failing disks


def log_part(rig: MemoryRig) -> str:
    return "/data/" if rig.flag else "/commitlog/"


def test_after_a_failed_write_a_store_is_only_read(rig: MemoryRig) -> None:
    """It acknowledges and accepts nothing more; a restart finds every acknowledged message."""
    store = rig.open()
    rig.put(store, 0, 1, 2)
    before = bodies_of(store)
    (mark,) = store.log.acknowledged(True)
    acknowledged = mark.value
    rig.files.fail_write(log_part(rig))
    (result,) = store.appender.put([rig.draft(3)])
    assert result.status is PutMessageStatus.PUT_OK, "the message is only staged"
    store.appender.commit()
    assert not store.health.writeable
    assert store.health.failure is not None and "planted fault" in store.health.failure
    assert mark.value == acknowledged < result.end
    rig.files.heal()
    store.appender.commit()
    store.dispatch()
    assert mark.value == acknowledged, "not even after the disk has recovered"
    results = store.appender.put([rig.draft(4), rig.draft(5)])
    assert {r.status for r in results} == {PutMessageStatus.SERVICE_NOT_AVAILABLE}
    (result,) = store.appender.put([rig.draft(4), rig.draft(6)], batch=True)
    assert result.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert "planted fault" in result.remark
    assert bodies_of(store) == before
    assert "planted fault" in store.runtime_info()["storeFailure"]
    store.shutdown()
    assert "abort" in rig.tree()
    store = rig.open()
    assert bodies_of(store) == before
    rig.put(store, 6)
    store.shutdown()
    assert "abort" not in rig.tree()


def test_after_a_failed_sync_nothing_is_reported_as_durable(rig: MemoryRig) -> None:
    """The caller reports the failure; later syncs do not advance the flushed offset."""
    store = rig.open()
    rig.put(store, 0, 1)
    rig.flush(store)
    flushed = store.log.flushed_offset
    rig.put(store, 2)
    rig.files.fail_sync(log_part(rig))
    task = store.flush_tracker.flush_task()
    assert task is not None
    with pytest.raises(OSError, match="planted fault"):
        task.run()
    store.health.fail("making the log durable failed")
    rig.files.heal()
    assert store.flush_tracker.flush_task() is None
    assert store.log.flushed_offset == flushed
    assert not store.health.writeable
    assert len(bodies_of(store)) >= 3
    store.shutdown()
    assert "abort" in rig.tree()
    assert store.log.flushed_offset == flushed
    store = rig.open()
    assert bodies_of(store) >= {rig.draft(number).body for number in range(3)}
    store.shutdown()


def test_a_disk_that_fails_when_the_log_rolls_refuses_puts(rig: MemoryRig) -> None:
    """The write that closes a file happens in a put: this one and all later ones are refused."""
    store = rig.open()
    rig.put(store, 0)
    before = bodies_of(store)
    rig.files.fail_write(log_part(rig))
    statuses = [
        store.appender.put([rig.draft(number, body=b"x" * 900)])[0].status
        for number in range(1, 12)
    ]
    first_refused = statuses.index(PutMessageStatus.SERVICE_NOT_AVAILABLE)
    assert 0 < first_refused < 5
    assert set(statuses[first_refused:]) == {PutMessageStatus.SERVICE_NOT_AVAILABLE}
    assert not store.health.writeable
    rig.files.heal()
    store.appender.commit()
    store.dispatch()
    assert bodies_of(store) == before
    store.shutdown()
    store = rig.open()
    assert bodies_of(store) == before
    store.shutdown()


def test_the_checkpoint_excludes_queues_that_cannot_be_synced(make_rig: type[MemoryRig]) -> None:
    """The next power loss may remove their units, so not even the shutdown may count them."""
    rig = make_rig()
    store = rig.open()
    rig.put(store, 0, 1)
    rig.flush(store)
    rig.files.fail_sync("/consumequeue/")
    store.flush_tracker.flush_queues()
    assert store.health.failure is not None and "consume queues" in store.health.failure
    rig.files.heal()
    store.shutdown()
    assert "checkpoint" not in rig.tree() or not any(rig.tree()["checkpoint"][8:16])
    after = rig.after_end("crash")
    store = after.open()
    assert len(bodies_of(store)) == 2
    store.shutdown()


def test_a_consume_queue_that_cannot_be_created_stops_the_store(make_rig: type[MemoryRig]) -> None:
    rig = make_rig()
    store = rig.open()
    rig.put(store, 0)
    rig.files.fail_write("/consumequeue/Other")
    store.appender.put([rig.draft(1, topic=b"Other")])
    store.appender.commit()
    with pytest.raises(OSError, match="planted fault"):
        store.dispatch()
    assert not store.health.writeable
    store.dispatch()  # The failure is raised only once.
    rig.files.heal()
    store.shutdown()
    assert "abort" in rig.tree()
    store = rig.open()
    assert len(bodies_of(store)) == 2
    store.shutdown()


def test_a_failed_shutdown_is_not_clean(rig: MemoryRig) -> None:
    store = rig.open()
    rig.put(store, 0)
    rig.files.fail_sync(log_part(rig))
    store.shutdown()
    store.shutdown()
    assert store.health.failure is not None and "planted fault" in store.health.failure
    assert "abort" in rig.tree()
    rig.files.heal()
    store = rig.open()
    assert rig.draft(0).body in bodies_of(store)
    store.shutdown()
    assert "abort" not in rig.tree()


def test_a_power_loss_after_queues_that_outlived_the_log_loses_no_message(rig: MemoryRig) -> None:
    """The first power loss removes messages whose units were durable and recorded as such. Other
    messages take their place, with the times of a clock that was set back. The second one removes
    the units of all queues except one, which the operating system had already written.
    """
    store = rig.open()
    rig.put(store, 0, 1)
    rig.flush(store)
    for number in range(2, 40):
        rig.put(store, number)
    store.flush_tracker.flush_queues()
    rig = rig.after_end("crash")
    rig.clock.start_ms -= 3_600_000
    store = rig.open()
    for number in range(40, 80):
        rig.put(store, number)
    rig.flush(store)
    rig.write_back("/consumequeue/Topic/1/")
    store = rig.after_end("crash").open()
    assert bodies_of(store) >= {rig.draft(number).body for number in (0, 1, *range(40, 80))}
    store.close_without_flush()


def test_puts_are_refused_while_the_tail_is_uncommitted(make_rig: type[MemoryRig]) -> None:
    """A put would assign the queue offsets of entries on disk that no quorum has confirmed yet."""
    rig = make_rig(flag=True)
    store = rig.open()
    rig.put(store, 0, 2, 4)
    rig = rig.after_end("kill")
    store = rig.open(lead=False)
    assert store.log.confirm_offset == 0, "the checkpoint had not been written"
    (result,) = store.appender.put([rig.draft(6)])
    assert result.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert "quorum" in result.remark
    SingleNodeProposer(store).start()
    (result,) = store.appender.put([rig.draft(6)])
    assert (result.status, result.queue_offset) == (PutMessageStatus.PUT_OK, 3)
    store.shutdown()


def test_a_store_without_a_leader_refuses_puts(make_rig: type[MemoryRig]) -> None:
    rig = make_rig(flag=True)
    store = rig.open(lead=False)
    (result,) = store.appender.put([rig.draft(6)])
    assert result.status is PutMessageStatus.OS_PAGECACHE_BUSY
    assert result.remark == "NOT_LEADER"
    store.shutdown()


def test_a_full_disk_and_a_slave_refuse_puts(rig: MemoryRig) -> None:
    store = rig.open()
    rig.files.free_bytes = rig.files.total_bytes // 20
    store.retention.check_disk(rig.settings())
    (result,) = store.appender.put([rig.draft(0)])
    assert (result.status, result.remark) == (
        PutMessageStatus.SERVICE_NOT_AVAILABLE,
        "the disk is full",
    )
    rig.files.free_bytes = rig.files.total_bytes // 2
    store.retention.check_disk(rig.settings())
    rig.put(store, 0)
    store.set_role(slave=True)
    assert store.appender.put([rig.draft(1)])[0].status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    store.set_role(slave=False)
    before = store.reader.max_queue_offset("Topic", 0)
    rig.put(store, 2)
    assert store.reader.max_queue_offset("Topic", 0) == before + 1
    store.shutdown()
    assert store.appender.put([rig.draft(1)])[0].status is PutMessageStatus.SERVICE_NOT_AVAILABLE


def test_dispatch_fails_at_a_damaged_record(make_rig: type[MemoryRig]) -> None:
    """The record is damaged under a running store; the queues end before it."""
    rig = make_rig()
    store = rig.open()
    rig.put(store, 0)
    end = store.log.max_offset
    store.appender.put([rig.draft(1), rig.draft(2)])
    store.appender.commit()
    path, position = rig.place(end)
    rig.edit(path, position + 4, b"\xff\xff")
    with pytest.raises(StoreError, match=f"offset {end}"):
        store.dispatch()
    assert not store.health.writeable
    assert bodies_of(store) == {rig.draft(0).body}
    store.shutdown()


@pytest.mark.parametrize("seed", range(6))
def test_queues_that_a_start_builds_again_survive_a_power_loss(rig: MemoryRig, seed: int) -> None:
    """They were on the disk before they were removed; until the next flush they are not."""
    store = rig.open()
    for number in range(120):
        rig.put(store, number)
        rig.clock.advance(1000)  # The scan after a power loss starts at a late file.
    expected = bodies_of(store)
    store.shutdown()
    rig.files.remove_tree("/store/consumequeue")
    rig.files.sync_dir("/store")
    store = rig.open()
    assert bodies_of(store) == expected
    store.close_without_flush()
    rig = rig.after(rig.files.tear(random.Random(seed), page_bytes=40))
    store = rig.open()
    assert bodies_of(store) == expected
    store.shutdown()
