"""Measure how well training uses its devices: tokens per second, model FLOPs utilisation, and device memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from rollcast.policy.config import ModelConfig
from rollcast.policy.sizing.flops import training_flops
from rollcast.policy.sizing.hardware import peak_flops


class Throughput:
    """The use of a learner's devices by its steps.

    Args:
        model: the model that is trained.
        devices: the devices of the learner's mesh, of all processes.
    """

    def __init__(self, model: ModelConfig, devices: Sequence[Any]) -> None:
        self._model = model
        peak = peak_flops(devices[0].device_kind)
        self._peak_flops = None if peak is None else peak * len(devices)

    def figures(self, lengths: Sequence[int], train_s: float, *, passes: int = 1) -> dict[str, float]:
        """Return the figures of one learner step.

        Args:
            lengths: tokens of each trained sequence, prompt and completion.
            train_s: seconds of its optimiser steps, without compiling.
            passes: how often the step trained on each sequence.

        Returns:
            train_tokens_per_s; mfu, the model FLOPs in that time / the devices' published peak (Chowdhery et al. 2022,
            "PaLM", section 4.1), where the peak is known; device_memory_peak_gib and device_memory_peak_share, the
            high-water mark of the fullest device of this process, where devices report it.
        """
        found = device_memory(jax.local_devices())
        if train_s <= 0.0:
            return found
        found["train_tokens_per_s"] = passes * sum(lengths) / train_s
        if self._peak_flops is not None:
            found["mfu"] = passes * training_flops(self._model, lengths) / (train_s * self._peak_flops)
        return found


def device_memory(devices: Sequence[Any]) -> dict[str, float]:
    """Return the high-water mark of the fullest device, in GiB and as a share of what the runtime may use.

    The result is empty if no device reports its memory; a CPU does not.
    """
    reports = [report for report in (device.memory_stats() for device in devices) if report]
    peaks = [(one["peak_bytes_in_use"], one.get("bytes_limit", 0)) for one in reports if "peak_bytes_in_use" in one]
    if not peaks:
        return {}
    peak, limit = max(peaks)
    found = {"device_memory_peak_gib": peak / 2**30}
    return found | {"device_memory_peak_share": peak / limit} if limit else found
