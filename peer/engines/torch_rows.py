"""Generate completions with a TorchModel: one batch, padded on the left, which rows join and leave."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from transformers import DynamicCache

from peer.engines.base import GenerateRequest
from peer.engines.torch_model import TorchModel
from peer.engines.torch_noise import gumbel, seed_bits
from rollcast.policy.noise import seed_words
from rollcast.wire.rollouts import FinishReason
from rollcast.wire.text.stop_strings import StopStrings


@dataclass(slots=True)
class Row:
    """One completion. While it is generated, its whole context except for the last token is in the cache."""

    number: int
    request: GenerateRequest
    generated: list[int]
    stop: StopStrings | None
    new: list[int] = field(default_factory=list)  # since the last slice
    logprobs: list[float] = field(default_factory=list)  # of the new tokens
    finish_reason: FinishReason | None = None

    @property
    def context(self) -> tuple[int, ...]:
        """The prompt and the tokens generated so far."""
        return (*self.request.prompt_token_ids, *self.generated)

    def take(self, token: int, logprob: float) -> None:
        """Append a token, and set the finish reason if it ends the completion."""
        self.generated.append(token)
        self.new.append(token)
        self.logprobs.append(logprob)
        by_text = self.stop is not None and self.stop.end(self.generated, len(self.generated) - 1) is not None
        if by_text or token in self.request.sampling.stop_token_ids:
            self.finish_reason = "stop"
        elif len(self.generated) >= self.request.sampling.max_new_tokens:
            self.finish_reason = "length"


class Batch:
    """Rows and their cache; the mask ``there``, bool [rows, slots], marks the slots that hold a token of the row."""

    def __init__(self, model: TorchModel) -> None:
        self.rows: list[Row] = []
        self._model = model
        self._cache = DynamicCache()
        self._there = torch.zeros((0, 0), dtype=torch.bool, device=model.device)

    def join(self, rows: list[Row]) -> None:
        """Add rows to the batch; equal contexts, such as the prompt of one group, are read only once."""
        contexts = [row.context[:-1] for row in rows]
        different = list(dict.fromkeys(contexts))
        cache, there = self._prefill(different)
        indices = torch.tensor([different.index(context) for context in contexts], device=self._model.device)
        cache.batch_select_indices(indices)
        there = there[indices]
        if self.rows:
            cache, there = _joined((self._cache, self._there), (cache, there))
        self.rows, self._cache, self._there = self.rows + rows, cache, there

    def step(self) -> None:
        """Sample one token for every row; rows that end leave the batch."""
        rows, device = self.rows, self._model.device
        contexts = [row.context for row in rows]
        tokens = torch.tensor([[context[-1]] for context in contexts], device=device)
        positions = torch.tensor([[len(context) - 1] for context in contexts], device=device)
        self._there = torch.cat((self._there, torch.ones((len(rows), 1), dtype=torch.bool, device=device)), dim=1)
        hidden = self._model.read(tokens, positions, self._there[:, None], self._cache)
        temperatures = torch.tensor([row.request.sampling.temperature for row in rows], device=device)
        scaled = self._model.logits(hidden[:, -1]) / temperatures[:, None]
        seeds = seed_bits([seed_words(row.request.seed) for row in rows], device)
        noise = gumbel(seeds, (positions[:, 0] + 1).int(), scaled.shape[-1])
        sampled = (scaled + noise).argmax(dim=-1)
        logprobs = scaled.gather(1, sampled[:, None])[:, 0] - scaled.logsumexp(dim=-1)
        for row, token, logprob in zip(rows, sampled.tolist(), logprobs.tolist(), strict=True):
            row.take(token, logprob)
        self._leave([index for index, row in enumerate(rows) if row.finish_reason is None])

    def _leave(self, stay: list[int]) -> None:
        if len(stay) == len(self.rows):
            return
        self.rows = [self.rows[index] for index in stay]
        indices = torch.tensor(stay, dtype=torch.int64, device=self._model.device)
        self._there = self._there[indices]
        self._cache.batch_select_indices(indices)

    def _prefill(self, contexts: list[tuple[int, ...]]) -> tuple[DynamicCache, torch.Tensor]:
        """Read contexts, padded on the left, into a new cache.

        It has at least one slot, so that a cache exists even if every context is empty.
        """
        device, time = self._model.device, max(1, *map(len, contexts))
        padding = [time - len(context) for context in contexts]
        tokens = torch.tensor([[0] * pad + list(context) for pad, context in zip(padding, contexts, strict=True)])
        slots = torch.arange(time, device=device)
        starts = torch.tensor(padding, device=device)[:, None]
        there = slots[None, :] >= starts
        causal = slots[:, None] >= slots[None, :]
        # Padding attends to itself: a softmax over nothing is NaN, and would spread.
        allowed = (causal & there[:, None, :]) | (slots[:, None] == slots[None, :])
        cache = DynamicCache()
        self._model.read(tokens.to(device), (slots[None, :] - starts).clamp(min=0), allowed, cache)
        return cache, there


def _joined(
    one: tuple[DynamicCache, torch.Tensor], other: tuple[DynamicCache, torch.Tensor]
) -> tuple[DynamicCache, torch.Tensor]:
    """Join two batches into one, padding the shorter one on the left."""
    slots = max(one[1].shape[1], other[1].shape[1])
    pads = [slots - there.shape[1] for _, there in (one, other)]
    both = [torch.nn.functional.pad(there, (pad, 0)) for (_, there), pad in zip((one, other), pads, strict=True)]
    for mine, theirs in zip(one[0].layers, other[0].layers, strict=True):
        mine.keys = torch.cat([_padded(part, pad) for part, pad in zip((mine.keys, theirs.keys), pads, strict=True)])
        values = zip((mine.values, theirs.values), pads, strict=True)
        mine.values = torch.cat([_padded(part, pad) for part, pad in values])
    return one[0], torch.cat(both)


def _padded(part: torch.Tensor, slots: int) -> torch.Tensor:
    """Return keys or values [rows, heads, slots, head_size] with ``slots`` empty slots in front."""
    return torch.nn.functional.pad(part, (0, 0, slots, 0))
