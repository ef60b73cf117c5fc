"""Read and write the messages of circuit relay v2, and the certificate that a peer shows before them (trio).

Circuit relay v2 (libp2p's specs/relay/circuit-v2.md): a length as a varint and a protobuf message. Certificate: its
length (2 bytes, big-endian) and its DER form; the answer is one byte, 1 if it was accepted.
"""

from __future__ import annotations

from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message
from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage, StopMessage
from libp2p.utils import encode_delim

from peer.p2p.circuits.book import Answer
from peer.p2p.streams.lanes import close_quietly
from rollcast.runtime.errors import MalformedMessage, Unreachable

HOP = "/libp2p/circuit/relay/0.2.0/hop"
STOP = "/libp2p/circuit/relay/0.2.0/stop"
CERTIFICATE = "/rollcast/certificate/1.0.0"
MESSAGE_BYTES_MOST = 4096
_MULTISTREAM = "/multistream/1.0.0"
MessageT = TypeVar("MessageT", bound=Message)


async def open_stream(connection: Any, protocol: str, first: bytes = b"") -> Any:
    """Return a new stream of this protocol on exactly this connection, on which ``first`` has been sent.

    The request is sent at once, ahead of the answers (multistream-select of libp2p's specifications, section
    "Lazy negotiation"): libp2p's own negotiation takes two more round trips for each stream, and opening a circuit
    takes several streams.

    Raises:
        Unreachable: the other end does not speak the protocol.
    """
    stream = await connection.new_stream()
    stream.set_protocol(protocol)
    await stream.write(encode_delim(_MULTISTREAM.encode()) + encode_delim(protocol.encode()) + first)
    answers = MultiselectCommunicator(stream)
    for expected in (_MULTISTREAM, protocol):
        if await answers.read() != expected:
            await close_quietly(stream.reset)
            raise Unreachable(f"{connection.muxed_conn.peer_id} does not speak {protocol}")
    return stream


def encoded(message: Message) -> bytes:
    """Return a message as it is sent: its length as a varint, and its bytes."""
    data = message.SerializeToString()
    return _varint(len(data)) + data


async def write_message(stream: Any, message: Message) -> None:
    """Send one message."""
    await stream.write(encoded(message))


async def read_message(stream: Any, kind: type[MessageT]) -> MessageT:
    """Read one message of this kind, and not a byte more.

    Raises:
        MalformedMessage: the message is too long or of another kind, or the stream ended.
    """
    size = shift = 0
    while True:
        byte = (await read_exactly(stream, 1))[0]
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
        if shift > 14:
            raise MalformedMessage("a message about circuits is too long")
    if size > MESSAGE_BYTES_MOST:
        raise MalformedMessage("a message about circuits is too long")
    message = kind()
    try:
        message.ParseFromString(await read_exactly(stream, size))
    except DecodeError:
        raise MalformedMessage("this is no message about circuits") from None
    return message


async def show_certificate(connection: Any, certificate_der: bytes) -> bool:
    """Show a certificate on this connection, and return whether the other end accepted it."""
    stream = await open_stream(connection, CERTIFICATE, len(certificate_der).to_bytes(2, "big") + certificate_der)
    accepted = await read_exactly(stream, 1) == b"\x01"
    await close_quietly(stream.close)
    return accepted


async def read_certificate(stream: Any) -> bytes:
    """Read the certificate that the other end shows; the caller must reply with ``answer_certificate``.

    Raises:
        MalformedMessage: it is too long, or the stream ended.
    """
    size = int.from_bytes(await read_exactly(stream, 2), "big")
    if size > MESSAGE_BYTES_MOST:
        raise MalformedMessage("a certificate is too long")
    return await read_exactly(stream, size)


async def answer_certificate(stream: Any, *, accepted: bool) -> None:
    """Report to the other end whether its certificate was accepted."""
    await stream.write(b"\x01" if accepted else b"\x00")


async def read_exactly(stream: Any, size_bytes: int) -> bytes:
    """Read exactly ``size_bytes`` bytes.

    Raises:
        MalformedMessage: the stream ended before.
    """
    data = b""
    while len(data) < size_bytes:
        more = await stream.read(size_bytes - len(data))
        if not more:
            raise MalformedMessage("the stream ended within a message")
        data += more
    return data


def wire_status(answer: Answer) -> Any:
    """Return the number of an answer, typed as generated messages need it."""
    return int(answer)


def status_of(message: HopMessage | StopMessage) -> Answer:
    """Return the status of an answer; an unknown one counts as a refusal (UNEXPECTED_MESSAGE)."""
    try:
        return Answer(int(message.status))
    except ValueError:
        return Answer.UNEXPECTED_MESSAGE


def _varint(number: int) -> bytes:
    data = bytearray()
    while number >= 0x80:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*data, number])
