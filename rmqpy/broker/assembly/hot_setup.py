"""Puts a hot path under a broker: the one place that ties it to what it speeds up."""

from __future__ import annotations

from typing import Protocol

from rmqpy.broker.assembly.server import BrokerServer, FastPathReplies
from rmqpy.broker.fastpath.eligibility import FastPathDependencies, FastPathInputs
from rmqpy.codec import backend
from rmqpy.model.clock import Clock
from rmqpy.net.server.feed_api import Feed
from rmqpy.store.commitlog.classic import ClassicCommitLog
from rmqpy.store.dispatcher import Accelerator
from rmqpy.store.message_store import MessageStore


class _Watching(Accelerator, Protocol):
    def watch(self, topic: str, queue_id: int, wanted: bool) -> None: ...


def install_fast_path(
    broker: BrokerServer,
    store: MessageStore,
    clock: Clock,
    implementation: str = backend.implementation,
) -> Feed | None:
    """Sends, pulls and dispatch of ``broker`` by C, as far as C can; without C plain sends of a
    classic log, and their dispatch, by one pass of Python, which knows no accounts. The rest stays
    as it was. None: all of it does.
    """
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
    if implementation == "c":
        from rmqpy.broker.fastpath.engine import FastPath

        fast = FastPath(sources, deps)
        _attach(broker, store, fast, fast)
        return fast
    if broker.access is not None or not isinstance(store.log, ClassicCommitLog):
        return None
    from rmqpy.broker.fastpath.hot_python import HotPython

    plain = HotPython(sources, deps)
    _attach(broker, store, plain, plain.rows)
    return plain


def _attach(
    broker: BrokerServer, store: MessageStore, feed: FastPathReplies, accelerator: _Watching
) -> None:
    broker.hot = feed
    broker.hold.on_watch = accelerator.watch
    store.dispatcher.accelerator = accelerator
