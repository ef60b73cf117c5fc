"""Test how XLA divides the step of a micro-batch among devices."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from rollcast.policy.config import ModelConfig
from tests.compiling import printed_on_eight_devices
from tests.learner.training.partitioned_step import TIME, VOCABULARY

WITHOUT_TENSOR = {"data": 2, "fsdp": 4}
ALL_AXES = {"data": 2, "fsdp": 2, "tensor": 2}
WIDTH = ModelConfig().width
LAYERS = 6
TIED = {"tied_embeddings": True, "layers": LAYERS}
UNTIED = {"tied_embeddings": False, "attention_bias": True, "layers": LAYERS}


CASES = {
    "untied fsdp": {"mesh": WITHOUT_TENSOR, "model": UNTIED},
    "untied all-axes": {"mesh": ALL_AXES, "model": UNTIED},
    "tied fsdp": {"mesh": WITHOUT_TENSOR, "model": TIED},
    "tied all-axes": {"mesh": ALL_AXES, "model": TIED},
    "twice the layers": {"mesh": WITHOUT_TENSOR, "model": TIED | {"layers": 2 * LAYERS}},
}


@pytest.fixture(scope="module")
def partitioned() -> dict[str, Any]:
    """Return what tests.learner.training.partitioned_step prints for each of CASES, which one process compiles."""
    printed = printed_on_eight_devices("tests.learner.training.partitioned_step", json.dumps([*CASES.values()]))
    return dict(zip(CASES, printed, strict=True))


@pytest.mark.parametrize("case", ["untied fsdp", "tied fsdp"])
def test_gradients_are_added_up_over_devices_in_float32(partitioned: dict[str, Any], case: str) -> None:
    """Without a tensor axis no activation is added up over devices, so that every sum is one of gradients."""
    found = partitioned[case]["collectives"]
    sums = [(dtype, shape) for kind, dtype, shape in found if kind in ("all-reduce", "reduce-scatter")]
    assert len(sums) >= 10
    assert {dtype for dtype, _ in sums} == {"f32"}


@pytest.mark.parametrize("case", ["untied fsdp", "untied all-axes", "tied fsdp", "tied all-axes"])
def test_neither_the_head_nor_its_gradient_is_whole_on_a_device(partitioned: dict[str, Any], case: str) -> None:
    found = partitioned[case]["collectives"]
    head = WIDTH * VOCABULARY
    assert max(math.prod(shape) for _, _, shape in found) <= head // 4  # the largest is a device's share of a gradient


def test_more_layers_make_neither_the_program_nor_its_memory_larger(partitioned: dict[str, Any]) -> None:
    few, many = partitioned["tied fsdp"], partitioned["twice the layers"]
    assert many["collectives"] == few["collectives"]
    # Only the residual stream before each block is kept for the backward pass, on a CPU in float32: neither the block's
    # weights nor their gradients.
    kept_bytes = TIME * WIDTH * 4
    assert many["temporary_bytes"] - few["temporary_bytes"] <= 1.1 * LAYERS * kept_bytes
