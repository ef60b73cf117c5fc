"""The rollout engine that lets an SGLang server generate.

A slice is one request for the next tokens of all rollouts in progress, whose keys and values the server finds in its
prefix cache. So no request outlives a slice, and the server's weights can be swapped between two slices without mixing
versions: when the first slice of another version comes, the server is paused, reads that version's folder, drops its
cache and goes on. Every answer names the weights that it comes from; a server that was restarted is given them again.

The server samples with random numbers of its own. Our noise would have to reach it as a pickled class, and its
log-probabilities are computed after such a class has changed the logits, so they would be of something else.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from peer.engines.base import CompletionSlice, GenerateRequest, Placement, Swap, VersionState, WarmUp, check_requests
from peer.engines.held_versions import HeldVersions, LoadedVersion
from peer.engines.sglang.answers import Answer, Asked, StaleAnswer
from peer.engines.sglang.client import SglangClient
from peer.engines.sglang.config import SglangConfig
from peer.engines.sglang.version_folders import VersionFolders
from rollcast.policy.config import ModelConfig, described_model
from rollcast.runtime.errors import Unreachable
from rollcast.wire.ids import Version
from rollcast.wire.rollouts import FinishReason
from rollcast.wire.text.stop_strings import Decode, StopStrings, stop_strings
from rollcast.wire.version_swap import AtVersionSwap
from rollcast.wire.versions.state_hash import state_hash

_ATTEMPTS = 3  # of a slice whose answers are of other weights

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Staged:
    """A version that is written for the server."""

    folder: Path  # its name is the server's label of these weights
    size_bytes: int


_Loaded = LoadedVersion[_Staged]


class SglangEngine:
    """An Engine (peer.engines.base) on an SGLang server.

    Args:
        folder: where versions are written for the server if the configuration names no folder.
        concurrent_rollouts: rollouts in one request.
    """

    def __init__(self, config: SglangConfig, folder: Path, *, concurrent_rollouts: int) -> None:
        self._client = SglangClient(config)
        self._folders = VersionFolders(config.folder or folder)
        self._rows = concurrent_rollouts
        self._decode: Decode | None = None
        self._held: HeldVersions[_Staged] = HeldVersions()
        self._served: _Loaded | None = None  # the version whose weights the server has; None: unknown
        self._last_swap: Swap | None = None

    def expect(self, work: WarmUp) -> None:
        """Announce the work (see Engine.expect); the server compiles what it needs by itself."""
        self._decode = work.decode
        if work.router_replay:
            log.warning("an SGLang server's routes are not read: rollouts come without them")

    async def load(self, version: VersionState) -> bytes:
        """Write the version where the server can read it, and return the hash of what was written."""
        return await self._held.load(functools.partial(self._stage, version))

    async def activate(self, version: Version) -> None:
        """Make the loaded version active (see Engine.activate). The server reads it before the first slice with it."""
        self._held.activate(version)

    def begin(self, requests: Sequence[GenerateRequest]) -> SglangGeneration:
        """Start completions, at most ``concurrent_rollouts`` at a time (see Engine.begin)."""
        return SglangGeneration(self, self._held.require_active(), requests)

    @property
    def hardware(self) -> str:
        """The kind of server; its address is its owner's."""
        return "an SGLang server, random numbers of its own"

    @property
    def sampler(self) -> str:
        """The kind of engine, which does not sample from the seeds of leases."""
        return "sglang"

    def computation(self, model: ModelConfig) -> str:
        """Return how a model is computed (see Engine.computation)."""
        return (
            f"computes in an SGLang server, which reads weights in {model.precision}; samples with its own random "
            "numbers, which no seed of ours reproduces; weights are hashed as they are written for it and not read back"
        )

    @property
    def active_version(self) -> Version | None:
        """The version with which the next generation starts; None: no version is active."""
        return self._held.active_version

    @property
    def last_swap(self) -> Swap | None:
        """The newest exchange of weights (see Engine.last_swap)."""
        return self._last_swap

    @property
    def placement(self) -> Placement | None:
        """None: the server does not say on how many devices it runs (see Engine.placement)."""
        return None

    async def close(self) -> None:
        """Abort what the server still generates, and remove the versions written for it."""
        served, self._served = self._served, None
        if served is not None:
            await self._client.abort_all()
        await self._client.close()
        self._held.close()
        await asyncio.to_thread(self._folders.keep, ())

    def _stage(self, version: VersionState) -> tuple[_Loaded, bytes]:
        record = version.record
        config = described_model(record)
        self._folders.keep([one.weights.folder.name for one in (self._held.active, self._served) if one is not None])
        staged = _Staged(self._folders.write(version, config), len(version.state))
        return LoadedVersion(record.epoch, record.version, config, staged), state_hash(version.state)

    async def _generate(self, loaded: _Loaded, asked: Sequence[Asked]) -> list[Answer]:
        """Return answers that come from this version, giving its weights to the server if it does not have them."""
        stale = ""
        for _ in range(_ATTEMPTS):
            await self._serve(loaded)
            label, size = loaded.weights.folder.name, loaded.config.vocabulary_size
            try:
                return await self._client.generate(asked, label, size)
            except StaleAnswer as error:
                stale, self._served = str(error), None
                log.warning("the SGLang server lost its weights or aborted a slice", cause=stale)
        raise Unreachable(
            f"the SGLang server does not keep the weights of version {loaded.version}",
            cause=stale,
            fix="let no one else use this server, and look in its log for why it restarts",
        )

    async def _serve(self, loaded: _Loaded) -> None:
        if self._served is loaded:
            return
        self._served = None  # until it has read all of them
        began_s = time.monotonic()
        staged = loaded.weights
        await self._client.put_weights(staged.folder, staged.folder.name)
        paused_s = time.monotonic() - began_s
        self._served = loaded
        self._last_swap = Swap(loaded.version, "keyframe", paused_s, staged.size_bytes, read_back=False)


@dataclass(slots=True)
class _Row:
    """One completion in progress."""

    number: int
    request: GenerateRequest
    stop: StopStrings | None
    tokens: list[int] = field(default_factory=list)  # of the completion so far

    @property
    def tokens_left(self) -> int:
        return self.request.sampling.max_new_tokens - len(self.tokens)

    def asked(self, tokens_max: int) -> Asked:
        request = self.request
        context = (*request.prompt_token_ids, *self.tokens)
        return Asked(context, min(tokens_max, self.tokens_left), request.sampling, request.seed)

    def take(self, answer: Answer) -> tuple[Answer, FinishReason | None]:
        """Append an answer's tokens up to a stop string, and return them with the reason if they are the last ones."""
        known = len(self.tokens)
        self.tokens += answer.token_ids
        end = None if self.stop is None else self.stop.end(self.tokens, known)
        if end is not None:
            del self.tokens[end:]
            new = end - known
            return Answer(answer.token_ids[:new], answer.logprobs[:new]), "stop"
        if self.tokens[-1] in self.request.sampling.stop_token_ids:
            return answer, "stop"
        return answer, None if self.tokens_left else "length"


class SglangGeneration:
    """A Generation (peer.engines.base). What does not fit into one request waits."""

    def __init__(self, engine: SglangEngine, loaded: _Loaded, requests: Sequence[GenerateRequest]) -> None:
        self._engine = engine
        self._loaded = loaded
        self._count = 0
        self._waiting: deque[_Row] = deque()
        self._running: list[_Row] = []
        self.add(requests)

    def add(self, requests: Sequence[GenerateRequest]) -> None:
        """Queue requests (see Generation.add)."""
        check_requests(requests)
        stops = [stop_strings(item.sampling, self._engine._decode, item.earlier_turns) for item in requests]
        for item, stop in zip(requests, stops, strict=True):
            self._waiting.append(_Row(self._count, item, stop, list(item.already_generated)))
            self._count += 1

    async def next_slice(self, tokens_max: int) -> list[CompletionSlice]:
        """Let the server generate one slice (see Generation.next_slice)."""
        while self._waiting and len(self._running) < self._engine._rows:
            self._running.append(self._waiting.popleft())
        if not self._running:
            return []
        loaded, rows = self._loaded, self._running
        answers = await self._engine._generate(loaded, [row.asked(tokens_max) for row in rows])
        slices = []
        for row, answer in zip(rows, answers, strict=True):
            new, reason = row.take(answer)
            made = CompletionSlice(row.number, loaded.epoch, loaded.version, new.token_ids, new.logprobs, reason)
            slices.append(made)
        ended = {made.request for made in slices if made.finish_reason is not None}
        self._running = [row for row in rows if row.number not in ended]
        return slices

    def renew(self, mode: AtVersionSwap = "continue") -> None:
        """Switch to the active version (see Generation.renew). With "keep" the server reads the tokens again as well:
        its cache cannot keep the keys and values of some rollouts, and drop the others."""
        self._loaded = self._engine._held.active or self._loaded

    @property
    def versions_free(self) -> int | None:
        """None: rollouts of one version at a time (see Generation.versions_free)."""
        return None
