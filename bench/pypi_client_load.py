"""One load of the PyPI package ``rocketmq`` (0.4.4, a wrapper of Apache's C++ client); the same as
``client_load.py``, with the same arguments and output. Runs in an environment that has it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

from meter import Meter
from rocketmq.client import Message, Producer, PushConsumer  # type: ignore[import-not-found]

BODY: Final = b"x" * 128
THREADS: Final = 16
"""The C++ client keeps the lock of the interpreter during callbacks: more threads are slower."""
BATCH: Final = 16


def message(topic: str) -> Any:
    new = Message(topic)
    new.set_body(BODY)
    return new


def produce(mode: str, namesrv: str, topic: str, group: str, add: Callable[[int], bool]) -> None:
    producer = Producer(group)
    producer.set_namesrv_addr(namesrv)
    producer.set_timeout(30_000)
    producer.start()

    def send() -> bool:
        producer.send_sync(message(topic))
        return add(1)

    def batch() -> bool:
        producer.send_batch([message(topic) for _ in range(BATCH)])
        return add(BATCH)

    def oneway() -> bool:
        producer.send_oneway(message(topic))
        return add(1)

    once = {"send": send, "batch": batch}.get(mode, oneway)

    def repeat() -> None:
        while once():
            pass

    threads = [
        threading.Thread(target=repeat, daemon=True)
        for _ in range(1 if mode == "oneway" else THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def push(namesrv: str, topic: str, group: str, add: Callable[[int], bool]) -> None:
    ended = threading.Event()

    def consume(received: Any) -> None:
        if not add(len(received.body) == len(BODY)):
            ended.set()

    consumer = PushConsumer(group)
    consumer.set_namesrv_addr(namesrv)
    consumer.subscribe(topic, consume)
    consumer.start()
    ended.wait()


def main() -> None:
    mode, namesrv, topic, group, seconds, warm_seconds = sys.argv[1:]
    meter, lock = Meter(float(seconds), float(warm_seconds)), threading.Lock()

    def add(count: int) -> bool:
        with lock:
            return meter.add(count)

    (push if mode == "push" else lambda *rest: produce(mode, *rest))(namesrv, topic, group, add)
    print(json.dumps(meter.result), flush=True)
    os._exit(0)  # Its destructors wait for threads that have ended.


if __name__ == "__main__":
    main()
