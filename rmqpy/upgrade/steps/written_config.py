"""Validate the broker.conf files that a step would write, before the plan is made.

Nothing is written unless the files of all replicas pass. A replica of another host counts with the
configuration that its own host will write.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from attrs import evolve

from rmqpy.config.keys import parse_dledger_peers
from rmqpy.config.loading import parse_broker_configuration
from rmqpy.model.errors import ConfigError
from rmqpy.upgrade.checks.config_checks import ConfigCheck
from rmqpy.upgrade.checks.findings import CheckFinding, note
from rmqpy.upgrade.plan.configuration import rewritten_config
from rmqpy.upgrade.plan.node_context import UpgradeRefusedError
from rmqpy.upgrade.steps.plan_context import PlanContext

Keys = Mapping[str, str]


def check_written(
    context: PlanContext,
    keys: Mapping[str, Keys],
    checks: Mapping[str, ConfigCheck],
    without: Collection[str] = (),
) -> tuple[str, ...]:
    """Run ``checks`` on the present configurations with ``keys``, by replica, and without the keys
    of ``without``; return the notes.

    Raise UpgradeRefusedError with everything that is wrong.
    """
    surveys = [
        evolve(survey, config={**_kept(survey.config, without), **keys[survey.name]})
        for survey in context.group.surveys
        if survey.config is not None and survey.name in keys
    ]
    wrong = [text for name in keys if (text := _fault_of(context, name, keys[name], without))]
    found: list[CheckFinding] = []
    if not wrong:
        found = [each for check in checks.values() for each in check(surveys)]
    if all(each.is_note for each in found) and not wrong:
        found += _unresolved(context, keys)
    wrong += [each.sentence for each in found if not each.is_note]
    if wrong:
        raise UpgradeRefusedError(
            "the configuration that would be written is wrong, and nothing was changed: "
            + "; ".join(dict.fromkeys(wrong))
        )
    return tuple(dict.fromkeys(each.sentence for each in found))


def _kept(config: Keys, without: Collection[str]) -> Keys:
    return {key: value for key, value in config.items() if key not in without}


def _fault_of(context: PlanContext, name: str, keys: Keys, without: Collection[str]) -> str | None:
    """Return why a broker would refuse the file of a replica of this host, or None."""
    if name not in [replica.name for replica in context.on_this_host]:
        return None
    survey = context.group.survey(name)
    if survey.config_path is None:
        return None
    text = rewritten_config(context.files, survey, keys, without)
    home = {"HOME": survey.root}  # The default of storePathRootDir: the given directory counts.
    try:
        parse_broker_configuration(text, survey.config_path, home)
    except ConfigError as error:
        return str(error)
    return None


def _unresolved(context: PlanContext, keys: Mapping[str, Keys]) -> Iterator[CheckFinding]:
    texts = {each["dLegerPeers"] for each in keys.values() if each.get("dLegerPeers")}
    hosts = {peer.host for text in texts for peer in parse_dledger_peers(text)}
    for host in sorted(hosts):
        if not context.resolves(host):
            yield note(
                "peers",
                "",
                f"the name {host} in dLegerPeers cannot be resolved on this host",
                "correct it, unless only the hosts of the members know it",
            )
