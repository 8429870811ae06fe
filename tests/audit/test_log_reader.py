"""Tests of the log reader of certificates against the messages of the Java consumer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from attrs import evolve
from harness.audit import directory_of

from rmqpy.audit.facts.log_reader import MessageValue, QueueMessages
from rmqpy.audit.facts.reader import read_facts
from rmqpy.codec.tally.kernel import PLACE_PROPERTIES
from rmqpy.model.flags import COMPRESSED
from rmqpy.store.files.disk import OsFileSystem


def test_the_reader_returns_the_messages_of_the_java_consumer(
    store_of: Callable[[str], Path], manifest: Callable[[str], dict[str, Any]], told_node: str
) -> None:
    store = store_of(told_node)
    end = read_facts(OsFileSystem(), str(store)).end
    reader = QueueMessages(OsFileSystem(), directory_of(store))
    recorded = manifest(told_node.partition("/")[0])["messages"]
    messages = [seen for seen in recorded if seen["commitLogOffset"] < end]
    assert len(messages) > 270
    for seen in messages:
        at = seen["queueOffset"]
        ((_, found),) = reader.read(seen["topic"], seen["queueId"], at, at + 1)
        assert found is not None
        if "v533" in told_node:
            # Java's 5.x client clears the flag when it decompresses the body.
            assert (found.sys_flag & COMPRESSED == 0) is (found.body_bytes == seen["bodyLen"])
            found = evolve(found, sys_flag=found.sys_flag & ~COMPRESSED)
        assert found == value_of(seen, found)


def value_of(seen: dict[str, Any], found: MessageValue) -> MessageValue:
    """Return the value of a recorded message; the body size is that of the message found."""
    properties = {
        name: value for name, value in seen["props"].items() if name not in PLACE_PROPERTIES
    }
    return MessageValue(
        queue_offset=seen["queueOffset"],
        physical_offset=seen["commitLogOffset"],
        message_id=seen["msgId"],
        offset_id=seen["offsetMsgId"],
        body_crc=seen["bodyCRC"],
        body_bytes=found.body_bytes,
        flag=seen["flag"],
        sys_flag=seen["sysFlag"],
        born_timestamp_ms=seen["bornTimestamp"],
        born_host=host(seen["bornHost"]),
        store_timestamp_ms=seen["storeTimestamp"],
        store_host=host(seen["storeHost"]),
        reconsume_times=seen["reconsumeTimes"],
        prepared_transaction_offset=seen["preparedTransactionOffset"],
        properties=tuple(sorted(properties.items())),
    )


def host(text: str) -> str:
    address, _, port = text.removeprefix("/").rpartition(":")
    return f"{address} port {port}"
