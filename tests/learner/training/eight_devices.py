"""Check on 8 virtual devices where tensors lie, and what a version's file holds.

    python -m tests.learner.training.eight_devices MODEL_FOLDER RUN_FOLDER

It prints one JSON object. The number of virtual devices is fixed when jax starts, so this is a process of its own.
"""

from __future__ import annotations

import functools
import json
import math
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from learner.checkpoints import fingerprints
from learner.checkpoints.fingerprints import begin_fingerprints, held_fingerprints, records_of
from learner.config import LearnerConfig, MeshConfig
from learner.publishing.versions import RetainedVersions
from learner.training import freezing
from learner.training import trainer as trainer_module
from learner.training.freezing import begin_freeze
from learner.training.mesh import make_mesh, placed_params, stacked_params
from learner.training.trainer import Trainer, behaviour_by_version
from rollcast.policy.config import ModelConfig
from rollcast.policy.experts.layer import Experts, Routing
from rollcast.policy.params import initial_params
from rollcast.policy.products import fp8_unit
from rollcast.policy.products.linear import fp8_matmul
from rollcast.policy.products.quantise import GROUP
from rollcast.policy.snapshot import freeze, tensor_specs
from rollcast.policy.stacking import Layers
from rollcast.wire.ids import Version
from tests.learner.tiny import tiny_batch

MODEL = ModelConfig(
    vocabulary_size=512, layers=1, width=64, query_heads=8, key_value_heads=8, head_size=16, feed_forward_width=512
)
FORMS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"precision": "bfloat16"},
    "fp8": {"precision": "fp8"},
    "naive": {"precision": "fp8-naive"},
}
LARGE_BYTES = 32 << 10  # every kernel is, and neither a shard of one nor a scale of a norm, which is on every device


def largest_share() -> float:
    """Return the largest share of a large live array that lies on one device."""
    arrays = [array for array in jax.live_arrays() if array.nbytes >= LARGE_BYTES]
    return max((math.prod(array.sharding.shard_shape(array.shape)) / array.size for array in arrays), default=0.0)


def load_publish_and_read_back(model_folder: Path, run_folder: Path) -> dict[str, Any]:
    """Return the loaded model's sums, and the largest share of a tensor that a device held before or after placing."""
    shares: list[float] = []
    place = trainer_module.placed_params

    def watched(*arguments: Any) -> Any:
        shares.append(largest_share())
        params = place(*arguments)
        shares.append(largest_share())
        return params

    trainer_module.placed_params = watched
    mesh = MeshConfig(data=1, fsdp=4, tensor=2)
    loaded = Trainer(MODEL, LearnerConfig(mesh=mesh, init_from=model_folder)).params()
    sums = {name: float(np.asarray(leaf).sum()) for name, leaf in loaded.items()}
    del loaded
    trainer = Trainer(MODEL, LearnerConfig(mesh=mesh))
    retained = RetainedVersions(run_folder, mapped=2)
    retained.stand_in(Version(0), retained.freeze(Version(0), trainer.begin_freeze).finish())
    behaviour_by_version(trainer, tiny_batch([1.0, 0.0]), lambda version: retained.host_params(Version(version), MODEL))
    return {"sums": sums, "calls": len(shares), "largest_share": max(shares)}


def wrong_files(folder: Path) -> list[str]:
    """Return the precisions and meshes whose frozen file does not hold the bytes of `freeze`."""
    freezing.BAND_BYTES = 1500  # so that shards are joined in several bands
    wrong = []
    for form, settings in FORMS.items():
        config = ModelConfig.model_validate(MODEL.model_dump() | settings)
        params = initial_params(config, 0)
        for sizes in ((1, 8, 1), (2, 2, 2), (1, 1, 1)):
            mesh = make_mesh(MeshConfig(data=sizes[0], fsdp=sizes[1], tensor=sizes[2]))
            path = folder / f"{form}-{sizes}"
            path.touch()
            layers = Layers(stacked_params(mesh, placed_params(mesh, params)))
            write = begin_freeze(config, layers, path)
            write()
            specs = write.tensors
            if specs != tensor_specs(config) or path.read_bytes() != freeze(config, params).state_bytes:
                wrong.append(path.name)
    return wrong


def wrong_fingerprints() -> list[str]:
    """Return the dtypes and placements of arrays whose fingerprint on 8 devices is not that on one, or waits."""
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    random = np.random.default_rng(0)
    cases = {
        "float32 rows and columns": (np.float32, (3, 8, 6), (None, ("tensor", "fsdp"), "data")),
        "float32 in slices": (np.float32, (2, 64, 4096), (None, ("tensor", "fsdp"), "data")),
        "int8 columns": (np.int8, (8, 6), (None, "fsdp")),
        "int32 on every device": (np.int32, (), ()),
    }
    wrong = []
    for name, (dtype, shape, axes) in cases.items():
        values = (100.0 * random.standard_normal(shape)).astype(dtype)
        divided = jax.device_put(values, NamedSharding(mesh, PartitionSpec(*axes)))
        found = [records_of(own, begin_fingerprints(own)) for own in ({"a": jnp.asarray(values)}, {"a": divided})]
        program = fingerprints.sums.lower(divided, divided.sharding).compile().as_text() or ""
        found.append(records_of({"a": divided}, held_fingerprints({"a": divided})()))
        if found.count(found[0]) != len(found) or "all-reduce" in program:
            wrong.append(name)
    return wrong


def fp8_unit_differences() -> list[float]:
    """Return how far a product and its gradients are from those without FP8 units, of the largest value.

    The units' kernel is interpreted; rows are divided among 2 x 4 devices, the kernel among 4.
    """
    random = np.random.default_rng(0)
    operands = [random.standard_normal(shape, np.float32) for shape in ((8, GROUP, 40), (40, 24), (8, GROUP, 24))]

    def products(x: jax.Array, master: jax.Array, dy: jax.Array) -> list[jax.Array]:
        product, pull = jax.vjp(fp8_matmul, x, master)
        return [product, *pull(dy)]

    expected = jax.jit(products)(*operands)
    mesh = make_mesh(MeshConfig(data=2, fsdp=4, tensor=1))
    rows, parts = (NamedSharding(mesh, PartitionSpec(axes)) for axes in (("data", "fsdp"), "fsdp"))
    fp8_unit.is_available = lambda: True
    fp8_unit.multiply = functools.partial(fp8_unit.multiply, interpret=True)
    with jax.set_mesh(mesh):
        compute = jax.jit(lambda *arrays: products(*arrays), out_shardings=[rows, rows, parts])
        found = compute(*map(jax.device_put, operands, (rows, parts, rows)))
    return [
        float(np.abs(np.asarray(one) - np.asarray(like)).max() / np.abs(np.asarray(like)).max())
        for one, like in zip(found, expected, strict=True)
    ]


def experts_differences() -> list[float]:
    """Return differences, relative to the largest value, between a layer of experts on 8 devices and on one.

    They are those of the result, of the gradients of what is read, router and kernels, and of the loads.
    """
    model = ModelConfig(width=16, experts=8, experts_per_token=2, expert_width=8)
    layer = Experts(model)
    form, state = nnx.split(layer)
    random = np.random.default_rng(0)
    state = jax.tree.map(lambda leaf: random.normal(0, 0.3, leaf.shape).astype(np.float32), state)
    x, dy = random.normal(0, 1, (2, 16, 5, 16)).astype(np.float32)
    counted = random.random((16, 5)) < 0.7

    def result(mesh: Mesh | None) -> list[Any]:
        def run(state: Any, x: jax.Array) -> tuple[jax.Array, Any]:
            mixed, routed = nnx.merge(form, state)(x, Routing(counted, mesh=mesh))
            return jnp.sum(mixed * dy) + jnp.sum(routed.load.probabilities**2), (mixed, routed.load)

        (_, values), gradients = jax.jit(jax.value_and_grad(run, argnums=(0, 1), has_aux=True))(state, x)
        return jax.tree.leaves((values, gradients))

    alone, divided = result(None), result(make_mesh(MeshConfig(data=2, fsdp=2, tensor=2)))
    return [
        float(np.abs(np.asarray(one) - np.asarray(like)).max() / np.abs(np.asarray(like)).max())
        for one, like in zip(divided, alone, strict=True)
    ]


def main() -> None:
    model_folder, run_folder = map(Path, sys.argv[1:])
    found = load_publish_and_read_back(model_folder, run_folder)
    found |= {"wrong_files": wrong_files(run_folder), "fp8_unit_differences": fp8_unit_differences()}
    found |= {"experts_differences": experts_differences()}
    found["wrong_fingerprints"] = wrong_fingerprints()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
