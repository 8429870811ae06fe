"""The classic view of a DLedger log: the bytes that leaving writes, while the log grows."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.store import FILE_SIZE, StoreRig, entries_of, record_at
from harness.upgrade import GOLDEN_SIZES, LeaveOptions, MakeUpgradeRig, log_of, plan_leave
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmqpy.codec.layout import ENTRY_HEADER_SIZE
from rmqpy.codec.message import decode_message
from rmqpy.codec.reframe import covered_entries
from rmqpy.config.loading import StoreSettings
from rmqpy.model.flags import TRANSACTION_COMMIT
from rmqpy.model.ids import LedgerIndex, PhysicalOffset, Term
from rmqpy.store.commitlog.classic_view import ClassicView
from rmqpy.store.commitlog.dledger import DLedgerCommitLog
from rmqpy.store.commitlog.interface import read_span
from rmqpy.store.commitlog.joined import JoinedCommitLog
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.store.message_store import MessageStore
from rmqpy.store.upgrade_guard import upgrade_work
from rmqpy.upgrade.checks.ledger import read_ledger
from rmqpy.upgrade.plan.engine import apply_plan
from rmqpy.upgrade.plan.node_context import NodeContext
from rmqpy.upgrade.plan.plan import Plan


def view_of(store: MessageStore, page_bytes: int = 1000) -> ClassicView:
    log = store.log
    assert isinstance(log, JoinedCommitLog | DLedgerCommitLog)
    return ClassicView(log, page_bytes)


def bytes_of(view: ClassicView, begin: int | None = None) -> bytes:
    """Return the bytes of the view from ``begin``, by default from its start."""
    begin = view.min_offset if begin is None else begin
    return read_span(view, begin, view.confirm_offset - begin)


def read(view: ClassicView, offset: int, size: int) -> bytes | None:
    piece = view.read(PhysicalOffset(offset), size)
    return None if piece is None else bytes(piece)


def left(context: NodeContext) -> None:
    """Leave DLedger with all entries of this member."""
    ledger = read_ledger(context.files, context.settings)
    options = LeaveOptions(replica="n0", cut_index=ledger.end_index)
    plan = Plan(steps=("m0006_leave",), nodes=(plan_leave(context, options),))
    apply_plan(context, plan, "n0")


def classic_log(rig: StoreRig) -> bytes:
    """Return the bytes of all files of the classic log."""
    files = {path: data for path, data in rig.tree().items() if path.startswith("commitlog/")}
    return b"".join(data for _, data in sorted(files.items()))


bodies = st.lists(st.tuples(st.integers(0, 1500), st.booleans()), min_size=1, max_size=25)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(sizes=bodies, old=st.sampled_from([0, 7]), cuts=st.lists(st.integers(1, 2000), min_size=1))
def test_the_view_is_what_leave_writes(
    make_rig: MakeUpgradeRig, sizes: list[tuple[int, bool]], old: int, cuts: list[int]
) -> None:
    """After each message, and read in pieces of any size; commits refer to half messages that
    move with the files.
    """
    rig = make_rig()
    if old:
        rig.write(*range(old))
    joined = rig.with_flag(True)
    store = joined.open()
    view = view_of(store)
    half = 0
    seen = bytearray()
    for number, (size, refers) in enumerate(sizes):
        kind = TRANSACTION_COMMIT if refers else 0
        (offset,) = joined.put(
            store,
            number,
            body=bytes([number]) * size,
            sys_flag=kind,
            prepared_transaction_offset=half if refers else 0,
        )
        if offset % FILE_SIZE == ENTRY_HEADER_SIZE:
            half = offset
        while len(seen) < view.confirm_offset:
            step = cuts[len(seen) % len(cuts)]
            step = min(step, view.confirm_offset - len(seen), FILE_SIZE - len(seen) % FILE_SIZE)
            piece = read(view, len(seen), step)
            assert piece is not None and len(piece) == step
            seen += piece
    last = store.log.confirm_offset
    assert len(seen) in (offset, offset - ENTRY_HEADER_SIZE), "all but the last message"
    assert read(view, len(seen), 1) is None
    whole = bytes_of(view)
    store.shutdown()
    left(rig.context())
    written = classic_log(rig)
    assert bytes(seen) == whole == written[: len(seen)]
    assert len(written) - len(seen) >= last - offset


def test_a_page_can_start_anywhere(make_rig: MakeUpgradeRig) -> None:
    rig = make_rig().with_flag(True)
    store = rig.open()
    rig.put(store, *range(80))
    view = view_of(store)
    whole = bytes_of(view)
    assert len(whole) > 3 * FILE_SIZE
    for start in range(0, len(whole), 7):
        fresh = view_of(store)
        size = min(100, len(whole) - start, FILE_SIZE - start % FILE_SIZE)
        assert read(fresh, start, size) == whole[start : start + size]
    store.shutdown()


def test_uncommitted_entries_are_not_visible(make_rig: MakeUpgradeRig) -> None:
    """Neither their records nor their headers, which a new leader may replace."""
    rig = make_rig().with_flag(True)
    rig.write(*range(5))
    store = rig.open(lead=False)
    entries = entries_of(store)
    assert entries.committed_index == entries.end.index == 4
    view = view_of(store)
    before = bytes_of(view)
    for term in (Term(7), Term(8)):
        entries.append(term, LedgerIndex(5), [bytearray(record_at(store, 48)), bytearray(99)], 0)
        entries.commit()
        assert bytes_of(view) == before
        if term == 7:
            entries.truncate_from(5)
    entries.commit_to(LedgerIndex(5))
    grown = bytes_of(view)
    assert grown.startswith(before)
    record = decode_message(grown[len(before) :])
    assert covered_entries(record.raw_properties) == [(5, 8)], "the header of the second term"
    store.shutdown()


def test_the_view_does_not_depend_on_what_has_expired(make_rig: MakeUpgradeRig) -> None:
    """A commit message refers to a half message whose file only one member still has."""
    rig = make_rig().with_flag(True)
    store = rig.open()
    (half,) = rig.put(store, 0)
    assert half == ENTRY_HEADER_SIZE
    rig.put(store, *range(1, 40))
    rig.put(store, 40, prepared_transaction_offset=half, sys_flag=TRANSACTION_COMMIT)
    rig.put(store, 41)
    view = view_of(store)
    whole = bytes_of(view)
    entries_of(store).release_first_file().close()
    fresh = view_of(store)
    assert fresh.min_offset == FILE_SIZE
    assert bytes_of(fresh) == whole[FILE_SIZE:]
    assert read(fresh, 0, 10) is None
    store.shutdown()
    left(rig.context())
    written = classic_log(rig)
    first = next(path for path in sorted(rig.tree()) if path.startswith("commitlog/"))
    begin = int(first.rpartition("/")[2])
    assert written.startswith(whole[begin:])


def test_memory_is_bounded(make_rig: MakeUpgradeRig) -> None:
    rig = make_rig().with_flag(True)
    store = rig.open()
    rig.put(store, *range(80))
    view = view_of(store)
    bytes_of(view)
    assert len(view._pages) <= 4
    assert all(len(page.data) <= 1000 + FILE_SIZE for page in view._pages.values())
    store.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["C-upgraded-v497", "D-dledger-v497"])
def test_members_that_java_wrote(name: str, golden_copy: Callable[[str], Path]) -> None:
    """Every member shows the same stream, which is what leaving writes."""
    root = golden_copy(name)
    streams = []
    for number in range(3):
        member = root / f"n{number}"
        values = StoreSettings(
            store_path_root_dir=os.fspath(member),
            enable_dledger_commit_log=True,
            dledger_self_id=f"n{number}",
            dledger_group="g",
            dledger_peers="n0-a:1;n1-a:2;n2-a:3",
            **GOLDEN_SIZES,
        )
        rig = StoreRig(
            OsFileSystem(), os.fspath(member), flag=True, changes=dict(GOLDEN_SIZES),
            self_id=f"n{number}",
        )  # fmt: skip
        store = rig.open()
        view = view_of(store, 20_000)
        begin, stream = view.min_offset, bytes_of(view)
        store.shutdown()
        streams.append(stream)
        context = NodeContext(OsFileSystem(), upgrade_work(str(member)), values, now_ms=lambda: 1)
        left(context)
        written = b"".join(data for _, data in sorted(log_of(member).items()))
        assert min(map(int, log_of(member))) == begin
        assert written.startswith(stream)
        assert len(stream) > 300_000
    shortest = min(streams, key=len)
    assert all(stream.startswith(shortest) for stream in streams)
