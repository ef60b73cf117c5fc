"""Time a newcomer's path from a clean Python environment and an invite to the first accepted rollout.

A run without peers waits on this machine. The wheel of this checkout and the packages that it depends on are built and
downloaded first, which does not count. Then the clock runs over install, check and join, until the coordinator has
accepted a rollout.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from bench.machine import Outcome, alone
from rollcast.cli.files import load
from rollcast.cli.processes import Endpoints, Fleet
from rollcast.cli.up import new_run_folder
from rollcast.cli.up_config import UpConfig
from rollcast.runtime.errors import ProcessFailed, WaitTimedOut

ROOT = Path(__file__).parents[2]
PACKAGED = ("rollcast", "coordinator", "peer", "learner", "capacity", "pyproject.toml", "README.md", "LICENSE")
RUN_READY_TIMEOUT_S = 900.0  # includes the warm start of its policy
COMMAND_TIMEOUT_S = 1800.0
ROLLOUT_TIMEOUT_S = 600.0
_POLL_S = 0.5

#: A function that runs a command and returns its standard output.
Do = Callable[[Sequence[str]], str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, default=ROOT / "configs" / "local.toml", help="of the waiting run")
    parser.add_argument("--wheels", type=Path, help="folder with wheels of rollcast[peer]; default: make them")


def run(arguments: argparse.Namespace) -> Outcome:
    """Measure the seconds of each step of the path.

    Raises:
        ProcessFailed, WaitTimedOut: a step of the path failed.
    """
    with tempfile.TemporaryDirectory(prefix="rollcast-newcomer-") as name:
        folder = Path(name)
        (folder / "home").mkdir()
        do = commands_in(folder / "home")
        python = _clean_environment(folder, do)
        wheels = arguments.wheels or _wheels(folder, do)
        with alone():
            figures = asyncio.run(_measure(arguments.config, folder, python, wheels, do))
    return Outcome({"config": arguments.config.name, "extra": "peer"}, figures)


async def _measure(config: Path, folder: Path, python: Path, wheels: Path, do: Do) -> dict[str, float]:
    async with _waiting_run(config, folder) as invite:
        return await asyncio.to_thread(walk, path_of(python, wheels, invite), do, python)


def path_of(python: Path, wheels: Path, invite: str) -> dict[str, list[str]]:
    """Return step -> the command that a newcomer types; packages come from a folder rather than an index."""
    rollcast = str(python.with_name("rollcast"))
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-index", "--find-links", str(wheels)]
    return {
        "install": [*pip, "rollcast[peer]"],
        "check": [rollcast, "peer", "check", invite, "--json"],
        "join": [rollcast, "peer", "join", invite, "--name", "newcomer", "--json"],
    }


def walk(
    commands: Mapping[str, Sequence[str]], do: Do, python: Path, clock: Callable[[], float] = time.monotonic
) -> dict[str, float]:
    """Run the commands in order, then wait for the first accepted rollout; returns the seconds of each step.

    Raises:
        ProcessFailed: a command fails.
        WaitTimedOut: no rollout is accepted.
    """
    begun_s = before_s = clock()
    figures: dict[str, float] = {"commands": float(len(commands))}
    rollcast = str(python.with_name("rollcast"))
    try:
        for name, command in commands.items():
            print(f"{name} ...", file=sys.stderr)
            do(command)
            figures[f"{name}_s"], before_s = clock() - before_s, clock()
        while not accepted(do([rollcast, "peer", "status", "--json"])):
            if clock() - before_s > ROLLOUT_TIMEOUT_S:
                raise WaitTimedOut(f"no rollout was accepted within {ROLLOUT_TIMEOUT_S:g} s")
            time.sleep(_POLL_S)
        figures["first_rollout_s"] = clock() - before_s
    finally:
        if "join_s" in figures:
            do([rollcast, "peer", "leave", "--now", "--yes", "--json"])
    figures["seconds"] = sum(figures[f"{name}_s"] for name in (*commands, "first_rollout"))
    assert figures["seconds"] <= clock() - begun_s + 1.0
    return figures


def accepted(status: str) -> int:
    """Return how many rollouts of a machine were accepted, according to its status as JSON."""
    return int(json.loads(status)["total"].get("accepted", 0))


def commands_in(home: Path) -> Do:
    """Return a function that runs commands as a user with this home folder and nothing else installed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ROLLCAST", "XDG"))}
    environment = kept | {"HOME": str(home), "PYTHONNOUSERSITE": "1"}

    def do(command: Sequence[str]) -> str:
        try:
            done = subprocess.run(
                command, env=environment, cwd=home, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            raise WaitTimedOut(f"`{command[0]}` took longer than {COMMAND_TIMEOUT_S:g} s") from None
        if done.returncode != 0:
            words = " ".join(word[:40] for word in command)
            raise ProcessFailed(f"`{words}` ended with status {done.returncode}", cause=done.stderr[-2000:])
        return done.stdout

    return do


def _clean_environment(folder: Path, do: Do) -> Path:
    print("making a clean environment ...", file=sys.stderr)
    do([sys.executable, "-m", "venv", str(folder / "venv")])
    return folder / "venv" / "bin" / "python"


def _wheels(folder: Path, do: Do) -> Path:
    """Build this checkout's wheel outside of it and download its dependencies; returns the folder of wheels."""
    source, wheels = folder / "source", folder / "wheels"
    source.mkdir()
    for name in PACKAGED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(ROOT / name, source / name)
    print("building the wheel and downloading packages ...", file=sys.stderr)
    constraints = ["--constraint", str(ROOT / "constraints.txt")]
    do([sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", str(wheels), *constraints, f"{source}[peer]"])
    return wheels


@asynccontextmanager
async def _waiting_run(config: Path, folder: Path) -> AsyncIterator[str]:
    """Run a run without peers; yields its invite once the first version is published."""
    settings = [f'runs_folder="{folder}/runs"', "coordinator.serve.http_port=0", "coordinator.run.steps=100000"]
    parsed = load(config, "up", settings)
    assert isinstance(parsed, UpConfig)
    fleet = Fleet(parsed.model_copy(update={"peers": 0}), new_run_folder(parsed))
    fleet.prepare()
    try:
        print("starting a run without peers ...", file=sys.stderr)
        endpoints = await fleet.start(asyncio.Event())
        assert endpoints is not None
        await _published(fleet, endpoints)
        yield (fleet.folder.secrets / "invite-peer.txt").read_text().strip()
    finally:
        await fleet.stop()
        fleet.kill_all()


async def _published(fleet: Fleet, endpoints: Endpoints) -> None:
    begun_s = time.monotonic()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
        while time.monotonic() - begun_s < RUN_READY_TIMEOUT_S:
            fleet.check()
            async with session.get(f"{endpoints.http_url}/api/v1/status") as response:
                status: dict[str, Any] = await response.json()
            if status["newest_version"] is not None:
                return
            await asyncio.sleep(_POLL_S)
    raise WaitTimedOut(f"the run published no version within {RUN_READY_TIMEOUT_S:g} s")
