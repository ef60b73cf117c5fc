"""Carry out what the peer wants done with the weights of vLLM's workers (see server.weights)."""

from __future__ import annotations

import asyncio
import mmap
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

from rollcast.wire.versions.state_hash import StateHash

COMMANDS = ("load", "apply_patch", "stage_patch", "find_places", "forget_places", "read_back")

SETTLE_S = 0.02
"""Seconds for tokens that were sampled before a pause to come through vLLM's queues in this process."""


class WeightCommands:
    """The commands in COMMANDS.

    Args:
        llm: vLLM's AsyncLLM.
        end_running: ends all requests.
        go_on_as: labels the later tokens of running requests with a version's salt.
    """

    def __init__(self, llm: Any, end_running: Callable[[], Awaitable[None]], go_on_as: Callable[[str], None]) -> None:
        self._llm = llm
        self._end_running = end_running
        self._go_on_as = go_on_as
        self._hash = StateHash()

    async def carry_out(self, header: dict[str, Any]) -> dict[str, Any]:
        """Carry out one command, and return its answer."""
        match header["do"]:
            case "load":
                return await self._exchange(header["keep_as"], "load_version", header["state"], header["table"])
            case "apply_patch":
                return await self._exchange(header["keep_as"], "apply_patch")
            case "find_places":
                return {"why": await self._call("find_places", header["table"], header["placement"])}
            case "read_back":
                return {"hash": await self._read_back(header)}
            case other:
                await self._call(other, *header["arguments"])
                return {}

    async def _exchange(self, keep_as: str, method: str, *arguments: str) -> dict[str, Any]:
        """Exchange weights; the answer has the time for which nothing was generated, and the bytes that were moved.

        Args:
            keep_as: salt of the new version, with which running requests go on over their keys and values; empty: all
                are ended.
        """
        begun_s = time.monotonic()
        if keep_as:
            await self._llm.pause_generation(mode="keep", clear_cache=False)
            await asyncio.sleep(SETTLE_S)
            self._go_on_as(keep_as)
        else:
            await self._end_running()
        moved = await self._call(method, *arguments)
        if keep_as:
            await self._llm.resume_generation()
        return {"paused_s": time.monotonic() - begun_s, "moved_bytes": sum(moved)}

    async def _read_back(self, header: dict[str, Any]) -> str:
        """Read some tensors out of the workers, in the order of the table; return the state hash of all so far, in hex.

        Requests go on meanwhile: vLLM's steps come between the tensors of two commands.
        """
        if header["first"] == 0:
            self._hash = StateHash()
        path = header["scratch"]
        await asyncio.to_thread(_make, path, header["size_bytes"])
        await self._call("read_back", header["table"], header["first"], header["count"], path)
        return await asyncio.to_thread(_hash_and_remove, self._hash, path)

    async def _call(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of every worker, and return what they return, in the order of their ranks."""
        found: list[Any] = await self._llm.collective_rpc(method, args=arguments)
        return found


def _make(path: str, size_bytes: int) -> None:
    """Make a file of zeros, which the workers map."""
    with open(path, "wb") as file:
        file.truncate(size_bytes)


def _hash_and_remove(digest: StateHash, path: str) -> str:
    with (
        open(path, "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as read,
    ):
        digest.update(read)
    os.unlink(path)
    return digest.digest().hex()
