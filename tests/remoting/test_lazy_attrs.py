"""Headers and bodies: attrs classes that are built on first use."""

from __future__ import annotations

import pickle
import threading

import pytest
from attrs import define, field, fields

from rmqpy.remoting.body import Body
from rmqpy.remoting.command_header import CommandHeader, wire_names
from rmqpy.remoting.lazy_attrs import Int64, lazy_define, named


@lazy_define()
class Pickled(Body):
    """A body at module level, where pickle finds it."""

    count: int
    names: list[str] = field(factory=list)


def test_a_class_is_built_with_its_first_instance() -> None:
    @lazy_define()
    class Late(Body):
        topic: str
        count: Int64 = 7
        names: list[str] = field(factory=list)

    assert not isinstance(vars(Late)["__attrs_attrs__"], tuple)
    first, second = Late("T"), Late(topic="T", count=8)
    assert [each.name for each in fields(Late)] == ["topic", "count", "names"]
    assert (first.topic, first.count, first.names) == ("T", 7, [])
    assert first.names is not second.names
    assert first == Late("T") and first != second and first != object()
    assert repr(second).endswith("Late(topic='T', count=8, names=[])")
    with pytest.raises(TypeError, match="topic"):
        Late()  # type: ignore[call-arg]  # The test omits a mandatory field.


def test_the_table_of_fields_needs_no_instance() -> None:
    @lazy_define(kw_only=True)
    class LateHeader(CommandHeader):
        first: int
        second: str | None = field(default=None, metadata=named("2nd"))

    assert wire_names(LateHeader) == ("first", "2nd")
    assert LateHeader.decode({"first": "5", "2nd": "x"}) == LateHeader(first=5, second="x")
    assert LateHeader(first=1).encode() == {"first": "1"}
    with pytest.raises(TypeError, match="positional"):
        LateHeader(1)  # type: ignore[call-arg]  # The test passes it by position.


def test_a_subclass_has_the_fields_of_its_bases() -> None:
    @lazy_define(kw_only=True)
    class Base(CommandHeader):
        first: int = 1

    @lazy_define(kw_only=True)
    class Derived(Base):
        second: int = 2

    assert wire_names(Derived) == ("first", "second")
    assert Derived(second=5).first == 1
    assert Base() != Derived()


def test_a_subclass_without_fields_of_its_own_has_those_of_its_base() -> None:
    @lazy_define()
    class Base(Body):
        first: int = 1

    class Plain(Base):
        pass

    class AlsoPlain(Base):
        pass

    assert [each.name for each in fields(AlsoPlain)] == ["first"]
    assert Plain(2).first == 2
    assert Base(2) != Plain(2)


def test_a_pickled_instance_can_be_loaded() -> None:
    data = pickle.dumps(Pickled(3))
    assert pickle.loads(data) == Pickled(3)


@pytest.mark.slow
def test_threads_may_build_a_class_at_the_same_time() -> None:
    for _ in range(50):

        @lazy_define()
        class Shared(Body):
            topic: str = "T"
            names: list[str] = field(factory=list)

        barrier = threading.Barrier(4)
        instances: list[Shared] = []

        def use(kind: type[Shared], barrier: threading.Barrier, instances: list[Shared]) -> None:
            barrier.wait()
            instances.append(kind(topic="S"))

        threads = [
            threading.Thread(target=use, args=(Shared, barrier, instances)) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert instances == [Shared("S")] * 4


def test_attrs_may_read_the_fields_before_there_is_an_instance() -> None:
    @lazy_define()
    class Base(Body):
        names: list[str] = field(factory=list)

    @define(slots=True, eq=False, repr=False)
    class Derived(Base):
        count: int = 0

    assert [each.name for each in fields(Derived)] == ["names", "count"]
    assert [each.name for each in fields(Base)] == ["names"]
    # mypy does not know the fields of a base that is built later.
    assert Derived(["a"]).names == ["a"]  # type: ignore[arg-type]
    assert Base().names == []
