"""Encode and parse the frames of a chunk link, over any stream of bytes. This module does no I/O.

frame   = kind (1 byte) length (4 bytes, big-endian) body (length bytes)
kind 1  = a serialized LinkMessage
kind 2  = version (8) encoding_id (4) index (4) stripe (2), big-endian, then the chunk's bytes
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from rollcast.runtime.errors import MalformedMessage
from rollcast.wire import limits
from rollcast.wire.checks import require
from rollcast.wire.ids import ChunkIndex, EncodingId, StripeId, Version
from rollcast.wire.links import chunk_buffers
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.versions.chunks import HASH_BYTES, BytesLike, parse_bitmap
from rollcast.wire.versions.receipts import NONCE_BYTES

_FRAME_HEADER = struct.Struct(">BI")
_CHUNK_HEADER = struct.Struct(">QIIH")
_MESSAGE, _CHUNK = 1, 2

DIRECT_STRIPE = StripeId(0)
"""The stripe of chunks that the origin sends to every neighbour itself; receivers do not forward them."""
NO_STRIPE = StripeId(0xFFFF)
"""The stripe of chunks that were requested; receivers do not forward them."""

_LENGTH_RANGE = {
    _MESSAGE: (1, limits.LINK_CONTROL_BYTES_MAX),
    _CHUNK: (_CHUNK_HEADER.size + 1, _CHUNK_HEADER.size + limits.CHUNK_SIZE_BYTES_MAX),
}

_LONG_TAGS = frozenset(
    pb.LinkMessage.DESCRIPTOR.fields_by_name[name].number << 3 | 2 for name in ("announcement", "chunk_list")
)

# Memory allocated for a body before any of it arrives: for a chunk all of it, so that it is received where it stays. A
# control message gets more memory only as its bytes arrive, so that a false length costs the receiver little.
_FIRST_PIECE_BYTES = {_MESSAGE: 64 << 10, _CHUNK: _CHUNK_HEADER.size + limits.CHUNK_SIZE_BYTES_MAX}


@dataclass(frozen=True, slots=True)
class LinkMessageFrame:
    """A control message; the sizes inside it are within limits."""

    message: pb.LinkMessage


@dataclass(frozen=True, slots=True)
class ChunkFrame:
    """A chunk that is not verified yet. ``payload`` has memory of its own and may be kept."""

    version: Version
    encoding_id: EncodingId
    index: ChunkIndex
    stripe: StripeId
    payload: memoryview


LinkFrame = LinkMessageFrame | ChunkFrame


def encode_message(message: pb.LinkMessage) -> bytes:
    """Return the frame of a control message.

    Raises:
        MalformedMessage: the message is longer than receivers accept.
    """
    body = message.SerializeToString()
    if not 1 <= len(body) <= limits.LINK_CONTROL_BYTES_MAX:
        raise MalformedMessage(f"a link message of {len(body)} bytes cannot be sent")
    return _FRAME_HEADER.pack(_MESSAGE, len(body)) + body


def encode_error(reason: str, code: str) -> bytes:
    """Return the control frame that reports why a link ends; a long reason is cut."""
    return encode_message(pb.LinkMessage(error=pb.LinkError(code=code, what=reason[: limits.TEXT_LENGTH_MAX])))


def encode_chunk(
    version: int, encoding_id: int, index: int, payload: BytesLike, stripe: StripeId = NO_STRIPE
) -> list[BytesLike]:
    """Return one chunk frame as [header, payload], so that the payload is not copied.

    Raises:
        MalformedMessage: the payload is empty or longer than receivers accept.
    """
    size = memoryview(payload).nbytes
    if not 1 <= size <= limits.CHUNK_SIZE_BYTES_MAX:
        raise MalformedMessage(f"a chunk of {size} bytes cannot be sent")
    header = _FRAME_HEADER.pack(_CHUNK, _CHUNK_HEADER.size + size) + _CHUNK_HEADER.pack(
        version, encoding_id, index, stripe
    )
    return [header, payload]


class FrameParser:
    """A parser of a stream of bytes into frames; it holds at most one unfinished frame.

    The reader puts bytes into ``buffer`` and reports how many with ``filled``, so a chunk's bytes are never copied.
    """

    def __init__(self) -> None:
        self._header = bytearray(_FRAME_HEADER.size)
        self._body: bytearray | None = None  # None while the header is incomplete
        self._kind = 0
        self._length = 0  # length of the body
        self._came = 0  # bytes of the header, then of the body
        self._failed = False

    @property
    def missing_bytes(self) -> int:
        """Return the bytes missing from the unfinished frame; 0 if its length is not known yet."""
        return self._length - self._came if self._body is not None else 0

    @property
    def buffered_bytes(self) -> int:
        """Return the bytes of memory that the unfinished frame takes."""
        return len(self._body) if self._body is not None else self._came

    def buffer(self) -> memoryview:
        """Return the memory for the next bytes; never empty.

        Raises:
            MalformedMessage: the stream was malformed before and cannot be used any more.
        """
        if self._failed:
            raise MalformedMessage("this link sent malformed bytes before")
        if self._body is None:
            return memoryview(self._header)[self._came :]
        if self._came == len(self._body):
            grown = bytearray(min(2 * self._came, self._length))
            grown[: self._came] = self._body
            self._body = grown
        return memoryview(self._body)[self._came :]

    def filled(self, size_bytes: int) -> LinkFrame | None:
        """Take ``size_bytes`` that were put into ``buffer``. Returns the frame that they complete, or None.

        Raises:
            MalformedMessage: the frame is malformed; the stream cannot be used any more.
        """
        self._came += size_bytes
        try:
            if self._body is None:
                if self._came == _FRAME_HEADER.size:
                    self._open_frame()
            elif self._came == self._length:
                return self._close_frame(self._body)
        except MalformedMessage:
            self._failed = True
            raise
        return None

    def feed(self, data: BytesLike) -> list[LinkFrame]:
        """Return the frames that ``data`` completes, in order.

        Raises:
            MalformedMessage: a frame is malformed; the stream cannot be used any more.
        """
        frames: list[LinkFrame] = []
        view = memoryview(data)
        while len(view):
            buffer = self.buffer()
            taken = min(len(buffer), len(view))
            buffer[:taken] = view[:taken]
            buffer.release()
            view = view[taken:]
            frame = self.filled(taken)
            if frame is not None:
                frames.append(frame)
        return frames

    def _open_frame(self) -> None:
        self._kind, length = _FRAME_HEADER.unpack(self._header)
        if self._kind not in _LENGTH_RANGE:
            raise MalformedMessage(f"frame kind {self._kind} is unknown")
        least, most = _LENGTH_RANGE[self._kind]
        if not least <= length <= most:
            raise MalformedMessage(f"a frame of kind {self._kind} with {length} bytes")
        self._length, self._came = length, 0
        first_bytes = min(length, _FIRST_PIECE_BYTES[self._kind])
        self._body = chunk_buffers.SHARED.take(first_bytes) if self._kind == _CHUNK else bytearray(first_bytes)

    def _close_frame(self, body: bytearray) -> LinkFrame:
        self._body, self._came = None, 0
        if self._kind == _MESSAGE:
            return LinkMessageFrame(_parse_message(body))
        version, encoding_id, index, stripe = _CHUNK_HEADER.unpack_from(body)
        if version > limits.COUNTER_MAX:
            raise MalformedMessage("a chunk's version is out of range")
        if stripe > limits.STRIPES_MAX and stripe != NO_STRIPE:
            raise MalformedMessage("a chunk's stripe is out of range")
        payload = memoryview(body)[_CHUNK_HEADER.size :].toreadonly()
        return ChunkFrame(Version(version), EncodingId(encoding_id), ChunkIndex(index), StripeId(stripe), payload)


def _parse_message(body: bytearray) -> pb.LinkMessage:
    if len(body) > limits.LINK_SHORT_BYTES_MAX and not _is_long_kind(body):
        raise MalformedMessage(f"a link message of {len(body)} bytes that is no announcement or chunk list")
    try:
        message = pb.LinkMessage.FromString(bytes(body))
    except DecodeError as error:
        raise MalformedMessage("not a link message", cause=str(error)) from None
    _check_message(message)
    return message


def _is_long_kind(body: bytearray) -> bool:
    """Whether the body is a single field of a kind that may be long (protobuf encodes a tag and a length)."""
    if body[0] not in _LONG_TAGS:
        return False
    length = 0
    for place, byte in enumerate(body[1:6]):
        length |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return len(body) == 2 + place + length
    return False


def _check_message(message: pb.LinkMessage) -> None:
    """Check sizes and ranges inside a message; ``records.verify_announcement`` checks announcements.

    Raises:
        MalformedMessage: a size or number is out of range.
    """
    match message.WhichOneof("body"):
        case None:
            raise MalformedMessage("a link message without a body")
        case "hello":
            require(len(message.hello.run_id) <= limits.TEXT_LENGTH_MAX, "a run id is too long")
            require(len(message.hello.software) <= limits.TEXT_LENGTH_MAX, "a software name is too long")
            require(len(message.hello.certificate_der) <= limits.CERTIFICATE_BYTES_MAX, "a certificate is too long")
        case "have":
            require(message.have.version <= limits.COUNTER_MAX, "a version is out of range")
            if message.have.bitmap:
                parse_bitmap(message.have.bitmap, message.have.chunk_count)
        case "chunk_list":
            hashes = len(message.chunk_list.hashes)
            require(message.chunk_list.version <= limits.COUNTER_MAX, "a version is out of range")
            require(0 < hashes <= limits.CHUNK_COUNT_MAX * HASH_BYTES, "a chunk list is too long or empty")
            require(hashes % HASH_BYTES == 0, "a chunk list is not a list of hashes")
        case "credit":
            require(message.credit.version <= limits.COUNTER_MAX, "a version is out of range")
            require(1 <= len(message.credit.indices) <= limits.CREDIT_CHUNKS_MAX, "a credit is too long or empty")
        case "got":
            require(message.got.version <= limits.COUNTER_MAX, "a version is out of range")
            require(1 <= len(message.got.indices) <= limits.CREDIT_CHUNKS_MAX, "a list of chunks is too long or empty")
        case "decline":
            require(message.decline.version <= limits.COUNTER_MAX, "a version is out of range")
            require(1 <= len(message.decline.indices) <= limits.REQUEST_CHUNKS_MAX, "a refusal is too long or empty")
        case "want":
            require(message.want.version <= limits.COUNTER_MAX, "a version is out of range")
        case "request":
            require(message.request.version <= limits.COUNTER_MAX, "a version is out of range")
            require(1 <= len(message.request.indices) <= limits.REQUEST_CHUNKS_MAX, "a request is too long or empty")
        case "padding":
            require(len(message.padding.zeros) <= limits.PADDING_BYTES_MAX, "too much padding")
        case "receipt_request":
            require(message.receipt_request.version <= limits.COUNTER_MAX, "a version is out of range")
            require(len(message.receipt_request.nonce) == NONCE_BYTES, "a nonce has another length")
        case "receipt":
            require(message.receipt.ByteSize() <= limits.RECEIPT_BYTES_MAX, "a receipt is too long")
        case "cancel":
            require(message.cancel.version <= limits.COUNTER_MAX, "a version is out of range")
            require(len(message.cancel.reason) <= limits.TEXT_LENGTH_MAX, "a reason is too long")
        case "error":
            texts = (message.error.code, message.error.what)
            require(max(map(len, texts)) <= limits.TEXT_LENGTH_MAX, "an error's text is too long")
        case "held":
            require(max(message.held.version, message.held.epoch) <= limits.COUNTER_MAX, "a version is out of range")
