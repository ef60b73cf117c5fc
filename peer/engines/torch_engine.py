"""The torch rollout engine: the policy as a model of transformers, for donors without jax.

A version's weights are views of its state's bytes, one buffer on the device: nothing is converted, and a swap points
the model at other views. The buffer of a version lives as long as it is active, loaded or used by a generation.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from peer.engines.base import Drawn, GenerateRequest, WarmUp
from peer.engines.torch_model import TorchModel, Weights, read_model, weights_of
from peer.engines.torch_rows import Batch, Row
from rollcast.policy.config import ModelConfig
from rollcast.policy.stop_strings import Decode, stop_strings
from rollcast.wire.ids import Epoch, Version
from rollcast.wire.records import VersionRecord, state_hash


@dataclass(frozen=True, slots=True)
class _Loaded:
    """One version's weights on the device."""

    epoch: Epoch
    version: Version
    config: ModelConfig
    weights: Weights


class TorchEngine:
    """See peer.engines.base.Engine. Draws up to ``concurrent_rollouts`` completions at a time."""

    def __init__(self, *, concurrent_rollouts: int) -> None:
        self._rows = concurrent_rollouts
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._decode: Decode | None = None
        self._model: TorchModel | None = None
        self._active: _Loaded | None = None
        self._beside: _Loaded | None = None
        self._generating = ThreadPoolExecutor(1, thread_name_prefix="generate")
        self._loading = ThreadPoolExecutor(1, thread_name_prefix="load")

    def expect(self, work: WarmUp) -> None:
        """Nothing is compiled; the tokenizer is kept."""
        self._decode = work.decode

    async def load(self, record: VersionRecord, state: memoryview) -> bytes:
        """Put the bytes on the device (see Engine.load)."""
        self._beside = None  # never three versions in the device's memory
        loop = asyncio.get_running_loop()
        self._beside, loaded_hash = await loop.run_in_executor(self._loading, self._load, record, state)
        return loaded_hash

    async def activate(self, version: Version) -> None:
        """Swap by one assignment: a generation reads it when it begins or is renewed (see Engine.activate)."""
        if self._beside is None or self._beside.version != version:
            raise ValueError(f"version {version} is not loaded")
        if self._active is not None and version <= self._active.version:
            raise ValueError(f"version {version} is not newer than {self._active.version}")
        self._active, self._beside = self._beside, None

    def begin(self, requests: Sequence[GenerateRequest]) -> TorchGeneration:
        """As many at a time as there are rows (see Engine.begin)."""
        if self._active is None:
            raise ValueError("no version is active")
        generation = TorchGeneration(self, self._active)
        generation.add(requests)
        return generation

    @property
    def hardware(self) -> str:
        """What torch computes on."""
        name = torch.cuda.get_device_name() if self._device.type == "cuda" else "cpu"
        return f"torch {torch.__version__} ({name})"

    @property
    def active_version(self) -> Version | None:
        """The version that the next generation begins with."""
        return None if self._active is None else self._active.version

    async def close(self) -> None:
        """Forget the weights; a slice still running ends in its thread."""
        self._generating.shutdown(wait=False, cancel_futures=True)
        self._loading.shutdown(wait=False, cancel_futures=True)
        self._active = self._beside = self._model = None

    def _load(self, record: VersionRecord, state: memoryview) -> tuple[_Loaded, bytes]:
        config = read_model(record)
        # A copy: the store may drop its file while the weights are in use.
        buffer = torch.frombuffer(bytearray(state), dtype=torch.uint8).to(self._device)
        weights = weights_of(record, buffer)
        read_back = memoryview(buffer.cpu().numpy())
        return _Loaded(record.epoch, record.version, config, weights), state_hash(read_back)

    def _pointed_at(self, loaded: _Loaded) -> TorchModel:
        """The model, computing with these weights; only the generating thread comes here."""
        if self._model is None or self._model.config != loaded.config:
            self._model = TorchModel(loaded.config, self._device)
        self._model.point(loaded.weights)
        return self._model


class TorchGeneration:
    """See peer.engines.base.Generation."""

    def __init__(self, engine: TorchEngine, weights: _Loaded) -> None:
        self._engine = engine
        self._weights = weights
        self._drawn_with: _Loaded | None = None
        self._waiting: deque[Row] = deque()
        self._batch: Batch | None = None
        self._asked = 0

    def add(self, requests: Sequence[GenerateRequest]) -> None:
        """More requests, for rows that become free (see Generation.add)."""
        if any(len(item.already_generated) >= item.sampling.max_new_tokens for item in requests):
            raise ValueError("a request leaves nothing to draw")
        stops = [stop_strings(item.sampling, self._engine._decode) for item in requests]
        for item, stop in zip(requests, stops, strict=True):
            self._waiting.append(Row(self._asked, item, list(item.already_generated), stop))
            self._asked += 1

    async def draw(self, tokens_max: int) -> list[Drawn]:
        """One slice, in the engine's thread (see Generation.draw)."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._engine._generating, self._draw, self._weights, tokens_max)

    def renew(self) -> None:
        """Take the active weights; the next slice reads again what was drawn (see Generation.renew)."""
        if self._engine._active is not None:
            self._weights = self._engine._active

    def _draw(self, weights: _Loaded, tokens_max: int) -> list[Drawn]:
        model = self._engine._pointed_at(weights)
        going = [] if self._batch is None else self._batch.rows
        if self._batch is None or self._drawn_with is not weights:
            self._batch = Batch(model)
            joining = list(going)
        else:
            joining = []
        self._drawn_with = weights
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


def _news(row: Row, weights: _Loaded) -> Drawn:
    tokens, logprobs = tuple(row.new), tuple(row.logprobs)
    row.new, row.logprobs = [], []
    return Drawn(row.number, weights.epoch, weights.version, tokens, logprobs, row.finish_reason)
