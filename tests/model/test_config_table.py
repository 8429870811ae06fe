"""The table of configuration keys, compared with Java 4.9.7.

java_defaults_497.json has each field of Java's five configuration classes with its type, its
default (null, or "<machine>" where it depends on the host; thread pools as on 2 processors) and the
type of its setter. recorded_config_497.json has the answers of a Java broker and a name server to
the admin tool's getBrokerConfig and getNamesrvConfig.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from pathlib import Path
from typing import TypedDict

import pytest

import rmqpy
from rmqpy.config.keys import Effect, KeyFacts, key_facts
from rmqpy.config.loading import (
    BrokerSettings,
    DLedgerSettings,
    NamesrvConfiguration,
    NamesrvSettings,
    RemotingSettings,
    SecuritySettings,
    StoreSettings,
    effective_values,
    load_broker_configuration,
)
from rmqpy.config.reference_page import configuration_page

HERE = Path(__file__).parent


class JavaField(TypedDict):
    """A field of a Java class in java_defaults_497.json."""

    type: str
    default: str | None
    setter: str | None


JAVA: dict[str, dict[str, JavaField]] = json.loads((HERE / "java_defaults_497.json").read_text())
RECORDED: dict[str, dict[str, str]] = json.loads((HERE / "recorded_config_497.json").read_text())
CLASSES = {
    "BrokerConfig": BrokerSettings,
    "MessageStoreConfig": StoreSettings,
    "NettyServerConfig": RemotingSettings,
    "NettyClientConfig": RemotingSettings,
    "NamesrvConfig": NamesrvSettings,
}
OURS = {
    "brokerName": "DEFAULT_BROKER",  # Java uses the host name, and this without one.
    "brokerIP1": None,  # The broker determines it at start.
    "brokerIP2": None,
    "storePathRootDir": "store",  # After loading, it is in the home folder.
    "kvConfigPath": "namesrv/kvConfig.json",
    "configStorePath": "namesrv/namesrv.properties",
    "listenPort": "10911",  # Java's class has 8888, its main programs 10911 and 9876.
}
SPELLINGS = {
    "brokerIP1": "broker_ip1",
    "brokerIP2": "broker_ip2",
    "storePathDLedgerCommitLog": "store_path_dledger_commit_log",
    "enableDLegerCommitLog": "enable_dledger_commit_log",
    "dLegerGroup": "dledger_group",
    "dLegerPeers": "dledger_peers",
    "dLegerSelfId": "dledger_self_id",
    "checkCRCOnRecover": "check_crc_on_recover",
    "useTLS": "use_tls",
}
FROM_5 = {
    "diskSpaceWarningLevelRatio",
    "diskSpaceCleanForciblyRatio",
    "enabledAppendPropCRC",
    "forceVerifyPropCRC",
    "inSyncReplicas",
    "minInSyncReplicas",
    "enableAutoInSyncReplicas",
    "storeType",
    "enableControllerMode",
    "enableSlaveActingMaster",
    "brokerConfigPaths",
    "storePathEpochFile",
    "storePathBrokerIdentity",
}
JAVA_KEYS = [(owner, name) for owner, fields in JAVA.items() for name in fields]


def default_text(facts: KeyFacts) -> str | None:
    return None if facts.default is None else facts.kind.print(facts.default)


OWN_STORE_KEYS = (
    "haFetchFromBeginning",
    "haServeEntries",
    "rmqpyAcceptUnreadData",
    "rmqpyAcceptUnverifiedPeers",
    "rmqpyCertificate",
    "rmqpyCertificateKey",
    "rmqpyGroupSecret",
    "rmqpyGroupSecretFile",
    "rmqpyPutMessageHooks",
    "rmqpyRefuseBlockingLeave",
)
OWN_SERVER_KEYS = (
    "namesrvAclEnable",
    "registrationAddresses",
    "administrationAddresses",
    "maxConnections",
    "frameHeaderTimeoutMillis",
    "frameTimeoutMillis",
    "metricsListenAddress",
)


@pytest.mark.parametrize(("owner", "name"), JAVA_KEYS, ids=lambda part: part)
def test_type_and_default_of_a_key_are_javas(owner: str, name: str) -> None:
    java = JAVA[owner][name]
    facts = key_facts(CLASSES[owner])[name]
    assert facts.kind.java_type == java["type"]
    assert default_text(facts) == OURS.get(name, java["default"])


def test_all_other_keys_are_known_to_be_our_own() -> None:
    ours = {name for settings in set(CLASSES.values()) for name in key_facts(settings)}
    own = {"bindAddress", *OWN_STORE_KEYS, *OWN_SERVER_KEYS}
    assert ours - {name for _, name in JAVA_KEYS} == {*own, *FROM_5}


@pytest.mark.parametrize("settings", [*dict.fromkeys(CLASSES.values())])
def test_attributes_are_the_keys_in_snake_case(settings: type) -> None:
    for name, facts in key_facts(settings).items():
        snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
        assert facts.attribute == SPELLINGS.get(name, snake)


def test_a_recorded_broker_configuration_is_loaded_and_printed() -> None:
    recorded = RECORDED["getBrokerConfig"]
    assert len(recorded) == 178
    loaded = load_broker_configuration(None, recorded, {})
    # Java also returns unknown keys of its file; the recorded file had one.
    assert loaded.unknown == {"registerBrokerPeriod": "10000"}
    printed = {**effective_values(loaded.configuration), **loaded.unknown}
    assert {name: printed.pop(name) for name in OWN_STORE_KEYS if name in printed} == {
        "haFetchFromBeginning": "false",
        "haServeEntries": "false",
        "rmqpyAcceptUnreadData": "false",
        "rmqpyAcceptUnverifiedPeers": "false",
        "rmqpyRefuseBlockingLeave": "false",
    }
    more = {*FROM_5, *OWN_SERVER_KEYS}
    more |= key_facts(DLedgerSettings).keys() | key_facts(SecuritySettings).keys()
    assert {name: value for name, value in printed.items() if name not in more} == recorded


def test_a_recorded_name_server_configuration_has_our_keys() -> None:
    configuration = NamesrvConfiguration()
    expected = dict(RECORDED["getNamesrvConfig"])
    printed = effective_values(configuration)
    for name in {*OWN_SERVER_KEYS} | key_facts(SecuritySettings).keys():
        printed.pop(name, None)
    assert printed.keys() | {"rocketmqHome"} == expected.keys()
    for placed in ("rocketmqHome", "kvConfigPath", "configStorePath", "listenPort"):
        expected.pop(placed)
        printed.pop(placed, None)
    assert printed == expected


def test_each_key_has_a_description() -> None:
    for settings in set(CLASSES.values()):
        for facts in key_facts(settings).values():
            assert facts.doc.endswith("."), facts.name
            assert "|" not in facts.doc


def test_keys_that_requests_may_change_are_no_path_address_or_role() -> None:
    live = {
        name
        for settings in set(CLASSES.values())
        for name, facts in key_facts(settings).items()
        if facts.runtime
    }
    never = re.compile(r"Path|Dir|Addr|IP[12]|Home|Role|acl|TLS|Id$|DLeger|PlugIn|Port")
    assert not [name for name in live if never.search(name)]
    assert {"flushDelayOffsetInterval", "brokerPermission", "maxMessageSize"} <= live


def test_the_reference_page_is_current() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "configuration.md"
    assert page.read_text(encoding="utf-8") == configuration_page(), (
        "run: python -m rmqpy.config.reference_page > docs/reference/configuration.md"
    )


SETTINGS: tuple[type, ...] = (
    BrokerSettings,
    StoreSettings,
    DLedgerSettings,
    RemotingSettings,
    NamesrvSettings,
    SecuritySettings,
)


def _attributes_read() -> set[str]:
    """Return the names of attributes that a module other than the tables reads.

    A property of the settings that is read counts for the attributes that it reads.
    """
    tables = {Path(inspect.getfile(settings)) for settings in SETTINGS}
    outside: set[str] = set()
    properties: dict[str, set[str]] = {}
    for path in Path(rmqpy.__file__).parent.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if path in tables:
            for function in ast.walk(tree):
                if isinstance(function, ast.FunctionDef):
                    properties[function.name] = _read_in(function)
        else:
            outside |= _read_in(tree)
    return outside.union(*(read for name, read in properties.items() if name in outside))


def _read_in(tree: ast.AST) -> set[str]:
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


@pytest.mark.slow
def test_a_key_is_documented_as_used_if_and_only_if_it_is_read() -> None:
    read = _attributes_read()
    shown_only = {Effect.THREADS}
    wrong = [
        f"{facts.name}: {facts.effect.value}, {'read' if facts.attribute in read else 'not read'}"
        for settings in SETTINGS
        for facts in key_facts(settings).values()
        if facts.effect not in shown_only | {Effect.REFUSED}
        and (facts.effect is Effect.USED) != (facts.attribute in read)
    ]
    assert wrong == []
