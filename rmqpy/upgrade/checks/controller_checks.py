"""Checks of replicas that a controller of RocketMQ 5.x manages, or is to manage.

5.3.3 takes an ``epochFileCheckpoint`` that it cannot read for an empty one, and then compares no
logs (EpochFileCache.initCacheFromFile, AutoSwitchHAClient.doTruncate); the checks report what it
passes over. Groups without files of a controller pass. The keys of broker.conf are in
:mod:`rmqpy.upgrade.checks.controller_config`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, permutations
from typing import Any

from rmqpy.model.text import count_text
from rmqpy.upgrade.checks.controller_config import controller_facts
from rmqpy.upgrade.checks.findings import CheckFinding, Group, finding
from rmqpy.upgrade.checks.log_comparison import Relation, compare_logs, messages_after
from rmqpy.upgrade.checks.replica import Replica
from rmqpy.upgrade.plan.survey import Survey

_BY_HAND = "move epochFileCheckpoint* of every replica away, align them with rmqpy upgrade plan and"
_BY_HAND += " apply, and write the epochs again with rmqpy upgrade switch --to controller"
_FETCH_AGAIN = "move the store away and start the replica with an empty one: its master sends it"
_FETCH_AGAIN += " the whole log"


def epochs(group: Group) -> Iterator[CheckFinding]:
    """Check that the epochs of a controller group can be read, fit the log, and are one history."""
    found = {each.name: controller_facts(each) for each in group.surveys}
    if not any(found.values()):
        return
    for survey in group.surveys:
        for problem in found[survey.name].get("problems", ()):
            yield finding(
                "epochs", survey.name, f"{problem}: 5.x would use the file as empty", _BY_HAND
            )
        yield from _fits(survey, found[survey.name].get("epochs", []))
    for one, two in combinations(group.surveys, 2):
        yield from _one_history(one, two)


def identities(group: Group) -> Iterator[CheckFinding]:
    """Check that the identities of a controller group are unique and belong to its name."""
    owners: dict[int, str] = {}
    for survey in group.surveys:
        facts = controller_facts(survey)
        for name, key in (("brokerIdentity", "identity"), ("brokerIdentity-temp", "pending")):
            yield from _foreign(survey, name, facts.get(key))
        identity = facts.get("identity")
        if identity is None:
            continue
        other = owners.setdefault(identity["broker_id"], survey.name)
        if other != survey.name:
            yield finding(
                "identities",
                f"{other}, {survey.name}",
                f"both have brokerId {identity['broker_id']} in brokerIdentity: one store is a copy"
                " of the other, the controller takes them for one replica, and both become masters",
                "move brokerIdentity of the copy away; the controller gives it an id of its own",
            )


def confirm_offset(group: Group) -> Iterator[CheckFinding]:
    """Check that the log has everything that its checkpoint says was confirmed by the group."""
    for survey in group.surveys:
        confirmed = (survey.manifest.facts.get("checkpoint") or {}).get(
            "confirm_physical_offset", 0
        )
        end = _next_offset(survey)
        if controller_facts(survey) and confirmed > end:
            yield finding(
                "confirm-offset",
                survey.name,
                f"the group had confirmed its log up to {confirmed}, it ends at {end}: acknowledged"
                " messages are missing here, and 5.x lowers the offset without saying so",
                "use the other replicas, and let this one fetch the log from them",
            )


def stale_tail(group: Group) -> Iterator[CheckFinding]:
    """Check that no end of a log that 5.x has cut off is there again (#10666)."""
    for survey in group.surveys:
        if not controller_facts(survey):
            continue
        queued = _queued_end(survey)
        broken = [
            each["offset"]
            for each in _broken_records(survey)
            if each.get("offset", -1) >= queued > 0
        ]
        if broken:
            yield finding(
                "stale-tail",
                survey.name,
                f"its queues end at {queued}; after a gap at {min(broken)} the file has whole"
                f" messages up to {survey.manifest.end}: what a truncation has left there, which"
                " 5.x may take for messages again after a crash",
                _FETCH_AGAIN,
            )
    for one, two in permutations(group.replicas, 2):
        if controller_facts(one.survey()) and controller_facts(two.survey()):
            yield from _returned(one, two)
            yield from _left_behind(one, two)


def timers_in_log(group: Group) -> Iterator[CheckFinding]:
    """Check that the timer log leads to records of the log, and not beyond its end (#10668)."""
    for survey in group.surveys:
        count = survey.manifest.facts.get("timers_ahead", 0)
        if count:
            yield finding(
                "timers-in-log",
                survey.name,
                f"the end of the timer log, {count_text(count, 'unit')}, leads to records after"
                f" the end of the log, {survey.manifest.end}: 5.x may stop to deliver timer"
                " messages when it meets them",
                f"{_FETCH_AGAIN}; if no replica is sound, move timerwheel, timerlog, and"
                " config/timer* away: 5.x builds them again from the timer topic",
            )


def _foreign(survey: Survey, name: str, identity: dict[str, Any] | None) -> Iterator[CheckFinding]:
    if identity is None:
        return
    for key, part in (("brokerClusterName", "cluster"), ("brokerName", "broker_name")):
        configured = survey.setting(key)
        if configured and configured != identity[part]:
            yield finding(
                "identities",
                survey.name,
                f"{name} was given to {identity[part]}, and {key}={configured}: the broker of 5.x"
                " starts, and gets no role",
                f"start it with the store that belongs to it, or move {name} away to have the"
                " controller give another one",
            )


def _fits(survey: Survey, epochs: list[dict[str, int]]) -> Iterator[CheckFinding]:
    begin, end = survey.manifest.begin, _next_offset(survey)
    beyond = [each for each in epochs if each["start_offset"] > end]
    if beyond:
        first = beyond[0]
        yield finding(
            "epochs",
            survey.name,
            f"epoch {first['number']} begins at {first['start_offset']}, the log ends at {end}: the"
            " end of the log is missing",
            "use the other replicas, and let this one fetch the log from them",
        )
    elif epochs and survey.manifest.messages and epochs[0]["start_offset"] > begin:
        yield finding(
            "epochs",
            survey.name,
            f"the log begins at {begin}, its first epoch at {epochs[0]['start_offset']}: what is"
            " before it belongs to no epoch, and a replica that lacks a part of it is never served",
            _BY_HAND,
        )


def _one_history(one: Survey, two: Survey) -> Iterator[CheckFinding]:
    """Compare two replicas: all epochs that both should have must begin at the same offset."""
    mine, theirs = (_by_number(each) for each in (one, two))
    names = f"{one.name}, {two.name}"
    if bool(mine) != bool(theirs):
        with_epochs, without = (one, two) if mine else (two, one)
        yield finding(
            "epochs",
            without.name,
            f"it has no epochs, {with_epochs.name} has: 5.x would not compare their logs",
            _BY_HAND,
        )
        return
    common = sorted(mine.keys() & theirs.keys())
    if not common:
        if mine:
            yield finding("epochs", names, "they have no epoch in common", _BY_HAND)
        return
    wrong = next((each for each in common if mine[each] != theirs[each]), None)
    single = next(
        (each for each in sorted(mine.keys() ^ theirs.keys()) if common[0] < each < common[-1]),
        None,
    )
    choose = "compare the logs (rmqpy upgrade verify), and choose one before either starts"
    if wrong is not None:
        yield finding(
            "epochs",
            names,
            f"epoch {wrong} begins at {mine[wrong]} in {one.name} and at {theirs[wrong]} in"
            f" {two.name}: two histories; 5.x would cut one of them",
            choose,
        )
    elif single is not None:
        has, lacks = (one, two) if single in mine else (two, one)
        yield finding(
            "epochs",
            names,
            f"{has.name} has epoch {single}, {lacks.name} only epochs before and after it: two"
            " histories, or a file that was edited",
            choose,
        )
    else:
        yield from _went_on(one, two)
        yield from _went_on(two, one)


def _went_on(old: Survey, new: Survey) -> Iterator[CheckFinding]:
    """Report a replica whose log goes on where another one has begun a newer epoch."""
    mine, theirs = _by_number(old), _by_number(new)
    newer = [each for each in theirs if each > max(mine)]
    if not newer:
        return
    began = theirs[min(newer)]
    if old.manifest.end > began:
        yield finding(
            "epochs",
            old.name,
            f"its epoch {max(mine)} goes on to {old.manifest.end}; in {new.name} epoch"
            f" {min(newer)} begins at {began}: messages after it are those of a master that had"
            " been replaced. If the controller elects this replica, they replace acknowledged ones",
            f"start {new.name} first and wait until it is the master: this replica is then cut to"
            f" {began}; rmqpy upgrade verify lists the messages",
        )


def _returned(mine: Replica, theirs: Replica) -> Iterator[CheckFinding]:
    """Report messages that are in none of their replica's queues, and not in the other replica."""
    compared, survey = compare_logs(mine, theirs), mine.survey()
    queued = _queued_end(survey)
    if (
        compared.relation in (Relation.LONGER, Relation.DIVERGED)
        and 0 < queued <= compared.common_end < survey.manifest.end
        and not survey.abort_found
    ):
        count = sum(1 for _ in messages_after(mine, compared.common_end))
        yield finding(
            "stale-tail",
            survey.name,
            f"its queues end at {queued}, without {count_text(count, 'message')} after"
            f" {compared.common_end}, which {theirs.name} does not have either: never confirmed"
            " by the group, or cut off by 5.x before",
            f"start {theirs.name} first and wait until it is the master; or {_FETCH_AGAIN}",
        )


def has_left_behind(mine: Replica, theirs: Replica) -> bool:
    """Return whether the log of the first replica is broken exactly where the other one, equal so
    far, ends, and goes on after that: 5.x has cut it there and written over a part of the rest. It
    cuts neither the consume queues nor the key index, so these may lead to the rest.
    """
    broken = _is_broken_at_the_end_of(theirs, mine)
    return broken and compare_logs(mine, theirs).relation is Relation.LONGER


def _is_broken_at_the_end_of(theirs: Replica, mine: Replica) -> bool:
    survey, end = mine.survey(), theirs.survey().manifest.end
    broken = any(each.get("offset") == end for each in _broken_records(survey))
    return broken and survey.manifest.end > end and bool(controller_facts(survey))


def _left_behind(mine: Replica, theirs: Replica) -> Iterator[CheckFinding]:
    survey, end = mine.survey(), theirs.survey().manifest.end
    if _is_broken_at_the_end_of(theirs, mine) and _queued_end(survey) > end:
        remedy = f"if {theirs.name} was in the SyncStateSet, {_FETCH_AGAIN}"
        if not has_left_behind(mine, theirs):
            remedy = f"decide first about the difference that same-log reports; then, {remedy}"
        yield finding(
            "stale-tail",
            survey.name,
            f"its log is broken at {end}, where the one of {theirs.name} ends; after that it has"
            f" whole messages up to {survey.manifest.end}, to which its queues lead: what 5.x has"
            f" left there when it cut the log, unless {theirs.name} lags",
            remedy,
        )


def _broken_records(survey: Survey) -> list[dict[str, Any]]:
    return [each for each in survey.found if each["code"].startswith("RECORD_")]


def _by_number(survey: Survey) -> dict[int, int]:
    epochs = controller_facts(survey).get("epochs", [])
    return {each["number"]: each["start_offset"] for each in epochs}


def _next_offset(survey: Survey) -> int:
    """Return where the next message would be written, which is after the filler of a file."""
    log = survey.manifest.facts.get("classic") or {}
    return int(max(log.get("next_offset", 0), survey.manifest.end))


def _queued_end(survey: Survey) -> int:
    """Return the end of the last message to which a consume queue leads, or 0."""
    queues = survey.manifest.facts.get("queues", ())
    return max((int(each["end_physical"]) for each in queues), default=0)
