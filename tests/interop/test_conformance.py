"""Every request code and every command of mqadmin, against a Java and an rmqpy server of the same
settings: docs/reference/conformance.md is what this file sees.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from difflib import unified_diff
from itertools import takewhile
from pathlib import Path

import pytest
from conformance.broker_scenario import TOPIC, run_broker_scenario
from conformance.commands import (
    FAILED,
    LINES,
    any_numbers,
    exact,
    names,
    numbers,
    prepare,
    seen,
    titles,
    unordered,
    without_paths,
)
from conformance.compare import differences, masked_text, without_places
from conformance.namesrv_scenario import run_namesrv_scenario
from conformance.page import Evidence, page, read_codes, read_commands
from conformance.wire import Wire, recorded_requests
from harness.interop import ClusterPair

from rmqpy.cli import main
from rmqpy.model.names import LEADER_MARKER_TOPIC
from rmqpy.model.names import TRANSACTION_HALF_TOPIC as HALF
from rmqpy.testing.store_reader import read_store

pytestmark = pytest.mark.interop

ROOT = Path(__file__).parents[2]
FRAMES = ROOT / "tests/golden/wire/frames.jsonl"
PAGE = ROOT / "docs/reference/conformance.md"
KINDS = ("java", "rmqpy")
ACCESS = "`tests/interop/test_access.py`: `test_mqadmin_administrates_with_its_tools_file`"
ELSEWHERE = dict.fromkeys(
    (50, 51, 52, 53, 54, "updateAclConfig", "deleteAclConfig", "clusterAclConfigVersion")
    + ("updateGlobalWhiteAddr", "getAclConfig"),
    ACCESS,
)
COMPARED = {
    exact: "every character",
    unordered: "every line, in any order",
    numbers: "every line, numbers apart",
    any_numbers: "every line, numbers apart, in any order",
    without_paths: "every character but a path",
    titles: "titles",
    names: "names of values",
}
REGISTRATION_SECONDS = 2
FIRST_CHECK_SECONDS_MAX = 60
OWN = {
    who: {"made": f"Made-{who}", "madegroup": f"made-{who}", "cloned": f"cloned-{who}"}
    for who in ("mqadmin", "rmqpy")
}
"""What each side makes for itself."""
SETTINGS = {
    "transactionCheckInterval": "1500",
    "transactionTimeOut": "500",
    "brokerClusterName": "DefaultCluster",
}


@pytest.fixture(scope="module", params=["classic", "dledger"])
def mode(request: pytest.FixtureRequest):
    return request.param


@pytest.fixture(scope="module")
def evidence():
    """What the tests of this file have seen; the last one makes the page of it."""
    return Evidence()


@pytest.fixture(scope="module")
def pair(mode, pair_of: Callable[[str, str, Mapping[str, str]], ClusterPair]):
    clusters = pair_of("conformance", mode, SETTINGS)
    for cluster in clusters.values():
        cluster.send(cluster.topic(), count=1)
    for cluster in clusters.values():
        wait_for_first_check(cluster)
    yield clusters
    for cluster in clusters.values():
        cluster.broker.stop()
        cluster.namesrv.stop()


def wait_for_first_check(cluster):
    """The first look for half messages makes their topic, at some time of each broker's own."""
    deadline = time.monotonic() + FIRST_CHECK_SECONDS_MAX
    while HALF not in cluster.admin.run("topicList"):
        assert time.monotonic() < deadline, f"no {HALF}"
        time.sleep(0.5)


def masks_of(cluster):
    """What differs from server to server; the longest first."""
    port = cluster.broker.port
    return {
        f"{cluster.broker.store}/dledger-n0/data": "LOG",
        f"{cluster.broker.store}/commitlog": "LOG",
        str(cluster.broker.store): "STORE",
        cluster.broker.address: "BROKER",
        f"127.0.0.1:{port + 1}": "REPLICATION",
        cluster.namesrv.address: "NAMESRV",
        f"7F000001{port:08X}": "HOST",
    }


def told(pair, story, address_of):
    """What both answered to the same story, one below the other."""
    recorded = recorded_requests(FRAMES)
    heard = {}
    for kind in KINDS:
        cluster = pair[kind]
        with Wire(address_of(cluster), recorded, masks_of(cluster)) as wire:
            try:
                story(wire, cluster)
            except Exception as error:
                last = wire.exchanges[-1] if wire.exchanges else None
                raise AssertionError(f"against {kind}, after {last}") from error
        heard[kind] = wire.exchanges
    return heard


def compare(heard, mode, evidence):
    """On DLedger Java leaves out what stands in the header of a batch: sizes differ from there."""
    found = []
    for java, ours in zip(heard["java"], heard["rmqpy"], strict=True):
        assert (java.code, java.name) == (ours.code, ours.name)
        seen = [each.seen if mode == "classic" else without_places(each.seen)
                for each in (java, ours)]  # fmt: skip
        evidence.exchanged(mode, java.code)
        for text in differences(*seen, more=java.more):
            found.append(f"{java.code} {java.name}{text}")
    return found


def test_every_request_of_a_name_server(pair, mode, evidence) -> None:
    def story(wire, _cluster):
        run_namesrv_scenario(wire)

    heard = told(pair, story, lambda cluster: cluster.namesrv.address)
    found = compare(heard, mode, evidence)
    assert not found, "\n".join(found)


def test_every_request_of_a_broker(pair, mode, evidence) -> None:
    def story(wire, cluster):
        fast = f"127.0.0.1:{cluster.broker.port - 2}"
        run_broker_scenario(wire, fast, "DefaultCluster")

    heard = told(pair, story, lambda cluster: cluster.broker.address)
    found = compare(heard, mode, evidence)
    assert not found, "\n".join(found)


def test_what_the_broker_wrote(pair, mode) -> None:
    """The log behind the answers above, message by message."""
    java, ours = (log_of(pair[kind]) for kind in KINDS)
    if mode == "dledger":
        java, ours = without_places(java), without_places(ours)
        for message in ours:
            if message["body"].startswith("b"):
                message["properties"].pop("CLUSTER")
    found = differences(java, ours)
    assert len(java) >= 10 and not found, "\n".join(found)


def log_of(cluster):
    reading = read_store(cluster.broker.store)
    # That topic was deleted.
    assert [problem for problem in reading.problems if TOPIC not in problem] == []
    masks = masks_of(cluster)
    return [
        {
            "topic": message.topic,
            "place": f"{message.queue_id} {message.queue_offset} {message.sys_flag}",
            "size": message.size,
            "body": masked_text(message.body.decode("latin-1"), masks),
            "properties": {
                name: masked_text(value, masks) if name != "UNIQ_KEY" else "any"
                for name, value in message.properties.items()
            },
        }
        # Half messages are looked at on a clock: how many there are of each depends on when.
        for message in takewhile(lambda each: each.topic != HALF, reading.messages)
        if message.topic != LEADER_MARKER_TOPIC
    ]


def test_every_command_of_mqadmin(
    pair,
    mode,
    evidence,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """mqadmin against Java and against rmqpy, and ``rmqpy admin`` against the same rmqpy."""
    clients = []
    try:
        words = {}
        for kind in KINDS:
            client, words[kind] = prepare(pair[kind].broker.address)
            clients.append(client)
            words[kind]["folder"] = str(tmp_path_factory.mktemp(kind))
        time.sleep(REGISTRATION_SECONDS)
        found = []
        for line in LINES:
            shown = {}
            for kind in KINDS:
                cluster = pair[kind]
                masks = masks_of(cluster) | {words[kind]["folder"]: "FOLDER"}
                masks |= {name: key for own in OWN.values() for key, name in own.items()}
                given = line.words.format(**words[kind], **OWN["mqadmin"]).split()
                answer = cluster.admin.call(*given, seconds=line.seconds)
                shown[kind] = seen(line, answer["output"], masks)
                if kind == "rmqpy" and answer["finished"]:
                    sends(evidence, line.command, answer["codes"])
                if not answer["finished"]:  # it goes on printing as long as its JVM lives
                    cluster.admin.close()
            given = line.words.format(**words[kind], **OWN["rmqpy"]).split()
            code = main(["admin", *given, *line.ours.split(), "-n", cluster.namesrv.address])
            told = capsys.readouterr()
            ours = [FAILED] if code and not told.out else seen(line, told.out, masks)
            evidence.commands[mode, line.command] = COMPARED[line.look]
            found += told_apart(line, "mqadmin: Java, rmqpy", shown["java"], shown["rmqpy"])
            found += told_apart(line, "rmqpy: mqadmin, rmqpy admin", shown["rmqpy"], ours)
    finally:
        for client in clients:
            client.close()
    assert not found, "\n".join(found)


def sends(evidence, command, codes):
    """``codes`` are CODE=ANSWER; clients that a command starts greet, leave, and ask for routes on
    a clock of their own.
    """
    for code in {int(each.partition("=")[0]) for each in codes} - {34, 35, 105}:
        evidence.sent_by.setdefault(code, set()).add(command)


def told_apart(line, who, expected, given):
    if line.look is names:
        given = [each for each in given if each in expected]
    return [
        f"{line.words}: {who} {text}"
        for text in unified_diff(expected, given, lineterm="", n=0)
        if not text.startswith(("---", "+++", "@@"))
    ]


def test_the_page_is_what_was_seen(evidence, request: pytest.FixtureRequest) -> None:
    """Last of all: rows of the lists, each with what is behind it."""
    if {mode for mode, _ in evidence.exchanges} != {"classic", "dledger"}:
        pytest.skip("both modes must have been run")
    evidence.recorded.update(recorded_requests(FRAMES))
    codes = read_codes(Path(__file__).with_name("request-codes.tsv"))
    commands = read_commands(ROOT / "tests/admin/mqadmin-4.9.7.tsv")
    made = page(codes, commands, evidence, ELSEWHERE)
    if request.config.getoption("--write-pages"):
        PAGE.write_text(made, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == made
