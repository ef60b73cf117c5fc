from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import jax
import pytest

from learner.config import LearnerConfig, OptimiserConfig
from learner.training.mesh import make_mesh
from learner.training.optimiser import updates
from rollcast.policy.config import LoraConfig, ModelConfig, adapted
from rollcast.policy.lora import initial_adapters
from rollcast.policy.params import abstract_params, initial_params
from rollcast.policy.sampling.kv_cache import page_bytes
from rollcast.policy.shapes import is_hidden_kernel, parameter_shapes
from rollcast.policy.sizing.memory import (
    ACTIVATION_MARGIN,
    COMPILED_MARGIN,
    LearnerShape,
    OptimiserName,
    PeerShape,
    StateDtype,
    activation_bytes,
    cache_bytes_per_token,
    learner_memory,
    moment_bytes,
    parameter_bytes,
    peer_memory,
    snapshot_bytes,
    tokens_per_device,
    version_bytes,
)
from rollcast.policy.snapshot import freeze, tensor_specs
from tests.policy.sizing.compiled_step import ROWS, TIME
from tests.policy.tiny import TINY, TINY_EXPERTS

UNTIED = TINY.model_copy(update={"tied_embeddings": False, "attention_bias": True, "width": 48})
WIDE = {"vocabulary_size": 256, "width": 192, "query_heads": 6, "key_value_heads": 3, "head_size": 32}
SHAPE = LearnerShape(row_tokens=TIME, micro_batch_tokens=ROWS * TIME)


@pytest.mark.parametrize("model", [TINY, TINY_EXPERTS, UNTIED])
def test_parameters_are_counted_exactly(model: ModelConfig) -> None:
    assert parameter_bytes(model) == sum(value.nbytes for value in initial_params(model, 0).values())


@pytest.mark.parametrize(
    ("model", "precision"), [(UNTIED, "float32"), (UNTIED, "bfloat16"), (UNTIED, "fp8"), (TINY_EXPERTS, "fp8")]
)
def test_snapshots_are_counted_exactly(model: ModelConfig, precision: str) -> None:
    config = model.model_copy(update={"precision": precision})
    assert snapshot_bytes(config) == len(freeze(config, initial_params(config, 0)).state_bytes)


@pytest.mark.parametrize("optimiser", ["adamw", "muon"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_moments_are_counted_exactly(dtype: StateDtype, optimiser: OptimiserName) -> None:
    made = updates(OptimiserConfig(name=optimiser, state_dtype=dtype), 1e-3, make_mesh(LearnerConfig().mesh))
    state = jax.eval_shape(made.init, abstract_params(UNTIED))
    assert moment_bytes(UNTIED, dtype, optimiser) == sum(
        leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state)
    )


@pytest.mark.parametrize("optimiser", ["adamw", "muon"])
def test_of_adapters_the_learner_holds_masters_and_moments_and_of_the_base_a_snapshot(optimiser: OptimiserName) -> None:
    model = adapted(TINY.model_copy(update={"precision": "fp8"}), LoraConfig(rank=4))
    adapters = initial_adapters(model, 1)
    made = updates(OptimiserConfig(name=optimiser), 1e-3, make_mesh(LearnerConfig().mesh))
    state = jax.eval_shape(made.init, adapters)
    moments = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    found = learner_memory(model, replace(SHAPE, optimiser=optimiser, warm_start=True))
    masters = sum(value.nbytes for value in adapters.values())
    assert (found.resident["frozen base"], found.resident["adapters (float32)"]) == (snapshot_bytes(model), masters)
    assert found.resident["optimiser states (float32)"] == moments
    assert found.resident["a version that is published"] == len(freeze(model, adapters).state_bytes)
    assert found.phases["gradients"]["gradients (float32)"] == masters
    assert found.phases["warm start"]["all weights and gradients (float32)"] == 2 * parameter_bytes(model)


@pytest.mark.parametrize("model", [TINY, TINY_EXPERTS])
def test_a_base_of_4_bits_is_counted_exactly(model: ModelConfig) -> None:
    lora = LoraConfig(rank=4, base="nvfp4")
    packed = adapted(model.model_copy(update={"feed_forward_width": 32, "precision": "bfloat16"}), lora)
    assert snapshot_bytes(packed) == sum(spec.size_bytes for spec in tensor_specs(packed))


def test_a_base_of_4_bits_takes_9_sixteenths_of_a_byte_a_value_and_a_layer_of_its_numbers() -> None:
    model = ModelConfig.model_validate({"preset": "qwen3-8b"})
    plain, packed = adapted(model, LoraConfig()), adapted(model, LoraConfig(base="nvfp4"))
    kernels = sum(math.prod(shape) for name, shape in parameter_shapes(model).items() if is_hidden_kernel(name))
    saved = snapshot_bytes(plain) - snapshot_bytes(packed)
    assert saved == pytest.approx(kernels * (2 - 9 / 16), rel=1e-6)
    of_layer = peer_memory(packed, PeerShape(2, 64)).phases["decode"]["a layer's weights, unpacked"]
    assert of_layer == pytest.approx(2 * kernels / model.layers, rel=0.01)


def test_a_peer_swaps_adapters_over_one_base() -> None:
    model = adapted(TINY, LoraConfig(rank=4))
    found, adapters = peer_memory(model, PeerShape(2, 64)), version_bytes(model)
    assert found.resident["weights"] == snapshot_bytes(model) + adapters
    assert found.phases["new version"] == {"weights that come": adapters}


def test_the_cache_is_counted_exactly() -> None:
    assert 16 * cache_bytes_per_token(UNTIED) == page_bytes(UNTIED, 16)


def test_activations_agree_with_xlas_report() -> None:
    shapes: list[tuple[int, bool]] = [(384, False), (768, True)]
    cases: list[dict[str, Any]] = [
        {"model": WIDE | {"layers": 3, "feed_forward_width": size}, "remat": remat} for size, remat in shapes
    ]
    # LLVM's optimisations, which take most of the time, come after the buffers are assigned.
    flags = "--xla_cpu_enable_concurrency_optimized_scheduler=false --xla_backend_optimization_level=0"
    result = subprocess.run(
        [sys.executable, "-m", "tests.policy.sizing.compiled_step", json.dumps(cases)],
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ | {"XLA_FLAGS": flags},
    )
    assert result.returncode == 0, result.stderr
    for case, measured in zip(cases, json.loads(result.stdout), strict=True):
        shape = LearnerShape(TIME, ROWS * TIME, remat=bool(case["remat"]))
        estimate = activation_bytes(ModelConfig.model_validate(case["model"]), shape)
        assert estimate == pytest.approx(measured, rel=ACTIVATION_MARGIN), case


@pytest.mark.parametrize(
    ("name", "mesh", "compiled_gib"),
    [
        ("qwen3-4b", (1, 8), 9.74),
        ("qwen3-8b", (1, 8), 17.83),
        ("qwen3-32b", (1, 8), 62.67),
        ("qwen3-30b-a3b", (1, 8), 54.43),
        ("qwen3-4b", (1, 16), 6.23),
        ("qwen3-8b", (1, 16), 10.68),
        ("qwen3-32b", (1, 16), 35.64),
        ("qwen3-30b-a3b", (1, 16), 30.69),
        ("qwen3-32b", (16, 64), 17.25),
    ],
)
def test_large_models_agree_with_accelerators_compilers(name: str, mesh: tuple[int, int], compiled_gib: float) -> None:
    """The figures are those of `python -m bench fits` for 8 H100s, and for 16 and 1,024 chips of a TPU v5p."""
    data, fsdp = mesh
    shape = LearnerShape(
        8192, 8192 * data * fsdp, state_dtype="bfloat16", remat=True, data=data, fsdp=fsdp, fused_attention=True
    )
    planned = learner_memory(ModelConfig(preset=name), shape).peak / 2**30
    assert planned == pytest.approx(compiled_gib, rel=COMPILED_MARGIN)


def test_a_micro_batch_is_one_row_at_least_on_every_device() -> None:
    assert tokens_per_device(LearnerShape(row_tokens=100, micro_batch_tokens=10)) == 100
    assert tokens_per_device(LearnerShape(row_tokens=100, micro_batch_tokens=850)) == 800
    assert tokens_per_device(LearnerShape(row_tokens=100, micro_batch_tokens=800, data=2, fsdp=2)) == 200


def test_the_peak_is_the_worst_phase_plus_the_resident_bytes() -> None:
    estimate = learner_memory(TINY, SHAPE)
    assert set(estimate.phases) == {
        "loading an older version",
        "behaviour",
        "gradients",
        "optimiser step",
        "publishing",
        "evaluation without peers",
    }
    phase = max(sum(parts.values()) for parts in estimate.phases.values())
    resident = parameter_bytes(TINY) + moment_bytes(TINY, "float32") + snapshot_bytes(TINY)
    assert estimate.peak == resident + phase
    assert estimate.host_peak == parameter_bytes(TINY) + moment_bytes(TINY, "float32")


def test_sharding_offloading_and_rematerialisation_save_memory() -> None:
    model = ModelConfig(preset="qwen3-0.6b")
    plain = LearnerShape(row_tokens=4096, micro_batch_tokens=16_384)
    whole = learner_memory(model, plain)
    offloaded = learner_memory(model, LearnerShape(4096, 16_384, offload=True))
    assert sum(whole.resident.values()) - sum(offloaded.resident.values()) == moment_bytes(model, "float32")
    assert offloaded.host_peak - whole.host_peak == moment_bytes(model, "float32")
    shared = learner_memory(model, LearnerShape(4096, 16_384, fsdp=4))
    assert sum(shared.resident.values()) == pytest.approx(sum(whole.resident.values()) / 4, rel=0.01)
    kept = [activation_bytes(model, LearnerShape(4096, 16_384, remat=remat)) for remat in (False, True)]
    assert kept[1] < kept[0] / 8
    assert activation_bytes(model, LearnerShape(4096, 16_384, fused_attention=True)) < kept[0] / 2
    more = LearnerShape(4096, 16_384, reference=True, critic=True)
    assert learner_memory(model, more).peak > whole.peak + 3 * parameter_bytes(model)


def test_a_teacher_is_held_in_bfloat16_and_scores_in_a_phase_of_its_own() -> None:
    model, teacher = ModelConfig(preset="qwen3-0.6b"), ModelConfig(preset="qwen3-4b", precision="bfloat16")
    plain, taught = (learner_memory(model, LearnerShape(4096, 8192, fsdp=4, teacher=one)) for one in (None, teacher))
    assert taught.resident["teacher"] == -(-snapshot_bytes(teacher) // 4)
    assert "teacher" not in plain.phases
    assert 0 < sum(taught.phases["teacher"].values()) < sum(taught.phases["gradients"].values())
    assert taught.peak - plain.peak >= taught.resident["teacher"]


def test_without_recomputed_log_probabilities_no_older_version_is_loaded() -> None:
    model = ModelConfig(preset="qwen3-0.6b")
    shape = LearnerShape(256, 256)
    recomputed, reported = (learner_memory(model, replace(shape, recomputes=one)) for one in (True, False))
    assert set(recomputed.phases) - set(reported.phases) == {"loading an older version", "behaviour"}
    assert {name: recomputed.phases[name] for name in reported.phases} == reported.phases
    assert reported.peak <= recomputed.peak


@pytest.mark.parametrize("offload", [False, True])
def test_each_host_holds_its_part_of_a_checkpoint(offload: bool) -> None:
    model, shape = ModelConfig(preset="qwen3-0.6b"), LearnerShape(4096, 16_384, data=2, fsdp=4, offload=offload)
    one, four = (learner_memory(model, replace(shape, processes=hosts)) for hosts in (1, 4))
    assert four.host_peak == pytest.approx(one.host_peak / 4)
    assert four.peak == one.peak


def test_muon_keeps_one_moment_of_a_kernel_and_gathers_it_whole() -> None:
    model = ModelConfig(preset="qwen3-0.6b")
    adamw, muon = (
        learner_memory(model, LearnerShape(4096, 16_384, fsdp=64, optimiser=name)) for name in ("adamw", "muon")
    )
    kernels = sum(math.prod(shape) for name, shape in parameter_shapes(model).items() if is_hidden_kernel(name))
    states = "optimiser states (float32)"
    assert adamw.resident[states] - muon.resident[states] == pytest.approx(4 * kernels / 64, rel=1e-6)
    largest = 4 * model.width * model.feed_forward_width
    assert muon.phases["optimiser step"]["the step's own"] > 3 * largest
    assert adamw.phases["optimiser step"]["the step's own"] < largest


def test_muon_gathers_no_experts() -> None:
    model = ModelConfig(preset="qwen3-30b-a3b")
    step = learner_memory(model, LearnerShape(4096, 16_384, fsdp=64, optimiser="muon")).phases["optimiser step"]
    attention = 4 * model.width * model.query_heads * model.head_size
    assert step["the step's own"] < 4 * attention


def test_a_peer_holds_weights_keys_and_values_and_the_version_that_comes() -> None:
    estimate = peer_memory(TINY, PeerShape(concurrent_rollouts=4, row_tokens=40))
    assert estimate.resident == {
        "weights": snapshot_bytes(TINY),
        "keys and values": 4 * 4 * 16 * cache_bytes_per_token(TINY),
    }
    assert estimate.phases["new version"] == {"weights that come": snapshot_bytes(TINY)}
    single = peer_memory(TINY, PeerShape(concurrent_rollouts=4, row_tokens=40, versions_on_device=1))
    assert "new version" not in single.phases
    assert single.host_peak == estimate.host_peak + snapshot_bytes(TINY)
    small = peer_memory(TINY, PeerShape(concurrent_rollouts=4, row_tokens=40, cache_tokens=64))
    assert small.resident["keys and values"] == 64 * cache_bytes_per_token(TINY)
