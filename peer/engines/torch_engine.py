"""The torch rollout engine: the policy as a model of transformers, for donors without jax.

A version's weights are views of its state's bytes, one buffer on the device: nothing is converted, and a swap points
the model at other views. The buffer of a version lives as long as it is active, loaded or used by a generation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial

import torch

from peer.engines.base import CompletionSlice, GenerateRequest, VersionState, WarmUp
from peer.engines.held_versions import HeldVersions, LoadedVersion
from peer.engines.torch_model import TorchModel, Weights, read_model, weights_of
from peer.engines.torch_rows import Batch, Row
from rollcast.policy.config import ModelConfig
from rollcast.wire.ids import Version
from rollcast.wire.text.stop_strings import Decode, stop_strings
from rollcast.wire.versions.records import VersionRecord, state_hash

_Loaded = LoadedVersion[Weights]


class TorchEngine:
    """An Engine (peer.engines.base) on torch.

    Args:
        concurrent_rollouts: most completions that are generated at a time.
        memory_share: largest share of an accelerator's memory (0 to 1) that torch takes; None: all that is free.
    """

    def __init__(self, *, concurrent_rollouts: int, memory_share: float | None = None) -> None:
        self._rows = concurrent_rollouts
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if memory_share is not None and self._device.type == "cuda":
            torch.cuda.set_per_process_memory_fraction(memory_share)
        self._decode: Decode | None = None
        self._model: TorchModel | None = None
        self._held: HeldVersions[Weights] = HeldVersions()

    def expect(self, work: WarmUp) -> None:
        """Keep the tokenizer; this engine compiles nothing."""
        self._decode = work.decode

    async def load(self, version: VersionState) -> bytes:
        """Put the bytes on the device (see Engine.load)."""
        return await self._held.load(partial(self._load, version.record, version.state))

    async def activate(self, version: Version) -> None:
        """Make the loaded version active (see Engine.activate)."""
        self._held.activate(version)

    def begin(self, requests: Sequence[GenerateRequest]) -> TorchGeneration:
        """Start completions, as many at a time as there are rows (see Engine.begin)."""
        generation = TorchGeneration(self, self._held.require_active())
        generation.add(requests)
        return generation

    @property
    def hardware(self) -> str:
        """The release of torch, and its device."""
        name = torch.cuda.get_device_name() if self._device.type == "cuda" else "cpu"
        return f"torch {torch.__version__} ({name})"

    def computation(self, model: ModelConfig) -> str:
        """Return how a model is sampled here (see Engine.computation)."""
        return f"computes on {self.hardware}, attention by transformers, precision {model.precision}"

    @property
    def active_version(self) -> Version | None:
        """The version with which the next generation starts; None: no version is active."""
        return self._held.active_version

    async def close(self) -> None:
        """Free the weights; a slice that is still running ends in its thread."""
        self._held.close()
        self._model = None

    def _load(self, record: VersionRecord, state: memoryview) -> tuple[_Loaded, bytes]:
        config = read_model(record)
        # A copy: the store may drop its file while the weights are in use.
        buffer = torch.frombuffer(bytearray(state), dtype=torch.uint8).to(self._device)
        weights = weights_of(record, buffer)
        read_back = memoryview(buffer.cpu().numpy())
        return LoadedVersion(record.epoch, record.version, config, weights), state_hash(read_back)

    def _pointed_at(self, loaded: _Loaded) -> TorchModel:
        """Return the model set to these weights. Only the generating thread may call this."""
        if self._model is None or self._model.config != loaded.config:
            self._model = TorchModel(loaded.config, self._device)
        self._model.point(loaded.weights)
        return self._model


class TorchGeneration:
    """A Generation (peer.engines.base)."""

    def __init__(self, engine: TorchEngine, weights: _Loaded) -> None:
        self._engine = engine
        self._weights = weights
        self._generated_with: _Loaded | None = None
        self._waiting: deque[Row] = deque()
        self._batch: Batch | None = None
        self._asked = 0

    def add(self, requests: Sequence[GenerateRequest]) -> None:
        """Queue requests for rows that become free (see Generation.add)."""
        if any(len(item.already_generated) >= item.sampling.max_new_tokens for item in requests):
            raise ValueError("a request has no token left to generate")
        stops = [stop_strings(item.sampling, self._engine._decode) for item in requests]
        for item, stop in zip(requests, stops, strict=True):
            self._waiting.append(Row(self._asked, item, list(item.already_generated), stop))
            self._asked += 1

    async def next_slice(self, tokens_max: int) -> list[CompletionSlice]:
        """Generate one slice in the engine's thread (see Generation.next_slice)."""
        return await self._engine._held.generate(partial(self._generate, self._weights, tokens_max))

    def renew(self) -> None:
        """Switch to the active weights; the next slice reads the tokens so far again (see Generation.renew)."""
        self._weights = self._engine._held.active or self._weights

    def _generate(self, weights: _Loaded, tokens_max: int) -> list[CompletionSlice]:
        model = self._engine._pointed_at(weights)
        going = [] if self._batch is None else self._batch.rows
        if self._batch is None or self._generated_with is not weights:
            self._batch = Batch(model)
            joining = list(going)
        else:
            joining = []
        self._generated_with = weights
        while self._waiting and len(self._batch.rows) + len(joining) < self._engine._rows:
            joining.append(self._waiting.popleft())
        if joining:
            self._batch.join(joining)
        rows = list(self._batch.rows)
        for _ in range(tokens_max):
            if not self._batch.rows:
                break
            self._batch.step()
        return [_news(row, weights) for row in rows]


def _news(row: Row, weights: _Loaded) -> CompletionSlice:
    tokens, logprobs = tuple(row.new), tuple(row.logprobs)
    row.new, row.logprobs = [], []
    return CompletionSlice(row.number, weights.epoch, weights.version, tokens, logprobs, row.finish_reason)
