from __future__ import annotations

from dataclasses import replace

import pytest

from rollcast.policy.config import ModelConfig
from rollcast.policy.sizing.fitting import cache_that_fits, learner_fits, peer_fits
from rollcast.policy.sizing.hardware import CATALOGUE, GIB, Hardware
from rollcast.policy.sizing.memory import LearnerShape, PeerShape, learner_memory, paged_tokens, peer_memory

MODEL = ModelConfig(preset="qwen3-0.6b")
LEARNER = LearnerShape(row_tokens=2048, micro_batch_tokens=4096, remat=True, fused_attention=True)
PEER = PeerShape(concurrent_rollouts=16, row_tokens=2048)
GIANT, SMALL, TINY = (Hardware(str(size), "datacentre", size, 8) for size in (1000, 6, 0.5))


def test_a_large_device_holds_it_as_it_is() -> None:
    (fit,) = learner_fits(MODEL, LEARNER, [GIANT])
    assert (fit.as_configured, fit.fsdp, fit.peak_bytes) == (True, 1, learner_memory(MODEL, LEARNER).peak)


def test_a_small_one_must_be_several() -> None:
    (fit,) = learner_fits(MODEL, LEARNER, [SMALL])
    assert not fit.as_configured
    assert fit.fsdp in (2, 4, 8)
    assert fit.peak_bytes <= SMALL.usable_bytes
    halved = LearnerShape(2048, 4096, remat=True, fused_attention=True, fsdp=fit.fsdp // 2)
    assert learner_memory(MODEL, halved).peak > SMALL.usable_bytes


def test_nothing_helps_where_a_row_does_not_fit() -> None:
    (fit,) = learner_fits(MODEL, LEARNER, [TINY])
    assert (fit.as_configured, fit.fsdp) == (False, 0)


def test_a_mesh_larger_than_the_machine_does_not_fit() -> None:
    wide = LearnerShape(2048, 4096, data=16)
    assert [fit.as_configured for fit in learner_fits(MODEL, wide, [GIANT])] == [False]


@pytest.mark.parametrize(
    ("preset", "hardware", "rollouts"),
    [("qwen3-8b", "RTX 3090 / 4090 24GB", 16), ("qwen3-32b", "A100 / H100 80GB", 16)],
)
def test_one_copy_of_the_weights_fits_where_two_do_not(preset: str, hardware: str, rollouts: int) -> None:
    model, kinds = ModelConfig(preset=preset), [one for one in CATALOGUE if one.name == hardware]
    shape = PeerShape(rollouts, row_tokens=2048)
    (one,), (two,) = (peer_fits(model, replace(shape, versions_on_device=count), kinds) for count in (1, 2))
    assert one.as_configured
    assert (two.as_configured, two.rollouts_max) == (False, 0)


def test_a_peer_that_fits_no_device_fits_several() -> None:
    (h100,) = (one for one in CATALOGUE if one.name == "A100 / H100 80GB")
    shape = PeerShape(64, row_tokens=8192, versions_on_device=1)
    (fit,) = peer_fits(ModelConfig(preset="qwen3-32b"), shape, [h100])
    assert (fit.as_configured, fit.devices) == (False, 4)
    assert peer_fits(MODEL, PEER, [TINY])[0].devices == 0


def test_a_peer_samples_as_many_rollouts_as_its_memory_holds() -> None:
    giant, small, tiny = peer_fits(MODEL, PEER, [GIANT, SMALL, TINY])
    assert giant.as_configured
    assert (tiny.as_configured, tiny.rollouts_max) == (False, 0)
    most = small.rollouts_max
    assert 1 <= most < giant.rollouts_max
    at, beyond = (peer_memory(MODEL, PeerShape(count, 2048)).peak for count in (most, most + 1))
    assert at <= SMALL.usable_bytes < beyond


def test_the_largest_cache_that_a_device_has_room_for() -> None:
    whole, one = 16 * paged_tokens(2048), paged_tokens(2048)
    assert cache_that_fits(MODEL, PEER, GIANT.memory_gib * GIB) == whole
    assert cache_that_fits(MODEL, PEER, TINY.memory_gib * GIB) == 0
    tokens = cache_that_fits(MODEL, PEER, SMALL.memory_gib * GIB)
    assert one < tokens < whole
    assert peer_memory(MODEL, replace(PEER, cache_tokens=tokens)).peak <= SMALL.usable_bytes
    assert peer_memory(MODEL, replace(PEER, cache_tokens=tokens + 16)).peak > SMALL.usable_bytes
