"""Classes of ``rmqpy.model.values.define`` compare, hash, and print as those of attrs do."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import attrs
import pytest
from attrs import field

from rmqpy.model import values


def made(define: Any, **given: Any) -> Any:
    @define(**given)
    class Sample:
        number: int
        name: str = ""
        hidden: int = field(default=0, repr=False)
        ignored: int = field(default=0, eq=False)
        many: list[int] = field(factory=list)

    return Sample


OPTIONS: list[dict[str, bool]] = [
    {},
    {"slots": True},
    {"slots": True, "frozen": True},
    {"slots": True, "frozen": True, "kw_only": True},
    {"slots": False, "frozen": True},
    {"slots": True, "eq": False},
    {"slots": True, "frozen": True, "order": True},
]


@pytest.mark.parametrize("given", OPTIONS)
def test_instances_behave_as_those_of_attrs(given: dict[str, bool]) -> None:
    ours, theirs = made(values.define, **given), made(attrs.define, **given)
    rows: list[dict[str, Any]] = [
        {"number": 1},
        {"number": 1, "name": "a"},
        {"number": 1, "hidden": 2},
        {"number": 1, "ignored": 2},
        {"number": 1, "many": [1]},
        {"number": 1, "many": [1]},
    ]
    one, two = [ours(**row) for row in rows], [theirs(**row) for row in rows]
    assert [[a == b for b in one] for a in one] == [[a == b for b in two] for a in two]
    assert [[a != b for b in one] for a in one] == [[a != b for b in two] for a in two]
    assert list(map(repr, one)) == list(map(repr, two))
    assert one[0] != (1, "", 0, []) and one[0] != two[0] and one[0] != object()
    assert (ours.__hash__ is None) == (theirs.__hash__ is None)
    assert copy.copy(one[1]) == one[1] or given.get("eq") is False
    assert attrs.evolve(one[0], name="b").name == "b"
    assert [each.name for each in attrs.fields(ours)] == [
        each.name for each in attrs.fields(theirs)
    ]


@values.define(slots=True, frozen=True)
class Frozen:
    number: int
    name: str = ""


@values.define(slots=True, frozen=True)
class More(Frozen):
    more: int = 0


@values.define(slots=True)
class Empty:
    pass


@values.define(slots=True, frozen=True)
class Own:
    number: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own)

    def __hash__(self) -> int:
        return 7

    def __repr__(self) -> str:
        return "own"


@values.define
class SampleError(Exception):
    number: int


def test_frozen_instances_can_be_keys() -> None:
    assert len({Frozen(1), Frozen(1), Frozen(2), Frozen(1, "a")}) == 3
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        Frozen(1).number = 2  # type: ignore[misc]


def test_a_subclass_is_not_equal_to_its_base() -> None:
    assert Frozen(1) != More(1) and More(1, "", 2) != More(1, "", 3)
    assert More(1, "a", 2) == More(1, "a", 2) and hash(More(1)) == hash(More(1))
    assert repr(More(1, "a", 2)) == "More(number=1, name='a', more=2)"


def test_methods_of_the_class_are_kept() -> None:
    assert Own(1) == Own(2) and hash(Own(1)) == 7 and repr(Own(1)) == "own"
    assert Empty() == Empty() and repr(Empty()) == "Empty()"
    with pytest.raises(TypeError):
        hash(Empty())


def test_errors_are_compared_by_identity() -> None:
    assert SampleError(1) != SampleError(1) and SampleError(1).args == (1,)


def test_instances_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(More(1, "a", 2))) == More(1, "a", 2)


def test_the_text_of_a_class_without_repr_shows_no_values() -> None:
    sample = made(values.define, frozen=True, repr=False)(number=1, name="a secret")
    assert repr(sample) == object.__repr__(sample)
