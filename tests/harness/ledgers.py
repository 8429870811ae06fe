"""The ledgers of the members of a DLedger group, as their files show them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

WAIT_SECONDS_MAX = 90
WRITTEN_BYTES_MAX = 4 << 20


def wait_until_equal(stores: Sequence[Path]) -> None:
    """Wait until the ledgers of running members have the same end, and all know it as committed."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while len(set(map(_ledger_end, stores))) > 1:
        assert time.monotonic() < deadline, "a member does not catch up"
        time.sleep(0.2)
    # A leader without entries to push sends the committed index once a second.
    time.sleep(1.5)


def ledger_of(store: Path) -> dict[str, bytes]:
    """Return the written bytes of the data and index files of a member, by path in its ledger."""
    folder = _ledger_folder(store)
    files = [*folder.glob("data/*"), *folder.glob("index/*")]
    return {
        str(path.relative_to(folder)): _read_sparse(path) for path in files if path.stat().st_blocks
    }


def _ledger_end(store: Path) -> tuple[int, int]:
    """Return the last data file and the position after the last byte written to it."""
    last = max((_ledger_folder(store) / "data").iterdir())
    return int(last.name), len(_read_sparse(last))


def _ledger_folder(store: Path) -> Path:
    (folder,) = store.glob("dledger-*")
    return folder


def _read_sparse(path: Path) -> bytes:
    """Return the written bytes; index files are mostly a hole."""
    with path.open("rb") as file:
        return file.read(WRITTEN_BYTES_MAX).rstrip(b"\0")
