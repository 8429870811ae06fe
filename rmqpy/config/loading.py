"""The settings of brokers and name servers: reading, checking, and printing them in Java's form.

The tables of keys are in :mod:`rmqpy.config.broker`, ``store``, ``dledger``, ``remoting`` and
``security``; no range or default is repeated here. A value has these sources, of which a later one
overrides an earlier one:

=====================  =============================================================================
the table's default    as in Java 4.9.7; ``storePathRootDir`` and the name server's files are in
                       ``HOME``
the environment        ``NAMESRV_ADDR``, ``ROCKETMQ_HOME``; ``HOSTNAME`` for ``brokerName``
the file               ``key=value`` lines (properties_file.py); the last line of a key counts
the command line       overrides
=====================  =============================================================================

A wrong value raises a :class:`ConfigError` that names source, key, value and the allowed values
(Java silently uses its default). Harmless oddities are reported as notes: unknown keys, keys
without effect, values that Java would not use.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import attrs
from attrs import field

from rmqpy.config.broker import NOT_NAMED, BrokerSettings
from rmqpy.config.dledger import DLedgerSettings
from rmqpy.config.keys import (
    BrokerRole,
    DLedgerPeer,
    Effect,
    FlushDiskType,
    KeyFacts,
    config_fault,
    is_dledger_id,
    key_facts,
    parse_dledger_peers,
    printed,
)
from rmqpy.config.properties_file import (
    decode_properties_bytes,
    format_properties,
    parse_properties,
)
from rmqpy.config.remoting import NamesrvSettings, RemotingSettings, ServerSettings
from rmqpy.config.secure_profile import secure_additions
from rmqpy.config.security import SecurityMode, SecuritySettings
from rmqpy.config.store import MEMORY_STORE, StoreSettings
from rmqpy.model.codes import ResponseCode
from rmqpy.model.errors import ConfigError, RequestRejectedError
from rmqpy.model.ids import MASTER_ID
from rmqpy.model.near_names import did_you_mean
from rmqpy.model.os_errors import sentence_of
from rmqpy.model.values import define

__all__ = [
    "BrokerConfiguration",
    "BrokerRole",
    "BrokerSettings",
    "DLedgerPeer",
    "DLedgerSettings",
    "FlushDiskType",
    "LoadedConfiguration",
    "LoadedNamesrvConfiguration",
    "NamesrvConfiguration",
    "NamesrvSettings",
    "RemotingSettings",
    "SecuritySettings",
    "ServerSettings",
    "StoreSettings",
    "configuration_text",
    "effective_lines",
    "load_broker_configuration",
    "load_namesrv_configuration",
    "load_settings_of_any_broker",
    "load_shard_configuration",
    "parse_broker_configuration",
    "updated_configuration",
]

LOOPBACK = "127.0.0.1"
NAMESRV_PORT = 9876
HIDDEN = "******"
"""The text that replaces a secret in any output."""
ELECTED_ID = -1
"""The brokerId of a DLedger member until its group has elected a leader."""


@define(frozen=True, kw_only=True, repr=False)
class BrokerConfiguration:
    """All settings of a broker."""

    broker: BrokerSettings = field(factory=BrokerSettings)
    remoting: RemotingSettings = field(factory=RemotingSettings)
    store: StoreSettings = field(factory=StoreSettings)
    dledger: DLedgerSettings = field(factory=DLedgerSettings)
    security: SecuritySettings = field(factory=SecuritySettings)


@define(frozen=True, kw_only=True, repr=False)
class NamesrvConfiguration:
    """All settings of a name server."""

    namesrv: NamesrvSettings = field(factory=NamesrvSettings)
    server: ServerSettings = field(factory=lambda: ServerSettings(listen_port=NAMESRV_PORT))
    security: SecuritySettings = field(factory=SecuritySettings)

    @property
    def bind_address(self) -> str:
        """The address to listen on: ``bindAddress``, or loopback if it is not set."""
        return self.server.bind_address or LOOPBACK


@define(frozen=True, repr=False)
class LoadedConfiguration:
    """A broker's settings, and notes for the operator about their sources.

    ``unknown`` contains the unknown keys of the file, which are kept when the file is rewritten.
    ``path`` is the path of the file to which changes are written, or None if there is none;
    ``shared`` are the values that are not written to it, because they come from elsewhere.
    """

    configuration: BrokerConfiguration
    notes: list[str]
    unknown: dict[str, str] = field(factory=dict)
    path: str | None = None
    shared: Mapping[str, str] = field(factory=dict)


@define(frozen=True, repr=False)
class LoadedNamesrvConfiguration:
    """A name server's settings, and notes for the operator about their sources."""

    configuration: NamesrvConfiguration
    notes: list[str]
    unknown: dict[str, str] = field(factory=dict)


def load_broker_configuration(
    path: str | Path | None,
    overrides: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> LoadedConfiguration:
    """Load a broker's settings from a file (None: no file), command line and environment."""
    reading = _Reading(BrokerConfiguration())
    reading.take_file(path)
    reading.take_overrides(overrides or {})
    where = str(path) if path is not None else None
    return _loaded_broker(reading, where, environment or {})


def load_store_settings(
    path: str | Path, environment: Mapping[str, str] | None = None
) -> StoreSettings:
    """Load the paths and sizes of a store for a tool that reads it
    (:func:`load_settings_of_any_broker`).
    """
    return load_settings_of_any_broker(path, environment).configuration.store


def load_settings_of_any_broker(
    path: str | Path, environment: Mapping[str, str] | None = None
) -> LoadedConfiguration:
    """Load the settings of a broker, rmqpy's or Java's, for a tool that only reads its store.

    Such a tool need not do what the broker does: settings that rmqpy's broker refuses, such as
    ``enableControllerMode``, are accepted.
    """
    reading = _Reading(BrokerConfiguration(), refuses=False)
    reading.take_file(path)
    return _loaded_broker(reading, str(path), environment or {})


def load_shard_configuration(
    path: str | Path | None,
    changes_path: str,
    overrides: Mapping[str, str],
    environment: Mapping[str, str],
) -> LoadedConfiguration:
    """Load the settings of one of several brokers with a common file. The file at ``changes_path``,
    if it exists, has the settings that were changed while this broker ran.
    """
    shared = load_broker_configuration(path, overrides, environment)
    reading = _Reading(BrokerConfiguration())
    reading.take_file(path)
    if Path(changes_path).exists():
        reading.take_file(changes_path)
    reading.take_overrides(overrides)
    loaded = _loaded_broker(reading, changes_path, environment)
    return attrs.evolve(loaded, unknown={}, shared=effective_values(shared.configuration))


def parse_broker_configuration(
    text: str, path: str, environment: Mapping[str, str] | None = None
) -> LoadedConfiguration:
    """Return what :func:`load_broker_configuration` would, if ``path`` had the content ``text``."""
    reading = _Reading(BrokerConfiguration())
    reading.take_text(path, text)
    return _loaded_broker(reading, path, environment or {})


def _loaded_broker(
    reading: _Reading, path: str | None, environment: Mapping[str, str]
) -> LoadedConfiguration:
    reading.take_absent("namesrvAddr", environment, "NAMESRV_ADDR")
    reading.take_absent("rocketmqHome", environment, "ROCKETMQ_HOME")
    reading.name_the_broker(environment)
    reading.place_below_home("storePathRootDir", "store", environment)
    reading.secure()
    configuration = reading.built()
    configuration = _with_broker_rules(configuration, reading)
    security = configuration.security
    if (
        security.security_mode is SecurityMode.SECURE
        and security.inner_client_authentication_credentials is None
    ):
        raise ConfigError(
            "securityMode=secure: set innerClientAuthenticationCredentials, the account that this "
            "broker signs its registrations and its requests to masters with "
            "(docs/reference/security.md)"
        )
    reading.note_what_has_no_effect()
    if not configuration.remoting.bind_address and not configuration.broker.broker_ip1:
        reading.note_loopback("brokerIP1 and bindAddress are absent")
    return LoadedConfiguration(configuration, reading.notes, reading.unknown, path)


def load_namesrv_configuration(
    path: str | Path | None,
    overrides: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> LoadedNamesrvConfiguration:
    """Load a name server's settings from a file (None: no file), command line and environment."""
    environment = environment or {}
    reading = _Reading(NamesrvConfiguration())
    reading.take_file(path)
    reading.take_overrides(overrides or {})
    reading.take_absent("rocketmqHome", environment, "ROCKETMQ_HOME")
    reading.place_below_home("kvConfigPath", "namesrv/kvConfig.json", environment)
    if path is not None:
        reading.values.setdefault("configStorePath", str(path))
    reading.place_below_home("configStorePath", "namesrv/namesrv.properties", environment)
    reading.secure()
    configuration = reading.built()
    reading.note_what_has_no_effect()
    if not configuration.server.bind_address:
        reading.note_loopback("bindAddress is absent")
    return LoadedNamesrvConfiguration(configuration, reading.notes, reading.unknown)


C = TypeVar("C", BrokerConfiguration, NamesrvConfiguration)


_NEVER_BY_REQUEST = re.compile(
    "path|dir|file|home|addr|ip[0-9]|port|name|role|acl|auth|access|secret|password|credential|tls|"
    "list|plugin|class|command|script|shell|filterserver",
    re.IGNORECASE,
)


def updated_configuration(configuration: C, changes: Mapping[str, str]) -> C:
    """Return ``configuration`` with all changes of an admin request.

    Raises RequestRejectedError if a key may not be changed at run time or a value is wrong. Unknown
    keys are ignored, as in Java, unless their name suggests a setting that no request may ever
    change.
    """
    facts = _all_facts(configuration)
    reading = _Reading(configuration)
    for name in changes:
        if name in facts and not facts[name].runtime:
            raise RequestRejectedError(
                ResponseCode.NO_PERMISSION,
                f"{name} can only be changed in the configuration file, followed by a restart",
            )
        if name not in facts and _NEVER_BY_REQUEST.search(name):
            raise RequestRejectedError(
                ResponseCode.NO_PERMISSION, f"{name[:128]} cannot be changed by requests"
            )
    try:
        for name, text in changes.items():
            if name in facts:
                reading.take("request", name, text)
    except ConfigError as fault:
        raise RequestRejectedError(ResponseCode.SYSTEM_ERROR, str(fault)) from None
    return attrs.evolve(
        configuration,
        **{
            part: attrs.evolve(settings, **reading.changes_of(type(settings)))
            for part, settings in _parts(configuration).items()
        },
    )


def effective_values(configuration: BrokerConfiguration | NamesrvConfiguration) -> dict[str, str]:
    """Return a map from key to text of every setting that is not null, including secrets."""
    values: dict[str, str] = {}
    for settings in _parts(configuration).values():
        values.update(printed(settings))
    return values


def effective_lines(configuration: BrokerConfiguration | NamesrvConfiguration) -> list[str]:
    """Return ``key=value`` lines as Java prints them: unescaped, without the keys that have no
    value, and with secrets replaced by HIDDEN.
    """
    facts = _all_facts(configuration)
    return [
        f"{name}={HIDDEN if facts[name].secret else text}"
        for name, text in effective_values(configuration).items()
    ]


def configuration_text(
    configuration: BrokerConfiguration | NamesrvConfiguration,
    unknown: Mapping[str, str] | None = None,
    shared: Mapping[str, str] | None = None,
) -> str:
    """Return the content of a file that is loaded as ``configuration`` again, with the ``unknown``
    keys of the original file, and without the values that are ``shared`` with another file.
    """
    own = {**(unknown or {}), **effective_values(configuration)}
    known = shared or {}
    return format_properties({key: text for key, text in own.items() if known.get(key) != text})


# ------------------------------------------------------------------------ names that are not keys

_FORMER_NAMES = {
    "mapedFileSizeCommitLog": "mappedFileSizeCommitLog",
    "mapedFileSizeConsumeQueue": "mappedFileSizeConsumeQueue",
}
"""Former names of keys, which are in many old files. Java 4.9.7 and rmqpy ignore them and use the
default.
"""

_OTHER_SPELLINGS = {"enableBatchPush": "isEnableBatchPush"}
"""The name of a key in a file, and the name under which it is printed: in Java the setter and the
field have different names.
"""

_ADDRESS_SERVER_NAMES = ("rmqAddressServerDomain", "rmqAddressServerSubGroup")
"""Keys of fetchNamesrvAddrByAddressServer, which Java copies to its system properties."""


class _Reading:
    """One pass over the sources. It collects typed values by key, the source of each, and notes."""

    def __init__(
        self, base: BrokerConfiguration | NamesrvConfiguration, *, refuses: bool = True
    ) -> None:
        self._base = base
        self.refuses = refuses
        self._facts = _all_facts(base)
        self.values: dict[str, Any] = {}
        self.notes: list[str] = []
        self.unknown: dict[str, str] = {}
        self._texts: dict[str, str] = {}
        self._where: dict[str, str] = {}
        self._file = ""
        """The begin of an error about a key that the configuration file does not set."""

    def take_file(self, path: str | Path | None) -> None:
        if path is None:
            return
        try:
            raw = Path(path).read_bytes()
        except OSError as error:
            raise ConfigError(
                f"the configuration file cannot be read: {sentence_of(error)}"
            ) from error
        self.take_text(str(path), decode_properties_bytes(raw))

    def take_text(self, path: str, text: str) -> None:
        """Process the content of a file."""
        self._file = f"{path}: "
        seen: dict[str, int] = {}
        for item in parse_properties(text, path):
            if item.key in seen:
                self.notes.append(
                    f"{path}:{item.line}: {item.key} was already set in line {seen[item.key]};"
                    " this line overrides it"
                )
            seen[item.key] = item.line
            self.take(f"{path}:{item.line}", item.key, item.value)

    def take_overrides(self, overrides: Mapping[str, str]) -> None:
        for name, text in overrides.items():
            self.take("command line", name, text)

    def take(self, where: str, name: str, text: str) -> None:
        """Process one assignment. ``name`` may be unknown."""
        if name in _FORMER_NAMES:
            new_name = _FORMER_NAMES[name]
            self.notes.append(
                f"{where}: {name} is the former name of {new_name} and is not used (nor by Java "
                "4.9.7);"
                f" write {new_name}={text} if the files of the store have that size"
            )
            return
        if name in _ADDRESS_SERVER_NAMES:
            self.notes.append(f"{where}: {name} has no effect: rmqpy uses no address server")
            return
        if name == "isEnableBatchPush" and text.lower() == "true":
            self.notes.append(f"{where}: {name} is set, but Java 4.9.7 reads only enableBatchPush")
        name = _OTHER_SPELLINGS.get(name, name)
        if name not in self._facts:
            self.notes.append(
                f"{where}: {name} is unknown and ignored{did_you_mean(name, self._facts)}"
            )
            self.unknown[name] = text
            return
        self._where[name], self._texts[name] = where, text
        self.values[name] = self._parsed(where, self._facts[name], text)

    def take_absent(self, name: str, environment: Mapping[str, str], variable: str) -> None:
        """Set a key that is not set yet from an environment variable, if it is set."""
        if name not in self.values and environment.get(variable):
            self.take(f"environment {variable}", name, environment[variable])

    def name_the_broker(self, environment: Mapping[str, str]) -> None:
        if self.values.get("brokerName"):
            return
        name = environment.get("HOSTNAME") or NOT_NAMED
        self.values["brokerName"] = name
        self.notes.append(
            f"brokerName is not set: using {name}; set it, because slaves and routes depend on the"
            " name"
        )

    def place_below_home(self, name: str, relative: str, environment: Mapping[str, str]) -> None:
        if self.values.get(name):
            return
        home = environment.get("HOME")
        if not home:
            raise ConfigError(f"{name} has no default because HOME is not set; set {name}")
        self.values[name] = str(Path(home) / relative)

    def secure(self) -> None:
        """Add the settings that ``securityMode=secure`` implies, if it is set."""
        if self.values.get("securityMode") is SecurityMode.SECURE:
            for name, text in secure_additions(self._texts, set(self._facts)).items():
                self.take("securityMode=secure", name, text)

    def built(self) -> Any:
        """Return the configuration of the values read so far."""
        return type(self._base)(
            **{
                part: type(settings)(**self._defaults_of(part), **self.changes_of(type(settings)))
                for part, settings in _parts(self._base).items()
            }
        )

    def changes_of(self, settings: type[Any]) -> dict[str, Any]:
        """Return the values that belong to one settings class, by attribute."""
        return {
            facts.attribute: self.values[name]
            for name, facts in key_facts(settings).items()
            if name in self.values
        }

    def fault(self, name: str, reason: str, allowed: str) -> ConfigError:
        """Return the error of a value that contradicts other keys."""
        if name not in self._texts:
            return ConfigError(f"{self._file}{name} is not set: {reason}; allowed: {allowed}")
        return config_fault(self._where[name], name, self._texts[name], reason, allowed)

    def is_set(self, name: str) -> bool:
        return name in self._texts

    def where(self, name: str) -> str:
        return self._where[name]

    def note_what_has_no_effect(self) -> None:
        """Add one note for all thread pools, and one for each other key without effect."""
        set_here = [
            self._facts[name]
            for name in self._texts
            if not self._where[name].startswith("environment")
        ]
        threads = sorted(facts.name for facts in set_here if facts.effect is Effect.THREADS)
        if threads:
            self.notes.append(
                "accepted without effect, because they size threads, queues and buffers of the "
                "Java program: " + ", ".join(threads)
            )
        later = sorted(facts.name for facts in set_here if facts.effect is Effect.LATER)
        if later:
            self.notes.append("without effect in this version: " + ", ".join(later))
        for facts in set_here:
            if facts.effect is Effect.ACCEPTED and self.values[facts.name] != facts.default:
                self.notes.append(
                    f"{self._where[facts.name]}: {facts.name}={self._texts[facts.name]} is accepted"
                    f" without effect: {facts.doc}"
                )

    def note_loopback(self, because: str) -> None:
        self.notes.append(
            f"listening on {LOOPBACK} only, because {because}; set bindAddress=0.0.0.0 to listen on"
            " all addresses, as Java does"
        )

    def _defaults_of(self, part: str) -> dict[str, Any]:
        if part == "server" and "listenPort" not in self.values:
            return {"listen_port": NAMESRV_PORT}
        return {}

    def _parsed(self, where: str, facts: KeyFacts, text: str) -> Any:
        trimmed = text.strip() if facts.kind.trims else text
        if trimmed != text:
            self.notes.append(
                f"{where}: white space around the value of {facts.name} is ignored"
                " (Java 4.9.7 would use its default)"
            )
        try:
            value = facts.kind.parse(trimmed)
        except ValueError as error:
            allowed = facts.kind.allowed + (f" ({facts.unit})" if facts.unit else "")
            raise config_fault(where, facts.name, text, str(error), allowed) from None
        if facts.effect is Effect.REFUSED and value != facts.default and self.refuses:
            allowed = "nothing" if facts.default in ("", None) else facts.kind.print(facts.default)
            raise config_fault(where, facts.name, text, facts.doc.rstrip("."), allowed)
        if facts.clamp is not None and facts.clamp(value) != value:
            self.notes.append(
                f"{where}: {facts.name}={text} is clamped to {facts.clamp(value)}, as in Java"
            )
            value = facts.clamp(value)
        return value


# ------------------------------------------------------------------------ rules between keys


def _with_broker_rules(
    configuration: BrokerConfiguration, reading: _Reading
) -> BrokerConfiguration:
    store = configuration.store
    port = configuration.remoting.listen_port
    if reading.is_set("haListenPort") and store.ha_listen_port != port + 1:
        reading.notes.append(
            f"{reading.where('haListenPort')}: haListenPort={store.ha_listen_port} is not used: "
            f"the replication port is always listenPort + 1, here {port + 1} (as in Java 4.9.7)"
        )
    store = attrs.evolve(store, ha_listen_port=port + 1)
    _note_in_sync_replicas(store, reading)
    _check_store_type(store, reading)
    if store.enable_dledger_commit_log:
        _check_dledger(store, reading)
        broker_id = ELECTED_ID
    else:
        broker_id = _classic_broker_id(configuration, reading)
    broker = attrs.evolve(configuration.broker, broker_id=broker_id)
    return attrs.evolve(configuration, broker=broker, store=store)


def _check_store_type(store: StoreSettings, reading: _Reading) -> None:
    """Refuse a type of store that a broker cannot open, or that would break its promises."""
    if store.store_type == "defaultRocksDB" and reading.refuses:
        raise reading.fault(
            "storeType",
            "From 5.x: consume queues and tables in RocksDB; rmqpy does not read them",
            "default, MEMORY",
        )
    if store.store_type == MEMORY_STORE:
        if store.enable_dledger_commit_log:
            raise reading.fault(
                "storeType",
                "a member of a DLedger group that forgets its entries and its vote breaks the"
                " promises of the group",
                "default",
            )
        reading.notes.append(
            f"{reading.where('storeType')}: storeType=MEMORY: nothing survives the end of this"
            " broker: no message, topic, group, or offset; storePathRootDir is not used"
        )


def _note_in_sync_replicas(store: StoreSettings, reading: _Reading) -> None:
    """Add a note if ``inSyncReplicas`` does not do what its name suggests."""
    if not reading.is_set("inSyncReplicas"):
        return
    found = f"{reading.where('inSyncReplicas')}: inSyncReplicas={store.in_sync_replicas}"
    if store.enable_dledger_commit_log:
        reading.notes.append(f"{found} has no effect: a DLedger group waits for its majority")
    elif store.broker_role is BrokerRole.ASYNC_MASTER:
        reading.notes.append(f"{found} has no effect without brokerRole=SYNC_MASTER")
    elif store.broker_role is BrokerRole.SYNC_MASTER and store.replicas_required == 1:
        reading.notes.append(
            f"{found} counts the master, as in Java 5.x: sends wait for no slave, although"
            " brokerRole=SYNC_MASTER; set 2 to wait for one"
        )


def _classic_broker_id(configuration: BrokerConfiguration, reading: _Reading) -> int:
    broker_id = configuration.broker.broker_id
    if configuration.store.broker_role is BrokerRole.SLAVE:
        if broker_id <= MASTER_ID:
            raise reading.fault("brokerId", "a slave needs its own id", "a number above 0")
        return broker_id
    if broker_id != MASTER_ID:
        reading.notes.append(
            f"{reading.where('brokerId')}: brokerId={broker_id} is not used: a master has id 0"
        )
    return MASTER_ID


def _check_dledger(store: StoreSettings, reading: _Reading) -> None:
    if not store.dledger_group:
        raise reading.fault("dLegerGroup", "enableDLegerCommitLog=true needs it", "a name")
    self_id = store.dledger_self_id or ""
    if not is_dledger_id(self_id):
        raise reading.fault(
            "dLegerSelfId",
            "enableDLegerCommitLog=true needs an id whose number gives the broker id",
            "one letter and a number, for example n0; before the first start, rename the member in "
            "dLegerPeers of all members too",
        )
    syntax = "id-host:port of every member, separated by ;"
    try:
        peers = parse_dledger_peers(store.dledger_peers or "")
    except ValueError as error:
        raise reading.fault("dLegerPeers", str(error), syntax) from None
    if self_id not in [peer.peer_id for peer in peers]:
        raise reading.fault(
            "dLegerPeers", f"this member, dLegerSelfId={self_id}, is not among them", syntax
        )


def _parts(configuration: BrokerConfiguration | NamesrvConfiguration) -> dict[str, Any]:
    return {
        part.name: getattr(configuration, part.name) for part in attrs.fields(type(configuration))
    }


def _all_facts(configuration: BrokerConfiguration | NamesrvConfiguration) -> dict[str, KeyFacts]:
    facts: dict[str, KeyFacts] = {}
    for settings in _parts(configuration).values():
        own = key_facts(type(settings))
        assert facts.keys().isdisjoint(own), facts.keys() & own.keys()
        facts.update(own)
    return facts
