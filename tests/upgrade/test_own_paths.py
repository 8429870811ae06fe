"""Hostile plans and hostile hosts: nothing outside of the node's own directories is written."""

from __future__ import annotations

import http.server
import json
import os
import shlex
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import define, evolve, field

from rmqpy.cli import main
from rmqpy.model.errors import RmqError
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.upgrade.checks.replica import LocalReplica, RemoteReplica
from rmqpy.upgrade.plan.node_context import NodeContext, UpgradeRefusedError, digest_of
from rmqpy.upgrade.plan.operations import OPERATIONS, Op, Write, op_from_json, op_to_json
from rmqpy.upgrade.plan.own_paths import check_own_paths
from rmqpy.upgrade.plan.plan import NodePlan, Plan
from rmqpy.upgrade.plan.survey import SurveyPlan

CONF = """brokerName=b0
mappedFileSizeCommitLog=65536
mappedFileSizeConsumeQueue=2000
maxHashSlotNum=100
maxIndexNum=400
storePathRootDir={root}
"""
VALUES = {"str": "x", "int": 0, "bool": False}


@pytest.fixture
def node(golden_copy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a store ``n0``, an empty ``n1``, their broker.conf, and ``outside``."""
    root = golden_copy("B-master-slave-v497")
    (root / "master").rename(root / "n0")
    (root / "n1").mkdir()
    (root / "outside").mkdir()
    (root / "outside" / "file").write_text("not of the store")
    for name in ("n0", "n1"):
        (root / f"{name}.conf").write_text(CONF.format(root=root / name))
    monkeypatch.chdir(root)
    return root


def outside_of(root: Path) -> dict[str, bytes]:
    """Return every file of the folder that is not in a store."""
    return {
        os.fspath(path): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and path.relative_to(root).parts[0] not in ("n0", "n1")
    }


def run(line: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main(shlex.split(line)[1:])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def plan_of(root: Path, *ops: Op, keep: str = "", store: str = "") -> Plan:
    part = NodePlan(
        replica="n0",
        root=store or os.fspath(root / "n0"),
        keep=keep or f"{root}/n0/rmqpy/upgrade/keep-1",
        ops=ops,
    )
    return Plan(steps=("m0002_align",), nodes=(part,))


def apply(root: Path, plan: Plan, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    (root / "plan.json").write_text(json.dumps(plan.to_json()))
    return run("rmqpy upgrade apply --plan plan.json --node n0 n0 -c n0=n0.conf", capsys)


@pytest.mark.parametrize(
    "target",
    [
        "{root}/outside/new",
        "{root}/n0/../outside/new",
        "{root}/n0/link/new",
        "{root}/n0-other/new",
        "{root}/n0",
        "outside/new",
    ],
)
def test_a_plan_that_writes_outside_of_the_store_is_refused(
    node: Path, capsys: pytest.CaptureFixture[str], target: str
) -> None:
    (node / "n0" / "link").symlink_to(node / "outside")
    (node / "n0-other").mkdir()
    path = target.format(root=node)
    good = Write.of(f"{node}/n0/config/new.json", "absent", b"{}", "")
    plan = plan_of(node, good, Write.of(path, "absent", b"hostile", ""))
    before = outside_of(node)
    code, text = apply(node, plan, capsys)
    assert code == 2 and "one of this node" in text, text
    (node / "plan.json").unlink()
    assert outside_of(node) == before
    assert not (node / "n0/config/new.json").exists(), "the whole plan is refused"
    assert not (node / "n0/rmqpy/upgrade").exists()


@pytest.mark.parametrize("kind", OPERATIONS, ids=lambda kind: str(kind.kind))
def test_every_path_of_every_operation_is_checked(node: Path, kind: type[Op]) -> None:
    store = f"{node}/n0"
    files = OsFileSystem()
    replica = LocalReplica(files, SurveyPlan(name="n0", root=store, now_ms=lambda: 0))
    assert replica.root == store
    context = NodeContext(files, f"{store}/rmqpy/upgrade", settings_of(store))
    fields = [each for each in op_fields(kind) if each not in NO_PATHS]
    inside = {name: f"{store}/x/{name}" for name in fields}
    values: Any = {**{name: VALUES[kind_] for name, kind_ in op_fields(kind).items()}, **inside}
    check_own_paths(context, plan_of(node, kind(**values)).nodes[0])
    for name in fields:
        hostile = kind(**{**values, name: f"{node}/outside/x"})
        with pytest.raises(UpgradeRefusedError, match="outside/x"):
            check_own_paths(context, plan_of(node, hostile).nodes[0])


NO_PATHS = frozenset(
    ("why", "before", "after", "replica", "source_path", "content", "log", "start", "end")
    + ("file_size", "base_offset", "content_end", "moved_from", "moved_to", "size", "mtime_ms")
    + ("from_offset", "undo_bytes", "data_bytes", "staged", "bytes_max")
)
"""The fields of operations that are no paths of the node."""


def op_fields(kind: type[Op]) -> dict[str, str]:
    import attrs

    return {each.name: str(each.type) for each in attrs.fields(kind)}


def settings_of(root: str) -> Any:
    from rmqpy.config.loading import StoreSettings

    return StoreSettings(store_path_root_dir=root)


def test_kept_files_and_the_root_are_those_of_this_node(
    node: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    op = Write.of(f"{node}/n0/config/new.json", "absent", b"{}", "")
    before = outside_of(node)
    for plan in (
        plan_of(node, op, keep=f"{node}/outside"),
        plan_of(node, op, keep=f"{node}/n0"),
        plan_of(node, Write.of(f"{node}/outside/x", "absent", b"", ""), store=f"{node}/outside"),
    ):
        code, text = apply(node, plan, capsys)
        assert code == 2 and "expected" in text, text
        (node / "plan.json").unlink()
        assert outside_of(node) == before


def test_only_the_given_configuration_can_be_written(
    node: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = digest_of((node / "n0.conf").read_bytes())
    conf = Write.of(f"{node}/n0.conf", before, b"# new\n" + (node / "n0.conf").read_bytes(), "")
    (node / "plan.json").write_text(json.dumps(plan_of(node, conf).to_json()))
    line = "rmqpy upgrade apply --plan plan.json --node n0 n0"
    code, text = run(line, capsys)
    assert code == 2 and "pass -c" in text
    assert run(f"{line} -c n0=n1.conf", capsys)[0] == 2
    assert run(f"{line} -c n0=n0.conf", capsys)[0] == 0
    assert (node / "n0.conf").read_text().startswith("# new\n")


def test_links_of_the_operator_to_other_disks_are_followed(
    node: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (node / "n0" / "config").rename(node / "outside" / "config")
    (node / "n0" / "config").symlink_to(node / "outside" / "config")
    op = Write.of(f"{node}/n0/config/new.json", "absent", b"{}", "")
    assert apply(node, plan_of(node, op), capsys)[0] == 0
    assert (node / "outside/config/new.json").exists()


@pytest.mark.parametrize(
    "change", [{"path": 7}, {"path": None}, {"before": ["x"]}, {"content": 1.5}, {"more": "x"}]
)
def test_an_operation_with_values_of_other_types_is_refused(change: dict[str, Any]) -> None:
    value = op_to_json(Write.of("/x", "absent", b"", ""))
    with pytest.raises(RmqError, match="operation write"):
        op_from_json({**value, **change})


# Another host


@define
class HostileHost:
    """A server that speaks the protocol of ``rmqpy upgrade serve``, and lies.

    ``changed`` is called with the survey of the real replica, as JSON.
    """

    replica: LocalReplica
    changed: Callable[[dict[str, Any]], None]
    server: http.server.ThreadingHTTPServer = field(init=False)

    def start(self) -> str:
        host = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = host.answer(self.path)
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, url: str) -> bytes:
        parsed = urllib.parse.urlsplit(url)
        query = dict(urllib.parse.parse_qsl(parsed.query))
        if parsed.path.endswith("survey"):
            value = json.loads(self.replica.survey().encode())
            self.changed(value)
            return json.dumps(value).encode()
        if parsed.path.endswith("clock"):
            return b"0"
        name = query["path"].rpartition("/")[2].replace("stolen", f"{0:020d}")
        log = f"{self.replica.root}/commitlog/{name}"
        start, end = int(query["start"]), int(query["end"])
        if parsed.path.endswith("digest"):
            return self.replica.digest(log, start, end).encode()
        return self.replica.read(log, start, end)

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def hostile(node: Path) -> Iterator[Callable[[Callable[[dict[str, Any]], None]], str]]:
    started: list[HostileHost] = []

    def start(change: Callable[[dict[str, Any]], None]) -> str:
        plan = SurveyPlan(name="n0", root=f"{node}/n0", now_ms=lambda: 0)
        started.append(HostileHost(LocalReplica(OsFileSystem(), plan), change))
        return started[-1].start()

    yield start
    for each in started:
        each.stop()


def log_files(survey: dict[str, Any]) -> list[dict[str, Any]]:
    (log,) = [each for each in survey["manifest"]["logs"] if each["kind"] == "classic"]
    files: list[dict[str, Any]] = log["files"]
    return files


def renamed_log(target: str) -> Callable[[dict[str, Any]], None]:
    """Return a change that gives the first log file another path, everywhere in the survey."""

    def change(survey: dict[str, Any]) -> None:
        first = log_files(survey)[0]
        for each in (*survey["manifest"]["files"], *survey["spans"]):
            if each["path"] == first["path"]:
                each["path"] = target
        first["path"] = target

    return change


@pytest.mark.slow
@pytest.mark.parametrize("name", ["/outside/stolen", "/../outside/stolen"])
def test_join_never_writes_to_a_path_of_the_other_host(
    node: Path,
    hostile: Callable[[Callable[[dict[str, Any]], None]], str],
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    before = outside_of(node)
    address = hostile(renamed_log(f"{node}{name}"))
    line = f"rmqpy upgrade join n1 --from n0={address} -c n1=n1.conf --yes"
    code, text = run(line, capsys)
    assert code == 0, text
    assert outside_of(node) == before
    log = sorted(path.name for path in (node / "n1/commitlog").iterdir())
    assert log == sorted(path.name for path in (node / "n0/commitlog").iterdir())


def table_elsewhere(survey: dict[str, Any]) -> None:
    survey["tables"]["../../outside/stolen.json"] = "{}"


def offset_that_is_a_path(survey: dict[str, Any]) -> None:
    log_files(survey)[0]["first_offset"] = "../../outside/stolen"


def nested_without_end(survey: dict[str, Any]) -> None:
    survey["tables"] = []


@pytest.mark.slow
@pytest.mark.parametrize("change", [table_elsewhere, offset_that_is_a_path, nested_without_end])
def test_a_survey_with_other_values_is_refused(
    node: Path,
    hostile: Callable[[Callable[[dict[str, Any]], None]], str],
    capsys: pytest.CaptureFixture[str],
    change: Callable[[dict[str, Any]], None],
) -> None:
    before = outside_of(node)
    code, text = run(
        f"rmqpy upgrade join n1 --from n0={hostile(change)} -c n1=n1.conf --yes", capsys
    )
    assert code == 1 and "not a" in text, text
    assert outside_of(node) == before and not (node / "n1/commitlog").exists()


def test_a_survey_cannot_speak_for_another_replica(
    node: Path, hostile: Callable[[Callable[[dict[str, Any]], None]], str]
) -> None:
    def change(survey: dict[str, Any]) -> None:
        survey["name"] = "n1"

    assert RemoteReplica("n0", hostile(change)).survey().name == "n0"


def test_join_asks(
    node: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "rmqpy upgrade join n1 --from n0=n0 -c n1=n1.conf"
    code, text = run(line, capsys)
    assert code == 2 and "create" in text and "--yes" in text
    assert not (node / "n1/commitlog").exists()
    code, text = run(f"{line} --format json", capsys)
    assert code == 2 and "--yes" in json.loads(text)["refused"]
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    for answer, expected in (("n", 2), ("", 2), ("y", 0)):
        monkeypatch.setattr("builtins.input", lambda _, answer=answer: answer)
        assert run(line, capsys)[0] == expected
    assert (node / "n1/commitlog").exists()


def test_text_of_another_host_cannot_control_the_terminal(
    node: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_of(node, Write.of(f"{node}/n0/config/x\x1b[2J\n.json", "absent", b"", ""))
    refused = evolve(plan, nodes=(evolve(plan.nodes[0], keep=f"{node}/\x1b[2J"),))
    code, text = apply(node, refused, capsys)
    assert code == 2 and "\x1b" not in text
