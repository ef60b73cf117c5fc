"""Encode the flight record: each event of the core with its time, and a checksum of what the core decided. Pure.

A segment is a sequence of frames; a frame is its length and CRC-32 (little-endian u32 each) and a zstd-compressed
MessagePack array of entries. A segment that begins a coordinator's life has its ``Head`` as first entry. A torn last
frame, as a crash leaves it, ends the record.

The tokens of a rollout that was stored are left out of the record: the ledger has them, under the id that is noted.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import msgspec
import zstandard

from coordinator.core.decisions.settings import CoreSettings
from coordinator.core.decisions.state import Restored
from coordinator.core.events.actions import (
    Action,
    CommitTogether,
    ScoreRollout,
    ServeBatch,
    StoreEpisode,
    StoreRollout,
    StoreTurn,
)
from coordinator.core.events.audit_events import Unseen
from coordinator.core.events.events import Event, RolloutReceived
from rollcast.wire.ids import RolloutId
from rollcast.wire.rollouts import Rollout

FORMAT = 2
FRAME_BYTES_MAX = 64 << 20  # decompressed; readers reject larger frames
_COMPRESSION_LEVEL = 3
_FRAME_HEAD = struct.Struct("<II")  # length and CRC-32 of what follows

_EVENT_TYPES: dict[str, type] = {one.__name__: one for one in get_args(Event)}
_encoder = msgspec.msgpack.Encoder(enc_hook=lambda message: message.SerializeToString(deterministic=True))
_OF_NO_ACTION = zlib.crc32(_encoder.encode([]))


@dataclass(frozen=True, slots=True)
class Head:
    """The settings and state with which a coordinator's core was built, so that a replay can build the same core."""

    format: int
    software: str
    started_unix_s: float  # wall clock at ``started``
    started: float  # on the core's clock
    settings: CoreSettings
    restored: Restored | None


@dataclass(frozen=True, slots=True)
class EventEntry:
    """One event, its time on the core's clock, and the checksum of the actions that followed from it."""

    now: float
    event: Event
    actions_crc: int
    rollout_id: RolloutId | None = None  # set if the event's rollout must be read from the ledger


@dataclass(frozen=True, slots=True)
class Gap:
    """A gap in the record, made when the disk did not keep up: later entries cannot be replayed.

    ``events`` is the number of missing entries.
    """

    events: int


Entry = Head | EventEntry | Gap


def checksum(actions: Sequence[Action]) -> int:
    """Return the CRC-32 of the core's actions, without the contents of rollouts, which a peer decided."""
    if not actions:
        return _OF_NO_ACTION
    return zlib.crc32(_encoder.encode([(type(action).__name__, _decided(action)) for action in actions]))


def _decided(action: Action) -> Any:
    match action:  # the most frequent ones first
        case StoreRollout():
            return (action.rollout_id, action.peer_id)
        case ScoreRollout():
            return (action.rollout_id, action.problem_id)
        case CommitTogether():
            return [(type(one).__name__, _decided(one)) for one in action.changes]
        case StoreTurn() | StoreEpisode():
            return replace(action, rollout=_bare(action.rollout))
        case ServeBatch():
            return replace(action, unseen=tuple(map(_named, action.unseen)))
        case _:
            return action


def _named(unseen: Unseen) -> Unseen:
    """Return a rollout of an evaluation without its contents: the record does not have its encoded form."""
    if unseen.evaluated is None:
        return unseen
    prompt, seed, rollout = unseen.evaluated
    return replace(unseen, evaluated=(prompt, seed, _bare(rollout)))


def _bare(rollout: Rollout) -> Rollout:
    return Rollout(
        *(rollout.lease_id, rollout.fencing_token, rollout.group_id, rollout.sample_index, ()),
        *(rollout.finish_reason, rollout.generate_s, b"", rollout.routed_prompt_tokens, rollout.prefix_digest),
    )


def event_entry(now: float, event: Event, actions: Sequence[Action]) -> EventEntry:
    """Return the entry of one event, without the tokens that the ledger keeps anyway."""
    crc = checksum(actions)
    if isinstance(event, RolloutReceived):
        for action in actions:
            if isinstance(action, StoreRollout) and action.rollout is event.rollout:
                bare = RolloutReceived(event.upload_id, event.peer_id, _bare(event.rollout), event.text_end)
                return EventEntry(now, bare, crc, action.rollout_id)
        event = replace(event, rollout=replace(event.rollout, body=b""))
    return EventEntry(now, event, crc)


def whole(entry: EventEntry, stored: Callable[[RolloutId], Rollout]) -> Event:
    """Return an entry's event as the core received it, with the rollout that ``stored`` reads from the ledger."""
    if entry.rollout_id is None or not isinstance(entry.event, RolloutReceived):
        return entry.event
    return replace(entry.event, rollout=stored(entry.rollout_id))


# ---------------------------------------------------------------- frames


def pack(entry: Entry) -> bytes:
    """Encode one entry for a later frame: this is cheap, and later changes of the event do not affect it."""
    return _encoder.encode(_plain(entry))


def frame(packed: Sequence[bytes]) -> bytes:
    """Return packed entries as one frame."""
    array = _encoder.encode([msgspec.Raw(one) for one in packed])
    body = zstandard.ZstdCompressor(level=_COMPRESSION_LEVEL).compress(array)
    return _FRAME_HEAD.pack(len(body), zlib.crc32(body)) + body


def entries_of(segment: bytes) -> Iterator[Entry]:
    """Yield every entry of a segment up to its end or its first torn frame.

    Raises:
        ValueError: a frame is whole but cannot be decoded, because another release wrote it.
    """
    at = 0
    while at + _FRAME_HEAD.size <= len(segment):
        length, crc = _FRAME_HEAD.unpack_from(segment, at)
        at += _FRAME_HEAD.size
        body = segment[at : at + length]
        if len(body) < length or zlib.crc32(body) != crc:
            return
        at += length
        yield from _entries_of_frame(body)


def _entries_of_frame(body: bytes) -> Iterator[Entry]:
    try:
        packed = zstandard.ZstdDecompressor().decompress(body, max_output_size=FRAME_BYTES_MAX)
        for fields in msgspec.msgpack.decode(packed, type=list[list[msgspec.Raw]]):
            yield _entry(fields)
    except (zstandard.ZstdError, msgspec.MsgspecError, KeyError) as error:
        raise ValueError(f"a frame of the record cannot be read: {error!r}") from None


def _plain(entry: Entry) -> tuple[Any, ...]:
    match entry:
        case EventEntry():
            return ("told", entry.now, type(entry.event).__name__, entry.event, entry.actions_crc, entry.rollout_id)
        case Head():
            return ("head", entry)
        case Gap():
            return ("gap", entry.events)


def _entry(fields: list[msgspec.Raw]) -> Entry:
    kind = msgspec.msgpack.decode(fields[0], type=str)
    if kind == "head":
        return msgspec.msgpack.decode(fields[1], type=Head)
    if kind == "gap":
        return Gap(msgspec.msgpack.decode(fields[1], type=int))
    _, now, name, event, crc, rollout_id = fields
    event_type = _EVENT_TYPES[msgspec.msgpack.decode(name, type=str)]
    return EventEntry(
        msgspec.msgpack.decode(now, type=float),
        msgspec.msgpack.decode(event, type=event_type),
        msgspec.msgpack.decode(crc, type=int),
        msgspec.msgpack.decode(rollout_id, type=RolloutId | None),
    )
