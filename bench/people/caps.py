"""Measure how well a peer keeps its owner's limits: the rates of its links against their caps, and a pause's quiet.

Caps: links over TLS on loopback, taken for links to elsewhere, push chunks for ``--seconds``; one end has a cap. The
kernel's own count of what reached the receiving sockets (TCP_INFO, tcpi_bytes_received) is divided by the time from the
links' opening. ``error_up`` and ``error_down`` are the largest |rate / cap - 1| over the caps, each with two links.

Pause: the main job with its real processes; a peer in the middle of its rollouts is told to pause. ``pause_quiet_s`` is
when the last second began that had more than 1 % of a core or more bytes than heartbeats on the peer's sockets (0: none
did after the command's answer); ``pause_cpu_share`` is the processor time of all its threads from one second after the
command on, as a share of one core; ``pause_link_bytes`` is what its links to other peers moved after that second.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path

from bench import runs
from bench.machine import Outcome
from bench.people.capped_links import Capped, errors
from bench.people.pause import PauseStory
from rollcast.runtime.errors import ProcessFailed

_CAPS_MBIT_S = (1.0, 8.0, 80.0)
_SETTINGS = (
    "peers=2",
    "learner.warm_start.steps_max=0",
    "learner.warm_start.flawed_steps=0",
    "learner.evaluation_problems=16",
    "start_timeout_s=300",
    "stop_timeout_s=60",
)
_STEPS = 60
_STEP_PAUSED = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=60.0, help="that each cap is measured for")
    parser.add_argument("--watched-s", type=float, default=10.0, help="that a paused peer is watched for")
    parser.add_argument("--only", choices=("caps", "pause"), help="measure one of the two")
    parser.add_argument("--config", type=Path, default=Path("configs/local.toml"))


def run(arguments: argparse.Namespace) -> Outcome:
    """Measure both.

    Raises:
        ProcessFailed: the run ended before its peer could be paused.
        RollcastError: see bench.runs.run.
    """
    figures: dict[str, float] = {}
    if arguments.only != "pause":
        cases = [Capped(way, cap) for way in ("upload", "download") for cap in _CAPS_MBIT_S]
        figures |= asyncio.run(errors(cases, arguments.seconds))
    if arguments.only != "caps":
        story = PauseStory(at_step=_STEP_PAUSED, watched_s=arguments.watched_s)
        with tempfile.TemporaryDirectory(prefix="rollcast-caps-") as folder:
            runs.run(arguments.config, Path(folder), [*_SETTINGS, f"coordinator.run.steps={_STEPS}"], story)
        if story.figures is None:
            raise ProcessFailed("the run was over before its peer could be paused", fix="look at its log")
        figures |= story.figures
    return Outcome({"seconds": arguments.seconds, "caps_mbit_s": list(_CAPS_MBIT_S)}, figures)
