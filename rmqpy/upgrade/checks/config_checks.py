"""Checks of the broker.conf files, each alone and against the others.

A replica whose configuration was not passed is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from rmqpy.config.keys import is_dledger_id, parse_dledger_peers
from rmqpy.upgrade.checks.findings import CheckFinding, Group, finding, note
from rmqpy.upgrade.plan.survey import SIZE_KEY, Survey

FLAG = "enableDLegerCommitLog"
DEFAULT_LISTEN_PORT = 10911
EPHEMERAL_START = 32768
EPHEMERAL_END = 60999


def _with_config(group: Group) -> list[Survey]:
    return [survey for survey in group.surveys if survey.config is not None]


def _is_on(survey: Survey) -> bool:
    return survey.setting(FLAG, "false").lower() == "true"


def config_shown(group: Group) -> Iterator[CheckFinding]:
    """Check that the configuration of every replica was passed."""
    for survey in group.surveys:
        if survey.config is None:
            yield note(
                "config-shown",
                survey.name,
                "its broker.conf was not passed: ids, ports, peers and sizes are not checked",
                "pass it with -c NAME=FILE",
            )


def same_sizes(group: Group) -> Iterator[CheckFinding]:
    """Check that mappedFileSizeCommitLog is the same on all nodes (H7)."""
    sizes = {survey.name: survey.file_size for survey in group.surveys if survey.spans}
    sizes |= {survey.name: survey.file_size for survey in _with_config(group)}
    if len(set(sizes.values())) > 1:
        values = ", ".join(f"{name}: {size}" for name, size in sizes.items())
        yield finding(
            "same-sizes",
            "",
            f"{SIZE_KEY} differs: {values}; positions would never agree",
            f"set {SIZE_KEY} to the length of the files on all nodes",
        )


def same_group(group: Group) -> Iterator[CheckFinding]:
    """Check that cluster, brokerName, dLegerGroup, and dLegerPeers do not differ (H19)."""
    for key in ("brokerClusterName", "brokerName", "dLegerGroup", "dLegerPeers"):
        values = {each.name: each.setting(key) for each in _with_config(group)}
        if key.startswith("dLeger"):
            values = {each.name: each.setting(key) for each in _with_config(group) if _is_on(each)}
        if len(set(values.values())) > 1:
            listed = ", ".join(f"{name}: {value or 'not set'}" for name, value in values.items())
            yield finding(
                "same-group", "", f"{key} differs: {listed}", f"set the same {key} on all nodes"
            )


def self_ids(group: Group) -> Iterator[CheckFinding]:
    """Check that every self id is a letter and a number, is in dLegerPeers, and is unique (H18)."""
    seen: dict[str, str] = {}
    for survey in _with_config(group):
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


def peers(group: Group) -> Iterator[CheckFinding]:
    """Check that dLegerPeers is valid, survives the loss of a member, and has free ports (H19)."""
    for survey in _with_config(group):
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
                f"{len(found)} members: the group stops when {(len(found) + 1) // 2} of them stop",
                "use three or five members",
            )
        yield from _port_findings(survey, {peer.peer_id: peer.port for peer in found})


def _port_findings(survey: Survey, members: dict[str, int]) -> Iterator[CheckFinding]:
    listen = int(survey.setting("listenPort") or DEFAULT_LISTEN_PORT)
    used = {
        listen: "listenPort",
        listen - 2: "the fast port, listenPort - 2",
        listen + 1: "the HA port, listenPort + 1",
    }
    own = members.get(survey.setting("dLegerSelfId"), -1)
    if own in used:
        yield finding(
            "peers",
            survey.name,
            f"its DLedger port {own} is also {used[own]}",
            "choose another port in dLegerPeers of all members",
        )
    low, high = ephemeral_ports()
    for use, port in {**taken_names(listen), f"DLedger port of {survey.name}": own}.items():
        if low <= port <= high:
            yield note(
                "peers",
                survey.name,
                f"{use} {port} is in the range of outgoing connections ({low} to {high}): one of"
                " them may hold it when the broker starts",
                f"use a port below {low}, or net.ipv4.ip_local_reserved_ports",
            )


def taken_names(listen: int) -> dict[str, int]:
    """Return the ports of a broker that listens on ``listen``, by use."""
    return {"listenPort": listen, "fast port": listen - 2, "HA port": listen + 1}


def ephemeral_ports() -> tuple[int, int]:
    """Return (first, last) port of this host's outgoing connections, or Linux's default."""
    try:
        low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
        return int(low), int(high)
    except (OSError, ValueError):
        return EPHEMERAL_START, EPHEMERAL_END


def flags_together(group: Group) -> Iterator[CheckFinding]:
    """Check that the flag is the same on all nodes: nodes cannot switch separately (H11)."""
    on = [survey.name for survey in _with_config(group) if _is_on(survey)]
    off = [survey.name for survey in _with_config(group) if not _is_on(survey)]
    if on and off:
        yield finding(
            "flags-together",
            "",
            f"{FLAG} is on for {', '.join(on)} and off for {', '.join(off)}: two masters of one"
            " name, and no replication between them",
            "stop all of them, switch all of them, start all of them",
        )


def batch_push(group: Group) -> Iterator[CheckFinding]:
    """Check that batch push is off while versions are mixed (H28)."""
    for survey in _with_config(group):
        if survey.setting("isEnableBatchPush", "false").lower() == "true":
            yield note(
                "batch-push",
                survey.name,
                "isEnableBatchPush=true: members with DLedger before 0.2.7 (RocketMQ before 4.9.4)"
                " misread its answers",
                "leave it off until all members run 4.9.5 or later, or rmqpy",
            )


CONFIG_CHECKS: dict[str, Callable[[Group], Iterator[CheckFinding]]] = {
    "config-shown": config_shown,
    "same-sizes": same_sizes,
    "same-group": same_group,
    "self-ids": self_ids,
    "peers": peers,
    "flags-together": flags_together,
    "batch-push": batch_push,
}
