"""Tests of the properties of a Ready."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from rmqpy.dledger.outbox import Ready

FIELDS = [field.name for field in attrs.fields(Ready)]
WITHOUT_DISK = {"messages", "committed_index"}


def test_an_empty_ready_needs_no_disk() -> None:
    assert Ready().tells_only


@pytest.mark.parametrize("name", FIELDS)
def test_only_messages_and_a_committed_index_need_no_disk(name: str) -> None:
    something: Any = (object(),)
    ready = Ready(**{name: something})
    assert ready.tells_only == (name in WITHOUT_DISK)
