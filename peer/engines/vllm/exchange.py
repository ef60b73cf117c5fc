"""Exchange the weights that vLLM generates with, and have them vouched for.

The first version of a server's life is loaded as a checkpoint. It is then read back out of vLLM's parameters: if that
gives the signed hash, the parameters hold what was loaded, and every later version is written there in place: only what
differs from the version before, where that is little, otherwise all of it. Each is read back and hashed as well, while
vLLM generates with it. Where vLLM keeps weights in another form, every version is loaded as a checkpoint, and vouched
for by the hash of the bytes that were handed to it.

    exchange.get_ready(checkpoint)     any time before: compare, and move what differs to the devices
    swap = exchange.put(checkpoint)    while generation waits
    exchange.read_back()               after it goes on again
"""

from __future__ import annotations

import asyncio
import mmap
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import structlog

from peer.engines.base import Swap
from peer.engines.vllm.checkpoint import Checkpoint
from peer.engines.vllm.patches import Part, PatchSize, Tensor, read_placement, read_table, write_patch
from peer.engines.vllm.process import ServerLost

LOAD_TIMEOUT_S = 600.0
"""Longest exchange of all weights, in seconds."""
READ_BYTES = 64 << 20
"""Bytes that are read back at a time, unless one tensor has more: vLLM generates nothing meanwhile."""

log = structlog.get_logger()

#: Sends a command to the server, with the seconds that it may take and what it does in words, and returns the answer.
Call = Callable[[dict[str, Any], float, str], Awaitable[dict[str, Any]]]


class WrongWeights(ServerLost):
    """What vLLM generates with is not the version that was loaded."""


@dataclass(frozen=True, slots=True)
class _Loaded:
    """The version that the server holds, with its bytes, which stay mapped after its files are removed."""

    checkpoint: Checkpoint
    state: memoryview
    tensors: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class _Patch:
    """What turns one version into another, ready on the devices."""

    base: str  # salts of checkpoints
    target: str


class Exchange:
    """The weights of one life of the server.

    Args:
        call: sends a command to it.
        folder: for files of this life.
    """

    def __init__(self, call: Call, folder: Path) -> None:
        self._call = call
        self._folder = folder
        self._placements: list[dict[str, list[Part]]] | None = None  # of each worker; None: not in place
        self._loaded: _Loaded | None = None
        self._beside: set[str] = set()  # salts of older versions whose adapters vLLM holds too
        self._patch: _Patch | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def loaded(self) -> str:
        """Return the salt of the version whose weights vLLM holds; empty: none, or an exchange failed half-way."""
        return "" if self._loaded is None else self._loaded.checkpoint.salt

    def holds(self, checkpoint: Checkpoint, beside: Sequence[Checkpoint]) -> bool:
        """Return whether a version is loaded, and the adapters of others are beside it."""
        return self.loaded == checkpoint.salt and self._beside >= {one.salt for one in beside}

    async def put(self, checkpoint: Checkpoint, *, keep: bool = False, beside: Sequence[Checkpoint] = ()) -> Swap:
        """Put a version in the place of the loaded one. Only the first version of a life is read back here.

        Args:
            keep: whether running requests go on over the keys and values of the version before; otherwise they end.
            beside: older versions of the same base whose adapters stay, and whose requests go on.

        Raises:
            ServerLost: it failed; the server's weights are of no version then.
        """
        before, self._loaded = self._loaded, None
        patch, self._patch = self._patch, None
        patched = before is not None and patch == _Patch(before.checkpoint.salt, checkpoint.salt)
        if checkpoint.base is not None:
            return await self._adapt(checkpoint, beside)
        header: dict[str, Any] = {"keep_as": checkpoint.salt if keep else ""}
        if patched:
            answer = await self._call(header | {"do": "apply_patch"}, LOAD_TIMEOUT_S, "writing what differs into vLLM")
        else:
            header |= {"do": "load", "state": str(checkpoint.state), "table": str(checkpoint.table)}
            answer = await self._call(header, LOAD_TIMEOUT_S, "loading a version into vLLM")
        self._loaded = _Loaded(checkpoint, _mapped(checkpoint.state), read_table(checkpoint.table))
        known = before is None and await self._find_places(self._loaded)
        paused_s, moved_bytes = float(answer["paused_s"]), int(answer["moved_bytes"])
        swap = Swap(checkpoint.version, "delta" if patched else "keyframe", paused_s, moved_bytes, read_back=known)
        log.info(
            "weights exchanged", version=swap.version, kind=swap.kind, paused_s=round(paused_s, 3), bytes=moved_bytes
        )
        return swap

    async def _adapt(self, checkpoint: Checkpoint, beside: Sequence[Checkpoint]) -> Swap:
        """Exchange the adapters over the base with which vLLM started, which stays."""
        header = {"do": "adapt", "adapters": {one.salt: str(one.adapters) for one in (*beside, checkpoint)}}
        begun_s = time.monotonic()
        await self._call(header, LOAD_TIMEOUT_S, "loading adapters into vLLM")
        self._loaded, self._beside = _Loaded(checkpoint, memoryview(b""), ()), {one.salt for one in beside}
        return Swap(checkpoint.version, "keyframe", time.monotonic() - begun_s, checkpoint.size_bytes, read_back=False)

    async def get_ready(self, checkpoint: Checkpoint) -> PatchSize | None:
        """Compare a version with the loaded one, and move what differs to the devices.

        Returns:
            What was moved; None if all weights will be written instead.

        Raises:
            ServerLost: the server failed.
            OSError: the disk refuses.
        """
        loaded, placements = self._loaded, self._placements
        self._patch = None
        if loaded is None or placements is None or loaded.checkpoint.config != checkpoint.config:
            return None
        path = self._folder / "patch"
        files = [self._folder / f"patch.{rank}" for rank in range(len(placements))]
        state = _mapped(checkpoint.state)
        size = await asyncio.to_thread(write_patch, loaded.state, state, loaded.tensors, placements, files)
        if size is None or self._loaded is not loaded:
            return None
        header = {"do": "stage_patch", "arguments": [str(path)]}
        await self._call(header, LOAD_TIMEOUT_S, "moving what differs to vLLM's devices")
        if self._loaded is loaded:
            self._patch = _Patch(loaded.checkpoint.salt, checkpoint.salt)
        return size

    async def read_back(self, swap: Swap) -> Swap:
        """Read the weights out of vLLM and compare their hash with the version's.

        Returns:
            The swap, with whether this was possible.

        Raises:
            WrongWeights: they are others.
            ServerLost: the server failed.
        """
        loaded = self._loaded
        if loaded is None or self._placements is None:
            return swap
        if await self._hash(loaded) != loaded.checkpoint.state_hash:
            raise WrongWeights(f"the weights in vLLM are not those of version {loaded.checkpoint.version}")
        return replace(swap, read_back=True)

    async def _find_places(self, loaded: _Loaded) -> bool:
        """Find out where the weights are; return whether they are there as they were loaded."""
        table, placement = str(loaded.checkpoint.table), self._folder / "placement"
        header = {"do": "find_places", "table": table, "placement": str(placement)}
        whys = (await self._call(header, LOAD_TIMEOUT_S, "finding vLLM's weights"))["why"]
        why = next((str(one) for one in whys if one), "")
        if not why and await self._hash(loaded) != loaded.checkpoint.state_hash:
            why = "it keeps them in another form than it loaded"
        if why:
            log.info("vllm's weights cannot be read back: every version is loaded whole", cause=why)
            await self._call({"do": "forget_places", "arguments": []}, LOAD_TIMEOUT_S, "preparing vLLM's weights")
            return False
        self._placements = [read_placement(Path(f"{placement}.{rank}")) for rank in range(len(whys))]
        return True

    async def _hash(self, loaded: _Loaded) -> bytes:
        """Return the BLAKE3 of the weights that vLLM holds, in the order of the version's state."""
        digest = ""
        for first, count, size_bytes in _batches(loaded.tensors):
            header = {"do": "read_back", "table": str(loaded.checkpoint.table), "first": first, "count": count}
            header |= {"size_bytes": size_bytes, "scratch": str(self._folder / "scratch")}
            digest = (await self._call(header, LOAD_TIMEOUT_S, "reading weights back from vLLM"))["hash"]
        return bytes.fromhex(digest)


def _batches(tensors: Sequence[Tensor]) -> Iterator[tuple[int, int, int]]:
    """Yield the first of some tensors that follow each other, their number, and their bytes."""
    first = size_bytes = 0
    for number, tensor in enumerate(tensors):
        if number > first and size_bytes + tensor.size_bytes > READ_BYTES:
            yield first, number - first, size_bytes
            first, size_bytes = number, 0
        size_bytes += tensor.size_bytes
    yield first, len(tensors) - first, size_bytes


def _mapped(path: Path) -> memoryview:
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
