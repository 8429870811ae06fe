"""Checks of the broker.conf files, each alone and against the others.

They are made of the present files (``check``), and of the files that a step would write, before it
writes (:mod:`rmqpy.upgrade.steps.written_config`). A replica whose configuration was not passed is
skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from rmqpy.codec.layout import QUEUE_UNIT_SIZE
from rmqpy.codec.units import index_file_size
from rmqpy.config.keys import DLedgerPeer, is_dledger_id, parse_dledger_peers
from rmqpy.config.loading import BrokerRole, StoreSettings
from rmqpy.model.ids import MASTER_ID
from rmqpy.model.text import count_text
from rmqpy.upgrade.checks.controller_config import controller_flags
from rmqpy.upgrade.checks.findings import CheckFinding, Group, finding, note
from rmqpy.upgrade.plan.survey import SIZE_KEY, Survey

Surveys = Sequence[Survey]
ConfigCheck = Callable[[Surveys], Iterator[CheckFinding]]

FLAG = "enableDLegerCommitLog"
QUEUE_SIZE_KEY = "mappedFileSizeConsumeQueue"
INDEX_SIZE_KEYS = "maxHashSlotNum and maxIndexNum (bytes of an index file)"
DEFAULT_LISTEN_PORT = 10911
EPHEMERAL_START = 32768
EPHEMERAL_END = 60999


def _with_config(surveys: Surveys) -> list[Survey]:
    return [survey for survey in surveys if survey.config is not None]


def _is_on(survey: Survey) -> bool:
    return survey.setting(FLAG, "false").lower() == "true"


def config_shown(surveys: Surveys) -> Iterator[CheckFinding]:
    """Check that the configuration of every replica was passed."""
    for survey in surveys:
        if survey.config is None:
            yield note(
                "config-shown",
                survey.name,
                "its broker.conf was not passed: ids, ports, peers and sizes are not checked",
                "pass it with -c NAME=FILE",
            )


def same_sizes(surveys: Surveys) -> Iterator[CheckFinding]:
    """Check that files of the log, of queues, and of the index have one size on all nodes (H7)."""
    for key in (SIZE_KEY, QUEUE_SIZE_KEY, INDEX_SIZE_KEYS):
        values = {each.name: sizes[key] for each in surveys if key in (sizes := _sizes(each))}
        if len(set(values.values())) > 1:
            listed = ", ".join(f"{name}: {size}" for name, size in values.items())
            why = "; positions would never agree" if key == SIZE_KEY else ""
            yield finding(
                "same-sizes",
                "",
                f"{key} differs: {listed}{why}",
                f"set {key.partition(' (')[0]} on all nodes to what the files have",
            )


def _sizes(survey: Survey) -> dict[str, int]:
    """Return the sizes of the files of a replica, as configured, else as the files show."""
    facts = survey.manifest.facts
    sizes: dict[str, int] = {}
    if survey.spans or survey.config is not None:
        sizes[SIZE_KEY] = survey.file_size
    if survey.config is not None:
        return sizes | configured_sizes(survey.config)
    if facts.get("queue_file_size"):
        sizes[QUEUE_SIZE_KEY] = facts["queue_file_size"]
    if facts.get("index"):
        sizes[INDEX_SIZE_KEYS] = facts["index"][0]["bytes"]
    return sizes


def configured_sizes(config: Mapping[str, str]) -> dict[str, int]:
    """Return the sizes in bytes of a consume queue file and an index file in a broker.conf."""
    java = StoreSettings()
    queue = int(config.get(QUEUE_SIZE_KEY) or java.mapped_file_size_consume_queue)
    slots = int(config.get("maxHashSlotNum") or java.max_hash_slot_num)
    entries = int(config.get("maxIndexNum") or java.max_index_num)
    return {
        QUEUE_SIZE_KEY: -(-queue // QUEUE_UNIT_SIZE) * QUEUE_UNIT_SIZE,
        INDEX_SIZE_KEYS: index_file_size(slots, entries),
    }


def same_group(surveys: Surveys) -> Iterator[CheckFinding]:
    """Check that cluster, brokerName, dLegerGroup, and dLegerPeers do not differ (H19)."""
    for key in ("brokerClusterName", "brokerName", "dLegerGroup", "dLegerPeers"):
        values = {each.name: each.setting(key) for each in _with_config(surveys)}
        if key.startswith("dLeger"):
            values = {
                each.name: each.setting(key) for each in _with_config(surveys) if _is_on(each)
            }
        if len(set(values.values())) > 1:
            listed = ", ".join(f"{name}: {value or 'not set'}" for name, value in values.items())
            yield finding(
                "same-group", "", f"{key} differs: {listed}", f"set the same {key} on all nodes"
            )


def self_ids(surveys: Surveys) -> Iterator[CheckFinding]:
    """Check that every self id is a letter and a number, is in dLegerPeers, and is unique (H18)."""
    seen: dict[str, str] = {}
    for survey in _with_config(surveys):
        self_id = survey.setting("dLegerSelfId")
        if not self_id and not _is_on(survey):
            continue
        if not is_dledger_id(self_id):
            yield finding(
                "self-ids",
                survey.name,
                f"dLegerSelfId={self_id or '(not set)'}: Java takes the broker id from the number"
                " after its first letter, and does not start",
                "use one letter and a number, as n0, also in dLegerPeers of all members",
            )
        if self_id in seen:
            yield finding(
                "self-ids",
                survey.name,
                f"dLegerSelfId={self_id} is also that of {seen[self_id]}",
                "give every member a different id",
            )
        seen[self_id] = survey.name
        peers = survey.setting("dLegerPeers")
        if peers and self_id not in [part.partition("-")[0] for part in peers.split(";")]:
            yield finding(
                "self-ids", survey.name, f"{self_id} is not in dLegerPeers={peers}", "add it"
            )


def peers(surveys: Surveys) -> Iterator[CheckFinding]:
    """Check that dLegerPeers is valid, survives the loss of a member, and has free ports (H19)."""
    for survey in _with_config(surveys):
        text = survey.setting("dLegerPeers")
        if not text:
            continue
        try:
            found = parse_dledger_peers(text)
        except ValueError as error:
            yield finding(
                "peers", survey.name, f"dLegerPeers={text}: {error}", "write id-host:port;..."
            )
            continue
        if len(found) < 3 or len(found) % 2 == 0:
            yield note(
                "peers",
                survey.name,
                f"{count_text(len(found), 'member')}: the group stops without"
                f" {len(found) // 2 + 1} of them",
                "use three or five members",
            )
        yield from _address_findings(survey, found)
        yield from _port_findings(survey, found)


def _address_findings(survey: Survey, members: Sequence[DLedgerPeer]) -> Iterator[CheckFinding]:
    """Report addresses that other members cannot reach, whatever the network."""
    hosts = {peer.host: _ip(peer.host) for peer in members}
    for host, ip in hosts.items():
        if ip is not None and (ip.is_unspecified or ip.is_multicast):
            yield finding(
                "peers",
                survey.name,
                f"dLegerPeers has the address {host}, which no member can connect to",
                "write the address of each host as the others reach it",
            )
    loopback = [host for host, ip in hosts.items() if ip is not None and ip.is_loopback]
    others = [host for host, ip in hosts.items() if ip is not None and not ip.is_loopback]
    if loopback and others:
        yield note(
            "peers",
            survey.name,
            f"dLegerPeers has {loopback[0]}, which a member on another host cannot reach",
            "write the address of each host as the others reach it",
        )


def _ip(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        return None


def _port_findings(survey: Survey, members: Sequence[DLedgerPeer]) -> Iterator[CheckFinding]:
    own = next((each for each in members if each.peer_id == survey.setting("dLegerSelfId")), None)
    if own is None:
        return
    listen = int(survey.setting("listenPort") or DEFAULT_LISTEN_PORT)
    used = taken_ports(listen)
    for peer in members:
        if peer.host == own.host and peer.port in used:
            whose = "its DLedger port" if peer is own else f"the DLedger port of {peer.peer_id},"
            yield finding(
                "peers",
                survey.name,
                f"{whose} {peer.port} is also {used[peer.port]}",
                "choose another port in dLegerPeers of all members",
            )
    low, high = ephemeral_ports()
    for port, use in (used | {own.port: "the DLedger port"}).items():
        if low <= port <= high:
            yield note(
                "peers",
                survey.name,
                f"{use} ({port}) is in the range of outgoing connections ({low} to {high}): one of"
                " them may hold it when the broker starts",
                f"use a port below {low}, or net.ipv4.ip_local_reserved_ports",
            )


def taken_ports(listen: int) -> dict[int, str]:
    """Return the uses of the ports of a broker that listens on ``listen``."""
    return {
        listen: "listenPort",
        listen - 2: "the fast port, listenPort - 2",
        listen + 1: "the HA port, listenPort + 1",
    }


def ephemeral_ports() -> tuple[int, int]:
    """Return (first, last) port of this host's outgoing connections, or Linux's default."""
    try:
        low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
        return int(low), int(high)
    except (OSError, ValueError):
        return EPHEMERAL_START, EPHEMERAL_END


def flags_together(surveys: Surveys) -> Iterator[CheckFinding]:
    """Check that the flag is the same on all nodes: nodes cannot switch separately (H11)."""
    on = [survey.name for survey in _with_config(surveys) if _is_on(survey)]
    off = [survey.name for survey in _with_config(surveys) if not _is_on(survey)]
    if on and off:
        yield finding(
            "flags-together",
            "",
            f"{FLAG} is on for {', '.join(on)} and off for {', '.join(off)}: two masters of one"
            " name, and no replication between them",
            "stop all of them, switch all of them, start all of them",
        )


def batch_push(surveys: Surveys) -> Iterator[CheckFinding]:
    """Check that batch push is off while versions are mixed (H28)."""
    for survey in _with_config(surveys):
        if survey.setting("isEnableBatchPush", "false").lower() == "true":
            yield note(
                "batch-push",
                survey.name,
                "isEnableBatchPush=true: members with DLedger before 0.2.7 (RocketMQ before 4.9.4)"
                " misread its answers",
                "leave it off until all members run 4.9.5 or later, or rmqpy",
            )


def roles(surveys: Surveys) -> Iterator[CheckFinding]:
    """Check that the members of a classic group have one master, and a different id each."""
    owners: dict[tuple[str, int], str] = {}
    for survey in _with_config(surveys):
        role = survey.setting("brokerRole") or BrokerRole.ASYNC_MASTER.name
        if role not in BrokerRole.__members__:
            yield finding(
                "roles",
                survey.name,
                f"brokerRole={role}",
                f"choose one of {', '.join(BrokerRole.__members__)}",
            )
            continue
        is_slave = role == BrokerRole.SLAVE.name
        number = int(survey.setting("brokerId") or MASTER_ID) if is_slave else MASTER_ID
        group = survey.setting("brokerName")
        other = owners.setdefault((group, number), survey.name)
        if is_slave and number == MASTER_ID:
            yield finding(
                "roles",
                survey.name,
                f"it is a slave and has brokerId={number}, the id of the master",
                f"choose its role with --role {survey.name}=SLAVE, which gives it an id",
            )
        elif other != survey.name:
            what = f"slaves with brokerId={number}" if number else "masters"
            yield finding(
                "roles",
                f"{other}, {survey.name}",
                f"both are {what} of {group or 'one group'}",
                "give every member its role: --role NAME=SYNC_MASTER for one, --role NAME=SLAVE for"
                " the others",
            )


CONFIG_FILE_CHECKS: dict[str, ConfigCheck] = {
    "config-shown": config_shown,
    "same-sizes": same_sizes,
    "same-group": same_group,
    "self-ids": self_ids,
    "peers": peers,
    "flags-together": flags_together,
    "batch-push": batch_push,
    "controller-flags": controller_flags,
}

CLASSIC_CONFIG_CHECKS: dict[str, ConfigCheck] = {
    "same-sizes": same_sizes,
    "same-group": same_group,
    "flags-together": flags_together,
    "roles": roles,
}
"""The checks of the configurations of a master and its slaves, before they are written."""


def _of_group(check: ConfigCheck) -> Callable[[Group], Iterator[CheckFinding]]:
    def each(group: Group) -> Iterator[CheckFinding]:
        yield from check(group.surveys)

    each.__doc__ = check.__doc__
    return each


CONFIG_CHECKS = {name: _of_group(check) for name, check in CONFIG_FILE_CHECKS.items()}
