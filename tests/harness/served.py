"""``rmqpy upgrade serve`` within a test."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

from rmqpy.store.files.disk import OsFileSystem
from rmqpy.upgrade import serve
from rmqpy.upgrade.checks.replica import LocalReplica
from rmqpy.upgrade.plan.survey import SurveyPlan


@contextlib.asynccontextmanager
async def served(root: Path, token: str = "") -> AsyncIterator[int]:
    """Serve a directory in this process and yield the port."""
    plan = SurveyPlan(name="n0", root=os.fspath(root), now_ms=lambda: 7)
    replica = LocalReplica(OsFileSystem(), plan)
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    auth = serve.TokenAuth(token=token)
    task = asyncio.create_task(serve._run(replica, auth, ready.set_result))
    try:
        yield int((await ready).rpartition(":")[2])
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
