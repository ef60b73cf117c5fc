"""An engine without a model: tokens are a hash of (state, prompt, seed, position). For tests of everything else."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from blake3 import blake3

from peer.engines.base import GeneratedRollout, GenerateRequest, WarmUp
from rollcast.wire.ids import Version
from rollcast.wire.records import VersionRecord, state_hash
from rollcast.wire.rollouts import FinishReason

VOCABULARY = 32
STOP_SHARE = 8  # one token in so many is a stop token


class FakeEngine:
    """See peer.engines.base.Engine. ``hold`` makes generate wait until ``released`` is set."""

    def __init__(self) -> None:
        self.expected: list[WarmUp] = []
        self.loads: list[Version] = []
        self.batches: list[tuple[Version, int]] = []
        self.released = asyncio.Event()
        self.released.set()
        self.closed = False
        self._active: tuple[VersionRecord, bytes] | None = None
        self._beside: tuple[VersionRecord, bytes] | None = None

    def expect(self, work: WarmUp) -> None:
        self.expected.append(work)

    async def load(self, record: VersionRecord, state: memoryview) -> bytes:
        copied = bytes(state)
        self.loads.append(record.version)
        self._beside = (record, copied)
        return state_hash(copied)

    async def activate(self, version: Version) -> None:
        if self._beside is None or self._beside[0].version != version:
            raise ValueError(f"version {version} is not loaded")
        if self._active is not None and version <= self._active[0].version:
            raise ValueError(f"version {version} is not newer")
        self._active, self._beside = self._beside, None

    async def generate(self, requests: Sequence[GenerateRequest]) -> list[GeneratedRollout]:
        if self._active is None:
            raise ValueError("no version is active")
        record, state = self._active
        self.batches.append((record.version, len(requests)))
        await asyncio.sleep(0)
        await self.released.wait()
        return [_draw(record, state, request) for request in requests]

    @property
    def hardware(self) -> str:
        return "none"

    @property
    def active_version(self) -> Version | None:
        return None if self._active is None else self._active[0].version

    async def close(self) -> None:
        self.closed = True


def _draw(record: VersionRecord, state: bytes, request: GenerateRequest) -> GeneratedRollout:
    sampling = request.sampling
    tokens: list[int] = []
    finish: FinishReason = "length"
    for position in range(len(request.already_generated), sampling.max_new_tokens):
        context = repr((request.prompt_token_ids, request.already_generated, request.seed, position)).encode()
        digest = blake3(state + context + bytes(tokens)).digest()
        if sampling.stop_token_ids and digest[1] % STOP_SHARE == 0:
            tokens.append(sampling.stop_token_ids[0])
            finish = "stop"
            break
        tokens.append(2 + digest[0] % (VOCABULARY - 2))
    return GeneratedRollout(record.epoch, record.version, tuple(tokens), (-1.0,) * len(tokens), finish, seconds=0.001)
