from __future__ import annotations

import asyncio
import hashlib
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learner.config import LearnerConfig
from learner.evaluation.export import export
from learner.evaluation.offline import load_policy
from learner.publishing.versions import RetainedVersions
from learner.service import run
from rollcast.policy.config import ModelConfig, described_model
from rollcast.policy.hub.load import load_params
from rollcast.policy.lora import adapter_specs, is_adapter
from rollcast.policy.norm_noise import norm_noise
from rollcast.policy.params import Params
from rollcast.policy.products.quantise import WEIGHT_BLOCK, Quantised, dequantise
from rollcast.policy.snapshot import freeze
from rollcast.runtime.errors import CheckpointError, MalformedMessage, NotFinite, TaskError, WaitTimedOut, WrongKey
from rollcast.runtime.process import EXIT_INTERRUPTED
from rollcast.wire.identity.identity import Identity
from rollcast.wire.ids import Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.routes import RouteShape
from rollcast.wire.versions.records import BaseRef
from tests.learner.dropping_coordinator import DroppingCoordinator
from tests.learner.scripted_door import ScriptedDoor
from tests.learner.scripted_run import LOOPBACK, Script, World

SHORT_LIFE_S = 3.0  # seconds of a certificate's life; enough to open the session


SMALL = {
    "layers": 1,
    "width": 16,
    "query_heads": 2,
    "key_value_heads": 1,
    "head_size": 8,
    "feed_forward_width": 16,
}

#: A warm start of a few steps. Most tests have none: compiling its step takes longer than all else that they do.
WARM_START = {
    "batch_size": 8,
    "examples": 32,
    "accuracy_gate": 1.0,
    "steps_max": 2,
    "check_every_steps": 2,
    "flawed_steps": 1,
}


def config(world: World, **changes: Any) -> LearnerConfig:
    world.learner_credentials.save(world.run_folder / "secrets" / "learner")
    values: dict[str, Any] = {
        "seed": 5,
        "model": SMALL,
        "warm_start": {"steps_max": 0, "flawed_steps": 0},
        "checkpoint": {"every_steps": 2, "keep": 2},
        "publish": {"chunk_size_bytes": 4096, "keep_versions": 2, "timeout_s": 10.0},
        "identity_file": world.authority.learner_file,
        "invite": world.authority.invite(f"{LOOPBACK}:{world.grpc_port}"),
        "run_folder": world.run_folder,
        "join_timeout_s": 10.0,
        "reconnect_timeout_s": 20.0,
        "batch_timeout_s": 30.0,
        "audit": {"enabled": False},  # tokens of a script are not sampled from seeds
    }
    return LearnerConfig.model_validate(values | changes)


@asynccontextmanager
async def running(settings: LearnerConfig, stop: asyncio.Event) -> AsyncIterator[asyncio.Task[int]]:
    task = asyncio.create_task(run(settings, stop))
    try:
        yield task
    finally:
        stop.set()
        await asyncio.wait({task})
        task.result()  # its error is clearer than a condition that never came true


async def test_a_run_from_the_first_step_to_the_last(world: World, script: Script) -> None:
    assert await run(config(world, warm_start=WARM_START), asyncio.Event()) == 0
    coordinator = world.coordinator
    assert coordinator.announced == world.origin.held == [0, 1, 2, 3, 4]
    assert [report.step for report in coordinator.step_reports] == [1, 2, 3, 4]
    assert coordinator.served == [(step, False) for step in range(4)]
    assert coordinator.phases[-1] == "finished"
    order = ["starting", "warm_start", "evaluating", "publishing", "training", "waiting", "evaluating", "finished"]
    assert set(coordinator.phases) <= set(order)
    for name in ("reward_before", "reward_after", "warm_start_s", "evaluation_s"):
        assert coordinator.figure(name) >= 0.0


async def test_peers_evaluate_before_rl_at_intervals_and_after_rl(world: World, script: Script) -> None:
    script.evaluated_by_peers = True
    assert await run(config(world, evaluation={"every_steps": 2, "samples": 2, "pass_at": [1]}), asyncio.Event()) == 0
    asked = [(one.version, one.samples) for one in world.coordinator.evaluations]
    assert sorted(asked) == [(0, 1), (2, 2), (4, 1), (4, 2)]
    assert {one.set for one in world.coordinator.evaluations} == {"held_out"}
    for when in ("before", "after"):
        assert (world.coordinator.figure(f"exact_{when}"), world.coordinator.figure(f"reward_{when}")) == (1.0, 0.25)
    assert world.coordinator.figure("eval_held_out_pass_at_1") == 0.5


async def test_every_step_reports_all_its_figures_and_is_traced_when_ordered(world: World, script: Script) -> None:
    script.steps, script.profile = 2, pb.ProfileOrder(profile_id="a", steps=1)
    script.batch_gate = asyncio.Event()
    async with running(config(world), asyncio.Event()) as task:
        await world.coordinator.until(lambda: any(one.profile.profile_id == "a" for one in world.coordinator.statuses))
        script.batch_gate.set()  # the coordinator has the learner's report on the order
        assert await task == 0
    check_trace(world)
    for report in world.coordinator.step_reports:
        expected = {"loss", "reward_mean", "grad_norm", "ratio_mean", "clip_fraction", "kl_k3", "entropy", "tokens"}
        expected |= {
            "train_s",
            "behaviour_s",
            "compile_s",
            "wait_s",
            "publish_s",
            "checkpoint_s",
            "other_s",
            "step_s",
            "version",
        }
        assert expected <= set(report.values)
        assert report.values["tokens"] == 12.0
        assert report.values["version"] == report.step
    # Version 0 generated the first batch, and nothing has been learnt since: the ratio is exactly one.
    assert world.coordinator.step_reports[0].values["ratio_mean"] == pytest.approx(1.0, abs=1e-6)


def check_trace(world: World) -> None:
    """Check that one step was traced, that its files are there, and that the coordinator was told."""
    report = world.coordinator.statuses[-1].profile
    assert (report.ended, report.failure, report.steps_done) == (True, "", 1)
    folder = world.run_folder.absolute() / "profiles" / f"step-{report.first_step:06d}"
    assert report.folder == str(folder)
    found = {path.name for path in folder.glob("process-0/plugins/profile/*/*")}
    assert "perfetto_trace.json.gz" in found
    assert any(name.endswith(".xplane.pb") for name in found)
    assert 0 < report.size_bytes < 10e6


async def test_routes_of_rollouts_are_replayed(world: World, script: Script) -> None:
    script.steps, script.routes = 1, RouteShape(layers=1, experts=4, experts_per_token=2)
    settings = config(world)
    experts = {"experts": 4, "experts_per_token": 2, "expert_width": 8}
    settings = settings.model_copy(update={"model": settings.model.model_copy(update=experts)})
    assert await run(settings, asyncio.Event()) == 0
    (report,) = world.coordinator.step_reports
    assert report.values["routes_share"] == 1.0
    assert report.values["updates_skipped"] == 0.0


async def test_kappa_and_older_versions(world: World, script: Script) -> None:
    script.steps, script.publish_every_steps, script.staleness_limit = 5, 2, 3
    script.newest_usable_version = lambda step: max(0, (step - 2) // 2 * 2)
    await run(config(world), asyncio.Event())
    assert world.coordinator.announced == [0, 2, 4, 5]


async def test_a_raised_s_keeps_versions_for_longer(world: World, script: Script) -> None:
    """Batches are of version 0 throughout, which the S of the start would have removed and rejected at step 2."""
    script.staleness_limit, script.raised_limit = 1, lambda step: 3 if step else 0
    script.newest_usable_version = lambda step: 0
    publish = {"chunk_size_bytes": 4096, "keep_versions": 2, "squash_versions": 0, "timeout_s": 10.0}
    assert await run(config(world, publish=publish, checkpoint={"every_steps": 9}), asyncio.Event()) == 0
    assert [report.step for report in world.coordinator.step_reports] == [1, 2, 3, 4]


def saved_steps(world: World) -> list[int]:
    """Return the steps of the checkpoints on the disk."""
    return sorted(int(path.stem) for path in (world.run_folder / "checkpoints").glob("*.json"))


def content(folder: Path) -> str:
    digest = hashlib.sha256()
    retained = RetainedVersions(folder, mapped=0)
    for version in retained.versions():
        digest.update(b"%d" % version + retained.base(version)[1])
    return digest.hexdigest()


async def test_a_stopped_learner_continues_to_the_same_versions(world: World, script: Script) -> None:
    script.steps = 6
    stop = asyncio.Event()
    async with running(config(world, checkpoint={"every_steps": 4, "keep": 2}), stop) as learner:
        await world.coordinator.until(lambda: len(world.coordinator.step_reports) >= 3)
        stop.set()
        async with asyncio.timeout(10.0):
            assert await learner == EXIT_INTERRUPTED
    stopped_at = len(world.coordinator.step_reports)
    assert 3 <= stopped_at < 6
    assert await run(config(world), asyncio.Event()) == 0
    assert [report.step for report in world.coordinator.step_reports] == [1, 2, 3, 4, 5, 6]
    assert sorted(set(world.coordinator.announced)) == [0, 1, 2, 3, 4, 5, 6]


async def test_long_training_is_saved_before_so_many_steps_are_done(world: World, script: Script) -> None:
    script.steps = 3
    await run(config(world, checkpoint={"every_steps": 1000, "every_s": 1e-6, "keep": 9}), asyncio.Event())
    assert saved_steps(world) == [0, 1, 2, 3]


async def test_short_training_is_saved_by_steps_and_at_the_end(world: World, script: Script) -> None:
    script.steps = 3
    await run(config(world, checkpoint={"every_steps": 2, "every_s": 3600.0, "keep": 9}), asyncio.Event())
    assert saved_steps(world) == [0, 2, 3]


async def test_a_killed_learner_replays_to_the_same_bits(world: World, script: Script) -> None:
    """The first life is lost after step 5; the newest checkpoint is of step 4 (or earlier)."""
    script.steps = 6
    first = asyncio.create_task(run(config(world, warm_start=WARM_START), asyncio.Event()))
    await world.coordinator.until(lambda: any(report.step == 5 for report in world.coordinator.step_reports))
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    announced_before = list(world.coordinator.announced)
    recorded = len(world.coordinator.batches)

    assert await run(config(world, warm_start=WARM_START), asyncio.Event()) == 0
    replayed = [step for step, was_replayed in world.coordinator.served if was_replayed]
    assert replayed
    assert all(step < recorded for step in replayed)
    # Nothing that was announced is announced again: the same bits came out, else a version would be refused.
    again = world.coordinator.announced[len(announced_before) :]
    assert min(again) > max(announced_before)
    assert sorted(announced_before + again) == [0, 1, 2, 3, 4, 5, 6]


async def test_a_learner_of_a_restored_run_announces_nothing_of_the_epoch_that_is_over(
    world: World, script: Script
) -> None:
    """The backup held batches to step 4 and versions to 2; the run goes on with an epoch that begins after step 4."""
    script.steps, script.newest_usable_version = 4, lambda step: min(step, 2) if step < 9 else step
    assert await run(config(world, checkpoint={"every_steps": 100}), asyncio.Event()) == 0
    coordinator, folder = world.coordinator, world.run_folder
    shutil.rmtree(folder / "checkpoints")
    for version in (3, 4):
        coordinator.announcements.pop(version)
        for path in (folder / "versions").glob(f"*{version}.*"):
            path.unlink()
    start = pb.EpochStart(epoch=1, step_from=4, step=9)
    coordinator.epochs.append((pb.EpochRequest(step=4), start))
    coordinator.batches.update({empty: [] for empty in range(4, 9)})
    script.steps, coordinator.announced = 10, []
    assert await run(config(world), asyncio.Event()) == 0
    assert coordinator.announced == [9, 10]
    assert [coordinator.announcements[version].record.epoch for version in (9, 10)] == [1, 1]


async def test_a_killed_learner_of_adapters_replays_to_the_same_bits(world: World, script: Script) -> None:
    script.steps, script.evaluated_by_peers = 5, True
    script.newest_usable_version = lambda step: max(0, step - 1)  # batches of older versions, of the base too
    noise = {"noise_start": 0.05, "noise_end": 0.01, "noise_stages": 3, "noise_steps": 5}
    settings = config(world, lora={"rank": 2, "alpha": 4.0, **noise}, model={**SMALL, "precision": "fp8"})
    first = asyncio.create_task(run(settings, asyncio.Event()))
    await world.coordinator.until(lambda: any(report.step == 4 for report in world.coordinator.step_reports))
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    announced_before = list(world.coordinator.announced)
    assert await run(settings, asyncio.Event()) == 0
    assert world.coordinator.announced == list(range(6)), "other bits would have opened an epoch"
    assert world.coordinator.announced[: len(announced_before)] == announced_before
    base, *others = [world.coordinator.announcements[version].record for version in range(6)]
    assert base.base is None
    assert {one.base for one in others} == {BaseRef(Version(0), base.state_hash)}
    assert {one.tensors for one in others} == {adapter_specs(described_model(base))}
    assert base.model_json == others[0].model_json
    host, params = load_policy(world.run_folder)
    assert host.base_hash == base.state_hash.hex()
    assert {spec.name for spec in (*base.tensors, *others[0].tensors)} == set(params)
    model = described_model(base)
    published = only_adapters(params) | with_noise(model, params, norm_noise(model, settings.seed, 5))
    assert world.origin.versions[5].state == freeze(model, published).state_bytes
    check_exports(world, model, params)
    with pytest.raises(CheckpointError, match="was started with adapters"):
        await run(config(world, model={**SMALL, "precision": "fp8"}), asyncio.Event())


def check_exports(world: World, model: ModelConfig, params: Params) -> None:
    """Check that adapters are exported merged into the numbers of the base's codes, or alone, and without noise."""
    out = world.run_folder / "out"
    exported = [
        export(world.run_folder, out / name, version=at, dtype="float32") for name, at in (("a", None), ("b", 5))
    ]
    name = "layers.0.attention.output.kernel"
    a, b = (np.asarray(params[f"layers.0.attention.output.lora_{end}"]) for end in "ab")
    codes = dequantise(Quantised(params[name], params[f"{name}_scale"]), WEIGHT_BLOCK)
    for done in exported:
        found, scale = load_params(model, done.folder), "layers.0.attention_norm.scale"
        np.testing.assert_allclose(found[name], codes + 2.0 * a @ b, atol=1e-6)
        np.testing.assert_array_equal(found[scale], params[scale])
    export(world.run_folder, out / "c", adapter=True)
    assert sorted(path.name for path in (out / "c").iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]


def with_noise(model: ModelConfig, params: Params, noise: Params) -> Params:
    """Return the scales of single layers with noise [layers, width]."""
    return {
        name: params[name] + rows[layer]
        for stack, rows in noise.items()
        for layer in range(model.layers)
        for name in [stack.replace("layers.", f"layers.{layer}.")]
    }


def only_adapters(params: Params) -> Params:
    return {name: value for name, value in params.items() if is_adapter(name)}


async def test_a_coordinator_that_restarts_is_waited_for(world: World, script: Script) -> None:
    script.steps = 4
    async with running(config(world), asyncio.Event()) as learner:
        await world.coordinator.until(lambda: len(world.coordinator.step_reports) >= 2)
        await world.coordinator.stop()
        await world.coordinator.start(world.grpc_port)
        assert await learner == 0
    assert world.coordinator.announced[-1] == 4


async def test_reported_log_probabilities_are_trained_on_and_audited(world: World, script: Script) -> None:
    script.steps, script.newest_usable_version = 3, lambda step: max(0, step - 1)
    assert await run(config(world, behaviour="reported", audited_rollouts=2), asyncio.Event()) == 0
    on_policy, *older = (report.values for report in world.coordinator.step_reports)
    assert on_policy["mismatch_compared_share"] == 1.0, "the training pass scores the current policy's tokens"
    for values in older:
        assert values["mismatch_reported_share"] == 1.0
        assert values["mismatch_compared_share"] == 0.5
        assert values["mismatch_peers_alarming"] == 1.0
        assert values["ratio_mean"] > 1e6, "the reports, each kept at -20 nats, enter the loss"


async def test_random_tokens_are_left_out_of_every_step_and_reported(world: World, script: Script) -> None:
    script.steps, script.newest_usable_version = 3, lambda step: max(0, step - 1)
    assert await run(config(world, audit={}), asyncio.Event()) == 0
    for report in world.coordinator.step_reports:
        assert report.values["audit_judged_share"] == 1.0
        assert report.values["audit_left_out"] == len(report.audits) == 4.0
        assert all(one.beyond for one in report.audits)
    assert len({world.origin.versions[version].state for version in range(4)}) == 1, "nothing was learnt"


def far_too_good(step: int, rollouts: list[pb.TrainingRollout]) -> None:
    """Give the second batch rewards with which the norm of its gradients overflows float32."""
    if step == 1:
        for number, rollout in enumerate(rollouts):
            rollout.reward = 3e38 * (number % 2)


async def test_an_update_that_is_not_finite_is_skipped_and_reported(world: World, script: Script) -> None:
    script.steps, script.spoil = 3, far_too_good
    assert await run(config(world, objective={"algorithm": "dr-grpo"}), asyncio.Event()) == 0
    skipped = [report.values["updates_skipped"] for report in world.coordinator.step_reports]
    assert skipped == [0.0, 1.0, 0.0]
    assert world.coordinator.figure("updates_skipped_total") == 1.0
    assert world.coordinator.figure("updates_skipped_at_step") == 2.0
    states = [world.origin.versions[version].state for version in range(4)]
    assert states[1] == states[2]
    assert states[2] != states[3]
    assert [path.name for path in (world.run_folder / "skipped_updates").iterdir()] == ["step-00000002.json"]


async def test_three_skipped_steps_in_a_row_end_the_run(world: World, script: Script) -> None:
    script.steps, script.spoil = 6, lambda step, rollouts: far_too_good(1, rollouts)
    with pytest.raises(NotFinite, match="3 steps in a row"):
        await run(config(world, objective={"algorithm": "dr-grpo"}), asyncio.Event())
    assert len(list((world.run_folder / "skipped_updates").iterdir())) == 3
    assert len(world.coordinator.step_reports) == 2


def too_old(step: int, rollouts: list[pb.TrainingRollout]) -> None:
    if step == 3:
        rollouts[0].segments[0].version = 0


def twice(step: int, rollouts: list[pb.TrainingRollout]) -> None:
    if step == 1:
        rollouts[0].rollout_id = 1  # of step 0


@pytest.mark.parametrize(("spoil", "problem"), [(too_old, "age 3"), (twice, "trained on before")])
async def test_a_batch_that_breaks_the_rules_stops_the_learner(
    world: World, script: Script, spoil: Any, problem: str
) -> None:
    script.spoil = spoil
    with pytest.raises(MalformedMessage) as caught:
        await run(config(world), asyncio.Event())
    assert problem in caught.value.cause


async def test_waiting_for_a_batch_times_out_and_names_the_reason(world: World, script: Script) -> None:
    script.batch_gate = asyncio.Event()
    with pytest.raises(WaitTimedOut, match="batch of step 1") as caught:
        await run(config(world, batch_timeout_s=1.0), asyncio.Event())
    assert "rollouts of a script" in caught.value.cause
    assert "waiting" in world.coordinator.phases


async def test_an_operator_may_pause_and_end_the_run(world: World, script: Script) -> None:
    """The wait of a pause is not held against the run; the step before the end is the last, with its own version."""
    script.batch_gate, script.paused, script.final_from, script.kappa = asyncio.Event(), True, 2, lambda step: 3
    async with running(config(world, batch_timeout_s=0.5), asyncio.Event()) as learner:
        await world.coordinator.until(lambda: "waiting" in world.coordinator.phases)
        await asyncio.sleep(1.0)
        script.paused = False
        script.batch_gate.set()
        assert await learner == 0
    assert [report.step for report in world.coordinator.step_reports] == [1, 2]
    assert world.coordinator.announced == [0, 2], "the policy of the last step is published although kappa is 3"
    assert world.coordinator.phases[-1] == "finished"
    assert (world.run_folder / "checkpoints" / "2.json").exists()


async def test_stop_while_waiting_is_quick_and_keeps_the_state(world: World, script: Script) -> None:
    script.batch_gate = asyncio.Event()
    stop = asyncio.Event()
    async with running(config(world), stop) as learner:
        await world.coordinator.until(lambda: "waiting" in world.coordinator.phases)
        stop.set()
        async with asyncio.timeout(5.0):
            assert await learner == EXIT_INTERRUPTED
    assert (world.run_folder / "checkpoints" / "0.json").exists()


async def test_stop_in_the_warm_start_is_an_interruption(world: World) -> None:
    stop = asyncio.Event()
    long = {"batch_size": 8, "examples": 32, "accuracy_gate": 1.0, "steps_max": 100_000, "flawed_steps": 0}
    async with running(config(world, warm_start=long), stop) as learner:
        await world.coordinator.until(lambda: "warm_start" in world.coordinator.phases)
        stop.set()
        async with asyncio.timeout(20.0):
            assert await learner == EXIT_INTERRUPTED


async def test_expired_certificates_are_renewed_when_connections_break(world: World, script: Script) -> None:
    """The first certificate has expired when both links break and the coordinator returns."""
    script.batch_gate = asyncio.Event()
    grpc_address = f"{LOOPBACK}:{world.grpc_port}"
    async with ScriptedDoor(world.authority, grpc_address, [SHORT_LIFE_S]).open() as door:
        settings = config(world, invite=world.authority.invite(grpc_address, door.url))
        (world.run_folder / "secrets" / "learner" / "credentials.pem").unlink()
        async with running(settings, asyncio.Event()) as learner:
            await world.coordinator.until(lambda: bool(world.coordinator.announced))
            links_before = world.origin.links
            await asyncio.sleep(max(0.0, door.issued[0].valid_for_s + 1.0))  # until it has expired
            await world.coordinator.stop()
            await world.origin.stop()
            world.coordinator.origin_address = await world.origin.start()
            await world.coordinator.start(world.grpc_port)
            script.batch_gate.set()
            assert await learner == 0
    assert len(door.issued) == 2  # the second is good for an hour
    assert world.origin.links > links_before
    assert world.coordinator.announced[-1] == 4


async def test_a_task_without_demonstrations_ends_the_learner_with_the_coordinators_words(
    world: World, script: Script
) -> None:
    script.examples_error = TaskError("no demonstrations", fix="set learner.warm_start.steps_max=0")
    with pytest.raises(TaskError, match="no demonstrations") as caught:
        await run(config(world, warm_start=WARM_START), asyncio.Event())
    assert caught.value.fix == script.examples_error.fix
    script.steps = 1
    assert await run(config(world), asyncio.Event()) == 0


async def test_a_missing_identity_is_reported_with_the_command_to_create_one(world: World, tmp_path: Path) -> None:
    with pytest.raises(WrongKey, match="cannot read the identity") as caught:
        await run(config(world, identity_file=tmp_path / "none.key"), asyncio.Event())
    assert "rollcast identity" in caught.value.fix


async def test_another_key_than_the_runs_is_refused(world: World, tmp_path: Path) -> None:
    Identity.load_or_create(tmp_path / "other.key")
    with pytest.raises(WrongKey, match="another key than ours"):
        await run(config(world, identity_file=tmp_path / "other.key"), asyncio.Event())


async def test_a_checkpoint_of_another_model_is_refused(world: World, script: Script) -> None:
    script.steps = 1
    await run(config(world), asyncio.Event())
    other = config(world).model.model_copy(update={"layers": 2})
    with pytest.raises(CheckpointError, match="model or tokenizer"):
        await run(config(world, model=other), asyncio.Event())


async def test_the_figures_of_a_life_and_of_its_steps_add_up(world: World, script: Script) -> None:
    began_s = time.monotonic()
    await run(config(world), asyncio.Event())
    took_s = time.monotonic() - began_s
    values = dict(world.coordinator.statuses[-1].values)
    parts = {name: value for name, value in values.items() if name.startswith("life_") and name.endswith("_s")}
    del parts["life_s"], parts["life_began_unix_s"]
    assert sum(parts.values()) == pytest.approx(values["life_s"])
    assert 0.95 * took_s - 0.5 <= values["life_s"] <= took_s
    assert parts["life_replay_s"] == 0.0
    steps = [report.values for report in world.coordinator.step_reports]
    spent = ("train_s", "behaviour_s", "compile_s", "wait_s", "publish_s", "checkpoint_s", "other_s")
    for step in steps:
        assert sum(step[name] for name in spent) == pytest.approx(step["step_s"])
    assert values["oldest_checkpoint_step"] == 2.0


async def test_kappa_may_follow_the_coordinator(world: World, script: Script) -> None:
    script.steps, script.staleness_limit = 7, 6
    script.kappa = lambda step: 1 if step < 2 else 3
    script.newest_usable_version = lambda step: 0
    await run(config(world), asyncio.Event())
    assert world.coordinator.announced == [0, 1, 2, 5, 7]


# ---------------------------------------------------------------- other weights than before


async def interrupted(world: World, *, after: int, **changes: Any) -> None:
    """Run a life that is lost once a step's report has arrived and its version is announced."""
    coordinator = world.coordinator
    life = asyncio.create_task(run(config(world, **changes), asyncio.Event()))
    await coordinator.until(lambda: after in coordinator.announcements)
    await coordinator.until(lambda: any(report.step == after for report in coordinator.step_reports))
    life.cancel()
    await asyncio.gather(life, return_exceptions=True)


OTHER = {"optimiser": {"learning_rate": 0.01}}  # stands for other hardware


async def test_other_weights_than_published_continue_in_a_new_epoch(world: World, script: Script) -> None:
    """The second life loses the answer to OpenEpoch, the third finds the epoch in the run's facts."""
    coordinator = world.coordinator
    script.steps = 8
    await interrupted(world, after=5)
    newest = max(coordinator.announcements)
    coordinator.hold_epoch_replies = True
    life = asyncio.create_task(run(config(world, **OTHER), asyncio.Event()))
    await coordinator.until(lambda: bool(coordinator.epochs))
    life.cancel()
    await asyncio.gather(life, return_exceptions=True)
    coordinator.hold_epoch_replies = False
    assert await run(config(world, **OTHER), asyncio.Event()) == 0

    ((asked, start),) = coordinator.epochs
    assert asked.has_common_version
    assert asked.common_version <= newest
    assert asked.common_version % 2 == 0, "that of the checkpoint"
    assert start.step == max(coordinator.announcements[version].version for version in range(start.step)) + 1
    records = {version: announced.record for version, announced in coordinator.announcements.items()}
    assert {version: record.epoch for version, record in records.items()} == {
        version: int(version >= start.step) for version in records
    }
    first = coordinator.announcements[start.step]
    assert first.record.parent_hash == coordinator.announcements[start.step - 1].record_hash
    assert not first.deltas
    assert sorted(records) == list(range(9))
    assert all(len(contents) == 1 for contents in coordinator.contents.values())

    # A learner that resumes now resumes in the epoch.
    assert await run(config(world, **OTHER), asyncio.Event()) == 0
    assert len(coordinator.epochs) == 1


async def test_other_weights_than_published_can_stop_the_learner(world: World, script: Script) -> None:
    script.steps = 8
    await interrupted(world, after=5)
    with pytest.raises(CheckpointError, match="gave other weights"):
        await run(config(world, resume={"on_mismatch": "stop"}, **OTHER), asyncio.Event())


async def test_calls_whose_answers_are_lost_are_retried(world: World, script: Script) -> None:
    """Every other call is carried out and its connection then dropped."""
    await world.coordinator.stop()
    dropping = DroppingCoordinator(world.authority, script)
    dropping.origin_address = world.coordinator.origin_address
    await dropping.start(world.grpc_port)
    script.steps = 2
    try:
        assert await run(config(world, warm_start=WARM_START), asyncio.Event()) == 0
    finally:
        await dropping.stop()
    assert set(dropping.dropped) == {
        *("OpenLearner", "Examples", "HeldOut", "ScoreCompletions", "NextBatch", "Announce"),
        *("ReportStep", "ReportStatus"),
    }
    assert sorted(set(dropping.announced)) == [0, 1, 2]
    assert len(dropping.announced) > 3
    assert {report.step for report in dropping.step_reports} == {1, 2}
    assert all(len(contents) == 1 for contents in dropping.contents.values())
