"""The fence that ``run`` and ``next`` set before they stop the members of a DLedger group.

All members then end at the same entry, so that ``leave`` has nothing to fetch. The fence opens by
itself if the members are not stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from attrs import define

from rmqpy.cli.upgrade.base.output import print_result
from rmqpy.model.errors import RmqError

if TYPE_CHECKING:
    from rmqpy.admin.output import CommandResult
    from rmqpy.cli.upgrade.base.given import GivenGroup
    from rmqpy.cli.upgrade.group.facts import GroupView

FENCE_SECONDS: Final = 600


@define(slots=True, frozen=True)
class GroupFence:
    """The fence of a group: the members' addresses, and the name servers of their broker.conf, or
    "" if it names none.
    """

    addresses: Sequence[str]
    name_servers: str

    @property
    def command(self) -> str:
        """The command that an operator types for it."""
        words = ["rmqpy", "admin", "fence", "-n", self.name_servers or "NAMESRV"]
        return shlex.join([*words, "-b", ";".join(self.addresses), "-s", str(FENCE_SECONDS)])

    def close(self) -> CommandResult:
        """Fence all members and wait until they are level.

        Raise JavaBrokerError if one is a Java broker, RmqError if one cannot be fenced.
        """
        return asyncio.run(self._close())

    async def _close(self) -> CommandResult:
        from rmqpy.admin.api import Admin
        from rmqpy.admin.command import CommandContext, ParsedArguments
        from rmqpy.admin.commands.fence import fence
        from rmqpy.admin.credentials import find_credentials
        from rmqpy.client.core.instance import ClientInstance, ClientSettings

        settings = ClientSettings(
            name_servers=self.name_servers or self.addresses[0],  # its routes are not needed
            credentials=find_credentials(None, os.environ),
        )
        arguments = {"brokerAddr": ";".join(self.addresses), "seconds": str(FENCE_SECONDS)}
        instance = await ClientInstance.open(settings)
        try:
            admin = Admin(instance, settings.name_servers)
            return await fence(CommandContext(admin, ParsedArguments(arguments), _note))
        finally:
            await instance.close()


def fence_of(group: GivenGroup, view: GroupView) -> GroupFence | None:
    """Return the fence to set before the members are stopped, or None if there is none to set.

    A classic group is stopped from its master on. In a group of which some members are stopped,
    ``leave`` compares the entries and fetches those that a member lacks.
    """
    if not view.facts.every(lambda each: each.running and each.dledger):
        return None
    found = (each.keys.get("namesrvAddr", "") for each in view.facts.members)
    servers = next(filter(None, found), "") or os.environ.get("NAMESRV_ADDR", "")
    return GroupFence([each.address for each in group.file.members], servers)


def set_fence(options: argparse.Namespace, fence: GroupFence) -> dict[str, Any] | None:
    """Set the fence; return its state, or None for Java brokers, which have no fence.

    Raise RmqError if the members cannot be fenced, or are not level at the deadline.
    """
    from rmqpy.admin.commands.fence import JavaBrokerError

    remedy = (
        "nothing was stopped; repair it, or add --no-fence: leave then fetches the entries that a"
        " member lacks"
    )
    try:
        closed = fence.close()
    except JavaBrokerError:
        text = "no fence: Java brokers have none; leave fetches the entries that a member lacks"
        _say(options, [text])
        return None
    except RmqError as error:
        raise RmqError(f"the group cannot be fenced: {error}; {remedy}") from None
    assert isinstance(closed.data, dict)
    if closed.says_no:
        raise RmqError(f"the group is not level: {'; '.join(closed.data['reasons'])}; {remedy}")
    _say(options, ["fenced: every member ends at the same entry"])
    return closed.data


def _note(line: str) -> None:
    print(line, file=sys.stderr)


def _say(options: argparse.Namespace, lines: Sequence[str]) -> None:
    if options.format != "json":
        print_result(options, None, lines)
