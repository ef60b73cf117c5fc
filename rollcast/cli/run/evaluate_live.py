"""Have the peers of a running run evaluate its newest version, for `rollcast eval`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import aiohttp

from learner.evaluation.pass_at_k import EvaluationResult, SetResult, estimate_pass_at_k
from rollcast.cli.coordinator_api import Target, fetch, post
from rollcast.runtime.errors import MalformedMessage, RunFolderError, RunOver, Unreachable

_POLL_S = 1.0

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class NotByPeers:
    """The peers did not evaluate; ``because`` is empty where no run is going on."""

    because: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to evaluate: completions of each of a set's first problems, within ``deadline_s`` seconds."""

    samples: int
    problems: int
    pass_at: Sequence[int]
    deadline_s: float


async def evaluate_live(
    target: Target, sets: Sequence[str], wanted: Wanted, progress: Progress, *, poll_s: float = _POLL_S
) -> EvaluationResult | NotByPeers:
    """Have the peers evaluate the newest version on every set, and return the results.

    Args:
        progress: called with the set's name, its completions scored so far, and its number of completions.

    Raises:
        RollcastError: the coordinator refuses.
    """
    began_s = time.monotonic()
    results: dict[str, SetResult] = {}
    version: int | None = None
    async with aiohttp.ClientSession() as session:
        for name in sets:
            try:
                state = await _ended(session, target, name, version, wanted, progress, poll_s)
            except (RunFolderError, RunOver, Unreachable) as error:
                return NotByPeers(error.what if results else "")
            if state["given_up"]:
                return NotByPeers(str(state["given_up"]))
            version = int(state["version"])
            results[name] = _result(state, wanted)
    return EvaluationResult(version or 0, results, time.monotonic() - began_s)


async def _ended(
    session: aiohttp.ClientSession,
    target: Target,
    name: str,
    version: int | None,
    wanted: Wanted,
    progress: Progress,
    poll_s: float,
) -> Mapping[str, Any]:
    """Begin the evaluation of one set, and return its state once it has ended."""
    shape = {"set": name, "problems": wanted.problems, "samples": wanted.samples}
    body = shape | {"deadline_s": wanted.deadline_s, "version": version}
    state: Mapping[str, Any] = await post(session, target, "/api/v1/acts/evaluation", body)
    path = f"/api/v1/evaluation?{urlencode(shape | {'version': state['version']})}"
    while not state["ended"]:
        progress(name, int(state["scored"]), int(state["completions"]))
        await asyncio.sleep(poll_s)
        state = await fetch(session, target, path)
    return state


def _result(state: Mapping[str, Any], wanted: Wanted) -> SetResult:
    correct = [int(one) for one in state["exact"]]
    if not correct or not all(0 <= one <= wanted.samples for one in correct):
        raise MalformedMessage("the coordinator sent impossible scores", fix="run the same release as the coordinator")
    estimates = {k: estimate_pass_at_k(wanted.samples, correct, k) for k in wanted.pass_at}
    return SetResult(len(correct), wanted.samples, estimates)
