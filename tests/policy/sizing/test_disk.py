from __future__ import annotations

from typing import Any

from rollcast.policy.config import LoraConfig, ModelConfig, adapted
from rollcast.policy.sizing.disk import LearnerRetention, StoreRetention, learner_disk, store_disk, supervised_disk
from rollcast.policy.sizing.memory import LearnerShape, moment_bytes, parameter_bytes, snapshot_bytes, version_bytes
from tests.policy.tiny import TINY

SHAPE = LearnerShape(row_tokens=64, micro_batch_tokens=64)


def retention(**more: Any) -> LearnerRetention:
    return LearnerRetention(newest_versions=16, checkpoints=2, staleness_limit=3, **more)


def test_a_learner_keeps_versions_for_coming_batches_and_for_the_replay_of_checkpoints() -> None:
    found = learner_disk(TINY, SHAPE, retention(states_in_memory=False))
    assert found["versions"] == (16 + 4 + 1) * snapshot_bytes(TINY)
    assert 0 < found["their deltas"] < found["versions"] / 4
    state = parameter_bytes(TINY) + moment_bytes(TINY, "float32")
    assert found["checkpoints"] == 3 * state, "a third one is being written before the oldest is removed"


def test_with_states_in_memory_one_is_on_disk_and_one_is_being_written() -> None:
    found, whole = learner_disk(TINY, SHAPE, retention()), learner_disk(TINY, SHAPE, retention(states_in_memory=False))
    assert found["versions"] == 2 * snapshot_bytes(TINY)
    more = found["their deltas"] - whole["their deltas"]
    assert abs(more - 0.6 * snapshot_bytes(TINY)) <= 1, "deltas since the state on disk"


def test_reference_and_critic_are_in_checkpoints() -> None:
    kept = LearnerRetention(newest_versions=4, checkpoints=2, staleness_limit=1)
    more = LearnerShape(row_tokens=64, micro_batch_tokens=64, reference=True, critic=True)
    found = learner_disk(TINY, more, kept)["checkpoints"]
    assert found == 3 * (3 * parameter_bytes(TINY) + 2 * moment_bytes(TINY, "float32"))


def test_supervised_training_keeps_checkpoints_and_its_export_alone() -> None:
    state = parameter_bytes(TINY) + moment_bytes(TINY, "float32")
    assert supervised_disk(TINY, SHAPE, 2, exports=False) == {"checkpoints": 3 * state}
    assert supervised_disk(TINY, SHAPE, 2, exports=True)["export"] == parameter_bytes(TINY, 2)


def test_whole_versions_of_a_32b_model_take_more_than_a_terabyte_where_memory_keeps_none() -> None:
    model = ModelConfig(preset="qwen3-32b")
    assert learner_disk(model, SHAPE, LearnerRetention(16, 2, 4, states_in_memory=False))["versions"] > 1e12
    assert learner_disk(model, SHAPE, LearnerRetention(16, 2, 4))["versions"] < 140e9


def test_adapters_of_8b_are_kept_over_one_base_and_checkpoints_are_small() -> None:
    model = ModelConfig(preset="qwen3-8b")
    model = adapted(model, LoraConfig(rank=16))
    found = learner_disk(model, SHAPE, retention(states_in_memory=False))
    assert found["frozen base"] == snapshot_bytes(model)
    assert found["versions"] == 21 * version_bytes(model)
    assert found["checkpoints"] / 3 < 1e9
    assert version_bytes(model) / snapshot_bytes(model) < 0.006
    assert store_disk(model, StoreRetention(8, 16, 1))["frozen base"] == snapshot_bytes(model)


def test_a_store_is_bounded_by_its_limit_but_keeps_one_version() -> None:
    version = snapshot_bytes(TINY)
    assert store_disk(TINY, StoreRetention(8, 16, 0))["versions"] == 9 * version
    assert sum(store_disk(TINY, StoreRetention(8, 16, 3 * version)).values()) == 4 * version
    small = store_disk(TINY, StoreRetention(8, 16, version // 2))
    assert small == {"versions": 2 * version, "their deltas": 0}
