"""Measure the longest steps of the loop in a broker with many queues: what one message, one changed
topic, or one change of role costs beside them.

    python bench/many_queues.py                          20,000 topics with 10 queues each
    python bench/many_queues.py --topics 2000 --queues 8

The broker is in memory (``rmqpy.testing.harness``), so figures are CPU time without system calls.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from unittest.mock import patch

from attrs import evolve

from rmqpy.model.steps import finish
from rmqpy.remoting.bodies import TopicConfig, TopicConfigSerializeWrapper
from rmqpy.testing.harness import BrokerHarness, memory_broker
from rmqpy.testing.memory_files import MemoryFiles

UNIT_SIZE = 20


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--topics", type=int, default=20_000)
    parser.add_argument("--queues", type=int, default=10, help="queues of each topic")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    harness = filled(given.topics, given.queues)
    gc.collect()
    gc.freeze()
    for name, step in steps(harness, given.topics).items():
        times_ms = [run_ms(step, number) for number in range(given.rounds)]
        print(f"{name:34} {min(times_ms):8.2f} ms, at most {max(times_ms):8.2f}", flush=True)


def filled(topics: int, queues: int) -> BrokerHarness:
    """Return a broker whose queues have one message each."""
    harness = memory_broker(mapped_file_size_consume_queue=UNIT_SIZE)
    table = {name_of(number): TopicConfig(name_of(number)) for number in range(topics)}
    version = harness.broker.topics.data_version
    harness.broker.topics.restore(TopicConfigSerializeWrapper(version, table))
    for name in table:
        for queue_id in range(queues):
            harness.store.queues.of(name, queue_id).put(0, 0, 100, 0)
    harness.broker.topics.put(TopicConfig("changed"))
    for queue in harness.store.queues:
        sync = queue.take_sync()
        if sync is not None:
            queue.synced(sync)  # Files in memory need no sync.
    harness.store.flush_tracker.queue_flush_task()
    harness.store.appender.forget_tails()
    return harness


def name_of(number: int) -> str:
    return f"a-topic-with-a-longer-name-{number}"


def steps(harness: BrokerHarness, topics: int) -> dict[str, Callable[[int], None]]:
    """Return the steps by name. Each receives the number of the round."""
    store, broker = harness.store, harness.broker

    def change(number: int) -> None:
        config = broker.topics.topics[name_of(number)]
        broker.topics.put(evolve(config, perm=4 if config.perm == 6 else 6))

    def flush(number: int) -> None:
        harness.send(topic=name_of(number))
        task = store.flush_tracker.queue_flush_task()
        assert task is not None  # It runs in a thread.
        store.flush_tracker.queues_flushed(task)

    def saved(number: int) -> None:
        change(number)
        finish(broker.topics.file_steps())

    def registered(number: int) -> None:
        change(number)
        broker.registration._register_command()

    def role(_number: int) -> None:
        store.appender.forget_tails()
        assert store.appender.is_ready()

    def delete(number: int) -> None:
        name = name_of(topics - 1 - number)
        broker.topics.delete(name)
        with patch.object(MemoryFiles, "remove_tree"):  # It searches the names of all files.
            store.delete_topic_queues(name)

    return {
        "flush of the queues, one message": flush,
        "topics.json, one change": saved,
        "registration, one change": registered,
        "change of role": role,
        "deletion of one topic": delete,
    }


def run_ms(step: Callable[[int], None], number: int) -> float:
    begin = time.process_time_ns()
    step(number)
    return (time.process_time_ns() - begin) / 1e6


if __name__ == "__main__":
    main()
