"""The checks of a broker before it takes part in a switch to DLedger; nothing is changed."""

from __future__ import annotations

from typing import Any

from rmqpy.broker.assembly.addresses import is_local
from rmqpy.broker.assembly.switch.exchange import SwitchingBroker, joined_configuration
from rmqpy.broker.replication.switch_protocol import SwitchPlan
from rmqpy.config.store import MEMORY_STORE
from rmqpy.model.errors import ConfigError
from rmqpy.model.files import FileSystem
from rmqpy.store.ledger.classic_prefix import ClassicPrefixMark


def facts(running: SwitchingBroker) -> dict[str, Any]:
    """Return what the members of a group are compared by."""
    store = running.store
    return {
        "file_size": store.settings.mapped_file_size_commit_log,
        "begin": store.log.min_offset,
        "end": store.log.max_offset,
    }


def problems(
    running: SwitchingBroker, files: FileSystem, plan: SwitchPlan, self_id: str
) -> list[str]:
    """Return the reasons why this broker cannot become member ``self_id``."""
    broker, store = running.broker, running.store
    if store.opened.dledger is not None:
        return ["this broker is a member of a DLedger group already"]
    if store.settings.store_type == MEMORY_STORE:
        return ["found storeType=MEMORY: a member of a DLedger group must not forget its log"]
    found = []
    if broker.settings.file is None:
        found.append("this broker has no configuration file: start it with one (-c FILE)")
    if store.log.max_offset == 0 and self_id == plan.coordinator:
        found.append("the log is empty: stop the broker, and switch it with rmqpy upgrade switch")
    if broker.identity.name != plan.group:
        found.append(f"found brokerName={broker.identity.name}, expected {plan.group}")
    if broker.identity.is_slave == (self_id == plan.coordinator):
        expected = "a master" if self_id == plan.coordinator else "a slave"
        found.append(f"found {broker.identity.role.value}, expected {expected}")
    if broker.fence.state().remaining_ms:
        found.append("this broker is fenced; open it (rmqpy admin fence --lift)")
    if broker.identity.diverged:
        found.append(broker.identity.diverged)
    if store.health.failure is not None:
        found.append(store.health.failure)
    try:
        configuration = joined_configuration(broker.identity.configuration, plan, self_id)
    except ConfigError as error:
        return [*found, str(error)]
    settings = configuration.store
    members = {each.peer_id: each for each in settings.dledger_members}
    if members.keys() != plan.brokers.keys():
        found.append(f"dLegerPeers={plan.peers}: expected the members {', '.join(plan.brokers)}")
    elif not configuration.remoting.bind_address:
        host = members[self_id].host
        if not is_local(host, numeric=False):
            found.append(f"{host} in dLegerPeers is no address of this host")
    path = settings.dledger_data_path
    if files.exists(path) and files.list_dir(path):
        found.append(f"{path} contains files of another DLedger log: move them away")
    _, free = files.disk_usage(settings.store_path_root_dir)
    needed = 2 * settings.mapped_file_size_commit_log
    if free < needed:
        found.append(f"{free} bytes are free on the disk, expected two log files, {needed} bytes")
    return found


def difference(expected: ClassicPrefixMark, found: ClassicPrefixMark) -> str:
    """Return how two logs of the same end differ, or an empty text. One of them may have fewer
    files.
    """
    pairs = zip(expected.digest.split(","), found.digest.split(","), strict=False)
    if expected.end == found.end and all(one == two for one, two in pairs):
        return ""
    return (
        f"the logs differ although both end at {expected.end}: stop the group and run rmqpy upgrade"
        " check"
    )
