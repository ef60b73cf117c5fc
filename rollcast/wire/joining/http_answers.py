"""Answers of the coordinator's HTTP port: no longer than expected, and JSON objects."""

from __future__ import annotations

import json
from typing import Any

import aiohttp

from rollcast.runtime.errors import MalformedMessage


async def read_bounded(response: aiohttp.ClientResponse, bytes_max: int) -> bytes:
    """The body.

    Raises:
        MalformedMessage: it is longer than ``bytes_max``.
    """
    data = bytearray()
    async for piece in response.content.iter_any():
        data += piece
        if len(data) > bytes_max:
            raise MalformedMessage(f"the answer of {response.url.host} is too long")
    return bytes(data)


def json_object(data: bytes, url: str, *, fix: str) -> dict[str, Any]:
    """The JSON object in a body.

    Args:
        url: where it came from, and ``fix`` what to do when nothing like a coordinator answers there.

    Raises:
        MalformedMessage: it is none.
    """
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise MalformedMessage(f"{url} does not answer like a coordinator", fix=fix)
    return value
