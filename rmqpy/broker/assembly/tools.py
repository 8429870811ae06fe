"""What administrators and tools ask of a broker: their processors, put together.

Knows every table of the broker and changes none itself: that is the processors' business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqpy.broker.base.store_api import HandlerTable
from rmqpy.broker.processors.admin.broker_config import BrokerConfigProcessor
from rmqpy.broker.processors.admin.client_relay import ClientRelayProcessor
from rmqpy.broker.processors.admin.queue_contents import QueueContentsProcessor
from rmqpy.broker.processors.admin.runtime_info import RuntimeInfoProcessor
from rmqpy.broker.processors.admin.stats_queries import StatsQueryProcessor
from rmqpy.broker.processors.admin.topics_and_groups import TopicAdminProcessor
from rmqpy.remoting.bodies import DataVersion

if TYPE_CHECKING:
    from rmqpy.broker.assembly.server import BrokerDependencies, BrokerServer


def tool_handlers(broker: BrokerServer, deps: BrokerDependencies) -> HandlerTable:
    """Every request code of tools."""
    positions = StatsQueryProcessor(
        identity=broker.identity,
        topics=broker.topics,
        clients=broker.clients,
        offsets=broker.offsets,
        statistics=broker.statistics,
        queues=broker.store.reader,
        groups=broker.groups,
        clock=deps.scheduler,
    )
    administration = TopicAdminProcessor(
        identity=broker.identity,
        topics=broker.topics,
        groups=broker.groups,
        offsets=broker.offsets,
        statistics=broker.statistics,
        store=broker.store,
        tell=broker.registration.tell,
    )
    relays = ClientRelayProcessor(
        identity=broker.identity,
        topics=broker.topics,
        clients=broker.clients,
        offsets=broker.offsets,
        queues=broker.store.reader,
        calls=broker.calls,
    )
    settings = BrokerConfigProcessor(
        identity=broker.identity,
        registration=broker.registration,
        file=deps.settings_file,
        changed=broker.settings_changed,
        version=DataVersion(deps.scheduler.now_ms()),
    )
    return {
        **relays.handlers(),
        **broker.item_statistics.handlers(),
        **positions.handlers(),
        **QueueContentsProcessor(queues=broker.store.reader, clients=broker.clients).handlers(),
        **settings.handlers(),
        **administration.handlers(),
        **broker.information.handlers(),
        **broker.cleaning.handlers(),
    }


def runtime_information(broker: BrokerServer, deps: BrokerDependencies) -> RuntimeInfoProcessor:
    """What the broker says about itself."""
    return RuntimeInfoProcessor(
        identity=broker.identity,
        store=broker.store,
        statistics=broker.statistics,
        gate=broker.gate,
        replication=broker.replication,
        files=deps.files,
        clock=deps.scheduler,
        delays=broker.delivery.progress,
        booted_ms=deps.scheduler.now_ms(),
    )
