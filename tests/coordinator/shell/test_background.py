"""Test that a failure in the coordinator's periodic work ends the run, rather than that work alone."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.config.config import CoordinatorConfig
from coordinator.shell.background import Background


def never() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


def parts(failures: list[Exception]) -> dict[str, Any]:
    """Return parts that do nothing and never fail."""
    metric = SimpleNamespace(observe=lambda *_: None, set=lambda _: None)
    names = ("loop_lag_s", "loop_lag", "loop_blocks", "loop_work", "store_free_bytes", "store_refusing")
    return {
        "config": SimpleNamespace(store=CoordinatorConfig.model_fields["store"].get_default(call_default_factory=True)),
        "folder": SimpleNamespace(events=None),
        "shell": SimpleNamespace(
            fail=failures.append,
            tick=lambda: None,
            core=SimpleNamespace(settings=SimpleNamespace(is_cell=False)),
        ),
        "ledger": SimpleNamespace(failed=never, is_reached=True),
        "problems": SimpleNamespace(failed=never),
        "metrics": SimpleNamespace(**dict.fromkeys(names, metric)),
        "disk": SimpleNamespace(refusing=False, free_bytes=1, check=lambda: None),
    }


def raising(error: Exception) -> Any:
    def fail(*_: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize("broken", ["tick", "loop", "disk"])
async def test_a_fault_of_ours_ends_the_run(broken: str) -> None:
    error, failures = ValueError("a fault of ours"), list[Exception]()
    given = parts(failures)
    if broken == "disk":
        given["disk"].check = raising(error)
    else:
        name = "loop_lag" if broken == "tick" else "loop_blocks"
        setattr(given["metrics"], name, SimpleNamespace(observe=raising(error)))
    tasks = [asyncio.create_task(work) for work in Background(**given).coroutines()]
    async with asyncio.timeout(10.0):
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert failures == [error]


async def test_a_store_that_does_not_answer_is_reported() -> None:
    given = parts([])
    reported: asyncio.Queue[bool] = asyncio.Queue()
    given["ledger"].is_reached = False
    given["metrics"].store_refusing = SimpleNamespace(set=reported.put_nowait)
    watching = asyncio.create_task(Background(**given)._watch_disk())
    assert await asyncio.wait_for(reported.get(), 10.0)
    given["ledger"].is_reached = True
    assert not await asyncio.wait_for(reported.get(), 10.0)
    watching.cancel()
