"""Serve the file of a published tokenizer to peers, which need it to look for stop strings."""

from __future__ import annotations

import asyncio
import hashlib
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
        folder: the published model's folder; None if the run has a tokenizer of its own.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._packed: tuple[str, bytes] | None = None  # hash of the file, and its zstd frame
        self._packing = asyncio.Lock()
        self._sending = asyncio.Semaphore(SENDS_AT_ONCE)

    async def TokenizerFile(self, request: pb.TokenizerRequest, context: Any) -> None:
        """Send the file in parts, compressed with zstd.

        Raises:
            MalformedMessage: the run has no file with this hash.
        """
        async with self._packing:
            if self._packed is None and self._folder is not None:
                self._packed = await asyncio.to_thread(_pack, self._folder)
        if self._packed is None or self._packed[0] != request.sha256:
            raise MalformedMessage("the run has no tokenizer with this hash", fix="reconnect to get the new one")
        frame = self._packed[1]
        async with self._sending:
            for start in range(0, len(frame), PART_BYTES):
                async with asyncio.timeout(WRITE_DEADLINE_S):
                    await context.write(pb.TokenizerPart(data=frame[start : start + PART_BYTES]))


def _pack(folder: Path) -> tuple[str, bytes]:
    data = ModelFolder(folder).read_bytes(TOKENIZER, TOKENIZER_BYTES_MAX)
    return hashlib.sha256(data).hexdigest(), zstandard.compress(data, _COMPRESSION_LEVEL)
