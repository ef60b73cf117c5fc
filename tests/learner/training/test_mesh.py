"""Test parameters over several devices: the mesh, and tensors sharded on it."""

from __future__ import annotations

import gc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from bench.learner.learner import sharded_publishing
from learner.config import MeshConfig
from learner.training import mesh as mesh_module
from learner.training.freezing import gather_into
from learner.training.mesh import (
    everywhere,
    make_mesh,
    placed,
    placed_params,
    row_shards,
    rows_sharding,
    stacked_params,
    state_shardings,
)
from rollcast.policy.config import ModelConfig
from rollcast.policy.mesh import sharding_of
from rollcast.policy.params import initial_params
from rollcast.policy.snapshot import freeze, tensor_specs
from rollcast.policy.stacking import Layers
from rollcast.runtime.errors import ConfigError
from tests.compiling import printed_on_eight_devices
from tests.learner.training.eight_devices import FORMS
from tests.learner.training.eight_devices import MODEL as WIDE
from tests.policy.hub.hub_files import model_folder, random_params

LAYER = "layers.0."


def abstract(data: int, fsdp: int, tensor: int) -> Any:
    return AbstractMesh((data, fsdp, tensor), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)


def test_moments_lie_like_their_tensor_and_counts_everywhere() -> None:
    name = LAYER + "attention.query.kernel"
    state = (jnp.zeros((), jnp.int32), {name: SimpleNamespace(shape=(16, 32))}, {name: jnp.zeros((16, 4))})
    count, first, second = state_shardings(abstract(1, 2, 2), state)
    assert count.spec == PartitionSpec()
    assert first[name].spec == second[name].spec == sharding_of(abstract(1, 2, 2), name, (16, 32)).spec


def test_rows_are_divided_among_data_and_fsdp() -> None:
    mesh = abstract(2, 4, 1)
    assert row_shards(mesh) == 8
    assert rows_sharding(mesh).spec == PartitionSpec(("data", "fsdp"))


def test_a_mesh_of_more_devices_than_there_are_is_refused() -> None:
    with pytest.raises(ConfigError, match="a mesh of 1 x 3 x 1 devices does not go with 1 devices"):
        make_mesh(MeshConfig(fsdp=3), jax.devices()[:1])


def test_stacking_each_version_leaves_nothing_behind() -> None:
    """A learner stacks the parameters of every version. jax keeps an entry for each function that it was given, which
    for 36 layers takes 130 KB."""
    mesh = make_mesh(MeshConfig())
    params = placed_params(mesh, {f"layers.{layer}.norm": np.ones(4, np.float32) for layer in range(2)})

    def kept() -> int:
        gc.collect()
        return sum(type(one).__name__ in ("PjitInfo", "InferParamsCacheEntry") for one in gc.get_objects())

    assert [stacked_params(mesh, params)["layers.norm"].shape for _ in range(2)] == [(2, 4)] * 2
    before = kept()
    assert before > 0, "jax has other names for what it keeps"
    for _ in range(20):
        stacked_params(mesh, params)
    assert kept() == before


def test_placed_parameters_stay_and_a_copy_shares_no_memory() -> None:
    mesh = make_mesh(MeshConfig())
    host = {"embedding": np.ones((4, 2), np.float32)}
    there = placed_params(mesh, host)
    assert placed_params(mesh, there)["embedding"] is there["embedding"]
    copy = placed(host["embedding"], there["embedding"].sharding)
    host["embedding"][:] = 2.0
    assert float(copy.sum()) == float(there["embedding"].sum()) == 8.0
    assert np.all(np.asarray(everywhere(there["embedding"])) == 1.0)


@pytest.mark.slow  # test_hosts.py trains over four processes, and the tests below check what a device may gather
def test_no_device_ever_holds_a_whole_tensor_and_files_are_exact(tmp_path: Path) -> None:
    params = random_params(WIDE)
    folder = model_folder(tmp_path / "model", WIDE, params)
    found = printed_on_eight_devices("tests.learner.training.eight_devices", str(folder), str(tmp_path))
    assert found["calls"] > 10
    assert found["largest_share"] == 1 / 8
    assert found["wrong_files"] == []
    assert found["wrong_fingerprints"] == []
    assert max(found["fp8_unit_differences"]) < 1e-6
    assert max(found["experts_differences"]) < 1e-5
    assert found["sums"] == pytest.approx({name: float(leaf.sum()) for name, leaf in params.items()}, rel=1e-4)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_every_mesh_has_the_same_loss_and_a_checkpoint_fits_another_one(tmp_path: Path) -> None:
    meshes = ("--mesh", "1,1,1", "--mesh", "2,2,2", "--then", "1,1,1")
    one, many, again = printed_on_eight_devices(
        "tests.learner.distributed.several", str(tmp_path), *meshes, timeout_s=380.0
    )
    for mine, theirs in zip(one["metrics"], many["metrics"], strict=True):
        assert theirs == pytest.approx(mine, abs=1e-5)
    assert again["restored"] == many["digest"]


MODEL = ModelConfig(
    vocabulary_size=96, layers=1, width=256, query_heads=4, key_value_heads=2, head_size=32, feed_forward_width=160
)


@pytest.mark.parametrize("piece_bytes", [1, 50_000, 8 << 20])
@pytest.mark.parametrize("form", FORMS)
def test_a_gathered_file_holds_the_bytes_of_freeze(
    form: str, piece_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mesh_module, "PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(mesh_module, "_on_cpu", lambda _: False)
    config = ModelConfig.model_validate(MODEL.model_dump() | FORMS[form])
    devices = jax.devices()[:2]
    mesh = make_mesh(MeshConfig(fsdp=len(devices)), devices)
    params = placed_params(mesh, initial_params(config, 0))
    with (tmp_path / "state").open("w+b") as file:
        assert gather_into(config, Layers(params), file) == tensor_specs(config)
        assert file.read() == freeze(config, initial_params(config, 0)).state_bytes


def test_pieces_are_small_and_make_up_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh_module, "PIECE_BYTES", 3000)
    monkeypatch.setattr(mesh_module, "_on_cpu", lambda _: False)
    devices = jax.devices()[:2]
    mesh = make_mesh(MeshConfig(fsdp=len(devices)), devices)
    whole = np.arange(70 * 32, dtype=np.float32).reshape(70, 32)
    array = placed_params(mesh, {"embedding": whole})["embedding"]
    found = np.zeros_like(whole)
    for first_row, rows in mesh_module.pieces(array):
        assert rows.nbytes <= 3000
        found[first_row : first_row + len(rows)] = rows
    np.testing.assert_array_equal(found, whole)


@pytest.mark.parametrize("memory_kind", ["device", "pinned_host"])
def test_a_gathered_copy_shares_no_memory(memory_kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh_module, "PIECE_BYTES", 3000)
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    for shape in ((), (7,), (70, 32)):
        array = placed_params(mesh, {"embedding": np.ones(shape, np.float32)})["embedding"]
        if memory_kind == "pinned_host":
            array = jax.device_put(array, array.sharding.with_memory_kind(memory_kind))
        monkeypatch.setattr(mesh_module, "_on_cpu", lambda _, kind=memory_kind: kind == "device")
        back = mesh_module.gathered(array)
        assert back.shape == shape
        back[...] = 3.0
        assert np.all(np.asarray(array) == 1.0)


def test_nothing_is_written_without_a_file() -> None:
    assert gather_into(MODEL, Layers(initial_params(MODEL, 0)), None) == tensor_specs(MODEL)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_processes_publish_a_model_that_none_of_them_could_hold() -> None:
    found = sharded_publishing()
    assert found["sharded_snapshot_mib"] >= 256.0
    assert found["sharded_publish_mib"] <= 64.0
