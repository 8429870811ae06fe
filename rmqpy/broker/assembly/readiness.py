"""Whether clients can be sent to a broker, and whether it should be started again.

A broker is ready when its store is open, its role is known, a name server has answered its
registration, and it does what its role promises: a master accepts messages. Name servers that are
lost later make it not less ready, because clients keep the routes they have. A full disk or a fence
is a reason not to be ready, but a restart would not help; a failed write or sync is a reason for a
restart, because the store accepts nothing until its recovery has found what the disk has.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from attrs import define

from rmqpy.broker.assembly.wiring import Broker

STARTING = "the store is being opened and recovered"
STOPPING = "the broker is stopping"


@define(eq=False, repr=False)
class BrokerProbes:
    """The state of a broker for :mod:`rmqpy.net.probes`; ``broker`` is set when it runs."""

    broker: Broker | None = None
    member_status: Callable[[], Mapping[str, object]] = dict
    is_stopping: bool = False

    def unhealthy(self) -> list[str]:
        broker = self.broker
        if broker is None:
            return []
        failure = broker.store.health.failure
        reasons = [] if failure is None else [failure]
        root = broker.identity.store.store_path_root_dir
        try:
            if os.statvfs(root).f_flag & os.ST_RDONLY:
                reasons.append(f"{root} is on a file system that is mounted read-only")
        except OSError as error:
            reasons.append(f"{root}: {error.strerror}")
        return reasons

    def not_ready(self) -> list[str]:
        broker = self.broker
        if self.is_stopping:
            return [STOPPING]
        if broker is None:
            return [STARTING]
        identity, health = broker.identity, broker.store.health
        reasons = [identity.diverged] if identity.diverged else []
        if identity.broker_id < 0:
            reasons.append("it has no role in its group yet")
        elif identity.broker_settings.name_servers and broker.registration.last_answer is None:
            reasons.append("no name server has answered its registration yet")
        fault = self.member_status().get("fault")
        if fault is not None:
            reasons.append(str(fault))
        if identity.is_slave:
            refusal = health.failure
        else:
            refusal = health.refusal
        if refusal is not None:
            reasons.append(refusal)
        return reasons
