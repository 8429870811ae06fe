"""The flags of messages, topics, and pull requests, with Java's names without their prefixes."""

from __future__ import annotations

# MessageSysFlag
COMPRESSED = 0x1
MULTI_TAGS = 0x2
TRANSACTION_NOT_TYPE = 0x0
TRANSACTION_PREPARED = 0x4
TRANSACTION_COMMIT = 0x8
TRANSACTION_ROLLBACK = 0xC
TRANSACTION_MASK = 0xC
BORN_HOST_V6 = 0x10
STORE_HOST_V6 = 0x20
NEED_UNWRAP = 0x40
INNER_BATCH = 0x80

# PermName
PERM_PRIORITY = 0x8
PERM_READ = 0x4
PERM_WRITE = 0x2
PERM_INHERIT = 0x1

# PullSysFlag
PULL_COMMIT_OFFSET = 0x1
PULL_SUSPEND = 0x2
PULL_SUBSCRIPTION = 0x4
PULL_CLASS_FILTER = 0x8
PULL_LITE = 0x10


def transaction_type(sys_flag: int) -> int:
    """Return the transaction bits of a message: 0 (none), 4 (prepared), 8 (commit), or 12
    (rollback).
    """
    return sys_flag & TRANSACTION_MASK


def has_queue_unit(sys_flag: int) -> bool:
    """Return whether a message has a consume queue unit and a queue offset: True for the
    transaction types none and commit.
    """
    return sys_flag & TRANSACTION_MASK in (TRANSACTION_NOT_TYPE, TRANSACTION_COMMIT)
