"""The shards of a configuration: what differs between N brokers that one ``broker.conf`` describes.

=============================  ==================================================================
setting                        of shard K
=============================  ==================================================================
``brokerName``                 ``<brokerName>-K``, or the name on the command line
``storePathRootDir``           the folder of that name in it; so for a ``storePathCommitLog`` or
                               ``storePathDLedgerCommitLog`` that is set to another place
``listenPort``, and with it    ``PORT_STRIDE`` times K more
the fast and replication port
``metricsListenAddress``,      the same for the port in it, or in each address of it
``haMasterAddress``,
``dLegerPeers``
``dLegerGroup``                ``<dLegerGroup>-K``; the name of the shard if the group has the
                               name of the broker
=============================  ==================================================================

All other settings are those of the configuration. Pure: a plan reads no file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from attrs import define

from rmqpy.broker.base.context import FAST_PORT_DISTANCE, HA_PORT_DISTANCE
from rmqpy.config.loading import BrokerConfiguration
from rmqpy.model.errors import ConfigError

PORT_STRIDE: Final = 10
"""The distance between the ports of two shards."""

SHARDS_MAX: Final = 64
PORT_MAX: Final = 65535


@define(slots=True, frozen=True)
class Shard:
    """One broker of several. ``folder`` is its ``storePathRootDir``."""

    number: int
    name: str
    folder: str
    settings: Mapping[str, str]
    """The settings that differ from those of the configuration."""

    ports: Mapping[str, int]
    """The ports that it opens, by their purpose."""

    @property
    def settings_file(self) -> str:
        """The file with the settings that were changed while the shard ran."""
        return f"{self.folder}/broker.conf"


def shards_of(configuration: BrokerConfiguration, wanted: str) -> tuple[Shard, ...]:
    """Return the shards that ``wanted`` names: their number, or their names separated by commas.
    Raises ConfigError if that cannot be, or if two of them would open the same port.
    """
    names = _names(configuration.broker.broker_name, wanted)
    shards = tuple(_shard(configuration, number, name) for number, name in enumerate(names))
    _refuse_overlaps(shards)
    return shards


def _names(broker_name: str, wanted: str) -> Sequence[str]:
    if wanted.isascii() and wanted.isdigit():
        count = int(wanted)
        if not 1 <= count <= SHARDS_MAX:
            raise ConfigError(f"--shards {wanted}: expected 1 to {SHARDS_MAX}")
        return [f"{broker_name}-{number}" for number in range(count)]
    names = wanted.split(",")
    if len(names) > SHARDS_MAX or len(set(names)) < len(names):
        raise ConfigError(
            f"--shards {wanted:.200}: {len(names)} names, expected at most {SHARDS_MAX}, each once"
        )
    for name in names:
        if not name or name != name.strip() or name in (".", "..") or "/" in name or "\0" in name:
            raise ConfigError(
                f"--shards {wanted:.200}: {name!r} cannot be the name of a broker and of its"
                " folder; give a number, or names separated by commas"
            )
    return names


def _shard(configuration: BrokerConfiguration, number: int, name: str) -> Shard:
    store, remoting = configuration.store, configuration.remoting
    root = store.store_path_root_dir
    folder = f"{root}/{name}"
    listen_port = remoting.listen_port + number * PORT_STRIDE
    settings = {
        "brokerName": name,
        "storePathRootDir": folder,
        "storePathCommitLog": f"{folder}/commitlog",
        "listenPort": str(listen_port),
    }
    ports = {
        "fast port": listen_port - FAST_PORT_DISTANCE,
        "listenPort": listen_port,
        "replication port": listen_port + HA_PORT_DISTANCE,
    }
    if store.store_path_commit_log != f"{root}/commitlog":
        settings["storePathCommitLog"] = f"{store.store_path_commit_log}/{name}"
    if store.store_path_dledger_commit_log:
        elsewhere = f"{store.store_path_dledger_commit_log}/{name}"
        settings["storePathDLedgerCommitLog"] = elsewhere
    if remoting.metrics_listen_address:
        settings["metricsListenAddress"], ports["metrics port"] = _moved(
            remoting.metrics_listen_address, number
        )
    if store.ha_master_address:
        settings["haMasterAddress"], _ = _moved(store.ha_master_address, number)
    if store.dledger_group:
        of_broker = store.dledger_group == configuration.broker.broker_name
        settings["dLegerGroup"] = name if of_broker else f"{store.dledger_group}-{number}"
    if store.dledger_peers:
        members = {peer.peer_id: _moved(peer.address, number) for peer in store.dledger_members}
        settings["dLegerPeers"] = ";".join(
            f"{member}-{address}" for member, (address, _) in members.items()
        )
        if store.enable_dledger_commit_log and store.dledger_self_id in members:
            ports["DLedger port"] = members[store.dledger_self_id][1]
    return Shard(number, name, folder, settings, ports)


def _moved(address: str, number: int) -> tuple[str, int]:
    """Return an address whose port is that of shard ``number``, and this port."""
    host, _, port = address.rpartition(":")
    moved = int(port) + number * PORT_STRIDE
    return f"{host}:{moved}", moved


def _refuse_overlaps(shards: Sequence[Shard]) -> None:
    taken: dict[int, str] = {}
    for shard in shards:
        for purpose, port in shard.ports.items():
            what = f"{purpose} of {shard.name}"
            if not 0 < port <= PORT_MAX:
                raise ConfigError(
                    f"--shards: the {what} would be {port}, expected 1 to {PORT_MAX}: choose a"
                    " smaller listenPort, or fewer shards"
                )
            if port in taken:
                raise ConfigError(
                    f"--shards: the {what} and the {taken[port]} would both be {port}; shards are"
                    f" {PORT_STRIDE} ports apart, so set ports of the first one that differ from"
                    f" each other in their last digit"
                )
            taken[port] = what
