"""Frames between the peer and its vLLM server: a JSON object and raw bytes, both of limited size. Pure.

A frame is two lengths (big-endian, 32 bits each), the JSON text and the bytes. Both ends check every frame, and each
end takes the other for lost after the first malformed one: within a stream there is no place to begin again.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from typing import Any

HEADER_BYTES_MAX = 1 << 20
"""Longest JSON text of a frame, in bytes."""
BODY_BYTES_MAX = 64 << 20
"""Longest body of a frame, in bytes: the tokens of 64 prompts of 256,000 tokens."""

_LENGTHS = struct.Struct(">II")


class BadFrame(Exception):
    """The other end sent bytes that are no frame."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message: a JSON object, and numbers as raw bytes."""

    header: dict[str, Any] = field(default_factory=dict)
    body: bytes = b""


def encode(frame: Frame) -> bytes:
    """Return the bytes of a frame.

    Raises:
        BadFrame: the frame is larger than the other end accepts.
    """
    text = json.dumps(frame.header, allow_nan=False, separators=(",", ":")).encode()
    _check_lengths(len(text), len(frame.body))
    return _LENGTHS.pack(len(text), len(frame.body)) + text + frame.body


class FrameReader:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._unread = bytearray()

    def receive(self, data: bytes) -> list[Frame]:
        """Return the frames that ``data`` completes.

        Raises:
            BadFrame: the bytes are no frame, or too large a frame, as soon as that is known.
        """
        self._unread += data
        frames = []
        while (frame := self._next()) is not None:
            frames.append(frame)
        return frames

    def _next(self) -> Frame | None:
        if len(self._unread) < _LENGTHS.size:
            return None
        header_bytes, body_bytes = _LENGTHS.unpack_from(self._unread)
        _check_lengths(header_bytes, body_bytes)
        body_at = _LENGTHS.size + header_bytes
        if len(self._unread) < body_at + body_bytes:
            return None
        header = _parsed(bytes(self._unread[_LENGTHS.size : body_at]))
        frame = Frame(header, bytes(self._unread[body_at : body_at + body_bytes]))
        del self._unread[: body_at + body_bytes]
        return frame


def _check_lengths(header_bytes: int, body_bytes: int) -> None:
    if header_bytes > HEADER_BYTES_MAX or body_bytes > BODY_BYTES_MAX:
        raise BadFrame(f"a frame of {header_bytes} and {body_bytes} bytes")


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadFrame(f"a frame's header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise BadFrame("a frame's header is no JSON object")
    return header
