"""The hazards that the switch of the Java broker leaves to the operator.

Each hazard names the checks that find it, or says why it cannot happen here.
``docs/reference/upgrade.md`` shows this table.
"""

from __future__ import annotations

from attrs import define


@define(slots=True, frozen=True)
class Hazard:
    """One hazard.

    ``checks`` are names of :data:`rmqpy.upgrade.checks.group_checks.CHECKS`. ``here`` is what rmqpy
    does in addition, or why there is nothing to check.
    """

    number: str
    what: str
    checks: tuple[str, ...]
    here: str


HAZARDS = (
    Hazard(
        "H1",
        "an old log ends in an earlier file: its node never dispatches again",
        ("same-log", "same-divide"),
        "align copies the missing files",
    ),
    Hazard(
        "H2",
        "same last file, fewer messages: acknowledged ones are lost, queue offsets shift",
        ("same-log", "queues-match"),
        "align copies the missing range",
    ),
    Hazard(
        "H3",
        "a follower's old log is longer than the leader's: both logs overlap",
        ("same-log", "same-divide", "divide-fits"),
        "the longest log is the reference",
    ),
    Hazard(
        "H4",
        "same length, different bytes: each node serves its own history",
        ("same-log",),
        "the operator chooses; the other side is moved aside",
    ),
    Hazard(
        "H5",
        "switched after an unclean stop: consume queue tails stay lost",
        ("clean-stop", "queues-match"),
        "our first start recovers with the abnormal rules",
    ),
    Hazard(
        "H6",
        "an empty file allocated ahead counts as the last old file: the divide is one file too far",
        ("file-ahead", "same-divide"),
        "align moves it aside; our start drops it",
    ),
    Hazard(
        "H7",
        "mappedFileSizeCommitLog differs from the files, or between nodes",
        ("file-sizes", "same-sizes"),
        "plan refuses",
    ),
    Hazard(
        "H8",
        "bytes after the last message differ: a false alarm for md5",
        ("tail-bytes",),
        "the digests of the manifest exclude them",
    ),
    Hazard(
        "H9",
        "the flag is turned off again: new messages are hidden, their queue offsets assigned twice",
        ("switched", "divide-fits"),
        "our broker refuses to start; use leave",
    ),
    Hazard(
        "H10",
        "the flag is turned off after old files have expired: all consume queues are destroyed",
        ("switched",),
        "our broker refuses to start; use leave",
    ),
    Hazard(
        "H11",
        "switched node by node: two masters, no replication",
        ("flags-together",),
        "switch is one plan for all nodes",
    ),
    Hazard(
        "H12",
        "tables of a slave are older than the master's or missing",
        ("tables-agree", "tables-there", "tables-readable"),
        "plan, join, and leave merge them: the largest offset and the later version win",
    ),
    Hazard(
        "H13",
        "a consumer offset above the end of its queue",
        ("offsets-in-range",),
        "the merge sets it to the end",
    ),
    Hazard(
        "H14",
        "the new log cannot be cleaned while old files exist: the disk fills up",
        ("retention",),
        "",
    ),
    Hazard(
        "H15",
        "a node without the old log joins, or even leads",
        ("same-log", "tables-there"),
        "align copies it; switch refuses a node without it",
    ),
    Hazard(
        "H16",
        "messages above 4 MiB minus 48 bytes are refused after the switch",
        ("message-size",),
        "our leader refuses them with a reason",
    ),
    Hazard(
        "H17",
        "earlier half messages are resolved from the old log of the leader",
        ("half-messages", "same-log"),
        "with equal logs every leader resolves them",
    ),
    Hazard("H18", "a self id is not a letter and a number", ("self-ids",), ""),
    Hazard(
        "H19",
        "a peer's port is taken, peers differ, or the HA port is gone",
        ("peers", "same-group"),
        "",
    ),
    Hazard(
        "H20",
        "messages are acknowledged from page caches only; the vote is not synced",
        (),
        "our members sync vote and term before they answer; flushDiskType=SYNC_FLUSH waits for"
        " a synced quorum. With Java members a simultaneous loss of power remains a risk that"
        " files do not show",
    ),
    Hazard(
        "H21",
        "the committed index in the file is up to 3 s old after a start",
        ("committed",),
        "reported as a note; the group commits again what a quorum has",
    ),
    Hazard(
        "H22",
        "a follower's log was cut below its committed index",
        ("committed", "same-entries"),
        "",
    ),
    Hazard(
        "H23",
        "files were copied with a new time: retention starts over, searches by time miss",
        ("times",),
        "apply keeps the times",
    ),
    Hazard(
        "H24",
        "a foreign file is in commitlog/: Java does not start",
        ("strays",),
        "our own files are in rmqpy/ only",
    ),
    Hazard(
        "H25",
        "the earliest time is read at offset + 48 while old files exist",
        (),
        "ours reads the first record at its own offset; with Java brokers a reset by time to the"
        " start of a queue may miss until the old files have expired",
    ),
    Hazard(
        "H26",
        "properties of a batch's header are lost in DLedger mode",
        (),
        "ours writes the same properties in both modes; a store does not show what was lost",
    ),
    Hazard(
        "H27",
        "a damaged record hides up to a file of messages",
        ("log-sound",),
        "our dispatch stops with the place instead of skipping",
    ),
    Hazard("H28", "batch push is on with members of mixed versions", ("batch-push",), ""),
)


CONTROLLER_HAZARDS = (
    Hazard(
        "C1",
        "a slave that lags is started first: the controller elects it, queue offsets are given"
        " twice, and acknowledged messages are lost",
        ("same-log",),
        "switch refuses replicas that differ; plan and apply make them equal",
    ),
    Hazard(
        "C2",
        "a replica without epochs lags: it is never served, and messages are acknowledged on one"
        " copy",
        ("epochs", "same-log"),
        "switch gives every replica epoch 0",
    ),
    Hazard(
        "C3",
        "a replica is longer than the one that is elected: it keeps messages that no other has",
        ("same-log",),
        "the longest log is the reference",
    ),
    Hazard(
        "C4",
        "a new machine with an empty store is started first: the group begins at offset 0",
        ("same-log", "tables-there"),
        "apply fills it; an empty replica that is started later is served from the first offset",
    ),
    Hazard(
        "C5",
        "a store has the identity of another group: its broker starts, and gets no role",
        ("identities",),
        "",
    ),
    Hazard(
        "C6",
        "two stores have one identity, because one is a copy: both brokers become masters, and give"
        " queue offsets twice",
        ("identities",),
        "",
    ),
    Hazard(
        "C7",
        "epochFileCheckpoint is damaged, or does not fit the log: 5.x takes it for empty, or cuts"
        " the log in the wrong place",
        ("epochs",),
        "switch writes it with a CRC",
    ),
    Hazard(
        "C8",
        "the controller has data of an earlier group of this name: it waits for a replica that no"
        " longer exists, or has the old one elected",
        (),
        "switch asks the controllers that answer, and refuses if they know the brokerName",
    ),
    Hazard(
        "C9",
        "the controller has lost its data, and the replicas have not: it does not know their"
        " identities, so none gets a role",
        (),
        "switch refuses stores that have the epochs of a controller; leave takes them out first",
    ),
    Hazard(
        "C10",
        "a replica was killed: 5.x dispatches nothing until it has a role, and no confirm offset"
        " says how far its log is right",
        ("clean-stop", "queues-match"),
        "switch refuses it",
    ),
    Hazard(
        "C11",
        "keys exclude each other, or differ between replicas: the broker ends, has no replication,"
        " refuses every message, or is a second master",
        ("controller-flags",),
        "switch removes the keys of the other modes, and checks the result before it writes",
    ),
    Hazard(
        "C12",
        "a former master has gone on after another one was elected: its messages replace"
        " acknowledged ones if it is elected again",
        ("epochs", "same-log"),
        "leave keeps the side with the newest epoch",
    ),
    Hazard(
        "C13",
        "what a truncation has cut off is still on the disk, and is there again after a crash"
        " (#10666)",
        ("stale-tail",),
        "",
    ),
    Hazard(
        "C14",
        "the timer log leads beyond the end of a truncated log: timer messages are not delivered"
        " any more (#10668)",
        ("timers-in-log",),
        "",
    ),
    Hazard(
        "C15",
        "the log ends before the offset that the group has confirmed: 5.x lowers the offset, and"
        " acknowledged messages are missing",
        ("confirm-offset",),
        "",
    ),
    Hazard(
        "C16",
        "a broker that knows no controller is started on the store: 4.9, or one without"
        " enableControllerMode",
        ("versions", "controller-flags", "tables-readable"),
        "our broker refuses to start",
    ),
    Hazard(
        "C17",
        "mappedFileSizeCommitLog differs from the files, or between replicas",
        ("file-sizes", "same-sizes"),
        "plan refuses",
    ),
    Hazard(
        "C18",
        "a group with a SYNC_MASTER acknowledges messages that only its master has",
        ("controller-flags",),
        "switch sets allAckInSyncStateSet; the check compares it",
    ),
)
"""The hazards of the way to a controller of RocketMQ 5.x, and of a group that has one."""
