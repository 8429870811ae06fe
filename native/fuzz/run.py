"""Coverage-guided fuzzing of the C core under AddressSanitizer and UBSan.

    python native/fuzz/run.py --seconds 3600               fuzz; new inputs go to --found
    python native/fuzz/run.py --seconds 0                  run every known input once

clang fuzzes with libFuzzer, gcc with ``driver.c``. The inputs are ``corpus/`` (found by
earlier runs) and frames built here, in addition to recorded ones. Exit code: 0 nothing found, 2 a
sanitizer's report or a broken invariant, 1 could not be run.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rmqpy.acl.signature import Credentials
from rmqpy.codec.entry import encode_entry_header
from rmqpy.codec.entry_batch import encode_run, read_run
from rmqpy.codec.layout import ENTRY_HEADER_SIZE
from rmqpy.codec.message import BatchItem, encode_batch_body, encode_message
from rmqpy.model.message import OutgoingMessage
from rmqpy.remoting.command import SERIALIZE_JSON, SERIALIZE_ROCKETMQ, RemotingCommand
from rmqpy.remoting.frame import encode_command

HERE = Path(__file__).resolve().parent
NATIVE = HERE.parent
FRAMES = NATIVE.parent / "tests" / "golden" / "wire" / "frames.jsonl"
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
BUILD = ["-g", "-O1", "-std=gnu11", *SANITIZERS]
EXCLUDED = ("socket",)
"""Files of the core that the target does not use."""
INPUT_MAX = 16384
FOUND = 2

FEED, FEED_ENTRIES, SCAN, SCAN_ENTRIES = range(4)
SMALL = 4
SIGNED = 0x80
RUN_TEXT = SCAN | SMALL
ONE = Credentials("one", "short")
OTHER = Credentials(
    "other", "a secret of more than one block, which is hashed before it is used as a key"
)
"""The accounts of ``target.c``."""


def main() -> int:
    options = _options()
    compiler = options.compiler or next(filter(shutil.which, ("clang", "gcc")), None)
    if compiler is None:
        print("neither clang nor gcc is installed", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        program = build(compiler, folder)
        seeds = folder / "seeds"
        seeds.mkdir()
        for number, seed in enumerate(make_seeds()):
            (seeds / f"{number:04}").write_bytes(seed)
        found = options.found or folder / "found"
        found.mkdir(parents=True, exist_ok=True)
        corpus = HERE / "corpus"
        known = [str(seeds), *([str(corpus)] if corpus.is_dir() else [])]
        current = folder / "current"
        if "clang" in Path(compiler).name:
            timing = ["-runs=0"] if not options.seconds else [f"-max_total_time={options.seconds}"]
            limits = [f"-artifact_prefix={found}/crash-", f"-max_len={INPUT_MAX}"]
            command = [str(program), *timing, *limits, str(found), *known]
        else:
            words = [str(options.seconds), str(options.seed), str(current)]
            command = [str(program), *words, str(found), *known]
        done = subprocess.run(command, check=False)
        if done.returncode == 0:
            return 0
        if current.exists():
            content = current.read_bytes()
            size = int.from_bytes(content[:4], sys.byteorder)
            cause = options.crash or Path("crash-input")
            cause.write_bytes(content[4 : 4 + size])
            print(f"the input that caused this is in {cause}", file=sys.stderr)
        return FOUND


def build(compiler: str, folder: Path) -> Path:
    """Build the target with sanitizers and coverage, and with gcc the driver without coverage.

    Returns the program.
    """
    clang = "clang" in Path(compiler).name
    coverage = ["-fsanitize=fuzzer"] if clang else ["-fsanitize-coverage=trace-pc"]
    sources = [path for path in sorted(NATIVE.glob("*.c")) if path.stem not in EXCLUDED]
    objects = []
    for source, extra in [(path, coverage) for path in [*sources, HERE / "target.c"]] + (
        [] if clang else [(HERE / "driver.c", [])]
    ):
        compiled = folder / f"{source.stem}.o"
        command = [compiler, *BUILD, *extra, "-c", str(source), "-o", str(compiled)]
        subprocess.run(command, check=True)
        objects.append(str(compiled))
    program = folder / "fuzz"
    link = ["-fsanitize=fuzzer"] if clang else []
    subprocess.run([compiler, *BUILD, *link, *objects, "-o", str(program)], check=True)
    return program


def make_seeds() -> Iterator[bytes]:
    """Yield inputs that reach every kind of frame; ``target.c`` explains their first byte."""
    frames = list(_frames())
    for frame in frames:
        yield bytes([FEED]) + frame
    stream = b"".join(frames)[: INPUT_MAX - 1]
    for mode in (FEED, FEED_ENTRIES, FEED | SMALL, FEED_ENTRIES | SMALL):
        for step in (0, 3, 15):
            yield bytes([mode | step << 3]) + stream
    stream = b"".join(_tail())
    for mode in (FEED, FEED_ENTRIES, FEED | SMALL):
        for step in (0, 7, 15):
            yield bytes([mode | step << 3]) + stream
    stream = b"".join(_offset_requests())
    for mode in (FEED, FEED | SMALL):
        yield bytes([mode | 15 << 3]) + stream
    for mode, frame_size in ((FEED, 0), (FEED_ENTRIES, ENTRY_HEADER_SIZE), (FEED | SMALL, 0)):
        for serialize_type in (SERIALIZE_JSON, SERIALIZE_ROCKETMQ):
            stream = b"".join(_copies(frame_size, serialize_type))
            for step in (2, 15):
                yield bytes([mode | step << 3]) + stream
    signed = list(_signed_frames())
    for frame in signed:
        yield bytes([SIGNED | FEED]) + frame
    stream = b"".join(signed + frames)[: INPUT_MAX - 1]
    for mode in (FEED, FEED_ENTRIES, FEED | SMALL):
        for step in (0, 15):
            yield bytes([SIGNED | mode | step << 3]) + stream
    for line in FRAMES.read_text(encoding="utf-8").splitlines() if FRAMES.exists() else ():
        frame = bytes.fromhex(json.loads(line)["frame"])
        if 0 < len(frame) < INPUT_MAX:
            yield bytes([FEED]) + frame
    # PROPERTY a, SKIP_NULL 2, CONSTANT 0, ORDER >, IS_NULL, NOT
    steps = bytes((1, 0, 0, 10, 0, 2, 0, 0, 0, 8, 0, 0, 5, 0, 0, 3, 0, 0))
    yield bytes([SCAN, len(steps) // 3]) + steps + PROPERTIES[4].encode()
    records = _records()
    yield bytes([SCAN]) + b"".join(records) + bytes(16)
    sizes = [len(record) + ENTRY_HEADER_SIZE for record in records]
    places = [sum(sizes[:number]) for number in range(len(sizes))]
    entries = b"".join(
        encode_entry_header(5 + number, 2, place, len(record)) + record
        for number, (place, record) in enumerate(zip(places, records, strict=True))
    )
    for mode in (SCAN_ENTRIES, SCAN_ENTRIES | SMALL):
        yield bytes([mode]) + entries
    found = read_run(memoryview(entries), 5, 0, count_max=len(records), size_max=len(entries))
    assert found is not None
    text = encode_run(*found)
    yield bytes([RUN_TEXT]) + b"[" + text + b"]"
    yield bytes([RUN_TEXT]) + b"[" + text[: text.index(b"}") + 1] + b'],"batch":true}'


def _frames() -> Iterator[bytes]:
    opaque = 0
    batch = encode_batch_body([BatchItem(0, b"one", b"TAGS\x01TagA"), BatchItem(1, b"two", b"")])
    for serialize_type in (SERIALIZE_JSON, SERIALIZE_ROCKETMQ):
        for topic in ("fuzz", "TopicTest", "unknown"):
            for properties in PROPERTIES:
                for code, fields, body in (
                    (310, _short(topic, properties, "false"), b"x" * 40),
                    (320, _short(topic, properties, "true"), batch),
                    (10, _long(topic, properties), b"y" * 90),
                ):
                    opaque += 1
                    yield _encode(code, opaque, fields, body, serialize_type)
            for flags, expression in (("4", "*"), ("0", ""), ("3", ""), ("6", "TagA || TagB")):
                opaque += 1
                yield _encode(11, opaque, _pull(topic, flags, expression), b"", serialize_type)
            opaque += 1
            by_sql = {**_pull(topic, "4", SQL), "expressionType": "SQL92"}
            yield _encode(11, opaque, by_sql, b"", serialize_type)
    yield _encode(34, 9999, {}, b"{}", SERIALIZE_JSON)


def _tail() -> Iterator[bytes]:
    """Yield pulls that wait at the end of their queue, and what wakes them."""
    for number in range(6):
        for topic in ("fuzz", "TopicTest"):
            for flags, expression in (("6", "*"), ("6", "TagA || TagB"), ("7", "none"), ("2", "")):
                fields = {**_pull(topic, flags, expression), "queueOffset": str(number)}
                yield _encode(11, number, fields, b"", number % 2)
            by_sql = {**_pull(topic, "6", SQL), "queueOffset": str(number)}
            yield _encode(11, number, {**by_sql, "expressionType": "SQL92"}, b"", number % 2)
            header = _short(topic, PROPERTIES[number % 5], "false")
            yield _encode(310, number, header, b"x" * 40, SERIALIZE_JSON)


def _copies(offset: int, serialize_type: int) -> Iterator[bytes]:
    """Yield a half message, which is stored at ``offset``, and requests for copies of it."""
    half = {**_short("fuzz", "TRAN_MSG\x01true\x02PGROUP\x01group\x02", "false"), "f": "4"}
    yield _encode(310, 1, half, b"x" * 40, serialize_type)
    yield _encode(34, 2, {"padding": "x" * 400}, b"", serialize_type)
    for number in range(3):
        for what in ("8", "12"):
            end = {
                "producerGroup": "group",
                "tranStateTableOffset": "0",
                "commitLogOffset": str(offset),
                "commitOrRollback": what,
                "msgId": "id",
            }
            yield _encode(37, number, end, b"", serialize_type)
        back = {
            "offset": str(offset),
            "group": "group",
            "delayLevel": str(number),
            "maxReconsumeTimes": "2",
        }
        yield _encode(36, number, back, b"", serialize_type)
        retried = {
            **_short("%RETRY%group", PROPERTIES[number], "false"),
            "j": str(number),
            "l": "2",
        }
        yield _encode(310, number, retried, b"x" * 40, serialize_type)


def _offset_requests() -> Iterator[bytes]:
    """Yield requests for offsets and for messages by key, and commits of offsets."""
    for serialize_type in (SERIALIZE_JSON, SERIALIZE_ROCKETMQ):
        for number, topic in enumerate(("fuzz", "TopicTest", "unknown") * 4):
            queue = {"topic": topic, "queueId": str(number % 3)}
            for code in (30, 31):
                yield _encode(code, number, queue, b"", serialize_type)
            yield _encode(33, number, {"offset": "0"}, b"", serialize_type)
            search = {**queue, "timestamp": str(1700000000000 + number % 2)}
            yield _encode(29, number, search, b"", serialize_type)
            sent = _short(topic, PROPERTIES[0], "false")
            yield _encode(310, number, sent, b"x" * 40, serialize_type)
            commit = {**queue, "consumerGroup": "group", "commitOffset": str(number)}
            yield _encode(15, number, commit, b"", serialize_type)
            committed = {**queue, "consumerGroup": "group"}
            yield _encode(14, number, committed, b"", serialize_type)
            yield _encode(310, number, _short(topic, PROPERTIES[1], "false"), b"", serialize_type)
            for key, unique in (("a", "false"), ("AC1100010000", "true"), ("none", "false")):
                query = {"topic": topic, "key": key, "maxNum": "3", "_UNIQUE_KEY_QUERY": unique}
                times = {"beginTimestamp": "0", "endTimestamp": str((1 << 63) - number % 2 - 1)}
                yield _encode(12, number, {**query, **times}, b"", serialize_type)


def _signed_frames() -> Iterator[bytes]:
    """Yield signed frames of each kind, from permitted accounts and from one that is not."""
    opaque = 0
    for serialize_type in (SERIALIZE_JSON, SERIALIZE_ROCKETMQ):
        for topic, signer in (("fuzz", ONE), ("TopicTest", OTHER), ("fuzz", OTHER)):
            for code, fields, body in (
                (310, _short(topic, PROPERTIES[0], "false"), b"x" * 40),
                (310, _short(topic, PROPERTIES[2], "false"), b"x" * 200),
                (10, _long(topic, PROPERTIES[1]), b"y" * 90),
                (11, _pull(topic, "4", "*"), b""),
            ):
                opaque += 1
                yield _encode(code, opaque, fields, body, serialize_type, signer)


SQL = "a > 1 AND b = 'x'"
"""The expression whose program ``target.c`` has."""

PROPERTIES = (
    "UNIQ_KEY\x01AC1100010000\x02WAIT\x01true\x02",
    "KEYS\x01a b a\x02TAGS\x01TagA\x02WAIT\x01false\x02CLUSTER\x01other",
    'KEYS\x01k\u00e9y \U0001f600\x02say\x01"quoted\\"\x02TAGS\x01TagB',
    "DELAY\x013\x02",
    "a\x0112\x02b\x01x\x02",
    "b\x01y\x02a\x01 -0.5e1\x02",
    "".join(f"p{number}\x01{number}\x02" for number in range(20)),
)


def _short(topic: str, properties: str, batch: str) -> dict[str, str]:
    values = ("group", topic, "TBW102", "4", "1", "0", "1700000000000", "0", properties, "0")
    return {**dict(zip("abcdefghij", values, strict=True)), "m": batch, "n": "broker-a"}


def _long(topic: str, properties: str) -> dict[str, str]:
    return {
        "producerGroup": "group",
        "topic": topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "1700000000000",
        "flag": "7",
        "properties": properties,
        "reconsumeTimes": "0",
        "unitMode": "false",
        "batch": "false",
    }


def _pull(topic: str, flags: str, expression: str) -> dict[str, str]:
    return {
        "consumerGroup": "group",
        "topic": topic,
        "queueId": "0" if flags == "0" else "1",
        "queueOffset": "0",
        "maxMsgNums": "32",
        "sysFlag": flags,
        "commitOffset": "0",
        "suspendTimeoutMillis": "15000",
        "subscription": expression,
        "subVersion": "0",
        "expressionType": "TAG",
    }


def _encode(
    code: int,
    opaque: int,
    fields: dict[str, str],
    body: bytes,
    serialize_type: int,
    signer: Credentials | None = None,
) -> bytes:
    command = RemotingCommand(
        code, opaque, ext_fields=fields, body=body, serialize_type=serialize_type
    )
    return bytes(encode_command(command if signer is None else signer.signed(command)))


def _records() -> list[bytes]:
    drafts = [
        OutgoingMessage(
            topic=b"fuzz",
            queue_id=1,
            body=b"z" * length,
            properties=properties.encode(),
            born_timestamp_ms=1,
            born_host=(bytes(4), 1),
            store_host=(bytes(4), 2),
        )
        for length, properties in zip((0, 1, 70, 200, 15, 8, 9), PROPERTIES, strict=True)
    ]
    return [bytes(encode_message(draft)) for draft in drafts]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=int, default=60, help="how long to fuzz")
    parser.add_argument("--seed", type=int, default=1, help="random seed of the gcc driver")
    parser.add_argument("--compiler", help="clang or gcc; default: clang if it is installed")
    parser.add_argument("--found", type=Path, help="folder to keep new inputs in")
    parser.add_argument("--crash", type=Path, help="file for the input that caused a crash")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
