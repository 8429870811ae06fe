"""Every command in the documents is accepted by its parser; every block is run, or named here."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from simulator.__main__ import _parser as simulator_parser

from rmqpy.cli.command_line import every_parser
from rmqpy.cli.parsing import BadUsageError, Parser

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [
    path.relative_to(ROOT).as_posix()
    for path in [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
    if path.name != "CHANGELOG.md"
]
BLOCK = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(rmqpy [a-z][^`]*)`")
SHELL = ("bash", "sh", "console", "text")
ENDS = frozenset("();<>|&")

RUN: dict[str, tuple[str, str]] = {
    "docs/explanation/architecture.md": ("tests/docs/test_walks.py", "walk"),
    "docs/how-to/audit-with-spark.md": ("tests/pipeline/test_pipeline_page.py", "console"),
    "docs/how-to/check-messages-with-a-hook.md": ("tests/docs/test_hook_example.py", "python toml"),
    "docs/how-to/find-the-cause.md": ("tests/docs/test_page_examples.py", "console"),
    "docs/how-to/inspect-a-store.md": ("tests/cli/test_store_page.py", "console python"),
    "docs/how-to/replace-a-leader-faster.md": ("tests/docs/test_page_examples.py", "settings"),
    "docs/how-to/run-an-upgrade-suite.md": ("tests/docs/test_page_examples.py", "toml"),
    "docs/how-to/secure-a-broker.md": ("tests/docs/test_page_examples.py", "properties yaml"),
    "docs/how-to/test-from-other-languages.md": (
        "tests/interop/test_recipes.py",
        "python sh xml java go json js text",
    ),
    "docs/how-to/test-with-rmqpy.md": ("tests/testing/test_plugin.py", "python"),
    "docs/how-to/upgrade-a-group.md": ("tests/interop/test_upgrade_under_load.py", "sh"),
    "docs/how-to/use-rocketmq-data-in-spark.md": (
        "tests/pipeline/test_pipeline_page.py",
        "python sql console",
    ),
    "docs/how-to/use-the-client.md": ("tests/docs/test_client_examples.py", "python"),
    "docs/reference/client.md": ("tests/docs/test_page_examples.py", "python"),
    "docs/reference/pipeline.md": ("tests/docs/test_page_examples.py", "toml"),
    "docs/tutorials/audit-with-spark.md": ("tests/pipeline/test_audit_walk.py", "bash"),
    "docs/tutorials/rehearse-an-upgrade.md": ("tests/docs/test_upgrade_walk.py", "bash settings"),
    "docs/tutorials/run-a-broker.md": ("tests/crash/test_new_user_walks.py", "bash"),
    "docs/tutorials/run-a-dledger-group.md": ("tests/crash/test_walk_through.py", "sh"),
    "docs/tutorials/run-a-master-and-a-slave.md": ("tests/docs/test_replication_walk.py", "bash"),
    "docs/tutorials/test-with-rmqpy.md": ("tests/crash/test_new_user_walks.py", "bash"),
    "docs/tutorials/upgrade-without-stopping.md": ("tests/docs/test_live_walk.py", "bash"),
    "docs/tutorials/use-the-client.md": ("tests/crash/test_new_user_walks.py", "bash"),
}
"""The test that runs the blocks of a page in some languages, as they are or at other places and
ports. ``settings`` is a block without a language.
"""

REST: dict[str, str] = {
    "CONTRIBUTING.md": "commands of tox, which run every test",
    "docs/explanation/fast-path.md": "layouts of tables",
    "docs/explanation/leave.md": "a timeline",
    "docs/how-to/add-a-shard.md": "run by tests/broker/assembly/test_shards.py",
    "docs/how-to/audit-with-spark.md": "pip install",
    "docs/how-to/back-up-a-broker.md": "run by tests/audit/test_backup.py",
    "docs/how-to/check-messages-with-a-hook.md": "an answer, which the same test compares",
    "docs/how-to/inspect-a-store.md": "drawn by tests/audit/test_store_map.py",
    "docs/how-to/monitor-with-prometheus.md": "settings of Prometheus and of an orchestrator",
    "docs/how-to/operate-with-systemd.md": "files in /etc; tests/deploy/test_deploy.py reads them",
    "docs/how-to/rehearse-a-live-group.md": "run by tests/rehearsal/test_rehearse.py",
    "docs/how-to/replay-traffic.md": "run by tests/traffic/test_replay.py",
    "docs/how-to/run-a-broker.md": "a rule for Prometheus, and files of the system's shells",
    "docs/how-to/run-in-a-container.md": "run by tests/deploy/test_deploy.py, without Docker",
    "docs/how-to/run-an-upgrade-suite.md": "run by tests/suite/test_walk.py",
    "docs/how-to/run-the-simulator.md": "parsed below; every family is run by CI (.ci/run)",
    "docs/how-to/secure-a-broker.md": "a random file in /etc",
    "docs/how-to/switch-a-running-group.md": "run by tests/docs/test_live_walk.py",
    "docs/how-to/test-with-rmqpy.md": "run by tests/testing/test_dev.py",
    "docs/how-to/use-the-console.md": "run by tests/console/test_screens.py; ssh needs a host",
    "docs/reference/cli.md": "generated examples; each verb has tests of its own",
    "docs/reference/dledger.md": "run by tests/docs/test_live_walk.py",
    "docs/reference/fence.md": "run by tests/docs/test_upgrade_walk.py",
    "docs/reference/live-changes.md": "states, generated by docs/diagrams/live_changes.py",
    "docs/reference/replication.md": "run by tests/admin/test_promote.py",
    "docs/tutorials/run-a-dledger-group.md": "output of the block before it",
    "docs/tutorials/tour-of-the-console.md": "opened by tests/console/test_screens.py",
}
"""Pages with blocks that no test runs from the page, and what does it instead. All their rmqpy
commands are given to the parser below.
"""


def blocks(page: str) -> list[tuple[str, str]]:
    return BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))


def test_every_block_is_run_or_named() -> None:
    run = {page: set(languages.split()) for page, (_, languages) in RUN.items()}
    left = {
        page
        for page in PAGES
        if {language or "settings" for language, _ in blocks(page)} - run.get(page, set())
    }
    assert left == set(REST), "name the test that runs the blocks in RUN, or why none does in REST"
    assert set(RUN) <= {page for page in PAGES if blocks(page)}


@pytest.mark.parametrize("page", RUN)
def test_the_test_of_a_page_exists_and_reads_it(page: str) -> None:
    test, _ = RUN[page]
    code = (ROOT / test).read_text(encoding="utf-8")
    reads_by_fixture = "upgrade_commands" in code or "read_recipes" in code
    assert Path(page).name in code or reads_by_fixture, f"{test} does not read {page}"


@pytest.mark.parametrize("page", REST)
def test_what_is_named_instead_exists(page: str) -> None:
    for name in re.findall(r"[\w./-]+\.py", REST[page]):
        assert (ROOT / name).is_file(), name


# -- Parsers


@pytest.fixture(autouse=True)
def any_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept paths to write to, whether their folder exists or not."""
    convert = Parser._get_value

    def get_value(parser: Parser, action: argparse.Action, text: str) -> Any:
        if getattr(action.type, "__name__", "").startswith("output_"):
            return text
        return convert(parser, action, text)

    monkeypatch.setattr(Parser, "_get_value", get_value)


@cache
def parser() -> Parser:
    return every_parser()


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each rmqpy command in a shell text, without redirections and comments."""
    for line in text.replace("\\\n", " ").splitlines():
        if "rmqpy " not in line:
            continue
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.wordchars += "$=:@%,[]{}!^+"
        try:
            words = list(lexer)
        except ValueError:  # no shell: a line of a program
            continue
        for start in (at for at, word in enumerate(words) if word == "rmqpy"):
            rest = words[start + 1 :]
            end = next((at for at, word in enumerate(rest) if set(word) <= ENDS), len(rest))
            if end < len(rest) and rest[end].startswith(">") and end and rest[end - 1].isdigit():
                end -= 1
            yield rest[:end]


def refused(words: list[str]) -> str | None:
    """Return why the parser refuses a whole command, or None."""
    if not words or "--help" in words or "--version" in words:
        return None
    try:
        parser().parse_args(words)
    except BadUsageError as error:
        return f"rmqpy {' '.join(words)}: {error}"
    return None


@pytest.mark.parametrize("page", PAGES)
def test_every_command_in_a_block_is_accepted(page: str) -> None:
    texts = [text for language, text in blocks(page) if language in SHELL]
    found = [refused(words) for text in texts for words in commands(text)]
    assert [each for each in found if each is not None] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_command_in_a_sentence_exists(page: str) -> None:
    """A command in a sentence may leave arguments out; its verbs and options must exist."""
    text = BLOCK.sub("", (ROOT / page).read_text(encoding="utf-8"))
    wrong = [
        command
        for command in INLINE.findall(text)
        for words in commands(command)
        if not exists(words)
    ]
    assert wrong == []


def exists(words: list[str]) -> bool:
    at: argparse.ArgumentParser = parser()
    for word in words:
        below = next((a for a in at._actions if isinstance(a, argparse._SubParsersAction)), None)
        if word.startswith("-"):
            if word.partition("=")[0] not in at._option_string_actions:
                return False
        elif below is not None:
            found = [each for name in re.split("[,|]", word) if (each := below.choices.get(name))]
            if not found:
                return not re.fullmatch(r"[a-z-]+", word)
            at = found[0]
    return True


def test_the_commands_of_the_simulator_are_accepted() -> None:
    text = (DOCS / "how-to" / "run-the-simulator.md").read_text(encoding="utf-8")
    found = re.findall(r"^\$ tox -e sim -- (.*?)(?: +#.*)?$", text, re.MULTILINE)
    assert len(found) >= 8
    for command in found:
        simulator_parser().parse_args(shlex.split(command))


# -- The checks themselves


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("until rmqpy admin topicList | grep x; do sleep 1; done", ["admin topicList"]),
        ("rmqpy namesrv > log 2>&1 &", ["namesrv"]),
        ("leader=$(rmqpy admin dledger -m a | awk '{ print $1 }')", ["admin dledger -m a"]),
        ('rmqpy pipeline sql "SELECT count(*)" 2> log', ["pipeline sql SELECT count(*)"]),
        ("rmqpy admin fence \\\n  --lift  # opens", ["admin fence --lift"]),
        ("from rmqpy import demo", []),
    ],
)
def test_commands_are_found_in_shell_text(text: str, expected: list[str]) -> None:
    found = [" ".join(words) for words in commands(text)]
    assert [each for each in found if each != "import demo"] == expected


@pytest.mark.parametrize(
    "command", ["store fsckk DIR", "store fsck DIR --forcetruncate", "admin sendMessage -p x"]
)
def test_a_wrong_command_is_found(command: str) -> None:
    assert refused(command.split()) is not None


@pytest.mark.parametrize("command", ["store fsckk", "upgrade apply --dryrun", "nonsense"])
def test_a_wrong_command_in_a_sentence_is_found(command: str) -> None:
    assert not exists(command.split())
