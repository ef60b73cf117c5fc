"""Serve the file of a published tokenizer to peers, which need it to look for stop strings."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import zstandard

from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.text.model_folder import TOKENIZER, TOKENIZER_BYTES_MAX, ModelFolder

PART_BYTES = 1 << 20
WRITE_DEADLINE_S = 30.0  # for the transport to accept one part
SENDS_AT_ONCE = 8  # a fleet that starts at once takes turns
_COMPRESSION_LEVEL = 6


class TokenizerCalls:
    """Handles TokenizerFile.

    Args:
        read: returns the hash of the run's file and its zstd frame, or None; it is kept once it is known.
    """

    def __init__(self, read: Callable[[], Awaitable[tuple[str, bytes] | None]]) -> None:
        self._read = read
        self._packed: tuple[str, bytes] | None = None
        self._packing = asyncio.Lock()
        self._sending = asyncio.Semaphore(SENDS_AT_ONCE)

    async def packed(self) -> tuple[str, bytes] | None:
        """Return the file's hash and its zstd frame; None if there is none.

        Raises:
            RollcastError: it cannot be read.
        """
        async with self._packing:
            if self._packed is None:
                self._packed = await self._read()
        return self._packed

    async def TokenizerFile(self, request: pb.TokenizerRequest, context: Any) -> None:
        """Send the file in parts, compressed with zstd.

        Raises:
            MalformedMessage: the run has no file with this hash.
        """
        packed = await self.packed()
        if packed is None or packed[0] != request.sha256:
            raise MalformedMessage("the run has no tokenizer with this hash", fix="reconnect to get the new one")
        frame = packed[1]
        async with self._sending:
            for start in range(0, len(frame), PART_BYTES):
                async with asyncio.timeout(WRITE_DEADLINE_S):
                    await context.write(pb.TokenizerPart(data=frame[start : start + PART_BYTES]))


async def packed_file(folder: Path | None) -> tuple[str, bytes] | None:
    """Return the hash and zstd frame of a published model's file; None if the run has a tokenizer of its own."""
    return None if folder is None else await asyncio.to_thread(_pack, folder)


def _pack(folder: Path) -> tuple[str, bytes]:
    data = ModelFolder(folder).read_bytes(TOKENIZER, TOKENIZER_BYTES_MAX)
    return hashlib.sha256(data).hexdigest(), zstandard.compress(data, _COMPRESSION_LEVEL)
