"""The fleet's manager: events in, actions out; and whole lives of fleets against a provider that misbehaves."""

from __future__ import annotations

from random import Random

import pytest

from capacity.fleet.billing import Terms
from capacity.fleet.budget import Limits
from capacity.fleet.events import (
    AskOffers,
    BytesSent,
    DrainWorker,
    FleetEvent,
    LimitsChanged,
    ListFailed,
    ListWorkers,
    Note,
    OffersSeen,
    RecordClosed,
    RecordMark,
    RecordOpened,
    RunOver,
    Spent,
    StartFailed,
    StartSucceeded,
    StartWorker,
    StopFailed,
    StopSucceeded,
    StopWorker,
    Tick,
    WorkerJoined,
    WorkerLeft,
    WorkersListed,
    WorkersWanted,
)
from capacity.fleet.fleet import FleetManager
from capacity.fleet.state import Actions, FleetSettings, OpenWorker, Restored
from capacity.model.workers import Worker
from capacity.providers.base import Listing, Offer, Running, WorkerTag

T0 = 1000.0


def tag(worker_id: str, incarnation: int = 1) -> WorkerTag:
    return WorkerTag("run", worker_id, incarnation)


def offer(worker_id: str, usd_per_hour: float = 1.0, provider: str = "p", tail_s: float = 0.0) -> Offer:
    worker = Worker(
        worker_id=worker_id,
        speeds=(),
        usd_per_hour=usd_per_hour,
        upload_bytes_per_second=0.0,
        download_bytes_per_second=0.0,
        provider=provider,
    )
    return Offer(worker=worker, tail_s=tail_s)


class Fleet:
    """A manager with a virtual clock."""

    def __init__(self, restored: Restored = Restored(), *, limits: Limits | None = None, **settings: float) -> None:  # noqa: B008
        self.settings = FleetSettings(
            run_id="run",
            providers=("p",),
            limits=limits or Limits(look_every_s=60.0),
            **settings,  # type: ignore[arg-type]
        )
        self.manager = FleetManager(self.settings, restored, lambda low, high: high, T0)
        self.now = T0

    def handle(self, event: FleetEvent, after_s: float = 0.0) -> Actions:
        self.now += after_s
        return self.manager.handle(event, self.now)

    def want(self, *worker_ids: str) -> Actions:
        return self.handle(WorkersWanted(dict.fromkeys(worker_ids, "planned")))

    def offer(self, *offers: Offer) -> Actions:
        return self.handle(OffersSeen("p", offers))

    def on(self, *worker_ids: str) -> None:
        """Start these workers, and let them join."""
        self.offer(*(offer(worker_id) for worker_id in worker_ids))
        self.want(*worker_ids)
        for worker_id in worker_ids:
            self.handle(StartSucceeded(tag(worker_id), "here"))
            self.handle(WorkerJoined(tag(worker_id)))

    def phases(self) -> dict[str, str]:
        return {one.tag.removeprefix("run."): one.phase for one in self.manager.workers()}

    def notes(self, actions: Actions) -> list[str]:
        return [one.kind for one in actions if isinstance(one, Note)]


def doing(actions: Actions) -> Actions:
    """Return the actions without the notes for the run's event log."""
    return [one for one in actions if not isinstance(one, Note)]


def listed(*tags: WorkerTag, at: float, silent: tuple[str, ...] = ()) -> WorkersListed:
    running = tuple(Running(one, "there", T0 - 50.0) for one in tags)
    return WorkersListed("p", Listing(running, dict.fromkeys(silent, "no answer")), at)


def test_a_start_is_written_down_before_it_is_tried() -> None:
    fleet = Fleet()
    fleet.offer(offer("a"), offer("b"))
    assert doing(fleet.want("a")) == [
        RecordOpened(tag("a"), "p", Terms(usd_per_hour=1.0), T0),
        StartWorker(tag("a"), "p"),
    ]
    assert doing(fleet.want("a")) == []
    fleet.handle(StartSucceeded(tag("a"), "here"))
    assert fleet.phases() == {"a.1": "joining"}
    fleet.handle(WorkerJoined(tag("a")))
    assert fleet.phases() == {"a.1": "on"}


def test_what_is_not_wanted_drains_stops_and_is_paid() -> None:
    fleet = Fleet()
    fleet.on("a")
    assert doing(fleet.handle(WorkersWanted({}), 360.0)) == [DrainWorker(tag("a"), "it is no longer wanted")]
    assert doing(fleet.handle(WorkerLeft(tag("a"), finished=True))) == [StopWorker(tag("a"), "p")]
    assert doing(fleet.handle(StopSucceeded(tag("a")))) == [
        RecordClosed(tag("a"), "p", fleet.now, pytest.approx(0.1), 0.0)
    ]
    assert fleet.manager.idle
    assert fleet.manager.spent() == {"p": Spent(pytest.approx(0.1), 0.0, pytest.approx(0.1))}


def test_a_drain_that_takes_too_long_is_a_stop() -> None:
    fleet = Fleet()
    fleet.on("a")
    fleet.want()
    assert doing(fleet.handle(Tick(), 14.0))[-1:] != [StopWorker(tag("a"), "p")]
    assert StopWorker(tag("a"), "p") in fleet.handle(Tick(), 1.0)


def test_a_worker_that_is_not_here_yet_is_stopped_without_a_drain() -> None:
    fleet = Fleet()
    fleet.offer(offer("a"))
    fleet.want("a")
    assert doing(fleet.want()) == [StopWorker(tag("a"), "p")]
    assert doing(fleet.handle(StartSucceeded(tag("a"), "late"))) == []
    assert fleet.phases() == {"a.1": "stopping"}


def test_a_start_that_does_not_join_in_time_is_stopped_and_tried_again_later() -> None:
    fleet = Fleet(start_timeout_s=100.0)
    fleet.offer(offer("a"))
    fleet.want("a")
    fleet.handle(StartSucceeded(tag("a"), "here"), 50.0)
    assert StopWorker(tag("a"), "p") in fleet.handle(Tick(), 50.0)
    assert StartWorker(tag("a", 2), "p") not in fleet.handle(StopSucceeded(tag("a")))
    assert fleet.manager.held_back == {"a": "it failed before and is not started again for a while"}
    assert StartWorker(tag("a", 2), "p") in fleet.handle(Tick(), 10.0)


def test_after_failures_the_provider_rests() -> None:
    fleet = Fleet()
    fleet.offer(*(offer(name) for name in "abcd"))
    fleet.want("a", "b", "c")
    notes = [note for name in "abc" for note in fleet.notes(fleet.handle(StartFailed(tag(name), "no")))]
    assert notes == ["worker_failed"] * 3 + ["provider_rests"]
    fleet.want("d")
    assert "starts at p fail" in fleet.manager.held_back["d"]


def test_a_failed_start_is_stopped_too_as_something_may_run() -> None:
    fleet = Fleet()
    fleet.offer(offer("a"))
    fleet.want("a")
    assert doing(fleet.handle(StartFailed(tag("a"), "no answer"))) == [StopWorker(tag("a"), "p")]


def test_a_stop_that_fails_is_tried_again_for_ever_and_is_paid() -> None:
    fleet = Fleet()
    fleet.on("a")
    fleet.want()
    fleet.handle(WorkerLeft(tag("a"), finished=True))
    for wait_s in (2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0):
        assert "stop_failed" in fleet.notes(fleet.handle(StopFailed(tag("a"), "no answer")))
        assert StopWorker(tag("a"), "p") not in fleet.handle(Tick(), wait_s - 0.5)
        assert StopWorker(tag("a"), "p") in fleet.handle(Tick(), 0.5)
    assert fleet.manager.budget.spent_usd == pytest.approx(182.0 / 3600.0, rel=0.01)


def test_a_stop_whose_answer_is_lost_is_retried() -> None:
    fleet = Fleet()
    fleet.on("a")
    fleet.want()
    fleet.handle(WorkerLeft(tag("a"), finished=True))
    assert StopWorker(tag("a"), "p") not in fleet.handle(Tick(), 1799.0)
    assert StopWorker(tag("a"), "p") in fleet.handle(Tick(), 1.0)
    assert StopWorker(tag("a"), "p") not in fleet.handle(Tick(), 1.0)


def test_a_worker_that_is_taken_away_is_replaced() -> None:
    fleet = Fleet()
    fleet.on("a")
    actions = fleet.handle(WorkerLeft(tag("a"), finished=True), 1000.0)
    assert fleet.notes(actions) == ["worker_lost"]
    assert doing(actions) == [StopWorker(tag("a"), "p")]
    assert StartWorker(tag("a", 2), "p") in fleet.handle(StopSucceeded(tag("a")))


def test_a_worker_that_crashes_soon_after_joining_counts_as_failed() -> None:
    fleet = Fleet()
    fleet.on("a")
    assert "worker_failed" in fleet.notes(fleet.handle(WorkerLeft(tag("a"), finished=True), 5.0))
    assert StartWorker(tag("a", 2), "p") not in fleet.handle(StopSucceeded(tag("a")))


def test_a_session_that_breaks_may_come_back() -> None:
    fleet = Fleet()
    fleet.on("a")
    assert doing(fleet.handle(WorkerLeft(tag("a"), finished=False), 1000.0)) == []
    assert doing(fleet.handle(WorkerJoined(tag("a")), 100.0)) == []
    fleet.handle(WorkerLeft(tag("a"), finished=False))
    assert StopWorker(tag("a"), "p") in fleet.handle(Tick(), 130.0)


def test_a_process_that_vanished_is_found_missing() -> None:
    fleet = Fleet()
    fleet.on("a", "b")
    assert doing(fleet.handle(listed(tag("b"), at=T0 - 1.0))) == []  # requested before they ran
    assert doing(fleet.handle(listed(tag("b"), at=T0 + 1.0, silent=("a",)), 2.0)) == []
    assert StopWorker(tag("a"), "p") in fleet.handle(listed(tag("b"), at=T0 + 1.0))


def test_the_hourly_limit_holds_back_what_does_not_fit() -> None:
    fleet = Fleet(limits=Limits(usd_per_hour_max=2.5))
    fleet.offer(offer("a", 2.0), offer("b", 1.0), offer("c", 0.5))
    actions = fleet.want("a", "b", "c")
    assert [one.tag.worker_id for one in actions if isinstance(one, StartWorker)] == ["a", "c"]
    assert fleet.notes(actions).count("worker_held_back") == 1
    assert fleet.manager.held_back == {"b": "3 $/h would be committed; the limit is 2.5 $/h"}
    assert fleet.notes(fleet.handle(Tick(), 1.0)) == []  # reported once


def test_limits_that_become_tighter_stop_the_dearest_and_wider_ones_start_again() -> None:
    fleet = Fleet()
    fleet.offer(offer("a", 2.0), offer("b", 1.0))
    fleet.want("a", "b")
    for name in "ab":
        fleet.handle(StartSucceeded(tag(name), "here"))
        fleet.handle(WorkerJoined(tag(name)))
    drained = [one for one in fleet.handle(LimitsChanged(1.5, None)) if isinstance(one, DrainWorker)]
    assert drained == [DrainWorker(tag("a"), "the limit is 1.5 $/h")]
    fleet.handle(WorkerLeft(tag("a"), finished=True), 1.0)
    fleet.handle(StopSucceeded(tag("a")), 1.0)
    assert fleet.manager.held_back == {"a": "3 $/h would be committed; the limit is 1.5 $/h"}
    started = [one.tag for one in fleet.handle(LimitsChanged(None, None), 1.0) if isinstance(one, StartWorker)]
    assert started == [tag("a", 2)]


def test_everything_stops_before_the_total_is_spent() -> None:
    fleet = Fleet(limits=Limits(usd_max=1.0, look_every_s=10.0))
    fleet.offer(offer("a", 3.6, tail_s=90.0))
    fleet.want("a")
    fleet.handle(WorkerJoined(tag("a")))
    drained_at = None
    while drained_at is None:
        if DrainWorker(tag("a"), "the budget of 1 $ is almost spent") in fleet.handle(Tick(), 10.0):
            drained_at = fleet.now
    assert drained_at == T0 + 910.0
    fleet.handle(WorkerLeft(tag("a"), finished=True), 10.0)
    fleet.handle(StopSucceeded(tag("a")), 80.0)
    assert fleet.manager.budget.spent_usd == pytest.approx(1.0)
    assert StartWorker not in {type(one) for one in fleet.handle(Tick(), 1.0)}  # it is still wanted, but too expensive


def test_what_a_coordinator_before_us_left_is_adopted_or_closed() -> None:
    terms = Terms(usd_per_hour=3.6, tail_s=40.0)
    opened = tuple(OpenWorker(tag(name, 3), "p", terms, T0 - 900.0) for name in "abc")
    fleet = Fleet(Restored(opened, dict.fromkeys("abc", 3), marked_at=T0 - 500.0))
    fleet.offer(*(offer(name) for name in "abc"))
    assert {one for one in fleet.handle(Tick()) if not isinstance(one, Note)} == {AskOffers("p"), ListWorkers("p")}
    assert doing(fleet.want("a", "b")) == []  # not before it is known what runs
    actions = fleet.handle(listed(tag("a", 3), tag("c", 3), at=T0), 1.0)
    assert RecordClosed(tag("b", 3), "p", T0 - 400.0, pytest.approx(0.5), 0.0) in actions  # mark + check + tail
    assert StopWorker(tag("c", 3), "p") in actions
    assert StartWorker(tag("b", 4), "p") in actions
    assert fleet.phases() == {"a.3": "joining", "c.3": "stopping", "b.4": "starting"}


def test_a_peer_may_be_back_before_its_provider_answers() -> None:
    opened = OpenWorker(tag("a"), "p", Terms(usd_per_hour=1.0), T0 - 10.0)
    fleet = Fleet(Restored((opened,), {"a": 1}, marked_at=T0))
    fleet.handle(WorkerJoined(tag("a")))
    assert fleet.phases() == {"a.1": "on"}
    assert "provider_silent" in fleet.notes(fleet.handle(ListFailed("p", "no answer")))
    assert fleet.phases() == {"a.1": "on"}


def test_left_over_workers_are_stopped_if_no_wanted_set_arrives() -> None:
    opened = OpenWorker(tag("a"), "p", Terms(usd_per_hour=1.0), T0 - 10.0)
    fleet = Fleet(Restored((opened,), {"a": 1}, marked_at=T0), wanted_grace_s=100.0)
    fleet.handle(WorkerJoined(tag("a")))
    assert DrainWorker not in {type(one) for one in fleet.handle(Tick(), 99.0)}
    assert DrainWorker(tag("a"), "it is no longer wanted") in fleet.handle(Tick(), 1.0)


def test_an_orphan_in_no_journal_is_stopped_and_paid() -> None:
    fleet = Fleet()
    fleet.offer(offer("a", 3.6))
    actions = fleet.handle(listed(tag("a", 8), at=T0))
    assert doing(actions) == [
        RecordOpened(tag("a", 8), "p", Terms(usd_per_hour=3.6), T0 - 50.0),
        StopWorker(tag("a", 8), "p"),
    ]
    fleet.want("a")
    closed = fleet.handle(StopSucceeded(tag("a", 8)), 50.0)
    assert RecordClosed(tag("a", 8), "p", T0 + 50.0, pytest.approx(0.1), 0.0) in closed
    assert StartWorker(tag("a", 9), "p") in closed
    assert doing(fleet.handle(listed(tag("a", 8), at=T0))) == []  # that list was requested before it ended


def test_a_start_that_takes_effect_after_its_stop_is_found_and_stopped() -> None:
    fleet = Fleet()
    fleet.offer(offer("a"))
    fleet.want("a")
    fleet.want()
    fleet.handle(StopSucceeded(tag("a")))
    assert fleet.manager.idle
    actions = fleet.handle(listed(tag("a"), at=T0 + 5.0), 6.0)
    assert "orphan_found" in fleet.notes(actions)
    assert StopWorker(tag("a"), "p") in actions
    assert StartWorker(tag("a", 2), "p") in fleet.want("a") + fleet.handle(StopSucceeded(tag("a")))


def test_failing_workers_are_listed() -> None:
    fleet = Fleet()
    fleet.offer(offer("a"), offer("b"))
    fleet.want("a")
    fleet.handle(StartFailed(tag("a"), "no"))
    assert fleet.manager.failing(fleet.now) == {"a"}
    assert fleet.manager.failing(fleet.now + 10.0) == frozenset()


def test_when_the_run_is_over_all_workers_stop_and_none_starts() -> None:
    opened = OpenWorker(tag("z"), "p", Terms(usd_per_hour=1.0), T0 - 10.0)
    fleet = Fleet(Restored((opened,), {"z": 1}, marked_at=T0))
    fleet.on("a")
    actions = doing(fleet.handle(RunOver("finished")))
    assert set(actions) == {StopWorker(tag("z"), "p"), DrainWorker(tag("a"), "finished")}
    fleet.handle(StopSucceeded(tag("z")))
    fleet.handle(WorkerLeft(tag("a"), finished=True))
    assert doing(fleet.handle(StopSucceeded(tag("a"))))[-1:] != [StartWorker(tag("a", 2), "p")]
    assert fleet.manager.idle


def test_egress_is_paid_and_marked() -> None:
    fleet = Fleet()
    worker = offer("a").worker
    priced = Worker(
        worker_id="a",
        speeds=(),
        usd_per_hour=0.0,
        egress_usd_per_gb=0.1,
        upload_bytes_per_second=1e6,
        download_bytes_per_second=worker.download_bytes_per_second,
        provider="p",
    )
    fleet.offer(Offer(worker=priced))
    fleet.handle(WorkersWanted({"a": "planned"}, {"a": 0.36}))
    fleet.handle(BytesSent({tag("a"): 5_000_000_000, tag("gone"): 1}), 10.0)
    marks = [one for one in fleet.handle(Tick(), 90.0) if isinstance(one, RecordMark)]
    spent = Spent(0.0, pytest.approx(0.5), pytest.approx(0.01))
    assert marks == [RecordMark(fleet.now, {"p": spent}, {str(tag("a")): 5_000_000_000})]
    assert not [one for one in fleet.handle(Tick(), 59.0) if isinstance(one, RecordMark)]


@pytest.mark.parametrize("seed", range(12))
def test_no_fleet_overspends_whatever_its_provider_does(seed: int) -> None:
    """Wanted sets, failures and crashes of coordinator and workers are random; the provider's own bill is checked."""
    World(seed).live(600)


class World:
    """A provider that bills by itself, and a coordinator that is killed now and then."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = T0
        self.limits = Limits(usd_per_hour_max=6.0, usd_max=self.random.uniform(0.2, 3.0), look_every_s=10.0)
        self.offers = tuple(offer(f"w{number}", 0.5 + number, tail_s=40.0) for number in range(5))
        self.prices = {one.worker.worker_id: one.worker.usd_per_hour for one in self.offers}
        self.opened: dict[str, OpenWorker] = {}
        self.closed: dict[str, Spent] = {}
        self.incarnations: dict[str, int] = {}
        self.marked_at = 0.0
        self.running: dict[WorkerTag, float] = {}
        self.asked_to_stop: dict[WorkerTag, float] = {}
        self.billed_usd = 0.0
        self.pending: list[tuple[float, FleetEvent]] = []
        self.manager = self.new_manager()

    def new_manager(self) -> FleetManager:
        settings = FleetSettings(
            run_id="run", providers=("p",), limits=self.limits, start_timeout_s=60.0, list_every_s=30.0
        )
        restored = Restored(tuple(self.opened.values()), self.incarnations, self.closed, {}, self.marked_at)
        return FleetManager(settings, restored, self.random.uniform, self.now)

    def live(self, ticks: int) -> None:
        self.handle(OffersSeen("p", self.offers))
        for _ in range(ticks):
            self.pass_time(self.random.uniform(1.0, 9.0))
            chance = self.random.random()
            if chance < 0.02:
                self.crash()
            elif chance < 0.1:
                self.handle(WorkersWanted(dict.fromkeys(self.random.sample(sorted(self.prices), 3), "planned")))
            elif chance < 0.15 and self.running:
                gone = self.random.choice(sorted(self.running))
                del self.running[gone]
                self.handle(WorkerLeft(gone, finished=self.random.random() < 0.5))
            self.handle(Tick())
            for due in [one for one in self.pending if one[0] <= self.now]:
                self.pending.remove(due)
                self.handle(due[1])

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for one in list(self.running):
            self.billed_usd += self.prices[one.worker_id] * seconds / 3600.0
            if self.now - self.asked_to_stop.get(one, self.now) >= 20.0:
                del self.running[one]
                self.soon(StopSucceeded(one))
        assert self.billed_usd <= self.limits.usd_max if self.limits.usd_max is not None else True
        assert self.manager.budget.spent_usd >= self.closed_usd() - 1e-9
        assert sum(self.prices[one.worker_id] for one in self.running) <= 6.0

    def closed_usd(self) -> float:
        return sum(one.machine_usd for one in self.closed.values())

    def crash(self) -> None:
        """Restart the coordinator from its journal; workers end by themselves if that takes long."""
        self.pending.clear()
        away_s = self.random.uniform(0.0, 60.0)
        self.now += min(away_s, 30.0)
        self.billed_usd += sum(self.prices[one.worker_id] for one in self.running) * min(away_s, 30.0) / 3600.0
        if away_s > 30.0:
            self.running.clear()
            self.now += away_s - 30.0
        self.asked_to_stop.clear()
        self.manager = self.new_manager()
        self.handle(OffersSeen("p", self.offers))

    def soon(self, event: FleetEvent) -> None:
        self.pending.append((self.now + self.random.uniform(0.0, 10.0), event))

    def handle(self, event: FleetEvent) -> None:
        for action in self.manager.handle(event, self.now):
            match action:
                case RecordOpened():
                    key = str(action.tag)
                    self.opened[key] = OpenWorker(action.tag, action.provider, action.terms, action.opened_at)
                    self.incarnations[action.tag.worker_id] = action.tag.incarnation
                    self.marked_at = self.now
                case RecordClosed():
                    del self.opened[str(action.tag)]
                    was = self.closed.get("p", Spent(0.0, 0.0, 0.0))
                    self.closed["p"] = Spent(was.machine_usd + action.machine_usd, 0.0, 0.0)
                    self.marked_at = self.now
                case RecordMark():
                    self.marked_at = self.now
                case StartWorker():
                    self.start(action.tag)
                case StopWorker() | DrainWorker():
                    if action.tag in self.running:
                        self.asked_to_stop.setdefault(action.tag, self.now)
                    elif isinstance(action, StopWorker):
                        self.soon(
                            StopSucceeded(action.tag) if self.random.random() < 0.8 else StopFailed(action.tag, "no")
                        )
                case ListWorkers():
                    running = tuple(Running(one, "there") for one in self.running)
                    self.soon(WorkersListed("p", Listing(running), self.now))

    def start(self, one: WorkerTag) -> None:
        outcome = self.random.random()
        if outcome < 0.7:
            self.running[one] = self.now
        self.soon(StartSucceeded(one, "there") if outcome < 0.6 else StartFailed(one, "no answer"))
        if outcome < 0.5:
            self.pending.append((self.now + 20.0, WorkerJoined(one)))
