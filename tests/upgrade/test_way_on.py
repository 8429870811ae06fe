"""Every refusal leads on: taking the remedy that it names ends with sound stores that start."""

from __future__ import annotations

import errno
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import define, field
from harness.upgrade import PEERS, SHOWN, RunUpgrade

from rmqpy.cli import main
from rmqpy.codec.backend import scan_records
from rmqpy.config.loading import load_broker_configuration
from rmqpy.model.errors import StoreError
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.store.message_store import StoreContext, open_store
from rmqpy.testing.manual_scheduler import ManualScheduler
from rmqpy.upgrade.plan.node_context import NodeContext
from rmqpy.upgrade.plan.operations import Create

ROUNDS_MAX = 8
IDS = "--self-id n0=n0 --self-id n1=n1 --self-id n2=n2"
SWITCH = f"switch {SHOWN} --peers '{PEERS}' {IDS}"
PLAN = f"plan {SHOWN} --out plan.json"
LEAVE = f"leave {SHOWN} --apply"
JOIN = "join n2 --from n0=n0 -c n2=n2.conf --yes"


def start_once(root: Path, name: str) -> None:
    """Start the broker's store with its present configuration, and stop it cleanly."""
    conf = root / f"{name}.conf"
    settings = load_broker_configuration(conf).configuration.store
    store = open_store(StoreContext(settings, OsFileSystem(), ManualScheduler(), 1 << 34))
    store.dispatch()
    store.shutdown()


@define
class Operator:
    """Someone who does what the messages say, and nothing else."""

    root: Path
    run: RunUpgrade
    taken: list[str] = field(factory=list)

    def finish(self, line: str) -> None:
        """Repeat a command until it is done, after taking the remedy of each refusal."""
        for _ in range(ROUNDS_MAX):
            code, _, err = self.run(line)
            if code == 0:
                return self.apply(line) if line.startswith("plan ") else None
            line = self.follow(line, err)
        raise AssertionError((line, self.taken))

    def apply(self, plan: str) -> None:
        number = re.search(r"--give-up (\d+)", plan)
        for name in ("n0", "n1", "n2"):
            line = f"apply --plan plan.json --node {name} {SHOWN}"
            code, _, err = self.run(line)
            if code and number:
                code, _, err = self.run(f"{line} --give-up {number[1]}")
            half_done = re.search(r"finish it with rmqpy upgrade (apply --resume \S+), or", err)
            if half_done is not None:
                self.taken.append("resume")
                self.finish(half_done[1])
                return self.finish(plan)
            assert code == 0, err
        return None

    def follow(self, line: str, err: str) -> str:
        """Take the remedy that the message names; return the command to run next."""
        remedies: dict[str, Callable[[re.Match[str]], str | None]] = {
            r"Add (--give-up \d+)": lambda found: f"{line} {found[1]}",
            r"Choose the side to keep with --reference NAME": lambda _: f"{line} --reference n0",
            r"choose another with (--reference \w+)": lambda found: (
                line.partition(" --reference")[0] + f" {found[1]}"
            ),
            r"rmqpy store fsck (\S+) --quarantine --yes": self.quarantine,
            r"(\w+): its last stop was not clean; start the broker once": self.start,
            r"rmqpy upgrade plan and apply align them first": lambda _: self.finish(PLAN),
            r"give (\w+) its own with -c (\w+)=FILE": lambda _: f"plan {SHOWN} --out plan.json",
            r"--role NAME=SYNC_MASTER for one, --role NAME=SLAVE for the others": lambda _: (
                f"{line} --role n0=SYNC_MASTER --role n1=SLAVE --role n2=SLAVE"
            ),
            r"set (\w+) on all nodes to what the files have": self.correct_size,
            r"(\w+): .*write the values with which the files were created": self.correct_size,
            r"start the broker once as it is configured, and stop it|start the broker once with": (
                self.start_killed
            ),
            r"Run the command without it": lambda _: re.sub(r" --give-up \d+", "", line),
            r"(the command again) with --yes": lambda _: f"{line} --yes",
            r"the plan is signed: give the key with --key": lambda _: f"{line} --key key",
            r"plan again": lambda _: self.finish(PLAN),
            r"set the same brokerName in every broker.conf": self.name_group,
            r"give a broker.conf with dLegerPeers \(-c\)": lambda _: LEAVE,
            r"give --self-id and --peers": lambda _: f"{line} --peers '{PEERS}' {IDS}",
            r"rmqpy upgrade rollback takes a switch without entries back": self.roll_back,
            r"finish with rmqpy upgrade (rollback \S+)": lambda found: self.run(found[1]) and None,
            r"sign it when planning, with --key": self.plan_signed,
            r"plan again with the key": self.plan_signed,
            r"give more members, or (--cut-index \d+)": lambda found: f"{line} {found[1]}",
            r"expected a member .* give another one with --from": lambda _: JOIN,
            r"if it is this node's, give (\w+)=DIR": lambda found: line.replace(
                "=n1", f"={found[1]}"
            ),
            r"give it as (\w+)=DIR": lambda found: f"{line} {found[1]}={found[1]}",
            r"is not known; pass it with -c (\w+)=FILE": (
                lambda found: f"{line} -c {found[1]}={found[1]}.conf"
            ),
            r"(\w+)\.conf: dLegerSelfId is not set.*allowed: one letter and a number": (
                self.name_member
            ),
            r"found a plan for '(\S+)', expected one for '(\S+)'": self.move_back,
            r"Give another (one|directory)": lambda _: re.sub(r"--into \S+", "--into new", line),
            r"Go back with rmqpy upgrade leave": lambda _: LEAVE,
            r"run rmqpy upgrade (finalize \S+)": self.finalize,
            r"finish it with rmqpy upgrade (apply --resume \S+), or": (
                lambda found: self.finish(found[1])
            ),
        }
        for pattern, remedy in remedies.items():
            found = re.search(pattern, err)
            if found is not None:
                self.taken.append(pattern)
                return remedy(found) or line
        raise AssertionError(f"{line}: no remedy in {err}")

    def start_until_it_works(self, name: str) -> None:
        """Start a member again and again, after taking the remedy that its refusal names."""
        remedies: dict[str, Callable[[re.Match[str]], object]] = {
            r"set (enableDLegerCommitLog)=(true)": lambda found: self.configure(name, found),
            r"run rmqpy upgrade (apply --resume \S+) to finish": lambda found: self.run(found[1]),
            r"restore the missing files of either from another": lambda _: self.finish(JOIN),
        }
        for _ in range(ROUNDS_MAX):
            try:
                return start_once(self.root, name)
            except StoreError as refusal:
                text = str(refusal)
            pattern, found = next(
                (pattern, found)
                for pattern in remedies
                if (found := re.search(pattern, text)) is not None
            )
            self.taken.append(pattern)
            remedies[pattern](found)
        raise AssertionError(self.taken)

    def configure(self, name: str, found: re.Match[str]) -> None:
        conf, (key, value) = self.root / f"{name}.conf", found.groups()
        conf.write_text(re.sub(rf"(?m)^{key}=.*$", f"{key}={value}", conf.read_text()))

    def roll_back(self, _: re.Match[str]) -> str:
        for name in ("n0", "n1", "n2"):
            code, _out, err = self.run(f"rollback {name}")
            assert code == 0, err
        return f"check {SHOWN}"

    def plan_signed(self, _: re.Match[str]) -> None:
        assert self.run(f"{PLAN} --key key")[0] == 0

    def name_member(self, found: re.Match[str]) -> None:
        with (self.root / f"{found[1]}.conf").open("a") as conf:
            conf.write(f"dLegerSelfId={found[1]}\n")

    def name_group(self, _: re.Match[str]) -> None:
        for conf in self.root.glob("*.conf"):
            text = re.sub(r"brokerName=.*\n", "", conf.read_text())
            conf.write_text(f"{text}brokerName=b0\n")

    def move_back(self, found: re.Match[str]) -> str:
        Path(found[2]).rename(found[1])
        return f"rollback {found[1]}"

    def finalize(self, found: re.Match[str]) -> None:
        code, _, err = self.run(found[1])
        assert code == 0, err

    def quarantine(self, found: re.Match[str]) -> None:
        main(["store", "fsck", found[1], "--quarantine", "--yes"])

    def start(self, found: re.Match[str]) -> None:
        start_once(self.root, found[1])

    def start_killed(self, _: re.Match[str]) -> None:
        for abort in self.root.glob("*/abort"):
            start_once(self.root, abort.parent.name)

    def correct_size(self, _: re.Match[str]) -> None:
        for conf in self.root.glob("*.conf"):
            text = conf.read_text()
            conf.write_text(text.replace("mappedFileSizeConsumeQueue=6000000\n", ""))


def flip_body(root: Path, *names: str) -> None:
    """Damage one message in the first file of these replicas, in the same way."""
    for name in names:
        path = root / name / "commitlog" / f"{0:020d}"
        data = bytearray(path.read_bytes())
        scan = scan_records(memoryview(bytes(data)), 0, dledger=False, check_crc=False)
        data[scan.offset[3] + 90] ^= 1
        path.write_bytes(data)


def kill(root: Path, name: str) -> None:
    (root / name / "abort").write_bytes(b"")


def wrong_size(root: Path) -> None:
    with (root / "n1.conf").open("a") as conf:
        conf.write("mappedFileSizeConsumeQueue=6000000\n")


def no_name(root: Path) -> None:
    conf = root / "n0.conf"
    conf.write_text(re.sub(r"brokerName=.*\n", "", conf.read_text()))


def diverge(root: Path) -> None:
    """Give n1 another last message than n0."""
    path = max((root / "n1/commitlog").iterdir())
    data = bytearray(path.read_bytes())
    scan = scan_records(memoryview(bytes(data)), 0, dledger=False, check_crc=False)
    data[scan.offset[-1] + 58] ^= 1  # In the store time, which no checksum covers.
    path.write_bytes(data)


CLASSIC: dict[str, tuple[Callable[[Path], None], str]] = {
    "not aligned": (lambda root: None, SWITCH),
    "no name": (no_name, SWITCH),
    "no peers": (lambda root: None, f"switch {SHOWN}"),
    "killed": (lambda root: kill(root, "n0"), PLAN),
    "swapped": (lambda root: None, "plan n0 n1 n2 -c n0=n1.conf -c n1=n0.conf --out plan.json"),
    "wrong size": (wrong_size, PLAN),
    "diverged": (diverge, PLAN),
    "one damaged": (lambda root: flip_body(root, "n0"), PLAN),
    "all damaged": (lambda root: flip_body(root, "n0", "n1"), PLAN),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSIC)
def test_a_group_before_the_switch(lagging: Path, run: RunUpgrade, name: str) -> None:
    damage, line = CLASSIC[name]
    damage(lagging)
    operator = Operator(lagging, run)
    operator.finish(line)
    assert operator.taken, "the first attempt is refused"
    code, out, _ = run(f"check {SHOWN}")
    if "switch" not in line:
        assert code == 0, out
        operator.finish(SWITCH)
    for member in ("n0", "n1", "n2"):
        start_once(lagging, member)


@pytest.mark.slow
def test_a_killed_member_that_its_group_refuses(joined: Path, run: RunUpgrade) -> None:
    """Its start is refused too, so that join must not ask for one."""
    shutil.rmtree(joined / "n2/dledger-n2")
    max((joined / "n2/commitlog").iterdir()).unlink()
    kill(joined, "n2")
    Operator(joined, run).finish(JOIN)
    start_once(joined, "n2")
    assert not (joined / "n2/abort").exists()
    _, out, _ = run("check n0 n2 -c n0=n0.conf -c n2=n2.conf --details")
    assert "\n        -> " in out, "the remedy has its own line"
    for name in ("same-log", "same-divide", "clean-stop", "log-sound", "divide-fits"):
        assert f"FINDING [{name}]" not in out, out


@pytest.mark.slow
@pytest.mark.parametrize("line", [LEAVE, "leave n0 n1 n2 --apply"])
def test_leaving_without_roles(joined: Path, run: RunUpgrade, line: str) -> None:
    operator = Operator(joined, run)
    operator.finish(line)
    assert operator.taken
    assert run(f"check {SHOWN}")[0] == 0
    for member in ("n0", "n1", "n2"):
        start_once(joined, member)


@pytest.mark.slow
def test_an_empty_folder_at_the_target_is_replaced(lagging: Path, run: RunUpgrade) -> None:
    for folder in ("commitlog", "consumequeue", "index"):
        (lagging / "n2" / folder).mkdir()
    Operator(lagging, run).finish(PLAN)
    code, out, _ = run(f"check {SHOWN}")
    assert code == 0, out


def interrupt(run: RunUpgrade, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    """Let a command end in its first operation that creates a file, as on a full disk."""

    def perform(self: Create, context: NodeContext) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", self.path)

    with monkeypatch.context() as patched:
        patched.setattr(Create, "perform", perform)
        code, _, err = run(line)
    assert code == 1 and "--resume" in err, err


def check_other_plan(root: Path, run: RunUpgrade) -> None:
    operator = Operator(root, run)
    operator.apply(PLAN)
    assert operator.taken[0] == "resume"


@pytest.mark.slow
@pytest.mark.parametrize("first", ["plan", "apply", "start"])
def test_a_plan_that_was_interrupted(
    lagging: Path, run: RunUpgrade, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """To plan again, to apply another plan, and a start of the broker lead back to it."""
    assert run(PLAN)[0] == 0
    if first == "apply":
        (lagging / "plan.json").rename(lagging / "first.json")
        shutil.rmtree(lagging / "n1/index")  # Another plan than the interrupted one.
        assert run(PLAN)[0] == 0
        interrupt(run, monkeypatch, f"apply --plan first.json --node n2 {SHOWN}")
        return check_other_plan(lagging, run)
    interrupt(run, monkeypatch, f"apply --plan plan.json --node n2 {SHOWN}")
    operator = Operator(lagging, run)
    if first == "plan":
        for member in ("n0", "n1"):
            operator.finish(f"apply --plan plan.json --node {member} {SHOWN}")
        operator.finish(PLAN)
    else:
        operator.start_until_it_works("n2")
    assert operator.taken


@pytest.mark.slow
def test_a_member_that_was_killed_before_the_way_back(joined: Path, run: RunUpgrade) -> None:
    kill(joined, "n1")
    operator = Operator(joined, run)
    operator.finish(f"{LEAVE} --role n0=SYNC_MASTER --role n1=SLAVE --role n2=SLAVE")
    assert operator.taken
    assert run(f"check {SHOWN}")[0] == 0
    for member in ("n0", "n1", "n2"):
        start_once(joined, member)


def flag_off(root: Path) -> None:
    conf = root / "n2.conf"
    conf.write_text(conf.read_text().replace("CommitLog=true", "CommitLog=false"))


def no_last_file(root: Path) -> None:
    max((root / "n2/commitlog").iterdir()).unlink()


@pytest.mark.slow
@pytest.mark.parametrize("damage", [flag_off, no_last_file])
def test_a_start_that_is_refused(
    joined: Path, run: RunUpgrade, damage: Callable[[Path], None]
) -> None:
    damage(joined)
    operator = Operator(joined, run)
    operator.start_until_it_works("n2")
    assert operator.taken
    _, out, _ = run("check n0 n2 -c n0=n0.conf -c n2=n2.conf --details")
    for name in ("same-log", "same-divide", "clean-stop", "log-sound", "divide-fits"):
        assert f"FINDING [{name}]" not in out, out


@pytest.mark.slow
def test_messages_to_give_up_that_do_not_exist(lagging: Path, run: RunUpgrade) -> None:
    operator = Operator(lagging, run)
    operator.finish(f"{PLAN} --give-up 5")
    assert operator.taken == ["Run the command without it"]
    assert run(f"check {SHOWN}")[0] == 0


@pytest.mark.slow
def test_a_join_that_nobody_has_confirmed(joined: Path, run: RunUpgrade) -> None:
    max((joined / "n2/commitlog").iterdir()).unlink()
    operator = Operator(joined, run)
    operator.finish(JOIN.removesuffix(" --yes"))
    assert operator.taken == [r"(the command again) with --yes"]
    start_once(joined, "n2")


@pytest.mark.slow
def test_a_signed_plan_without_its_key(lagging: Path, run: RunUpgrade) -> None:
    (lagging / "key").write_text("secret")
    assert run(f"{PLAN} --key key")[0] == 0
    operator = Operator(lagging, run)
    for member in ("n0", "n1", "n2"):
        operator.finish(f"apply --plan plan.json --node {member} {SHOWN}")
    assert operator.taken == ["the plan is signed: give the key with --key"] * 3
    assert run(f"check {SHOWN}")[0] == 0


@pytest.mark.slow
def test_a_plan_of_an_earlier_state(lagging: Path, run: RunUpgrade) -> None:
    """A broker was started after the plan was made."""
    assert run(PLAN)[0] == 0
    max((lagging / "n1/commitlog").iterdir()).unlink()
    shutil.rmtree(lagging / "n1/consumequeue")
    operator = Operator(lagging, run)
    operator.finish(f"apply --plan plan.json --node n1 {SHOWN}")
    assert operator.taken == ["plan again"]
    assert run(f"check {SHOWN}")[0] == 0


@pytest.mark.slow
def test_a_group_without_entries_that_is_to_leave(lagging: Path, run: RunUpgrade) -> None:
    operator = Operator(lagging, run)
    operator.finish(SWITCH)
    operator.finish(f"{LEAVE} --role n0=SYNC_MASTER --role n1=SLAVE --role n2=SLAVE")
    assert "rmqpy upgrade rollback takes a switch without entries back" in operator.taken
    for member in ("n0", "n1", "n2"):
        start_once(lagging, member)


@pytest.mark.slow
def test_a_switch_is_taken_back_after_members_ran_without_a_message(
    lagging: Path, run: RunUpgrade
) -> None:
    """A start seals the old log, which the plan has sealed: that is no new content."""
    Operator(lagging, run).finish(SWITCH)
    for member in ("n0", "n1", "n2"):
        start_once(lagging, member)
        code, _, err = run(f"rollback {member}")
        assert code == 0, err
        start_once(lagging, member)


@pytest.mark.slow
def test_a_join_from_an_empty_member(joined: Path, run: RunUpgrade) -> None:
    shutil.rmtree(joined / "n1")
    (joined / "n1").mkdir()
    max((joined / "n2/commitlog").iterdir()).unlink()
    operator = Operator(joined, run)
    operator.finish("join n2 --from n1=n1 -c n2=n2.conf --yes")
    assert operator.taken
    start_once(joined, "n2")


@pytest.mark.slow
@pytest.mark.parametrize("change", ["unsigned", "changed"])
def test_a_plan_that_is_not_signed_as_it_should_be(
    lagging: Path, run: RunUpgrade, change: str
) -> None:
    (lagging / "key").write_text("secret")
    if change == "unsigned":
        assert run(PLAN)[0] == 0
    else:
        assert run(f"{PLAN} --key key")[0] == 0
        plan = lagging / "plan.json"
        plan.write_text(plan.read_text().replace('"reference": "n0"', '"reference": "n1"'))
    operator = Operator(lagging, run)
    for member in ("n0", "n1", "n2"):
        operator.finish(f"apply --plan plan.json --node {member} {SHOWN} --key key")
    assert operator.taken
    assert run(f"check {SHOWN}")[0] == 0


@pytest.mark.slow
def test_a_directory_for_a_copy_that_has_content(joined: Path, run: RunUpgrade) -> None:
    (joined / "full").mkdir()
    (joined / "full/file").touch()
    for into in ("full", "n0/inside"):
        shutil.rmtree(joined / "new", ignore_errors=True)
        operator = Operator(joined, run)
        operator.finish(f"leave n0 -c n0.conf --role n0=SYNC_MASTER --apply --into {into}")
        assert operator.taken


OPTIONS: dict[str, tuple[str, str]] = {
    "no source": ("apply --plan plan.json --node n1 n1 -c n1=n1.conf", "give it as"),
    "another directory": (
        "apply --plan plan.json --node n2 n0 n2=n1 -c n0=n0.conf -c n2=n2.conf",
        "if it is this node's",
    ),
    "no broker.conf": (f"switch n0 n1 n2 --peers '{PEERS}' {IDS}", "is not known"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
def test_a_line_that_lacks_something(lagging: Path, run: RunUpgrade, name: str) -> None:
    line, remedy = OPTIONS[name]
    assert run(PLAN)[0] == 0
    operator = Operator(lagging, run)
    operator.finish(line)
    assert any(remedy in taken for taken in operator.taken), operator.taken
    operator.finish(PLAN)
    assert run(f"check {SHOWN}")[0] == 0


@pytest.mark.slow
def test_a_store_that_was_moved_after_its_plan(lagging: Path, run: RunUpgrade) -> None:
    operator = Operator(lagging, run)
    operator.finish(PLAN)
    (lagging / "n2").rename(lagging / "moved")
    operator.finish("rollback moved")
    assert operator.taken
    operator.finish(PLAN)
    assert run(f"check {SHOWN}")[0] == 0


@pytest.mark.slow
def test_a_member_without_its_id(joined: Path, run: RunUpgrade) -> None:
    conf = joined / "n1.conf"
    conf.write_text(re.sub(r"dLegerSelfId=.*\n", "", conf.read_text()))
    operator = Operator(joined, run)
    operator.finish(f"{LEAVE} --role n0=SYNC_MASTER --role n1=SLAVE --role n2=SLAVE")
    assert operator.taken
    for member in ("n0", "n1", "n2"):
        start_once(joined, member)
