"""Blocks of a log file, the unit in which logs are counted and compared."""

from __future__ import annotations

from typing import Final

BLOCK_SHIFT: Final = 16
BLOCK_SIZE: Final = 1 << BLOCK_SHIFT
"""Frames are counted by the 64 KiB block of the file in which they begin."""
BLOCK_DIGEST_BYTES: Final = 16
"""Of the BLAKE2b of a block."""
