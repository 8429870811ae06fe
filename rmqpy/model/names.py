"""The names of topics and groups: the rules for them, and those that the system uses.

==========  ==================================================  ==========
name        characters                                          length
==========  ==================================================  ==========
topic       ``%`` ``|`` letters, digits, ``_`` ``-`` (ASCII)    1 to 127
group       the same                                            1 to 255
==========  ==================================================  ==========

Rejections have the remarks of Java, because clients and scripts search for them.
"""

from __future__ import annotations

import re
from typing import Final

from rmqpy.model.codes import ResponseCode
from rmqpy.model.errors import RequestRejectedError

TOPIC_LENGTH_MAX: Final = 127
GROUP_LENGTH_MAX: Final = 255
NAME_PATTERN: Final = "^[%|a-zA-Z0-9_-]+$"

AUTO_CREATE_TOPIC: Final = "TBW102"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
TRANSACTION_HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
TRANSACTION_OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANSACTION_CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_EVENT_TOPIC: Final = "OFFSET_MOVED_EVENT"
LEADER_MARKER_TOPIC: Final = "RMQPY_SYS_LEADER_MARKER"
"""The topic of the record that a new DLedger leader writes to commit the entries of earlier terms.
The record has the rollback type, so it gets neither a consume queue unit nor an index entry.
"""
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
REPLY_TOPIC_POSTFIX: Final = "REPLY_TOPIC"
RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
LMQ_PREFIX: Final = "%LMQ%"

SYSTEM_TOPICS: Final = frozenset(
    {
        AUTO_CREATE_TOPIC,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        TRANSACTION_HALF_TOPIC,
        TRACE_TOPIC,
        TRANSACTION_OP_HALF_TOPIC,
        TRANSACTION_CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_EVENT_TOPIC,
    }
)
"""The system topics that every broker has. A broker adds its cluster, broker and reply topics."""

NOT_ALLOWED_SEND_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        TRANSACTION_HALF_TOPIC,
        TRANSACTION_OP_HALF_TOPIC,
        TRANSACTION_CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_EVENT_TOPIC,
    }
)

TOOLS_GROUP: Final = "TOOLS_CONSUMER"
FILTER_SERVER_GROUP: Final = "FILTERSRV_CONSUMER"
SELF_TEST_CONSUMER_GROUP: Final = "SELF_TEST_C_GROUP"
ONS_HTTP_PROXY_GROUP: Final = "CID_ONS-HTTP-PROXY"
ONSAPI_PULL_GROUP: Final = "CID_ONSAPI_PULL"
ONSAPI_PERMISSION_GROUP: Final = "CID_ONSAPI_PERMISSION"
ONSAPI_OWNER_GROUP: Final = "CID_ONSAPI_OWNER"
INNER_PRODUCER_GROUP: Final = "CLIENT_INNER_PRODUCER"
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"

INITIAL_GROUPS: Final = (
    TOOLS_GROUP,
    FILTER_SERVER_GROUP,
    SELF_TEST_CONSUMER_GROUP,
    ONS_HTTP_PROXY_GROUP,
    ONSAPI_PULL_GROUP,
    ONSAPI_PERMISSION_GROUP,
    ONSAPI_OWNER_GROUP,
)
"""The groups that a broker has from the start."""

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")


def check_topic(name: str) -> None:
    """Raise RequestRejectedError if ``name`` is not valid for a topic."""
    if not name.strip():
        raise _refused("The specified topic is blank.")
    if _NAME.fullmatch(name) is None:
        raise _refused(
            f"The specified topic contains illegal characters, allowing only {NAME_PATTERN}"
        )
    if len(name) > TOPIC_LENGTH_MAX:
        raise _refused("The specified topic is longer than topic max length.")


def check_group(name: str) -> None:
    """Raise RequestRejectedError if ``name`` is not valid for a group."""
    if not name.strip():
        raise _refused("the specified group is blank")
    if len(name) > GROUP_LENGTH_MAX:
        raise _refused(f"the specified group is longer than group max length {GROUP_LENGTH_MAX}.")
    if _NAME.fullmatch(name) is None:
        raise _refused(
            f"the specified group[{name}] contains illegal characters, allowing only {NAME_PATTERN}"
        )


def check_send_topic(name: str) -> None:
    """Raise RequestRejectedError if only the broker may write to the topic ``name``."""
    if name in NOT_ALLOWED_SEND_TOPICS:
        raise RequestRejectedError(
            ResponseCode.NO_PERMISSION, f"Sending message to topic[{name}] is forbidden."
        )


def is_system_topic(name: str) -> bool:
    return name in SYSTEM_TOPICS or name.startswith(SYSTEM_TOPIC_PREFIX)


def is_system_group(name: str) -> bool:
    return name.startswith(SYSTEM_GROUP_PREFIX)


def is_retry_topic(name: str) -> bool:
    return name.startswith(RETRY_PREFIX)


def is_dlq_topic(name: str) -> bool:
    return name.startswith(DLQ_PREFIX)


def retry_topic(group: str) -> str:
    """Return the topic of messages that ``group`` has sent back."""
    return RETRY_PREFIX + group


def pop_retry_topics(topic: str, group: str) -> tuple[str, str]:
    """Return the topics to which 5.x returns the messages of ``topic`` that ``group`` has received
    by POP and not acknowledged: the default one, and that of ``enableRetryTopicV2``.

    Source: KeyBuilder of 5.3.3.
    """
    return f"{RETRY_PREFIX}{group}_{topic}", f"{RETRY_PREFIX}{group}+{topic}"


def dlq_topic(group: str) -> str:
    """Return the topic of messages that ``group`` has failed to consume."""
    return DLQ_PREFIX + group


def reply_topic(cluster: str) -> str:
    """Return the topic of the replies in a cluster."""
    return f"{cluster}_{REPLY_TOPIC_POSTFIX}"


def group_of_retry_topic(topic: str) -> str:
    """Return the group of a retry topic."""
    assert is_retry_topic(topic), topic
    return topic[len(RETRY_PREFIX) :]


def _refused(remark: str) -> RequestRejectedError:
    return RequestRejectedError(ResponseCode.SYSTEM_ERROR, remark)
