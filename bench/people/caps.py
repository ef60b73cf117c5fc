"""Measure how well a peer keeps its owner's limits: the rates of its links against their caps, and a pause's quiet.

Caps: links over TLS on loopback, treated as links outside the LAN, push chunks for ``--seconds``; one end has a cap.
The kernel's count of bytes that reached the receiving sockets (TCP_INFO, tcpi_bytes_received) is divided by the time
since the links opened. ``error_up`` and ``error_down`` are the largest |rate / cap - 1| over the caps, each with two
links.

Pause: the main job runs with its real processes, and a peer gets the pause command while it generates.
``pause_quiet_s`` is the time after the command's answer until the peer is quiet: the start of the last second with more
than 1 % of a core or more bytes on its sockets than heartbeats need (0 if there was none). ``pause_cpu_share`` is the
processor time of all its threads from one second after the command on, as a share of one core; ``pause_link_bytes``
counts the bytes on its links to other peers after that second.
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
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds to measure each cap")
    parser.add_argument("--watched-s", type=float, default=10.0, help="seconds to watch the paused peer")
    parser.add_argument("--only", choices=("caps", "pause"), help="measure one of the two")
    parser.add_argument("--config", type=Path, default=Path("configs/local.toml"))


def run(arguments: argparse.Namespace) -> Outcome:
    """Measure caps and pause, or the one that ``--only`` names.

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
