"""A probe with RocketMQ's C++ client from PyPI's ``rocketmq``: reads commands as lines and writes
JSON lines, as the Java probe does. Run ``python cpp_probe.py FOLDER``, where FOLDER is the target
into which pip installed that package.

It registers its callbacks without the wrapper's ``subscribe``, which reports success to the client
whenever a callback raises.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import unquote

Options = dict[str, str]

SUCCESS, LATER = 0, 1
_output = threading.Lock()
_names = 0


def show(event: str, **values: Any) -> None:
    with _output:
        print(json.dumps({"event": event, **values}), flush=True)


def fresh_name(kind: str) -> str:
    global _names
    _names += 1
    return f"{kind}-{os.getpid()}-{_names}"


def body(index: int, size: int) -> bytes:
    """Return a printable body, as the client treats it as a C string."""
    return bytes(97 + (31 * index + 7 * j) % 26 for j in range(size))


def new_message(client: Any, options: Options, index: int) -> Any:
    message = client.Message(options["topic"])
    sizes = options.get("sizes", "100").split(",")
    message.set_body(body(index, int(sizes[index % len(sizes)])))
    if "keys" in options:
        message.set_keys(f"{options['keys']}{index}")
    if "tags" in options:
        tags = options["tags"].split(",")
        message.set_tags(tags[index % len(tags)])
    if "property" in options:
        message.set_property(*options["property"].split(":", 1))
    if "delay" in options:
        message.set_delay_time_level(int(options["delay"]))
    return message


def send(client: Any, options: Options) -> None:
    producer = client.Producer(options.get("group", fresh_name("cpp-producers")))
    producer.set_namesrv_addr(options["namesrv"])
    producer.start()
    first, count = int(options.get("first", 0)), int(options.get("count", 1))
    shards = int(options.get("shards", 0))
    try:
        for index in range(first, first + count):
            message = new_message(client, options, index)
            if options.get("mode") == "oneway":
                producer.send_oneway(message)
            elif shards:
                _sent(index, producer.send_orderly(message, index % shards))
            else:
                _sent(index, _patient(options, partial(producer.send_sync, message)))
        if options.get("mode") == "oneway":
            time.sleep(0.5)  # The shutdown drops unsent messages.
    finally:
        producer.shutdown()


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
    place = {"msgId": result.msg_id, "queueOffset": result.offset}
    show("sent", index=index, status=int(result.status), **place)


def consume(client: Any, options: Options) -> None:
    consumer = client.PushConsumer(options["group"], orderly=options.get("mode") == "orderly")
    consumer.set_namesrv_addr(options["namesrv"])
    consumer.set_instance_name(fresh_name("consumer"))
    consumer.set_thread_count(2)
    refuse = int(options.get("refuse", 0))
    count, last = 0, time.monotonic()

    def on_message(_consumer: Any, handle: Any) -> int:
        nonlocal count, last
        message = client.RecvMessage(handle)
        show("received", **received(message))
        count += 1
        last = time.monotonic()
        return LATER if message.reconsume_times < refuse else SUCCESS

    client.ffi_check(
        client.dll.Subscribe(
            consumer._handle,
            options["topic"].encode(),
            options.get("expression", "*").encode(),
        )
    )
    consumer._register_callback(on_message)
    consumer.start()
    most = int(options.get("max", 1 << 30))
    idle_s = int(options.get("idleMs", 1500)) / 1000
    first_by = time.monotonic() + int(options.get("firstMs", 10_000)) / 1000
    while count < most:
        now = time.monotonic()
        if (count and now - last >= idle_s) or (not count and now > first_by):
            break
        time.sleep(0.05)
    time.sleep(0.2)  # The last result is still being sent.
    consumer.shutdown()


def received(message: Any) -> dict[str, Any]:
    text = message.body
    return {
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "reconsumeTimes": message.reconsume_times,
        "bodyLength": len(text),
        "crc": zlib.crc32(text),
        "tags": (message.tags or b"").decode(),
        "keys": (message.keys or b"").decode(),
        "msgId": message.id,
        "bornTimestamp": message.born_timestamp,
        "storeTimestamp": message.store_timestamp,
    }


def main(folder: str) -> None:
    sys.path.insert(0, folder)
    import rocketmq.client  # type: ignore[import-not-found]

    commands = {"send": send, "consume": consume}
    show("ready")
    for line in sys.stdin:
        name, *words = line.split()
        options = {key: unquote(value) for key, _, value in (word.partition("=") for word in words)}
        try:
            commands[name](rocketmq.client, options)
        except Exception as error:  # noqa: BLE001 - reported to the caller
            show("fault", error=f"{type(error).__name__}: {error}")
        else:
            show("done")


if __name__ == "__main__":
    main(sys.argv[1])
