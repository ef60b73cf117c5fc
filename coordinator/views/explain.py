"""Explain an event by what led to it, or show the history of a rollout, lease, peer, version or step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from coordinator.stores import story
from coordinator.stores.story import Line, Story
from coordinator.views.event_rows import EventView, StoryRows, Wanted
from rollcast.runtime.errors import ConfigError, MalformedMessage
from rollcast.runtime.run_folder import RunFolder

Of = Literal["rollout", "lease", "group", "peer", "version", "step", "event"]
LINES_MAX = 500
BEFORE_SHOWN = 20  # events about the same subject, before the one that is explained


@dataclass(frozen=True, slots=True)
class LineView:
    """One line of a history."""

    at_unix_s: float
    text: str


@dataclass(frozen=True, slots=True)
class ExplainView:
    """An explanation: ``facts`` are the present ones; ``lines`` are the newest LINES_MAX in order of time."""

    title: str
    facts: dict[str, Any]
    lines: tuple[LineView, ...]


def explain(folder: RunFolder, of: Of, words: str) -> ExplainView:
    """Return the explanation of an event, rollout, lease, peer, version or step; it reads the ledger.

    It must not run on the event loop.

    Raises:
        MalformedMessage: the run has nothing of that name.
        StoreError: the ledger cannot be read.
    """
    if of == "event":
        return _of_event(folder, words)
    return _view(_story_of(folder, f"{of} {words}"))


def _story_of(folder: RunFolder, words: str) -> Story:
    try:
        return story.story_of(folder, words)
    except ConfigError as error:
        raise MalformedMessage(error.what, cause=error.cause, fix="see /api/v1/events for what happened") from None


def _view(found: Story) -> ExplainView:
    return ExplainView(found.subject, found.facts, tuple(_line(one) for one in found.lines[-LINES_MAX:]))


def _line(line: Line) -> LineView:
    return LineView(line.at_unix_s, f"{line.what} (because of {line.cause})" if line.cause else line.what)


def _of_event(folder: RunFolder, words: str) -> ExplainView:
    rows = StoryRows(folder)
    event = rows.one(int(words)) if words.isascii() and words.isdigit() and len(words) < 19 else None
    if event is None:
        raise MalformedMessage(f"there is no event {words[:32]!r}", fix="see /api/v1/events")
    before = rows.page(Wanted(subject=event.subject, before=event.id, limit=BEFORE_SHOWN)).events
    lines = [_of_row(one) for one in reversed(before)] + [_of_row(event)]
    lines += [one for one in _of_cause(folder, event) if one not in lines]
    lines.sort(key=lambda one: one.at_unix_s)
    facts = {"kind": event.kind, "subject": event.subject, "detail": event.detail, "cause": event.cause}
    if event.name:
        facts["name"] = event.name
    return ExplainView(f"event {event.id}: {event.kind.replace('_', ' ')}", facts, tuple(lines[-LINES_MAX:]))


def _of_row(event: EventView) -> LineView:
    return LineView(event.at_unix_s, story.event_words(event.kind, event.name or event.subject, event.detail))


def _of_cause(folder: RunFolder, event: EventView) -> list[LineView]:
    """Return what happened to the cause until then, if it has a story."""
    kind, _, subject = event.cause.partition(" ")
    if kind not in ("rollout", "lease", "group", "version", "step") or not subject.isdigit():
        return []
    try:
        found = story.story_of(folder, event.cause)
    except ConfigError:  # it is compacted
        return []
    return [_line(one) for one in found.lines if one.at_unix_s <= event.at_unix_s]
