"""``WorkQueue``: every item is taken once, in order, and no worker sleeps beside an item."""

from __future__ import annotations

import asyncio

from harness.client import Run
from hypothesis import example, given
from hypothesis import strategies as st

from rmqpy.client.consuming.work_queue import WorkQueue


def test_one_worker_takes_what_it_can_without_waking_the_others(run: Run) -> None:
    async def main() -> None:
        work: WorkQueue[str] = WorkQueue()
        taken: list[tuple[int, str]] = []

        async def worker(number: int) -> None:
            while True:
                taken.append((number, await work.get()))

        workers = [asyncio.create_task(worker(number)) for number in range(3)]
        await asyncio.sleep(0)
        for item in "abc":
            work.put(item)
        for _ in range(3):
            await asyncio.sleep(0)
        assert taken == [(0, "a"), (0, "b"), (0, "c")]
        for each in workers:
            each.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    run(main())


def test_all_workers_work_while_listeners_wait(run: Run) -> None:
    async def main() -> None:
        work: WorkQueue[int] = WorkQueue()
        running, finish = 0, asyncio.Event()

        async def worker() -> None:
            nonlocal running
            while True:
                await work.get()
                running += 1
                await finish.wait()

        workers = [asyncio.create_task(worker()) for _ in range(4)]
        await asyncio.sleep(0)
        for number in range(9):
            work.put(number)
        for _ in range(6):
            await asyncio.sleep(0)
        assert running == 4
        for each in workers:
            each.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    run(main())


@example(["worker", "turn", "cancel", "put"])
@example(["worker", "worker", "turn", "cancel", "two", "cancel"])
@given(st.lists(st.sampled_from(["put", "two", "cancel", "worker", "turn"]), max_size=30))
def test_no_item_is_lost(steps: list[str]) -> None:
    async def main() -> None:
        work: WorkQueue[int] = WorkQueue()
        workers: list[asyncio.Task[None]] = []
        taken: list[int] = []
        count = 0

        async def worker() -> None:
            while True:
                taken.append(await work.get())
                await asyncio.sleep(0)

        for step in [*steps, "worker"]:
            if step in ("put", "two"):
                for _ in range(1 if step == "put" else 2):
                    work.put(count)
                    count += 1
            elif step == "cancel" and workers:
                workers.pop(0).cancel()
            elif step == "worker":
                workers.append(asyncio.create_task(worker()))
            else:
                await asyncio.sleep(0)
        for _ in range(4 * count + 4):
            await asyncio.sleep(0)
        assert taken == list(range(count))
        for each in workers:
            each.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    asyncio.run(main())
