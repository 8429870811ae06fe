"""What options that are not set cost a send: nothing, by the functions that it calls."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType

import pytest
from attrs import define, field
from harness.calls import asked, calls
from harness.hooks import install_hooks

from rmqpy.config.keys import BrokerRole
from rmqpy.net.ha import SlaveView
from rmqpy.store.files.watermark import Watermark
from rmqpy.testing.harness import BrokerHarness, BuildBroker

HOOKS = "rmqpy.broker.processors.put_hooks"
MARK = "def mark(message, /):\n    message.properties['mark'] = 'x'\n"
UNSET: dict[str, int] = {}
SET = {"in_sync_replicas": 3, "min_in_sync_replicas": 2}


@define
class ManySlaves:
    """Two slaves that have everything."""

    replicated: Watermark = field(factory=lambda: Watermark("replicated"))
    last_refused: str = ""
    slaves: tuple[SlaveView, ...] = ()

    def count_at(self, offset: int) -> int:
        return 2


def send(harness: BrokerHarness, count: int = 1) -> Counter[CodeType]:
    """Let a broker that is warm receive messages together; return the calls."""
    harness.deliver(harness.send_command())
    commands = [harness.send_command() for _ in range(count)]
    with calls() as found:
        harness.deliver(*commands)
    assert harness.store.reader.max_queue_offset("T", 0) == 1 + count
    return found


def names_hooks(found: Counter[CodeType]) -> set[str]:
    """Return the functions that are hooks, or whose code names anything of hooks."""
    return {
        code.co_qualname
        for code in found
        if HOOKS.rpartition(".")[2] in code.co_filename
        or any("hook" in name.lower() for name in (*code.co_names, *code.co_freevars))
    }


def test_no_function_that_a_send_calls_knows_of_hooks(
    build: BuildBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even when a package that has hooks is installed: only the setting makes them called."""
    plain = send(build())
    install_hooks(tmp_path, monkeypatch, "marking_hooks", MARK, {"mark": "marking_hooks:mark"})
    assert not names_hooks(plain)
    assert send(build()) == plain
    assert names_hooks(send(build(rmqpy_put_message_hooks="mark"))), "hooks would be seen"


def test_a_broker_without_hooks_does_not_import_them(
    build: BuildBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, HOOKS, None)
    assert send(build())
    with pytest.raises(ImportError):
        build(rmqpy_put_message_hooks="mark")


@pytest.mark.parametrize("settings", [UNSET, SET], ids=["unset", "set"])
def test_an_asynchronous_master_never_asks_for_its_slaves(
    build: BuildBroker, settings: dict[str, int]
) -> None:
    assert not asked(send(build(broker_role=BrokerRole.ASYNC_MASTER, **settings)))


@pytest.mark.parametrize("count", [1, 10])
def test_a_synchronous_master_asks_once_for_all_messages_that_it_stores_together(
    build: BuildBroker, count: int
) -> None:
    """With the number of slaves that the settings ask for, which is derived when they change."""
    ask = {"required_marks": 1, "in_sync_count": 1}
    found = {}
    for settings in (UNSET, SET):
        harness = build(broker_role=BrokerRole.SYNC_MASTER, **settings)
        harness.broker.replication.serve(ManySlaves())
        found[bool(settings)] = asked(send(harness, count))
    assert found[False] == ask
    assert found[True] == {**ask, "refuses": count, "in_sync_count": 1 + count}


def test_the_numbers_follow_the_role_and_the_settings(build: BuildBroker) -> None:
    """A master that becomes a slave waits for nobody."""
    identity = build(broker_role=BrokerRole.SYNC_MASTER, **SET).broker.identity
    numbers: Callable[[], tuple[int, int]] = lambda: (  # noqa: E731 - read it again
        identity.slaves_awaited,
        identity.slaves_required,
    )
    assert numbers() == (2, 1)
    identity.change_role(BrokerRole.SLAVE, 1)
    assert numbers() == (0, 0)
    identity.change_role(BrokerRole.SYNC_MASTER, 0)
    assert numbers() == (2, 1)
    plain = build(broker_role=BrokerRole.SYNC_MASTER).broker.identity.configuration
    identity.change_configuration(plain)
    assert numbers() == (1, 0)
