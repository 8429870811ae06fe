"""What operators do to a simulated cluster: hand leadership over, set files right from a copy."""

from __future__ import annotations

import re

from attrs import define

from rmqpy.dledger.messages import LeadershipTransferRequest
from rmqpy.dledger.wire import encode
from rmqpy.model.errors import RmqError, StoreError
from rmqpy.remoting.command import RemotingCommand
from simulator.broker_host import BrokerHost
from simulator.host import LEDGER_PORT, Host
from simulator.network import MachineNetwork
from simulator.plan import GROUP_NAME

PATIENCE_MS = 5000


@define(slots=True, eq=False, repr=False)
class Operator:
    """At a machine of his own."""

    network: MachineNetwork
    asked: int = 0

    def hand_over(self, leader: Host, successor: Host) -> None:
        """Ask the leader to let another member lead."""
        assert leader.node is not None
        self.asked += 1
        request = LeadershipTransferRequest(
            group=GROUP_NAME,
            remote_id=leader.name,
            local_id=leader.name,
            leader_id=leader.name,
            term=leader.node.term,
            transfer_id=leader.name,
            transferee_id=successor.name,
        )
        command = RemotingCommand.request(request.CODE, body=encode(request))
        address = f"{leader.machine.host}:{LEDGER_PORT}"
        self.network.request(address, command, PATIENCE_MS, _answered)

    @staticmethod
    def restores(host: BrokerHost, fault: StoreError) -> bool:
        """The file that a start refuses is copied from a replica (the files of the log, where only
        an offset is named); False when nothing is wrong with it.
        """
        paths = {path for path, _ in host.disk.flips if path == fault.path or "/" not in fault.path}
        return any([host.disk.restored(path) for path in paths])


def may_cut(host: BrokerHost, fault: StoreError) -> bool:
    """Whether the damage that a start refuses is in a write that a power failure has torn: nobody
    waited for it, and ``--force-truncate`` loses nothing.
    """
    place = _DAMAGED_BYTE.search(fault.found)
    synced = host.disk.synced_to.get(fault.path, 0)
    return place is not None and int(place[1]) >= synced


_DAMAGED_BYTE = re.compile(r"byte (\d+) of the file")


def _answered(_response: RemotingCommand | None, _fault: RmqError | None) -> None:
    """Whatever it says: others see who leads."""
