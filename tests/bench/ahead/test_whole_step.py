from __future__ import annotations

import json
from collections import defaultdict

import jax
import pytest

from bench.ahead import compile_step, whole_step
from bench.ahead.accelerators import ACCELERATORS, Accelerators
from bench.ahead.whole_step import bytes_per_device, step_programs
from rollcast.policy.config import ModelConfig
from rollcast.policy.published import ARCHITECTURES
from rollcast.policy.sizing.memory import moment_bytes, parameter_bytes, snapshot_bytes

CPU = Accelerators("cpu", 0.0, "TPU v5p", "", data=1, fsdp=1)
#: Its embedding and its kernels are large enough that each is updated alone.
SHAPES = {
    "vocabulary_size": 2048,
    "layers": 2,
    "width": 512,
    "query_heads": 4,
    "key_value_heads": 4,
    "head_size": 128,
    "feed_forward_width": 512,
    "precision": "bfloat16",
}
MODEL = ModelConfig.model_validate(SHAPES)
ROW_TOKENS = 16


def test_every_program_of_the_step_is_lowered_once_with_all_that_stays_in_memory() -> None:
    programs = list(step_programs(MODEL, CPU, jax.devices()[:1], ROW_TOKENS))
    alive: dict[str, list[int]] = defaultdict(list)
    for program in programs:
        alive[program.phase].append(program.alive_bytes)
    masters = parameter_bytes(MODEL)
    resident = masters + moment_bytes(MODEL, "bfloat16") + snapshot_bytes(MODEL)  # the last version is being written
    batch = ROW_TOKENS * 4 * 12  # its arrays of one word for each token
    assert alive["behaviour"] == [pytest.approx(resident + snapshot_bytes(MODEL), abs=batch)]
    assert alive["gradients"] == [pytest.approx(resident + masters, abs=batch)]
    # The norm; then the embedding, the small tensors, and kernels that read the residual stream or write to it: they
    # have one shape, but are divided among devices along different dimensions.
    assert alive["optimiser step"] == [resident + masters] * 5
    assert set(alive["publishing"]) == {resident}


def test_bytes_per_device_are_those_of_a_shard() -> None:
    mesh = jax.make_mesh((1,), ("fsdp",), devices=jax.devices()[:1])
    where = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("fsdp"))
    one = jax.ShapeDtypeStruct((4, 3), "bfloat16", sharding=where)
    assert bytes_per_device({"a": one, "b": [one]}) == 48


def test_the_program_prints_what_each_program_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(ARCHITECTURES, "small", SHAPES)  # type: ignore[arg-type]
    monkeypatch.setitem(ACCELERATORS, "cpu", CPU)  # type: ignore[arg-type]
    monkeypatch.setattr(compile_step, "devices_of", lambda _accelerators: jax.devices()[:1])
    compile_step.main(["small", "cpu", "--row-tokens", str(ROW_TOKENS), "--layers", "1"])
    found = json.loads(capsys.readouterr().out)
    assert [one["phase"] for one in found["programs"][:2]] == ["behaviour", "gradients"]
    for one in found["programs"]:
        assert one["bytes"] > one["made_bytes"] >= 0
    gradients = found["programs"][1]
    masters = parameter_bytes(MODEL.model_copy(update={"layers": 1}))
    assert gradients["argument_bytes"] == pytest.approx(2 * masters, rel=0.01), "XLA counts arguments as we do"
    assert found["compile_s"] > 0


def test_the_mesh_is_that_of_the_accelerators() -> None:
    config = whole_step.learner_config(ACCELERATORS["v5p-8x8x16"], 8192)
    assert (config.mesh.data, config.mesh.fsdp) == (16, 64)
    assert config.optimiser.micro_batch_tokens == 1024 * 8192
