"""Every refusal of a store, which a start or a command prints, has a test that takes its remedy, or
a reason why none does. Those of the upgrade commands have a list of their own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from harness.refusals import differences, has_test, refusals

REFUSALS: Final = frozenset(
    {
        "StoreError",
        "MidLogCorruptionError",
        "DurableTailMissingError",
        "BrokenFileSequenceError",
        "DamagedJournalError",
    }
)
TESTS: Final = Path(__file__).parents[1]

CASES: Final = "store/test_way_on.py::test_the_remedy_of_a_refused_start_leads_on"
IN_USE: Final = "store/test_way_on.py::test_a_store_in_use_opens_when_the_other_broker_has_stopped"
JOURNALS: Final = (
    "upgrade/test_journal.py::test_a_damaged_journal_stops_neither_resume_nor_rollback"
)
TAKEN: Final = {
    "store/commitlog/opening.py: data of a DLedger log": CASES,
    "store/files/log_recovery.py: a damaged record": CASES,
    "store/files/mapped_files.py: a foreign entry": CASES,
    "store/files/mapped_files.py: a length of": CASES,
    "store/files/mapped_files.py: a file that starts at {} right after": CASES,
    "store/files/mapped_files.py: a directory": CASES,
    "store/index/index_file.py: {} bytes": CASES,
    "store/index/index_file.py: a foreign entry": CASES,
    "store/ledger/entry_recovery.py: a DLedger log that starts at": CASES,
    "store/ledger/member_state.py: {}={}": CASES,
    "store/queues/table.py: a file": CASES,
    "store/queues/table.py: a foreign entry": CASES,
    "store/startup.py: format version": CASES,
    "store/files/disk.py: the lock held": IN_USE,
    "testing/memory_files.py: the lock held": IN_USE,
    "store/files/atomic.py: content that cannot be read": (
        "client/test_local_offsets.py::test_without_a_readable_file_the_error_names_what_to_remove"
    ),
    "store/files/log_recovery.py: no record at offset": (
        "store/test_startup.py::test_damage_to_the_last_durable_records_is_not_a_torn_tail"
    ),
    "store/ledger/entry_recovery.py: a log that ends at entry": (
        "store/ledger/test_entry_store.py"
        "::test_a_group_of_one_does_not_cut_off_an_entry_that_was_on_the_disk"
    ),
    "store/unread/data.py: {}": (
        "store/test_unread_data.py::test_timer_messages_that_wait_are_refused_or_accepted_by_name"
    ),
    "store/upgrade_guard.py: an upgrade that is half done": (
        "upgrade/test_way_on.py::test_a_plan_that_was_interrupted"
    ),
    "broker/assembly/leave/record.py: a member that has left the DLedger group": (
        "broker/assembly/test_live_leave.py::test_a_slave_takes_over_while_a_producer_sends"
    ),
    "upgrade/plan/engine.py: {}": (
        "upgrade/test_full_disk.py"
        "::test_a_file_of_another_file_system_is_put_back_in_place_on_a_full_disk"
    ),
    "upgrade/plan/journal.py: no copy that can be read": JOURNALS,
    "upgrade/plan/journal.py: a journal that cannot be read": JOURNALS,
    "audit/remote/files.py: a file that{} changed while it was read": (
        "audit/test_remote_files.py::test_a_file_that_changed_meanwhile_is_named"
    ),
    "audit/remote/files.py: no space for a copy": (
        "audit/test_remote_files.py::test_a_full_disk_of_this_machine_is_named"
    ),
    "audit/backup.py: no file of the log from {} on": (
        "audit/test_backup.py::test_a_log_with_a_gap_is_refused"
    ),
    "audit/replicas/repair.py: {} damaged bytes": (
        "audit/test_repair.py::test_force_truncate_ends_the_log_before_the_damage"
    ),
}
"""The test that takes the remedy, by module and begin of what was found."""

RESTORE: Final = "its advice is to restore a file, as that of the damaged record, which is taken"
MEMBER: Final = "its advice is to copy a file of another member, as join does"
USAGE: Final = "the line names a wrong directory: name the right one"
NO_WAY: Final = {
    "audit/backup.py: data of a DLedger log": "its advice is to copy another directory",
    "audit/backup.py: a path inside of the store": USAGE,
    "audit/backup.py: something that exists already": USAGE,
    "store/files/mapped_files.py: a file that starts at {}": RESTORE,
    "store/files/log_recovery.py: a damaged last record": RESTORE,
    "store/queues/consume_queue.py: a message with queue offset": RESTORE,
    "store/queues/table.py: a message of topic": RESTORE,
    "store/dispatcher.py: {} where a record must begin": RESTORE,
    "store/unread/rocksdb_reader.py: a RocksDB that cannot be read": RESTORE,
    "store/unread/rocksdb_reader.py: the key {} with": "another version's queues",
    "store/unread/pop.py: the record {}": "another version's records",
    "why/sources/directory.py: a RocksDB": "its advice is to install a library",
    "traffic/recording.py: {}": "record again: a recording is no store, and has one copy",
    "audit/checks/message_lookup.py: no consume queue": USAGE,
    "audit/checks/message_lookup.py: a message {} that was stored {} ms before message {}": USAGE,
    "audit/checks/message_lookup.py: a unit {} that does not lead to": (
        "its advice is the rebuild, which test_rebuild.py takes for every damage of a queue"
    ),
    "store/ledger/entry_index.py: no index unit": "the next start rebuilds the index",
    "store/ledger/entry_store.py: {}": MEMBER,
    "codec/reframe.py: {} where a record must start": MEMBER,
    "codec/reframe.py: {} where an entry must start": MEMBER,
    "codec/reframe.py: a record with the physical offset": MEMBER,
    "codec/reframe.py: properties of": "the choice is between export and staying",
    "upgrade/checks/ledger.py: {} at position": MEMBER,
    "upgrade/checks/ledger.py: entry {} of term": MEMBER,
    "net/dledger/ready_processor.py: a leader whose log": MEMBER,
    "store/files/disk.py: {}": "the directory belongs to another user",
    "store/message_store.py: {}": "restart: the disk has failed",
    "store/index/index_file.py: {} in reserved disk space": "restart: the disk has failed",
    "store/message_store.py: writing the bytes": "restart: the disk has failed",
    "broker/replication/switch_protocol.py: no record of a switch": "another version's record",
    "upgrade/plan/engine.py: no such file": RESTORE,
    "upgrade/plan/evidence.py: {}, and no plan": RESTORE,
    "upgrade/plan/operations/patches.py: other bytes": "the disk returns other bytes than written",
    "upgrade/plan/record.py: {}": RESTORE,
    "upgrade/plan/undo.py: a damaged undo record": RESTORE,
    "upgrade/steps/leave_member.py: {} bytes": "delete the checkpoint, as after any damage to it",
    "audit/replicas/repair.py: damage in a store with a DLedger log": MEMBER,
    "audit/replicas/repair.py: a broker that runs on it": "stop the broker",
    "audit/remote/files.py: nothing of this name": USAGE,
    "audit/remote/files.py: {} bytes from {} on": "run it again: the network cut an answer off",
    "audit/remote/object_store.py: no bucket or file of this name": USAGE,
    "audit/remote/object_store.py: no permission to {} it ({})": "credentials are its driver's",
    "pipeline/jobs/sql.py: no store": USAGE,
    "audit/scan/store_root.py: {}": USAGE,
    "upgrade/checks/served_store.py: a broker that runs on it": "stop the broker",
    "cli/upgrade/base/replicas.py: {}": USAGE,
    "demo/store_copy.py: no directory commitlog": USAGE,
    "demo/store_copy.py: a store that already runs": USAGE,
    "demo/store_copy.py: no directory dledger-SELFID with data": USAGE,
    "pipeline/datasource/source.py: {} bytes at offset": "a choice of the job",
    "pipeline/datasource/lookup.py: no message at {}": "read again: its file has expired meanwhile",
    "rehearsal/shadow.py: a copy that ends at": "remove the directory of the rehearsal",
    "rehearsal/shadow.py: other bytes at offset": "remove the directory of the rehearsal",
}
"""Why no test takes the remedy."""


def test_every_refusal_is_known() -> None:
    texts = [f"{module}: {text}" for module, text in refusals(REFUSALS, 1)]
    assert len(texts) > 50
    unknown, gone = differences(texts, {**TAKEN, **NO_WAY})
    assert not unknown, "add a test that takes the remedy, or the reason why none does"
    assert not gone


@pytest.mark.parametrize("place", sorted(set(TAKEN.values())))
def test_the_test_exists(place: str) -> None:
    file, _, name = place.partition("::")
    assert has_test(TESTS / file, name)
