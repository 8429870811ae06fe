"""The way of a controller group of 5.x back to master and slaves, on copies of its log.

Two members have the copy and its epochs, and the third one is empty. They leave the controller with
the steps of ``rmqpy upgrade leave``, then run as a master and its slaves while a producer sends.
"""

from __future__ import annotations

import asyncio

from attrs import define, field

from rmqpy.audit.replicas.manifest import Manifest
from rmqpy.codec.epochs import Epoch, encode_epochs
from rmqpy.demo.cluster import MEMBERS, DemoCluster
from rmqpy.demo.workload import SendWorkload
from rmqpy.rehearsal.walk import WARM_UP, Walk, WalkResult
from rmqpy.store.files.paths import EPOCH_FILE
from rmqpy.upgrade.plan.node_context import UpgradeRefusedError
from rmqpy.upgrade.steps.planning import plan_leaving


@define(slots=True, kw_only=True, eq=False, repr=False)
class WayBack(Walk):
    """One way back on the stores in ``folder``. ``copies`` are the members that have the copy."""

    epochs: tuple[Epoch, ...]
    copies: tuple[str, ...]
    _acknowledged: list[str] = field(factory=list, init=False)

    async def run(self) -> WalkResult:
        """Go back. Raises RmqError or OSError if a step cannot be carried out."""
        self._cluster = cluster = DemoCluster(self.folder, self.settings, self.broker_name)
        lost = 0
        try:
            before = await self._leave()
            if before is not None:
                await self._run_group()
                lost = len(set(self._acknowledged) - await self._read_load())
                await cluster.stop(*MEMBERS)
                certificate = await asyncio.to_thread(cluster.certificate, before)
                self._judge(certificate, "after messages were sent")
            if lost:
                self._reasons.append(f"{lost} acknowledged messages are missing after the way back")
        finally:
            cluster.close()
        return self._result(len(self._acknowledged), lost)

    async def _leave(self) -> Manifest | None:
        """Leave the controller; return the state before, or None if that is refused."""
        cluster = self._cluster
        async with self._step("check"):
            for member in self.copies:
                path = cluster.store(member) / EPOCH_FILE
                await asyncio.to_thread(path.write_bytes, encode_epochs(self.epochs))
            context = cluster.context()
            before = (await asyncio.to_thread(context.group.survey, "n0")).manifest
        try:
            async with self._step("leave"):
                plan = await asyncio.to_thread(plan_leaving, context)
                await asyncio.to_thread(cluster.apply, context, plan, "left")
        except UpgradeRefusedError as error:
            self._reasons.append(f"leave: {error}")
            return None
        async with self._step("verify"):
            certificate = await asyncio.to_thread(cluster.certificate, before)
            self._judge(certificate, "after the way back")
        return before

    async def _run_group(self) -> None:
        cluster = self._cluster
        async with self._step("start the master and its slaves"):
            await asyncio.to_thread(cluster.namesrv.start)
            await cluster.start(*MEMBERS)
            await cluster.master_is_known()
            await cluster.slave_has_all()
        async with SendWorkload(cluster.namesrv.address, self.per_second) as load:
            await load.wait_for(WARM_UP)
        self._acknowledged = [*load.acknowledged]
        await cluster.slave_has_all()
