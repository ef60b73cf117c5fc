"""Encode the rows of a fleet's journal, one JSON object a line, and add them up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import msgspec

from capacity.fleet.billing import Terms
from capacity.fleet.events import RecordClosed, RecordMark, RecordOpened, Spent
from capacity.fleet.spending import NOTHING, plus
from capacity.fleet.state import OpenWorker, Restored
from capacity.providers.base import WorkerTag

SCHEMA = 1


class OpenedRow(msgspec.Struct, frozen=True, tag="opened", tag_field="kind"):
    """A start that was decided; it is tried after this row is durable. Times are Unix seconds."""

    at: float
    tag: str
    provider: str
    terms: Terms
    schema: int = SCHEMA


class JoinedRow(msgspec.Struct, frozen=True, tag="joined", tag_field="kind"):
    """The peer that joined with the invite of this tag."""

    at: float
    tag: str
    peer_id: str


class ClosedRow(msgspec.Struct, frozen=True, tag="closed", tag_field="kind"):
    """The end of a worker."""

    at: float
    tag: str
    provider: str
    machine_usd: float
    egress_usd: float


class MarkRow(msgspec.Struct, frozen=True, tag="mark", tag_field="kind"):
    """Cost since the previous row of this kind, by provider; total bytes sent, by open tag."""

    at: float
    spent: dict[str, Spent]
    sent_bytes: dict[str, int]


Row = OpenedRow | JoinedRow | ClosedRow | MarkRow
_DECODER = msgspec.json.Decoder(Row)


def row_of(action: RecordOpened | RecordClosed | RecordMark) -> Row:
    """Return the row that an action asks for."""
    match action:
        case RecordOpened(tag, provider, terms, opened_at):
            return OpenedRow(opened_at, str(tag), provider, terms)
        case RecordClosed(tag, provider, ended_at, machine_usd, egress_usd):
            return ClosedRow(ended_at, str(tag), provider, machine_usd, egress_usd)
        case RecordMark(at, spent, sent_bytes):
            return MarkRow(at, dict(spent), dict(sent_bytes))


def encode(row: Row) -> bytes:
    """Encode a row as one line with its newline."""
    return msgspec.json.encode(row) + b"\n"


def decode(line: bytes) -> Row:
    """Decode a line; the inverse of ``encode``.

    Raises:
        ValueError: it is no such line.
    """
    row: Row = _DECODER.decode(line)  # msgspec's errors are ValueErrors
    if isinstance(row, OpenedRow):
        if row.schema != SCHEMA:
            raise ValueError(f"schema {row.schema} instead of {SCHEMA}")
        WorkerTag.parse(row.tag)
    return row


@dataclass(slots=True)
class Fold:
    """The sum of all rows so far."""

    opened: dict[str, OpenWorker] = field(default_factory=dict)
    peers: dict[str, str] = field(default_factory=dict)
    """Peer id of every open tag whose peer has joined."""
    incarnations: dict[str, int] = field(default_factory=dict)
    closed: dict[str, Spent] = field(default_factory=dict)
    marked: dict[str, Spent] = field(default_factory=dict)
    last_at: float = 0.0

    def add(self, row: Row) -> None:
        """Add the next row."""
        self.last_at = max(self.last_at, row.at)
        match row:
            case OpenedRow():
                tag = WorkerTag.parse(row.tag)
                self.opened[row.tag] = OpenWorker(tag, row.provider, row.terms, row.at)
                self.incarnations[tag.worker_id] = max(tag.incarnation, self.incarnations.get(tag.worker_id, 0))
            case JoinedRow():
                self.peers[row.tag] = row.peer_id
            case ClosedRow():
                self.opened.pop(row.tag, None)
                self.peers.pop(row.tag, None)
                spent = Spent(row.machine_usd, row.egress_usd, 0.0)
                self.closed[row.provider] = plus(self.closed.get(row.provider, NOTHING), spent)
            case MarkRow():
                for provider, spent in row.spent.items():
                    self.marked[provider] = plus(self.marked.get(provider, NOTHING), spent)
                for key, sent_bytes in row.sent_bytes.items():
                    if key in self.opened:
                        self.opened[key] = replace(self.opened[key], sent_bytes=sent_bytes)

    def restored(self) -> Restored:
        """Return the state from which a new manager continues."""
        return Restored(tuple(self.opened.values()), self.incarnations, self.closed, self.marked, self.last_at)


def fold(rows: Iterable[Row]) -> Fold:
    """Add up all rows."""
    found = Fold()
    for row in rows:
        found.add(row)
    return found
