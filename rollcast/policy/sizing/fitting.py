"""Decide which hardware holds a learner or a peer, and over how many devices a learner must be spread."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from rollcast.policy.config import ModelConfig
from rollcast.policy.sizing.hardware import CATALOGUE, USABLE_SHARE, Hardware
from rollcast.policy.sizing.memory import LearnerShape, PeerShape, learner_memory, paged_tokens, peer_memory

ROLLOUTS_MAX = 4096
"""The most rollouts at once that the search for the largest concurrency considers."""
_ENGINE_DEVICES_MAX = 8  # of one host: an engine exchanges activations twice a layer for every token


@dataclass(frozen=True, slots=True)
class LearnerFit:
    """The fit of a learner on one kind of device; ``fsdp`` is 0 if it fits no number of devices."""

    hardware: Hardware
    as_configured: bool  # whether the configured mesh suffices
    fsdp: int  # smallest number of devices that parameters, gradients and states must be spread over
    peak_bytes: int  # bytes of one of these devices


@dataclass(frozen=True, slots=True)
class PeerFit:
    """The fit of a peer on one kind of device; ``rollouts_max`` and ``devices`` are 0 if it does not fit."""

    hardware: Hardware
    as_configured: bool
    rollouts_max: int  # most rollouts sampled at once on the configured devices, at the configured length
    peak_bytes: int  # bytes of a device with the configured concurrency
    devices: int  # smallest number of devices of a machine over which the configured concurrency fits


def learner_fits(
    model: ModelConfig, shape: LearnerShape, catalogue: Iterable[Hardware] = CATALOGUE
) -> list[LearnerFit]:
    """Return for each kind of device whether the configured mesh suffices, and the least fsdp that does."""
    return [_learner_fit(model, shape, hardware) for hardware in catalogue]


def peer_fits(model: ModelConfig, shape: PeerShape, catalogue: Iterable[Hardware] = CATALOGUE) -> list[PeerFit]:
    """Return for each kind of device whether the configured concurrency fits, and the highest that does."""
    return [_peer_fit(model, shape, hardware) for hardware in catalogue]


def cache_that_fits(model: ModelConfig, shape: PeerShape, memory_bytes: float) -> int:
    """Return the tokens of the largest key-value cache with which a peer fits devices of this memory.

    It is at most what all rollouts need at the greatest length, and 0 if there is no room for one of them.
    """

    def peak(tokens: int) -> int:
        return peer_memory(model, replace(shape, cache_tokens=tokens)).peak

    one = paged_tokens(shape.row_tokens)
    whole, usable = shape.concurrent_rollouts * one, memory_bytes * USABLE_SHARE
    if peak(whole) <= usable:
        return whole
    if peak(one) > usable:
        return 0
    bytes_per_token = (peak(whole) - peak(one)) / (whole - one)
    return one + int((usable - peak(one)) / bytes_per_token)


def _learner_fit(model: ModelConfig, shape: LearnerShape, hardware: Hardware) -> LearnerFit:
    configured = learner_memory(model, shape).peak
    enough = shape.devices <= hardware.devices_max and configured <= hardware.usable_bytes
    fsdp, peak = 1, 0
    while fsdp <= min(hardware.devices_max, model.width):
        # Each device then has its own rows: what is in memory of a micro-batch is one row at least.
        peak = learner_memory(model, replace(shape, data=1, fsdp=fsdp, tensor=1)).peak
        if peak <= hardware.usable_bytes:
            return LearnerFit(hardware, enough, fsdp, peak)
        fsdp *= 2
    return LearnerFit(hardware, enough, 0, peak)


def _peer_fit(model: ModelConfig, shape: PeerShape, hardware: Hardware) -> PeerFit:
    def fits(rollouts: int) -> bool:
        return peer_memory(model, replace(shape, concurrent_rollouts=rollouts, cache_tokens=0)).peak <= limit

    limit = hardware.usable_bytes
    low, high = 0, ROLLOUTS_MAX
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    configured = peer_memory(model, shape).peak
    return PeerFit(hardware, configured <= limit, low, configured, _peer_devices(model, shape, hardware))


def _peer_devices(model: ModelConfig, shape: PeerShape, hardware: Hardware) -> int:
    devices = 1
    while devices <= min(hardware.devices_max, model.query_heads, _ENGINE_DEVICES_MAX):
        if peer_memory(model, replace(shape, devices=devices)).peak <= hardware.usable_bytes:
            return devices
        devices *= 2
    return 0
