"""The broker.conf of one node before and after a step; only the necessary lines change."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from rmqpy.config.properties_file import decode_properties_bytes, format_properties
from rmqpy.model.files import FileSystem
from rmqpy.upgrade.plan.node_context import UpgradeRefusedError
from rmqpy.upgrade.plan.survey import Survey

FLAG = "enableDLegerCommitLog"
NOT_WITH_A_CONTROLLER = (
    *("brokerId", "brokerRole", FLAG, "dLegerGroup", "dLegerPeers", "dLegerSelfId"),
    "preferredLeaderId",
)
"""What a controller decides, and the keys with which a 5.x broker in controller mode ends."""
ONLY_WITH_A_CONTROLLER = ("enableControllerMode", "controllerAddr", "allAckInSyncStateSet")
"""What has no meaning, or stops the start, without a controller."""


def dledger_keys(peers: str, self_id: str, group: str) -> dict[str, str]:
    """Return the settings of a member."""
    return {FLAG: "true", "dLegerGroup": group, "dLegerPeers": peers, "dLegerSelfId": self_id}


def classic_keys(survey: Survey, roles: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a replica that has left DLedger.

    ``roles`` has roles by replica (SYNC_MASTER, ASYNC_MASTER, SLAVE). A replica that is not in it
    keeps its configured role.
    """
    keys = {FLAG: "false"}
    role = roles.get(survey.name)
    if role is not None:
        keys["brokerRole"] = role
        number = "".join(char for char in survey.setting("dLegerSelfId", "0") if char.isdigit())
        keys["brokerId"] = str(int(number or 0) + 1) if role == "SLAVE" else "0"
    return keys


def controller_keys(addresses: str, *, all_acknowledge: bool) -> dict[str, str]:
    """Return the settings of a member of a controller group.

    With ``all_acknowledge``, a message counts as sent once every replica in the SyncStateSet has
    it, as with a SYNC_MASTER; by default 5.x answers when the master alone has it.
    """
    keys = {"enableControllerMode": "true", "controllerAddr": addresses}
    return keys | ({"allAckInSyncStateSet": "true"} if all_acknowledge else {})


def controller_configs(addresses: Sequence[str]) -> dict[str, str]:
    """Return the text of the configuration of each new controller at these addresses, by the name
    of its file, for ``sh bin/mqcontroller -c FILE``.

    Brokers reach a controller at the port of its DLedger group (DLedgerController of 5.3.3).
    """
    ids = [f"n{number}" for number in range(len(addresses))]
    peers = ";".join(f"{each}-{address}" for each, address in zip(ids, addresses, strict=True))
    configs = {}
    for each, address in zip(ids, addresses, strict=True):
        keys = {
            "controllerDLegerGroup": "controllers",
            "controllerDLegerPeers": peers,
            "controllerDLegerSelfId": each,
            "enableElectUncleanMaster": "false",
        }
        head = f"# The controller at {address}. Its data folder must be new: ~/DLedgerController,"
        head += "\n# or controllerStorePath, which two controllers on one host need.\n"
        configs[f"controller-{each}.conf"] = head + format_properties(keys)
    return configs


def rewritten_config(
    files: FileSystem, survey: Survey, keys: Mapping[str, str], without: Collection[str] = ()
) -> str:
    """Return the text of the replica's broker.conf with these keys set, and those removed."""
    return rewritten(_text(files, survey), keys, without)


def rewritten(text: str, keys: Mapping[str, str], without: Collection[str] = ()) -> str:
    """Return ``text`` with these keys set, and the lines of those in ``without`` removed.

    A line that sets one of them is replaced; the others are added at the end.
    """
    rest = dict(keys)
    lines = []
    for line in text.splitlines():
        name = line.partition("=")[0].strip()
        if (name in keys or name in without) and not line.lstrip().startswith(("#", "!")):
            if name in rest:
                lines.append(format_properties({name: rest.pop(name)}).rstrip("\n"))
            continue
        lines.append(line)
    lines += format_properties(rest).splitlines()
    return "\n".join(lines) + "\n"


def _text(files: FileSystem, survey: Survey) -> str:
    if survey.config_path is None:
        raise UpgradeRefusedError(
            f"{survey.name}: its broker.conf is not known; pass it with -c {survey.name}=FILE"
        )
    return decode_properties_bytes(files.read_bytes(survey.config_path))
