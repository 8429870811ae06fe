"""The status of a member of a DLedger group: the answer to ``RMQPY_DLEDGER_STATUS``.

Body: JSON. ``group``, ``self``, ``role``, ``term``, ``leader`` (null without one); ``begin``,
``end``, ``committed`` (indexes, -1 without an entry) and ``end_term``; ``disk``; ``damaged``:
indexes of entries that wait for an intact copy; ``fault``: why the member must not lead or cannot
follow (null if it can do both); ``peers``: one object per member with ``id``,
``address``, ``handshake`` (unknown, verified, java or refused) and ``reason``, and from a leader
``state``, ``match``, ``next`` and ``lag`` of each follower; ``events``: the last role changes and
their reasons, oldest first, with ``time_ms``.

The answer to ``RMQPY_ELECTIONS`` is JSON, too: ``group``, ``self``, and ``events``, the record of
elections that the member has seen (:mod:`rmqpy.net.dledger.election_record`), oldest first.
"""

from __future__ import annotations

from rmqpy.net.dledger.driver import DLedgerDriver
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.fastjson import dumps


def status_of(driver: DLedgerDriver) -> dict[str, object]:
    """Return the body as plain values."""
    node, entries = driver.node, driver.entries
    end = entries.end
    return {
        "group": driver.membership.group,
        "self": driver.membership.self_id,
        "role": node.role.value,
        "term": node.term,
        "leader": node.leader_id,
        "begin": entries.begin_index,
        "end": end.index,
        "end_term": end.term,
        "committed": node.committed_index,
        "disk": driver.disk.value,
        "damaged": sorted(driver.damaged),
        "fault": node.fault,
        "peers": [_peer(driver, name) for name in driver.membership.peers],
        "events": [{"time_ms": time_ms, "text": text} for time_ms, text in driver.events],
    }


def _peer(driver: DLedgerDriver, name: str) -> dict[str, object]:
    status: dict[str, object] = {"id": name, "address": driver.options.addresses[name]}
    peer = driver.peers.handshakes.links.get(name)
    if peer is not None:
        status |= {"handshake": peer.standing.value, "reason": peer.reason}
    progress = driver.node.progress.get(name)
    if progress is not None:
        state, match, following = progress
        lag = driver.node.lags[name]
        status |= {"state": state, "match": match, "next": following, "lag": lag}
    return status


class GroupStatusProcessor:
    """The processor of requests for the status of the member, and for its record of elections."""

    def __init__(self, driver: DLedgerDriver) -> None:
        self._driver = driver

    def answer(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        return RemotingCommand.response_to(request, body=dumps(status_of(self._driver)))

    def elections(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer with the record of elections."""
        membership = self._driver.membership
        body = {
            "group": membership.group,
            "self": membership.self_id,
            "events": [each.as_json() for each in self._driver.elections.events()],
        }
        return RemotingCommand.response_to(request, body=dumps(body))
