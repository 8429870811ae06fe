"""Contradictions between ``group.toml`` and a broker's own configuration, which may have changed
since the file was written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rmqpy.config.broker import BrokerSettings
from rmqpy.config.keys import BrokerRole, parse_dledger_peers
from rmqpy.upgrade.checks.config_checks import DEFAULT_LISTEN_PORT
from rmqpy.upgrade.group.group_file import GROUP_FILE, GroupFile, MemberSpec
from rmqpy.upgrade.plan.configuration import FLAG


def contradictions(group: GroupFile, member: MemberSpec, keys: Mapping[str, str]) -> Iterator[str]:
    """Yield one sentence for each; ``keys`` are the pairs of the member's broker.conf."""
    port = member.address.rpartition(":")[2]
    pairs: list[tuple[str, str | None, str, object]] = [
        ("broker", group.broker, "brokerName", keys.get("brokerName")),
        (
            "cluster",
            group.cluster,
            "brokerClusterName",
            keys.get("brokerClusterName") or BrokerSettings().broker_cluster_name,
        ),
        ("the port of address", port, "listenPort", keys.get("listenPort") or DEFAULT_LISTEN_PORT),
        ("directory", member.directory, "storePathRootDir", keys.get("storePathRootDir")),
    ]
    if keys.get(FLAG, "").lower() == "true":
        pairs += [
            ("id", member.id, "dLegerSelfId", keys.get("dLegerSelfId")),
            ("dledger_group", group.dledger_group, "dLegerGroup", keys.get("dLegerGroup")),
            ("the peers", _ordered(group.peers), "dLegerPeers", _ordered(keys.get("dLegerPeers"))),
        ]
    elif keys.get("brokerRole") in BrokerRole.__members__:
        is_slave = BrokerRole.SLAVE.name in (keys["brokerRole"], member.role)
        if is_slave:
            pairs.append(("role", member.role, "brokerRole", keys["brokerRole"]))
    for name, expected, key, found in pairs:
        if found is not None and str(found).rstrip("/") != str(expected).rstrip("/"):
            yield (
                f"{member.name}: found {key}={found} in {member.config}, expected {expected} as"
                f" {name} in {GROUP_FILE} says; correct the one that is wrong, or write"
                f" {GROUP_FILE} again with rmqpy upgrade init --force"
            )


def _ordered(peers: str | None) -> str | None:
    """Return dLegerPeers in one order, because the members may list them in any."""
    if not peers:
        return peers
    try:
        found = parse_dledger_peers(peers)
    except ValueError:
        return peers
    return ";".join(sorted(f"{each.peer_id}-{each.host}:{each.port}" for each in found))
