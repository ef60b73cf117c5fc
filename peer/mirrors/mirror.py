"""Read a mirror: the files of a chunk store behind an HTTPS server that serves byte ranges.

    {prefix}/{version}/{encoding_id}.list   chunk hashes
    {prefix}/{version}/{encoding_id}.data   the encoding

A copy of an origin's store folder, made by any tool, is a mirror. It is not trusted: the list must be the signed one,
and the receiver checks each chunk against it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from peer.mirrors.http_ranges import HttpRanges, NotThere, url_of
from peer.mirrors.virtual_link import Holding
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.versions.chunks import HASH_BYTES
from rollcast.wire.versions.records import Manifest, VerifiedVersion


class MirrorSource:
    """See peer.mirrors.virtual_link.ChunkSource.

    Args:
        address: https://host/prefix, perhaps with the query of a presigned prefix.
    """

    def __init__(self, http: HttpRanges, address: str) -> None:
        self._http = http
        self._address = address

    async def find(self, verified: VerifiedVersion, manifest: Manifest) -> Holding:
        address = self._file(manifest, "list")
        try:
            hashes = await self._http.whole(address, manifest.chunk_count * HASH_BYTES)
            manifest.check_chunk_list(hashes)
        except MalformedMessage as error:
            # Usually a mirror of another run, or a server that answers every path with a page: useless, not hostile.
            raise NotThere(error.what) from None
        return Holding(b"", True, hashes)

    async def read(
        self, verified: VerifiedVersion, manifest: Manifest, start: int, stop: int
    ) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._http.part(self._file(manifest, "data"), start, stop)) as pieces:
            async for piece in pieces:
                yield piece

    def _file(self, manifest: Manifest, kind: str) -> str:
        return str(url_of(self._address, str(manifest.version), f"{manifest.encoding_id}.{kind}"))
