"""Serve the operator's acts on the run as a whole: pause, resume and finish it, each with a preview of what follows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal

from pydantic import BaseModel, Field

from coordinator.core.core import CoordinatorCore
from coordinator.core.events.operator_events import Order, RunFinishing, RunPaused, RunResumed
from coordinator.http.routes import Answer, Body, Call, Route
from rollcast.runtime.errors import MalformedMessage

REASON_LENGTH_MAX = 200

RunActName = Literal["pause", "resume", "finish"]


class RunAct(Body):
    """An act on the run, with the reason for the audit log and the run's page."""

    act: RunActName
    reason: str = Field("", max_length=REASON_LENGTH_MAX)


class RunActOutcome(BaseModel):
    """What an act on the run does, or would do: ``changes`` is false if the run is in that state already."""

    changes: bool
    sentence: str
    warnings: list[str]


class RunControlRoutes:
    """Routes of acts on the run.

    Args:
        give: carries orders out, durably.
        usd_per_hour: what the run's workers cost now, in US dollars an hour.
    """

    def __init__(
        self, core: CoordinatorCore, give: Callable[..., Awaitable[None]], usd_per_hour: Callable[[], float]
    ) -> None:
        self._core = core
        self._give = give
        self._usd_per_hour = usd_per_hour

    def routes(self) -> list[Route]:
        """Return the routes, each with its path and the role that it requires."""
        return [
            Route(
                "POST",
                "/api/v1/acts/run",
                "operator",
                self._act,
                "Pause, resume or finish the run.",
                body=RunAct,
                answer=RunActOutcome,
                act="run",
                about=lambda call: (call.body.act, call.body.reason),
                needs_run=True,
            ),
            Route(
                "POST",
                "/api/v1/acts/run/preview",
                "operator",
                self._preview,
                "Return what an act on the run would do; change nothing.",
                body=RunAct,
                answer=RunActOutcome,
                needs_run=True,
            ),
        ]

    async def _act(self, call: Call) -> Answer:
        outcome, order = self._outcome(call.body), self._order(call.body)
        if outcome.changes:
            await self._give(order)
        return outcome

    async def _preview(self, call: Call) -> Answer:
        return self._outcome(call.body)

    def _order(self, asked: RunAct) -> Order:
        match asked.act:
            case "pause":
                return RunPaused(asked.reason)
            case "resume":
                return RunResumed(asked.reason)
            case "finish":
                return RunFinishing(self._core.state.batches.next_step, asked.reason)

    def _outcome(self, asked: RunAct) -> RunActOutcome:
        state = self._core.state
        if state.settings.is_cell and asked.act == "finish":
            raise MalformedMessage("a cell has no run of its own to finish", fix="finish the head's run")
        if state.last_step is not None:
            return _nothing(f"The run is finishing already, after step {state.last_step}.")
        done, planned, flying = state.batches.next_step, state.settings.steps, state.book.live_count
        match asked.act:
            case "pause" if state.paused:
                return _nothing("The run is paused already.")
            case "pause":
                return RunActOutcome(
                    changes=True,
                    sentence="No more work is given out in this cell; the head's run goes on."
                    if state.settings.is_cell
                    else f"No more work is given out, and the learner waits {_after(done)}."
                    + (f" Rollouts in flight ({flying}) are finished and kept." if flying else ""),
                    warnings=self._cost(),
                )
            case "resume" if not state.paused:
                return _nothing("The run is not paused.")
            case "resume":
                goes_on = (
                    "This cell works again." if state.settings.is_cell else f"The run goes on with step {done + 1}."
                )
                return RunActOutcome(changes=True, sentence=goes_on, warnings=[])
            case "finish":
                held = flying + sum(len(group.fillings()) for group in state.book)
                dropped = f"; rollouts that no batch has ({held}) are dropped" if held else ""
                return RunActOutcome(
                    changes=True,
                    sentence=f"The learner finishes {_after(done)} of {planned}: it publishes its policy, saves a"
                    " checkpoint and evaluates, and the run ends.",
                    warnings=[f"This cannot be undone{dropped}."],
                )

    def _cost(self) -> list[str]:
        usd = self._usd_per_hour()
        return [f"Workers stay on for {usd:.4g} $/h; drain those that you pay for."] if usd else []


def _nothing(sentence: str) -> RunActOutcome:
    return RunActOutcome(changes=False, sentence=f"{sentence} Nothing changes.", warnings=[])


def _after(steps: int) -> str:
    return f"after step {steps}" if steps else "before the first step"
