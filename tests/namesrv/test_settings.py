"""Key/value settings, the name server's own settings, and their files."""

from __future__ import annotations

import pytest
from harness.namesrv import NameServerHarness

from rmqpy.model.errors import StoreError
from rmqpy.namesrv import NamesrvLimits
from rmqpy.remoting.bodies import KVTable
from rmqpy.remoting.command import RemotingCommand
from rmqpy.testing.manual_scheduler import ManualScheduler
from rmqpy.testing.memory_files import MemoryFiles

KV_PATH = "/ns/kvConfig.json"
SETTINGS_PATH = "/ns/namesrv.properties"
ORDER = "ORDER_TOPIC_CONFIG"


def put(world, namespace, key, value):
    return world.ask(100, namespace=namespace, key=key, value=value)


def test_put_get_list_delete(world: NameServerHarness) -> None:
    assert put(world, "NS", "k", "v").code == 0
    assert world.ask(101, namespace="NS", key="k").ext_fields == {"value": "v"}
    assert world.ask(219, namespace="NS").body == b'{"table":{"k":"v"}}'
    assert world.ask(102, namespace="NS", key="k").code == 0
    answer = world.ask(101, namespace="NS", key="k")
    assert (answer.code, answer.remark) == (22, "No config item, Namespace: NS Key: k")
    assert world.ask(219, namespace="NS").body == b'{"table":{}}'
    answer = world.ask(219, namespace="Other")
    assert (answer.code, answer.remark) == (22, "No config item, Namespace: Other")
    assert world.ask(102, namespace="Other", key="k").code == 0


def test_the_file_is_javas_and_is_read_again(
    world: NameServerHarness, make_world: type[NameServerHarness]
) -> None:
    put(world, ORDER, "T", "broker-a:4")
    put(world, "NS", "k", 'quote " und ümlaut')
    assert world.files.read_bytes(KV_PATH).decode() == (
        '{\n\t"configTable":{\n\t\t"ORDER_TOPIC_CONFIG":{\n\t\t\t"T":"broker-a:4"\n\t\t},'
        '\n\t\t"NS":{\n\t\t\t"k":"quote \\" und ümlaut"\n\t\t}\n\t}\n}'
    )
    assert b"NS" not in world.files.read_bytes(KV_PATH + ".bak")
    after = make_world(files=world.files.crash())
    assert after.ask(101, namespace=ORDER, key="T").ext_fields == {"value": "broker-a:4"}
    assert after.ask(101, namespace="NS", key="k").ext_fields == {"value": 'quote " und ümlaut'}


def test_a_broken_file_gives_way_to_its_backup_and_both_broken_stop_the_start(
    make_world: type[NameServerHarness],
) -> None:
    files = MemoryFiles()
    files.replace_bytes(KV_PATH, b'{"configTable":{"NS":{"k":"v"')
    with pytest.raises(StoreError, match=KV_PATH):
        make_world(files=files)
    files.replace_bytes(KV_PATH + ".bak", b'{"configTable":{"NS":{"k":"old"}}}')
    world = make_world(files=files)
    assert world.ask(101, namespace="NS", key="k").ext_fields == {"value": "old"}


def test_success_is_answered_when_it_is_on_disk(make_world: type[NameServerHarness]) -> None:
    world = make_world(scheduler=ManualScheduler(blocking_ms=5))
    requests = [
        RemotingCommand(100, n, ext_fields={"namespace": "NS", "key": f"k{n}", "value": "v"})
        for n in range(3)
    ]
    world.server.handle(world.channel, requests)
    assert world.channel.take() == []
    world.scheduler.advance(4)
    assert not world.files.exists(KV_PATH)
    world.scheduler.advance(1)
    assert [each.opaque for each in world.channel.take()] == [0]
    world.scheduler.advance(5)  # the two that came during the write share the next one
    assert [each.opaque for each in world.channel.take()] == [1, 2]
    assert world.files.read_bytes(KV_PATH).count(b'"v"') == 3


def test_a_disk_that_fails_is_told(world: NameServerHarness) -> None:
    world.files.fail_write("kvConfig")
    answer = put(world, "NS", "k", "v")
    assert answer.code == 1
    assert "not on disk" in answer.remark
    world.files.heal()
    assert put(world, "NS", "k2", "v").code == 0
    assert world.files.read_bytes(KV_PATH).count(b'"v"') == 2


@pytest.mark.parametrize(
    ("namespace", "key", "value"),
    [
        ("", "k", "v"),
        ("NS", "", "v"),
        ("a\x00b", "k", "v"),
        ("NS", "a\nb", "v"),
        ("NS", "k", "a\x1bb"),
        ("NS", "k" * 263, "v"),
        ("NS", "k", "v" * 65_537),
    ],
)
def test_settings_that_nobody_means_are_refused(
    world: NameServerHarness, namespace, key, value
) -> None:
    assert put(world, namespace, key, value).code == 1
    assert not world.files.exists(KV_PATH)


def test_the_number_of_settings_is_bounded(make_world: type[NameServerHarness]) -> None:
    world = make_world(limits=NamesrvLimits(settings=2))
    assert put(world, "A", "1", "v").code == put(world, "B", "1", "v").code == 0
    assert put(world, "A", "2", "v").code == 2
    assert put(world, "A", "1", "other").code == 0
    world.ask(102, namespace="B", key="1")
    assert put(world, "A", "2", "v").code == 0


def test_waiting_changes_are_bounded(make_world: type[NameServerHarness]) -> None:
    world = make_world(scheduler=ManualScheduler(blocking_ms=5))
    change = {"namespace": "NS", "key": "k", "value": "v"}
    world.server.handle(
        world.channel, [RemotingCommand(100, n, ext_fields=change) for n in range(1026)]
    )
    (busy,) = world.channel.take()
    assert (busy.opaque, busy.code) == (1025, 2)
    world.scheduler.advance(10)
    assert len(world.channel.take()) == 1025


def test_order_topics_go_to_brokers_and_when_enabled_into_routes(
    make_world: type[NameServerHarness],
) -> None:
    for enabled in (False, True):
        world = make_world(order_message_enable=enabled)
        assert world.register("10.0.0.1:10911", "T", "U").body == b""
        world.route("T")
        put(world, ORDER, "T", "broker-a:4")
        answer = world.register("10.0.0.1:10911", "T", "U")
        assert KVTable.decode(answer.body).table == {"T": "broker-a:4"}
        assert world.route("T").order_topic_conf == ("broker-a:4" if enabled else None)
        assert world.route("U").order_topic_conf is None
        world.ask(102, namespace=ORDER, key="T")
        assert world.route("T").order_topic_conf is None
        assert world.register("10.0.0.1:10911", "T", "U").body == b'{"table":{}}'


# -- 318, 319


def test_a_setting_of_the_short_list_is_changed_and_kept(world: NameServerHarness) -> None:
    world.register("10.0.0.1:10911", "T")
    put(world, ORDER, "T", "broker-a:4")
    assert world.route("T").order_topic_conf is None
    assert world.ask(318, b"orderMessageEnable=true\n").code == 0
    assert world.route("T").order_topic_conf == "broker-a:4"
    assert b"orderMessageEnable=true\n" in world.ask(319).body
    assert b"orderMessageEnable=true" in world.files.read_bytes(SETTINGS_PATH)


@pytest.mark.parametrize(
    "key", ["kvConfigPath", "configStorePath", "rocketmqHome", "listenPort", "bindAddress"]
)
def test_paths_addresses_and_the_rest_are_refused_and_nothing_is_changed(
    world: NameServerHarness, key
) -> None:
    before = world.ask(319).body
    answer = world.ask(318, f"orderMessageEnable=true\n{key}=/tmp/x\n".encode())
    assert answer.code == 16
    assert key in answer.remark
    assert world.ask(319).body == before
    assert not world.files.exists(SETTINGS_PATH)


def test_unknown_keys_are_ignored_and_nonsense_is_refused(world: NameServerHarness) -> None:
    assert world.ask(318, b"unRegisterBrokerQueueCapacity=3000\n").code == 0
    assert world.ask(318, b"configStorePathName=/tmp/x\n").code == 16
    assert world.ask(318, b"configBlackList=x\n").code == 16
    assert world.ask(318).code == 0
    assert world.ask(318, b"orderMessageEnable=perhaps\n").code == 1
    assert world.ask(318, b"a=\\uZZZZ").code == 1
    assert not world.files.exists(SETTINGS_PATH)
