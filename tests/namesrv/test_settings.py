"""KV configuration, the name server's own settings, and their files."""

from __future__ import annotations

import pytest
from harness.namesrv import KV_PATH, SETTINGS_PATH, NameServerHarness, remark_of

from rmqpy.model.errors import StoreError
from rmqpy.namesrv import NamesrvLimits
from rmqpy.remoting.bodies import KVTable
from rmqpy.remoting.command import RemotingCommand
from rmqpy.testing.manual_scheduler import ManualScheduler
from rmqpy.testing.memory_files import MemoryFiles

ORDER = "ORDER_TOPIC_CONFIG"


def put(world: NameServerHarness, namespace: str, key: str, value: str) -> RemotingCommand:
    return world.request(100, namespace=namespace, key=key, value=value)


def test_a_setting_is_put_read_listed_and_deleted(world: NameServerHarness) -> None:
    assert put(world, "NS", "k", "v").code == 0
    assert world.request(101, namespace="NS", key="k").ext_fields == {"value": "v"}
    assert world.request(219, namespace="NS").body == b'{"table":{"k":"v"}}'
    assert world.request(102, namespace="NS", key="k").code == 0
    answer = world.request(101, namespace="NS", key="k")
    assert (answer.code, answer.remark) == (22, "No config item, Namespace: NS Key: k")
    assert world.request(219, namespace="NS").body == b'{"table":{}}'
    answer = world.request(219, namespace="Other")
    assert (answer.code, answer.remark) == (22, "No config item, Namespace: Other")
    assert world.request(102, namespace="Other", key="k").code == 0


def test_the_file_has_javas_format_and_survives_a_restart(world: NameServerHarness) -> None:
    put(world, ORDER, "T", "broker-a:4")
    put(world, "NS", "k", 'quote " und ümlaut')
    assert world.files.read_bytes(KV_PATH).decode() == (
        '{\n\t"configTable":{\n\t\t"ORDER_TOPIC_CONFIG":{\n\t\t\t"T":"broker-a:4"\n\t\t},'
        '\n\t\t"NS":{\n\t\t\t"k":"quote \\" und ümlaut"\n\t\t}\n\t}\n}'
    )
    assert b"NS" not in world.files.read_bytes(KV_PATH + ".bak")
    restarted = NameServerHarness(files=world.files.crash())
    assert restarted.request(101, namespace=ORDER, key="T").ext_fields == {"value": "broker-a:4"}
    assert restarted.request(101, namespace="NS", key="k").ext_fields == {
        "value": 'quote " und ümlaut'
    }


def test_a_damaged_file_is_replaced_by_its_backup_or_stops_the_start() -> None:
    files = MemoryFiles()
    files.replace_bytes(KV_PATH, b'{"configTable":{"NS":{"k":"v"')
    with pytest.raises(StoreError, match=KV_PATH):
        NameServerHarness(files=files)
    files.replace_bytes(KV_PATH + ".bak", b'{"configTable":{"NS":{"k":"old"}}}')
    world = NameServerHarness(files=files)
    assert world.request(101, namespace="NS", key="k").ext_fields == {"value": "old"}


def test_success_is_answered_after_the_write() -> None:
    world = NameServerHarness(scheduler=ManualScheduler(blocking_ms=5))
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
    world.scheduler.advance(5)  # The two that arrived during the write share the next one.
    assert [each.opaque for each in world.channel.take()] == [1, 2]
    assert world.files.read_bytes(KV_PATH).count(b'"v"') == 3


def test_a_failed_write_is_reported(world: NameServerHarness) -> None:
    world.files.fail_write("kvConfig")
    answer = put(world, "NS", "k", "v")
    assert answer.code == 1
    assert "not on disk" in remark_of(answer)
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
def test_invalid_settings_are_refused(
    world: NameServerHarness, namespace: str, key: str, value: str
) -> None:
    assert put(world, namespace, key, value).code == 1
    assert not world.files.exists(KV_PATH)


def test_the_number_of_settings_is_bounded() -> None:
    world = NameServerHarness(limits=NamesrvLimits(settings=2))
    assert put(world, "A", "1", "v").code == put(world, "B", "1", "v").code == 0
    assert put(world, "A", "2", "v").code == 2
    assert put(world, "A", "1", "other").code == 0
    world.request(102, namespace="B", key="1")
    assert put(world, "A", "2", "v").code == 0


def test_the_number_of_waiting_changes_is_bounded() -> None:
    world = NameServerHarness(scheduler=ManualScheduler(blocking_ms=5))
    change = {"namespace": "NS", "key": "k", "value": "v"}
    world.server.handle(
        world.channel, [RemotingCommand(100, n, ext_fields=change) for n in range(1026)]
    )
    (busy,) = world.channel.take()
    assert (busy.opaque, busy.code) == (1025, 2)
    world.scheduler.advance(10)
    assert len(world.channel.take()) == 1025


def test_order_topics_are_sent_to_brokers_and_if_enabled_in_routes() -> None:
    for enabled in (False, True):
        world = NameServerHarness(order_message_enable=enabled)
        assert world.register("10.0.0.1:10911", "T", "U").body == b""
        world.route("T")
        put(world, ORDER, "T", "broker-a:4")
        answer = world.register("10.0.0.1:10911", "T", "U")
        assert KVTable.decode(answer.body).table == {"T": "broker-a:4"}
        assert world.route("T").order_topic_conf == ("broker-a:4" if enabled else None)
        assert world.route("U").order_topic_conf is None
        world.request(102, namespace=ORDER, key="T")
        assert world.route("T").order_topic_conf is None
        assert world.register("10.0.0.1:10911", "T", "U").body == b'{"table":{}}'


# -- 318, 319


def test_a_changeable_setting_is_changed_and_kept(world: NameServerHarness) -> None:
    world.register("10.0.0.1:10911", "T")
    put(world, ORDER, "T", "broker-a:4")
    assert world.route("T").order_topic_conf is None
    assert world.request(318, b"orderMessageEnable=true\n").code == 0
    assert world.route("T").order_topic_conf == "broker-a:4"
    assert b"orderMessageEnable=true\n" in world.request(319).body
    assert b"orderMessageEnable=true" in world.files.read_bytes(SETTINGS_PATH)


@pytest.mark.parametrize(
    "key", ["kvConfigPath", "configStorePath", "rocketmqHome", "listenPort", "bindAddress"]
)
def test_other_settings_are_refused_and_nothing_is_changed(
    world: NameServerHarness, key: str
) -> None:
    before = world.request(319).body
    answer = world.request(318, f"orderMessageEnable=true\n{key}=/tmp/x\n".encode())
    assert answer.code == 16
    assert key in remark_of(answer)
    assert world.request(319).body == before
    assert not world.files.exists(SETTINGS_PATH)


def test_unknown_keys_are_ignored_and_invalid_values_are_refused(world: NameServerHarness) -> None:
    assert world.request(318, b"unRegisterBrokerQueueCapacity=3000\n").code == 0
    assert world.request(318, b"configStorePathName=/tmp/x\n").code == 16
    assert world.request(318, b"configBlackList=x\n").code == 16
    assert world.request(318).code == 0
    assert world.request(318, b"orderMessageEnable=perhaps\n").code == 1
    assert world.request(318, b"a=\\uZZZZ").code == 1
    assert not world.files.exists(SETTINGS_PATH)
