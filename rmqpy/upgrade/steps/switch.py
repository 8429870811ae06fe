"""The switch of one node: seal the old log, write the configuration, hand over to the operator.

Both are operations with undo records; together with the alignment they make the whole way there. A
node switches only when its log is still the one that the plan was made for.
"""

from __future__ import annotations

from rmqpy.codec.layout import BLANK_SIZE
from rmqpy.codec.message import encode_blank
from rmqpy.model.files import FileSystem
from rmqpy.store.files.paths import own_folder
from rmqpy.store.ledger.classic_prefix import FileDigest, digest_of_blocks, keep_mark
from rmqpy.store.upgrade_guard import upgrade_work
from rmqpy.upgrade.checks.log_comparison import classic_log
from rmqpy.upgrade.checks.replica import Replica
from rmqpy.upgrade.plan.configuration import dledger_config
from rmqpy.upgrade.plan.node_context import UpgradeRefusedError, digest_of
from rmqpy.upgrade.plan.operations import Fill, Op, Write
from rmqpy.upgrade.plan.plan import NodePlan
from rmqpy.upgrade.steps.plan_context import PlanContext


def plan_seal(situation: PlanContext, replica: Replica) -> NodePlan:
    """Raises UpgradeRefusedError for a log without an end."""
    survey = replica.survey()
    log = classic_log(replica)
    ops: list[Op] = []
    if not log.files:
        raise UpgradeRefusedError(
            f"{replica.name} has no old log: started so, the group would begin at 0 and hide every"
            " old message (rmqpy upgrade plan brings the log of the others)"
        )
    last = log.files[-1]
    position = last.end - last.first_offset
    if not last.sealed:
        stop = position + BLANK_SIZE
        ops.append(
            Fill(
                path=_absolute(situation, replica, last.path),
                start=position,
                end=stop,
                before=replica.digest(last.path, position, stop),
                after=digest_of(encode_blank(last.file_size - position)),
                file_size=last.file_size,
                why=f"the divided offset is {last.end_offset}",
            )
        )
    return _part(replica, survey.root, ops, [f"divided offset {last.end_offset}"])


def plan_configure(situation: PlanContext, replica: Replica) -> NodePlan:
    """Raises UpgradeRefusedError when the wish does not name peers and this node's id."""
    survey, wish = replica.survey(), situation.wish
    self_id = wish.self_ids.get(replica.name) or survey.setting("dLegerSelfId")
    peers = wish.peers or survey.setting("dLegerPeers")
    if not self_id or not peers:
        raise UpgradeRefusedError(
            f"{replica.name}: its id and the peers are not known; give --self-id and --peers"
        )
    keys = {
        "dLegerGroup": wish.dledger_group or survey.setting("dLegerGroup") or _broker_name(replica),
        "dLegerPeers": peers,
        "dLegerSelfId": self_id,
    }
    text = dledger_config(situation.files, survey, keys)
    assert survey.config_path is not None
    before = digest_of(situation.files.read_bytes(survey.config_path))
    op = Write.of(survey.config_path, before, text.encode(), "the flag and the group")
    return _part(replica, survey.root, [op], [f"{key}={value}" for key, value in keys.items()])


def keep_old_log(files: FileSystem, replica: Replica) -> None:
    """The survey has read the whole old log: the member need not do it again before it tells the
    others what stands there. Only where the files are still those of the survey.
    """
    survey, log = replica.survey(), classic_log(replica)
    if not log.files or not survey.manifest.fits(files, survey.root):
        return
    digests = []
    for file in reversed(log.files):
        path = file.path if file.path.startswith("/") else f"{survey.root}/{file.path}"
        digests.append(
            FileDigest(
                name=path.rpartition("/")[2],
                mtime_ms=files.mtime_ms(path),
                end=file.end,
                digest=digest_of_blocks(file.blocks),
            )
        )
    keep_mark(files, own_folder(survey.root), log.files[-1].end_offset, digests)


def _broker_name(replica: Replica) -> str:
    name = replica.survey().setting("brokerName")
    if not name:
        raise UpgradeRefusedError(f"{replica.name}: brokerName is not set; give --group")
    return name


def _part(replica: Replica, root: str, ops: list[Op], notes: list[str]) -> NodePlan:
    keep = f"{upgrade_work(root)}/keep-switch"
    return NodePlan(replica=replica.name, root=root, keep=keep, ops=tuple(ops), notes=tuple(notes))


def _absolute(situation: PlanContext, replica: Replica, path: str) -> str:
    if path.startswith("/"):
        return path
    settings = situation.settings.get(replica.name)
    folder = settings.store_path_commit_log if settings else f"{replica.survey().root}/commitlog"
    return f"{folder}/{path.rpartition('/')[2]}"
