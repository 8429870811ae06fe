"""Why there was an election, why a group has no leader, or why a member leads and another does not.

The rules of DLedger: a member votes once in a term, and only for a candidate whose log is at least
as long as its own (last term first, then last index); a candidate needs the votes of a quorum of
*all* configured members; an election starts when a follower has heard no heartbeat for
maxHeartBeatLeak intervals, or when a leader hands over to a preferred member.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rmqpy.dledger.quorum import is_quorum
from rmqpy.model.text import count_text, time_text
from rmqpy.why.answer import Answer, Cause, possible, proven, ranked
from rmqpy.why.questions.election_facts import ElectionFacts, VoterFacts

__all__ = ["explain_election"]

QUESTION = "why election"
EVENTS_SHOWN = 5


def explain_election(facts: ElectionFacts) -> Answer:
    causes = [
        *_outsiders(facts),
        *_quorum(facts),
        *_last_events(facts),
        *_votes(facts),
        *_configuration(facts),
        *_cannot_lead(facts),
        *_preferred(facts),
        *_behind(facts),
        *_repeated(facts),
    ]
    return Answer(
        question=QUESTION,
        subject=facts.subject,
        facts=tuple(_facts(facts)),
        causes=ranked(causes),
        nothing=_nothing(facts),
        not_examined=tuple(_not_examined(facts)),
    )


def _nothing(facts: ElectionFacts) -> str:
    if facts.leaders:
        leader = ", ".join(sorted(facts.leaders))
        return f"{leader} leads, and nothing that was examined shows a reason for an election"
    return "nothing that was examined shows a reason for an election"


def _outsiders(facts: ElectionFacts) -> Iterator[Cause]:
    for each in facts.outsiders:
        if each.controllers:
            yield proven(
                f"{each.name} does not vote: the controller of RocketMQ 5.x at {each.controllers}"
                " elects its master",
                each.shown_by,
                next=("the log of the controller has its elections and their reasons",),
            )
        else:
            yield proven(
                f"{each.name} takes part in no election: it is no member of a DLedger group, and a"
                " slave never becomes master by itself",
                each.shown_by,
                next=("rmqpy upgrade init begins the way to a group that elects its leader",),
            )


def _quorum(facts: ElectionFacts) -> Iterator[Cause]:
    count = len(facts.all_ids)
    running = [each for each in facts.members if each.running]
    gone = [f"{name}: {reason}" for name, reason in facts.silent]
    gone += [f"{each.name}: no broker runs" for each in facts.members if not each.running]
    if gone and count and not is_quorum(len(running), count):
        # Members that were not named may be up, so only a complete list proves it.
        complete = len(facts.members) + len(facts.silent) >= count
        make = proven if complete else possible
        yield make(
            f"there is no leader without a quorum: {len(running)} of {count} members are up, and"
            f" {count // 2 + 1} are needed",
            *gone,
            next=("start members until a quorum runs",),
        )
    if count and count % 2 == 0:
        yield proven(
            f"the group has {count} members: it stands still when {count // 2} are gone, so one of"
            " them adds no safety",
            "dLegerPeers",
            next=("use an odd number of members",),
        )


def _last_events(facts: ElectionFacts) -> Iterator[Cause]:
    changes = [
        (time_ms, f"{each.self_id}: {text}")
        for each in facts.members
        for time_ms, text in each.events
    ]
    if changes:
        last = sorted(changes)[-EVENTS_SHOWN:]
        yield proven(
            f"the last changes, as the members report them: {last[-1][1]}",
            *(f"{time_text(time_ms)} {text}" for time_ms, text in last),
            next=("rmqpy admin dledger -b BROKER shows roles, terms, and lags",),
        )


def _votes(facts: ElectionFacts) -> Iterator[Cause]:
    voters = [each for each in facts.known if each.term == facts.term]
    if facts.term < 0 or not voters:
        return
    votes = Counter(each.voted_for for each in voters if each.voted_for)
    evidence = tuple(_vote(each) for each in facts.known)
    count = len(facts.all_ids)
    winner, number = votes.most_common(1)[0] if votes else ("", 0)
    if winner and is_quorum(number, count):
        others = [each.self_id for each in voters if each.voted_for == each.self_id != winner]
        stood = f"; {', '.join(others)} stood against it" if others else ""
        yield proven(
            f"{winner} was elected in term {facts.term}, with the votes of {number} of"
            f" {count} members{stood}",
            *evidence,
        )
    elif len(facts.known) == count and votes:
        cast = ", ".join(f"{name} {number}" for name, number in votes.most_common())
        yield proven(
            f"nobody has won term {facts.term}: its votes are split ({cast}), and"
            f" {count // 2 + 1} are needed",
            *evidence,
            next=("another round follows by itself after a random pause",),
        )
    forgotten = [each for each in facts.known if each.voted_for == "?"]
    for each in forgotten:
        yield proven(
            f"{each.self_id} does not know its vote of term {each.term}: it votes for nobody in"
            " that term",
            f"{each.name}: currterm is damaged; its .bak has the term only",
            next=("it votes again in the next term; no action is needed",),
        )


def _vote(member: VoterFacts) -> str:
    voted = f"voted for {member.voted_for}" if member.voted_for else "has not voted"
    return f"{member.self_id}: term {member.term}, {voted} (currterm)"


def _configuration(facts: ElectionFacts) -> Iterator[Cause]:
    for what, key in (("peers", "dLegerPeers"), ("group", "dLegerGroup")):
        values = {each.self_id: getattr(each, what) for each in facts.members}
        given = {value for value in values.values() if value}
        if len(given) > 1:
            yield proven(
                f"the members have different values of {key}: they are not one group",
                *(f"{name}: {value or 'not set'}" for name, value in values.items()),
                next=(f"give all members the same {key} and restart them",),
            )
    for each in facts.members:
        if each.peer_ids and each.self_id and each.self_id not in each.peer_ids:
            yield proven(
                f"{each.self_id} is not in its own dLegerPeers: no other member knows it",
                f"dLegerPeers={each.peers}",
                next=("correct dLegerSelfId or dLegerPeers",),
            )
        for view in each.views:
            if view.reason:
                yield proven(
                    f"{each.self_id} refuses {view.self_id}: {view.reason}",
                    next=(f"rmqpy admin dledger -b {each.name}",),
                )


def _cannot_lead(facts: ElectionFacts) -> Iterator[Cause]:
    for each in facts.members:
        if each.fault:
            yield proven(f"{each.self_id} must not lead: {each.fault}", each.name)
        for problem in each.problems:
            yield proven(
                f"the files of {each.self_id} are damaged: {problem}",
                each.name,
                next=(f"rmqpy store fsck {each.name}",),
            )
        if each.durable_index > each.end_index >= -1 and not each.unknown:
            yield proven(
                f"{each.self_id} has lost entries: {each.durable_index} was on its disk, and its"
                f" log ends at {each.end_index}; it must fetch them before it may lead",
                f"{each.name}: durableIndex in checkpoint",
                next=(f"rmqpy store fsck {each.name}; start it beside the others",),
            )
        if each.tables_missing:
            yield proven(
                f"{each.self_id} has no topics.json: it must not lead before it has copied the"
                " tables from a leader",
                each.name,
                next=("start it while another member leads",),
            )


def _preferred(facts: ElectionFacts) -> Iterator[Cause]:
    wanted = {name for each in facts.members for name in each.preferred.split(";") if name}
    if not wanted or not facts.leaders:
        return
    listed = "preferredLeaderId=" + ";".join(sorted(wanted))
    if facts.leaders <= wanted:
        leader = ", ".join(sorted(facts.leaders))
        yield proven(
            f"{leader} is a preferred leader: any other leader hands over to it as soon as it has"
            " caught up, which is an election",
            listed,
        )
    else:
        yield proven(
            f"{', '.join(sorted(facts.leaders))} leads, but {', '.join(sorted(wanted))} is"
            " preferred: the leader hands over as soon as that member has caught up",
            listed,
            "maxLeadershipTransferWaitIndex: the lag below which it hands over",
            next=("rmqpy admin dledger -b BROKER shows the lag of the preferred member",),
        )


def _behind(facts: ElectionFacts) -> Iterator[Cause]:
    """Yield the members that cannot win, because a quorum has a longer log."""
    count = len(facts.all_ids)
    for each in facts.known:
        longer = [other for other in facts.known if other.log_end > each.log_end]
        if longer and is_quorum(len(longer), count):
            yield proven(
                f"{each.self_id} cannot be elected: its log ends at index {each.end_index} of term"
                f" {each.end_term}, and a quorum has more",
                *(
                    f"{other.self_id}: index {other.end_index} of term {other.end_term}"
                    for other in longer
                ),
                next=(f"start {each.self_id}: it receives the others from the leader",),
            )
        elif longer:
            names = ", ".join(other.self_id for other in longer)
            yield proven(
                f"{each.self_id} does not get the vote of {names}, whose log is longer: index"
                f" {each.end_index} of term {each.end_term} against"
                f" {max(other.log_end for other in longer)[1]} of"
                f" {max(other.log_end for other in longer)[0]}",
            )


def _repeated(facts: ElectionFacts) -> Iterator[Cause]:
    end_term = max((each.end_term for each in facts.known), default=-1)
    spare = facts.term - end_term
    if end_term >= 0 and spare > 1:
        yield proven(
            f"{spare} terms have begun since the last entry was written (term {end_term}):"
            " elections failed, or leaders were lost before they wrote",
            f"currterm: term {facts.term}",
            next=("look for a network that breaks, or pauses longer than the heartbeat time-out",),
        )
    if any(each.term > 0 for each in facts.known):
        silence_ms = facts.heartbeat_ms * facts.leaks
        yield possible(
            "a leader was stopped, killed, or silent for longer than"
            f" {silence_ms / 1000:g} s: an election starts then",
            f"heartBeatTimeIntervalMs={facts.heartbeat_ms} x maxHeartBeatLeak={facts.leaks}"
            f" ({facts.settings_from}; fixed in Java)",
            next=(
                "the logs of the members (dledger.log of Java) at that time: stops, garbage"
                " collection, disk stalls, network",
            ),
        )


def _facts(facts: ElectionFacts) -> Iterator[tuple[str, str]]:
    if facts.all_ids:
        yield "group", f"{count_text(len(facts.all_ids), 'member')}: {', '.join(facts.all_ids)}"
    for each in facts.members:
        parts = [f"{each.name}:"]
        if each.role:
            parts.append(each.role + ("," if each.term >= 0 else ""))
        if each.term >= 0:
            voted = f", voted for {each.voted_for}" if each.voted_for else ""
            parts.append(f"term {each.term}{voted}")
            end = f"; log ends at index {each.end_index} of term {each.end_term}"
            parts[-1] += f"{end}, committed {each.committed_index}"
        yield each.self_id or "?", " ".join(parts)


def _not_examined(facts: ElectionFacts) -> Iterator[str]:
    for name, reason in facts.silent:
        yield f"{name}: {reason}"
    for each in facts.members:
        if each.unknown:
            yield f"{each.self_id or each.name}: {each.unknown}"
    missing = set(facts.all_ids) - {each.self_id for each in facts.members}
    if missing:
        yield f"{', '.join(sorted(missing))}: name the directories or addresses of all members"
    if facts.members and not any(each.role and not each.unknown for each in facts.members):
        yield "the times and reasons of past changes: only running members of rmqpy report them"
