"""``rmqpy why`` and ``rmqpy where``: answers about a store directory or a running broker.

A target is a directory (a broker's storePathRootDir, which is only read) or an address HOST:PORT of
a running broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqpy.cli.why.questions import add_why
from rmqpy.cli.why.where import add_where

if TYPE_CHECKING:
    from rmqpy.cli.parsing import Commands

__all__ = ["add_commands"]


def add_commands(commands: Commands) -> None:
    add_where(commands)
    add_why(commands)
