"""Test how XLA divides the step of a micro-batch among devices."""

from __future__ import annotations

import functools
import json
import math
import os
import subprocess
import sys
from typing import Any

import pytest

from rollcast.policy.config import ModelConfig
from tests.learner.training.partitioned_step import TIME, VOCABULARY

WITHOUT_TENSOR = {"data": 2, "fsdp": 4}
ALL_AXES = {"data": 2, "fsdp": 2, "tensor": 2}
WIDTH = ModelConfig().width
LAYERS = 6
TIED = {"tied_embeddings": True, "layers": LAYERS}
UNTIED = {"tied_embeddings": False, "attention_bias": True, "layers": LAYERS}


def partitioned(mesh: dict[str, int], model: dict[str, Any]) -> Any:
    """Return what tests.learner.training.partitioned_step prints, from one process for each case."""
    return _partitioned(json.dumps({"mesh": mesh, "model": model}))


@functools.cache
def _partitioned(case: str) -> Any:
    command = [sys.executable, "-m", "tests.learner.training.partitioned_step"]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run([*command, case], env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


MODELS = pytest.mark.parametrize("model", [UNTIED, TIED], ids=["untied", "tied"])


@MODELS
def test_gradients_are_added_up_over_devices_in_float32(model: dict[str, Any]) -> None:
    """Without a tensor axis no activation is added up over devices, so that every sum is one of gradients."""
    found = partitioned(WITHOUT_TENSOR, model)["collectives"]
    sums = [(dtype, shape) for kind, dtype, shape in found if kind in ("all-reduce", "reduce-scatter")]
    assert len(sums) >= 10
    assert {dtype for dtype, _ in sums} == {"f32"}


@MODELS
@pytest.mark.parametrize("mesh", [WITHOUT_TENSOR, ALL_AXES], ids=["fsdp", "all-axes"])
def test_neither_the_head_nor_its_gradient_is_whole_on_a_device(model: dict[str, Any], mesh: dict[str, int]) -> None:
    found = partitioned(mesh, model)["collectives"]
    head = WIDTH * VOCABULARY
    assert max(math.prod(shape) for _, _, shape in found) <= head // 4  # the largest is a device's share of a gradient


def test_more_layers_make_neither_the_program_nor_its_memory_larger() -> None:
    few, many = (partitioned(WITHOUT_TENSOR, TIED | {"layers": layers}) for layers in (LAYERS, 2 * LAYERS))
    assert many["collectives"] == few["collectives"]
    # Only the residual stream before each block is kept for the backward pass, on a CPU in float32: neither the block's
    # weights nor their gradients.
    kept_bytes = TIME * WIDTH * 4
    assert many["temporary_bytes"] - few["temporary_bytes"] <= 1.1 * LAYERS * kept_bytes
