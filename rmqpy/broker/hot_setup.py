"""Puts the hot path under a broker: the one place that ties ``broker.hot`` to what it speeds up."""

from __future__ import annotations

from rmqpy.broker.hot import HotPath, HotSurroundings
from rmqpy.broker.hot_tables import HotSources
from rmqpy.broker.service import Broker
from rmqpy.model.runtime import Clock
from rmqpy.store.message_store import MessageStore


def accelerate(broker: Broker, store: MessageStore, clock: Clock) -> HotPath:
    """Sends, pulls and dispatch of ``broker`` by C, as far as C can; the rest stays as it was."""
    hot = HotPath(
        HotSources(
            identity=broker.identity,
            topics=broker.topics,
            groups=broker.groups,
            clients=broker.clients,
            store=store,
        ),
        HotSurroundings(
            gate=broker.gate,
            replication=broker.replication,
            statistics=broker.statistics,
            offsets=broker.offsets,
            clock=clock,
        ),
    )
    broker.hot = hot
    broker.hold.on_watch = hot.watch
    store.parts.dispatch.accelerator = hot
    return hot
