"""The end of each ``--help``: examples that can be copied, and the exit codes.

The commands of ``rmqpy admin`` are many and uniform, so their examples are built from their
required options.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from attrs import define

__all__ = ["HELP", "CommandHelp", "epilog_of"]

DIR = "/var/lib/rocketmq/store"
GROUP = "n0=/mnt/n0 n1=/mnt/n1 n2=/mnt/n2"
PEERS = "'n0-10.0.0.1:40911;n1-10.0.0.2:40911;n2-10.0.0.3:40911'"
ID = "AC11000100002A9F0000000000001000"


@define(slots=True, frozen=True)
class CommandHelp:
    """The examples of a command, and what exit code 2 means ("" if it has none)."""

    examples: tuple[str, ...]
    no: str = ""


def _help(*examples: str, no: str = "") -> CommandHelp:
    return CommandHelp(tuple(f"rmqpy {example}" for example in examples), no)


NOT_PROVEN = "no cause was proven"
REFUSED = "refused by a safety check; nothing was changed"
HELP = {
    "": _help(f"store inspect {DIR}", "broker -c broker.conf", "upgrade check --help"),
    "namesrv": _help("namesrv", "namesrv -c namesrv.conf --set listenPort=9876"),
    "broker": _help("broker -c broker.conf -n 127.0.0.1:9876", "broker -c broker.conf -p"),
    "dev": _help("dev", "dev --group 3 --topic Orders:8 --set flushDiskType=SYNC_FLUSH"),
    "console": _help(
        "console -n 127.0.0.1:9876",
        "console -n 10.0.0.1:9876 --host 0.0.0.0 --token-file token --certificate c.pem",
        "console -n 127.0.0.1:9876 --port 8081 --allow-writes",
    ),
    "demo": _help("demo", f"demo --store {DIR} --keep demo", no="a step did not succeed"),
    "record": _help(
        "record traffic.rec --to 10.0.0.1:10911 -n 10.0.0.1:9876",
        f"record traffic.rec --store {DIR} --from 1790000000000",
    ),
    "replay": _help(
        "replay traffic.rec --to 127.0.0.1:10911 --speed 10",
        "replay traffic.rec --to 10.0.0.1:10911 --to 10.0.0.2:10911 --rate 500 --format json",
        no="there are differences",
    ),
    "suite": _help("suite run suite.toml", no="a case has findings"),
    "suite run": _help(
        "suite run suite.toml",
        "suite run suite.toml --junit suite.xml --html suite.html",
        "suite run suite.toml --work /mnt/suite --keep --format json",
        no="a case has findings",
    ),
    "store": _help(f"store inspect {DIR}", f"store fsck {DIR}", no="damage was found"),
    "store inspect": _help(f"store inspect {DIR}", f"store inspect {DIR} --format json"),
    "store fsck": _help(
        f"store fsck {DIR}",
        f"store fsck {DIR} -c broker.conf --format json",
        f"store fsck {DIR} --quarantine",
        no="damage was found, or a repair was only shown",
    ),
    "store backup": _help(
        f"store backup {DIR} /mnt/backup/2026-11-28",
        f"store backup {DIR} /mnt/backup/2026-11-28 --rate 50",
        f"store backup {DIR} /mnt/backup/2026-11-28 -c broker.conf --format json",
    ),
    "store map": _help(
        f"store map {DIR} --html map.html",
        "store map /mnt/n0 /mnt/n1 /mnt/n2 --html map.html",
        f"store map {DIR} --serve --port 8081",
    ),
    "store dump": _help(
        f"store dump {DIR} --topic Orders --queue 0 --from 10 --to 20",
        f"store dump {DIR} --key order-7 --body none",
        no="bytes were skipped that are not a message",
    ),
    "admin": _help(
        "admin clusterList -n 127.0.0.1:9876",
        "admin topicStatus -n 127.0.0.1:9876 -t Orders --format json",
        no="the answer is no, such as a message that does not exist",
    ),
    "upgrade": _help(
        "upgrade init n0.conf n1.conf n2.conf",
        "upgrade status",
        "upgrade next",
        no="findings, or refused by a safety check",
    ),
    "upgrade init": _help(
        "upgrade init n0.conf n1.conf n2.conf",
        "upgrade init n0.conf ssh://ops@host1/etc/broker.conf ssh://ops@host2/etc/broker.conf",
        no=REFUSED,
    ),
    "upgrade next": _help("upgrade next", "upgrade next --back --yes", no=REFUSED),
    "upgrade run": _help(
        "upgrade run --until verified",
        "upgrade run --until returned --yes",
        no="a step was refused, or a person must decide; status says what is next",
    ),
    "upgrade check": _help(
        "upgrade check", f"upgrade check {GROUP} -c n0=n0.conf", no="something prevents a switch"
    ),
    "upgrade manifest": _help(f"upgrade manifest n0={DIR} --format json"),
    "upgrade prepare": _help("upgrade prepare", f"upgrade prepare {GROUP} --rate 20"),
    "upgrade plan": _help(
        "upgrade plan",
        "upgrade plan --details",
        f"upgrade plan {GROUP} --out plan.json",
        no=REFUSED,
    ),
    "upgrade apply": _help(
        "upgrade apply",
        f"upgrade apply {GROUP} --plan plan.json --node n1",
        f"upgrade apply --resume {DIR}",
        no=REFUSED,
    ),
    "upgrade switch": _help(
        "upgrade switch",
        f"upgrade switch {GROUP} -c n0=n0.conf -c n1=n1.conf -c n2=n2.conf --peers {PEERS}",
        "upgrade switch --runbook java",
        no=REFUSED,
    ),
    "upgrade join": _help(f"upgrade join n2={DIR} --from n0=https://10.0.0.1:8443", no=REFUSED),
    "upgrade leave": _help(
        "upgrade leave",
        f"upgrade leave {GROUP} --role n0=SYNC_MASTER --out leave.json",
        f"upgrade leave n0={DIR} --into /tmp/copy",
        no=REFUSED,
    ),
    "upgrade rollback": _help("upgrade rollback", f"upgrade rollback {DIR}", no=REFUSED),
    "upgrade finalize": _help("upgrade finalize", f"upgrade finalize {DIR}", no=REFUSED),
    "upgrade verify": _help(
        "upgrade verify",
        f"upgrade verify {GROUP} --out certificate.json --key secret",
        no="the stores are not equal",
    ),
    "upgrade status": _help(
        "upgrade status",
        f"upgrade status {GROUP}",
        no="a person must look at the group, or a plan is half done",
    ),
    "upgrade serve": _help(f"upgrade serve {DIR} --host 10.0.0.1 --token-file token"),
    "upgrade agent": _help("upgrade agent"),
    "rehearse": _help(
        "rehearse -n 127.0.0.1:9876 -b broker-a --dir /data/rehearsal",
        "rehearse -n 127.0.0.1:9876 -b broker-a --dir /data/rehearsal --rate 50 --keep",
        no="not ready, or the group cannot be copied",
    ),
    "pipeline": _help("pipeline doctor", f"pipeline audit {DIR}", no="damage or differences"),
    "pipeline doctor": _help("pipeline doctor"),
    "pipeline audit": _help(f"pipeline audit {DIR} --html report.html", no="damage was found"),
    "pipeline compare": _help(f"pipeline compare {GROUP}", no="the replicas differ"),
    "pipeline certify": _help(
        f"pipeline certify {GROUP} --out certificate.json", no="the replicas are not equal"
    ),
    "pipeline plan": _help(f"pipeline plan {GROUP} --out plan.json", no=REFUSED),
    "pipeline rebuild": _help(f"pipeline rebuild n0={DIR} --out plan.json", no=REFUSED),
    "pipeline export": _help(f"pipeline export {DIR} --to /data/messages"),
    "pipeline append": _help(
        f"pipeline append {DIR} --broker-name broker-a --table delta --to /data/messages",
        f"pipeline append {DIR} --broker-name broker-a --table parquet --to /data/orders"
        " --topic orders --body-schema orders.json --mask masking.toml",
        f"pipeline append {DIR} --broker-name broker-a --table iceberg --catalog prod --to"
        " mq.messages",
        no="damage was skipped",
    ),
    "pipeline query": _help(
        "pipeline query",
        f"pipeline query retention --on {DIR} --set hours=48",
        "pipeline query dead-letters --on /data/messages --format json",
    ),
    "pipeline sql": _help(
        f"pipeline sql 'select topic, count(*) from messages group by 1' --on {DIR}"
    ),
    "where": _help(
        f"where {ID} {DIR}",
        f"where {ID} -n 127.0.0.1:9876",
        "where order-7 127.0.0.1:10911 --topic Orders",
        no="the message was not found",
    ),
    "completion": _help(
        "completion bash > /etc/bash_completion.d/rmqpy",
        "completion fish > ~/.config/fish/completions/rmqpy.fish",
    ),
    "why": _help(f"why not-deleted {DIR}", f"why slow-start {DIR}", no=NOT_PROVEN),
    "why no-message": _help(
        f"why no-message 127.0.0.1:10911 --id {ID} --group orders-app",
        f"why no-message {DIR} --topic Orders --group orders-app",
        no=NOT_PROVEN,
    ),
    "why not-deleted": _help(
        f"why not-deleted {DIR} -c broker.conf", "why not-deleted 127.0.0.1:10911", no=NOT_PROVEN
    ),
    "why slow-start": _help(f"why slow-start {DIR} -c broker.conf", no=NOT_PROVEN),
    "why election": _help(
        "why election /mnt/n0 /mnt/n1 /mnt/n2",
        "why election 10.0.0.1:10911 10.0.0.2:10911 10.0.0.3:10911",
        no=NOT_PROVEN,
    ),
}
"""The help of each command by its words after ``rmqpy``."""

_VALUES = {
    "accessKey": "app",
    "aclDelete": "false",
    "body": "hello",
    "brokerAddr": "127.0.0.1:10911",
    "brokerName": "broker-a",
    "clientId": "10.0.0.1@1",
    "clusterName": "DefaultCluster",
    "consumerGroup": "orders-app",
    "destGroup": "orders-app-2",
    "globalWhiteRemoteAddresses": "10.0.0.*",
    "group": "orders-app",
    "groupName": "orders-app",
    "index": "0",
    "ipList": "10.0.0.1@1,10.0.0.2@1",
    "key": "fileReservedTime",
    "method": "get",
    "msgId": ID,
    "msgKey": "order-7",
    "namespace": "ORDER_TOPIC_CONFIG",
    "offset": "0",
    "perm": "6",
    "producerGroup": "orders-producer",
    "queue": "0",
    "queueId": "0",
    "secretKey": "secret-key",
    "srcGroup": "orders-app",
    "successor": "n1",
    "target": "127.0.0.1:10921",
    "timestamp": "now",
    "topic": "Orders",
    "value": "48",
}
"""Plausible values of required options of ``rmqpy admin``."""


def epilog_of(parser: argparse.ArgumentParser) -> str:
    """Return the end of a parser's help."""
    path = parser.prog.removeprefix("rmqpy").strip()
    found = HELP.get(path)
    if found is None and path.startswith("admin "):
        found = CommandHelp((_admin_example(parser),), HELP["admin"].no)
    if found is None:
        return ""
    return "\n".join(_lines(found))


def _lines(found: CommandHelp) -> Iterator[str]:
    yield "examples:"
    yield from (f"  {example}" for example in found.examples)
    yield ""
    yield "exit codes:"
    yield "  0  done or clean"
    yield "  1  could not be done, bad usage included"
    if found.no:
        yield f"  2  {found.no}"


def _admin_example(parser: argparse.ArgumentParser) -> str:
    words = [parser.prog, "-n 127.0.0.1:9876"]
    for action in parser._actions:
        if action.required and action.option_strings:
            name = action.option_strings[-1].removeprefix("--")
            words.append(f"{action.option_strings[0]} {_VALUES[name]}")
    return " ".join(words)
