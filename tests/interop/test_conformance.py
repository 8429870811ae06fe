"""Every request code and every command of mqadmin, against a Java and an rmqpy server with the same
settings. docs/reference/conformance.md is generated from what these tests compare.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import unified_diff
from itertools import takewhile
from pathlib import Path

import pytest
from conformance.broker_scenario import TOPIC, run_broker_scenario
from conformance.commands import (
    FAILED,
    LINES,
    Line,
    OnlineClient,
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
from conformance.compare import Seen, differences, masked_text, without_places
from conformance.namesrv_scenario import run_namesrv_scenario
from conformance.page import Evidence, page, read_codes, read_commands
from conformance.wire import Exchange, Wire, recorded_requests
from harness.interop import ClusterPair, InteropCluster

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
PairOf = Callable[[str, str, Mapping[str, str]], ClusterPair]
Scenario = Callable[[Wire, InteropCluster], None]

ELSEWHERE: dict[int | str, str] = dict.fromkeys(
    (50, 51, 52, 53, 54, "updateAclConfig", "deleteAclConfig", "clusterAclConfigVersion")
    + ("updateGlobalWhiteAddr", "getAclConfig"),
    ACCESS,
)
"""The codes and commands that another file tests."""
COMPARED: dict[Callable[[str], list[str]], str] = {
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
OWN_NAMES = {
    tool: {"made": f"Made-{tool}", "madegroup": f"made-{tool}", "cloned": f"cloned-{tool}"}
    for tool in ("mqadmin", "rmqpy")
}
"""The names of the topics and groups that each tool creates."""
SETTINGS = {
    "transactionCheckInterval": "1500",
    "transactionTimeOut": "500",
    "brokerClusterName": "DefaultCluster",
}


@pytest.fixture(scope="module", params=["classic", "dledger"])
def mode(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    """What the tests of this file have compared; the last test builds the page from it."""
    return Evidence()


@pytest.fixture(scope="module")
def pair(mode: str, pair_of: PairOf) -> Iterator[ClusterPair]:
    clusters = pair_of("conformance", mode, SETTINGS)
    for cluster in clusters.values():
        cluster.send(cluster.topic(), count=1)
    for cluster in clusters.values():
        wait_for_first_check(cluster)
    yield clusters
    for cluster in clusters.values():
        cluster.broker.stop()
        cluster.namesrv.stop()


def wait_for_first_check(cluster: InteropCluster) -> None:
    """Wait until the first check for half messages has created their topic; each broker chooses
    its time.
    """
    deadline = time.monotonic() + FIRST_CHECK_SECONDS_MAX
    while HALF not in cluster.admin.run("topicList"):
        assert time.monotonic() < deadline, f"no {HALF}"
        time.sleep(0.5)


def masks_of(cluster: InteropCluster) -> dict[str, str]:
    """Return the texts that differ from server to server and their masks, the longest first."""
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


def exchanges_of_both(
    pair: ClusterPair, scenario: Scenario, address_of: Callable[[InteropCluster], str]
) -> dict[str, list[Exchange]]:
    """Run a scenario against both servers and return the exchanges by kind of server."""
    recorded = recorded_requests(FRAMES)
    exchanges: dict[str, list[Exchange]] = {}
    for kind in KINDS:
        cluster = pair[kind]
        with Wire(address_of(cluster), recorded, masks_of(cluster)) as wire:
            try:
                scenario(wire, cluster)
            except Exception as error:
                last = wire.exchanges[-1] if wire.exchanges else None
                raise AssertionError(f"against {kind}, after {last}") from error
        exchanges[kind] = wire.exchanges
    return exchanges


def compare(exchanges: dict[str, list[Exchange]], mode: str, evidence: Evidence) -> list[str]:
    """Return the differences between the exchanges with both servers.

    On DLedger Java leaves out the properties in the header of a batch, so sizes and places in the
    log differ after it.
    """
    found: list[str] = []
    for java, ours in zip(exchanges["java"], exchanges["rmqpy"], strict=True):
        assert (java.code, java.name) == (ours.code, ours.name)
        seen_by_java, seen_by_us = (
            each.seen if mode == "classic" else without_places(each.seen) for each in (java, ours)
        )
        evidence.exchanged(mode, java.code)
        for text in differences(seen_by_java, seen_by_us, more=java.more):
            found.append(f"{java.code} {java.name}{text}")
    return found


def test_every_request_of_a_name_server(pair: ClusterPair, mode: str, evidence: Evidence) -> None:
    def scenario(wire: Wire, _cluster: InteropCluster) -> None:
        run_namesrv_scenario(wire)

    exchanges = exchanges_of_both(pair, scenario, lambda cluster: cluster.namesrv.address)
    found = compare(exchanges, mode, evidence)
    assert not found, "\n".join(found)


def test_every_request_of_a_broker(pair: ClusterPair, mode: str, evidence: Evidence) -> None:
    def scenario(wire: Wire, cluster: InteropCluster) -> None:
        fast = f"127.0.0.1:{cluster.broker.port - 2}"
        run_broker_scenario(wire, fast, "DefaultCluster")

    exchanges = exchanges_of_both(pair, scenario, lambda cluster: cluster.broker.address)
    found = compare(exchanges, mode, evidence)
    assert not found, "\n".join(found)


def test_both_brokers_wrote_the_same_log(pair: ClusterPair, mode: str) -> None:
    """The logs that the scenarios above leave are compared message by message."""
    java, ours = (log_of(pair[kind]) for kind in KINDS)
    if mode == "dledger":
        java, ours = without_places(java), without_places(ours)
        for message in ours:
            if message["body"].startswith("b"):
                message["properties"].pop("CLUSTER")
    found = differences(java, ours)
    assert len(java) >= 10 and not found, "\n".join(found)


def log_of(cluster: InteropCluster) -> Seen:
    """Return the messages of a broker's log in comparable form."""
    assert cluster.broker.store is not None
    reading = read_store(cluster.broker.store)
    # The scenario has deleted that topic.
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
        # Brokers check half messages periodically, so the number of copies depends on the clock.
        for message in takewhile(lambda each: each.topic != HALF, reading.messages)
        if message.topic != LEADER_MARKER_TOPIC
    ]


def test_every_command_of_mqadmin(
    pair: ClusterPair,
    mode: str,
    evidence: Evidence,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """mqadmin against Java and against rmqpy, and ``rmqpy admin`` against rmqpy, print the same."""
    clients: list[OnlineClient] = []
    try:
        words: dict[str, dict[str, str]] = {}
        for kind in KINDS:
            client, words[kind] = prepare(pair[kind].broker.address)
            clients.append(client)
            words[kind]["folder"] = str(tmp_path_factory.mktemp(kind))
        time.sleep(REGISTRATION_SECONDS)
        found: list[str] = []
        for line in LINES:
            shown: dict[str, list[str]] = {}
            for kind in KINDS:
                cluster = pair[kind]
                masks = masks_of(cluster) | {words[kind]["folder"]: "FOLDER"}
                masks |= {name: key for own in OWN_NAMES.values() for key, name in own.items()}
                given = line.words.format(**words[kind], **OWN_NAMES["mqadmin"]).split()
                answer = cluster.admin.call(*given, seconds=line.seconds)
                shown[kind] = seen(line, answer["output"], masks)
                if kind == "rmqpy" and answer["finished"]:
                    record_sent_codes(evidence, line.command, answer["codes"])
                if not answer["finished"]:  # The command prints as long as its JVM lives.
                    cluster.admin.close()
            given = line.words.format(**words[kind], **OWN_NAMES["rmqpy"]).split()
            code = main(["admin", *given, *line.ours.split(), "-n", cluster.namesrv.address])
            printed = capsys.readouterr().out
            ours = [FAILED] if code and not printed else seen(line, printed, masks)
            evidence.commands[mode, line.command] = COMPARED[line.look]
            found += output_differences(line, "mqadmin: Java, rmqpy", shown["java"], shown["rmqpy"])
            found += output_differences(line, "rmqpy: mqadmin, rmqpy admin", shown["rmqpy"], ours)
    finally:
        for client in clients:
            client.close()
    assert not found, "\n".join(found)


def record_sent_codes(evidence: Evidence, command: str, codes: Sequence[str]) -> None:
    """Record the request codes, given as CODE=ANSWER, that a command sent.

    Heartbeats, unregistrations, and route requests are left out, because the clients that a command
    starts send them on their own timers.
    """
    for code in {int(each.partition("=")[0]) for each in codes} - {34, 35, 105}:
        evidence.sent_by.setdefault(code, set()).add(command)


def output_differences(
    line: Line, compared: str, expected: list[str], given: list[str]
) -> list[str]:
    if line.look is names:
        given = [each for each in given if each in expected]
    return [
        f"{line.words}: {compared} {text}"
        for text in unified_diff(expected, given, lineterm="", n=0)
        if not text.startswith(("---", "+++", "@@"))
    ]


def test_the_page_matches_what_was_compared(
    evidence: Evidence, request: pytest.FixtureRequest
) -> None:
    """This test runs last, because its rows are the evidence of the others."""
    if {mode for mode, _ in evidence.exchanges} != {"classic", "dledger"}:
        pytest.skip("both modes must have been run")
    evidence.recorded.update(recorded_requests(FRAMES))
    codes = read_codes(Path(__file__).with_name("request-codes.tsv"))
    commands = read_commands(ROOT / "tests/admin/mqadmin-4.9.7.tsv")
    text = page(codes, commands, evidence, ELSEWHERE)
    if request.config.getoption("--write-pages"):
        PAGE.write_text(text, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == text
