"""Installs the fast path in a broker: the one place that connects it to what it speeds up."""

from __future__ import annotations

from rmqpy.broker.assembly.server import BrokerServer
from rmqpy.broker.fastpath.eligibility import FastPathDependencies, FastPathInputs
from rmqpy.codec import backend
from rmqpy.model.clock import Clock
from rmqpy.net.server.feed_api import Feed
from rmqpy.store.message_store import MessageStore


def install_fast_path(broker: BrokerServer, store: MessageStore, clock: Clock) -> Feed | None:
    """Let the C core handle sends, pulls and dispatch of ``broker`` as far as it can. Without the C
    core return None: the broker handles every request in Python.
    """
    if backend.implementation != "c":
        return None
    from rmqpy.broker.fastpath.engine import FastPath

    sources = FastPathInputs(
        identity=broker.identity,
        topics=broker.topics,
        groups=broker.groups,
        clients=broker.clients,
        store=store,
        access=broker.access,
    )
    deps = FastPathDependencies(
        gate=broker.gate,
        replication=broker.replication,
        statistics=broker.statistics,
        offsets=broker.offsets,
        clock=clock,
    )
    fast = FastPath(sources, deps)
    broker.hot = fast
    broker.hold.on_watch = fast.watch
    store.parts.dispatch.accelerator = fast
    return fast
