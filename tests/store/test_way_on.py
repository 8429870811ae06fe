"""Every refusal of a start leads on: taking the remedy that it names ends with a store that starts
and has all messages. ``test_every_refusal.py`` lists the refusals.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from attrs import define
from harness.store import SELF_ID, MemoryRig

from rmqpy.model.errors import StoreError

ROOT = "/store"
LEDGER = f"dledger-{SELF_ID}"
COUNT = 60


def first(rig: MemoryRig, folder: str, number: int = 0) -> str:
    """Return the path of a file in a folder of the store, by its number in the order of names."""
    return f"{folder}/{rig.files.list_dir(f'{ROOT}/{folder}')[number]}"


def remove(rig: MemoryRig, path: str) -> None:
    rig.files.unlink(f"{ROOT}/{path}")
    rig.files.sync_dir(f"{ROOT}/{path}".rpartition("/")[0])


def add(path: str) -> Callable[[MemoryRig], None]:
    return lambda rig: rig.files.put(f"{ROOT}/{path}", b"x" * 7)


def take_away(path: str) -> Callable[[MemoryRig], None]:
    return lambda rig: remove(rig, path)


def rename_first(folder: str, name: str) -> Callable[[MemoryRig], None]:
    """Give the first file of a folder another name."""

    def rename(rig: MemoryRig) -> None:
        path = first(rig, folder)
        rig.files.put(f"{ROOT}/{folder}/{name}", rig.files.read_bytes(f"{ROOT}/{path}"))
        remove(rig, path)

    return rename


def lose(folder: str, number: int) -> Callable[[MemoryRig], None]:
    return lambda rig: remove(rig, first(rig, folder, number))


def shorten(folder: str) -> Callable[[MemoryRig], None]:
    def cut(rig: MemoryRig) -> None:
        path = first(rig, folder)
        content = rig.files.read_bytes(f"{ROOT}/{path}")
        remove(rig, path)
        rig.files.put(f"{ROOT}/{path}", content[:-40])

    return cut


def overwrite(folder: str, position: int) -> Callable[[MemoryRig], None]:
    return lambda rig: rig.edit(first(rig, folder), position, b"\xff" * 8)


def write(path: str, data: bytes) -> Callable[[MemoryRig], None]:
    def replace(rig: MemoryRig) -> None:
        for suffix in ("", ".bak") if path.endswith(".json") else ("",):
            rig.files.put(f"{ROOT}/{path}{suffix}", data)

    return replace


def setting(name: str, value: object) -> Callable[[MemoryRig], None]:
    return lambda rig: rig.changes.update({name: value})


def reset(rig: MemoryRig) -> None:
    rig.changes.clear()


def drop(folder: str) -> Callable[[MemoryRig], None]:
    return lambda rig: rig.files.remove_tree(f"{ROOT}/{folder}")


def from_backup_file(path: str) -> Callable[[MemoryRig], None]:
    def restore(rig: MemoryRig) -> None:
        rig.files.put(f"{ROOT}/{path}", rig.files.read_bytes(f"{ROOT}/{path}.bak"))

    return restore


@define(frozen=True)
class Case:
    """A store that does not start: how it came about, what the refusal says, and what its remedy
    says to do. Without ``follow`` the files that are missing or differ are restored from a backup.
    """

    name: str
    joined: bool
    harm: Callable[[MemoryRig], None]
    found: str
    remedy: str
    follow: Callable[[MemoryRig], None] | None = None


CLASSIC, JOINED = False, True
FOREIGN = "move it elsewhere"
CASES = (
    Case("foreign_log", CLASSIC, add("commitlog/x"), "foreign", FOREIGN, take_away("commitlog/x")),
    Case("folder_for_a_file", CLASSIC, add(f"commitlog/{99:020d}/x"), "a directory", FOREIGN,
         drop(f"commitlog/{99:020d}")),
    Case("missing_log_file", CLASSIC, lose("commitlog", 1), "right after", "restore the missing"),
    Case("renamed_log_file", CLASSIC, rename_first("commitlog", f"{77:020d}"), "starts at 77",
         "under the name that it had", rename_first("commitlog", f"{0:020d}")),
    Case("size_of_the_log", CLASSIC, setting("mapped_file_size_commit_log", 8192),
         "a length of 4096", "set mappedFileSizeCommitLog=4096", reset),
    Case("short_log_file", CLASSIC, shorten("commitlog"), "a length of 4056", "restore the file"),
    Case("damaged_record", CLASSIC, overwrite("commitlog", 100), "damaged record", "from a backup"),
    Case("size_of_the_queues", CLASSIC, setting("mapped_file_size_consume_queue", 800),
         "a length of 400", "set mappedFileSizeConsumeQueue=400", reset),
    Case("file_for_a_topic", CLASSIC, add("consumequeue/x"), "a file", FOREIGN,
         take_away("consumequeue/x")),
    Case("foreign_queue", CLASSIC, add("consumequeue/Topic/x"), "foreign", FOREIGN,
         take_away("consumequeue/Topic/x")),
    Case("foreign_queue_file", CLASSIC, add("consumequeue/Topic/0/x"), "foreign", FOREIGN,
         take_away("consumequeue/Topic/0/x")),
    Case("foreign_index", CLASSIC, add("index/x"), "foreign", FOREIGN, take_away("index/x")),
    Case("size_of_the_index", CLASSIC, setting("max_index_num", 30), "bytes", "set these keys",
         reset),
    Case("size_of_the_index_dropped", CLASSIC, setting("max_index_num", 30), "bytes",
         "or delete the index folder", drop("index")),
    Case("newer_format", CLASSIC, write("rmqpy/format", b"99\n"), "format version '99'",
         "use the rmqpy version that wrote", write("rmqpy/format", b"1\n")),
    Case("flag_off", JOINED, lambda rig: setattr(rig, "flag", False), "enableDLegerCommitLog=false",
         "set enableDLegerCommitLog=true", lambda rig: setattr(rig, "flag", True)),
    Case("missing_entries", JOINED, lose(f"{LEDGER}/data", 1), "right after",
         "restore the missing"),
    Case("first_entries_missing", JOINED, lose(f"{LEDGER}/data", 0),
         "an old commit log that ends at", "restore the missing files"),
    Case("foreign_entries", JOINED, add(f"{LEDGER}/data/x"), "foreign", FOREIGN,
         take_away(f"{LEDGER}/data/x")),
    Case("term", JOINED, write(f"{LEDGER}/currterm", b"currTerm=x\n"), "currTerm=x",
         "restore the file from its .bak", from_backup_file(f"{LEDGER}/currterm")),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_remedy_of_a_refused_start_leads_on(case: Case, make_rig: type[MemoryRig]) -> None:
    rig = make_rig()
    rig.write(*range(COUNT))
    if case.joined:
        rig.flag = True
        rig.write(*range(COUNT, 2 * COUNT))
    expected = rig.records()
    backup = rig.tree()
    case.harm(rig)
    with pytest.raises(StoreError) as refused:
        rig.open()
    assert case.found in refused.value.found and case.remedy in refused.value.remedy, refused.value
    if case.follow is not None:
        case.follow(rig)
    else:
        for path, content in backup.items():
            if rig.tree().get(path) != content:
                rig.files.put(f"{ROOT}/{path}", content)
    assert rig.records() == expected


def test_a_store_in_use_opens_when_the_other_broker_has_stopped(make_rig: type[MemoryRig]) -> None:
    rig = make_rig()
    store = rig.open()
    with pytest.raises(StoreError, match="another broker process") as refused:
        rig.open()
    assert "stop that broker" in refused.value.remedy
    store.shutdown()
    rig.open().shutdown()
