"""An engine without a model: tokens are a hash of state, prompt, seed and tokens so far. For tests of all else."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from blake3 import blake3

from peer.engines.base import CompletionSlice, GenerateRequest, Placement, Swap, VersionState, WarmUp, check_requests
from rollcast.policy.config import ModelConfig
from rollcast.wire.ids import Version
from rollcast.wire.rollouts import FinishReason
from rollcast.wire.text.stop_strings import Decode, stop_strings
from rollcast.wire.version_swap import AtVersionSwap
from rollcast.wire.versions.records import VersionRecord
from rollcast.wire.versions.state_hash import state_hash

VOCABULARY = 32
STOP_SHARE = 8  # one token in so many is a stop token


class FakeEngine:
    """See peer.engines.base.Engine. Slices wait until ``released`` is set, and take ``token_s`` for each token.

    Its generations have rollouts of ``versions`` versions at once, or of one.
    """

    def __init__(self, token_s: float = 0.0, versions: int = 1) -> None:
        self.versions = versions
        self.expected: list[WarmUp] = []
        self.decode: Decode | None = None
        self.loads: list[Version] = []
        self.batches: list[tuple[Version, int]] = []
        self.released = asyncio.Event()
        self.released.set()
        self.closed = False
        self.token_s = token_s
        self.active: tuple[VersionRecord, bytes] | None = None
        self._beside: tuple[VersionRecord, bytes] | None = None

    def expect(self, work: WarmUp) -> None:
        self.expected.append(work)
        self.decode = work.decode

    async def load(self, version: VersionState) -> bytes:
        copied = bytes(version.state)
        self.loads.append(version.record.version)
        self._beside = (version.record, copied)
        return state_hash(copied)

    async def activate(self, version: Version) -> None:
        if self._beside is None or self._beside[0].version != version:
            raise ValueError(f"version {version} is not loaded")
        if self.active is not None and version <= self.active[0].version:
            raise ValueError(f"version {version} is not newer")
        self.active, self._beside = self._beside, None

    def begin(self, requests: Sequence[GenerateRequest]) -> FakeGeneration:
        if self.active is None:
            raise ValueError("no version is active")
        check_requests(requests)
        for item in requests:
            stop_strings(item.sampling, self.decode)
        self.batches.append((self.active[0].version, len(requests)))
        return FakeGeneration(self, self.active, requests)

    @property
    def hardware(self) -> str:
        return "none"

    @property
    def sampler(self) -> str:
        return "fake"

    def computation(self, model: ModelConfig) -> str:
        return f"computes nothing in {model.precision}"

    @property
    def active_version(self) -> Version | None:
        return None if self.active is None else self.active[0].version

    @property
    def last_swap(self) -> Swap | None:
        return None if self.active is None else Swap(self.active[0].version, "keyframe", 0.5, len(self.active[1]), True)

    @property
    def placement(self) -> Placement | None:
        return None if self.active is None else Placement(devices=1, versions=2)

    async def close(self) -> None:
        self.closed = True


class FakeGeneration:
    def __init__(
        self, engine: FakeEngine, weights: tuple[VersionRecord, bytes], requests: Sequence[GenerateRequest]
    ) -> None:
        self._engine = engine
        self._weights = weights
        self._requests = list(requests)
        self._own = [weights] * len(requests)
        self._tokens = [list(item.already_generated) for item in requests]
        self._ended: list[FinishReason | None] = [None] * len(requests)

    async def next_slice(self, tokens_max: int) -> list[CompletionSlice]:
        own = list(self._own)
        await asyncio.sleep(self._engine.token_s * tokens_max)
        await self._engine.released.wait()
        going = [index for index, ended in enumerate(self._ended) if ended is None]
        return [self._generate(index, own[index], tokens_max) for index in going]

    def add(self, requests: Sequence[GenerateRequest]) -> None:
        self._requests += requests
        self._own += [self._weights] * len(requests)
        self._tokens += [list(item.already_generated) for item in requests]
        self._ended += [None] * len(requests)

    def renew(self, mode: AtVersionSwap = "continue") -> None:
        assert self._engine.active is not None
        self._weights = self._engine.active
        if mode == "finish":
            if not self.versions_free:
                raise ValueError("no room for another version")
            self._own = [
                own if ended is None and tokens else self._weights
                for own, ended, tokens in zip(self._own, self._ended, self._tokens, strict=True)
            ]
        else:
            self._own = [self._weights] * len(self._own)

    @property
    def versions_free(self) -> int | None:
        if self._engine.versions == 1:
            return None
        going = [own for own, ended in zip(self._own, self._ended, strict=True) if ended is None]
        return self._engine.versions - len({record.version for record, _ in going})

    def _generate(self, index: int, weights: tuple[VersionRecord, bytes], tokens_max: int) -> CompletionSlice:
        record, state = weights
        tokens = self._tokens[index]
        begin = len(tokens)
        while self._ended[index] is None and len(tokens) < begin + tokens_max:
            token, self._ended[index] = next_token(state, self._requests[index], tokens)
            tokens.append(token)
            stop = stop_strings(self._requests[index].sampling, self._engine.decode)
            if stop is not None and stop.end(tokens, len(tokens) - 1) is not None:
                self._ended[index] = "stop"
        new = tuple(tokens[begin:])
        return CompletionSlice(index, record.epoch, record.version, new, (-1.0,) * len(new), self._ended[index])


def next_token(state: bytes, request: GenerateRequest, so_far: Sequence[int]) -> tuple[int, FinishReason | None]:
    """Return the token after ``so_far``, and whether it is the last one."""
    digest = blake3(state + repr((request.prompt_token_ids, request.seed, tuple(so_far))).encode()).digest()
    stop = request.sampling.stop_token_ids
    if stop and digest[1] % STOP_SHARE == 0:
        return stop[0], "stop"
    full = len(so_far) + 1 >= request.sampling.max_new_tokens
    return 2 + digest[0] % (VOCABULARY - 2), "length" if full else None
