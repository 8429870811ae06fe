"""The mark with which a member need not read its whole old log again at its first start."""

from __future__ import annotations

from rmqpy.model.files import FileSystem
from rmqpy.store.files.paths import own_folder
from rmqpy.store.ledger.classic_prefix import FileDigest, keep_mark
from rmqpy.upgrade.checks.log_comparison import classic_log
from rmqpy.upgrade.checks.replica import Replica


def save_old_log_mark(files: FileSystem, replica: Replica) -> None:
    """Save the digests of the old log that the survey has read.

    The member then need not read the whole log again before it reports the digests to the others.
    Do nothing if the files are no longer those of the survey.
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
                digest=file.blocks.digest,
            )
        )
    keep_mark(files, own_folder(survey.root), log.files[-1].end_offset, digests)
