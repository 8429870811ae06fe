"""The ids by which messages are searched for."""

from __future__ import annotations

from datetime import datetime

from rmqpy.client.core.unique_id import UniqueIds
from rmqpy.codec.message import offset_msg_id
from rmqpy.testing.manual_scheduler import ManualScheduler
from rmqpy.why.message_id import IdKind, parse_message_id

IPV4 = bytes([192, 168, 0, 7])
IPV6 = bytes(15) + b"\x01"
NOW_MS = round(datetime(2026, 3, 15, 12).timestamp() * 1000)


def test_offset_ids_of_both_families_are_told_from_unique_ids() -> None:
    for address in (IPV4, IPV6):
        offset_id = offset_msg_id((address, 10911), 4096)
        parsed = parse_message_id(offset_id.lower(), NOW_MS)
        assert (parsed.kind, parsed.physical_offset) == (IdKind.OFFSET, 4096)
        assert (parsed.text, parsed.host) == (offset_id, (address, 10911))
        unique_id = UniqueIds(address, 4711, b"\1\2\3\4", ManualScheduler(NOW_MS)).next()
        parsed = parse_message_id(unique_id, NOW_MS)
        assert (parsed.kind, parsed.sent_ms) == (IdKind.UNIQUE, NOW_MS)


def test_a_unique_id_of_the_month_before_has_its_time() -> None:
    sent_ms = round(datetime(2026, 2, 27, 23, 59).timestamp() * 1000)
    unique_id = UniqueIds(IPV4, 4711, b"\1\2\3\4", ManualScheduler(sent_ms)).next()
    assert parse_message_id(unique_id, NOW_MS).sent_ms == sent_ms


def test_any_other_text_is_a_key() -> None:
    for text in ("order-17", "ab", "Z" * 32, "0" * 31):
        assert parse_message_id(text, NOW_MS).kind is IdKind.KEY
