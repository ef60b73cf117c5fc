"""Serve static files from memory, read and compressed once. Replies are plain data, independent of a web framework."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

STATIC = Path(__file__).parent / "static"
"""Files that the dashboard and the donor's page share; served below ``/web/``."""

CONTENT_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Files of other kinds in a folder, such as licences, are not served."""

#: Browsers revalidate each time and get 304 if nothing changed, so that an upgrade shows at the next reload.
CACHE_CONTROL = "no-cache"


@dataclass(frozen=True, slots=True)
class Asset:
    """One file. ``etag`` includes its quotes, as in the header."""

    body: bytes
    gzipped: bytes
    content_type: str
    etag: str


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer: HTTP status, headers and body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Assets:
    """Files by URL path."""

    def __init__(self, by_url: Mapping[str, Asset]) -> None:
        self._by_url = dict(by_url)

    @classmethod
    def of(cls, folders: Mapping[str, Path]) -> Assets:
        """Read folders with all that is below them.

        Args:
            folders: URL prefix that ends with ``/`` -> folder. The prefix itself shows ``index.html``.

        Raises:
            OSError: a file cannot be read.
        """
        return cls({url: _asset(path) for prefix, folder in folders.items() for url, path in _files(prefix, folder)})

    @property
    def urls(self) -> tuple[str, ...]:
        """Return every path that is served."""
        return tuple(self._by_url)

    @property
    def gzip_bytes(self) -> int:
        """Return the bytes that a browser receives when it loads every file once, without headers."""
        return sum(len(asset.gzipped) for asset in self._by_url.values())

    def reply(self, path: str, *, accept_encoding: str = "", if_none_match: str = "") -> Reply | None:
        """Return the answer to GET; None if there is no such file. The arguments are the request's headers."""
        asset = self._by_url.get(path)
        if asset is None:
            return None
        headers = {"ETag": asset.etag, "Cache-Control": CACHE_CONTROL, "Vary": "Accept-Encoding"}
        if asset.etag in (tag.strip().removeprefix("W/") for tag in if_none_match.split(",")):
            return Reply(304, headers, b"")
        headers["Content-Type"] = asset.content_type
        if _takes_gzip(accept_encoding):
            return Reply(200, {**headers, "Content-Encoding": "gzip"}, asset.gzipped)
        return Reply(200, headers, asset.body)


def _files(prefix: str, folder: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.rglob("*")):
        if path.suffix in CONTENT_TYPES and path.is_file():
            name = path.relative_to(folder).as_posix()
            yield prefix + name.removesuffix("index.html"), path


def _asset(path: Path) -> Asset:
    body = path.read_bytes()
    etag = f'"{hashlib.blake2b(body, digest_size=16).hexdigest()}"'
    return Asset(body, gzip.compress(body, 9, mtime=0), CONTENT_TYPES[path.suffix], etag)


def _takes_gzip(accept_encoding: str) -> bool:
    """Return whether the header accepts gzip (RFC 9110, section 12.5.3)."""
    for part in accept_encoding.lower().split(","):
        name, _, weight = part.partition(";")
        if name.strip() in ("gzip", "*"):
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
