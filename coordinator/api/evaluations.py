"""Serve evaluations by the peers to people: begin one, and return its state and scores."""

from __future__ import annotations

from pydantic import BaseModel, Field

from coordinator.core.events.evaluation_events import EvaluationKey
from coordinator.core.leases.evaluation_book import Evaluation
from coordinator.http.routes import Answer, Body, Call, Query, Route
from coordinator.shell.evaluations import Evaluations
from coordinator.shell.shell import Shell
from coordinator.tasks.evaluation_sets import HELD_OUT
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire import limits
from rollcast.wire.ids import Version

PROBLEMS_MAX = 1 << 16
SAMPLES_MAX = 1024  # of one problem
NAME_LENGTH_MAX = 64


class EvaluationWanted(Body):
    """What to evaluate: ``samples`` completions of each of a set's first ``problems``. No version: the newest."""

    set: str = Field(HELD_OUT, max_length=NAME_LENGTH_MAX)
    version: int | None = Field(None, ge=0, le=limits.COUNTER_MAX)
    problems: int = Field(512, ge=1, le=PROBLEMS_MAX)
    samples: int = Field(8, ge=1, le=SAMPLES_MAX)
    deadline_s: float = Field(1800.0, gt=0.0, le=limits.DURATION_S_MAX)


class EvaluationNamed(Query):
    """An evaluation that was begun."""

    set: str = Field(HELD_OUT, max_length=NAME_LENGTH_MAX)
    version: int = Field(ge=0, le=limits.COUNTER_MAX)
    problems: int = Field(ge=1, le=PROBLEMS_MAX)
    samples: int = Field(ge=1, le=SAMPLES_MAX)


class EvaluationState(BaseModel):
    """The state of an evaluation.

    Attributes:
        given_up: why it ended without scores; empty if it has them or is under way.
        scored: completions scored so far, of all ``completions``.
        exact: right completions of each problem, once it is done.
    """

    version: int
    ended: bool
    given_up: str
    scored: int
    completions: int
    exact: list[int]


class EvaluationRoutes:
    """Routes of evaluations.

    Args:
        seed: the seed of the noise, the same for all.
    """

    def __init__(self, shell: Shell, evaluations: Evaluations, seed: int) -> None:
        self._shell = shell
        self._evaluations = evaluations
        self._seed = seed

    def routes(self) -> list[Route]:
        """Return the routes, each with its path and the role that it requires."""
        return [
            Route(
                "POST",
                "/api/v1/acts/evaluation",
                "operator",
                self._begin,
                "Have the peers evaluate a version.",
                body=EvaluationWanted,
                answer=EvaluationState,
                act="evaluation",
                needs_run=True,
            ),
            Route(
                "GET",
                "/api/v1/evaluation",
                "viewer",
                self._state,
                "Return the state of an evaluation that was begun, and its scores.",
                query=EvaluationNamed,
                answer=EvaluationState,
            ),
        ]

    async def _begin(self, call: Call) -> Answer:
        wanted: EvaluationWanted = call.body
        version = self._shell.core.newest_version if wanted.version is None else wanted.version
        if version is None:
            raise MalformedMessage("no version is published yet", fix="wait for the first one")
        key = EvaluationKey(wanted.set, Version(version), wanted.problems, wanted.samples, self._seed)
        return _state_of(await self._evaluations.ask(key, wanted.deadline_s))

    async def _state(self, call: Call) -> Answer:
        named: EvaluationNamed = call.query
        key = EvaluationKey(named.set, Version(named.version), named.problems, named.samples, self._seed)
        found = self._shell.core.evaluation(key)
        if found is None:
            raise MalformedMessage(
                "this evaluation is not known",
                cause="it was not begun, ended long ago, or the coordinator restarted",
                fix="begin it again",
            )
        return _state_of(found)


def _state_of(found: Evaluation) -> EvaluationState:
    return EvaluationState(
        version=found.request.key.version,
        ended=found.ended_at is not None,
        given_up=found.given_up,
        scored=found.scored,
        completions=found.samples,
        exact=found.exact if found.done else [],
    )
