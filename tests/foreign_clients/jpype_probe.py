"""A probe with PyPI's ``rocketmq3-py-client``, which runs RocketMQ's Java client 3.2.6 in a JVM of
its process: reads commands as lines and writes JSON lines, as the Java probe does. Run
``python jpype_probe.py FOLDER JARS``, where FOLDER is the target into which pip installed it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import unquote

Options = dict[str, str]

WAIT_S = 10.0
_output = threading.Lock()


def show(event: str, **values: Any) -> None:
    with _output:
        print(json.dumps({"event": event, **values}), flush=True)


def body(index: int, size: int) -> bytes:
    return bytes((31 * index + 7 * j) & 0xFF for j in range(size))


def send(client: Any, options: Options) -> None:
    first, count = int(options.get("first", 0)), int(options.get("count", 1))
    sizes = options.get("sizes", "100").split(",")
    tags = options["tags"].split(",") if "tags" in options else [None]
    mode = options.get("mode", "sync")
    left = threading.Semaphore(0)
    producer = client.Producer(options.get("group", "jpype-producers"), options["namesrv"])
    with producer:
        for index in range(first, first + count):
            content = body(index, int(sizes[index % len(sizes)]))
            words: dict[str, Any] = {
                "tags": tags[index % len(tags)],
                "keys": f"{options['keys']}{index}" if "keys" in options else None,
            }
            if mode == "oneway":
                producer.send_oneway(options["topic"], content, **words)
            elif mode == "async":
                _send_async(producer, options["topic"], content, index, left, words)
            else:
                level = int(options["delay"]) if "delay" in options else None
                words["delay_time_level"] = level
                once = partial(producer.send, options["topic"], content, **words)
                _sent(index, _patient(options, once))
        if mode == "async":
            for _ in range(count):
                if not left.acquire(timeout=WAIT_S):
                    raise TimeoutError("an asynchronous send without an end")
        time.sleep(0.5)  # Nothing reports the last one-way send.


def _send_async(
    producer: Any, topic: str, content: bytes, index: int, left: threading.Semaphore, words: Any
) -> None:
    def succeeded(result: Any) -> None:
        _sent(index, result)
        left.release()

    def failed(error: Exception) -> None:
        show("failed", index=index, error=str(error))
        left.release()

    producer.send_async(topic, content, succeeded, failed, **words)


def _patient(options: Options, once: Callable[[], Any]) -> Any:
    """Send again for a time, as a program does that must not lose a message."""
    give_up = time.monotonic() + int(options.get("retryMs", 0)) / 1000
    while True:
        try:
            return once()
        except Exception:
            if time.monotonic() >= give_up:
                raise
        time.sleep(0.1)


def _sent(index: int, result: Any) -> None:
    show("sent", index=index, status=str(result.send_status), queueId=int(result.queue_id))


def consume(client: Any, options: Options) -> None:
    deliveries: Counter[str] = Counter()
    refuse = int(options.get("refuse", 0))
    count, last = 0, time.monotonic()

    def on_messages(messages: list[Any]) -> bool:
        nonlocal count, last
        times = [deliveries[str(message.keys)] for message in messages]
        for message, before in zip(messages, times, strict=True):
            deliveries[str(message.keys)] += 1
            content = bytes(message.body)
            show(
                "received",
                topic=str(message.topic),
                queueId=int(message.queue_id),
                queueOffset=int(message.offset),
                reconsumeTimes=before,  # The client does not show it.
                crc=zlib.crc32(content),
                keys=str(message.keys),
                tags=str(message.tags),
                bornTimestamp=int(message.born_timestamp),
                storeTimestamp=int(message.store_timestamp),
            )
        count += len(messages)
        last = time.monotonic()
        return all(before >= refuse for before in times)

    consumer = client.PushConsumer(
        options["group"], options["namesrv"], options["topic"], options.get("expression", "*")
    )
    consumer.register_handler(on_messages)
    with consumer:
        most = int(options.get("max", 1 << 30))
        idle_s = int(options.get("idleMs", 1500)) / 1000
        first_by = time.monotonic() + int(options.get("firstMs", 10_000)) / 1000
        while count < most:
            now = time.monotonic()
            if (count and now - last >= idle_s) or (not count and now > first_by):
                break
            time.sleep(0.05)
        time.sleep(0.2)  # The last result is still being sent.


def main(folder: str, jars: str) -> None:
    sys.path.insert(0, folder)
    os.environ["ROCKETMQ_LIB_PATH"] = jars
    import rocketmq3_py_client  # type: ignore[import-not-found]

    commands = {"send": send, "consume": consume}
    show("ready")
    for line in sys.stdin:
        name, *words = line.split()
        options = {key: unquote(value) for key, _, value in (word.partition("=") for word in words)}
        try:
            commands[name](rocketmq3_py_client, options)
        except Exception as error:  # noqa: BLE001 - reported to the caller
            show("fault", error=f"{type(error).__name__}: {error}")
        else:
            show("done")
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
