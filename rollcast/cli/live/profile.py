"""`rollcast profile RUN`: have the learner trace its next steps, and print where the trace is."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiohttp
from rich.console import Console

from rollcast.cli.coordinator_api import Target, fetch, post
from rollcast.cli.durations import seconds_of
from rollcast.cli.options import LATEST_RUN, Json
from rollcast.runtime.errors import ConfigError, NotProfiled, RunFolderError, RunOver, Unreachable, WaitTimedOut
from rollcast.wire.limits import PROFILE_STEPS_MAX

_POLL_S = 1.0
_AWAY_S = 60.0  # seconds for which a coordinator may be away, because it restarts
_GRACE_S = 30.0  # seconds after the deadline within which the coordinator must have given the profile up

State = Mapping[str, Any]


def profile(
    run: Path = LATEST_RUN,
    /,
    *,
    steps: int = 3,
    deadline: str = "30m",
    python_tracer: bool = False,
    json_output: Json = False,
) -> int:
    """Trace the learner's next steps with jax.profiler while the run goes on, and print where the trace is.

    The trace lies on the learner's machine, in the folder `profiles` of its run folder. Training stops for the seconds
    that writing it takes.

    Parameters
    ----------
    run
        The coordinator's run folder.
    steps
        Number of steps, 1 to 20. Traces grow with it.
    deadline
        How long the steps may take, as 90s, 15m or 2h; then the profile is given up.
    python_tracer
        Trace every Python call too, which slows the steps down and makes the trace many times larger.
    json_output
        Print one JSON object.
    """
    if not 1 <= steps <= PROFILE_STEPS_MAX:
        raise ConfigError(f"--steps {steps} is out of range", fix=f"give 1 to {PROFILE_STEPS_MAX}")
    wanted = {"steps": steps, "python_tracer": python_tracer, "deadline_s": seconds_of(deadline)}
    with Console(stderr=True).status("waiting for the learner") as status:
        found = asyncio.run(traced(Target(run), wanted, lambda state: status.update(_progress(state))))
    if json_output:
        print(json.dumps(found))
    else:
        print(_described(found))
    return 0


async def traced(
    target: Target, wanted: Mapping[str, Any], progress: Callable[[State], None], *, poll_s: float = _POLL_S
) -> State:
    """Order a profile, and return its state once the trace is saved.

    Args:
        wanted: the body of the order: steps, python_tracer and deadline_s.
        progress: called with the profile's state from time to time.

    Raises:
        NotProfiled: the coordinator refuses it, or there is no whole trace at the end.
        WaitTimedOut: the profile has not ended long after its deadline.
        RollcastError: the coordinator cannot be reached.
    """
    ends_s = time.monotonic() + wanted["deadline_s"] + _GRACE_S
    async with aiohttp.ClientSession() as session:
        state: State = await post(session, target, "/api/v1/acts/profile", wanted)
        path = f"/api/v1/profile?{urlencode({'profile_id': state['profile_id']})}"
        while state["stage"] in ("ordered", "running"):
            progress(state)
            await asyncio.sleep(poll_s)
            state = await _state(session, target, path, poll_s)
            if time.monotonic() > ends_s:
                raise WaitTimedOut("waited for the profile until after its deadline", fix="see the coordinator's log")
    if state["stage"] == "failed":
        raise NotProfiled("there is no whole trace", cause=state["failure"], fix=_remedy(state))
    return state


async def _state(session: aiohttp.ClientSession, target: Target, path: str, poll_s: float) -> State:
    """Return the profile's state; a coordinator that is away may be restarting."""
    ends_s = time.monotonic() + _AWAY_S
    while True:
        try:
            return await fetch(session, target, path)
        except (Unreachable, RunOver, RunFolderError):
            if time.monotonic() > ends_s:
                raise
            await asyncio.sleep(poll_s)


def _progress(state: State) -> str:
    if state["stage"] == "ordered":
        return "waiting for the learner to begin a step"
    return f"tracing from step {state['first_step']}: {state['steps_done']} of {state['steps']} steps"


def _described(state: State) -> str:
    first, last, folder = state["first_step"], state["first_step"] + state["steps_done"] - 1, state["folder"]
    steps = f"step {first}" if first == last else f"steps {first} to {last}"
    return "\n".join(
        (
            f"trace of {steps}, {state['size_bytes'] / 1e6:.1f} MB, on the learner's machine: {folder}",
            f"to look at it: pip install xprof && xprof --logdir {folder}    (or tensorboard --logdir {folder})",
            f"or open {folder}/process-0/plugins/profile/*/perfetto_trace.json.gz in https://ui.perfetto.dev",
        )
    )


def _remedy(state: State) -> str:
    kept = f"; anything that was written is in {state['folder']}" if state["folder"] else ""
    return f"order it again, with a longer --deadline if steps are long{kept}"
