"""The commands of a switch or of the way back, for given hosts, paths, and brokers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rmqpy.upgrade.plan.survey import Survey
from rmqpy.upgrade.steps.plan_context import PlanContext

JAVA, RMQPY = "java", "rmqpy"


def switch_runbook(context: PlanContext, brokers: str) -> Iterator[str]:
    """Yield the commands of a switch; ``brokers`` (java, rmqpy) run before and after it."""
    surveys = context.group.surveys
    replicas, configs = _replica_arguments(surveys), _config_arguments(surveys)
    peers = context.options.peers or "n0-HOST:PORT;n1-HOST:PORT;n2-HOST:PORT"
    yield "# 1. Stop producers, wait until every slave has caught up, then stop the master, then"
    yield "#    the slaves. Messages cannot be sent from here on until step 6."
    for survey in surveys:
        yield f"{_stop(brokers)}    # on the host of {survey.name}"
    yield "# 2. Check. Exit code 2: something must be repaired first."
    yield f"rmqpy upgrade check {replicas} {configs}"
    yield f"rmqpy upgrade manifest {surveys[0].name}={surveys[0].root} --format json > before.json"
    yield "# 3. Plan, read the plan, sign it off."
    yield f"rmqpy upgrade plan {replicas} {configs} --out plan.json"
    yield "# 4. Align, on each host its own part."
    for survey in surveys:
        yield f"rmqpy upgrade apply --plan plan.json --node {survey.name} {replicas} {configs}"
    yield "# 5. Switch, on each host."
    for number, survey in enumerate(surveys):
        self_id = context.options.self_ids.get(survey.name, f"n{number}")
        yield (
            f"rmqpy upgrade switch {survey.name}={survey.root}"
            f" -c {survey.name}={survey.config_path or 'BROKER_CONF'}"
            f" --peers '{peers}' --self-id {survey.name}={self_id}"
        )
    yield "# 6. Start all of them; a leader is elected within seconds."
    for survey in surveys:
        yield f"{_start(brokers, survey)}    # on the host of {survey.name}"
    yield "# 7. Prove it, let it soak, then give up the rollback."
    yield f"rmqpy upgrade verify --before before.json {replicas} {configs}"
    for survey in surveys:
        yield f"rmqpy upgrade finalize {survey.root}"


def leave_runbook(context: PlanContext, brokers: str) -> Iterator[str]:
    """Yield the commands of the way back, for the same group."""
    surveys = context.group.surveys
    replicas, configs = _replica_arguments(surveys), _config_arguments(surveys)
    roles = context.options.roles
    options = "".join(f" --role {name}={role}" for name, role in roles.items())
    yield "# 1. Stop the writes of the group, also the leader's own (delayed messages, checks of"
    yield "#    transactions), wait until all members have the same end, and stop them before the"
    yield "#    deadline. Messages cannot be sent from here on until step 5."
    java = " --java" if brokers == JAVA else ""
    yield f"rmqpy admin fence -n NAMESRV -m BROKER_NAME --seconds 600{java}"
    if java:
        yield "#    Java brokers have no fence: their write permission is taken (brokerPermission=4"
        yield "#    in broker.conf), and they go on writing. Stop the followers, then the leader."
        yield "#    Before step 5, set brokerPermission=6 in every broker.conf."
    for survey in surveys:
        yield f"{_stop(brokers)}    # on the host of {survey.name}"
    yield "# 2. Save a manifest for the proof; plan the way back, read the plan, sign it off."
    yield f"rmqpy upgrade manifest {surveys[0].name}={surveys[0].root} --format json > before.json"
    yield f"rmqpy upgrade leave {replicas} {configs}{options} --out leave.json"
    if not roles:
        yield "#    (--role NAME=SYNC_MASTER, --role NAME=SLAVE write the roles as well)"
    yield "# 3. Apply, on each host its own part."
    for survey in surveys:
        yield f"rmqpy upgrade apply --plan leave.json --node {survey.name} {replicas} {configs}"
    yield "# 4. Prove it."
    yield f"rmqpy upgrade verify --before before.json {replicas} {configs}"
    yield "# 5. Start one as master, the others as slaves; let it soak, then give up the rollback."
    for survey in surveys:
        yield f"{_start(brokers, survey)}    # on the host of {survey.name}"
    for survey in surveys:
        yield f"rmqpy upgrade finalize {survey.root}"


def _replica_arguments(surveys: Sequence[Survey]) -> str:
    return " ".join(f"{survey.name}={survey.root}" for survey in surveys)


def _config_arguments(surveys: Sequence[Survey]) -> str:
    pairs = [(survey.name, survey.config_path or "BROKER_CONF") for survey in surveys]
    return " ".join(f"-c {name}={path}" for name, path in pairs)


def _stop(brokers: str) -> str:
    return (
        "sh bin/mqshutdown broker" if brokers == JAVA else "kill -TERM $(pgrep -f 'rmqpy broker')"
    )


def _start(brokers: str, survey: Survey) -> str:
    conf = survey.config_path or "BROKER_CONF"
    return f"sh bin/mqbroker -c {conf}" if brokers == JAVA else f"rmqpy broker -c {conf}"
