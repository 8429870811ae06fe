"""The certificate's reader against what Java said of every message of the golden stores."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from attrs import evolve

from rmqpy.audit.facts.log_reader import MessageValue, QueueMessages
from rmqpy.audit.facts.reader import read_facts
from rmqpy.audit.scan.directory import read_directory
from rmqpy.codec.tally.kernel import PLACE_PROPERTIES
from rmqpy.model.flags import COMPRESSED
from rmqpy.store.files.disk import OsFileSystem


def test_it_agrees_with_java(
    store_of: Callable[[str], Path], manifest: Callable[[str], dict[str, Any]], told_node: str
) -> None:
    store = store_of(told_node)
    end = read_facts(OsFileSystem(), str(store)).end
    reader = QueueMessages(OsFileSystem(), read_directory(OsFileSystem(), str(store)))
    told = manifest(told_node.partition("/")[0])["messages"]
    messages = [said for said in told if said["commitLogOffset"] < end]
    assert len(messages) > 270
    for said in messages:
        at = said["queueOffset"]
        ((_, found),) = reader.read(said["topic"], said["queueId"], at, at + 1)
        assert found is not None
        if told_node.endswith("v533"):
            # Java's client of 5.x takes the flag away with the compression.
            assert (found.sys_flag & COMPRESSED == 0) is (found.body_bytes == said["bodyLen"])
            found = evolve(found, sys_flag=found.sys_flag & ~COMPRESSED)
        assert found == value_of(said, found)


def value_of(said, found):
    properties = {
        name: value for name, value in said["props"].items() if name not in PLACE_PROPERTIES
    }
    return MessageValue(
        queue_offset=said["queueOffset"],
        physical_offset=said["commitLogOffset"],
        message_id=said["msgId"],
        offset_id=said["offsetMsgId"],
        body_crc=said["bodyCRC"],
        body_bytes=found.body_bytes,
        flag=said["flag"],
        sys_flag=said["sysFlag"],
        born_timestamp_ms=said["bornTimestamp"],
        born_host=host(said["bornHost"]),
        store_timestamp_ms=said["storeTimestamp"],
        store_host=host(said["storeHost"]),
        reconsume_times=said["reconsumeTimes"],
        prepared_transaction_offset=said["preparedTransactionOffset"],
        properties=tuple(sorted(properties.items())),
    )


def host(text):
    address, _, port = text.removeprefix("/").rpartition(":")
    return f"{address} port {port}"
