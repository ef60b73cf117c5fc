"""Hold an engine's two versions, the active one and the one loaded beside it, and run its two threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from rollcast.policy.config import ModelConfig
from rollcast.wire.ids import Epoch, Version

WeightsT = TypeVar("WeightsT")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class LoadedVersion(Generic[WeightsT]):
    """One version's weights on the device."""

    epoch: Epoch
    version: Version
    config: ModelConfig
    weights: WeightsT


class HeldVersions(Generic[WeightsT]):
    """The load and activate of peer.engines.base.Engine, with one thread that generates and one that loads."""

    def __init__(self) -> None:
        self.active: LoadedVersion[WeightsT] | None = None
        self._beside: LoadedVersion[WeightsT] | None = None
        self._generating = ThreadPoolExecutor(1, thread_name_prefix="generate")
        self._loading = ThreadPoolExecutor(1, thread_name_prefix="load")
        self._check: Future[None] | None = None

    async def load(self, read: Callable[[], tuple[LoadedVersion[WeightsT], bytes]]) -> bytes:
        """Free the version beside the active one, then ``read`` another in the loading thread. Return its hash."""
        self._beside = None  # freed first, so that the device never holds three versions
        self._beside, loaded_hash = await asyncio.get_running_loop().run_in_executor(self._loading, read)
        return loaded_hash

    def activate(self, version: Version) -> None:
        """Make the loaded version active. A generation picks it up when it starts or is renewed.

        Raises:
            ValueError: that version is not loaded, or is not newer than the active one.
        """
        if self._beside is None or self._beside.version != version:
            raise ValueError(f"version {version} is not loaded")
        if self.active is not None and version <= self.active.version:
            raise ValueError(f"version {version} is not newer than {self.active.version}")
        self.active, self._beside = self._beside, None

    def require_active(self) -> LoadedVersion[WeightsT]:
        """Return the active version.

        Raises:
            ValueError: no version is active.
        """
        if self.active is None:
            raise ValueError("no version is active")
        return self.active

    @property
    def active_version(self) -> Version | None:
        """The version with which the next generation starts; None: no version is active."""
        return None if self.active is None else self.active.version

    def check(self, work: Callable[[], None]) -> None:
        """Run a check in the loading thread, before the next load; what it raises, the next ``generate`` raises."""
        self._check = self._loading.submit(work)

    async def generate(self, work: Callable[[], ResultT]) -> ResultT:
        """Run one piece of a generation's work in the generating thread."""
        if self._check is not None and self._check.done():
            check, self._check = self._check, None
            check.result()
        return await asyncio.get_running_loop().run_in_executor(self._generating, work)

    def close(self) -> None:
        """Free the weights; work that is still running ends in its thread."""
        self._generating.shutdown(wait=False, cancel_futures=True)
        self._loading.shutdown(wait=False, cancel_futures=True)
        self.active = self._beside = None
