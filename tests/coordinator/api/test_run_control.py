"""Test acts on the run over HTTP: what each says beforehand, the resulting orders, and the audit log."""

from __future__ import annotations

from pathlib import Path

from coordinator.api.run_control import RunControlRoutes
from coordinator.core.events.operator_events import Order, RunFinishing, RunPaused, RunResumed
from rollcast.wire.ids import Step
from tests.coordinator.core_world import World, heartbeat, wants
from tests.coordinator.http.serving import KEY, Given, served

RUN, PREVIEW = "/api/v1/acts/run", "/api/v1/acts/run/preview"


class Control:
    """The routes over a real core, whose workers cost 2 $/h."""

    def __init__(self) -> None:
        self.world = World()
        self.world.start("a")
        self.world.handle(heartbeat("a", active=0))
        self.world.handle(wants("a", 2))
        self.orders: list[Order] = []
        self.routes = RunControlRoutes(self.world.core, self.give, lambda: 2.0).routes()

    async def give(self, *orders: Order) -> None:
        for order in orders:
            self.orders.append(order)
            self.world.handle(order)


async def test_a_run_is_paused_resumed_and_finished(tmp_path: Path) -> None:
    control = Control()
    async with served(tmp_path, Given(routes=control.routes)) as page:
        status, preview = await page.post(PREVIEW, {"act": "pause"}, KEY)
        assert (status, preview["changes"], control.orders) == (200, True, [])
        assert preview["sentence"] == (
            "No more work is given out, and the learner waits before the first step."
            " Rollouts in flight (2) are finished and kept."
        )
        assert preview["warnings"] == ["Workers stay on for 2 $/h; drain those that you pay for."]
        assert await page.post(RUN, {"act": "pause", "reason": "heat"}, KEY) == (200, preview)
        assert (await page.post(RUN, {"act": "pause"}, KEY))[1]["sentence"] == (
            "The run is paused already. Nothing changes."
        )
        assert (await page.post(RUN, {"act": "resume"}, KEY))[1]["sentence"] == "The run goes on with step 1."
        assert not (await page.post(RUN, {"act": "resume"}, KEY))[1]["changes"]
        finishes = (await page.post(PREVIEW, {"act": "finish"}, KEY))[1]
        assert finishes["sentence"].startswith("The learner finishes before the first step of 10: it publishes")
        assert finishes["warnings"] == ["This cannot be undone; rollouts that no batch has (2) are dropped."]
        assert (await page.post(RUN, {"act": "finish"}, KEY))[1] == finishes
        assert not (await page.post(RUN, {"act": "pause"}, KEY))[1]["changes"]
        rows = (await page.get("/api/v1/audit", KEY))[1]["rows"]
        assert [(one["act"], one["subject"], one["detail"]) for one in rows][-1] == ("run", "pause", "heat")
    assert control.orders == [RunPaused("heat"), RunResumed(), RunFinishing(Step(0))]


async def test_a_cell_has_no_run_to_finish(tmp_path: Path) -> None:
    control = Control()
    control.world = World(is_cell=True)
    routes = RunControlRoutes(control.world.core, control.give, lambda: 0.0).routes()
    async with served(tmp_path, Given(routes=routes)) as page:
        status, answer = await page.post(RUN, {"act": "finish"}, KEY)
        assert (status, answer["fix"]) == (400, "finish the head's run")
        paused = (await page.post(RUN, {"act": "pause"}, KEY))[1]
        assert paused["sentence"].startswith("No more work is given out in this cell; the head's run goes on.")
        assert (await page.post(RUN, {"act": "resume"}, KEY))[1]["sentence"] == "This cell works again."
