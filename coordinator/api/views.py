"""Serve the dashboard's views, each as a route and as a topic of the stream. Files are read in threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
import structlog
from aiohttp import web
from pydantic import Field

from coordinator.core.status.reputations import ReputationsView, build_reputations
from coordinator.core.status.turns import PAUSE_S, Turns, at_once
from coordinator.http.health import CachedJson
from coordinator.http.routes import Answer, Call, JsonText, Query, Route, Topic
from coordinator.views.broadcast import BroadcastView
from coordinator.views.capacity import DECISIONS, DECISIONS_SHOWN, CapacityView
from coordinator.views.event_rows import LIMIT_MAX, EventsPage, EventView, StoryRows, Wanted
from coordinator.views.explain import ExplainView, Of, explain
from coordinator.views.history import COARSE_KEPT_S, SAMPLE_S, HistoryView
from coordinator.views.overview import Overview
from coordinator.views.registry import ViewedRun, ViewRegistry
from coordinator.views.runs import POINTS_MAX, Runs, RunsView, StepsView, steps_view, with_names
from coordinator.views.workers import WorkersView
from rollcast.runtime.errors import MalformedMessage, RollcastError
from rollcast.runtime.logs import FirstFailures
from rollcast.runtime.run_folder import RunFolder
from rollcast.wire.ids import PeerId

log = structlog.get_logger()

MEMBERS_SENT_PER_SECOND = 2000  # with more members, tables are sent every few seconds
CAPACITY_S = 3.0  # plans and prices change by the minute
MADE_AT_ONCE_MAX = 1000  # members; the views of more are made in several turns of the event loop
KEPT_LARGE_S = 2.0  # a large one is made less often, and read by the stream at its next tick
EVENTS_AT_ONCE = 200
NEWEST_CLONES_READ = 32
_TICK_JITTER_S = 0.2  # a tick that comes this much early still counts as due
AWAY_S = 5.0  # without a listener; what happened meanwhile is read from /api/v1/events

T = TypeVar("T")


class HistoryQuery(Query):
    """Length of the history, in seconds up to now."""

    span_s: float = Field(3600.0, ge=SAMPLE_S, le=COARSE_KEPT_S)


class StepsQuery(Query):
    """Range of steps of one run, in about ``points`` rows."""

    run: str = Field("", max_length=128)
    from_step: int = Field(0, ge=0, le=2**53)
    points: int = Field(2000, ge=1, le=POINTS_MAX)


class EventsQuery(Query):
    """Filter of events: kinds separated by commas; a peer's id or name, or another subject; a text in any field.

    Without a filter, the notes of each learner step's waits (kind learner_waited) are left out.
    """

    kind: str = Field("", max_length=1024)
    subject: str = Field("", max_length=128)
    q: str = Field("", max_length=128)
    before: int = Field(0, ge=0, le=2**62)
    """Return only events with a smaller id: next_before of the previous page."""
    limit: int = Field(100, ge=1, le=LIMIT_MAX)


class ExplainQuery(Query):
    """The kind of object to explain, and its number, or a peer's id or name."""

    of: Of
    id: str = Field(min_length=1, max_length=128)


class ReputationsQuery(Query):
    """One peer's id or name; empty for all that are not in good order, and all invites."""

    peer: str = Field("", max_length=128)


class _Text(CachedJson):
    """A view's JSON, made once for all callers within some time."""

    def __init__(self, make: Callable[[], object]) -> None:
        super().__init__(make, to_text)

    async def get(self) -> JsonText:
        return self.text()


class _LargeText:
    """The JSON of a view with all members, made in several turns of the event loop if there are many of them."""

    def __init__(self, make: Callable[[], Turns[object]], members: Callable[[], int]) -> None:
        self._make = make
        self._members = members
        self._kept = _Text(lambda: at_once(make()))
        self._making: asyncio.Future[JsonText] | None = None
        self._made_at_s = float("-inf")

    async def get(self) -> JsonText:
        """Return the text; callers at the same time, and within some time, share one."""
        if self._members() <= MADE_AT_ONCE_MAX:
            return self._kept.text()
        return await asyncio.shield(self._begun())

    def topic(self) -> JsonText | None:
        """Return the text for the stream; None: a large one is being made, and is there at a later call."""
        if self._members() <= MADE_AT_ONCE_MAX:
            return self._kept.text()
        making = self._begun()
        return making.result() if making.done() else None

    def _begun(self) -> asyncio.Future[JsonText]:
        now_s = asyncio.get_running_loop().time()
        if self._making is None or (self._making.done() and now_s - self._made_at_s >= KEPT_LARGE_S):
            self._making = asyncio.ensure_future(self._made())
        return self._making

    async def _made(self) -> JsonText:
        turns = self._make()
        while True:
            try:
                next(turns)
            except StopIteration as end:
                self._made_at_s = asyncio.get_running_loop().time()
                return to_text(end.value)
            await asyncio.sleep(PAUSE_S)


def to_text(view: object) -> JsonText:
    """Return the JSON of dataclasses; numbers that are not finite become null."""
    return JsonText(msgspec.json.encode(view).decode())


class _Throttled:
    """A topic that is sent less often the larger it is: watching the run must not slow it down."""

    def __init__(self, text: Callable[[], JsonText | None], every_s: Callable[[], float]) -> None:
        self._text = text
        self._every_s = every_s
        self._sent_at_s = float("-inf")

    def __call__(self) -> JsonText | None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._sent_at_s < self._every_s() - _TICK_JITTER_S:
            return None
        text = self._text()
        if text is not None:
            self._sent_at_s = now_s
        return text


class _Polled:
    """A topic that a thread reads: requested at one tick, sent at the next."""

    def __init__(self, read: Callable[[], JsonText | None]) -> None:
        self._read = read
        self._reading: asyncio.Future[JsonText | None] | None = None

    def __call__(self) -> JsonText | None:
        reading, outcome = self._reading, None
        if reading is not None:
            if not reading.done():
                return None
            outcome = self._outcome(reading)
        self._reading = asyncio.ensure_future(asyncio.to_thread(self._read))
        return outcome

    def _outcome(self, reading: asyncio.Future[JsonText | None]) -> JsonText | None:
        error = None if reading.cancelled() else reading.exception()
        if error is not None:
            log.warning("a topic could not be read", cause=str(error))
        return None if error is not None or reading.cancelled() else reading.result()


class ViewRoutes:
    """Routes and stream topics of the dashboard's views.

    Args:
        folder: the run's folder.
    """

    def __init__(self, run: ViewedRun, folder: RunFolder) -> None:
        self._registry = ViewRegistry(run)
        self._run = run
        self._folder = folder
        self._runs = Runs(folder)
        self._rows = StoryRows(folder)
        self._decisions: tuple[EventView, ...] = ()
        self._overview = _Text(self._registry.overview)
        self._workers = _LargeText(self._registry.workers, self._members)
        self._broadcast = _LargeText(self._registry.broadcast, self._members)
        self._capacity = _LargeText(lambda: self._registry.capacity(self._decisions), self._members)
        self._sent_sample_s = 0.0
        self._last_event, self._events_polled_s = 0, float("-inf")
        self._unread = FirstFailures(log, "events could not be read")
        self._steps_polled_s = float("-inf")

    def routes(self) -> list[Route]:
        views: tuple[tuple[str, _Text | _LargeText, Any, str], ...] = (
            ("overview", self._overview, Overview, "Return the run's overview: figures, alerts, and its current wait."),
            ("workers", self._workers, WorkersView, "Return every member as a row."),
            (
                "broadcast",
                self._broadcast,
                BroadcastView,
                "Return how the newest version spreads, and over which tree.",
            ),
        )
        return [
            *(
                Route("GET", f"/api/v1/{name}", "viewer", _handler(text), about, answer=answer)
                for name, text, answer, about in views
            ),
            Route(
                "GET",
                "/api/v1/capacity",
                "viewer",
                self._get_capacity,
                "Return the workers that are on, with the reasons.",
                answer=CapacityView,
            ),
            Route(
                "GET",
                "/api/v1/reputations",
                "viewer",
                self._get_reputations,
                "Return what is known about the work of peers and invites.",
                query=ReputationsQuery,
                answer=ReputationsView,
            ),
            Route(
                "GET",
                "/api/v1/history",
                "viewer",
                self._get_history,
                "Return the charts' data: mean and worst member.",
                query=HistoryQuery,
                answer=HistoryView,
            ),
            Route(
                "GET",
                "/api/v1/steps",
                "viewer",
                self._get_steps,
                "Return metrics of learner steps, of this run or another.",
                query=StepsQuery,
                answer=StepsView,
            ),
            Route(
                "GET",
                "/api/v1/runs",
                "viewer",
                self._get_runs,
                "Return the runs in the same parent folder.",
                answer=RunsView,
            ),
            Route(
                "GET",
                "/api/v1/events",
                "viewer",
                self._get_events,
                "Return events, newest first.",
                query=EventsQuery,
                answer=EventsPage,
            ),
            Route("GET", "/api/v1/events/{id}", "viewer", self._get_event, "Return one event.", answer=EventView),
            Route(
                "GET",
                "/api/v1/explain",
                "viewer",
                self._get_explain,
                "Return the history and the causes of one object of the run.",
                query=ExplainQuery,
                answer=ExplainView,
            ),
        ]

    def _members(self) -> int:
        return len(self._run.core.state.members)

    def topics(self) -> list[Topic]:
        def nothing() -> None:
            return None

        return [
            Topic("overview", self._overview.text),
            Topic("workers", _Throttled(self._workers.topic, lambda: self._members() / MEMBERS_SENT_PER_SECOND)),
            Topic("broadcast", _Throttled(self._broadcast.topic, lambda: self._members() / MEMBERS_SENT_PER_SECOND)),
            Topic(
                "capacity",
                _Throttled(self._capacity.topic, lambda: max(CAPACITY_S, self._members() / MEMBERS_SENT_PER_SECOND)),
            ),
            Topic("history", self._new_sample, nothing),
            Topic("steps", _Polled(self._new_steps), nothing),
            Topic("events", _Polled(self._new_events), nothing),
        ]

    async def sampling(self, _app: web.Application) -> AsyncIterator[None]:
        """Take samples of the run for as long as the application runs."""
        task = asyncio.create_task(self._sample_on())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _sample_on(self) -> None:
        """Take a sample every SAMPLE_S seconds; a view that fails must end neither the run nor later samples."""
        while True:
            try:
                for _ in self._registry.sample():
                    await asyncio.sleep(PAUSE_S)
                self._decisions = await self._in_thread(self._newest_decisions)
                self._registry.cloned = await self._in_thread(self._newest_clones)
            except Exception:
                log.exception("a sample could not be taken")
            await asyncio.sleep(SAMPLE_S)

    # ---------------------------------------------------------------- routes

    async def _get_capacity(self, _call: Call) -> Answer:
        self._decisions = await self._in_thread(self._newest_decisions)
        return await self._capacity.get()

    async def _get_reputations(self, call: Call) -> Answer:
        return to_text(build_reputations(self._run.core.state, call.query.peer))

    async def _get_history(self, call: Call) -> Answer:
        return to_text(self._registry.history.view(call.query.span_s, self._run.unix_clock()))

    async def _get_steps(self, call: Call) -> Answer:
        asked: StepsQuery = call.query
        return await self._in_thread(
            lambda: self._steps_text(self._runs.steps(asked.run, from_step=asked.from_step, points=asked.points))
        )

    async def _get_runs(self, _call: Call) -> Answer:
        return await self._in_thread(lambda: to_text(self._runs.runs()))

    async def _get_events(self, call: Call) -> Answer:
        asked: EventsQuery = call.query
        kinds = tuple(one for one in asked.kind.split(",") if one)
        wanted = Wanted(
            kinds=kinds,
            subject=asked.subject,
            text=asked.q,
            before=asked.before,
            limit=asked.limit,
            without_routine=not (kinds or asked.subject or asked.q),
        )
        return await self._in_thread(lambda: to_text(self._rows.page(wanted)))

    async def _get_event(self, call: Call) -> Answer:
        words = call.params["id"]
        number = int(words) if words.isascii() and words.isdigit() and len(words) < 19 else 0
        found = await self._in_thread(lambda: self._rows.one(number))
        if found is None:
            raise MalformedMessage(f"there is no event {words[:32]!r}", fix="see /api/v1/events")
        return to_text(found)

    async def _get_explain(self, call: Call) -> Answer:
        asked: ExplainQuery = call.query
        return await self._in_thread(lambda: to_text(explain(self._folder, asked.of, asked.id)))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.to_thread(work)

    # ---------------------------------------------------------------- topics

    def _new_sample(self) -> JsonText | None:
        newest = self._registry.history.newest()
        if newest is None or newest.time_unix_s == self._sent_sample_s:
            return None
        self._sent_sample_s = newest.time_unix_s
        return to_text(newest)

    def _new_steps(self) -> JsonText | None:
        """Read new steps, in a thread; after a time without a listener only those from now on."""
        now = self._run.clock()
        away, self._steps_polled_s = now - self._steps_polled_s > AWAY_S, now
        added = self._runs.new_steps()
        return self._steps_text(steps_view(self._runs.own_name, added)) if added and not away else None

    def _steps_text(self, view: StepsView) -> JsonText:
        return to_text(with_names(view, self._names_of))

    def _names_of(self, peer_ids: Collection[str]) -> dict[str, str]:
        """Return the names of members, and of peers that were; not on the event loop."""
        members = self._run.core.state.members
        here = {one: member.name for one in peer_ids if (member := members.get(PeerId(one))) is not None}
        return self._rows.names(peer_ids) | here

    def _new_events(self) -> JsonText | None:
        """Read new events, in a thread; after a time without a listener only those of the last AWAY_S seconds."""
        now = self._run.clock()
        away, self._events_polled_s = now - self._events_polled_s > AWAY_S, now
        if away:
            self._last_event = max(0, self._rows.newest_id() - EVENTS_AT_ONCE)
        events = self._rows.after(self._last_event, EVENTS_AT_ONCE)
        if events:
            self._last_event = events[-1].id
        if away:
            since = self._run.unix_clock() - AWAY_S
            events = tuple(one for one in events if one.at_unix_s >= since)
        return to_text({"events": events}) if events else None

    def _newest_decisions(self) -> tuple[EventView, ...]:
        return self._newest(DECISIONS, DECISIONS_SHOWN)

    def _newest_clones(self) -> tuple[EventView, ...]:
        return self._newest(("identity_cloned",), NEWEST_CLONES_READ)

    def _newest(self, kinds: tuple[str, ...], count: int) -> tuple[EventView, ...]:
        """Return the newest events of these kinds; empty if the ledger cannot be read."""
        try:
            events = self._rows.page(Wanted(kinds=kinds, limit=count)).events
        except RollcastError as error:
            self._unread.failed(cause=error.cause or error.what)
            return ()
        self._unread.worked()
        return events


def _handler(text: _Text | _LargeText) -> Callable[[Call], Coroutine[Any, Any, Answer]]:
    async def handle(_call: Call) -> Answer:
        return await text.get()

    return handle
