"""The commands of a switch or of the way back, for a given group: text for ``sh``.

All run in the directory of ``group.toml``, on the machine that drives the group, whatever hosts its
members are on. Brokers whose ``start`` and ``stop`` are not in the file are the operator's: the
text names them and their hosts, and ``run`` ends there with exit code 2 until that is done.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence

from attrs import define

from rmqpy.upgrade.group.group_file import MemberSpec

JAVA, RMQPY = "java", "rmqpy"


@define(slots=True, frozen=True, kw_only=True)
class RunbookGroup:
    """The group for which a runbook is printed.

    ``brokers`` is the kind that runs (java, rmqpy). ``init`` has the arguments of ``rmqpy upgrade
    init`` if there is no ``group.toml`` yet. ``reads_version`` is the version of records that the
    brokers read which run the group after the way back: 2 for those of 5.x.
    """

    members: Sequence[MemberSpec]
    brokers: str
    init: Sequence[str] = ()
    broker_name: str = "BROKERNAME"
    reads_version: int = 1


def commands_until(lines: Iterable[str], state: str) -> list[str]:
    """Return the commands of a runbook up to the one that waits for ``state``."""
    commands: list[str] = []
    for line in lines:
        if line and not line.startswith("#"):
            commands.append(line)
        if f" --until {state} " in line:
            return commands
    raise ValueError(f"no line of the runbook waits for {state}")


def switch_runbook(group: RunbookGroup) -> Iterator[str]:
    """Yield the lines of the way to DLedger."""
    members, brokers = group.members, group.brokers
    yield from _head("to DLedger", group.init)
    yield "# 1. Stop the producers and wait until every slave has caught up. The master is stopped"
    yield "#    first, then the slaves. No message can be sent from here on until step 5."
    yield from _by_hand(members, brokers, "stop")
    yield "rmqpy upgrade run --until stopped --yes"
    yield "# 2. Compare. Findings (exit code 2) of members that only lack messages are repaired by"
    yield "#    the plan; read them, and the plan."
    yield "rmqpy upgrade check || test $? -eq 2"
    yield "rmqpy upgrade plan"
    yield "# 3. Make the members equal."
    yield "rmqpy upgrade apply --dry-run"
    yield "rmqpy upgrade apply"
    yield "rmqpy upgrade check"
    yield "# 4. Switch."
    yield "rmqpy upgrade switch"
    yield "# 5. Start all members. They elect a leader within seconds."
    yield from _by_hand(members, brokers, "start")
    yield "rmqpy upgrade run --until dledger --yes"
    yield "# 6. Prove it."
    yield "rmqpy upgrade verify"
    yield "# 7. At the end of the observation period, give up the undo records:"
    yield "# rmqpy upgrade finalize"


def controller_runbook(group: RunbookGroup, controllers: str = "") -> Iterator[str]:
    """Yield the lines of the way to a controller of 5.x. ``controllers`` are the addresses of the
    controllers if they are known.
    """
    members = group.members
    name = members[0].name
    yield from _head("to a controller of RocketMQ 5.x", group.init)
    addresses = [each.strip() for each in controllers.split(";") if each.strip()]
    given = shlex.quote(controllers) if addresses else "CONTROLLERS"
    if not addresses:
        yield "# CONTROLLERS stands for the addresses of the controller: HOST:PORT;HOST:PORT."
    yield "# 1. A DLedger group goes back first, by steps 1 to 3 of leave --runbook, and stays"
    yield "#    stopped. Other groups: stop the producers and wait until every slave has caught up;"
    yield "#    stop the master first, then the slaves. No message can be sent until step 6."
    yield from _by_hand(members, group.brokers, "stop")
    yield "rmqpy upgrade run --until stopped --yes"
    yield "# 2. Compare, and make the members equal."
    yield "rmqpy upgrade check || test $? -eq 2"
    yield "rmqpy upgrade plan"
    yield "rmqpy upgrade apply"
    yield "rmqpy upgrade check"
    yield "# 3. Write the epochs and the configuration of every member."
    yield "#    That of new controllers is written to this directory."
    yield f"rmqpy upgrade switch --to controller --controllers {given} --controller-conf ."
    yield "# 4. Start the controllers, each with its file, or a 5.x name server with the same lines"
    yield "#    and enableControllerInNamesrv=true. The data folder must be new. One controller is"
    yield "#    enough to begin with; three survive the loss of one."
    for number, address in enumerate(addresses or ["each host"]):
        yield f"#    on {address}: sh bin/mqcontroller -c controller-n{number}.conf"
    yield f"# 5. Start {name} with RocketMQ 5.x; the others after it is the master:"
    yield f"#    sh bin/mqadmin getSyncStateSet -a {given} -b {shlex.quote(group.broker_name)}"
    for member in members:
        yield f"#    {member.name}, on {_host(member)}: {_command(member, JAVA, 'start')}"
    yield "# 6. When the SyncStateSet has every member, start the producers."
    yield "# 7. Prove it; the brokers may run:"
    yield "# rmqpy upgrade verify"
    yield "# 8. At the end of the observation period, give up the undo records:"
    yield "# rmqpy upgrade finalize"


def leave_runbook(group: RunbookGroup) -> Iterator[str]:
    """Yield the lines of the way back from DLedger."""
    members, brokers = group.members, group.brokers
    yield from _head("back to master and slaves", group.init)
    yield "# 1. Stop the producers, and all members. No message can be sent from here on until step"
    if brokers == JAVA:
        yield "#    4. Java brokers have no fence and may end at different entries: leave fetches"
        yield "#    what a member lacks."
    else:
        yield "#    4. A fence lets them end at the same entry; with stop commands, run sets it."
        if missing := [each.name for each in members if not each.stop]:
            addresses = ";".join(each.address for each in members if each.address)
            which = f"-b {shlex.quote(addresses)}" if addresses else f"-m {group.broker_name}"
            yield f"#    Before you stop {', '.join(missing)}:"
            yield f"#    rmqpy admin fence -n NAMESRV {which} --seconds 600"
    yield from _by_hand(members, brokers, "stop")
    yield "rmqpy upgrade run --until halted --yes"
    yield "# 2. Plan the way back, read the plan, carry it out."
    yield "rmqpy upgrade leave" + (" --reader 5" if group.reads_version == 2 else "")
    yield "rmqpy upgrade apply --dry-run"
    yield "rmqpy upgrade apply"
    yield "# 3. Prove it."
    yield "rmqpy upgrade verify"
    yield "# 4. Start the master, then the slaves."
    yield from _by_hand(members, brokers, "start")
    yield "rmqpy upgrade run --until returned --yes"
    yield "# 5. At the end of the observation period, give up the undo records:"
    yield "# rmqpy upgrade finalize"


def leave_controller_runbook(group: RunbookGroup) -> Iterator[str]:
    """Yield the lines of the way from a controller back to master and slaves."""
    members = group.members
    yield from _head("from a controller back to master and slaves", group.init)
    yield "# 1. Stop the producers, and wait until the SyncStateSet has every replica:"
    yield f"#    sh bin/mqadmin getSyncStateSet -a CONTROLLERS -b {shlex.quote(group.broker_name)}"
    yield "#    Stop the slaves, then the master, then the controller. No message can be sent from"
    yield "#    here on until step 4."
    yield from _by_hand(members, JAVA, "stop")
    yield "rmqpy upgrade run --until controller-halted --yes"
    yield "# 2. Plan the way back, read the plan, carry it out. If 5.x brokers run the group"
    yield "#    afterwards, add --reader 5."
    yield "rmqpy upgrade leave"
    yield "rmqpy upgrade apply --dry-run"
    yield "rmqpy upgrade apply"
    yield "# 3. Prove it."
    yield "rmqpy upgrade verify"
    yield "# 4. Start the master, then the slaves."
    yield from _by_hand(members, group.brokers, "start")
    yield "rmqpy upgrade run --until returned --yes"
    yield "# 5. At the end of the observation period, give up the undo records:"
    yield "# rmqpy upgrade finalize"


def _head(way: str, init: Sequence[str]) -> Iterator[str]:
    place = "an empty directory" if init else "the directory of group.toml"
    yield f"# The way {way}. Type the lines in {place}, or save them in a file and run"
    yield "# it there with sh -e. A line that was interrupted can be repeated."
    if init:
        yield "# 0. Write group.toml, then read and correct it. With start and stop commands in it,"
        yield "#    the brokers are started and stopped from here."
        yield shlex.join(["rmqpy", "upgrade", "init", *init])


def _by_hand(members: Sequence[MemberSpec], brokers: str, verb: str) -> Iterator[str]:
    """Yield what the operator does for the members without a command in ``group.toml``."""
    for member in members:
        if not getattr(member, verb):
            yield f"#    {member.name}, on {_host(member)}: {_command(member, brokers, verb)}"


def _host(member: MemberSpec) -> str:
    return "this host" if member.is_local else member.host


def _command(member: MemberSpec, brokers: str, verb: str) -> str:
    config = shlex.quote(member.config or "broker.conf")
    if verb == "start":
        return f"sh bin/mqbroker -c {config}" if brokers == JAVA else f"rmqpy broker -c {config}"
    return "sh bin/mqshutdown broker" if brokers == JAVA else "kill the broker with SIGTERM"
