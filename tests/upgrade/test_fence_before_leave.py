"""A fenced group of real brokers stops member by member at the same entry, and ``leave`` has
nothing to fetch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.loaded_group import LoadedGroup
from harness.upgrade import RunUpgrade

from rmqpy.audit.facts.table_content import content_of
from rmqpy.cli import main
from rmqpy.testing.ports import free_port_block
from rmqpy.testing.processes import FAST_ELECTION, group_settings
from rmqpy.testing.store_reader import read_store

MEMBERS = ("n0", "n1", "n2")


@pytest.fixture
def loaded(tmp_path: Path) -> Iterator[LoadedGroup]:
    blocks = [free_port_block(1) for _ in MEMBERS]
    ports = [block.first for block in blocks]
    settings = ({**FAST_ELECTION, **group_settings("broker-a", ports, each)} for each in range(3))
    group = LoadedGroup(tmp_path, tuple(settings))
    group.blocks += blocks
    try:
        group.start()
        group.load()
        yield group
    finally:
        group.close()


def entries_of(store: Path) -> bytes:
    """Return the data files of a member, without the parts that were never written."""
    (folder,) = store.glob("dledger-n*")
    return b"".join(path.read_bytes().rstrip(b"\0") for path in sorted((folder / "data").iterdir()))


@pytest.mark.slow
def test_run_sets_the_fence_before_it_stops_the_members(
    loaded: LoadedGroup, run: RunUpgrade, monkeypatch: pytest.MonkeyPatch
) -> None:
    (loaded.root / "group").mkdir()
    monkeypatch.chdir(loaded.root / "group")
    confs = " ".join(f"{loaded.root}/{name}/broker.conf" for name in MEMBERS)
    code, out, err = run(f"init {confs}")
    assert code == 0, out + err
    members = json.loads(run("status --format json")[1])["members"]
    assert sorted(each["role"] for each in members) == ["follower", "follower", "leader"]
    code, out, _ = run("next --back --yes")
    assert code == 2 and "first stop all writes: rmqpy admin fence -n 127.0.0.1:" in out
    text = Path("group.toml").read_text()
    for name, server in zip(MEMBERS, loaded.brokers, strict=True):
        head = f"[member.{name}]\n"
        text = text.replace(head, f'{head}stop = "kill {server.pid}"\n')
    Path("group.toml").write_text(text)
    code, out, err = run("run --until left-verified --yes --format json")
    assert code == 0, out + err
    (stopped,) = (each for each in json.loads(out)["steps"] if each["step"] == "stop")
    members = stopped["result"]["fence"]["members"]
    assert len(members) == 3 and len({each["end"] for each in members}) == 1
    kinds = {
        op["op"]
        for node in json.loads(Path("plan.json").read_text())["nodes"]
        for op in node["ops"]
    }
    assert kinds and "fetch" not in kinds


@pytest.mark.slow
def test_a_fenced_group_ends_at_one_entry(
    loaded: LoadedGroup, run: RunUpgrade, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["-n", loaded.servers[0].address]
    assert main(["admin", "updateTopic", *names, "-c", "DefaultCluster", "-t", "Late"]) == 0
    assert main(["admin", "updateSubGroup", *names, "-c", "DefaultCluster", "-g", "late"]) == 0
    capsys.readouterr()
    fence = ["admin", "fence", *names, "-m", "broker-a"]
    assert main([*fence, "--seconds", "120", "--format", "json"]) == 0
    members = json.loads(capsys.readouterr().out)["members"]
    (end,) = {member["end"] for member in members}
    assert {member["confirmed"] for member in members} == {end}
    stores = [server.store for server in loaded.brokers if server.store is not None]
    topics = {message.topic for message in read_store(stores[0]).messages}
    assert {"SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"} <= topics
    acknowledged = loaded.acknowledged
    for number, server in enumerate(loaded.brokers):
        assert server.stop() == 0
        if number == 0:
            assert main(fence) == 1
            assert "found 2 registered members" in capsys.readouterr().err
    assert loaded.acknowledged == acknowledged
    for name in ("topics.json", "subscriptionGroup.json"):
        tables = [
            content_of(name, json.loads((store / "config" / name).read_text())) for store in stores
        ]
        assert tables[0] == tables[1] == tables[2] and {"Late", "late"} & tables[0].keys()
    ledgers = [entries_of(store) for store in stores]
    assert ledgers[0] == ledgers[1] == ledgers[2] != b""
    shown = " ".join(f"{name}={store}" for name, store in zip(MEMBERS, stores, strict=True))
    confs = " ".join(f"-c {name}={loaded.root / name / 'broker.conf'}" for name in MEMBERS)
    roles = "--role n0=SYNC_MASTER --role n1=SLAVE --role n2=SLAVE"
    plan = loaded.root / "leave.json"
    code, out, err = run(f"leave {shown} {confs} {roles} --out {plan}")
    assert code == 0, out + err
    kinds = {op["op"] for node in json.loads(plan.read_text())["nodes"] for op in node["ops"]}
    assert kinds and "fetch" not in kinds
