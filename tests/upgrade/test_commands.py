"""The commands of docs/how-to/upgrade-a-group.md, and ``rmqpy upgrade`` over several lagging."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.upgrade import CONF, log_of, write_first_entry

from rmqpy.audit.replicas.certificate import check_signature
from rmqpy.cli import main
from rmqpy.model.errors import RmqError
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.store.files.mapped_files import MappedFiles
from rmqpy.store.ledger.classic_prefix import forget_log_marks, open_old_log
from rmqpy.testing.processes import python_environment
from rmqpy.upgrade.checks.hazards import CONTROLLER_HAZARDS, HAZARDS
from rmqpy.upgrade.checks.replica import RemoteReplica
from rmqpy.upgrade.plan.plan import Plan

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "upgrade.md"
Commands = Callable[[str], list[tuple[str, int]]]


def run(line: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main(shlex.split(line)[1:])
    return code, capsys.readouterr().out


def test_the_page_lists_every_hazard() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for hazard in (*HAZARDS, *CONTROLLER_HAZARDS):
        checks = ", ".join(f"`{name}`" for name in hazard.checks) or "explained"
        assert f"| {hazard.number} | {hazard.what} | {checks} | {hazard.here} |" in text


def run_page(
    lines: list[tuple[str, int]],
    capsys: pytest.CaptureFixture[str],
    before_finalize: Callable[[], None] = lambda: None,
) -> int:
    """Run the ``rmqpy upgrade`` commands, check their exit codes, and return their number."""
    done = 0
    for line, code in lines:
        if not line.startswith("rmqpy upgrade"):
            continue
        if "finalize" in line:
            before_finalize()
        command, _, target = line.partition(" > ")
        found, out = run(command, capsys)
        assert found == code, (line, out)
        if target:
            Path(target.strip()).write_text(out, encoding="utf-8")
        done += 1
    return done


@pytest.mark.slow
@pytest.mark.parametrize("part", ["Switch to DLedger", "Switch without a group file"])
def test_the_page_switches_a_classic_group(
    lagging: Path, upgrade_commands: Commands, capsys: pytest.CaptureFixture[str], part: str
) -> None:
    (lagging / "secret.key").write_text("secret")
    started: list[Path] = []

    def start_the_group() -> None:
        if not started:
            check_switched(lagging)
            write_first_entry(lagging)
        started.append(lagging)

    assert run_page(upgrade_commands(part), capsys, start_the_group) > 8
    assert started
    assert check_signature((lagging / "certificate.json").read_bytes(), b"secret")


def check_switched(folder: Path) -> None:
    """Check configuration, logs, and the recorded digests of a group that has not started yet."""
    for number in range(3):
        text = (folder / f"n{number}.conf").read_text()
        assert f"dLegerSelfId=n{number}\n" in text and "enableDLegerCommitLog=true\n" in text
    logs = [log_of(folder / f"n{number}") for number in range(3)]
    assert logs[0] == logs[1] == logs[2]
    for number in range(3):
        root = os.fspath(folder / f"n{number}")
        segments = MappedFiles(OsFileSystem(), (f"{root}/commitlog",), 65536)
        segments.load("mappedFileSizeCommitLog")
        own = f"{root}/rmqpy"
        recorded = open_old_log(OsFileSystem(), segments, segments.last.end_offset, own)
        assert recorded.next_digest_task() is None, "the switch has stored the digest of the log"
        forget_log_marks(OsFileSystem(), own)
        computed = open_old_log(OsFileSystem(), segments, segments.last.end_offset, own)
        while (task := computed.next_digest_task()) is not None:
            computed.take(task())
        segments.close()
        assert computed.mark == recorded.mark


def joined_group(root: Path) -> None:
    """Write the broker.conf files of a joined group in docs/how-to/upgrade-a-group.md."""
    peers = "dLegerPeers=n0-127.0.0.1:20911;n1-127.0.0.1:20912;n2-127.0.0.1:20913\n"
    for number in range(3):
        text = CONF.format(port=15911 + 10 * number, root=root / f"n{number}") + peers
        text += f"dLegerSelfId=n{number}\nenableDLegerCommitLog=true\ndLegerGroup=b0\n"
        (root / f"n{number}.conf").write_text(text)


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["messages", "everything", "files"])
def test_the_page_lets_a_refused_member_join(
    golden_copy: Callable[[str], Path],
    upgrade_commands: Commands,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    missing: str,
) -> None:
    if missing == "messages":
        root = golden_copy("X-gap_same_file-v497")
        (root / "n2").rename(root / "short")
        (root / "n0").rename(root / "long")
        root.joinpath("short").rename(root / "n2")
        root.joinpath("long").rename(root / "n0")
    else:
        root = golden_copy("C-upgraded-v497")
    joined_group(root)
    monkeypatch.chdir(root)
    odd = root / "n2"
    if missing == "everything":
        shutil.rmtree(odd)
    elif missing == "files":
        shutil.rmtree(odd / "dledger-n2")
        last = max((odd / "commitlog").iterdir())
        last.unlink()
    if missing != "messages":
        # The file that a refused start created.
        empty = odd / "dledger-n2" / "data" / "00000000000000131072"
        empty.parent.mkdir(parents=True)
        empty.write_bytes(bytes(65536))
    logs = [file.name for file in (root / "n0/commitlog").iterdir()]
    (preview, _), (line, code) = upgrade_commands("Let a refused member join")
    (_, shown) = run(preview, capsys)
    assert "n2 (" in shown and "n0 (" not in shown, "only the member itself is changed"
    found, out = run(line, capsys)
    *_, compared, not_examined, verdict, advice = out.splitlines()
    if missing == "messages":
        # n2 has formed a quorum with n1 since, and n0 receives these messages from it.
        assert found == 2 and "it has entries that n0 lacks: if n0 only lags, start" in advice
        assert verdict == "CONTAINED: n0 in n2, which has 8 messages more"
        assert compared.endswith("the entries up to 11, byte by byte")
    else:
        assert (found, advice) == (code, "n2: start its broker"), out
        assert re.fullmatch(r"CONTAINED: n2 in n0, which has \d+ messages more", verdict)
        assert re.fullmatch(r"compared: the old log, 0 to \d+, byte by byte", compared)
    assert not_examined.startswith("not examined: tables")
    for name in logs:
        whole = (root / "n0/commitlog" / name).read_bytes()
        assert (odd / "commitlog" / name).read_bytes() == whole
    assert (odd / "config/topics.json").exists()
    assert not (odd / "dledger-n2/data/00000000000000131072").exists()
    assert (odd / "dledger-n2").exists() == (missing == "messages"), "entries are kept"
    assert run("rmqpy upgrade rollback n2", capsys)[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize("part", ["Go back to a master and slaves", "Go back without a group file"])
def test_the_page_returns_to_a_master_and_slaves(
    golden_copy: Callable[[str], Path],
    upgrade_commands: Commands,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    part: str,
) -> None:
    root = golden_copy("C-upgraded-v497")
    joined_group(root)
    monkeypatch.chdir(root)
    run("rmqpy upgrade init n0.conf n1.conf n2.conf", capsys)
    assert run_page(upgrade_commands(part), capsys) > 3
    assert "enableDLegerCommitLog=false\n" in (root / "n1.conf").read_text()
    assert "brokerRole=SLAVE\n" in (root / "n1.conf").read_text()
    assert not list(root.glob("n*/dledger-*"))


@pytest.mark.slow
def test_a_signed_plan_needs_its_key(lagging: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A changed plan can be given a matching id, but no signature."""
    (lagging / "secret.key").write_text("secret\n")
    (lagging / "other.key").write_text("other")
    (lagging / "empty.key").write_text("\n")
    assert run("rmqpy upgrade plan n0 n1 n2 --key secret.key --out plan.json", capsys)[0] == 0
    apply = "rmqpy upgrade apply --plan {plan} --node n1 n0 n1 n2 --dry-run{key}"

    def applied(plan: str, key: str) -> int:
        return run(apply.format(plan=plan, key=f" --key {key}" if key else ""), capsys)[0]

    assert applied("plan.json", "secret.key") == 0
    assert applied("plan.json", "") == 2, "a signed plan needs the key"
    assert applied("plan.json", "other.key") == 2
    assert applied("plan.json", "empty.key") == 1
    value = json.loads((lagging / "plan.json").read_text())
    value["nodes"][1]["ops"].pop()
    value["id"] = id_of(value)
    Plan.from_json(value)
    (lagging / "changed.json").write_text(json.dumps(value))
    assert applied("changed.json", "secret.key") == 2
    del value["signature"]
    (lagging / "unsigned.json").write_text(json.dumps(value))
    assert applied("unsigned.json", "secret.key") == 2, "a plan without its signature is refused"


def id_of(value: dict[str, Any]) -> str:
    """Return the id that matches the content of a changed plan."""
    with pytest.raises(RmqError, match="its content has") as refused:
        Plan.from_json(value)
    return str(refused.value).split("its content has ")[1][:12]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("rmqpy upgrade check nowhere", 1),
        ("rmqpy upgrade check n0 x/n0", 1),
        ("rmqpy upgrade rollback n0", 2),
        ("rmqpy upgrade finalize n0", 2),
        ("rmqpy upgrade apply --resume n0", 2),
        ("rmqpy upgrade apply", 1),
        ("rmqpy upgrade switch n0 n1 n2 --peers n0-h:1", 2),
        ("rmqpy upgrade leave n0", 2),
        ("rmqpy upgrade verify n0", 1),
        ("rmqpy upgrade serve n0 --host 0.0.0.0", 1),
    ],
)
def test_exit_codes(
    lagging: Path, capsys: pytest.CaptureFixture[str], line: str, code: int
) -> None:
    assert run(line, capsys)[0] == code


@pytest.mark.slow
def test_all_commands_can_print_json(lagging: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for line in (
        "check n0 n1 n2",
        "plan n0 n1 n2 --out plan.json",
        "apply --plan plan.json --node n1 n0 n1 --dry-run",
        "apply --plan plan.json --node n1 n0 n1",
        "status n0 n1",
        "rollback n1",
        "verify n0 n1",
        "switch n0=n0 -c n0=n0.conf --peers n0-h:1 --self-id n0=n0 --dry-run",
        "leave n0",
    ):
        _, out = run(f"rmqpy upgrade {line} --format json", capsys)
        json.loads(out)


def test_a_runbook_without_a_group_file_begins_with_init(
    lagging: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = "n0 n1=https://near:8443 n2=ssh://ops@far:2222/data/n2"
    confs = "-c n0=n0.conf -c n2=/etc/n2.conf"
    code, out = run(f"rmqpy upgrade switch {given} {confs} --runbook java", capsys)
    assert code == 0
    conf = lagging / "n0.conf"
    assert f"init {conf} https://near:8443 ssh://ops@far:2222/etc/n2.conf\n" in out
    assert "n2, on ssh://ops@far:2222: sh bin/mqbroker -c /etc/n2.conf\n" in out
    assert run("rmqpy upgrade switch n0 n1 --runbook java", capsys)[0] == 1, "no broker.conf"


class ServeProcess:
    """A process of ``rmqpy upgrade serve``; ``address`` is where it listens."""

    def __init__(self, arguments: list[str]) -> None:
        argv = [sys.executable, "-m", "rmqpy.cli", "upgrade", "serve", *arguments]
        self.process = subprocess.Popen(
            argv, stdout=subprocess.PIPE, text=True, env=python_environment()
        )
        timer = threading.Timer(30, self.process.kill)
        timer.start()
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        timer.cancel()
        assert line.startswith("ready: "), line
        self.address = line.split()[1]

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def test_serve_names_the_package_that_is_not_installed(
    lagging: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    monkeypatch.delitem(sys.modules, "rmqpy.upgrade.serve", raising=False)
    assert main(["upgrade", "serve", "n0"]) == 1
    assert "needs aiohttp, which is not installed: pip install 'rmqpy[upgrade]'" in (
        capsys.readouterr().err
    )


@pytest.fixture
def served(lagging: Path) -> Iterator[ServeProcess]:
    pytest.importorskip("aiohttp", reason="rmqpy[upgrade] is not installed")
    made = ServeProcess(["n0"])
    yield made
    made.stop()


@pytest.mark.slow
def test_the_replica_of_another_host_can_be_the_reference(
    served: ServeProcess, lagging: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    replicas = f"n0={served.address} n1 n2"
    assert run(f"rmqpy upgrade check {replicas}", capsys)[0] == 2
    assert run(f"rmqpy upgrade plan {replicas} --out plan.json", capsys)[0] == 0
    for node in ("n1", "n2"):
        line = f"rmqpy upgrade apply --plan plan.json --node {node} {replicas}"
        assert run(line, capsys)[0] == 0
    assert run(f"rmqpy upgrade check {replicas}", capsys)[0] == 0
    assert run(f"rmqpy upgrade status {replicas}", capsys)[0] == 0


@pytest.mark.slow
def test_serve_reports_the_current_state(lagging: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("aiohttp", reason="rmqpy[upgrade] is not installed")
    server = ServeProcess(["n1"])
    try:
        shown = f"n0 n1={server.address}"
        assert run(f"rmqpy upgrade check {shown}", capsys)[0] == 2
        assert run("rmqpy upgrade plan n0 n1 --out plan.json", capsys)[0] == 0
        assert run("rmqpy upgrade apply --plan plan.json --node n1 n0 n1", capsys)[0] == 0
        assert run(f"rmqpy upgrade check {shown}", capsys)[0] == 0
        code, out = run(f"rmqpy upgrade status {shown}", capsys)
        assert code == 0 and "n1: applied" in out
    finally:
        server.stop()


@pytest.mark.slow
def test_the_replica_of_another_host_is_verified(
    served: ServeProcess, lagging: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Queues have grown since the manifest; the other host sums only the messages of that time."""
    code, out = run("rmqpy upgrade manifest n0=n1 --format json", capsys)
    (lagging / "before.json").write_text(out, encoding="utf-8")
    verify = f"rmqpy upgrade verify --before before.json n0={served.address} --format json"
    code, out = run(verify, capsys)
    (found,) = json.loads(out)["comparisons"]
    assert (found["same"], found["undecided"], found["more"], code) == (291, 0, 70, 0)
    file = lagging / "n0/commitlog" / f"{0:020d}"
    data = bytearray(file.read_bytes())
    data[60] ^= 1
    file.write_bytes(data)
    code, out = run(verify, capsys)
    (found,) = json.loads(out)["comparisons"]
    assert code == 2 and found["same"] + found["undecided"] == 291


@pytest.mark.slow
def test_a_refused_member_copies_from_another_host(
    served: ServeProcess, lagging: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = f"rmqpy upgrade join n1 --from n0={served.address} -c n1=n1.conf --yes"
    assert run(line, capsys)[0] == 0
    assert log_of(lagging / "n0").items() <= log_of(lagging / "n1").items()


@pytest.mark.slow
def test_a_switch_reads_other_hosts_and_changes_only_this_one(
    served: ServeProcess, lagging: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    remote = f"n0={served.address}"
    peers = "--peers 'n0-a:1;n1-b:1;n2-c:1'"
    ids = "--self-id n1=n1 --self-id n2=n2"
    switch = f"rmqpy upgrade switch {remote} n1 n2 -c n1=n1.conf -c n2=n2.conf {peers} {ids}"
    assert run(switch, capsys)[0] == 2, "the replicas are not aligned"
    assert run(f"rmqpy upgrade plan {remote} n1 n2 --out plan.json", capsys)[0] == 0
    for node in ("n1", "n2"):
        line = f"rmqpy upgrade apply --plan plan.json --node {node} {remote} n1 n2"
        assert run(line, capsys)[0] == 0
    before = {path: path.stat().st_mtime_ns for path in (lagging / "n0").rglob("*")}
    assert run(switch, capsys)[0] == 0
    assert {path: path.stat().st_mtime_ns for path in (lagging / "n0").rglob("*")} == before
    assert "dLegerSelfId" not in (lagging / "n0.conf").read_text()
    for node in ("n1", "n2"):
        assert f"dLegerSelfId={node}\n" in (lagging / f"{node}.conf").read_text()
    assert run(f"rmqpy upgrade switch {remote} {peers}", capsys)[0] == 2, (
        "no local replica is given"
    )


@pytest.mark.slow
def test_members_on_other_hosts_count_for_the_cut(
    golden_copy: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("aiohttp", reason="rmqpy[upgrade] is not installed")
    monkeypatch.chdir(golden_copy("C-upgraded-v497"))
    peers = "--peers 'n0-a:1;n1-b:1;n2-c:1' --format json"
    code, _ = run(f"rmqpy upgrade leave n0 {peers}", capsys)
    assert code == 2, "one member of three does not know what was acknowledged"
    server = ServeProcess(["n1"])
    try:
        code, out = run(f"rmqpy upgrade leave n0 n1={server.address} {peers}", capsys)
    finally:
        server.stop()
    assert code == 0
    (part,) = json.loads(out)["nodes"]
    assert part["replica"] == "n0"
    assert part["notes"][0] == "entries up to 280 are kept"


@pytest.mark.slow
@pytest.mark.parametrize(
    "query",
    [
        "path=../n1/commitlog/00000000000000000000&start=0&end=10",
        "path=/etc/hostname&start=0&end=1",
        "path=rmqpy/format&start=0&end=1",
        "path=commitlog/00000000000000000000&start=-5&end=1",
        "path=commitlog/00000000000000000000&start=0&end=99999999",
    ],
)
def test_serve_sends_only_files_of_the_store(served: ServeProcess, query: str) -> None:
    import urllib.error
    import urllib.request

    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{served.address}/v1/range?{query}", timeout=10)
    assert refused.value.code == 400
    refused.value.close()


@pytest.mark.slow
def test_serve_requires_its_token_over_tls(lagging: Path) -> None:
    pytest.importorskip("aiohttp", reason="rmqpy[upgrade] is not installed")
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
        + ["-keyout", "key.pem", "-out", "cert.pem", "-subj", "/CN=localhost"]
        + ["-addext", "subjectAltName=IP:127.0.0.1"],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip("openssl, which creates the certificate, failed or is not installed")
    (lagging / "token").write_text("a-token-of-enough-characters\n")
    tls = ["--token-file", "token", "--certificate", "cert.pem", "--key", "key.pem"]
    server = ServeProcess(["n0", "--host", "127.0.0.1", *tls])
    try:
        authority = os.fspath(lagging / "cert.pem")
        good = RemoteReplica("n0", server.address, "a-token-of-enough-characters", authority)
        assert good.survey().manifest.messages == 361
        wrong = RemoteReplica("n0", server.address, "another-token-of-characters", authority)
        with pytest.raises(RmqError, match=r"403 found a wrong token, .* with --token-file"):
            wrong.survey()
        with pytest.raises(RmqError, match=r"not trusted .* with --authority"):
            RemoteReplica("n0", server.address, "a-token-of-enough-characters").survey()
        with pytest.raises(RmqError, match="not sent without TLS"):
            RemoteReplica("n0", "http://127.0.0.1:1", "a-token-of-enough-characters").status()
    finally:
        server.stop()
