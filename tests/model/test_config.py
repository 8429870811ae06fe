"""Loading of settings: sources, errors, notes, rules between keys, and changes at run time."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqpy.config.keys import DLedgerPeer, parse_dledger_peers
from rmqpy.config.loading import (
    BrokerConfiguration,
    BrokerRole,
    FlushDiskType,
    NamesrvConfiguration,
    StoreSettings,
    configuration_text,
    effective_lines,
    load_broker_configuration,
    load_namesrv_configuration,
    load_store_settings,
    updated_configuration,
)
from rmqpy.model.errors import ConfigError, RequestRejectedError

PLAIN = {"HOME": "/home/mq"}
QUIET = {"brokerName": "a", "bindAddress": "0.0.0.0"}
DLEDGER = {
    "enableDLegerCommitLog": "true",
    "dLegerGroup": "a",
    "dLegerPeers": "n0-10.0.0.1:20911;n1-10.0.0.2:20911;n2-host-2.example:20911",
    "dLegerSelfId": "n1",
}


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "broker.conf"
    path.write_text(text)
    return path


def loaded(overrides: dict[str, str]) -> BrokerConfiguration:
    return load_broker_configuration(None, QUIET | overrides, PLAIN).configuration


def notes(overrides: dict[str, str]) -> list[str]:
    return load_broker_configuration(None, QUIET | overrides, PLAIN).notes


def fault(overrides: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as caught:
        load_broker_configuration(None, QUIET | overrides, PLAIN)
    return str(caught.value)


def test_settings_are_read_from_file_overrides_and_environment(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "brokerName = broker-a\nflushDiskType=SYNC_FLUSH\nlistenPort=30911\nbrokerClusterName=ü\n"
        "deleteWhen=04;16\nbrokerIP1=10.0.0.9\nosPageCacheBusyTimeOutMills=9\n",
    )
    environment = PLAIN | {"NAMESRV_ADDR": "ns1:9876;ns2:9876", "ROCKETMQ_HOME": "/opt/mq"}
    result = load_broker_configuration(path, {"listenPort": "30921"}, environment)
    assert result.notes == []
    configuration = result.configuration
    assert configuration.broker.broker_name == "broker-a"
    assert configuration.broker.broker_cluster_name == "ü"
    assert configuration.broker.name_servers == ("ns1:9876", "ns2:9876")
    assert configuration.broker.rocketmq_home == "/opt/mq"
    assert configuration.store.flush_disk_type is FlushDiskType.SYNC_FLUSH
    assert configuration.store.delete_when == (4, 16)
    assert configuration.remoting.listen_port == 30921
    assert configuration.store.ha_listen_port == 30922
    assert configuration.broker.broker_ip1 == "10.0.0.9"
    assert configuration.store.store_path_root_dir == "/home/mq/store"
    assert configuration.store.store_path_commit_log == "/home/mq/store/commitlog"


def test_configured_name_servers_override_the_environment() -> None:
    result = load_broker_configuration(
        None, QUIET | {"namesrvAddr": "a:1"}, PLAIN | {"NAMESRV_ADDR": "b:2"}
    )
    assert result.configuration.broker.name_servers == ("a:1",)


def test_an_error_of_the_environment_names_the_variable() -> None:
    with pytest.raises(ConfigError, match="environment NAMESRV_ADDR: namesrvAddr='nowhere': "):
        load_broker_configuration(None, QUIET, PLAIN | {"NAMESRV_ADDR": "nowhere"})


def test_defaults_apply_without_any_source() -> None:
    result = load_broker_configuration(None, {}, PLAIN | {"HOSTNAME": "mq7"})
    assert result.configuration.broker.broker_name == "mq7"
    assert [note.split(":")[0].split(",")[0] for note in result.notes] == [
        "brokerName is not set",
        "listening on 127.0.0.1 only",
    ]


def test_without_home_and_root_the_load_fails() -> None:
    with pytest.raises(
        ConfigError, match="storePathRootDir has no default because HOME is not set"
    ):
        load_broker_configuration(None, QUIET, {})


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"file cannot be read: .*none\.conf: found no such"):
        load_broker_configuration(tmp_path / "none.conf", {}, PLAIN)


def test_an_invalid_value_is_refused_with_its_position_and_the_allowed_values(
    tmp_path: Path,
) -> None:
    path = write(tmp_path, "# one\n\nflushDiskType=sync\n")
    with pytest.raises(ConfigError) as caught:
        load_broker_configuration(path, {}, PLAIN)
    assert str(caught.value) == (
        f"{path}:3: flushDiskType='sync': unknown value; allowed: ASYNC_FLUSH, SYNC_FLUSH"
    )


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("listenPort", "65536", "out of range; allowed: 0 … 65535"),
        ("listenPort", "ten", "not a whole number"),
        ("listenPort", "", "not a whole number"),
        ("mappedFileSizeCommitLog", "1073741824L", "allowed: 1024 … 2^31-1 (bytes)"),
        ("mappedFileSizeCommitLog", "2147483648", "out of range"),
        ("flushDelayOffsetInterval", "9223372036854775808", "allowed: 1 … 2^63-1 (ms)"),
        ("slaveReadEnable", "yes", "not a boolean; allowed: true, false"),
        ("deleteWhen", "24", "no such hour"),
        ("deleteWhen", "4,16", "not a list of hours"),
        ("messageDelayLevel", "1s 5x", "'5x' is not a delay"),
        ("messageDelayLevel", "1s  5s", "'' is not a delay"),
        ("namesrvAddr", "a:1;b", "'b' is not host:port; allowed: host:port, separated by ;"),
        ("namesrvAddr", ";", "no address"),
        ("haTransferBatchSize", "4194304", "out of range"),
        ("storePathCommitLog", "/a,/b", "several directories is not supported"),
        ("messageStorePlugIn", "com.example.Plug", "rmqpy cannot load them. rmqpyPutMessageHooks"),
        ("securityMode", "safe", "allowed: compatible, secure"),
        ("tls.server.mode", "on", "allowed: disabled, permissive, enforcing"),
        ("innerClientAuthenticationCredentials", "{}", "accessKey and secretKey"),
        ("replicationAddresses", "10.0.0", "is not an IP address"),
        ("filterServerNums", "1", "never starts a process; allowed: 0"),
    ],
)
def test_invalid_values_are_refused(name: str, text: str, reason: str) -> None:
    message = fault({name: text})
    assert message.startswith(f"command line: {name}={text!r}: ")
    assert reason in message


def test_an_unknown_key_is_noted_with_the_nearest_name(tmp_path: Path) -> None:
    path = write(tmp_path, "brokername=b\nzzzzzz=1\n")
    found = load_broker_configuration(path, QUIET, PLAIN).notes
    assert found == [
        f"{path}:1: brokername is unknown and ignored; did you mean brokerName?",
        f"{path}:2: zzzzzz is unknown and ignored",
    ]


def test_the_last_line_of_a_repeated_key_counts(tmp_path: Path) -> None:
    path = write(tmp_path, "fileReservedTime=48\nbrokerName=x\nfileReservedTime=24\n")
    result = load_broker_configuration(path, {"bindAddress": "::"}, PLAIN)
    assert result.configuration.store.file_reserved_time == 24
    assert result.notes == [
        f"{path}:3: fileReservedTime was already set in line 1; this line overrides it",
    ]


def test_misspelled_names_of_java_are_not_used() -> None:
    overrides = {"mapedFileSizeCommitLog": "4096", "mapedFileSizeConsumeQueue": "100"}
    store = loaded(overrides).store
    assert store.mapped_file_size_commit_log == 1 << 30
    assert store.mapped_file_size_consume_queue == 6_000_000
    first, second = notes(overrides)
    assert "write mappedFileSizeCommitLog=4096" in first
    assert "write mappedFileSizeConsumeQueue=100" in second


def test_the_sizes_of_thread_pools_are_one_note() -> None:
    assert notes({"serverWorkerThreads": "16", "sendMessageThreadPoolNums": "16"}) == [
        "accepted without effect, because they size threads, queues and buffers of the Java "
        "program: sendMessageThreadPoolNums, serverWorkerThreads"
    ]


def test_keys_without_effect_are_noted_if_they_enable_something() -> None:
    assert notes({"transientStorePoolEnable": "false"}) == []
    (note,) = notes({"transientStorePoolEnable": "true"})
    assert note.startswith("command line: transientStorePoolEnable=true is accepted without effect")


def test_a_store_in_memory_is_noted_and_refused_with_dledger() -> None:
    (note,) = notes({"storeType": "MEMORY"})
    assert "nothing survives the end of this broker" in note
    group = {"dLegerGroup": "g", "dLegerSelfId": "n0", "dLegerPeers": "n0-127.0.0.1:40911"}
    member = {**group, "enableDLegerCommitLog": "true", "storeType": "MEMORY"}
    assert "forgets its entries and its vote" in fault(member)
    assert "unknown value; allowed: default, MEMORY" in fault({"storeType": "memory"})


@pytest.mark.parametrize(
    "settings, reason",
    [
        ({"inSyncReplicas": "3"}, "has no effect without brokerRole=SYNC_MASTER"),
        ({"inSyncReplicas": "1", "brokerRole": "SYNC_MASTER"}, "sends wait for no slave"),
    ],
)
def test_a_number_of_replicas_that_nothing_waits_for_is_noted(
    settings: dict[str, str], reason: str
) -> None:
    (note,) = notes(settings)
    assert f"inSyncReplicas={settings['inSyncReplicas']}" in note and reason in note
    enough = {"inSyncReplicas": "1", "minInSyncReplicas": "2", "brokerRole": "SYNC_MASTER"}
    assert notes(enough) == notes({"inSyncReplicas": "3", "brokerRole": "SYNC_MASTER"}) == []


def test_white_space_around_values_is_removed() -> None:
    assert loaded({"fileReservedTime": "48 "}).store.file_reserved_time == 48
    assert "white space around the value" in notes({"fileReservedTime": "48 "})[0]


def test_the_disk_ratio_is_limited_as_in_java() -> None:
    assert loaded({"diskMaxUsedSpaceRatio": "3"}).store.disk_max_used_space_ratio == 10
    assert loaded({"diskMaxUsedSpaceRatio": "99"}).store.disk_max_used_space_ratio == 95
    assert loaded({"diskMaxUsedSpaceRatio": "95"}).store.disk_max_used_space_ratio == 95
    assert "is clamped to 95, as in Java" in notes({"diskMaxUsedSpaceRatio": "99"})[0]


@pytest.mark.parametrize(("given", "used"), [("2001", 2020), ("2000", 2000), ("1", 20)])
def test_consume_queue_files_have_complete_units(given: str, used: int) -> None:
    store = loaded({"mappedFileSizeConsumeQueue": given}).store
    assert store.mapped_file_size_consume_queue == used


def test_the_commit_log_folder_is_in_the_root_unless_set() -> None:
    assert StoreSettings(store_path_root_dir="/x").store_path_commit_log == "/x/commitlog"
    assert loaded({"storePathRootDir": "/y"}).store.store_path_commit_log == "/y/commitlog"
    assert loaded({"storePathCommitLog": "/z"}).store.store_path_commit_log == "/z"


def test_the_replication_port_is_the_main_port_plus_one() -> None:
    overrides = {"listenPort": "20911", "haListenPort": "5000"}
    assert loaded(overrides).store.ha_listen_port == 20912
    assert "haListenPort=5000 is not used" in notes(overrides)[0]
    assert notes({"listenPort": "20911", "haListenPort": "20912"}) == []


def test_the_broker_id_depends_on_the_role() -> None:
    assert loaded({"brokerRole": "SYNC_MASTER", "brokerId": "3"}).broker.broker_id == 0
    assert "brokerId=3 is not used" in notes({"brokerId": "3"})[0]
    slave = loaded({"brokerRole": "SLAVE", "brokerId": "3"})
    assert slave.broker.broker_id == 3
    assert slave.store.broker_role is BrokerRole.SLAVE
    assert fault({"brokerRole": "SLAVE"}) == (
        "brokerId is not set: a slave needs its own id; allowed: a number above 0"
    )
    zero = fault({"brokerRole": "SLAVE", "brokerId": "0"})
    assert zero.startswith("command line: brokerId='0': a slave")


def test_delay_levels_are_parsed() -> None:
    assert loaded({"messageDelayLevel": "1s 2m 3h 1d"}).store.delay_levels_ms == (
        1000,
        120_000,
        10_800_000,
        86_400_000,
    )
    assert len(StoreSettings().delay_levels_ms) == 18


def test_dledger_members_are_parsed() -> None:
    configuration = loaded(DLEDGER | {"brokerRole": "SLAVE"})
    assert configuration.broker.broker_id == -1
    assert configuration.store.dledger_members == (
        DLedgerPeer("n0", "10.0.0.1", 20911),
        DLedgerPeer("n1", "10.0.0.2", 20911),
        DLedgerPeer("n2", "host-2.example", 20911),
    )
    assert configuration.store.dledger_data_path == "/home/mq/store/dledger-n1/data"


def test_dledger_keys_are_not_checked_unless_dledger_is_enabled() -> None:
    assert loaded({"dLegerSelfId": "leader", "dLegerPeers": "?"}).store.dledger_self_id == "leader"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dLegerSelfId": "broker-0"}, "one letter and a number, for example n0"),
        ({"dLegerSelfId": "n"}, "one letter and a number, for example n0"),
        ({"dLegerSelfId": "00"}, "one letter and a number, for example n0"),
        ({"dLegerSelfId": "n3"}, "this member, dLegerSelfId=n3, is not among them"),
        ({"dLegerPeers": "n0:10.0.0.1:20911"}, "is not id-host:port"),
        ({"dLegerPeers": "n1-10.0.0.1"}, "'10.0.0.1' is not host:port"),
        ({"dLegerPeers": "n1-a:1;n1-b:1"}, "the same id twice"),
        ({"dLegerPeers": "n1-a:1;n2-a:1"}, "the same address twice"),
        ({"dLegerPeers": "n1-a:1;"}, "is not id-host:port"),
        ({"dLegerGroup": ""}, "enableDLegerCommitLog=true needs it"),
    ],
)
def test_invalid_dledger_settings_are_refused(changes: dict[str, str], reason: str) -> None:
    assert reason in fault(DLEDGER | changes)


@pytest.mark.parametrize("name", ["dLegerGroup", "dLegerPeers", "dLegerSelfId"])
def test_dledger_needs_group_peers_and_self_id(name: str) -> None:
    without = {key: text for key, text in DLEDGER.items() if key != name}
    assert fault(without).startswith(f"{name} is not set: ")


def test_a_dledger_peer_may_have_an_ipv6_host() -> None:
    (peer,) = parse_dledger_peers("n0-[2001:db8::1]:20911")
    assert peer == DLedgerPeer("n0", "2001:db8::1", 20911)
    assert peer.address == "[2001:db8::1]:20911"


def test_batch_push_has_two_spellings() -> None:
    assert loaded({"enableBatchPush": "true"}).store.is_enable_batch_push
    assert loaded({"isEnableBatchPush": "true"}).store.is_enable_batch_push
    assert notes({"enableBatchPush": "true"}) == []
    assert "Java 4.9.7 reads only enableBatchPush" in notes({"isEnableBatchPush": "true"})[0]


def test_settings_are_printed_in_javas_format() -> None:
    lines = effective_lines(loaded({"deleteWhen": "4", "brokerRole": "SYNC_MASTER"}))
    assert "deleteWhen=04" in lines
    assert "brokerRole=SYNC_MASTER" in lines
    assert "messageStorePlugIn=" in lines
    assert "autoCreateTopicEnable=true" in lines
    absent = ("dLegerGroup", "namesrvAddr", "brokerIP1")
    assert not [line for line in lines if line.startswith(absent)]
    assert len(lines) == len({line.partition("=")[0] for line in lines})


def test_a_written_configuration_can_be_loaded(tmp_path: Path) -> None:
    configuration = loaded(DLEDGER | {"brokerName": " a\\b=ü", "bindAddress": "::1"})
    path = write(tmp_path, configuration_text(configuration))
    result = load_broker_configuration(path, {}, {})
    reloaded = result.configuration
    assert effective_lines(reloaded) == effective_lines(configuration)
    assert reloaded == configuration
    assert "fromElsewhere=1\n" in configuration_text(configuration, {"fromElsewhere": "1"})


def test_update_changes_all_or_nothing() -> None:
    configuration = loaded({})
    changed = updated_configuration(
        configuration, {"flushDelayOffsetInterval": "9000", "brokerPermission": "4", "unknown": "1"}
    )
    assert changed.store.flush_delay_offset_interval == 9000
    assert changed.broker.broker_permission == 4
    assert configuration.store.flush_delay_offset_interval == 10000
    with pytest.raises(RequestRejectedError, match="brokerPermission='many'") as refused:
        updated_configuration(configuration, {"fileReservedTime": "1", "brokerPermission": "many"})
    assert refused.value.code == 1


@pytest.mark.parametrize("name", ["rocketmqHome", "storePathRootDir", "filterServerNums"])
def test_update_refuses_paths_and_access(name: str) -> None:
    with pytest.raises(RequestRejectedError, match=name) as refused:
        updated_configuration(loaded({}), {"brokerPermission": "4", name: "x"})
    assert refused.value.code == 16


def test_the_configuration_of_a_name_server_is_loaded_and_updated(tmp_path: Path) -> None:
    path = write(tmp_path, "orderMessageEnable=true\nclientWorkerThreads=1\n")
    result = load_namesrv_configuration(path, {"bindAddress": "0.0.0.0"}, PLAIN)
    configuration = result.configuration
    assert configuration.namesrv.order_message_enable
    assert configuration.server.listen_port == 9876
    assert configuration.bind_address == "0.0.0.0"
    assert configuration.namesrv.kv_config_path == "/home/mq/namesrv/kvConfig.json"
    assert configuration.namesrv.config_store_path == str(path)
    assert result.notes == [f"{path}:2: clientWorkerThreads is unknown and ignored"]
    changed = updated_configuration(configuration, {"orderMessageEnable": "false"})
    assert isinstance(changed, NamesrvConfiguration)
    assert not changed.namesrv.order_message_enable
    with pytest.raises(RequestRejectedError):
        updated_configuration(configuration, {"kvConfigPath": "/etc/x"})


def test_a_name_server_has_defaults() -> None:
    result = load_namesrv_configuration(None, {"listenPort": "26876"}, PLAIN)
    assert result.configuration.server.listen_port == 26876
    assert result.configuration.bind_address == "127.0.0.1"
    assert result.configuration.namesrv.config_store_path == "/home/mq/namesrv/namesrv.properties"
    assert [note.split(",")[0] for note in result.notes] == ["listening on 127.0.0.1 only"]


def test_whoever_only_reads_a_store_may_have_the_settings_that_a_broker_refuses(
    tmp_path: Path,
) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(
        f"brokerName=b\nstorePathRootDir={tmp_path}\nenableControllerMode=true\n"
        "storeType=defaultRocksDB\nmappedFileSizeCommitLog=65536\n"
    )
    with pytest.raises(ConfigError, match="enableControllerMode"):
        load_broker_configuration(conf)
    assert load_store_settings(conf).mapped_file_size_commit_log == 65536
    conf.write_text(conf.read_text() + "flushDiskType=NONE\n")
    with pytest.raises(ConfigError, match="flushDiskType"):
        load_store_settings(conf)
