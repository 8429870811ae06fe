"""Run the cases of clients against one cluster."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Final

from foreign_clients import ForeignClient

from compatibility.cases import CASES, Bench
from compatibility.results import Outcome
from compatibility.targets import JudgedCluster
from rmqpy.model.errors import RmqError

DETAIL_LENGTH: Final = 300


def run_clients(
    cluster: JudgedCluster,
    clients: Mapping[str, ForeignClient],
    cases: Iterable[str],
    folder: Path,
    jobs: int,
) -> Iterator[tuple[str, dict[str, Outcome]]]:
    """Yield the name and the outcomes of each client when it has ended; ``jobs`` clients run at a
    time.
    """
    chosen = tuple(cases)
    with ThreadPoolExecutor(jobs) as pool:
        names = {
            pool.submit(_run_client, cluster, client, chosen, folder / name): name
            for name, client in clients.items()
        }
        for future in as_completed(names):
            yield names[future], future.result()


def _run_client(
    cluster: JudgedCluster, client: ForeignClient, cases: Iterable[str], folder: Path
) -> dict[str, Outcome]:
    folder.mkdir(parents=True, exist_ok=True)
    outcomes = {}
    probe = client.probe(folder, cluster.namesrv.address)
    try:
        for case in cases:
            if case in client.lacks:
                outcomes[case] = Outcome("absent", client.lacks[case])
                continue
            bench = Bench(client, probe, cluster, f"{case}-{uuid.uuid4().hex[:8]}")
            outcomes[case] = _run_case(bench, case)
    finally:
        probe.close()
    return outcomes


def _run_case(bench: Bench, case: str) -> Outcome:
    try:
        CASES[case][1](bench)
    except (AssertionError, RmqError, LookupError) as fault:
        text = " ".join(str(fault).split()) or "the messages are not the expected ones"
        return Outcome("failed", text[:DETAIL_LENGTH])
    return Outcome("passed")
