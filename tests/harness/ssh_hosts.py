"""Three hosts on one machine: network namespaces on a bridge, each with an sshd of its own.

This needs root and Debian's openssh-server (``RMQPY_SSHD`` names its program if it is not in the
path). Users and keys are in the folder of the test; ``ip netns exec`` shows the namespaces another
``/etc/passwd``, so nothing of the machine's is changed.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from attrs import define

SSHD_SECONDS_MAX: Final = 20
NETNS: Final = Path("/etc/netns")
"""The files that ``ip netns exec`` mounts over those of /etc."""

SSHD_CONFIG = """ListenAddress {address}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PidFile {folder}/sshd-{name}.pid
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin yes
SetEnv PATH={path} PYTHONPATH={python_path}
"""
SSH = """#!/bin/sh
exec {ssh} -F {folder}/ssh_config "$@"
"""
SSH_CONFIG = """Host *
  User root
  IdentityFile {folder}/key
  UserKnownHostsFile {folder}/known_hosts
  StrictHostKeyChecking no
  LogLevel ERROR
"""


def missing() -> str | None:
    """Return why the hosts cannot be made here, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program in ("ip", "ss", "ssh", "ssh-keygen"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    if not sshd_program():
        return "sshd is not installed, and RMQPY_SSHD does not name it"
    return None


def sshd_program() -> str | None:
    return os.environ.get("RMQPY_SSHD") or shutil.which("sshd")


SSH_PORT: Final = 22
_MADE: Final = itertools.count()


@define
class SshHosts:
    """The hosts, by name: their namespaces and their addresses."""

    folder: Path
    gateway: str
    spaces: dict[str, str]
    addresses: dict[str, str]
    sshds: dict[str, subprocess.Popen[bytes]]

    def inside(self, name: str) -> list[str]:
        """Return the words before a command that is to run on a host."""
        return ["ip", "netns", "exec", self.spaces[name]]

    def cut_connections(self, port: int = SSH_PORT) -> int:
        """Have the kernel end the TCP connections to a port of all hosts; return their number."""
        words = ["ss", "-K", "-H", "-t", "state", "established", "sport", "=", f":{port}"]
        return sum(
            len(subprocess.check_output([*self.inside(name), *words]).splitlines())
            for name in self.spaces
        )

    def lose(self, name: str) -> int:
        """End the sshd of a host and everything that it has started; return how many processes."""
        found = subprocess.run(
            ["ip", "netns", "pids", self.spaces[name]], capture_output=True, check=True
        )
        for pid in found.stdout.split():
            os.kill(int(pid), signal.SIGKILL)
        self.sshds[name].wait()
        return len(found.stdout.split())

    def bring_back(self, name: str) -> None:
        """Start the sshd of a host again."""
        self.sshds[name] = _start_sshd(self.folder, name, self.spaces[name], self.addresses[name])


def once_when(happened: Callable[[], bool], act: Callable[[], int]) -> Callable[[], int]:
    """Call ``act`` once, as soon as ``happened`` is true; return a function that ends the waiting
    and returns the result, or 0.
    """
    over, counts = threading.Event(), [0]

    def run() -> None:
        while not over.wait(0.01) and not counts[0]:
            if happened():
                counts[0] = act()

    thread = threading.Thread(target=run)
    thread.start()

    def joined() -> int:
        over.set()
        thread.join()
        return counts[0]

    return joined


@contextmanager
def ssh_hosts(folder: Path, names: tuple[str, ...]) -> Iterator[SshHosts]:
    """Make the hosts, and remove them and everything that still runs there."""
    # The kernel removes the devices of a namespace some time after the namespace.
    mark = f"rq{os.getpid() % 100_000}{next(_MADE)}"
    bridge, subnet = f"{mark}b", f"10.231.{os.getpid() % 250}"
    spaces = {name: f"{mark}{name}" for name in names}
    addresses = {name: f"{subnet}.{number}" for number, name in enumerate(names, 1)}
    _make_keys(folder)
    sshds: dict[str, subprocess.Popen[bytes]] = {}
    try:
        _ip(f"link add {bridge} type bridge")
        _ip(f"addr add {subnet}.254/24 dev {bridge}")
        _ip(f"link set {bridge} up")
        for name, space in spaces.items():
            _make_space(space, bridge, f"{addresses[name]}/24")
            _give_users(NETNS / space, folder)
            sshds[name] = _start_sshd(folder, name, space, addresses[name])
        yield SshHosts(folder, f"{subnet}.254", spaces, addresses, sshds)
    finally:
        for space in spaces.values():
            found = subprocess.run(["ip", "netns", "pids", space], capture_output=True, check=False)
            for pid in found.stdout.split():
                os.kill(int(pid), signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)
            shutil.rmtree(NETNS / space, ignore_errors=True)
        subprocess.run(["ip", "link", "del", bridge], capture_output=True, check=False)
        for sshd in sshds.values():
            sshd.wait()


def _ip(line: str) -> None:
    subprocess.run(["ip", *line.split()], check=True, capture_output=True)


def _make_space(space: str, bridge: str, address: str) -> None:
    _ip(f"netns add {space}")
    _ip(f"link add {space}v type veth peer name {space}e")
    _ip(f"link set {space}v master {bridge} up")
    _ip(f"link set {space}e netns {space}")
    for line in (f"addr add {address} dev {space}e", f"link set {space}e up", "link set lo up"):
        _ip(f"-n {space} {line}")


def _give_users(etc: Path, folder: Path) -> None:
    """Let root log in, and sshd have its user, in the namespace only."""
    etc.mkdir(parents=True)
    home = folder / "home"
    home.mkdir(exist_ok=True)
    (etc / "passwd").write_text(
        f"root:x:0:0:root:{home}:/bin/sh\nsshd:x:65533:65533::/nonexistent:/usr/sbin/nologin\n"
    )
    (etc / "shadow").write_text("root:*:19000:0:99999:7:::\nsshd:*:19000:0:99999:7:::\n")


def _make_keys(folder: Path) -> None:
    for name in ("key", "host_key"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(words, check=True)
    (folder / "ssh_config").write_text(SSH_CONFIG.format(folder=folder))
    program = folder / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(SSH.format(ssh=shutil.which("ssh"), folder=folder))
    program.chmod(0o755)
    rmqpy = folder / "bin" / "rmqpy"
    rmqpy.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m rmqpy.cli "$@"\n')
    rmqpy.chmod(0o755)


def _start_sshd(folder: Path, name: str, space: str, address: str) -> subprocess.Popen[bytes]:
    config = folder / f"sshd_config-{name}"
    config.write_text(
        SSHD_CONFIG.format(
            address=address,
            folder=folder,
            name=name,
            path=f"{folder / 'bin'}:/usr/bin:/bin",
            python_path=Path(__file__).parents[2],
        )
    )
    Path("/run/sshd").mkdir(exist_ok=True)  # where sshd confines what is not logged in yet
    with (folder / f"sshd-{name}.log").open("wb") as log:
        sshd = subprocess.Popen(
            ["ip", "netns", "exec", space, str(sshd_program()), "-D", "-e", "-f", str(config)],
            stdout=log,
            stderr=log,
        )
    deadline = time.monotonic() + SSHD_SECONDS_MAX
    while True:
        try:
            socket.create_connection((address, 22), 1.0).close()
            return sshd
        except OSError:
            text = (folder / f"sshd-{name}.log").read_text(errors="replace")
            assert sshd.poll() is None and time.monotonic() < deadline, text
            time.sleep(0.05)
