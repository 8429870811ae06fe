"""A group on several hosts: one machine drives the others over ssh.

``ssh`` is a script here that runs the remote command on this machine, in another directory, or, in
most tests, a fork of this process; the test with a real sshd is
tests/interop/test_group_on_three_hosts.py.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.forked_agents import fork_agent
from harness.upgrade import RunUpgrade, log_of, tree_of

from rmqpy.cli.upgrade.group.outcome import rows_by_name
from rmqpy.model.errors import NetworkError, RmqError
from rmqpy.upgrade.link.connections import ssh_command, start_program
from rmqpy.upgrade.link.driver import RETRY_SECONDS, AgentLink
from rmqpy.upgrade.link.frames import PROTOCOL, Frame, read_frame, write_frame

NAMES = ("n0", "n1", "n2")
SSH = """#!{python}
import os, pathlib, subprocess, sys
folder = pathlib.Path({folder!r})
with (folder / "calls").open("a") as calls:
    print(*sys.argv[1:], file=calls)
number = len((folder / "calls").read_text().splitlines())
command = sys.argv[-1].replace("rmqpy ", {python!r} + " -m rmqpy.cli ", 1)
if (folder / "cut").exists():
    # The connection is lost after so many bytes of the answers.
    left = int((folder / "cut").read_text())
    (folder / "cut").unlink()
    agent = subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE)
    while left > 0 and (data := os.read(agent.stdout.fileno(), min(left, 65536))):
        os.write(1, data)
        left -= len(data)
    agent.stdout.close()
    agent.kill()
    agent.wait()
    sys.exit(255)
os.chdir("/")
os.execvp("sh", ["sh", "-c", command])
"""


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory in which the calls of ``ssh`` are noted."""
    folder = tmp_path / "ssh"
    folder.mkdir()
    program = folder / "ssh"
    program.write_text(SSH.format(python=sys.executable, folder=str(folder)))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setattr("rmqpy.upgrade.link.driver.RETRY_SECONDS", (0.0, 0.0))
    return folder


@pytest.fixture
def agents(ssh: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let this process start the agents as forks; return the directory of ``ssh``."""
    start = "rmqpy.upgrade.link.connections.start_program"
    monkeypatch.setattr(start, lambda command: fork_agent(ssh / "cut"))
    return ssh


def init(folder: Path, run: RunUpgrade) -> None:
    """Write a ``group.toml`` with a local member and two on other hosts."""
    far, off = f"ssh://ops@far:2222{folder}/n1.conf", f"ssh://off{folder}/n2.conf"
    code, out, err = run(f"init --rmqpy rmqpy n0.conf {far} {off}")
    assert code == 0, (out, err)


def trees(folder: Path) -> dict[str, dict[str, tuple[bytes, int]]]:
    return {name: {**tree_of(folder / name), "lock": (b"", 0)} for name in NAMES}


def state_of(run: RunUpgrade) -> str:
    return str(json.loads(run("status --format json")[1])["state"])


@pytest.mark.slow
def test_a_group_on_three_hosts_is_switched_and_rolled_back(
    lagging: Path, run: RunUpgrade, ssh: Path
) -> None:
    before = trees(lagging)
    init(lagging, run)
    text = (lagging / "group.toml").read_text()
    assert text.count('rmqpy = "rmqpy"') == 2
    assert 'host = "ssh://ops@far:2222"' in text and f'directory = "{lagging}/n1"' in text
    assert "-p 2222 -l ops -- far" in (ssh / "calls").read_text()
    assert run("check")[0] == 2 and state_of(run) == "stopped"
    code, out, err = run("run --until switched --yes")
    assert code == 0 and state_of(run) == "switched", (out, err)
    logs = [log_of(lagging / name) for name in NAMES]
    assert logs[0] == logs[1] == logs[2]
    for name in NAMES:
        text = (lagging / f"{name}.conf").read_text()
        assert f"dLegerSelfId={name}\n" in text and "n1-far:25921;n2-off:25931" in text
    (ssh / "cut").write_text("300")
    code, out, err = run("rollback")
    assert code == 0 and out.count("the switch is taken back") == 3, (out, err)
    assert "connecting again" in err
    assert state_of(run) == "aligned"
    code, out, err = run("rollback")
    assert code == 0 and trees(lagging) == before, (out, err)


@pytest.mark.slow
def test_a_rollback_states_what_it_will_undo_on_every_host(
    lagging: Path, run: RunUpgrade, agents: Path
) -> None:
    """Before anything is undone anywhere: a host that refuses keeps all others from going back."""
    init(lagging, run)
    code, out, err = run("run --until switched --yes")
    assert code == 0, (out, err)
    switched = trees(lagging)
    code, out, err = run("rollback --dry-run --format json")
    assert code == 0 and trees(lagging) == switched, (out, err)
    undoes = {name: row["undoes"] for name, row in rows_by_name(json.loads(out)).items()}
    assert list(undoes) == [*NAMES]
    code, out, err = run("rollback --dry-run")
    assert code == 0 and trees(lagging) == switched, (out, err)
    assert out.splitlines() == [f"{name}: {each}" for name in NAMES for each in undoes[name]]
    for name in NAMES:
        plan, configuration, log, messages, earlier = undoes[name]
        assert "m0004_join), which is applied: 2 of 2 operations" in plan
        assert configuration == (
            f"configuration: {lagging}/{name}.conf gets back its earlier content"
        )
        assert log == "files of the log: 1 changed back"
        assert messages.startswith("messages: none were written since") and "stays" in earlier
    conf = lagging / "n2.conf"
    conf.write_text(f"{conf.read_text()}fileReservedTime=9\n")
    assert (
        "n2.conf gets back its earlier content, and what was edited since is lost"
        in (run("rollback --dry-run")[1])
    )

    (first, *_) = sorted((lagging / "n2/commitlog").iterdir())
    original = first.read_bytes()
    first.write_bytes(original + b"1")
    code, out, err = run("rollback")
    assert code == 2 and "n2: the log in" in err and "was written to since" in err, (out, err)
    first.write_bytes(original)
    assert {**trees(lagging), "n2": {}} == {**switched, "n2": {}}, "n0 and n1 did not go back"


@pytest.mark.slow
def test_every_host_prepares_its_own_directory(
    lagging: Path, run: RunUpgrade, agents: Path
) -> None:
    init(lagging, run)
    code, out, err = run("prepare --rate 0 --dry-run --format json")
    forecast = rows_by_name(json.loads(out))
    assert code == 0 and list(forecast) == [*NAMES], err
    assert forecast["n1"]["read"] > 0 and forecast["n2"]["read"] == 0
    assert not list(lagging.glob("n*/rmqpy/learned")), "a dry run"
    code, out, err = run("prepare --rate 0 --format json")
    found = rows_by_name(json.loads(out))
    assert code == 0 and list(found) == [*NAMES], (out, err)
    assert found["n1"]["learned_bytes"] > 0 and found["n1"]["read_bytes"] > 0
    assert found["n1"]["staged_bytes"] and found["n2"]["staged_bytes"] == 5 * 65536
    assert all(forecast[name]["staged"] == found[name]["staged_bytes"] for name in NAMES)
    assert forecast["n2"]["derived"] > 0
    assert len(list(lagging.glob("n2/rmqpy/upgrade/stage/*/0*"))) == 5
    code, out, err = run("run --until aligned --yes")
    assert code == 0 and run("check")[0] == 0, (out, err)
    assert not list(lagging.glob("n2/rmqpy/upgrade/stage/*/0*")), "they were moved"
    assert run("prepare --clear")[0] == 0
    assert not list(lagging.glob("n*/rmqpy/learned"))


@pytest.mark.slow
def test_a_switch_to_a_controller_that_misses_a_host_is_continued(
    classic: Path, run: RunUpgrade, agents: Path
) -> None:
    """The first host is that of a SYNC_MASTER: then its broker.conf does not say so any more."""
    conf = classic / "n0.conf"
    conf.write_text(f"{conf.read_text()}brokerRole=SYNC_MASTER\n")
    init(classic, run)
    before = trees(classic)
    switch = "switch --to controller --controllers '127.0.0.1:1;127.0.0.1:2'"
    code, out, err = run(switch)
    assert code == 0 and state_of(run) == "handed-over", (out, err)
    for name in NAMES:
        assert "allAckInSyncStateSet=true" in (classic / f"{name}.conf").read_text()
    code, _, err = run("finalize")
    assert code == 2 and "finalize removes rollback" in err
    assert run(f"rollback {classic}/n2")[0] == 0
    code, out, _ = run("status")
    assert code == 0 and "group b0: handing-over;" in out, out
    assert f"next: rmqpy upgrade {switch} (" in out, out
    rows = {words[0]: words[1:] for line in out.splitlines() if (words := line.split())}
    assert rows["n0"][:5] == ["the", "controller's", "(configured)", "handed", "over"], out
    assert rows["n2"][:3] == ["SLAVE", "(configured)", "stopped"], out
    code, out, err = run("next --yes")
    assert code == 0 and state_of(run) == "handed-over", (out, err)
    assert run(f"rollback {classic}/n1")[0] == 0
    code, out, err = run("next --back --yes")
    assert code == 0 and out.count("the switch is taken back") == 2, (out, err)
    assert trees(classic) == before


@pytest.mark.slow
def test_a_group_on_three_hosts_leaves(joined: Path, run: RunUpgrade, agents: Path) -> None:
    for number in range(3):
        conf = joined / f"n{number}.conf"
        peers = "n0-127.0.0.1:20911;n1-far:20912;n2-off:20913"
        old = "n0-127.0.0.1:20911;n1-127.0.0.1:20912;n2-127.0.0.1:20913"
        conf.write_text(conf.read_text().replace(old, peers))
    init(joined, run)
    assert state_of(run) == "halted"
    code, out, err = run("leave --apply")
    assert code == 1 and "(n1, n2)" in err and "rmqpy upgrade apply" in err, (out, err)
    assert state_of(run) == "halted"
    (agents / "cut").write_text("4000")
    code, out, err = run("run --until left-verified --yes")
    assert code == 0 and state_of(run) == "left-verified", (out, err)
    assert "connecting again" in err
    assert not list(joined.glob("n*/dledger-*"))
    assert "brokerRole=SLAVE\n" in (joined / "n2.conf").read_text()
    code, out, err = run("finalize")
    assert code == 0 and out.count("the upgrade is final") == 3, (out, err)


@pytest.mark.slow
@pytest.mark.parametrize("left", [0, 10, 100, 500])
def test_a_lost_connection_is_opened_again(
    lagging: Path, run: RunUpgrade, agents: Path, left: int
) -> None:
    init(lagging, run)
    (agents / "cut").write_text(str(left))
    code, out, err = run("status")
    assert code == 0 and "stopped;" in out and "connecting again" in err, err


@pytest.mark.slow
def test_a_connection_lost_while_a_plan_is_applied_is_resumed(
    lagging: Path, run: RunUpgrade, agents: Path
) -> None:
    """The agent is killed while it asks for the bytes that its member lacks."""
    init(lagging, run)
    assert run("plan")[0] == 0
    (agents / "cut").write_text("200")
    code, out, err = run("apply")
    assert code == 0 and "connecting again" in err, (out, err)
    assert state_of(run) == "aligned" and run("check")[0] == 0


@pytest.mark.slow
def test_an_unreachable_host_is_named(lagging: Path, run: RunUpgrade, ssh: Path) -> None:
    init(lagging, run)
    (ssh / "ssh").write_text("#!/bin/sh\necho no route to host >&2\nexit 255\n")
    code, out, _ = run("status")
    assert code == 2 and "group b0: unreachable;" in out
    assert "check that ssh reaches it without a password" in out


@pytest.mark.slow
def test_start_and_stop_commands_run_on_the_members_host(
    lagging: Path, run: RunUpgrade, agents: Path
) -> None:
    init(lagging, run)
    text = (lagging / "group.toml").read_text()
    for name in NAMES:
        command = f"echo {name} is not installed; exit 3"
        text = text.replace(f"[member.{name}]\n", f'[member.{name}]\nstart = "{command}"\n')
    (lagging / "group.toml").write_text(text)
    assert run("run --until switched --yes")[0] == 0
    code, _, err = run("next --yes")
    assert code == 1 and "n0: found exit code 3" in err and "n0 is not installed" in err


def in_shell(folder: Path, lines: str) -> None:
    """Run a printed runbook as it is."""
    done = subprocess.run(["sh", "-e"], input=lines, cwd=folder, text=True, capture_output=True)
    assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-3000:])


@pytest.fixture
def installed(agents: Path) -> None:
    """Put ``rmqpy`` on the path."""
    program = agents / "rmqpy"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m rmqpy.cli "$@"\n')
    program.chmod(0o755)


@pytest.mark.slow
@pytest.mark.usefixtures("installed", "agents")
def test_the_printed_runbook_of_a_switch_runs_as_it_is(
    lagging: Path, run: RunUpgrade, holders: Callable[[Path], None]
) -> None:
    init(lagging, run)
    code, out, _ = run("switch --runbook java")
    assert code == 0 and "n1, on ssh://ops@far:2222: sh bin/mqbroker -c" in out
    holders(lagging)
    code, out, _ = run("switch --runbook java")
    assert code == 0 and "on ssh://" not in out and state_of(run) == "stopped"
    in_shell(lagging, out)
    assert state_of(run) == "verified"


@pytest.mark.slow
@pytest.mark.usefixtures("installed", "agents")
def test_the_printed_runbook_of_the_way_back_runs_as_it_is(
    joined: Path, run: RunUpgrade, holders: Callable[[Path], None]
) -> None:
    for number in range(3):
        conf = joined / f"n{number}.conf"
        peers = "n0-127.0.0.1:20911;n1-far:20912;n2-off:20913"
        old = "n0-127.0.0.1:20911;n1-127.0.0.1:20912;n2-127.0.0.1:20913"
        conf.write_text(conf.read_text().replace(old, peers))
    init(joined, run)
    code, out, _ = run("leave --runbook rmqpy")
    assert code == 0 and "rmqpy admin fence -n NAMESRV -b '127.0.0.1:" in out
    holders(joined)
    code, out, _ = run("leave --runbook rmqpy")
    assert code == 0 and "admin fence" not in out and state_of(run) == "halted"
    in_shell(joined, out)
    assert state_of(run) == "returned" and run("finalize")[0] == 0
    assert not list(joined.glob("n*/dledger-*"))


@pytest.mark.parametrize(
    "host", ["ssh://-oProxyCommand=touch", "ssh://", "ssh://far:port", "far", "ssh://far:99999"]
)
def test_a_host_that_is_none_is_refused(host: str) -> None:
    with pytest.raises(RmqError, match="correct it"):
        ssh_command(host, "rmqpy")


def test_a_program_is_one_word_for_the_shell_there() -> None:
    assert ssh_command("ssh://h", "/opt/my rmqpy")[-1] == "'/opt/my rmqpy' upgrade agent"


@pytest.mark.parametrize(
    "raw",
    [
        b"Welcome to this host\n",
        b'{"kind": "data"}\n',
        b'{"kind": "data", "size": -1}\n',
        b'{"kind": "data", "size": 5}\nabc',
        b'{"kind": 1, "size": 0}\n',
        b'{"kind": "data", "size": 99999999999}\n',
        b"[]\n",
        b'{"kind": "data", "size": 0}',
        b"\xff\n",
        b"{" * 100_000,
    ],
)
def test_something_else_than_a_frame_is_refused(raw: bytes) -> None:
    with pytest.raises(NetworkError):
        read_frame(io.BytesIO(raw))


def test_a_frame_is_read_as_it_was_written() -> None:
    stream = io.BytesIO()
    frames = [Frame("get", {"what": "range"}), Frame("data", {}, bytes(range(256)))]
    for frame in frames:
        write_frame(stream, frame)
    stream.seek(0)
    assert [read_frame(stream), read_frame(stream), read_frame(stream)] == [*frames, None]


def test_a_host_that_never_answers_is_given_up_soon() -> None:
    notes: list[str] = []
    pauses: list[float] = []
    link = AgentLink(
        "ssh://h", lambda: start_program(["false"]), "look", notes.append, pauses.append
    )
    with pytest.raises(NetworkError, match="ssh://h: found no answer of rmqpy upgrade agent"):
        link.request(Frame("get", {}))
    assert pauses == [RETRY_SECONDS[0]] and len(notes) == len(pauses)


def test_a_host_that_has_answered_is_waited_for() -> None:
    """Its first agent greets and ends, as when the connection is lost; the others never answer."""
    hello = Frame("hello", {"protocol": PROTOCOL, "version": "1"})
    greeting = io.BytesIO()
    write_frame(greeting, hello)
    programs = iter([["printf", "%s", greeting.getvalue().decode()]])
    pauses: list[float] = []
    link = AgentLink(
        "ssh://h",
        lambda: start_program(next(programs, ["false"])),
        "look",
        lambda text: None,
        pauses.append,
    )
    with pytest.raises(NetworkError, match="ssh://h: found no answer of rmqpy upgrade agent"):
        link.request(Frame("get", {}))
    assert pauses == [*RETRY_SECONDS]
