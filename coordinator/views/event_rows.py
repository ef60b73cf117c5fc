"""Read the run's events from ledger and archive: filtered, a page at a time, newest first; not on the event loop."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from coordinator.core.members.progress import WAITED
from coordinator.ledger.event_archive import read_segment, segments
from coordinator.ledger.sql import RunReader
from coordinator.ledger.store import StoryEntry
from coordinator.stores.reader import reading
from rollcast.runtime.run_folder import RunFolder

LIMIT_MAX = 500
ROUTINE = frozenset({WAITED})  # kinds of which there is one a step: for `rollcast why`, not for people to read
SEGMENTS_READ_MAX = 8  # segments of the archive that are read for one page
_UNESCAPED = re.compile("[!%_]")  # characters with a meaning in LIKE
_COLUMNS = "event_order, at_unix_s, kind, subject, detail, cause"


@dataclass(frozen=True, slots=True)
class EventView:
    """One event. ``name`` is the name of the peer that it is about; empty if that is no peer that ever joined."""

    id: int
    at_unix_s: float
    kind: str
    subject: str
    name: str
    detail: str
    cause: str
    cause_name: str = ""
    """The name of the peer that is the cause; empty if the cause is something else."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A filter; empty fields match all events. ``text`` is searched in subject, detail and cause.

    ``without_routine`` leaves out the events of ROUTINE.

    ``subject`` may also be a peer's name.

    Args:
        before, after: exclusive upper and lower bounds of the events' ids; 0 for no bound.
    """

    kinds: Collection[str] = ()
    subject: str = ""
    text: str = ""
    before: int = 0
    after: int = 0
    limit: int = 100
    without_routine: bool = False


@dataclass(frozen=True, slots=True)
class EventsPage:
    """One page. ``next_before`` is ``before`` of the next page, or None; ``kinds`` are all kinds in the ledger."""

    events: tuple[EventView, ...]
    kinds: tuple[str, ...] = field(default=())
    next_before: int | None = None


class StoryRows:
    """Reads events while the coordinator writes the ledger.

    Every method raises StoreError if the ledger or its archive cannot be read.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._archive = folder.events

    def page(self, wanted: Wanted) -> EventsPage:
        """Return the newest events that match, newest first."""
        limit = max(1, min(wanted.limit, LIMIT_MAX))
        with reading(self._folder) as connection:
            subjects = _subjects(connection, wanted.subject)
            found = _select(connection, wanted, subjects, limit + 1)
            kinds = tuple(kind for (kind,) in connection.execute("SELECT DISTINCT kind FROM events ORDER BY kind"))
            if len(found) <= limit:
                found += self._archived(wanted, subjects, limit + 1 - len(found), _oldest(connection))
            events = _with_names(connection, found[:limit])
        more = len(found) > limit
        return EventsPage(events, kinds, events[-1].id if more and events else None)

    def after(self, last_id: int, limit: int) -> tuple[EventView, ...]:
        """Return the first events after an id, oldest first."""
        with reading(self._folder) as connection:
            rows = connection.execute(
                f"SELECT {_COLUMNS} FROM events WHERE event_order > ? ORDER BY event_order LIMIT ?", (last_id, limit)
            )
            return _with_names(connection, [StoryEntry(*row) for row in rows])

    def names(self, peer_ids: Collection[str]) -> dict[str, str]:
        """Return the names under which these peers last joined, as far as the ledger still has those events."""
        with reading(self._folder) as connection:
            return dict(_names(connection, peer_ids))

    def newest_id(self) -> int:
        """Return the newest event's id; 0 before the first event."""
        with reading(self._folder) as connection:
            (found,) = connection.execute("SELECT coalesce(max(event_order), 0) FROM events").fetchone()
        return int(found)

    def one(self, event_id: int) -> EventView | None:
        """Return the event with this id; None if it does not exist or is no longer kept."""
        page = self.page(Wanted(before=event_id + 1, after=event_id - 1, limit=1))
        return page.events[0] if page.events else None

    def _archived(self, wanted: Wanted, subjects: Collection[str], count: int, oldest: int) -> list[StoryEntry]:
        """Return events older than the ledger's oldest, newest first, from the newest segments of the archive."""
        found: list[StoryEntry] = []
        read = 0
        for segment in reversed(segments(self._archive)):
            first = int(segment.name.partition(".")[0])
            if wanted.before and first >= wanted.before:
                continue
            if len(found) >= count or read >= SEGMENTS_READ_MAX:
                break
            read += 1
            entries = [one for one in read_segment(segment) if one.order < oldest and _fits(one, wanted, subjects)]
            found += reversed(entries)
        return found[:count]


def _oldest(connection: RunReader) -> int:
    (found,) = connection.execute("SELECT coalesce(min(event_order), 9223372036854775807) FROM events").fetchone()
    return int(found)


def _subjects(connection: RunReader, subject: str) -> frozenset[str]:
    """Return the subject itself and the ids of peers that joined under this name."""
    if not subject:
        return frozenset()
    rows = connection.execute(
        "SELECT DISTINCT subject FROM events WHERE kind = 'peer_joined'"
        " AND substr(detail, 1, CAST(? AS INTEGER)) = ? LIMIT 64",
        (len(subject) + 4, f"{subject} as "),
    )
    return frozenset({subject, *(found for (found,) in rows)})


def _select(connection: RunReader, wanted: Wanted, subjects: Collection[str], limit: int) -> list[StoryEntry]:
    conditions, values = ["true"], list[object]()
    for column, any_of in (("kind", wanted.kinds), ("subject", subjects)):
        if any_of:
            conditions.append(f"{column} IN ({', '.join('?' * len(any_of))})")
            values += any_of
    if wanted.without_routine:
        conditions.append(f"kind NOT IN ({', '.join('?' * len(ROUTINE))})")
        values += ROUTINE
    if wanted.text:
        conditions.append("lower(subject || ' ' || detail || ' ' || cause) LIKE ? ESCAPE '!'")
        text = _UNESCAPED.sub(r"!\g<0>", wanted.text.lower())
        values.append(f"%{text}%")
    for sign, bound in (("<", wanted.before), (">", wanted.after)):
        if bound:
            conditions.append(f"event_order {sign} ?")
            values.append(bound)
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM events WHERE {' AND '.join(conditions)} ORDER BY event_order DESC LIMIT ?",
        (*values, limit),
    )
    return [StoryEntry(*row) for row in rows]


def _fits(one: StoryEntry, wanted: Wanted, subjects: Collection[str]) -> bool:
    return (
        (not wanted.kinds or one.kind in wanted.kinds)
        and not (wanted.without_routine and one.kind in ROUTINE)
        and (not subjects or one.subject in subjects)
        and (not wanted.text or wanted.text.lower() in f"{one.subject} {one.detail} {one.cause}".lower())
        and (not wanted.before or one.order < wanted.before)
        and one.order > wanted.after
    )


def _with_names(connection: RunReader, entries: list[StoryEntry]) -> tuple[EventView, ...]:
    causes = {one.cause: one.cause.removeprefix("peer ") for one in entries if one.cause.startswith("peer ")}
    names = dict(_names(connection, {*(one.subject for one in entries), *causes.values()}))
    return tuple(
        EventView(
            one.order,
            one.at_unix_s,
            one.kind,
            one.subject,
            names.get(one.subject, ""),
            one.detail,
            one.cause,
            names.get(causes.get(one.cause, ""), ""),
        )
        for one in entries
    )


def _names(connection: RunReader, subjects: Collection[str]) -> Iterator[tuple[str, str]]:
    """Return the names under which the peers among these subjects last joined."""
    peers = [one for one in subjects if " " not in one]
    for start in range(0, len(peers), LIMIT_MAX):
        some = peers[start : start + LIMIT_MAX]
        rows = connection.execute(
            "SELECT subject, detail FROM events WHERE event_order IN (SELECT max(event_order) FROM events"
            f" WHERE kind = 'peer_joined' AND subject IN ({', '.join('?' * len(some))}) GROUP BY subject)",
            some,
        )
        for subject, detail in rows:
            yield subject, detail.rpartition(" as ")[0] or detail
