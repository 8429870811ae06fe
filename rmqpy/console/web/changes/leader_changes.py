"""The transfer of the leadership of a DLedger group, of rmqpy or of Java."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web
from attrs import define

from rmqpy.admin.leadership import transfer_leadership
from rmqpy.console.collecting.collector import Collector
from rmqpy.console.web.changes.changes import Changes
from rmqpy.model.errors import RmqError

__all__ = ["LeaderChangePages"]


@define(slots=True, frozen=True)
class LeaderChangePages:
    """``/transfer``: a POST shows the effect, and a confirmed POST makes it."""

    collector: Collector
    changes: Changes

    def routes(self) -> Sequence[web.RouteDef]:
        return [web.post("/transfer", self.transfer)]

    async def transfer(self, request: web.Request) -> web.StreamResponse:
        form = await self.changes.form(request, "group", "successor")
        group, successor = form.values["group"], form.values["successor"]
        done, error = None, ""
        if form.confirmed:
            try:
                address = self._address(group)
                async with self.changes.admin(form.session) as admin:
                    done = await transfer_leadership(admin, address, successor)
                self.changes.done(
                    form.session,
                    "transferred the leadership of %.128r from %s to %s",
                    group,
                    done.leader,
                    done.successor,
                )
            except RmqError as fault:
                error = str(fault)
                self.changes.failed(
                    form.session, "transfer %.128r to %.64r: %s", group, successor, error
                )
        return self.changes.render.page(
            request, "transfer.html", group=group, successor=successor, done=done, error=error
        )

    def _address(self, group: str) -> str:
        """Return a member that answers. Raise RmqError if there is none."""
        for broker in self.collector.moment.of_name(group):
            if not broker.fault:
                return broker.address
        raise RmqError(f"found no broker of {group!r} that answers, expected one")
