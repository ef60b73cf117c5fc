"""Read public weights as a source of version 0: safetensors files, on a server or on this disk.

A run that starts from a published model signs a keyframe whose tensors are those of the model's files, under other
names and, for matrices, transposed. So a joiner may fetch version 0 from the model's public server, or take it from its
own disk. Only the signed hashes decide which bytes are right.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from peer.mirrors.http_ranges import NotThere
from peer.mirrors.virtual_link import Holding
from rollcast.policy.hub.names import hf_names, is_transposed
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.versions.chunks import bitmap_count
from rollcast.wire.versions.records import Manifest, VerifiedVersion
from rollcast.wire.versions.safetensors import (
    HEADER_BYTES_MAX,
    LENGTH_BYTES,
    OtherName,
    StateMap,
    StoredTensor,
    header_length,
    parse_header,
    parse_index,
)
from rollcast.wire.versions.tensors import TensorSpec

_INDEX_SUFFIX = ".safetensors.index.json"
SUFFIXES = (".safetensors", _INDEX_SUFFIX)
"""The endings of such files' addresses, without the query."""

_DISK_STEP_BYTES = 1 << 20
# Transposed matrices in memory: chunks that are read at the same time lie in one or two.
_TRANSPOSED_MOST = 3
# Of a model of 32B parameters the largest layer has 262 MB. An untied head is larger, and comes from elsewhere.
_TRANSPOSED_BYTES_MAX = 512 << 20

ResultT = TypeVar("ResultT")


class Files(Protocol):
    """Reads files, from a server or the disk.

    Both methods raise NotThere, Busy and MalformedMessage as peer.mirrors.http_ranges.HttpRanges does.
    """

    async def whole(self, address: str, bytes_most: int) -> bytes:
        """Return a whole file of at most ``bytes_most`` bytes."""

    def part(self, address: str, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        """Yield bytes [start, stop) of a file: exactly so many, or an error."""


class LocalFiles:
    """Files on this disk; addresses are paths."""

    async def whole(self, address: str, bytes_most: int) -> bytes:
        size = await asyncio.to_thread(_on_disk, lambda: Path(address).stat().st_size)
        if size > bytes_most:
            raise MalformedMessage(f"{address} has more than {bytes_most} bytes")
        return await asyncio.to_thread(_read, address, 0, size)

    async def part(self, address: str, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        for at in range(start, stop, _DISK_STEP_BYTES):
            size = min(stop - at, _DISK_STEP_BYTES)
            piece = await asyncio.to_thread(_read, address, at, size)
            if len(piece) < size:
                raise NotThere("the file is shorter than its header says")
            yield piece


class PublicWeights:
    """See peer.mirrors.virtual_link.ChunkSource.

    Args:
        address: the address of one file, or of the index of several files in the same folder.
    """

    def __init__(self, files: Files, address: str) -> None:
        self._files = files
        self._address = address
        self._tensors: dict[str, dict[str, StoredTensor]] | None = None
        self._map: tuple[bytes, StateMap] | None = None  # a record's hash, and its map
        self._lock = asyncio.Lock()  # so that the headers are read once
        self._transposed: dict[tuple[str, int], asyncio.Task[memoryview]] = {}  # by file and place, the newest last

    async def find(self, verified: VerifiedVersion, manifest: Manifest) -> Holding:
        state = await self._state_map(verified, manifest)
        bitmap = await asyncio.to_thread(state.chunks, manifest)
        held = bitmap_count(bitmap)
        if not held:
            tensors = len(verified.record.tensors)
            raise NotThere(f"{state.tensors_found} of {tensors} tensors are in those files as they are")
        return Holding(bitmap, held == manifest.chunk_count)

    async def read(
        self, verified: VerifiedVersion, manifest: Manifest, start: int, stop: int
    ) -> AsyncGenerator[bytes, None]:
        state = await self._state_map(verified, manifest)
        pieces = state.pieces(start, stop)
        if pieces is None:
            raise NotThere("those files do not hold that range")
        for piece in pieces:
            if piece.transposed is not None:
                whole = await self._whole(piece.file, piece.transposed)
                yield bytes(whole[piece.start_bytes : piece.start_bytes + piece.size_bytes])
                continue
            async with aclosing(
                self._files.part(piece.file, piece.start_bytes, piece.start_bytes + piece.size_bytes)
            ) as parts:
                async for data in parts:
                    yield data

    async def _state_map(self, verified: VerifiedVersion, manifest: Manifest) -> StateMap:
        if manifest.version != 0 or manifest.kind != "keyframe" or manifest.compression:
            raise NotThere("public weights hold nothing but the keyframe of version 0")
        async with self._lock:
            if self._tensors is None:
                self._tensors = await self._headers()
            if self._map is None or self._map[0] != verified.record_hash:
                tensors = verified.record.tensors
                self._map = (verified.record_hash, StateMap(tensors, self._tensors, _names_on_the_hub(tensors)))
            return self._map[1]

    async def _whole(self, file: str, tensor: StoredTensor) -> memoryview:
        """Return the bytes of a matrix's transpose. A few stay in memory: chunks are requested one after the other."""
        key = (file, tensor.start_bytes)
        task = self._transposed.pop(key, None)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = asyncio.create_task(self._transpose(file, tensor))
        self._transposed[key] = task
        for old in list(self._transposed)[:-_TRANSPOSED_MOST]:
            del self._transposed[old]
        return await asyncio.shield(task)  # whoever asked may give up before a slow server has sent it

    async def _transpose(self, file: str, tensor: StoredTensor) -> memoryview:
        data = await self._bytes(file, tensor.start_bytes, tensor.start_bytes + tensor.size_bytes)
        return await asyncio.to_thread(_transpose_of, data, tensor)

    async def _headers(self) -> dict[str, dict[str, StoredTensor]]:
        try:
            files = [self._address]
            if _path_of(self._address).endswith(_INDEX_SUFFIX):
                names = parse_index(await self._files.whole(self._address, HEADER_BYTES_MAX))
                files = [_beside(self._address, name) for name in names]
            return {file: await self._header(file) for file in files}
        except MalformedMessage as error:
            raise NotThere(error.what) from None  # a file that is not meant for this run, and no attack

    async def _header(self, file: str) -> dict[str, StoredTensor]:
        length = header_length(await self._bytes(file, 0, LENGTH_BYTES))
        return parse_header(await self._bytes(file, LENGTH_BYTES, LENGTH_BYTES + length))

    async def _bytes(self, file: str, start: int, stop: int) -> bytes:
        data = bytearray()
        async with aclosing(self._files.part(file, start, stop)) as pieces:
            async for piece in pieces:
                data += piece
        return bytes(data)


def _names_on_the_hub(tensors: Sequence[TensorSpec]) -> dict[str, OtherName]:
    """Return the Hub's names of the tensors that are one of the Hub's, which kernels of experts are not."""
    found = {}
    for spec in tensors:
        try:
            names = hf_names(spec.name, spec.shape)
        except KeyError:  # no parameter of a model, such as a kernel's scales
            continue
        if len(names) == 1 and not (is_transposed(spec.name) and spec.size_bytes > _TRANSPOSED_BYTES_MAX):
            found[spec.name] = OtherName(names[0], is_transposed(spec.name))
    return found


def _transpose_of(data: bytes, tensor: StoredTensor) -> memoryview:
    rows, columns = tensor.shape
    items = np.frombuffer(data, f"V{tensor.size_bytes // (rows * columns)}").reshape(rows, columns)
    return memoryview(np.ascontiguousarray(items.T).tobytes())


def is_public_weights(address: str) -> bool:
    """Return whether an address names safetensors files and not a mirror."""
    return _path_of(address).endswith(SUFFIXES)


def _path_of(address: str) -> str:
    return address.partition("?")[0]


def _beside(address: str, name: str) -> str:
    """Return the address of another file of the same folder, with the same query."""
    path, question, query = address.partition("?")
    return f"{path.rpartition('/')[0]}/{name}{question}{query}"


def _read(path: str, start: int, size_bytes: int) -> bytes:
    def read() -> bytes:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(descriptor, size_bytes, start)
        finally:
            os.close(descriptor)

    return _on_disk(read)


def _on_disk(work: Callable[[], ResultT]) -> ResultT:
    try:
        return work()
    except OSError as error:
        raise NotThere(error.strerror or type(error).__name__) from None
