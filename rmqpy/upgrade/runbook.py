"""The commands of a switch or of the way back, for the hosts, paths and brokers at hand."""

from __future__ import annotations

from collections.abc import Iterator

from rmqpy.upgrade.check_findings import Group
from rmqpy.upgrade.situation import Situation
from rmqpy.upgrade.survey import Survey

JAVA, RMQPY = "java", "rmqpy"


def switch_runbook(situation: Situation, brokers: str) -> Iterator[str]:
    """``brokers``: java or rmqpy, who runs before and after."""
    surveys = situation.group.surveys
    shown = " ".join(f"{survey.name}={survey.root}" for survey in surveys)
    confs = " ".join(
        f"-c {survey.name}={survey.config_path or 'BROKER_CONF'}" for survey in surveys
    )
    peers = situation.wish.peers or "n0-HOST:PORT;n1-HOST:PORT;n2-HOST:PORT"
    yield "# 1. Stop producers, wait until every slave has caught up, then stop the master, then"
    yield "#    the slaves. Messages cannot be sent from here on until step 6."
    for survey in surveys:
        yield f"{_stop(brokers)}    # on the host of {survey.name}"
    yield "# 2. Look. Exit code 2: something has to be mended first."
    yield f"rmqpy upgrade check {shown} {confs}"
    yield "# 3. Plan, read the plan, sign it off."
    yield f"rmqpy upgrade plan {shown} {confs} --out plan.json"
    yield "# 4. Align, on each host its own part."
    for survey in surveys:
        yield f"rmqpy upgrade apply --plan plan.json --node {survey.name} {shown}"
    yield "# 5. Switch, on each host."
    for number, survey in enumerate(surveys):
        self_id = situation.wish.self_ids.get(survey.name, f"n{number}")
        yield (
            f"rmqpy upgrade switch {survey.name}={survey.root}"
            f" -c {survey.name}={survey.config_path or 'BROKER_CONF'}"
            f" --peers '{peers}' --self-id {survey.name}={self_id}"
        )
    yield "# 6. Start all of them; a leader is elected within seconds."
    for survey in surveys:
        yield f"{_start(brokers, survey)}    # on the host of {survey.name}"
    yield "# 7. Prove it, let it soak, then give up the way back by roll back."
    yield f"rmqpy upgrade verify {shown} {confs}"
    for survey in surveys:
        yield f"rmqpy upgrade finalize {survey.root}"


def leave_runbook(situation: Situation, brokers: str) -> Iterator[str]:
    """The way back, for the same group."""
    group: Group = situation.group
    surveys = group.surveys
    shown = " ".join(f"{survey.name}={survey.root}" for survey in surveys)
    confs = " ".join(
        f"-c {survey.name}={survey.config_path or 'BROKER_CONF'}" for survey in surveys
    )
    yield "# 1. Stop producers, wait until all members have the same committed end"
    yield "#    (commitLogMaxOffset of brokerStatus), then stop the followers, then the leader."
    for survey in surveys:
        yield f"{_stop(brokers)}    # on the host of {survey.name}"
    yield "# 2. Plan the way back, read it, sign it off; then each host its own part."
    yield f"rmqpy upgrade leave {shown} {confs} --out leave.json"
    for survey in surveys:
        yield f"rmqpy upgrade apply --plan leave.json --node {survey.name} {shown}"
    yield "# 3. Start one as master, the others as its slaves."
    for survey in surveys:
        yield f"{_start(brokers, survey)}    # on the host of {survey.name}"


def _stop(brokers: str) -> str:
    return (
        "sh bin/mqshutdown broker" if brokers == JAVA else "kill -TERM $(pgrep -f 'rmqpy broker')"
    )


def _start(brokers: str, survey: Survey) -> str:
    conf = survey.config_path or "BROKER_CONF"
    return f"sh bin/mqbroker -c {conf}" if brokers == JAVA else f"rmqpy broker -c {conf}"
