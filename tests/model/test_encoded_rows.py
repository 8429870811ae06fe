"""The parts of encoded rows are the whole table as it is encoded at once, after any changes."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st

from rmqpy.model import encoded_rows
from rmqpy.model.encoded_rows import BLOCK_ROWS, EncodedRows
from rmqpy.model.steps import finish
from rmqpy.remoting.fastjson import dumps, dumps_member, dumps_with_rows

NAMES = ["a", "b", "c", "d", "e", "f", "g", "h", 'quote " and \u2028', "tab\t\n", "ü", "\ud800"]


@define
class Table:
    """A table, its encoded rows, and the names that were encoded."""

    values: dict[str, object] = field(factory=dict)
    encoded: list[str] = field(factory=list)
    rows: EncodedRows = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.rows = EncodedRows(self.encode)

    def encode(self, name: str) -> bytes:
        self.encoded.append(name)
        return dumps_member(name, self.values[name], 2)

    def put(self, name: str, value: object) -> None:
        self.values[name] = value
        self.rows.note(name)

    def delete(self, name: str) -> None:
        self.values.pop(name, None)
        self.rows.discard(name)

    def check(self, *, pretty: bool) -> None:
        parts = dumps_with_rows(
            {"v": 1, "t": {}}, self.rows.parts(compact=not pretty), pretty=pretty
        )
        assert b"".join(parts) == dumps({"v": 1, "t": self.values}, pretty=pretty)


VALUES = st.recursive(
    st.integers() | st.text(max_size=3) | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=4,
)
CHANGES = st.lists(
    st.tuples(st.sampled_from(NAMES), VALUES)
    | st.sampled_from(NAMES)
    | st.integers(0, 4)
    | st.booleans()
    | st.none(),
    max_size=60,
)


@given(CHANGES)
def test_the_parts_are_those_of_the_whole_table(changes: list[object]) -> None:
    """A pair puts, a name deletes, a number encodes so many rows, a boolean compares one of the two
    forms, and None replaces all rows.
    """
    table = Table()
    with patch.object(encoded_rows, "BLOCK_ROWS", 2):
        for change in changes:
            match change:
                case (str(name), value):
                    table.put(name, value)
                case str(name):
                    table.delete(name)
                case bool(pretty):
                    table.check(pretty=pretty)
                case int(count):
                    for _, _step in zip(range(count), table.rows.encode_steps(), strict=False):
                        pass
                case _:
                    table.values = dict(reversed(table.values.items()))
                    table.rows.reset(table.values)
        table.check(pretty=True)
        table.check(pretty=False)


def filled(count: int) -> Table:
    table = Table()
    for number in range(count):
        table.put(f"name-{number}", number)
    table.rows.parts()
    table.rows.parts(compact=True)
    table.encoded.clear()
    return table


@pytest.mark.parametrize("compact", [False, True])
def test_a_change_makes_one_row_and_one_block_anew(compact: bool) -> None:
    blocks = 10
    table = filled(blocks * BLOCK_ROWS)
    before = table.rows.parts(compact=compact)
    table.put(f"name-{5 * BLOCK_ROWS}", "changed")
    after = table.rows.parts(compact=compact)
    same = [one is other for one, other in zip(before[1:], after[1:], strict=True)]
    assert len(after) == blocks and same.count(False) == 1 and not same[4]
    assert table.encoded == [f"name-{5 * BLOCK_ROWS}"]


def test_blocks_with_few_rows_are_joined() -> None:
    count = 20
    table = filled(count * BLOCK_ROWS)
    for number in range(count * BLOCK_ROWS):
        if number % BLOCK_ROWS:
            table.delete(f"name-{number}")
    assert len(table.rows.parts()) == 1
    table.check(pretty=True)
    assert table.encoded == []


def test_rows_that_change_during_the_steps_are_encoded() -> None:
    table = filled(3)
    for name in list(table.values):
        table.put(name, "changed")
    steps = table.rows.encode_steps()
    next(steps)
    table.put("name-0", "changed again")
    table.delete("name-1")
    table.put("new", 1)
    finish(steps)
    assert table.encoded == ["name-0", "name-2", "name-0", "new"]
    table.check(pretty=True)


def test_steps_end_although_rows_change_faster() -> None:
    table = filled(3)
    table.put("name-0", "changed")
    for count, _ in enumerate(table.rows.encode_steps()):
        assert count < 2
        table.put(f"name-{count % 3}", count)
    table.check(pretty=True)
