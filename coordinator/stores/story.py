"""Return the story of a rollout, lease, group, peer, version or step from the ledger; reads only, during a run too.

Texts name peers as their owners named them and count the leases of each coordinator process from 1; facts keep the ids.
Steps count from 1, in facts too: a step's batch has the index before it in the ledger.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from coordinator.core.leases.drop_counts import NEXT_TURN
from coordinator.core.members.audit_book import AUDIT
from coordinator.core.members.progress import WAITED
from coordinator.core.members.reputation_card import facts_of_saved
from coordinator.ledger.event_archive import read_segment, segments
from coordinator.ledger.sql import RunReader
from coordinator.ledger.sql_facts import peer_names
from coordinator.ledger.store import StoryEntry
from coordinator.stores.reader import reading
from rollcast.runtime.errors import ConfigError
from rollcast.runtime.run_folder import RunFolder
from rollcast.wire.ids import IDS_PER_INCARNATION
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.token_ids import id_count

_ATTEMPT = (
    *("attempts.lease_id", "attempts.sample_index", "fencing_token", "group_id", "attempts.peer_id", "state"),
    *("closed_reason", "issued_unix_s", "closed_unix_s", "rollout_id", "received_unix_s", "reward", "exact", "detail"),
    *("parts", "scored_unix_s", "step", "recorded_unix_s"),
)
_LINES_MAX = 1_000  # events shown about one subject, the newest
_LEASES_SHOWN = 10  # leases shown of a peer, the newest
_NAMES_SHOWN = 12  # peers named where the ledger lacks the one that was asked for
_SUBJECT = re.compile(r"(?:(rollout|lease|group|peer|version|step)[ :/#-]?)?\s*([A-Za-z0-9._-]{1,64})")

# Kind -> table and column of its numbers.
_NUMBERS = {
    "lease": ("attempts", "lease_id"),
    "rollout": ("rollouts", "rollout_id"),
    "group": ("groups", "group_id"),
    "version": ("versions", "version"),
    "step": ("batches", "step"),
}
# Kind -> why the ledger may lack one, where that is not the usual reason.
_ABSENT = {
    "lease": "it was one of an evaluation, as a run's first ones are, and these are not stored; or it was compacted, or"
    " never issued"
}
_LEASE = re.compile(r"[1-9][0-9]{0,8}\.[0-9]{1,10}")
_PEER_ID = re.compile(r"\b12D3KooW\w{1,64}")
_NUMBERED_LEASE = re.compile(r"\blease (\d{10,19})\b")


@dataclass(frozen=True, slots=True)
class Line:
    """One event of a story. ``cause`` is the event that led to it; empty if the line itself names it."""

    at_unix_s: float
    what: str
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Story:
    """The stored facts about a subject, and its events in order of time. ``names``: of the peers in it, by id."""

    subject: str
    facts: dict[str, Any]
    lines: tuple[Line, ...]
    names: dict[str, str] = field(default_factory=dict)


def story_of(folder: RunFolder, words: str) -> Story:
    """Return the story of ``lease 17``, ``rollout 9``, ``group 3``, ``step 40``, ``version 8`` or ``peer NAME-OR-ID``.

    Raises:
        ConfigError: the ledger has no such subject.
        StoreError: the ledger cannot be read.
    """
    kind, subject = parse(words)
    with reading(folder) as connection:
        if segments(folder.events):
            _attach_archive(connection, folder.events, kind, subject)
        story = _STORIES[kind](connection, subject)
        if story is None:
            raise ConfigError(
                f"this run's ledger has no {kind} {subject}",
                cause=_why_absent(connection, kind, subject),
                fix=_what_there_is(connection, kind, subject),
            )
        return _in_words(story, peer_names(connection))


def _what_there_is(connection: RunReader, kind: str, subject: str) -> str:
    """Return which subjects of a kind the ledger has, with the command for the nearest one."""
    lists = "the dashboard's Events page lists them"
    if kind == "peer" and (names := sorted(set(peer_names(connection).values()))):
        more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
        return f"name one of {', '.join(names[:_NAMES_SHOWN])}{more}, or give a peer's id"
    nearest = _nearest(connection, kind, subject) if kind in _NUMBERS else None
    if nearest is None:
        return f"name one that the run has; {lists}"
    return f"`rollcast explain {kind} {nearest}` is the nearest that the run has{_range(connection, kind)}; {lists}"


def _nearest(connection: RunReader, kind: str, subject: str) -> str | None:
    """Return the first subject of a kind above one that the ledger lacks, else the last below it; None if empty."""
    table, column = _NUMBERS[kind]
    number = _lease_ids(subject)[0] if kind == "lease" else int(subject) - int(kind == "step")
    for order, end in ((">=", "min"), ("<", "max")):
        (found,) = connection.execute(
            f"SELECT {end}({column}) FROM {table} WHERE {column} {order} ?", (number,)
        ).fetchone()
        if found is not None:
            return lease_name(found) if kind == "lease" else str(found + int(kind == "step"))
    return None


def _why_absent(connection: RunReader, kind: str, subject: str) -> str:
    if kind == "step" and int(subject) == 0:
        return "steps count from 1"
    if kind in ("step", "version", "rollout", "group"):
        numbers = _numbers(connection, kind)
        if numbers is None:
            return f"the run has no {kind} yet"
        if int(subject) > numbers[1]:
            return f"the run has not come to it yet: its newest {kind} is {numbers[1]}"
    return _ABSENT.get(kind, "it never existed, or its records were compacted")


def _numbers(connection: RunReader, kind: str) -> tuple[int, int] | None:
    """Return the oldest and newest number of a kind; None if the ledger has none."""
    table, column = _NUMBERS[kind]
    oldest, newest = connection.execute(f"SELECT min({column}), max({column}) FROM {table}").fetchone()
    first = int(kind == "step")
    return None if newest is None else (oldest + first, newest + first)


def _range(connection: RunReader, kind: str) -> str:
    """Return the oldest and newest subject of a kind; empty if the ledger has none, or the kind has no numbers."""
    numbers = _numbers(connection, kind) if kind in _NUMBERS else None
    if numbers is None:
        return ""
    oldest, newest = numbers
    name: Callable[[int], str] = lease_name if kind == "lease" else str
    return f" ({kind} {name(oldest)} to {name(newest)})"


def lease_name(lease_id: int) -> str:
    """Return a lease's name for people: `17`, or `2.17` if the run's second coordinator process issued it."""
    process, number = divmod(lease_id, IDS_PER_INCARNATION)
    return str(number) if process <= 1 else f"{process}.{number}"


def _lease_ids(name: str) -> tuple[int, int]:
    """Return the ids that a person may mean by a lease's name: the number in a process, or the whole id."""
    process, _, number = name.rpartition(".")
    return int(process or 1) * IDS_PER_INCARNATION + int(number), int(number) if not process else -1


def parse(words: str) -> tuple[str, str]:
    """Return kind and id in a person's words; an id alone is a peer's.

    Raises:
        ConfigError: the words are neither.
    """
    found = _SUBJECT.fullmatch(words.strip())
    if words.strip() in _STORIES:
        kind, example = words.strip(), "NAME" if words.strip() == "peer" else "17"
        raise ConfigError(f"no {kind} is named", fix=f"write `rollcast explain {kind} {example}`")
    if found is not None:
        kind, subject = found[1] or "peer", found[2]
        if kind == "peer" or subject.isdigit() or (kind == "lease" and _LEASE.fullmatch(subject)):
            return kind, subject
    raise ConfigError(
        f"{words!r} does not name an object of a run" if words.strip() else "no object of a run is named",
        fix="write `lease 17`, `rollout 9`, `group 3`, `step 40`, `version 8` or `peer NAME`",
    )


def _attach_archive(connection: RunReader, folder: Path, kind: str, subject: str) -> None:
    """Make ``events`` a view of the ledger's events and the archived ones about the subject."""
    connection.execute(
        "CREATE TEMP TABLE archived"
        " (event_order INTEGER PRIMARY KEY, at_unix_s REAL, kind TEXT, subject TEXT, detail TEXT, cause TEXT)"
    )
    connection.execute(
        "CREATE TEMP VIEW events AS SELECT event_order, at_unix_s, kind, subject, detail, cause FROM main.events"
        " UNION ALL SELECT * FROM archived WHERE event_order NOT IN (SELECT event_order FROM main.events)"
    )
    if kind != "peer":
        _copy(connection, folder, lambda one: one.subject == f"{kind} {subject}")
        return
    _copy(connection, folder, lambda one: one.kind == "peer_joined")  # these events map names to ids
    peer_id = _peer_id(connection, subject)
    _copy(connection, folder, lambda one: one.subject == peer_id or one.cause == f"peer {peer_id}")


def _copy(connection: RunReader, folder: Path, wanted: Callable[[StoryEntry], bool]) -> None:
    for segment in segments(folder):
        rows = [
            (one.order, one.at_unix_s, one.kind, one.subject, one.detail, one.cause)
            for one in read_segment(segment)
            if wanted(one)
        ]
        connection.executemany("INSERT OR IGNORE INTO archived VALUES (?, ?, ?, ?, ?, ?)", rows)


# ---------------------------------------------------------------- one function per kind of subject


def _lease(connection: RunReader, subject: str) -> Story | None:
    rows = _attempts(connection, "lease_id IN (?, ?)", *_lease_ids(subject))
    if not rows:
        return None
    first = rows[0]
    lease_id = first["lease_id"]
    facts = {
        "id": lease_id,
        "peer_id": first["peer_id"],
        "group": first["group_id"],
        "fencing_token": first["fencing_token"],
    }
    facts["slots"] = {str(row["sample_index"]): _fate(row) for row in rows}
    lines = _lines_of_attempts(rows) + _events(connection, f"lease {lease_id}")
    return Story(f"lease {lease_name(lease_id)}", facts, _in_order(lines))


def _rollout(connection: RunReader, subject: str) -> Story | None:
    rows = _attempts(connection, "rollout_id = ?", int(subject))
    if not rows:
        return None
    row = rows[0]
    (body,) = connection.execute("SELECT body FROM rollouts WHERE rollout_id = ?", (int(subject),)).fetchone()
    rollout = pb.Rollout.FromString(body)
    facts = {
        "lease": lease_name(row["lease_id"]),
        **_shown(row, "peer_id", "sample_index", "group_id", "reward", "exact", "detail"),
        **({} if row["step"] is None else {"step": row["step"] + 1}),
        "fate": _fate(row),
        "segments": [
            {"version": one.version, "epoch": one.epoch, "peer": one.peer_id, "tokens": id_count(one.packed_ids)}
            for one in rollout.segments
        ],
        "finish_reason": pb.FinishReason.Name(rollout.finish_reason).lower(),
        "generate_s": rollout.generate_s,
    }
    others = _attempts(connection, "group_id = ? AND sample_index = ?", row["group_id"], row["sample_index"])
    return Story(
        f"rollout {subject}", facts, _in_order(_lines_of_attempts(others) + _events(connection, f"rollout {subject}"))
    )


def _group(connection: RunReader, subject: str) -> Story | None:
    found = connection.execute(
        "SELECT problem_id, over_at_step FROM groups WHERE group_id = ?", (int(subject),)
    ).fetchone()
    if found is None:
        return None
    rows = _attempts(connection, "group_id = ?", int(subject))
    over_at_step = None if found[1] is None else found[1] + 1
    facts = {"problem": found[0], "over_at_step": over_at_step, "attempts": len(rows)}
    return Story(
        f"group {subject}", facts, _in_order(_lines_of_attempts(rows) + _events(connection, f"group {subject}"))
    )


def _peer(connection: RunReader, subject: str) -> Story | None:
    peer_id = _peer_id(connection, subject)
    if peer_id is None:
        return None
    fates = connection.execute(
        "SELECT coalesce(closed_reason, state), count(*) FROM attempts WHERE peer_id = ? GROUP BY 1 ORDER BY 1",
        (peer_id,),
    )
    facts = {"id": peer_id, "attempts": dict(fates.fetchall())}
    book = connection.execute("SELECT value FROM meta WHERE key = ?", (AUDIT,)).fetchone()
    if book is not None:
        facts |= facts_of_saved(str(book[0]), peer_id)
    recent = connection.execute(
        "SELECT DISTINCT lease_id FROM attempts WHERE peer_id = ? ORDER BY lease_id DESC LIMIT ?",
        (peer_id, _LEASES_SHOWN),
    )
    lines = _events(connection, peer_id) + _events_by_cause(connection, f"peer {peer_id}")
    for (lease_id,) in reversed(recent.fetchall()):
        lines += _lease_lines(_attempts(connection, "lease_id = ?", lease_id))
    return Story(f"peer {subject}", facts, _in_order(lines))


def _peer_id(connection: RunReader, subject: str) -> str | None:
    """Return the newest identity with this id, prefix of an id, or name; None if there is none."""
    row = connection.execute(
        "SELECT subject FROM events WHERE kind = 'peer_joined'"
        " AND (substr(subject, 1, CAST(? AS INTEGER)) = ? OR detail LIKE ?) ORDER BY event_order DESC LIMIT 1",
        (len(subject), subject, f"{subject} as %"),
    ).fetchone()
    if row is None:
        row = connection.execute("SELECT peer_id FROM attempts WHERE peer_id = ? LIMIT 1", (subject,)).fetchone()
    return None if row is None else str(row[0])


def _version(connection: RunReader, subject: str) -> Story | None:
    row = connection.execute(
        "SELECT epoch, announced_unix_s FROM versions WHERE version = ? ORDER BY epoch DESC LIMIT 1", (int(subject),)
    ).fetchone()
    if row is None:
        return None
    ages = connection.execute(
        "SELECT step - oldest_version, count(*) FROM batch_rollouts JOIN rollouts USING (rollout_id)"
        " WHERE oldest_version = ? GROUP BY 1 ORDER BY 1",
        (int(subject),),
    )
    facts = {"epoch": row[0], "trained_by_age": {str(age): count for age, count in ages}}
    lines = [Line(row[1], f"announced in epoch {row[0]}"), *_events(connection, f"version {subject}")]
    return Story(f"version {subject}", facts, _in_order(lines))


def _step(connection: RunReader, subject: str) -> Story | None:
    step = int(subject) - 1
    batch = connection.execute("SELECT recorded_unix_s FROM batches WHERE step = ?", (step,)).fetchone()
    if batch is None:
        return None
    by_peer = connection.execute(
        "SELECT peer_id, count(*) FROM batch_rollouts JOIN rollouts USING (rollout_id) WHERE step = ? GROUP BY 1",
        (step,),
    )
    ages = connection.execute(
        "SELECT step - oldest_version, count(*) FROM batch_rollouts JOIN rollouts USING (rollout_id)"
        " WHERE step = ? GROUP BY 1 ORDER BY 1",
        (step,),
    )
    facts: dict[str, Any] = {"rollouts_by_peer": dict(by_peer.fetchall())}
    facts["rollouts_by_age"] = {str(age): count for age, count in ages}
    rollouts = sum(facts["rollouts_by_peer"].values())
    made = f"its batch of {rollouts} rollouts was recorded" if rollouts else "skipped: a new epoch began above it"
    lines = [Line(batch[0], made)]
    done = connection.execute("SELECT figures, reported_unix_s FROM steps WHERE step = ?", (int(subject),)).fetchone()
    if done is not None:
        facts["figures"] = json.loads(done[0])
        lines.append(Line(done[1], "the learner finished the step"))
    return Story(f"step {int(subject)}", facts, _in_order(lines + _events(connection, f"step {int(subject)}")))


_STORIES: dict[str, Callable[[RunReader, str], Story | None]] = {
    "lease": _lease,
    "rollout": _rollout,
    "group": _group,
    "peer": _peer,
    "version": _version,
    "step": _step,
}


# ---------------------------------------------------------------- shared parts


def _attempts(connection: RunReader, where: str, *values: object) -> list[dict[str, Any]]:
    """Return attempts with their outcomes; ``where`` is text of this module, never a person's."""
    rows = connection.execute(
        f"SELECT {', '.join(_ATTEMPT)} FROM attempts"
        " LEFT JOIN rollouts USING (lease_id, sample_index) LEFT JOIN scores USING (rollout_id)"
        " LEFT JOIN batch_rollouts USING (rollout_id) LEFT JOIN batches USING (step)"
        f" WHERE {where} ORDER BY attempts.lease_id, attempts.sample_index",
        values,
    )
    names = [column.rpartition(".")[2] for column in _ATTEMPT]
    return [dict(zip(names, row, strict=True)) for row in rows]


def _fate(row: dict[str, Any]) -> str:
    match row["state"]:
        case "dropped" if row["closed_reason"] == NEXT_TURN:
            return "stored as a turn"
        case "dropped":
            return f"dropped: {row['closed_reason']}"
        case "trained":
            return f"trained in step {row['step'] + 1}"
        case "filled":
            return "stored" if row["reward"] is None else "scored"
        case state:
            return str(state)


def _lines_of_attempts(rows: Iterable[dict[str, Any]]) -> list[Line]:
    """Return the events of attempts; what happened to several slots of a lease at the same moment is one line."""
    slots: dict[tuple[float, str, str], list[int]] = {}
    for row in rows:
        for event in _attempt_events(row):
            slots.setdefault(event, []).append(row["sample_index"])
    return [Line(at, what.format(slots=_slots(indices)), cause) for (at, what, cause), indices in slots.items()]


def _lease_lines(rows: list[dict[str, Any]]) -> list[Line]:
    """Return a line for each moment at which slots of a lease were issued, with what became of them."""
    issued: dict[tuple[float, int], list[dict[str, Any]]] = {}
    for row in rows:
        issued.setdefault((row["issued_unix_s"], row["group_id"]), []).append(row)
    return [
        Line(
            at,
            f"issued {_slots([row['sample_index'] for row in some])} of group {group}: "
            + ", ".join(f"{count} {fate}" for fate, count in Counter(map(_fate, some)).items()),
            f"lease {some[0]['lease_id']}",
        )
        for (at, group), some in issued.items()
    ]


def _slots(indices: list[int]) -> str:
    """Return `slot 3`, `slots 0 to 7` or `slots 0, 2 and 5`."""
    if len(indices) == 1:
        return f"slot {indices[0]}"
    if len(indices) > 2 and indices == list(range(indices[0], indices[-1] + 1)):
        return f"slots {indices[0]} to {indices[-1]}"
    return f"slots {', '.join(map(str, indices[:-1]))} and {indices[-1]}"


def _attempt_events(row: dict[str, Any]) -> list[tuple[float, str, str]]:
    """Return the events of one attempt as moment, text with a place for its slots, and cause."""
    of_group = f"{{slots}} of group {row['group_id']}"
    lease, rollout = f"lease {row['lease_id']}", f"rollout {row['rollout_id']}"
    events = [(row["issued_unix_s"], f"issued {of_group} to {row['peer_id']}", lease)]
    if row["received_unix_s"] is not None:
        events.append((row["received_unix_s"], f"received {of_group} and stored it as {rollout}", lease))
    if row["scored_unix_s"] is not None:
        parts = ", ".join(f"{name} {value:g}" for name, value in json.loads(row["parts"]).items())
        why = _literal("".join(f", {text}" for text in (parts, row["detail"]) if text))
        events.append((row["scored_unix_s"], f"scored {rollout}: reward {row['reward']:g}{why}", lease))
    if row["state"] == "trained":
        events.append((row["recorded_unix_s"], f"added {rollout} to the batch of step {row['step'] + 1}", ""))
    if row["state"] == "dropped" and row["closed_reason"] == NEXT_TURN:
        events.append((row["closed_unix_s"], f"stored a turn of {of_group} from {row['peer_id']}", lease))
    elif row["state"] == "dropped":
        reason = _literal(str(row["closed_reason"]))
        events.append((row["closed_unix_s"], f"dropped {of_group} from {row['peer_id']}: {reason}", lease))
    return events


def _literal(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _events(connection: RunReader, subject: str) -> list[Line]:
    return _lines(connection, "subject = ?", subject)


def _events_by_cause(connection: RunReader, cause: str) -> list[Line]:
    return _lines(connection, "cause = ?", cause)


def _lines(connection: RunReader, where: str, value: str) -> list[Line]:
    rows = connection.execute(
        f"SELECT at_unix_s, kind, subject, detail, cause FROM events WHERE {where} ORDER BY event_order DESC LIMIT ?",
        (value, _LINES_MAX),
    )
    return [Line(at, event_words(kind, subject, detail), cause) for at, kind, subject, detail, cause in rows]


def event_words(kind: str, subject: str, detail: str) -> str:
    """Return what happened in an event; ``subject``: the name of its peer, or what else it is about."""
    if kind == "peer_joined":
        return f"joined as {detail.rpartition(' as ')[2]}"
    return f"{kind.replace('_', ' ')} ({subject}): {_waits(detail) if kind == WAITED else detail}"


def _waits(detail: str) -> str:
    """Return the causes of the learner's wait, recorded as JSON: stage, peer (or empty), seconds."""
    return ", ".join(
        f"{stage} {f'for {peer} ' if peer else ''}{seconds:g} s" for stage, peer, seconds in json.loads(detail)
    )


def _in_order(lines: list[Line]) -> tuple[Line, ...]:
    return tuple(sorted(dict.fromkeys(lines), key=lambda line: line.at_unix_s))


def _in_words(story: Story, names: dict[str, str]) -> Story:
    """Return the story with the names of peers and leases in its lines instead of their ids."""

    def words(text: str) -> str:
        named = _PEER_ID.sub(lambda found: names.get(found[0], found[0]), text)
        return _NUMBERED_LEASE.sub(lambda found: f"lease {lease_name(int(found[1]))}", named)

    lines = tuple(replace(line, what=words(line.what), cause=words(line.cause)) for line in story.lines)
    return replace(story, lines=lines, names=names)


def _shown(row: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: row[name] for name in names if row[name] not in (None, "")}
