"""DLedger groups: members, and the timeline of their elections."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from harness.console import CountedBrokers, SetClock, browsing, collecting

from rmqpy.admin.elections import events_of, terms_of


def event(kind: str, term: int, time_ms: int, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "term": term, "time_ms": time_ms, "last_ms": time_ms, "count": 1, **more}


def status(self_id: str, role: str, **more: Any) -> bytes:
    values = {"self": self_id, "role": role, "term": 5, "begin": 0, "end": 41, "committed": 41}
    return json.dumps({**values, **more}).encode()


def record(self_id: str, *events: Any) -> bytes:
    return json.dumps({"group": "g", "self": self_id, "events": events}).encode()


def test_terms_have_their_leaders_votes_and_reasons() -> None:
    n0 = events_of(
        json.loads(
            record(
                "n0",
                event("notice", 4, 10, text="n2, the leader of term 4, has been silent"),
                event("asked", 5, 20, peer="n1"),
                event("received", 5, 30, peer="n1", result="ACCEPT"),
                event("received", 5, 35, peer="n2", result=""),
                event("notice", 5, 40, text="leads in term 5, from entry 42 on"),
            )
        )
    )
    n1 = events_of(
        json.loads(
            record(
                "n1",
                event("answered", 5, 25, peer="n0", result="ACCEPT", end_index=41, end_term=4),
                event(
                    "answered",
                    5,
                    26,
                    peer="n2",
                    result="REJECT_SMALL_LEDGER_END_INDEX",
                    end_index=40,
                    end_term=4,
                ),
            )
        )
    )
    latest, before = terms_of([*n1, *n0])
    assert (latest.term, latest.leader, before.term, before.leader) == (5, "n0", 4, "")
    assert [f"{each.member} {each.text}" for each in latest.events] == [
        "n0 asks n1 for its vote",
        "n1 answers n0, whose log ends with entry 41 of term 4: yes",
        "n1 answers n2, whose log ends with entry 40 of term 4: no: the log of the candidate is"
        " shorter than its own",
        "n0 hears from n1: yes",
        "n0 hears from n2: no answer",
        "n0 leads in term 5, from entry 42 on",
    ]


@pytest.mark.parametrize(
    "body",
    [None, [], {}, {"events": 5}, {"events": [1, {}, {"kind": "notice", "time_ms": "soon"}]}],
)
def test_malformed_records_are_empty(body: Any) -> None:
    assert events_of(body) == []


def test_a_group_and_its_elections_are_shown() -> None:
    async def run() -> None:
        hostile = "<script>alert(1)</script>"
        peers = [{"id": "n1", "lag": 3}, "odd"]
        brokers = CountedBrokers(
            {("g", 0): "x:1", ("g", 2): "x:2", ("g", 3): "x:3"},
            {"x:1": {"dividedCommitlogOffset": "262144"}, "x:2": {}},
            statuses={
                "x:1": status("n0", "LEADER", peers=peers),
                "x:2": status("n1", "FOLLOWER", fault=hostile),
            },
            records={
                "x:1": record("n0", event("notice", 5, 40, text="leads in term 5, from entry 0")),
                "x:2": record("n1", event("notice", 5, 41, text=hostile)),
            },
        )
        collector = collecting.Collector(brokers, SetClock())
        await collector.poll()
        async with browsing(collector) as client:
            page = await (await client.get("/replication")).text()
            assert "led by n0, divide at 262144" in page and "does not answer" in page
            assert hostile not in page
            for _ in range(5):
                page = await (await client.get("/elections?name=g")).text()
            assert "Term 5" in page and "led by n0" in page and hostile not in page
            assert brokers.requests["elections"] == 2
            page = await (await client.get("/elections?name=none")).text()
            assert "No member that answers" in page

    asyncio.run(run())


def test_a_cluster_without_groups_says_so() -> None:
    async def run() -> None:
        collector = collecting.Collector(CountedBrokers({("a", 0): "x:1"}, {"x:1": {}}), SetClock())
        await collector.poll()
        async with browsing(collector) as client:
            assert (
                "No broker of this cluster" in await (await client.get("/replication?live")).text()
            )

    asyncio.run(run())
