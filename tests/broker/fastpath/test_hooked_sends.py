"""The fast path leaves sends to a broker with put-message hooks, and answers its pulls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from harness.broker import queue_messages
from harness.fastpath import PULL_FIELDS, BrokerPair, MakeBrokerPair
from harness.hooks import install_hooks

from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command

MARK = """
def mark(message, /):
    message.properties["mark"] = "x"
"""


def test_each_send_passes_the_hooks(
    pair: MakeBrokerPair,
    assert_same: Callable[[BrokerPair], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install_hooks(tmp_path, monkeypatch, "marking_hooks", MARK, {"mark": "marking_hooks:mark"})
    both = pair(rmqpy_put_message_hooks="mark")
    for side in both:
        side.connect(("10.0.0.1", 1234))
        for _ in range(4):
            side.receive(0, encode_command(side.harness.send_command()))
            side.end_turn()
            side.receive(0, encode_command(RemotingCommand(11, ext_fields=dict(PULL_FIELDS))))
            side.end_turn()
        marks = [each.properties["mark"] for each in queue_messages(side.harness.store, "T")]
        assert marks == ["x"] * 4
    assert_same(both)
    assert both[1].handed_back[310] == 4
