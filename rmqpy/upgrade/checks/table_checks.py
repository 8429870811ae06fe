"""The checks of tables: topics, groups, consumer and delay offsets of the replicas (H12).

Replication copies tables every 10 seconds, and a running broker writes its files some time after a
change. What that explains is a note while a broker runs; the comparison that counts is that of the
stopped brokers.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, combinations

from rmqpy.audit.facts.facts import Mode
from rmqpy.audit.facts.table_content import DELAYS, GROUPS, OFFSETS, TOPICS, parse_content
from rmqpy.audit.replicas.table_comparison import TableDifference, compare_tables
from rmqpy.model.names import INITIAL_GROUPS, is_dlq_topic, is_retry_topic, is_system_topic
from rmqpy.model.text import count_text
from rmqpy.upgrade.checks.findings import CheckFinding, Group, finding, note
from rmqpy.upgrade.checks.tables import other_tables
from rmqpy.upgrade.plan.survey import Survey

TABLES = (TOPICS, GROUPS, OFFSETS)
TOPICS_MAX = 10
LOST_TOPICS = "LOST_TOPICS"
LEADER_HAS_THEM = "the leader gives its tables to the others; rmqpy upgrade leave merges them"
MERGES_THEM = "rmqpy upgrade plan merges them: the largest value wins"
AFTER_THE_STOP = "check again when the brokers are stopped"


def tables_agree(group: Group) -> Iterator[CheckFinding]:
    """Check that topics, groups, consumer and delay offsets are the same on all replicas (H12).

    After a switch, followers copy them from their leader: what replication explains is a note.
    """
    switched = {Mode.JOINED, Mode.DLEDGER}
    for one, two in combinations(group.replicas, 2):
        surveys = one.survey(), two.survey()
        replicated = all(survey.manifest.mode in switched for survey in surveys)
        judged = compare_tables(*(survey.manifest for survey in surveys))
        for each in chain(judged, other_tables(surveys[0].tables, surveys[1].tables)):
            progress = each.table == DELAYS or not each.behind
            names, text = f"{one.name}, {two.name}", f"{each.table}: {each.text}"
            if _is_unwritten(each, *surveys):
                yield note("tables-agree", names, text, AFTER_THE_STOP)
            elif each.harmless and (replicated or progress):
                yield note("tables-agree", names, text, _remedy(replicated=replicated))
            else:
                yield finding("tables-agree", names, text, _remedy(replicated=replicated))
    yield from _lost_topics(group)


def _lost_topics(group: Group) -> Iterator[CheckFinding]:
    """Check that the topics whose queues have messages on all replicas are in ``topics.json`` of
    one: a member without it that led for ten seconds has given its empty one to the others.

    A slave keeps the queues of a deleted topic, its master does not.
    """
    surveys = [each for each in group.surveys if each.manifest.messages]
    tables = [
        parse_content(TOPICS, survey.tables[TOPICS])
        for survey in group.surveys
        if TOPICS in survey.tables
    ]
    used = [
        {
            queue["topic"]
            for queue in survey.manifest.facts.get("queues", ())
            if queue["max_offset"] > queue["min_offset"] and not _is_recreated(queue["topic"])
        }
        for survey in surveys
    ]
    # A table without a topic is damaged, because each broker has its own ones: tables-readable.
    if not used or not tables or not all(tables):
        return
    lost = sorted(set.intersection(*used).difference(*tables))
    if lost:
        count = count_text(
            len(lost),
            "topic with messages on all replicas is",
            "topics with messages on all replicas are",
        )
        shown = ", ".join(lost[:TOPICS_MAX]) + (", ..." if len(lost) > TOPICS_MAX else "")
        yield CheckFinding(
            check="tables-agree",
            is_note=False,
            replica=", ".join(survey.name for survey in surveys),
            text=f"{count} in no {TOPICS}: {shown}; clients find no route to them",
            remedy="restore config/topics.json from a backup, or create the topics again; if they"
            " were deleted on purpose, mqadmin cleanUnusedTopic removes their queues",
            code=LOST_TOPICS,
        )


def _is_recreated(topic: str) -> bool:
    """Return whether a broker creates the topic by itself when it needs it."""
    return is_system_topic(topic) or is_retry_topic(topic) or is_dlq_topic(topic)


def _remedy(*, replicated: bool) -> str:
    return LEADER_HAS_THEM if replicated else MERGES_THEM


def _is_unwritten(difference: TableDifference, *surveys: Survey) -> bool:
    """Return whether a running broker has not copied or not written the table yet."""
    if not all(each.manifest.messages for each in surveys):
        return False  # an empty member gets its tables through a plan
    if difference.harmless:
        return any(each.manifest.running for each in surveys)
    return any(each.manifest.running and difference.table not in each.tables for each in surveys)


def tables_there(group: Group) -> Iterator[CheckFinding]:
    """Check that a replica with messages has the tables that the others have (H12).

    A broker writes the tables of groups and offsets when it meets its first consumer, so a group
    without consumers has neither. A slave writes the groups that it copies, even if they are only
    those that every start creates.
    """
    existing = {name for survey in group.surveys for name in survey.tables if _has(survey, name)}
    needed = existing.intersection(TABLES) | {TOPICS}
    for survey in group.surveys:
        missing = [name for name in TABLES if name in needed and name not in survey.tables]
        if not missing or not survey.manifest.messages:
            continue
        text = f"config/ lacks {', '.join(missing)}"
        if survey.manifest.running:
            text += ": the broker that runs here has not written it yet"
            yield note("tables-there", survey.name, text, AFTER_THE_STOP)
            continue
        yield finding(
            "tables-there",
            survey.name,
            f"{text}: as a leader this node would know no topics,"
            " give its emptier tables to the others, and deliver delayed messages again",
            "rmqpy upgrade plan and apply copy the tables of the others"
            if existing.issuperset(missing)
            else f"restore config/{TOPICS} from a backup; no replica has it",
        )
    unknown = [name for name in TABLES if name not in needed]
    if unknown:
        yield note(
            "tables-there",
            ", ".join(survey.name for survey in group.surveys),
            f"no replica has {' or '.join(unknown)}: no consumer has ever been here",
            "if one has, restore them from a backup",
        )


def _has(survey: Survey, name: str) -> bool:
    """Return whether a replica has a table, with a row that a start without it would lack."""
    if name != GROUPS:
        return name in survey.tables
    return not parse_content(name, survey.tables.get(name)).keys() <= set(INITIAL_GROUPS)
