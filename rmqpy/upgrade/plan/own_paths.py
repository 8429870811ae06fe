"""The paths of this node: a plan touches no others.

A plan may come from another host, and is built from surveys of other hosts. Its paths are believed
only if they lie in one of these places, after symbolic links and ``..`` are resolved:

* ``storePathRootDir``, and the standard folders of the store wherever the operator's links lead
* the configured folders of the logs, and the configured files of a controller group
* the broker.conf of this node, which can only be written, not moved
"""

from __future__ import annotations

from collections.abc import Iterator

from rmqpy.audit.scan.directory import LEDGER_PREFIX, PATH_SEPARATOR
from rmqpy.model.files import FileSystem
from rmqpy.store.files.paths import StorePaths
from rmqpy.store.upgrade_guard import upgrade_work
from rmqpy.upgrade.plan.node_context import NodeContext, UpgradeRefusedError
from rmqpy.upgrade.plan.operations import Write
from rmqpy.upgrade.plan.plan import NodePlan, op_line


def check_own_paths(context: NodeContext, node: NodePlan) -> None:
    """Raise UpgradeRefusedError if this node's part names a path that is not this node's."""
    files, root = context.files, context.settings.store_path_root_dir
    work = files.resolve(context.work)
    here = work == files.resolve(upgrade_work(root))
    if not here or _resolved(files, node.root) != files.resolve(root):
        given = root if here else context.work.removesuffix(upgrade_work(""))
        raise UpgradeRefusedError(
            f"found a plan for {node.root!r}, expected one for {given!r};"
            " nothing was changed. Give the directory of the plan, and move or copy a store only"
            " after its plans are final or rolled back"
        )
    if not _is_below(_resolved(files, node.keep), work):
        raise _refused(context, node.keep, "the folder for files that are moved aside")
    whole = {files.resolve(root), work}
    folders = set(_folders(context))
    configuration = {files.resolve(each) for each in context.configuration}
    for op in node.ops:
        for path in op.paths:
            found = _resolved(files, path)
            own = found in folders - whole or any(_is_below(found, each) for each in folders)
            if not own and not (isinstance(op, Write) and found in configuration):
                raise _refused(context, path, op_line(op))


def _folders(context: NodeContext) -> Iterator[str]:
    """Yield the folders of this node, and its files elsewhere: a plan may change all of it."""
    files, settings = context.files, context.settings
    paths = StorePaths.from_settings(settings)
    logs = [paths.commit_log, settings.store_path_dledger_commit_log or ""]
    ledgers = [name for name in files.list_dir(paths.root) if name.startswith(LEDGER_PREFIX)]
    for folder in (
        *(paths.root, paths.consume_queue, paths.index, paths.config, context.work),
        *paths.controller_files,
        *(each for log in logs for each in log.split(PATH_SEPARATOR)),
        *(f"{paths.root}/{name}" for name in ledgers),
    ):
        if folder:
            yield files.resolve(folder)


def _resolved(files: FileSystem, path: str) -> str:
    """Return the resolved path, or "" for one that is not absolute or not valid."""
    return files.resolve(path) if path.startswith("/") and "\0" not in path else ""


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(f"{folder.rstrip('/')}/")


def _refused(context: NodeContext, path: str, what: str) -> UpgradeRefusedError:
    settings = context.settings
    own = dict.fromkeys(
        (settings.store_path_root_dir, settings.store_path_commit_log, *context.configuration)
    )
    return UpgradeRefusedError(
        f"{what!r}: found the path {path!r}, expected one of this node: {', '.join(own)}; nothing"
        " was changed. If it is this node's broker.conf or log, pass -c NAME=broker.conf; otherwise"
        " plan again on a host that you trust"
    )
