"""What a rollout engine must do. tests/peer/engines/engine_conformance.py is the same list as tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rollcast.wire.ids import Epoch, Version
from rollcast.wire.rollouts import FinishReason, Sampling
from rollcast.wire.text.stop_strings import Decode
from rollcast.wire.versions.records import VersionRecord


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One completion to draw. ``seed`` and the position key the noise, whatever the batch looks like."""

    prompt_token_ids: tuple[int, ...]
    seed: int  # 64 bits
    sampling: Sampling
    already_generated: tuple[int, ...] = ()  # of this completion, by an earlier version: the draw goes on after it


@dataclass(frozen=True, slots=True)
class Drawn:
    """New tokens of one completion, all by one version. A stop token, if drawn, is the last token."""

    request: int  # which one, counted through begin and all that was added
    epoch: Epoch
    version: Version
    token_ids: tuple[int, ...]  # since the last slice
    logprobs: tuple[float, ...]  # of each new token under the temperature asked for
    finish_reason: FinishReason | None  # None: it goes on


@dataclass(frozen=True, slots=True)
class WarmUp:
    """What will be asked for, so that all can be compiled before the first lease."""

    prompt_tokens_max: int
    sampling: Sampling
    decode: Decode | None = None  # the run's tokenizer, where there are stop strings


class Generation(Protocol):
    """Completions being drawn, a slice at a time. The tokens do not depend on how they are sliced."""

    def add(self, requests: Sequence[GenerateRequest]) -> None:
        """More completions, behind those there are; they begin when there is room. Only between two slices.

        Raises:
            ValueError: see Engine.begin; then none is added.
        """
        ...

    async def draw(self, tokens_max: int) -> list[Drawn]:
        """Go on by up to ``tokens_max`` tokens with completions that have not ended; not all need to move.

        Returns:
            what is new, of those that have news. A completion's end is told once, with its last tokens.
        """
        ...

    def renew(self) -> None:
        """Go on with the engine's active version: what was drawn so far is read again with its weights.

        Only between two slices.
        """
        ...


class Engine(Protocol):
    """Generates rollouts under one active version at a time.

    Two versions may be in memory: the active one and one loaded beside it. One generation is under way at a time, and
    ``load`` may run meanwhile.
    """

    def expect(self, work: WarmUp) -> None:
        """Loads from now on compile for this work before they return."""
        ...

    async def load(self, record: VersionRecord, state: memoryview) -> bytes:
        """Prepare a version beside the active one, compiled and ready; one that was loaded before is forgotten.

        Returns:
            BLAKE3 of the state as it stands in the engine, read back from there.

        Raises:
            MalformedMessage: the state or the model description cannot be used.
        """
        ...

    async def activate(self, version: Version) -> None:
        """Make the loaded version the active one, at once and as a whole, and forget the one before.

        Raises:
            ValueError: that version is not loaded, or is not newer than the active one.
        """
        ...

    def begin(self, requests: Sequence[GenerateRequest]) -> Generation:
        """One completion a request, under the version active now until it is renewed; nothing is drawn yet.

        Raises:
            ValueError: no version is active, a request leaves nothing to draw, or it has stop strings and the work that
                is expected has no tokenizer.
        """
        ...

    @property
    def hardware(self) -> str:
        """What it computes on, for the operator's eyes."""
        ...

    @property
    def active_version(self) -> Version | None:
        """The version that the next generation begins with."""
        ...

    async def close(self) -> None:
        """Free what is held. A slice still running is abandoned."""
        ...
