"""Test that a sampler's programs are compiled from shapes alone, and that their bytes are those of a peer's plan."""

from __future__ import annotations

import json

import jax
import pytest

from bench.ahead import compile_sampler
from bench.ahead.accelerators import ACCELERATORS, Accelerators
from rollcast.policy.config import ModelConfig
from rollcast.policy.published import ARCHITECTURES
from rollcast.policy.sampling import kv_cache
from rollcast.policy.sizing.memory import PeerShape, peer_memory

SHAPES = {
    "vocabulary_size": 2048,
    "layers": 1,
    "width": 256,
    "query_heads": 4,
    "key_value_heads": 4,
    "head_size": 64,
    "feed_forward_width": 512,
    "precision": "bfloat16",
}


def test_the_program_prints_what_generating_and_reading_need(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(ARCHITECTURES, "small", SHAPES)  # type: ignore[arg-type]
    monkeypatch.setitem(ACCELERATORS, "cpu", Accelerators("cpu", 0.0, "", "", data=1, fsdp=1))  # type: ignore[arg-type]
    monkeypatch.setattr(compile_sampler, "devices_of", lambda _accelerators: jax.devices()[:1])
    monkeypatch.setattr(kv_cache, "RUN_TOKENS", kv_cache.RUN_TOKENS)
    options = ["--rollouts", "4", "--prompt-tokens", "16", "--new-tokens", "48"]
    compile_sampler.main(["small", "cpu", *options])
    found = json.loads(capsys.readouterr().out)
    assert found.keys() == {"decode", "prefill"}
    plan = peer_memory(ModelConfig.model_validate(SHAPES), PeerShape(4, 64, versions_on_device=1))
    assert all(size >= sum(plan.resident.values()) for size in found.values())
