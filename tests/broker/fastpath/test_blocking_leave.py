"""Messages that block the way back from a DLedger log are counted or refused, on the fast path and
on the ordinary one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from harness.fastpath import BrokerPair

from rmqpy.codec.layout import REVERSIBLE_PROPERTIES_MAX
from rmqpy.remoting.frame import encode_command

DLEDGER: dict[str, Any] = {
    "enable_dledger_commit_log": True,
    "dledger_group": "broker-a",
    "dledger_peers": "n0-127.0.0.1:40911",
    "dledger_self_id": "n0",
}


@pytest.mark.parametrize("excess", [0, 1, 96])
@pytest.mark.parametrize("mode", ["count", "refuse", "classic"])
def test_properties_without_room_for_the_way_back(
    pair: Callable[..., BrokerPair],
    assert_same: Callable[[BrokerPair], None],
    excess: int,
    mode: str,
) -> None:
    """``excess`` is the number of bytes above the limit. A classic log has no way back to block."""
    settings = {} if mode == "classic" else DLEDGER
    both = pair(**settings, rmqpy_refuse_blocking_leave=mode != "count")
    for side in both:
        plain = side.harness.send_command(topic="T", properties="A\x01b\x02")
        side.connect(("10.0.0.1", 1234))
        side.receive(0, encode_command(plain))
        side.end_turn()
        size = REVERSIBLE_PROPERTIES_MAX + excess
        added = len("A\x01\x02CLUSTER\x01C")
        long = side.harness.send_command(topic="T", properties=f"A\x01{'x' * (size - added)}\x02")
        side.receive(0, encode_command(long))
        side.end_turn()
        refused = mode == "refuse" and excess > 0
        store = side.harness.store
        assert store.reader.max_queue_offset("T", 0) == (1 if refused else 2)
        info = store.runtime_info()
        assert info.get("messagesBlockingLeave") == ("1" if mode == "count" and excess else None)
        if not refused:
            page = store.reader.get_message("T", 0, 1, 1, None)
            record = bytes(page.messages[0])
            start = record.index(b"\x01T", 88) + 4
            assert len(record) - start == size
    assert_same(both)
