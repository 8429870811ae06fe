"""The content of docs/reference/conformance.md, created from the evidence of a test run.

The page has one row for each request code and each command of mqadmin. Rows are taken from lists in
the repository. A row without evidence in both modes is an error, and so is evidence without a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from attrs import define, field

MODES: Final = ("classic", "dledger")
HEAD: Final = """# Conformance

<!-- Created by pytest -m interop tests/interop/test_conformance.py --write-pages -->

The Java servers 4.9.7 and those of rmqpy receive the same requests, on a classic log and on
DLedger. A run of `tests/interop/test_conformance.py` fails if an answer differs, if a row below has
no test, or if this page differs from the evidence of the run. Everything is compared that does not
depend on the clock, ports, or chance: codes, names and values of the header, bodies member by
member, the requests of the broker to clients, and finally both logs, record by record.

"""
LETTERS: Final = """\
C client, P producer, K consumer, B broker, S slave, N name server, A tools. *Recorded*: the request
is a frame of Java's client, replayed.
"""
TWICE: Final = """\
Each command is compared twice: Java's `mqadmin` with the Java servers and with those of rmqpy, and
`rmqpy admin` with the same servers of rmqpy.
"""
FEATURES_HEAD: Final = """## Features and clients

Each test compares a Java broker and an rmqpy broker message by message, or uses both in turn.

| what | modes | test |
|---|---|---|
"""
_BOTH: Final = "classic, DLedger"
_ALL: Final = "classic, DLedger, a group of three"
_SWITCH: Final = "classic, then DLedger"
FEATURES: Final = (
    ("batch", _ALL, "tests/interop/test_services.py", "test_batches"),
    ("delayed", _ALL, "tests/interop/test_services.py", "test_delayed_messages"),
    ("transactions with check-back", _ALL, "tests/interop/test_services.py", "test_transactions"),
    (
        "retries and dead letters",
        _ALL,
        "tests/interop/test_services.py",
        "test_retries_and_dead_letters",
    ),
    (
        "ordered",
        _ALL,
        "tests/interop/test_services.py",
        "test_an_orderly_consumer_tries_again_in_place",
    ),
    ("broadcast", _ALL, "tests/interop/test_services.py", "test_broadcast"),
    ("SQL filter", _ALL, "tests/interop/test_services.py", "test_sql_filters"),
    (
        "all of these in progress at the switch",
        _SWITCH,
        "tests/interop/test_services_flip.py",
        "test_unfinished_work_continues_after_the_switch",
    ),
    (
        "Go client 2.1.2, C++ client (PyPI's `rocketmq` 0.4.4): sends",
        _BOTH,
        "tests/interop/test_other_clients.py",
        "test_sends",
    ),
    (
        "the same: ordered",
        _BOTH,
        "tests/interop/test_other_clients.py",
        "test_ordered_sends_and_consumption",
    ),
    ("the same: delayed", _BOTH, "tests/interop/test_other_clients.py", "test_delayed_sends"),
    (
        "the same: push consumption with retry",
        _BOTH,
        "tests/interop/test_other_clients.py",
        "test_push_consumption_with_retry",
    ),
    (
        "Go: transactions with check-back",
        _BOTH,
        "tests/interop/test_other_clients.py",
        "test_transactions_of_the_go_client",
    ),
    (
        "trace of rmqpy's clients, read by `mqadmin` and `rmqpy admin`",
        "classic",
        "tests/interop/test_trace.py",
        "test_our_clients_trace",
    ),
    (
        "trace of Java's clients, read by both",
        "classic",
        "tests/interop/test_trace.py",
        "test_javas_clients_trace",
    ),
    (
        "delays and half messages of Java stores continue as in Java",
        "classic",
        "tests/broker/assembly/test_golden_continues.py",
        "test_delays_and_half_messages",
    ),
    (
        "retries of Java stores",
        "classic",
        "tests/broker/assembly/test_golden_continues.py",
        "test_retries_and_dead_letters",
    ),
    (
        "delays of a Java store after the switch",
        _SWITCH,
        "tests/broker/assembly/test_golden_continues.py",
        "test_delays_are_delivered_after_the_switch_as_java_delivered_them",
    ),
    (
        "delays, transactions, order while a leader is killed",
        "a group of three",
        "tests/crash/test_features.py",
        "test_a_killed_leader",
    ),
)
"""Feature, modes, and the file and name of the test that compares it."""

DIFFERENCES: Final = """## Intended differences

| where | here | Java |
|---|---|---|
| texts of refusals | name the remedy | |
| 320 on DLedger | properties of the batch's header are kept, as on a classic log | left out |
| 28, 26, 319 | more values than in Java | |
| `consumerStatus -g` | leaves no files | one file for each member, in the working directory |
| `startMonitoring`, `clusterRT` | also `-r ROUNDS` | run forever |
| `getAclConfig` | secrets are left out | shown |
"""


class MissingEvidenceError(AssertionError):
    """A row without evidence, or evidence without a row."""


@define(frozen=True)
class CodeRow:
    """A request code in the list."""

    code: int
    name: str
    priority: str
    way: str


@define
class Evidence:
    """The evidence of a run. Keys are mode and code, or mode and command."""

    exchanges: dict[tuple[str, int], int] = field(factory=dict)
    recorded: set[int] = field(factory=set)
    """The codes whose request was a recorded frame."""

    commands: dict[tuple[str, str], str] = field(factory=dict)
    """The part of a command's output that was compared."""

    sent_by: dict[int, set[str]] = field(factory=dict)
    """The commands of mqadmin that sent each code to the servers of rmqpy."""

    def exchanged(self, mode: str, code: int) -> None:
        self.exchanges[mode, code] = self.exchanges.get((mode, code), 0) + 1


def read_codes(path: Path) -> list[CodeRow]:
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    return [CodeRow(int(code), name, priority, way) for code, name, priority, way in rows]


def read_commands(path: Path) -> list[str]:
    return [line.split()[0] for line in path.read_text(encoding="utf-8").splitlines()]


def page(
    codes: Sequence[CodeRow],
    commands: Sequence[str],
    evidence: Evidence,
    elsewhere: Mapping[int | str, str],
) -> str:
    """Return the whole page.

    ``elsewhere`` names the tests in other files that prove a row in both modes.
    """
    known = {row.code for row in codes}
    unknown_codes = {code for _, code in evidence.exchanges} - known
    unknown_commands = {name for _, name in evidence.commands} - set(commands)
    if unknown_codes or unknown_commands:
        raise MissingEvidenceError(
            f"no rows for {sorted(unknown_codes)} {sorted(unknown_commands)}"
        )
    lines = [
        HEAD + "## Request codes",
        "",
        LETTERS,
        "| code | name | | way | exchanges | request | classic | DLedger | sent by `mqadmin` |",
        "|---|---|---|---|---|---|---|---|---|",
        *(_code_line(row, evidence, elsewhere) for row in codes),
        "",
        "## Commands of mqadmin",
        "",
        TWICE,
        "| command | compared | classic | DLedger |",
        "|---|---|---|---|",
        *(_command_line(name, evidence, elsewhere) for name in commands),
        "",
        FEATURES_HEAD + "\n".join(_feature_line(*row) for row in FEATURES),
        "",
        DIFFERENCES,
    ]
    return "\n".join(lines)


def _feature_line(what: str, modes: str, file: str, test: str) -> str:
    return f"| {what} | {modes} | `{file}`: `{test}` |"


def _code_line(row: CodeRow, evidence: Evidence, elsewhere: Mapping[int | str, str]) -> str:
    code = row.code
    way = row.way.replace(">", " → ")
    head = f"| {code} | {row.name} | {row.priority} | {way} |"
    if code in elsewhere:
        return f"{head} | {elsewhere[code]} | same | same |  |"
    counts = [evidence.exchanges.get((mode, code), 0) for mode in MODES]
    if not all(counts):
        raise MissingEvidenceError(f"code {code} {row.name}: exchanges {counts}")
    request = "recorded" if code in evidence.recorded else "by its header class"
    by = " ".join(sorted(evidence.sent_by.get(code, ())))
    return f"{head} {counts[0]} | {request} | same | same | {by} |"


def _command_line(name: str, evidence: Evidence, elsewhere: Mapping[int | str, str]) -> str:
    if name in elsewhere:
        return f"| {name} | {elsewhere[name]} | same | same |"
    compared = {evidence.commands.get((mode, name)) for mode in MODES}
    if len(compared) != 1 or None in compared:
        raise MissingEvidenceError(f"command {name}: {compared}")
    return f"| {name} | {compared.pop()} | same | same |"
