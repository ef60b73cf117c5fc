from __future__ import annotations

import io
from typing import Any

import jax
import numpy as np
import pytest

from bench.learner.learner import sharded_publishing
from learner.config import MeshConfig
from learner.training import sharded_tensors
from learner.training.mesh import make_mesh, placed_params
from learner.training.sharded_tensors import freeze_into
from rollcast.policy.config import ModelConfig
from rollcast.policy.params import initial_params
from rollcast.policy.snapshot import freeze, tensor_specs

MODEL = ModelConfig(
    vocabulary_size=96, layers=1, width=256, query_heads=4, key_value_heads=2, head_size=32, feed_forward_width=160
)
FORMS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"precision": "bfloat16"},
    "fp8": {"precision": "fp8"},
    "naive": {"precision": "fp8-naive"},
}


@pytest.mark.parametrize("piece_bytes", [1, 50_000, 8 << 20])
@pytest.mark.parametrize("form", FORMS)
def test_a_file_holds_what_freeze_gives(form: str, piece_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharded_tensors, "PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(sharded_tensors, "_on_cpu", lambda _: False)
    config = ModelConfig.model_validate(MODEL.model_dump() | FORMS[form])
    devices = jax.devices()[:2]
    mesh = make_mesh(MeshConfig(fsdp=len(devices)), devices)
    params = placed_params(mesh, initial_params(config, 0))
    file = io.BytesIO()
    assert freeze_into(config, params, file) == tensor_specs(config)
    assert file.getvalue() == freeze(config, initial_params(config, 0)).state_bytes


def test_pieces_are_small_and_make_up_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharded_tensors, "PIECE_BYTES", 3000)
    monkeypatch.setattr(sharded_tensors, "_on_cpu", lambda _: False)
    devices = jax.devices()[:2]
    mesh = make_mesh(MeshConfig(fsdp=len(devices)), devices)
    whole = np.arange(70 * 32, dtype=np.float32).reshape(70, 32)
    array = placed_params(mesh, {"embedding": whole})["embedding"]
    found = np.zeros_like(whole)
    for first_row, rows in sharded_tensors.pieces(array):
        assert rows.nbytes <= 3000
        found[first_row : first_row + len(rows)] = rows
    np.testing.assert_array_equal(found, whole)


@pytest.mark.parametrize("memory_kind", ["device", "pinned_host"])
def test_what_was_gathered_shares_no_memory(memory_kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharded_tensors, "PIECE_BYTES", 3000)
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    for shape in ((), (7,), (70, 32)):
        array = placed_params(mesh, {"embedding": np.ones(shape, np.float32)})["embedding"]
        if memory_kind == "pinned_host":
            array = jax.device_put(array, array.sharding.with_memory_kind(memory_kind))
        monkeypatch.setattr(sharded_tensors, "_on_cpu", lambda _, kind=memory_kind: kind == "device")
        back = sharded_tensors.gathered(array)
        assert back.shape == shape
        back[...] = 3.0
        assert np.all(np.asarray(array) == 1.0)


def test_nothing_is_written_without_a_file() -> None:
    assert freeze_into(MODEL, initial_params(MODEL, 0), None) == tensor_specs(MODEL)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_processes_publish_what_no_one_of_them_could_hold() -> None:
    found = sharded_publishing()
    assert found["sharded_snapshot_mib"] >= 256.0
    assert found["sharded_publish_mib"] <= 64.0
