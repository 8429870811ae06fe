"""Commands of the user that run before and after a stage, while the group serves.

The command is split into words as a shell does, and runs without a shell in the folder of the suite
file, with these variables:

======================  ===============================================
RMQPY_NAME_SERVER       the address of the name server, ``host:port``
RMQPY_BROKER            the address of the master, for ``rmqpy replay``
RMQPY_STORE             the name of the store in the suite file
RMQPY_STAGE             ``switch``, ``failover``, ``leave``, or ``controller``
RMQPY_WHEN              ``before`` or ``after``
======================  ===============================================

A hook that ends with another code than 0, or not in its time, is a finding of the stage. Its whole
process group is ended then.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

OUTPUT_CHARACTERS_MAX = 2_000


async def run_hook(
    command: str, folder: Path, variables: Mapping[str, str], seconds: float
) -> str | None:
    """Run one command; return a sentence about its failure, or None."""
    words = shlex.split(command)
    try:
        process = await asyncio.create_subprocess_exec(
            *words,
            cwd=folder,
            env={**os.environ, **variables},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        return f"hook {command}: cannot be started: {error.strerror}"
    assert process.stdout is not None
    output = asyncio.create_task(_tail(process.stdout))
    try:
        async with asyncio.timeout(seconds):
            code = await process.wait()
            printed = await output
    except TimeoutError:
        return f"hook {command}: has not ended after {seconds:g} s"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        output.cancel()
    if code == 0:
        return None
    return f"hook {command}: ended with {code}: {printed.strip() or 'no output'}"


async def _tail(stream: asyncio.StreamReader) -> str:
    """Read everything, and return the last part of it."""
    kept = b""
    while data := await stream.read(1 << 16):
        kept = (kept + data)[-OUTPUT_CHARACTERS_MAX:]
    return kept.decode("utf-8", "replace")
