"""The closed list of findings: everything that can be wrong with a store directory.

A code has a text, a severity, and a remedy; a finding adds the place. Codes are stable: scripts and
other engines compare them.

=========  ==================================================================================
severity   meaning
=========  ==================================================================================
DAMAGE     bytes of the log are not what was written, or not where they belong: messages are
           lost, hidden, or different from those of another replica
DERIVED    a consume queue, the key index, DLedger index units, or a table disagrees with the
           log and can be rebuilt from it
TAIL       what an interrupted write leaves after the last record; the next start moves it away
NOTE       harmless; reported because an operator might wonder about it
=========  ==================================================================================

A store without findings above NOTE is clean.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any

import attrs

from rmqpy.model.values import define

__all__ = ["Finding", "FindingCode", "Severity", "is_clean", "json_value"]


class Severity(Enum):
    """The severity of a finding; reports show the values."""

    DAMAGE = "damage"
    DERIVED = "derived"
    TAIL = "tail"
    NOTE = "note"


_FROM_REPLICA = "restore the file from a backup or a replica (rmqpy upgrade plan names one)"
_REBUILD = "start the broker: it rebuilds what is derived from the log"
_MOVE_AWAY = "move it elsewhere: a broker refuses to start on it"
_NEXT_START = "none needed: the next start moves these bytes to rmqpy/quarantine"
_NONE = "none needed"
_OPERATOR = "compare with a replica (rmqpy upgrade check) before anything is changed"


class FindingCode(Enum):
    """A kind of finding, with ``text``, ``severity``, and ``remedy``; reports show its name."""

    text: str
    severity: Severity
    remedy: str

    def __new__(cls, text: str, severity: Severity, remedy: str) -> FindingCode:
        code = object.__new__(cls)
        code._value_ = text
        code.text, code.severity, code.remedy = text, severity, remedy
        return code

    # Files
    FILE_STRAY = "a file or folder that does not belong here", Severity.DAMAGE, _MOVE_AWAY
    FILE_SIZE = (
        "a length that is not the file size of this log",
        Severity.DAMAGE,
        "set the file size key if the whole store was written so, else restore the file",
    )
    FILE_MISSING = "a file is missing between two others", Severity.DAMAGE, _FROM_REPLICA
    FILE_EMPTY = "a last file of length 0: its creation was interrupted", Severity.NOTE, _NONE
    FILE_AHEAD = "an empty file that was created ahead and never written", Severity.NOTE, _NONE
    FILE_AHEAD_SEALED = (
        "an empty file after a closed one: a switch to DLedger would put the divide after it",
        Severity.TAIL,
        "start and stop the broker once, or remove the empty file while the broker is stopped",
    )
    UNCLEAN_STOP = (
        "abort exists: the last stop was not clean",
        Severity.NOTE,
        "start and stop the broker once before a switch to DLedger",
    )
    FORMAT_NEWER = (
        "rmqpy/format has a newer version",
        Severity.DAMAGE,
        "use the rmqpy version that wrote it, or a newer one",
    )
    LEDGER_SEVERAL = (
        "more than one dledger-* folder with data",
        Severity.DAMAGE,
        "keep the one that dLegerSelfId names and move the others elsewhere",
    )
    DIVIDE_MISMATCH = (
        "the DLedger log does not start where the classic log ends",
        Severity.DAMAGE,
        _OPERATOR,
    )
    DIVIDE_OPEN = (
        "DLedger data follows a classic log that was not sealed",
        Severity.DAMAGE,
        _OPERATOR,
    )

    # Records
    RECORD_MAGIC = "the magic code of a record is wrong", Severity.DAMAGE, _FROM_REPLICA
    RECORD_SIZE = "the size of a record is wrong", Severity.DAMAGE, _FROM_REPLICA
    RECORD_FIELDS = (
        "the lengths inside a record do not add up to its size",
        Severity.DAMAGE,
        _FROM_REPLICA,
    )
    RECORD_ZEROED = "zeros where a record should be", Severity.DAMAGE, _FROM_REPLICA
    RECORD_BODY_CRC = "a body does not match its CRC", Severity.DAMAGE, _FROM_REPLICA
    RECORD_CHECKSUM = (
        "a record does not match the checksum in its properties",
        Severity.DAMAGE,
        _FROM_REPLICA,
    )
    RECORD_PROPERTIES = "the properties are not well-formed", Severity.DAMAGE, _FROM_REPLICA
    RECORD_TOPIC = "the topic is not a valid name", Severity.DAMAGE, _FROM_REPLICA
    RECORD_PLACE = "PHYSICALOFFSET is not the offset of the record", Severity.DAMAGE, _FROM_REPLICA
    FILLER_SIZE = "the filler of a file does not reach to its end", Severity.DAMAGE, _FROM_REPLICA
    FILLER_MISSING = (
        "a file that is followed by others is not closed by a filler",
        Severity.DAMAGE,
        _FROM_REPLICA,
    )
    FILLER_NOT_ZERO = (
        "a DLedger filler is not zero to the end: the members' files will differ",
        Severity.NOTE,
        _NONE,
    )
    TAIL_PARTIAL = "the last record was cut off while it was written", Severity.TAIL, _NEXT_START
    TAIL_JUNK = "bytes after the last record that are not a record", Severity.TAIL, _NEXT_START

    # DLedger entries
    ENTRY_MAGIC = "the magic code of an entry is wrong", Severity.DAMAGE, _FROM_REPLICA
    ENTRY_SIZE = "the size of an entry is wrong", Severity.DAMAGE, _FROM_REPLICA
    ENTRY_FIELDS = "entry size and body length disagree", Severity.DAMAGE, _FROM_REPLICA
    ENTRY_PLACE = "pos is not the offset of the entry", Severity.DAMAGE, _FROM_REPLICA
    ENTRY_INDEX = (
        "an entry's index does not follow the previous one",
        Severity.DAMAGE,
        _FROM_REPLICA,
    )
    ENTRY_TERM = "an entry's term is smaller than the previous one", Severity.DAMAGE, _FROM_REPLICA
    ENTRY_RESERVED = (
        "channel, chainCrc or bodyCrc of an entry is not 0",
        Severity.DAMAGE,
        _FROM_REPLICA,
    )
    ENTRY_INDEX_MISSING = (
        "a DLedger log has no index files",
        Severity.DERIVED,
        _REBUILD,
    )
    ENTRY_UNIT = "an index unit does not lead to its entry", Severity.DERIVED, _REBUILD

    # Queues
    QUEUE_STEP = (
        "a message's queue offset does not follow the previous one in its queue",
        Severity.DAMAGE,
        _OPERATOR,
    )
    UNIT_MISSING = "a message without a consume queue unit", Severity.DERIVED, _REBUILD
    UNIT_UNCOMMITTED = (
        "an entry after the committed index is in no consume queue: the group decides after a start"
        " whether it stays",
        Severity.NOTE,
        _NONE,
    )
    UNIT_WRONG = "a consume queue unit that leads elsewhere", Severity.DERIVED, _REBUILD
    UNIT_SURPLUS = "a consume queue unit without a message", Severity.DERIVED, _REBUILD

    # Key index
    KEY_MISSING = "a message that is not found by its key", Severity.DERIVED, _REBUILD
    KEY_SURPLUS = "an index entry without a message of that key", Severity.DERIVED, _REBUILD
    KEY_TWICE = "a message that is in the key index twice", Severity.NOTE, _NONE
    KEY_CHAIN = "an index entry that its slot does not lead to", Severity.DERIVED, _REBUILD
    INDEX_HEADER = "the header of an index file is wrong", Severity.DERIVED, _REBUILD
    INDEX_SLOTS = (
        "the header of an index file counts entries as used slots, as RocketMQ 4.4 did; nothing"
        " reads this number",
        Severity.NOTE,
        _NONE,
    )
    KEYS_NOT_INDEXED = (
        "messages that no index file covers are not found by key (Java deletes the newest index"
        " file after an unclean stop)",
        Severity.NOTE,
        "none needed; rmqpy builds the whole index when index/ is removed while it is stopped",
    )

    # Small files
    CHECKPOINT = (
        "the checkpoint cannot be read",
        Severity.DERIVED,
        "delete it: the next start scans the log from the first file",
    )
    LEDGER_STATE = (
        "a DLedger member's term or committed index is wrong or cannot be read",
        Severity.DERIVED,
        "currterm: with a readable .bak the member starts and does not vote in that term; without"
        " one, remove both files, and let the member follow a leader before others stop."
        " A term that no elections reach: see docs/reference/dledger.md. checkpoint: if it cannot"
        " be read, remove it, the committed index comes from the leader; if the log lacks an entry"
        " that was on the disk, keep it, and start the member beside those that have the entry",
    )
    DATA_UNREAD = (
        "data of RocketMQ 5.x that rmqpy does not read: its broker refuses to start",
        Severity.NOTE,
        "none needed for Java 5.x. For rmqpy: let the 5.x broker finish what waits there, or give"
        " it up with rmqpyAcceptUnreadData=true; the identity and epochs of a controller must be"
        " moved out of every replica (docs/reference/store-format.md)",
    )
    UNREAD_DAMAGED = (
        "data of RocketMQ 5.x that leads to no message, or that Java cannot read",
        Severity.DERIVED,
        "compare the file with that of a replica before a 5.x broker starts on it",
    )
    CONFIG_UNREADABLE = (
        "a configuration table that cannot be read, nor its .bak",
        Severity.DAMAGE,
        "restore it from a replica",
    )
    CONFIG_BACKUP = (
        "a configuration table of which only the .bak can be read",
        Severity.DERIVED,
        "none needed: a start uses the .bak",
    )


@define(slots=True, frozen=True, kw_only=True, order=True)
class Finding:
    """One place where something is wrong.

    ``offset`` is the physical offset of the frame or byte, or -1; ``length`` is the number of bytes
    concerned; ``field`` is Java's name.
    """

    offset: int = -1
    code: FindingCode = attrs.field(order=lambda code: code.name)
    file: str
    """The path below the store's root."""
    length: int = 0
    topic: str = ""
    queue_id: int = -1
    queue_offset: int = -1
    field: str = ""
    found: str = ""
    expected: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return a flat object with the code's name and severity, without empty fields."""
        fields = {
            name: value
            for name in _FIELDS
            if (value := getattr(self, name)) not in ("", -1) and (name, value) != ("length", 0)
        }
        return {"code": self.code.name, "severity": self.code.severity.value, **fields}

    def __str__(self) -> str:
        place = f" at offset {self.offset}" if self.offset >= 0 else ""
        if self.length:
            place += f" ({self.length} bytes)"
        if self.topic:
            place += f", {self.topic} queue {self.queue_id}"
            if self.queue_offset >= 0:
                place += f" offset {self.queue_offset}"
        what = f": {self.field}" if self.field else ""
        if self.found:
            what += f"{' is' if self.field else ':'} {self.found}"
        if self.expected:
            what += f", expected {self.expected}"
        return f"{self.code.name} {self.file}{place}: {self.code.text}{what}"


_FIELDS = (
    "file",
    "offset",
    "length",
    "topic",
    "queue_id",
    "queue_offset",
    "field",
    "found",
    "expected",
)


def is_clean(findings: Iterable[Finding]) -> bool:
    """Return whether all findings are notes."""
    return all(finding.code.severity is Severity.NOTE for finding in findings)


def json_value(_owner: object, _name: object, value: object) -> object:
    """Return the JSON form of an attribute (a ``value_serializer`` of ``attrs.asdict``)."""
    if isinstance(value, Finding):
        return value.as_json()
    return value.value if isinstance(value, Enum) else value
