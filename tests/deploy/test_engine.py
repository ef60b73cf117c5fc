"""Test that a real container engine builds the images, and that the compose file's run survives `down` and `up`."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
COMPOSE = shlex.split(os.environ.get("ROLLCAST_COMPOSE", "docker compose"))
PROJECT = f"rollcast-test-{os.getpid()}"
STEPS = 40  # enough that some are left after `down`


def compose(folder: Path, *words: str, deadline_s: float = 120.0) -> subprocess.CompletedProcess[str]:
    """Run a compose command on the file in ``folder``, in a project of this test's own."""
    files = ["-f", str(folder / "compose.yaml")]
    if words[0] == "build":
        files += ["-f", str(folder / "compose.build.yaml")]
    command = [*COMPOSE, "-p", PROJECT, *files, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=deadline_s)


def succeed(ran: subprocess.CompletedProcess[str]) -> str:
    assert ran.returncode == 0, f"{shlex.join(ran.args)}: {ran.stdout[-2000:]}{ran.stderr[-4000:]}"
    return ran.stdout


def ours() -> list[str]:
    """Return the services whose images this project builds; the others' come from a registry."""
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    return [name for name, service in services.items() if service["image"].startswith("rollcast-")]


def summary(folder: Path) -> dict[str, Any]:
    """Return the run's summary; empty before the run has written one."""
    shown = compose(folder, "exec", "-T", "coordinator", "cat", "/state/run/summary.json")
    found: dict[str, Any] = json.loads(shown.stdout) if shown.returncode == 0 else {}
    return found


def steps_done(folder: Path) -> int:
    """Return how many steps the learner has reported."""
    shown = compose(folder, "exec", "-T", "coordinator", "cat", "/state/run/metrics.jsonl")
    return len(shown.stdout.splitlines()) if shown.returncode == 0 else 0


def until(done: Callable[[], bool], folder: Path, timeout_s: float = 900.0) -> None:
    ends_at = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < ends_at, compose(folder, "logs", "--tail", "20").stdout[-6000:]
        time.sleep(2.0)


@pytest.fixture
def stack(tmp_path: Path) -> Any:
    """Give a folder as it is in a release, whose run is short; remove its containers and volumes at the end."""
    if shutil.which(COMPOSE[0]) is None or compose(DEPLOY, "ps").returncode != 0:
        pytest.skip(f"no containers were run: {shlex.join(COMPOSE)} reaches no engine")
    folder = tmp_path / "deploy"
    shutil.copytree(DEPLOY, folder, ignore=shutil.ignore_patterns("helm"))
    coordinator, learner = (folder / "compose" / f"{role}.toml" for role in ("coordinator", "learner"))
    coordinator.write_text(coordinator.read_text().replace("steps = 200", f"steps = {STEPS}"))
    learner.write_text(learner.read_text() + "\n[warm_start]\nsteps_max = 20\n")
    try:
        yield folder
    finally:
        compose(folder, "down", "--volumes", "--timeout", "10")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_images_are_built_and_a_run_goes_on_after_down_and_up(stack: Path) -> None:
    succeed(compose(DEPLOY, "build", deadline_s=1800.0))
    succeed(compose(stack, "up", "-d", *ours(), deadline_s=300.0))
    until(lambda: steps_done(stack) >= 1, stack)  # so that `down` interrupts a run that trains
    succeed(compose(stack, "down", "--timeout", "60", deadline_s=180.0))
    succeed(
        compose(stack, "up", "-d", *ours(), deadline_s=300.0)
    )  # with the keys and read-only files of the first time
    link = succeed(compose(stack, "exec", "-T", "coordinator", "rollcast", "dashboard", "/state/run"))
    assert link.startswith("https://127.0.0.1:7401/#token=")
    until(lambda: summary(stack).get("phase") == "finished", stack)
    found = summary(stack)
    assert found["step"] == STEPS
    assert found["rollouts"]["trained"] > 0
    assert found["peer_byte_share"] > 0
