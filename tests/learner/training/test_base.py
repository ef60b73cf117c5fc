"""A trainer that trains adapters over a frozen base."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learner.objective.config import ObjectiveConfig
from learner.training import base
from learner.training.mesh import make_mesh
from learner.training.packing import TrainingRow, pack
from learner.training.trainer import Trainer, behaviour_by_version
from rollcast.policy.config import LoraConfig, adapted
from rollcast.policy.lora import absent_adapters, adapter_specs, is_adapter
from rollcast.policy.params import Params, initial_params
from rollcast.policy.sampling.sampler import Sampler, SampleRequest
from rollcast.policy.snapshot import freeze, thaw, views, without_codes
from rollcast.policy.stacking import stacked
from rollcast.wire.ids import Epoch, PeerId, Version
from rollcast.wire.rollouts import Sampling, Segment
from rollcast.wire.token_ids import pack_ids
from tests.learner.tiny import CONFIG, MODEL, copied_state, tiny_batch

MODEL_OF_CODES = adapted(MODEL.model_copy(update={"precision": "fp8"}), LoraConfig(rank=2, alpha=4.0))
MODEL_OF_PACKED = adapted(MODEL, LoraConfig(rank=2, alpha=4.0, base="nvfp4"))
REWARDS = [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0]


@pytest.fixture(scope="module")
def trainer() -> Trainer:
    return Trainer(MODEL_OF_CODES, CONFIG)


@pytest.fixture
def fresh(trainer: Trainer) -> Trainer:
    trainer.set_params(initial_params(MODEL_OF_CODES, 1))
    return trainer


def published(trainer: Trainer, version: int = 0) -> Params:
    snapshot = trainer.snapshot(version)
    return views(trainer.model_config, snapshot.tensors, snapshot.state_bytes)


def base_of(trainer: Trainer, path: Any) -> bytes:
    with path.open("w+b") as file:
        trainer.write_base(file)
        file.seek(0)
        return bytes(file.read())


def test_the_base_is_the_snapshot_of_the_parameters_and_steps_leave_it(fresh: Trainer, tmp_path: Any) -> None:
    frozen = freeze(MODEL_OF_CODES, initial_params(MODEL_OF_CODES, 1))
    assert base_of(fresh, tmp_path / "base") == frozen.state_bytes
    batch = tiny_batch(REWARDS)
    behaviour = fresh.behaviour(fresh.placed(absent_adapters(MODEL_OF_CODES)), batch).logprobs
    for _ in range(3):
        assert fresh.train_step(batch, behaviour)["grad_norm"] > 0.0
    assert base_of(fresh, tmp_path / "after") == frozen.state_bytes
    change = np.where(batch.loss_mask, fresh.behaviour(fresh.placed(published(fresh)), batch).logprobs - behaviour, 0.0)
    assert np.all(change.sum(1)[batch.advantages.sum(1) > 0] > 0.0)


def test_adapters_learn_over_a_base_of_4_bits(tmp_path: Path) -> None:
    trainer = Trainer(MODEL_OF_PACKED, CONFIG)
    frozen = freeze(MODEL_OF_PACKED, initial_params(MODEL_OF_PACKED, CONFIG.seed))
    assert base_of(trainer, tmp_path / "base") == frozen.state_bytes
    batch = tiny_batch(REWARDS)
    behaviour = trainer.behaviour(trainer.placed(absent_adapters(MODEL_OF_PACKED)), batch).logprobs
    for _ in range(3):
        assert trainer.train_step(batch, behaviour)["grad_norm"] > 0.0
    assert base_of(trainer, tmp_path / "after") == frozen.state_bytes
    state = copied_state(trainer)
    assert all("lora" in name for name in state if name.startswith("parameters/"))
    snapshot = trainer.snapshot()
    assert snapshot.tensors == adapter_specs(MODEL_OF_PACKED)
    own = trainer.placed(views(MODEL_OF_PACKED, snapshot.tensors, snapshot.state_bytes))
    change = np.where(batch.loss_mask, trainer.behaviour(own, batch).logprobs - behaviour, 0.0)
    assert np.all(change.sum(1)[batch.advantages.sum(1) > 0] > 0.0)
    trainer.set_base(views(MODEL_OF_PACKED, frozen.tensors, frozen.state_bytes))  # as a learner that resumes does
    trainer.restore(state)
    again = trainer.behaviour(trainer.placed(absent_adapters(MODEL_OF_PACKED)), batch).logprobs
    np.testing.assert_array_equal(again, behaviour)
    base = without_codes(MODEL_OF_PACKED, thaw(MODEL_OF_PACKED, frozen.tensors, frozen.state_bytes))
    found, name = trainer.params(), "layers.0.attention.query"
    assert found.keys() == base.keys() == initial_params(MODEL, 1).keys()
    a, b = (state[f"parameters/{name}.lora_{end}".replace(".0.", ".")][0] for end in "ab")
    np.testing.assert_allclose(found[f"{name}.kernel"], base[f"{name}.kernel"] + 2.0 * a @ b, atol=1e-6)


def test_state_and_versions_are_of_adapters_alone(fresh: Trainer) -> None:
    stems = {name.removeprefix("optimiser/moments/").removeprefix("parameters/") for name in fresh.state()}
    tensors = {stem.removesuffix("/first").removesuffix("/second") for stem in stems} - {"optimiser/count"}
    assert len(tensors) == 14
    assert all(map(is_adapter, tensors))
    assert fresh.snapshot().tensors == adapter_specs(MODEL_OF_CODES)


def test_older_versions_are_read_over_the_same_base(fresh: Trainer) -> None:
    batch = tiny_batch(REWARDS, versions=[0, 1])
    versions = {0: absent_adapters(MODEL_OF_CODES)}
    first = fresh.behaviour(fresh.placed(versions[0]), batch).logprobs
    fresh.train_step(batch, first)
    versions[1] = published(fresh)
    second = fresh.behaviour(fresh.placed(versions[1]), batch).logprobs
    found = behaviour_by_version(fresh, batch, versions.__getitem__).logprobs
    expected = np.where(batch.token_versions == 0, first, second)
    np.testing.assert_allclose(found[batch.loss_mask], expected[batch.loss_mask], atol=1e-5)
    assert not np.array_equal(first, second)


def test_a_restored_state_continues_with_the_same_bits(fresh: Trainer) -> None:
    batch = tiny_batch(REWARDS)
    behaviour = fresh.behaviour(fresh.placed(absent_adapters(MODEL_OF_CODES)), batch).logprobs
    fresh.train_step(batch, behaviour)
    state = copied_state(fresh)
    fresh.train_step(batch, behaviour)
    expected = copied_state(fresh)
    fresh.set_params(initial_params(MODEL_OF_CODES, 2))
    frozen = freeze(MODEL_OF_CODES, initial_params(MODEL_OF_CODES, 1))
    fresh.set_base(views(MODEL_OF_CODES, frozen.tensors, frozen.state_bytes))
    fresh.restore(state)
    fresh.train_step(batch, behaviour)
    found = copied_state(fresh)
    assert all(np.array_equal(found[name], value) for name, value in expected.items())


def test_a_large_base_is_stacked_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_GROUP_BYTES", 1)
    mesh, params = make_mesh(CONFIG.mesh), initial_params(MODEL, 1)
    left = dict(params)
    groups: list[int] = []
    monkeypatch.setattr(base, "placed_params", lambda mesh, group: groups.append(len(left)) or group)
    found = base.stacked_base(mesh, left)
    assert groups == sorted(groups, reverse=True)
    assert len(groups) == len(found) > 5
    expected = stacked(params)
    assert all(np.array_equal(found[name], value) for name, value in expected.items())


def test_the_whole_parameters_are_the_base_with_its_adapters_merged() -> None:
    model = adapted(MODEL, LoraConfig(rank=2, alpha=4.0))
    trainer, random = Trainer(model, CONFIG), np.random.default_rng(0)
    state = {name: np.array(leaf) for name, leaf in trainer.state().items()}
    state |= {
        name: random.standard_normal(leaf.shape).astype(np.float32)
        for name, leaf in state.items()
        if name.startswith("parameters/")
    }
    trainer.restore(state)
    found, alone = trainer.params(), initial_params(MODEL, CONFIG.seed)
    a, b = (state[f"parameters/layers.attention.key.lora_{end}"][0] for end in "ab")
    name = "layers.0.attention.key.kernel"
    np.testing.assert_allclose(found.pop(name), alone.pop(name) + 2.0 * a @ b, atol=1e-5)
    assert found.keys() == alone.keys()
    np.testing.assert_array_equal(found["embedding"], alone["embedding"])


NOISE = LoraConfig(rank=2, alpha=4.0, noise_start=0.5, noise_end=0.1, noise_stages=3, noise_steps=9)


def test_rollouts_of_a_version_with_noise_are_scored_with_its_own_scales() -> None:
    trainer = Trainer(adapted(MODEL, NOISE), CONFIG)
    own, base = published(trainer, 5), initial_params(MODEL, CONFIG.seed)
    sampler, asked = (
        Sampler(trainer.model_config, 4, 3, 4),
        [SampleRequest((2, 3, 4 + seed), seed) for seed in range(4)],
    )
    made = sampler.generate(base | own, asked, Sampling(1.0, 3, ()))
    rows = [
        TrainingRow(seed, 0, asked[seed].prompt_token_ids, (segment_of(one.token_ids),), 1.0, seed % 2, seed)
        for seed, one in enumerate(made)
    ]
    batch = pack(rows, time=6, objective=ObjectiveConfig(), completion_tokens_max=3)
    scored = behaviour_by_version(trainer, batch, {5: own}.__getitem__)
    assert not scored.margins.any(), "these tokens are those of their seeds"
    found = scored.logprobs[batch.loss_mask]
    np.testing.assert_allclose(found, [logprob for one in made for logprob in one.logprobs], atol=1e-5)
    trained = trainer.behaviour(trainer.placed(published(trainer, 0)), batch).logprobs[batch.loss_mask]
    assert np.max(np.abs(found - trained)) > 0.01, "else the test shows nothing"
    assert not trainer.scores_on_policy, "the training pass has no noise"


def segment_of(tokens: tuple[int, ...]) -> Segment:
    return Segment("assistant", Epoch(0), Version(5), PeerId("p"), pack_ids(tokens), b"\1" * len(tokens))


def test_each_version_has_noise_of_its_own_and_the_trained_policy_none() -> None:
    trainer, again = Trainer(adapted(MODEL, NOISE), CONFIG), Trainer(adapted(MODEL, NOISE), CONFIG)
    assert trainer.snapshot(5) == again.snapshot(5)
    assert trainer.snapshot(5).tensors == adapter_specs(trainer.model_config)
    name = "layers.0.attention_norm.scale"
    before, scales = trainer.params()[name], [published(trainer, version)[name] for version in (2, 4, 5, 8)]
    np.testing.assert_array_equal(scales[0], before, "the first stage has no noise")
    assert len({one.tobytes() for one in scales}) == 4
    np.testing.assert_array_equal(trainer.params()[name], before)
