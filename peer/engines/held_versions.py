"""The two versions that an engine in this process holds: the active one, and one that is loaded beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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
    """What peer.engines.base.Engine says of load and activate, with a thread that generates and one that loads."""

    def __init__(self) -> None:
        self.active: LoadedVersion[WeightsT] | None = None
        self._beside: LoadedVersion[WeightsT] | None = None
        self._generating = ThreadPoolExecutor(1, thread_name_prefix="generate")
        self._loading = ThreadPoolExecutor(1, thread_name_prefix="load")

    async def load(self, read: Callable[[], tuple[LoadedVersion[WeightsT], bytes]]) -> bytes:
        """Forget what is beside the active version, then ``read`` another in the loading thread; returns its hash."""
        self._beside = None  # never three versions in the device's memory
        self._beside, loaded_hash = await asyncio.get_running_loop().run_in_executor(self._loading, read)
        return loaded_hash

    def activate(self, version: Version) -> None:
        """Swap by one assignment: a generation reads it when it begins or is renewed.

        Raises:
            ValueError: that version is not loaded, or is not newer than the active one.
        """
        if self._beside is None or self._beside.version != version:
            raise ValueError(f"version {version} is not loaded")
        if self.active is not None and version <= self.active.version:
            raise ValueError(f"version {version} is not newer than {self.active.version}")
        self.active, self._beside = self._beside, None

    def require_active(self) -> LoadedVersion[WeightsT]:
        """The active one.

        Raises:
            ValueError: there is none.
        """
        if self.active is None:
            raise ValueError("no version is active")
        return self.active

    @property
    def active_version(self) -> Version | None:
        """The version that the next generation begins with."""
        return None if self.active is None else self.active.version

    async def generate(self, work: Callable[[], ResultT]) -> ResultT:
        """Work of a generation, one piece at a time, in the generating thread."""
        return await asyncio.get_running_loop().run_in_executor(self._generating, work)

    def close(self) -> None:
        """Forget the weights; what is still running ends in its thread."""
        self._generating.shutdown(wait=False, cancel_futures=True)
        self._loading.shutdown(wait=False, cancel_futures=True)
        self.active = self._beside = None
