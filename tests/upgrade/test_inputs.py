"""Whatever an operator passes to ``rmqpy upgrade`` is checked before anything is written."""

from __future__ import annotations

import errno
import json
import re
from pathlib import Path

import pytest
from harness.upgrade import PEERS, SHOWN, RunUpgrade, tree_of

from rmqpy.store.files.disk import OsFileSystem

Tree = dict[str, tuple[bytes, int]]


def everything(root: Path) -> Tree:
    return tree_of(root)


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        (
            "check n0 n1 -c n0=n1.conf -c n1=n0.conf",
            2,
            ["the broker.conf given for n0", "is the directory of n1", "swapped", "-c n0=FILE"],
        ),
        (
            "check n0 n1 -c n0=n0.conf -c n1=n0.conf",
            2,
            ["the broker.conf given for n1", "the directory of n0"],
        ),
        ("check n0 n1 -c n0=any.conf -c n1=any.conf", 2, ["n0 and n1 share the broker.conf"]),
        ("check n0 other=n0", 2, ["n0 and other share the directory", "its own"]),
        ("check n0 n1 -c n9=n0.conf", 1, ["found the name 'n9'", "replica: n0, n1"]),
        ("check master=n0 slave=n1 -c mster=n0.conf", 1, ["did you mean master?"]),
        ("check n0 n1 -c n0=n0.conf -c n0=n1.conf", 1, ["two values for n0"]),
        ("check n0 n1 -c n0.conf", 1, ["write -c NAME=n0.conf"]),
        (
            "plan n0 n1 --reference n9",
            1,
            ["found no replica n9, expected one of n0, n1; correct the name"],
        ),
        ("plan master=n0 slave=n1 --reference slav", 1, ["did you mean slave?"]),
        (f"switch {SHOWN} --peers '{PEERS}' --self-id n9=n9", 1, ["found the name 'n9'"]),
    ],
)
def test_names_and_files_that_do_not_fit_are_refused(
    classic: Path, run: RunUpgrade, line: str, code: int, words: list[str]
) -> None:
    (classic / "any.conf").write_text("storePathRootDir=/elsewhere\n")
    before = everything(classic)
    found, _, err = run(line)
    assert found == code and [word for word in words if word not in err] == [], err
    assert err.count("\n") == 1
    assert everything(classic) == before


def test_a_shared_log_is_refused(classic: Path, run: RunUpgrade) -> None:
    for name in ("n0", "n1"):
        with (classic / f"{name}.conf").open("a") as conf:
            conf.write(f"storePathCommitLog={classic}/n0/commitlog\n")
    code, _, err = run("check n0 n1 -c n0=n0.conf -c n1=n1.conf")
    assert code == 2 and "n0 and n1 share storePathCommitLog" in err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("apply --plan none.json --node n0 n0", ["the plan", "none.json: found no such file"]),
        ("apply --plan n0.conf --node n0 n0", ["n0.conf: found no plan", "plan again"]),
        ("apply --plan binary --node n0 n0", ["binary: found no plan"]),
        ("apply --plan list.json --node n0 n0", ["list.json: found no plan"]),
        ("apply --plan n0 --node n0 n0", ["n0: found a directory, expected a file"]),
        ("apply --node n0 n0", ["--plan FILE is missing"]),
        ("verify --before none.json n0 n1", ["the manifest", "none.json: found no such file"]),
        ("verify --before list.json n0 n1", ["list.json: found no manifest", "--format json"]),
        ("verify n0 n1 --key none.key", ["the key", "none.key: found no such file"]),
        ("verify n0 n1 --key empty", ["empty: found an empty file, expected a secret"]),
        ("verify n0 n1 --out none/certificate.json", ["none/certificate.json: found no such file"]),
        ("check n0 n1=https://127.0.0.1:1 --token-file none", ["the token", "none: found no such"]),
        (
            "check n0 n1=https://127.0.0.1:1 --authority none.pem",
            ["the certificates to trust", "none.pem: found no such file"],
        ),
        (
            "check n0 n1=https://127.0.0.1:1 --authority list.json",
            ["list.json: found no certificates", "expected PEM"],
        ),
        ("serve n0 --certificate none.pem", ["the certificate", "none.pem: found no such file"]),
    ],
)
def test_files_that_cannot_be_used_are_named(
    classic: Path, run: RunUpgrade, line: str, words: list[str]
) -> None:
    (classic / "binary").write_bytes(b"\xff\xfe\x00")
    (classic / "list.json").write_text("[1, 2]")
    (classic / "empty").write_text("\n")
    if line.startswith("serve"):
        pytest.importorskip("aiohttp", reason="rmqpy[upgrade] is not installed")
    code, _, err = run(line)
    assert code == 1 and [word for word in words if word not in err] == [], err
    assert "Errno" not in err and "Error(" not in err


@pytest.mark.parametrize(
    ("number", "inodes", "found"),
    [
        (errno.ENOSPC, 5, ""),
        (errno.ENOSPC, None, ""),
        (errno.ENOSPC, 0, "a file system without free inodes"),
        (errno.EDQUOT, 5, "a quota"),
        (errno.EIO, 5, ""),
        (errno.EACCES, 5, ""),
        (errno.EROFS, 5, ""),
    ],
)
def test_an_error_of_the_disk_has_path_and_remedy(
    classic: Path,
    run: RunUpgrade,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    inodes: int | None,
    found: str,
) -> None:
    monkeypatch.setattr(OsFileSystem, "free_inodes", lambda *_: inodes)
    assert run("plan n0 n1 --out plan.json")[0] == 0

    def fail(*_: object) -> None:
        raise OSError(number, "text of the system", "/disk/file")

    monkeypatch.setattr(OsFileSystem, "replace_bytes", fail)
    code, _, err = run("apply --plan plan.json --node n1 n0 n1")
    assert code == 1
    assert err.startswith(f"rmqpy: /disk/file: found {found}") and "expected" in err
    assert "; " in err and ("inode" in err) == (inodes == 0)
    assert "Errno" not in err


IDS = "--self-id n0=n0 --self-id n1=n1 --self-id n2=n2"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("peers", "ids", "words"),
    [
        ("n0:127.0.0.1:20911;n1:127.0.0.1:20912;n2:127.0.0.1:20913", IDS, ["is not id-host:port"]),
        ("n0-127.0.0.1:20911;n1-127.0.0.1:20912", IDS, ["dLegerSelfId=n2, is not among them"]),
        (
            "n0-127.0.0.1:20911;n1-127.0.0.1:20911;n2-127.0.0.1:20913",
            IDS,
            ["the same address twice"],
        ),
        ("n0-127.0.0.1:20911;n0-127.0.0.1:20912;n2-127.0.0.1:1", IDS, ["the same id twice"]),
        (PEERS.replace("20911", "15911"), IDS, ["15911 is also listenPort"]),
        (PEERS.replace("20911", "15909"), IDS, ["15909 is also the fast port, listenPort - 2"]),
        (PEERS.replace("20911", "15912"), IDS, ["15912 is also the HA port, listenPort + 1"]),
        (PEERS.replace("20912", "15931"), IDS, ["DLedger port of n1, 15931 is also listenPort"]),
        (PEERS.replace("20911", "99999"), IDS, ["is not host:port"]),
        (PEERS.replace("n0-127.0.0.1", "n0-"), IDS, ["is not host:port"]),
        (PEERS.replace("n0-127.0.0.1", "n0-0.0.0.0"), IDS, ["0.0.0.0, which no member can"]),
        (PEERS, "--self-id n0=n0 --self-id n1=n0 --self-id n2=n2", ["n0 is also that of n0"]),
        (PEERS, IDS.replace("n2=n2", "n2=n7"), ["dLegerSelfId=n7, is not among them"]),
        (PEERS, IDS.replace("n2=n2", "n2=node-2"), ["one letter and a number"]),
        (PEERS, "--self-id n0=n0 --self-id n1=n1", ["n2: its dLegerSelfId and dLegerPeers"]),
    ],
)
def test_a_switch_validates_what_it_would_write(
    classic: Path, run: RunUpgrade, peers: str, ids: str, words: list[str]
) -> None:
    before = everything(classic)
    code, _, err = run(f"switch {SHOWN} --peers '{peers}' {ids}")
    assert code == 2 and [word for word in words if word not in err] == [], err
    assert everything(classic) == before
    assert run(f"switch {SHOWN} --peers '{PEERS}' {IDS}")[0] == 0


@pytest.mark.slow
def test_a_switch_reports_names_that_it_cannot_resolve(
    classic: Path, run: RunUpgrade, monkeypatch: pytest.MonkeyPatch
) -> None:
    def known(host: str, *_: object) -> list[str]:
        if host == "elsewhere":
            raise OSError("not known")
        return [host]

    monkeypatch.setattr("socket.getaddrinfo", known)
    peers = PEERS.replace("n2-127.0.0.1", "n2-elsewhere")
    code, out, _ = run(f"switch {SHOWN} --peers '{peers}' {IDS}")
    assert code == 0
    assert out.count("the name elsewhere in dLegerPeers cannot be resolved on this host") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("roles", "code", "words"),
    [
        ("--role n0=SYNC_MASTER --role n1=SLAV --role n2=SLAVE", 2, ["brokerRole='SLAV'", "SLAVE"]),
        (
            "--role n0=SYNC_MASTER --role n1=SYNC_MASTER --role n2=SLAVE",
            2,
            ["n0, n1: both are masters of b0", "--role NAME=SLAVE"],
        ),
        ("", 2, ["n0, n1: both are masters of b0"]),
        ("--role n0=SYNC_MASTER --role n9=SLAVE", 1, ["found the name 'n9'"]),
        (
            "--role n0=SYNC_MASTER --role n1=SLAVE",
            2,
            ["n1, n2: both are slaves with brokerId=2 of b0"],
        ),
    ],
)
def test_leaving_validates_what_it_would_write(
    joined: Path, run: RunUpgrade, roles: str, code: int, words: list[str]
) -> None:
    with (joined / "n2.conf").open("a") as conf:
        conf.write("brokerRole=SLAVE\nbrokerId=2\n")
    before = everything(joined)
    for more in ("", " --apply"):
        found, _, err = run(f"leave {SHOWN} {roles}{more}")
        assert found == code and [word for word in words if word not in err] == [], err
    assert everything(joined) == before
    good = "--role n0=SYNC_MASTER --role n1=SLAVE --role n2=SLAVE"
    assert run(f"leave {SHOWN} {good} --apply")[0] == 0


@pytest.mark.parametrize(
    ("role", "found"),
    [
        ("n9=SLAVE", "the name 'n9'"),
        ("n9=", "the name 'n9'"),
        ("=SLAVE", "the name ''"),
        ("n0=", "no value for n0"),
        ("SLAVE", "no name of a replica"),
        ("n0=SLAVE --role n0=SYNC_MASTER", "two values for n0, SLAVE and SYNC_MASTER"),
    ],
)
def test_a_value_that_belongs_to_no_replica_has_the_three_parts(
    classic: Path, run: RunUpgrade, role: str, found: str
) -> None:
    code, out, err = run(f"leave n0 n1 --role {role} --format json")
    value = json.loads(out)
    assert code == 1 and err == ""
    assert value["found"] == found and value["expected"] and value["remedy"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("mappedFileSizeConsumeQueue", "4000", "the files have 2000 bytes"),
        ("maxHashSlotNum", "200", "the files have 8440 bytes"),
        ("mappedFileSizeCommitLog", "131072", "FILE_SIZE"),
    ],
)
def test_file_sizes_that_differ_are_found(
    classic: Path, run: RunUpgrade, key: str, value: str, expected: str
) -> None:
    conf = classic / "n1.conf"
    conf.write_text(f"{conf.read_text()}{key}={value}\n")
    code, out, _ = run(f"check {SHOWN}")
    assert code == 2 and expected in out and key in out
    assert "[same-sizes]" in out and "[file-sizes] n1" in out
    for line in (f"plan {SHOWN}", f"switch {SHOWN} --peers '{PEERS}' {IDS}"):
        code, _, err = run(line)
        assert code == 2 and key in err, err


@pytest.mark.parametrize("other", ["photos", "/etc", ".", "n0/commitlog", "n0/config"])
@pytest.mark.parametrize(
    "line",
    [
        "switch n0 OTHER -c n0=n0.conf --peers 'n0-h:1;n1-h:2' --self-id n0=n0",
        "join other=OTHER --from n0=n0 --yes",
        "join n0 --from other=OTHER --yes",
        "leave other=OTHER",
        "leave other=OTHER --into copy",
        "leave n0 other=OTHER --apply",
        "plan n0 other=OTHER --out plan.json",
        "apply --plan any.json --node other n0 other=OTHER",
        "apply --resume OTHER",
        "rollback OTHER",
        "finalize OTHER",
    ],
)
def test_no_command_that_writes_accepts_another_directory(
    classic: Path, run: RunUpgrade, line: str, other: str
) -> None:
    (classic / "photos").mkdir()
    (classic / "photos/1.jpg").write_bytes(b"\xff\xd8")
    before = everything(classic)
    code, _, err = run(line.replace("OTHER", other))
    assert code == 1 and "expected the storePathRootDir of a broker" in err, err
    assert everything(classic) == before and not (classic / "copy").exists()


@pytest.mark.slow
@pytest.mark.parametrize("into", ["n1", "photos", "n0", "n0/copy", "n0.conf"])
def test_a_copy_never_overwrites_a_directory(joined: Path, run: RunUpgrade, into: str) -> None:
    (joined / "photos").mkdir()
    (joined / "photos/1.jpg").write_bytes(b"\xff\xd8")
    before = everything(joined)
    code, _, err = run(f"leave n0 -c n0=n0.conf --cut-index 280 --into {into}")
    assert code == 2 and "nothing was changed" in err, err
    assert everything(joined) == before


@pytest.mark.slow
def test_large_old_messages_do_not_prevent_the_switch(
    classic: Path, run: RunUpgrade, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can make them smaller, and they stay in the old log."""
    monkeypatch.setattr("rmqpy.upgrade.checks.replica_checks.ENTRY_SIZE_MAX", 1000)
    code, out, _ = run(f"check {SHOWN}")
    assert code == 2 and "[message-size]" in out
    assert run(f"switch {SHOWN} --peers '{PEERS}' {IDS}")[0] == 0


@pytest.mark.slow
def test_a_copy_does_not_begin_without_space(
    joined: Path, run: RunUpgrade, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The space that is needed covers the plan in the copy, too."""
    free = 0
    monkeypatch.setattr(OsFileSystem, "disk_usage", lambda self, path: (1 << 40, free))
    line = "leave n0 -c n0=n0.conf --cut-index 280 --into copy"
    code, _, err = run(line)
    missing = re.search(r"--into copy: .* for the copy and the plan; free (\d+) bytes there", err)
    assert code == 2 and missing is not None and "Nothing was changed" in err, err
    free = int(missing[1]) - 1
    assert run(line)[0] == 2 and not (joined / "copy").exists()
    free += 1
    assert run(line)[0] == 0
