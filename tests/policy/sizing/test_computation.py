"""Test what a process says of the device, the kernel and the precision that it computes with."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from rollcast.policy.config import ModelConfig
from rollcast.policy.sizing import computation
from rollcast.policy.sizing.computation import (
    _experts_reason,
    missing_accelerator,
    sampling_computation,
    training_computation,
)
from tests.policy.tiny import TINY, TINY_EXPERTS


def test_a_learner_says_which_kernel_its_rows_get() -> None:
    short = training_computation(TINY, 512, packed=False, matmul_precision="highest", mesh_sizes=(1, 1, 1))
    assert (short.attention, short.precision) == ("dense", "float32 (products highest)")
    long = training_computation(TINY, 4096, packed=False, matmul_precision="high", mesh_sizes=(1, 1, 1))
    assert long.attention == "blocks"
    assert short.device.endswith("(cpu)")
    assert str(short).startswith(f"computes on {short.device}, attention by dense, precision float32")


def test_fp8_without_a_unit_for_it_says_why() -> None:
    fp8 = TINY.model_copy(update={"precision": "fp8", "carrier": "bfloat16"})
    found = sampling_computation(fp8, "highest", 1, two_versions=True)
    assert found.precision == "fp8 in float32 and bfloat16 units, carrier bfloat16"
    assert found.reasons[-1] == "a cpu has no FP8 unit that is used"
    assert found.reasons[-1] in str(found)
    assert found.attention == "pages"
    assert (
        sampling_computation(ModelConfig(precision="bfloat16"), "highest", 1, two_versions=True).precision == "bfloat16"
    )


def test_fp8_units_that_a_mesh_does_not_use_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(computation.fp8_unit, "refusal", lambda: "")
    fp8 = TINY.model_copy(update={"precision": "fp8"})
    on_mesh = functools.partial(training_computation, fp8, 512, packed=False, matmul_precision="highest")
    assert on_mesh(mesh_sizes=(1, 8, 1)).precision.startswith("fp8 in FP8 units")
    found = on_mesh(mesh_sizes=(1, 4, 2))
    assert found.precision.startswith("fp8 in float32 and bfloat16 units")
    assert found.reasons[-1] == "FP8 units are used where mesh.tensor is 1, and it is 2"


def test_experts_without_a_grouped_product_are_named() -> None:
    found = sampling_computation(TINY_EXPERTS, "highest", 1, two_versions=True)
    assert found.reasons[-1] == "XLA multiplies every token with every expert here"
    assert _experts_reason(TINY_EXPERTS, "gpu") == _experts_reason(TINY, "cpu") == ""
    assert "in bfloat16" in _experts_reason(TINY_EXPERTS.model_copy(update={"precision": "fp8"}), "gpu")


def test_an_accelerator_without_its_plugin_is_named(tmp_path: Path) -> None:
    assert missing_accelerator(tmp_path) == ""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "accel0").touch()
    assert "a TPU" in missing_accelerator(tmp_path)
    (tmp_path / "dev" / "nvidiactl").touch()
    assert "an NVIDIA GPU, but jax was installed without its plugin: install the extra cuda12" in missing_accelerator(
        tmp_path
    )
