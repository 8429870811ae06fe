"""Why a start is slow: what the next start of a broker has to read, rebuild, and create.

Java 4.9 and rmqpy follow different rules after an unclean stop. Java reads the log from the last
file whose first message is older than the checkpoint, and dispatches all of it again; rmqpy starts
at its recovery point, if it has one: at most 128 MiB before the end, and 16 KiB for each queue.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from attrs import define

from rmqpy.model.text import count_text, format_bytes, format_duration, time_text
from rmqpy.why.answer import (
    Answer,
    Cause,
    possible,
    proven,
    ranked,
)

__all__ = ["StartFacts", "explain_slow_start"]

QUESTION = "why slow-start"
MANY_FILES = 10_000
"""The number of queue files from which opening them takes seconds."""
BIG_BYTES = 1 << 30
"""The number of bytes from which reading them takes seconds."""


@define(slots=True, frozen=True, kw_only=True)
class StartFacts:
    """What a start finds.

    ``scan_java`` and ``scan_rmqpy`` are the bytes of the log that are read, from ``scan_java_file``
    on; ``dispatch_java`` and ``dispatch_rmqpy`` are those from which queues and index are derived
    again. ``behind_bytes`` is what a running broker still has to dispatch (-1: not running or
    unknown). ``lost_index_bytes`` are index files that are deleted and built again.
    ``bytes_per_second`` is the rate at which the end of the log was just read (0: unknown).
    """

    subject: str
    target: str
    running: bool
    is_live: bool = False
    settings: Mapping[str, str]
    settings_from: str
    mode: str = ""
    clean: bool = True
    log_bytes: int = 0
    scan_java: int = 0
    scan_java_file: str = ""
    scan_rmqpy: int = 0
    dispatch_java: int = 0
    dispatch_rmqpy: int = 0
    checkpoint_ms: int = -1
    checkpoint_fault: str = ""
    recovery_point: int = -1
    log_end: int = 0
    queue_files: int = 0
    queue_count: int = 0
    missing_queues: tuple[str, ...] = ()
    rebuilds: int = 0
    index_files: int = 0
    index_bytes: int = 0
    lost_index_files: int = 0
    lost_index_bytes: int = 0
    tail: str = ""
    unfinished: str = ""
    map_limit: int = -1
    behind_bytes: int = -1
    booted_ms: int = -1
    now_ms: int = 0
    bytes_per_second: float = 0

    def work(self, count: int) -> str:
        """Return a number of bytes, with the time that reading them takes if it is known."""
        text = format_bytes(count)
        if not self.bytes_per_second or not count:
            return text
        seconds = count / self.bytes_per_second
        return f"{text}, {format_duration(seconds) if seconds >= 1 else 'less than 1 s'}"

    def is_on(self, key: str) -> bool:
        return self.settings.get(key) == "true"


def explain_slow_start(facts: StartFacts) -> Answer:
    sized = sorted(_sized(facts), key=lambda pair: -pair[0])
    causes = [*_refused(facts), *(cause for _, cause in sized), *_settings(facts)]
    return Answer(
        question=QUESTION,
        subject=facts.subject,
        facts=tuple(_facts(facts)),
        causes=ranked(causes),
        nothing="the next start has nothing to repair: it reads the last three files of the log",
        ruled_out=tuple(_ruled_out(facts)),
        not_examined=tuple(_not_examined(facts)),
    )


def _refused(facts: StartFacts) -> Iterator[Cause]:
    if facts.unfinished:
        yield proven(
            f"an upgrade is half done ({facts.unfinished}): rmqpy refuses to start",
            "rmqpy/upgrade/journal.json",
            next=(f"rmqpy upgrade status {facts.target}",),
        )
    if facts.tail:
        yield proven(f"the log does not end cleanly: {facts.tail}", next=(_fsck(facts),))


def _sized(facts: StartFacts) -> Iterator[tuple[int, Cause]]:
    """Yield (bytes of work, cause)."""
    if facts.behind_bytes > 0:
        yield (
            facts.behind_bytes,
            proven(
                f"the start is still under way: {format_bytes(facts.behind_bytes)} of the log are"
                " not in the consume queues yet",
                "dispatchBehindBytes of the runtime information",
                next=(f"rmqpy admin brokerStatus -b {facts.target}: watch dispatchBehindBytes",),
            ),
        )
    if facts.is_live:
        return
    if not facts.clean:
        yield facts.scan_java, _unclean(facts)
    if facts.clean and facts.scan_java > BIG_BYTES:
        yield (
            facts.scan_java,
            proven(
                f"the last three files of the log are read: {facts.work(facts.scan_java)}",
                f"mappedFileSizeCommitLog={facts.settings.get('mappedFileSizeCommitLog')}"
                f" ({facts.settings_from})",
                f"checkCRCOnRecover={facts.settings.get('checkCRCOnRecover')}",
            ),
        )
    dispatched = max(facts.dispatch_rmqpy, 0)
    if facts.clean and dispatched:
        yield (
            dispatched,
            proven(
                f"the consume queues end {format_bytes(dispatched)} before the log: a start derives"
                " the rest from the log",
                f"the log ends at offset {facts.log_end}",
                f"to read: {facts.work(dispatched)}",
                next=(_fsck(facts),),
            ),
        )
    if facts.missing_queues:
        named = ", ".join(facts.missing_queues[:5])
        yield (
            facts.log_bytes,
            proven(
                f"{count_text(len(facts.missing_queues), 'topic')} of topics.json with messages in"
                f" the recovery point have no consume queue: {named}",
                next=(_fsck(facts),),
            ),
        )
    if facts.rebuilds:
        yield (
            facts.log_bytes // 2,
            proven(
                f"{count_text(facts.rebuilds, 'consume queue')} are cut and rebuilt: readers found"
                " units that lead to no message",
                "rmqpy/queue-rebuilds",
            ),
        )
    if facts.lost_index_files:
        yield (
            facts.lost_index_bytes,
            proven(
                f"{count_text(facts.lost_index_files, 'index file')}"
                f" ({format_bytes(facts.lost_index_bytes)}) may be incomplete after the unclean"
                " stop: deleted; rmqpy builds the entries again, Java only those of messages that"
                " it dispatches again",
                "indexMsgTimestamp in checkpoint",
                next=("messageIndexEnable=false saves the work if nobody searches by key",),
            ),
        )
    if facts.queue_files >= MANY_FILES:
        yield facts.queue_files * 6_000, _many_files(facts)


def _unclean(facts: StartFacts) -> Cause:
    evidence = ["abort exists"]
    if facts.checkpoint_fault:
        evidence.append(f"checkpoint: {facts.checkpoint_fault}: Java reads the whole log")
    elif facts.checkpoint_ms > 0:
        evidence.append(f"checkpoint: messages stored before {time_text(facts.checkpoint_ms)}")
    else:
        evidence.append("checkpoint: none, so Java reads the whole log")
    if facts.scan_java_file:
        evidence.append(f"Java reads from {facts.scan_java_file} on")
    if facts.recovery_point >= 0:
        evidence.append(f"rmqpy/recovery-point: offset {facts.recovery_point}")
    java, ours = facts.work(facts.scan_java), facts.work(facts.scan_rmqpy)
    return proven(
        f"the last stop was unclean: the log is read from a safe point on (by Java {java}; by"
        f" rmqpy {ours}), and consume queues are derived from that part again",
        *evidence,
        next=(
            "stop brokers with SIGTERM and wait; give service managers a stop time-out of minutes",
        ),
    )


def _many_files(facts: StartFacts) -> Cause:
    limit = f"vm.max_map_count={facts.map_limit}" if facts.map_limit >= 0 else ""
    close = facts.map_limit >= 0 and facts.queue_files * 10 > facts.map_limit * 8
    warning = ": its start fails when the limit of mappings is reached" if close else ""
    return proven(
        f"{count_text(facts.queue_files, 'consume queue file')} of"
        f" {count_text(facts.queue_count, 'queue')} are opened and"
        " checked one by one; rmqpy closes each again until its queue is used, Java keeps all of"
        f" them mapped{warning}",
        *filter(None, (limit,)),
        next=(
            "rmqpy admin cleanUnusedTopic and deleteTopic remove queues that nobody uses",
            "for Java: sysctl vm.max_map_count=655360" if close else "fewer queues per topic",
        ),
    )


def _settings(facts: StartFacts) -> Iterator[Cause]:
    if facts.is_on("warmMapedFileEnable"):
        yield possible(
            "a Java broker touches every page of each new log file",
            f"warmMapedFileEnable=true ({facts.settings_from})",
            next=("leave it off, unless the first writes to a file are too slow",),
        )
    if facts.is_on("transientStorePoolEnable"):
        count = facts.settings.get("transientStorePoolSize", "5")
        size = facts.settings.get("mappedFileSizeCommitLog", "?")
        yield possible(
            f"a Java broker allocates and locks {count} buffers of {size} bytes at its start",
            f"transientStorePoolEnable=true ({facts.settings_from})",
            next=("check that the memory is free and ulimit -l allows it",),
        )


def _fsck(facts: StartFacts) -> str:
    return f"rmqpy store fsck {facts.target} shows what is missing or damaged"


def _facts(facts: StartFacts) -> Iterator[tuple[str, str]]:
    if facts.is_live:
        if facts.booted_ms >= 0:
            yield "started", time_text(facts.booted_ms)
        yield "behind", f"{format_bytes(max(facts.behind_bytes, 0))} to dispatch"
        return
    yield "log", f"{facts.mode}, {format_bytes(facts.log_bytes)}, ends at offset {facts.log_end}"
    stop = "clean" if facts.clean else "unclean (abort exists)"
    yield "last stop", "a broker runs on the directory" if facts.running else stop
    java = f"{format_bytes(facts.dispatch_java)} dispatched, {facts.work(facts.scan_java)} read"
    ours = f"{format_bytes(facts.dispatch_rmqpy)} dispatched, {facts.work(facts.scan_rmqpy)} read"
    yield "next start", f"Java 4.9: {java}; rmqpy: {ours}"
    if facts.bytes_per_second:
        yield "reading", f"{format_bytes(round(facts.bytes_per_second))} a second, measured now"
    queues = count_text(facts.queue_files, "file")
    yield "consume queues", f"{queues} of {count_text(facts.queue_count, 'queue')}"
    yield "key index", f"{count_text(facts.index_files, 'file')}, {format_bytes(facts.index_bytes)}"


def _ruled_out(facts: StartFacts) -> Iterator[str]:
    if facts.is_live:
        if facts.behind_bytes == 0:
            yield "dispatch: the consume queues have everything that is in the log"
        return
    if facts.clean and not facts.running:
        yield "an unclean stop: abort does not exist"
    if facts.clean and not facts.dispatch_rmqpy:
        yield "dispatch: the consume queues end where the log does"
    if facts.queue_files < MANY_FILES:
        yield f"many queue files: {facts.queue_files}"


def _not_examined(facts: StartFacts) -> Iterator[str]:
    if not facts.bytes_per_second:
        yield "how long reading takes: there is too little of the log to measure it"
    else:
        yield "what of the files leaves the page cache until the start, and how long dispatch takes"
    if facts.is_live:
        yield "the directory: what the next start has to read; run this on it"
    elif facts.settings_from == "default":
        yield "the broker's settings: defaults are assumed; give -c broker.conf"
    if facts.running and not facts.is_live:
        yield "the end of the log: a broker is writing it; if it is killed, this is what follows"
