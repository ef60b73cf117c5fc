"""Encode what a gateway and the core tell each other. Pure.

A frame is its length (little-endian u32) and a MessagePack array of items, those of one turn of the sender's loop. Both
ends are of one release: an item is an array whose first element is its kind, and an event is encoded as in the flight
record.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, get_args

import msgspec

from coordinator.core.events.events import (
    Event,
    HeartbeatReceived,
    LeasesReturned,
    PartialReceived,
    PeerJoined,
    VersionHeld,
    WorkRequested,
)
from coordinator.core.events.reach_events import (
    DialBackEnded,
    PunchEnded,
    PunchRequested,
    ReachabilityTold,
    RecordGiven,
)
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.ids import FencingToken, LeaseId
from rollcast.wire.rollouts import Rollout

FORMAT = 1
FRAME_BYTES_MAX = 80 << 20  # above the largest item: a published tokenizer, or a rollout and its ids again
_LENGTH = struct.Struct("<I")
_ARRAY_HEAD = struct.Struct(">BI")  # MessagePack: 0xdd, then the number of elements
_ARRAY_32 = 0xDD

#: Events that the messages of an open session cause.
SessionEvent = (
    HeartbeatReceived
    | WorkRequested
    | VersionHeld
    | LeasesReturned
    | PartialReceived
    | ReachabilityTold
    | PunchRequested
    | PunchEnded
    | DialBackEnded
    | RecordGiven
)
_EVENT_TYPES: dict[str, type[Any]] = {one.__name__: one for one in get_args(SessionEvent)}


class Item(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """One thing that an end tells the other."""


# ---------------------------------------------------------------- from a gateway


class Hello(Item, frozen=True, tag="hello"):
    """The first item. ``csr_pem`` requests the certificate that the gateway shows to peers, for ``hosts``."""

    format: int
    software: str
    name: str
    peer_id: str
    csr_pem: bytes
    hosts: tuple[str, ...]


class Open(Item, frozen=True, tag="open"):
    """A peer requests a session; or, if ``resumed``, has had this one since before the link was lost.

    ``session`` is the gateway's number of the session, ``joined`` has the invite if the gateway knows it.
    """

    session: int
    joined: PeerJoined
    instance_id: str
    address: str
    resumed: bool


class Told(Item, frozen=True, tag="told"):
    """A message of a session caused this event."""

    session: int
    kind: str
    event: msgspec.Raw


class Accuse(Item, frozen=True, tag="accuse"):
    """A peer sent an accusation, as a serialized pb.Accusation."""

    session: int
    accusation: bytes


class Renew(Item, frozen=True, tag="renew"):
    """A peer requests a new certificate."""

    session: int
    csr_pem: bytes


class Close(Item, frozen=True, tag="close"):
    """A session ended; ``finished`` after a Goodbye."""

    session: int
    reason: str
    finished: bool


class Upload(Item, frozen=True, tag="upload"):
    """A peer uploaded a rollout, whose form was checked. ``number`` names it in the answer."""

    number: int
    session: int
    rollout: Rollout


class Malformed(Item, frozen=True, tag="malformed"):
    """A peer uploaded something that is no rollout."""

    number: int
    session: int
    lease_id: LeaseId
    fencing_token: FencingToken
    sample_index: int
    problem: str


class Ask(Item, frozen=True, tag="ask"):
    """Requests an Answer: ``route_shape`` or ``tokenizer``."""

    what: str


# ---------------------------------------------------------------- from the core


class Ready(Item, frozen=True, tag="ready"):
    """The answer to Hello: the gateway may serve. ``welcome``: digest of what every peer is welcomed with."""

    run_id: str
    ca_pem: bytes
    certificate_pem: bytes
    router_replay: bool
    welcome: bytes


class Refuse(Item, frozen=True, tag="refuse"):
    """The gateway must end, with this error (rollcast.wire.joining.error_json)."""

    error: str


class Opened(Item, frozen=True, tag="opened"):
    """The session is open; ``invite`` is the id of the invite with which the peer joined."""

    session: int
    invite: str


class NotOpened(Item, frozen=True, tag="not_opened"):
    """The session is not open: the peer must retry because of ``not_now``, or is refused with this error."""

    session: int
    not_now: str
    error: str


class Deliver(Item, frozen=True, tag="deliver"):
    """A message to a peer, as a serialized pb.CoordinatorMessage."""

    session: int
    message: bytes


class End(Item, frozen=True, tag="end"):
    """End a session once its messages have been written."""

    session: int
    reason: str


class Verdict(Item, frozen=True, tag="verdict"):
    """The answer to an upload."""

    number: int
    accepted: bool
    reason: str


class Answer(Item, frozen=True, tag="answer"):
    """The answer to Ask: a value as MessagePack, or an error (rollcast.wire.joining.error_json)."""

    what: str
    value: msgspec.Raw
    error: str


class Over(Item, frozen=True, tag="over"):
    """The run has ended for good, and with it the gateway."""

    reason: str


# ---------------------------------------------------------------- both


class Beat(Item, frozen=True, tag="beat"):
    """The sender runs."""


ToCore = Hello | Open | Told | Accuse | Renew | Close | Upload | Malformed | Ask | Beat
ToGateway = Ready | Refuse | Opened | NotOpened | Deliver | End | Verdict | Answer | Over | Beat

_encoder = msgspec.msgpack.Encoder()
_to_core = msgspec.msgpack.Decoder(list[ToCore])
_to_gateway = msgspec.msgpack.Decoder(list[ToGateway])


def told(session: int, event: Event) -> Told:
    """Return the item for an event of a session."""
    return Told(session, type(event).__name__, msgspec.Raw(_encoder.encode(event)))


def event_in(item: Told) -> SessionEvent:
    """Return the event of an item.

    Raises:
        MalformedMessage: the item holds no event that a session causes.
    """
    event_type = _EVENT_TYPES.get(item.kind)
    if event_type is None:
        raise MalformedMessage(f"a gateway passes on an event of the kind {item.kind[:64]!r}")
    event: SessionEvent = _decoded(item.event, event_type)
    return event


def answer(what: str, value: Any, error: str = "") -> Answer:
    """Return the answer to a question."""
    return Answer(what, msgspec.Raw(_encoder.encode(value)), error)


def value_in(item: Answer, value_type: Any) -> Any:
    """Return the value of an answer.

    Raises:
        MalformedMessage: it has another type.
    """
    return _decoded(item.value, value_type)


def _decoded(data: msgspec.Raw, value_type: Any) -> Any:
    try:
        return msgspec.msgpack.decode(data, type=value_type)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise MalformedMessage("a frame between gateway and core cannot be read", cause=str(error)) from None


def encode(item: ToCore | ToGateway) -> bytes:
    """Return an item for a frame."""
    return _encoder.encode(item)


def frame(items: Sequence[bytes]) -> bytes:
    """Return encoded items as one frame.

    Raises:
        ValueError: together they are longer than the other end accepts.
    """
    size = _ARRAY_HEAD.size + sum(map(len, items))
    if size > FRAME_BYTES_MAX:
        raise ValueError(f"a frame of {size} bytes")
    return b"".join((_LENGTH.pack(size), _ARRAY_HEAD.pack(_ARRAY_32, len(items)), *items))


class FrameParser:
    """Cuts a stream of bytes into frames; keeps at most one unfinished frame."""

    def __init__(self) -> None:
        self._waiting = bytearray()

    def bodies(self, data: bytes | memoryview) -> list[bytes]:
        """Take the next bytes, and return the content of each frame that is complete now.

        Raises:
            MalformedMessage: a frame is too long.
        """
        waiting = self._waiting
        waiting += data
        bodies, start = list[bytes](), 0
        while len(waiting) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(waiting, start)
            if length > FRAME_BYTES_MAX:
                raise MalformedMessage(f"a frame between gateway and core has at most {FRAME_BYTES_MAX} bytes")
            end = start + _LENGTH.size + length
            if len(waiting) < end:
                break
            with memoryview(waiting) as view:  # so that the bytes are copied once
                bodies.append(bytes(view[start + _LENGTH.size : end]))
            start = end
        del waiting[:start]
        return bodies


def items_to_core(body: bytes) -> list[ToCore]:
    """Return the items of a gateway's frame.

    Raises:
        MalformedMessage: it cannot be read.
    """
    items: list[ToCore] = _items(body, _to_core)
    return items


def items_to_gateway(body: bytes) -> list[ToGateway]:
    """Return the items of the core's frame.

    Raises:
        MalformedMessage: it cannot be read.
    """
    items: list[ToGateway] = _items(body, _to_gateway)
    return items


def _items(body: bytes, decoder: Any) -> Any:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # a ValueError for text that is not UTF-8
        raise MalformedMessage("a frame between gateway and core cannot be read", cause=str(error)) from None
