"""Topics that a command names and a store does not have: a note with the nearest one."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rmqpy.model.near_names import did_you_mean

if TYPE_CHECKING:
    from rmqpy.audit.scan.directory import StoreDirectory
    from rmqpy.model.files import FileSystem

__all__ = ["note_unknown_topics"]


def note_unknown_topics(
    files: FileSystem, directory: StoreDirectory, topics: Iterable[str]
) -> None:
    """Print each topic that the store does not have, on stderr: the result is then empty of it."""
    from rmqpy.audit.facts.small_files import existing_topics

    paths = directory.paths
    known = existing_topics(files, paths.config, paths.consume_queue) or ()
    for topic in topics:
        if topic not in known:
            hint = did_you_mean(topic, known)
            print(f"the store has no topic {topic}{hint}", file=sys.stderr)
