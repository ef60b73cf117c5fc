"""Load the run's tokenizer on a peer, which needs it only to search for stop strings.

A tokenizer of Rollcast's own comes with the welcome. For a published one the welcome has the hash of its file: the file
is kept under that name in the state folder, and fetched from the coordinator if it is not there.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import grpc
import structlog
import zstandard

from rollcast.runtime.errors import MalformedMessage, Unreachable, WaitTimedOut
from rollcast.runtime.run_folder import write_atomically
from rollcast.runtime.waits import backoff_delays_s
from rollcast.wire.joining.grpc_client import connection_lost, translate
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.text.hub_tokenizer import HubDecoder, parse_tokenizer
from rollcast.wire.text.model_folder import TOKENIZER_BYTES_MAX
from rollcast.wire.text.stop_strings import Decode
from rollcast.wire.text.tokenizer import Tokenizer, read_record

log = structlog.get_logger()

FETCH_DEADLINE_S = 300.0  # for one try: the largest file compresses to some 10 MB
_WINDOW_BYTES_MAX = 1 << 23  # bounds the memory in which a zstd frame is unpacked
_SHA256 = re.compile(r"[0-9a-f]{64}")


class RunText:
    """Makes the decoder of the run's token ids.

    Args:
        folder: the folder of tokenizer files; created when it is needed.
        stub: returns the calls on the session's connection; None while there is none.
    """

    def __init__(self, folder: Path, stub: Callable[[], Any], random: Random) -> None:
        self._folder = folder
        self._stub = stub
        self._random = random
        self._decoders: dict[tuple[str, tuple[int, ...]], Decode] = {}  # only the one requested last

    def known(self, tokenizer_json: str, stop_ids: tuple[int, ...]) -> Decode | None:
        """Return the decoder if ``decode`` has made it already; else None."""
        return self._decoders.get((tokenizer_json, stop_ids))

    async def decode(self, tokenizer_json: str, stop_ids: tuple[int, ...]) -> Decode:
        """Return the decoder of a run; retry while the coordinator cannot be reached.

        Raises:
            MalformedMessage: the record is invalid, or the file does not have the announced hash.
            ModelError: the file is not a tokenizer.
            MissingExtra: a published tokenizer needs a library that is not installed.
            RollcastError: the coordinator refuses to send it.
        """
        known = self.known(tokenizer_json, stop_ids)
        if known is None:
            known = await self._make(tokenizer_json, stop_ids)
            self._decoders = {(tokenizer_json, stop_ids): known}
        return known

    async def _make(self, tokenizer_json: str, stop_ids: tuple[int, ...]) -> Decode:
        sha256 = read_record(tokenizer_json).sha256
        if not sha256:
            return Tokenizer.from_json(tokenizer_json).decode
        if not _SHA256.fullmatch(sha256):
            raise MalformedMessage("a tokenizer's hash is malformed")
        path = self._folder / f"{sha256}.json"
        data = await asyncio.to_thread(_kept, path, sha256)
        if data is None:
            data = await self._fetched(sha256)
            await asyncio.to_thread(_keep, path, data)
        library = await asyncio.to_thread(parse_tokenizer, data, "the run's tokenizer")
        return HubDecoder(library, stop_ids).decode

    async def _fetched(self, sha256: str) -> bytes:
        delays = backoff_delays_s(self._random, first_s=0.5, most_s=10.0)
        while True:
            try:
                return await self._fetch(sha256)
            except (Unreachable, WaitTimedOut) as error:
                log.warning("the run's tokenizer could not be fetched", cause=error.what)
                await asyncio.sleep(next(delays))

    async def _fetch(self, sha256: str) -> bytes:
        stub = self._stub()
        if stub is None:
            raise Unreachable("there is no session with the coordinator")
        frame = bytearray()
        try:
            with connection_lost("fetching the run's tokenizer"):  # the session closes its channel when it ends
                async for part in stub.TokenizerFile(pb.TokenizerRequest(sha256=sha256), timeout=FETCH_DEADLINE_S):
                    frame += part.data
                    if len(frame) > TOKENIZER_BYTES_MAX:
                        raise MalformedMessage("the run's tokenizer is too large")
        except grpc.aio.AioRpcError as error:
            raise translate(error, "fetching the run's tokenizer") from None
        data = await asyncio.to_thread(_unpacked, bytes(frame))
        if hashlib.sha256(data).hexdigest() != sha256:
            raise MalformedMessage("the run's tokenizer is not the one that its hash names")
        log.info("the run's tokenizer received", size_bytes=len(data), compressed_bytes=len(frame))
        return data


def _unpacked(frame: bytes) -> bytes:
    """Unpack a zstd frame; at most TOKENIZER_BYTES_MAX are ever in memory, whatever size the frame claims."""
    try:
        with zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES_MAX).stream_reader(frame) as reader:
            data = reader.read(TOKENIZER_BYTES_MAX + 1)
    except zstandard.ZstdError as error:
        raise MalformedMessage("the run's tokenizer cannot be unpacked", cause=str(error)) from None
    if len(data) > TOKENIZER_BYTES_MAX:
        raise MalformedMessage("the run's tokenizer is too large")
    return data


def _kept(path: Path, sha256: str) -> bytes | None:
    """Return the file from an earlier session; None if there is none or its hash is not that of its name."""
    try:
        with path.open("rb") as file:
            data = file.read(TOKENIZER_BYTES_MAX + 1)
    except OSError:
        return None
    return data if hashlib.sha256(data).hexdigest() == sha256 else None


def _keep(path: Path, data: bytes) -> None:
    """Write the file and delete those of other runs. Where the disk refuses, the next start fetches it again."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for other in path.parent.glob("*.json"):
            with contextlib.suppress(FileNotFoundError):
                other.unlink()
        write_atomically(path, data)
    except OSError as error:
        log.warning("the run's tokenizer is not kept on disk", cause=str(error))
