"""Sample with our keyed noise inside vLLM, and compute each token's log-probability at the lease's temperature.

Requests come with temperature 0, so that vLLM takes the argmax of what `KeyedNoise` returns, which is

    logits / T + g(seed, position, token) - logsumexp(logits / T)  =  log p(token) + g(seed, position, token).

The last term is the same for all tokens of a row and changes no argmax. vLLM reports this value of the sampled token
(logprobs_mode "processed_logits"), and `log_probabilities` subtracts the noise again. vLLM's own log-probabilities are
those of the logits before any temperature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from vllm.v1.sample.logits_processor import LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from peer.engines.vllm.server.noise import gumbel, seed_bits
from rollcast.policy.noise import threefry2x32, uniforms

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.sampling_params import SamplingParams
    from vllm.v1.sample.logits_processor import BatchUpdate

SEED = "rollcast_seed"
TEMPERATURE = "rollcast_temperature"
"""Keys of SamplingParams.extra_args."""


@dataclass(slots=True)
class _Row:
    seed: int
    temperature: float
    prompt_tokens: int
    generated: list[int]  # vLLM's own list, which grows


class KeyedNoise(LogitsProcessor):  # type: ignore[misc]
    """The noise of every row of vLLM's batch, on the device of its logits."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        self._device = device
        self._rows: dict[int, _Row] = {}
        self._order: list[int] = []
        self._indices = torch.empty(0, dtype=torch.int64, device=device)
        self._seeds = torch.empty((0, 2), dtype=torch.int32, device=device)
        self._temperatures = torch.empty((0, 1), device=device)

    def is_argmax_invariant(self) -> bool:
        """Return False: vLLM must apply it although the temperature is 0."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow vLLM's batch, in which requests join, leave and change places between two steps."""
        if not process_dict_updates(self._rows, batch_update, _row):
            return
        self._order = sorted(self._rows)
        rows = [self._rows[index] for index in self._order]
        self._indices = torch.tensor(self._order, dtype=torch.int64, device=self._device)
        self._seeds = seed_bits([row.seed for row in rows], self._device).reshape(-1, 2)
        self._temperatures = torch.tensor([[row.temperature] for row in rows], device=self._device)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Return log p + noise, f32 [rows, vocabulary], for logits f32 [rows, vocabulary]."""
        if not self._order:
            return logits
        rows = [self._rows[index] for index in self._order]
        positions = torch.tensor([row.prompt_tokens + len(row.generated) for row in rows], dtype=torch.int32)
        every_row = len(rows) == len(logits)
        scaled = (logits if every_row else logits[self._indices]) / self._temperatures
        noise = gumbel(self._seeds, positions.to(self._device, non_blocking=True), logits.shape[-1])
        # First the sum whose argmax every engine takes: subtracting the same number from all keeps their order.
        noised = (scaled + noise) - scaled.logsumexp(dim=-1, keepdim=True)
        if every_row:
            return noised
        logits[self._indices] = noised
        return logits


def _row(params: SamplingParams, prompt: list[int] | None, generated: list[int]) -> _Row | None:
    extra: dict[str, Any] = params.extra_args or {}
    if SEED not in extra:
        return None
    return _Row(int(extra[SEED]), float(extra[TEMPERATURE]), len(prompt or ()), generated)


def log_probabilities(
    reported: Sequence[float], seeds: Sequence[int], positions: Sequence[int], token_ids: Sequence[int]
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return log p f32 [tokens], at most 0, of sampled tokens from the values that vLLM reports for them.

    Args:
        positions: the index of each token in its prompt and completion.
    """
    words = np.array(seeds, dtype=np.uint64)
    high, low = (words >> np.uint64(32)).astype(np.uint32), words.astype(np.uint32)
    bits, _ = threefry2x32(high, low, np.array(positions, np.uint32), np.array(token_ids, np.uint32))
    noise = -np.log(-np.log(uniforms(bits)))
    result: np.ndarray[Any, np.dtype[np.float32]] = np.minimum(np.array(reported, np.float32) - noise, np.float32(0))
    return result
