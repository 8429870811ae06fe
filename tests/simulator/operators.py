"""The operator of a simulated cluster, who transfers leadership, restores files, and lets a member
that has diverged join again.
"""

from __future__ import annotations

import re

from attrs import define

from rmqpy.dledger.protocol.json_bodies import encode
from rmqpy.dledger.protocol.messages import LeadershipTransferRequest
from rmqpy.model.errors import RmqError, StoreError
from rmqpy.remoting.command import RemotingCommand
from rmqpy.upgrade.checks.findings import Group
from rmqpy.upgrade.checks.replica import LocalReplica
from rmqpy.upgrade.plan.engine import apply_plan
from rmqpy.upgrade.plan.survey import SurveyPlan
from rmqpy.upgrade.steps.plan_context import PlanContext, SwitchOptions
from rmqpy.upgrade.steps.planning import plan_joining
from simulator.broker_host import ROOT, BrokerHost
from simulator.host import LEDGER_PORT, Host
from simulator.network import NetworkClient
from simulator.plan import GROUP_NAME

TIMEOUT_MS = 5000


@define(slots=True, eq=False, repr=False)
class Operator:
    """An operator with a separate machine."""

    client: NetworkClient

    def hand_over(self, leader: Host, successor: Host) -> None:
        """Ask the leader to transfer its leadership."""
        assert leader.node is not None
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
        self.client.request(address, command, TIMEOUT_MS, _answered)

    @staticmethod
    def restore(host: BrokerHost, fault: StoreError) -> bool:
        """Copy the file for which a start was refused from a replica.

        If the error names only an offset, copy all files of the log. Return False if none has a
        flipped bit.
        """
        paths = {path for path, _ in host.disk.flips if path == fault.path or "/" not in fault.path}
        return any([host.disk.restore(path) for path in paths])


def may_cut(host: BrokerHost, fault: StoreError) -> bool:
    """Return whether a start was refused because of a write that a power failure has torn.

    The write was never acknowledged, so ``--force-truncate`` loses nothing.
    """
    place = _DAMAGED_BYTE.search(fault.found)
    synced = host.disk.synced_to.get(fault.path, 0)
    return place is not None and int(place[1]) >= synced


def has_diverged(host: BrokerHost) -> bool:
    """Return whether a member says that it follows no further until an operator decides."""
    return host.node is not None and (host.node.fault or "").startswith("diverged from")


def let_join(host: BrokerHost, reference: BrokerHost) -> None:
    """Do what ``rmqpy upgrade join --give-up`` does with the stopped ``host``."""
    settings = {each.name: each.configuration(dledger=True).store for each in (host, reference)}
    replicas = tuple(
        LocalReplica(
            each.disk,
            SurveyPlan(
                name=each.name,
                root=ROOT,
                settings=settings[each.name],
                now_ms=lambda: host.timeline.now_ms,
            ),
        )
        for each in (host, reference)
    )
    context = PlanContext(
        group=Group(replicas),
        files=host.disk,
        options=SwitchOptions(reference=reference.name),
        settings=settings,
    )
    plan = plan_joining(context, host.name, given_up=True)
    apply_plan(context.node_context(replicas[0]), plan, host.name, "aligned")


_DAMAGED_BYTE = re.compile(r"byte (\d+) of the file")


def _answered(_response: RemotingCommand | None, _fault: RmqError | None) -> None:
    """Ignore the answer: the checkers see which member leads."""
