"""Test two real processes over gloo. This is slow on a busy machine; `python -m bench learner` has the figures."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, cast

import jax
import numpy as np
import pytest

from learner.config import DistributedConfig, LearnerConfig
from learner.distributed.leader import SHARED, Follower, _batch, _batch_order
from learner.distributed.processes import run_processes
from learner.distributed.team import Order, decode, encode
from learner.training.trainer import Trainer
from tests.learner.distributed.several import MODEL as SEVERAL
from tests.learner.tiny import CONFIG, MODEL, tiny_batch
from tests.policy.hub.hub_files import model_folder, random_params

pytestmark = pytest.mark.timeout(400)


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


@contextmanager
def started(folder: Path, address: str, *more: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Start both processes, and yield the leader first."""
    common = [
        sys.executable,
        "-m",
        "tests.learner.distributed.several",
        str(folder),
        "--mesh",
        "1,2,1",
        "--processes",
        "2",
    ]
    own = [
        subprocess.Popen(
            [*common, "--address", address, "--process-id", str(number), *more],
            env=os.environ | {"JAX_PLATFORMS": "cpu"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    try:
        yield own
    finally:
        for process in own:
            process.kill()
            process.communicate()


def alone(folder: Path, *more: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.learner.distributed.several", str(folder), "--mesh", "1,1,1", *more]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
    found: dict[str, Any] = json.loads(done.stdout)[0]
    return found


def pair(folder: Path, *more: str) -> dict[str, Any]:
    with started(folder, free_address(), *more) as (leader, follower):
        output, errors = leader.communicate(timeout=300)
        assert leader.returncode == 0, errors
        assert follower.wait(60) == 0
    found: dict[str, Any] = json.loads(output.splitlines()[-1])[0]  # gloo greets on the first line
    return found


async def test_one_process_lives_the_life_itself() -> None:
    made: list[Trainer] = []

    async def life(make_trainer: Any) -> int:
        made.append(make_trainer(MODEL))
        return 7

    assert await run_processes(CONFIG, asyncio.Event(), life) == 7
    assert type(made[0]) is Trainer


def test_an_order_has_the_shape_of_routes_and_not_their_values() -> None:
    batch = tiny_batch([1.0, 0.0, 0.0, 0.0])
    routes = np.ones((*batch.tokens.shape, 48, 8), np.uint8)
    for sent in (replace(batch, routes=routes, sequences_per_row=4), batch):
        order = decode(encode(_batch_order("score", sent)))
        assert len(encode(order)) < routes.nbytes
        received = _batch(order)
        np.testing.assert_array_equal(received.tokens, sent.tokens)
        assert received.sequences_per_row == sent.sequences_per_row
        if sent.routes is None:
            assert received.routes is None
        else:
            assert received.routes is not None
            assert (received.routes.shape, received.routes.dtype) == (routes.shape, routes.dtype)
            assert not received.routes.any()


@pytest.mark.usefixtures("restored_numerics")
def test_a_follower_compiles_what_the_leader_does() -> None:
    leads = CONFIG.model_copy(update={"packed_row_tokens": 64, "matmul_precision": "high"})
    shared = leads.model_dump(mode="json", include=set(SHARED))
    follower = Follower(CONFIG, cast(Any, None))
    trainer = follower._build({"model": MODEL.model_dump(mode="json"), "shared": shared})
    assert trainer._programs._forward.packed
    assert jax.config.jax_default_matmul_precision == "high"


def test_a_follower_traces_into_its_own_run_folder_and_trains_on_if_it_cannot(tmp_path: Path) -> None:
    class Tracer:
        calls: ClassVar[list[Any]] = []

        def begin_trace(self, folder: Path, *, python_tracer: bool) -> None:
            self.calls.append((folder, python_tracer))

        def end_trace(self) -> None:
            raise OSError("no space")

    follower = Follower(CONFIG.model_copy(update={"run_folder": tmp_path}), cast(Any, None))
    follower._carry_out(cast(Any, Tracer()), Order("begin_trace", text='["step-000007", true]'))
    follower._carry_out(cast(Any, Tracer()), Order("end_trace"))
    assert Tracer.calls == [(tmp_path / "profiles" / "step-000007", True)]


def test_settings_of_several_processes_must_be_complete() -> None:
    with pytest.raises(ValueError, match="set coordinator_address"):
        DistributedConfig(processes=2)
    two = {"processes": 2, "coordinator_address": "h:1"}
    with pytest.raises(ValueError, match=r"set checkpoint\.folder to a place that all of them see"):
        LearnerConfig.model_validate({"distributed": two})
    for shared in ({"checkpoint": {"folder": "gs://bucket/run"}}, {"distributed": two | {"shared_run_folder": True}}):
        LearnerConfig.model_validate({"distributed": two} | shared)
    with pytest.raises(ValueError, match="process_id 2 is not below processes = 2"):
        LearnerConfig.model_validate({"distributed": {"processes": 2, "process_id": 2, "coordinator_address": "h:1"}})


@pytest.mark.slow
def test_two_processes_are_as_one_and_checkpoints_go_both_ways(tmp_path: Path) -> None:
    two, one = pair(tmp_path / "two", "--shared", "--traced"), alone(tmp_path / "one")
    traces = tmp_path / "two" / "profiles" / "step-000001"
    assert sorted(path.name for path in traces.glob("process-*") if list(path.rglob("*.xplane.pb"))) == [
        "process-0",
        "process-1",
    ]
    for mine, theirs in zip(one["metrics"], two["metrics"], strict=True):
        assert theirs == pytest.approx(mine, abs=1e-5)
    further_two, further_one = pair(tmp_path / "one", "--resume"), alone(tmp_path / "two", "--resume")
    assert further_two["restored"] == one["digest"]
    assert further_one["restored"] == two["digest"]
    for mine, theirs in zip(further_one["metrics"], further_two["metrics"], strict=True):
        assert theirs == pytest.approx(mine, abs=1e-5)


@pytest.mark.slow
def test_two_processes_start_from_a_published_model_that_the_leader_has(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model", SEVERAL, random_params(SEVERAL))
    two, one = (run(tmp_path / name, "--init-from", str(folder)) for name, run in (("two", pair), ("one", alone)))
    fresh = alone(tmp_path / "fresh")
    for mine, theirs, other in zip(one["metrics"], two["metrics"], fresh["metrics"], strict=True):
        assert theirs == pytest.approx(mine, abs=1e-5)
        assert theirs["entropy"] != pytest.approx(other["entropy"], abs=1e-5)


@pytest.mark.slow
def test_two_processes_replay_the_routes_that_the_leader_has(tmp_path: Path) -> None:
    two, one = (run(tmp_path / name, "--experts") for name, run in (("two", pair), ("one", alone)))
    for mine, theirs in zip(one["metrics"], two["metrics"], strict=True):
        assert theirs == pytest.approx(mine, abs=1e-5)


@pytest.mark.slow
def test_two_processes_train_adapters_over_one_base(tmp_path: Path) -> None:
    two, one = (run(tmp_path / name, "--adapters") for name, run in (("two", pair), ("one", alone)))
    further = pair(tmp_path / "one", "--adapters", "--resume"), alone(tmp_path / "two", "--adapters", "--resume")
    assert [found["restored"] for found in further] == [one["digest"], two["digest"]]
    for mine, theirs in (*zip(one["metrics"], two["metrics"], strict=True), [found["metrics"][0] for found in further]):
        assert theirs == pytest.approx(mine, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_when_one_is_killed_the_other_ends_too(tmp_path: Path, victim: int) -> None:
    with started(tmp_path, free_address(), "--steps", "100000") as processes:
        other = processes[1 - victim]
        assert processes[0].stderr is not None
        while "step 2" not in (line := processes[0].stderr.readline()):
            assert line, "the leader ended early"
        processes[victim].send_signal(signal.SIGKILL)
        assert other.wait(60) not in (0, 130)
