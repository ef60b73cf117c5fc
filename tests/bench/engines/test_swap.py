"""Test the benchmark of swaps in vLLM: its states and its memory figure, and all of it with a real vLLM."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from bench.engines.swap import anonymous_bytes, copy_s, measured, order, state_of, write_states
from rollcast.policy.config import ModelConfig

TINY = ModelConfig(
    vocabulary_size=64,
    layers=1,
    width=32,
    query_heads=2,
    key_value_heads=1,
    head_size=32,
    feed_forward_width=64,
    precision="bfloat16",
)


def test_swaps_alternate_between_other_weights_and_a_little_of_them(tmp_path: Path) -> None:
    states = [np.fromfile(path, "<u2") for path in write_states(TINY, tmp_path)]
    shares = [float(np.mean(states[old] != states[new])) for old, new in zip(order(2), order(2)[1:], strict=False)]
    assert [share > 0.5 for share in shares] == [True, False, False] * 2
    assert all(0.005 < share <= 0.01 for share in shares if share < 0.5)
    floats = (states[0].astype(np.uint32) << 16).view(np.float32)
    assert 0.007 < np.abs(floats).min() < np.abs(floats).max() < 0.125
    assert state_of(TINY, 3, tmp_path / "state-0").record.version == 3
    assert copy_s(tmp_path / "state-0", 1) > 0.0


def test_memory_is_that_of_the_processes_that_live() -> None:
    assert anonymous_bytes([os.getpid(), 2**22 + 1]) > 1 << 20


@pytest.mark.vllm
@pytest.mark.timeout(600)
async def test_every_figure_is_reported(tmp_path: Path) -> None:
    figures = await measured(TINY, Path(os.environ["ROLLCAST_VLLM_PYTHON"]), tmp_path, rounds=1)
    assert figures["swap_read_back"] == 1.0
    assert 0.0 < figures["swap_moved_share"] <= 0.03
    assert figures["swap_pause_per_copy"] > 0.0
