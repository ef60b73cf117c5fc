from __future__ import annotations

import asyncio

from structlog.testing import capture_logs

from rollcast.runtime.background import Background


async def test_what_breaks_a_task_is_logged_and_costs_the_others_nothing() -> None:
    background, ends = Background("an errand broke"), asyncio.Event()
    done: list[str] = []

    async def breaks() -> None:
        raise ValueError("a fault of ours")

    async def waits() -> None:
        await ends.wait()
        done.append("waited")

    with capture_logs() as logs:
        background.spawn(breaks())
        background.spawn(waits())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert [(line["event"], line["log_level"]) for line in logs] == [("an errand broke", "error")]
    ends.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert done == ["waited"]


async def test_the_end_waits_until_all_have_cleared_up_and_is_no_fault() -> None:
    background = Background("an errand broke")
    cleared: list[int] = []

    async def clears_up(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleared.append(number)

    for number in (1, 2):
        background.spawn(clears_up(number))
    await asyncio.sleep(0)
    with capture_logs() as logs:
        await background.end()
    assert (sorted(cleared), logs) == ([1, 2], [])
    await background.end()
