"""What a rollout engine must do. tests/peer/engine_conformance.py is the same list as tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rollcast.wire.ids import Epoch, Version
from rollcast.wire.records import VersionRecord
from rollcast.wire.rollouts import FinishReason, Sampling


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One completion to draw. ``seed`` and the position key the noise, whatever the batch looks like."""

    prompt_token_ids: tuple[int, ...]
    seed: int  # 64 bits
    sampling: Sampling
    already_generated: tuple[int, ...] = ()  # of this completion, by an earlier version: the draw goes on after it


@dataclass(frozen=True, slots=True)
class GeneratedRollout:
    """What came out, and the version that made all of it. A stop token, if drawn, is the last token."""

    epoch: Epoch
    version: Version
    token_ids: tuple[int, ...]  # new ones only
    logprobs: tuple[float, ...]  # of each new token under the temperature asked for
    finish_reason: FinishReason
    seconds: float  # from the call to the end of its batch


@dataclass(frozen=True, slots=True)
class WarmUp:
    """Shapes that will be asked for, so that compiling can happen before the first lease."""

    prompt_tokens_max: int
    sampling: Sampling


class Engine(Protocol):
    """Generates rollouts under one active version at a time.

    Two versions may be in memory: the active one and one loaded beside it. One batch is generated at a time, and
    ``load`` may run meanwhile.
    """

    def expect(self, work: WarmUp) -> None:
        """Loads from now on compile for this work before they return."""
        ...

    async def load(self, record: VersionRecord, state: memoryview) -> bytes:
        """Prepare a version beside the active one, compiled and ready.

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

    async def generate(self, requests: Sequence[GenerateRequest]) -> list[GeneratedRollout]:
        """Draw one completion a request, in their order, all under the version active at the call.

        Raises:
            ValueError: no version is active.
        """
        ...

    @property
    def hardware(self) -> str:
        """What it computes on, for the operator's eyes."""
        ...

    @property
    def active_version(self) -> Version | None:
        """The version that the next batch will be generated with."""
        ...

    async def close(self) -> None:
        """Free what is held. A batch still running is abandoned."""
        ...
