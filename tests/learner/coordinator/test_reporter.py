from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping

from learner.coordinator.reporter import StatusReporter
from rollcast.runtime.errors import Unreachable


class Receiver:
    """Stands for the coordinator."""

    def __init__(self) -> None:
        self.got: list[tuple[str, str, dict[str, float]]] = []
        self.failures = 0
        self.came = asyncio.Condition()

    async def __call__(self, phase: str, detail: str, values: Mapping[str, float]) -> None:
        if self.failures:
            self.failures -= 1
            raise Unreachable("away")
        self.got.append((phase, detail, dict(values)))
        async with self.came:
            self.came.notify_all()

    async def until(self, phase: str) -> None:
        async with asyncio.timeout(10.0), self.came:
            await self.came.wait_for(lambda: bool(self.got) and self.got[-1][0] == phase)


async def test_the_newest_status_arrives_with_every_value() -> None:
    receiver = Receiver()
    async with StatusReporter(receiver) as reporter:
        reporter.say("warm_start", "step 50")
        reporter.say("evaluating", "before", reward_before=0.3)
        thread = threading.Thread(target=lambda: reporter.say("training", "step 1", warm_start_s=2.0))
        thread.start()
        thread.join()
        await receiver.until("training")
    assert receiver.got[-1] == ("training", "step 1", {"reward_before": 0.3, "warm_start_s": 2.0})


async def test_a_lost_status_is_made_up_for_by_the_next() -> None:
    receiver = Receiver()
    receiver.failures = 1
    async with StatusReporter(receiver) as reporter:
        reporter.say("warm_start", "", reward_before=0.3)
        await asyncio.sleep(0)  # let the first attempt fail
        reporter.say("training")
        await receiver.until("training")
    assert receiver.got[-1][2] == {"reward_before": 0.3}


async def test_flush_comes_last() -> None:
    receiver = Receiver()
    async with StatusReporter(receiver) as reporter:
        for step in range(20):
            reporter.say("training", f"step {step}")
        reporter.say("finished", "done")
        await reporter.flush()
    assert receiver.got[-1][0] == "finished"
