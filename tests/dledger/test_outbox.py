"""The properties of a Ready."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from rmqpy.dledger.outbox import Ready

FIELDS = [field.name for field in attrs.fields(Ready)]
TELLS = {"messages", "committed_index"}


def test_a_ready_with_nothing_in_it_tells_only() -> None:
    assert Ready().tells_only


@pytest.mark.parametrize("name", FIELDS)
def test_only_messages_and_a_committed_index_are_told_without_the_other_steps(name: str) -> None:
    something: Any = (object(),)
    ready = Ready(**{name: something})
    assert ready.tells_only == (name in TELLS)
