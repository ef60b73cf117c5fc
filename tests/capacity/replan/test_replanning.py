from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from capacity.model.demand import Demand
from capacity.model.workers import Pin, Speed, Worker
from capacity.replan.events import (
    Action,
    DemandSeen,
    Measured,
    Problem,
    ReplanSettings,
    Solve,
    Solved,
    SolveFailed,
    Start,
    Starving,
    Stop,
    Tick,
    WorkerGone,
    WorkerSeen,
)
from capacity.replan.replanning import Replanner
from capacity.replan.reserve import HEADROOM_LEAST

SETTINGS = ReplanSettings(dwell_s=100.0, interval_s=600.0, gather_s=2.0, solve_timeout_s=30.0)
DEMAND = Demand(
    rollouts_per_step=100, t_train_s=50.0, staleness_limit=4, update_bytes=1e6, learner_upload_bytes_per_second=1e8
)


def worker(name: str, *, rate: float = 1.0, usd: float = 1.0, active: bool = True, pin: Pin = "") -> Worker:
    return Worker(
        worker_id=name,
        speeds=(Speed(8, rate, 10.0),) if rate else (),
        usd_per_hour=usd,
        upload_bytes_per_second=1e7,
        download_bytes_per_second=1e7,
        active=active,
        pin=pin,
    )


def replanner(*workers: Worker, of: ReplanSettings = SETTINGS, demand: Demand = DEMAND) -> Replanner:
    made = Replanner(of)
    for one in workers:
        assert made.handle(WorkerSeen(one), 0.0) == []
    assert made.handle(DemandSeen(demand), 0.0) == []
    return made


def problem_of(actions: list[Action]) -> Problem:
    (solve,) = actions
    assert isinstance(solve, Solve)
    return solve.problem


def first_problem(made: Replanner) -> Problem:
    return problem_of(made.handle(Tick(), 2.0))


def answer(made: Replanner, problem: Problem, now: float, *, on: str = "", off: str = "") -> list[Action]:
    turned_on, turned_off = (
        tuple((one, f"{word}: so") for one in names.split()) for word, names in (("on", on), ("off", off))
    )
    return made.handle(Solved(number=problem.number, turn_on=turned_on, turn_off=turned_off), now)


class TestCauses:
    def test_are_gathered_before_anything_is_planned(self) -> None:
        made = replanner(worker("a"), worker("b"))
        assert made.handle(Tick(), 1.9) == []
        problem = first_problem(made)
        assert [one.worker_id for one in problem.workers] == ["a", "b"]
        assert problem.trigger == "a joined"

    def test_one_problem_is_solved_at_a_time(self) -> None:
        made = replanner(worker("a"))
        problem = first_problem(made)
        assert made.handle(WorkerSeen(worker("b")), 3.0) == []
        assert made.handle(Tick(), 10.0) == []
        assert [one.worker_id for one in problem_of(answer(made, problem, 11.0)).workers] == ["a", "b"]

    def test_without_any_the_set_is_planned_each_interval(self) -> None:
        made = replanner(worker("a"))
        answer(made, first_problem(made), 2.0)
        assert made.next_at == 602.0
        assert made.handle(Tick(), 601.0) == []
        assert problem_of(made.handle(Tick(), 602.0)).trigger == "the planning interval is over"

    def test_small_changes_are_none(self) -> None:
        made = replanner(worker("a"))
        answer(made, first_problem(made), 2.0)
        assert made.handle(WorkerSeen(worker("a", usd=1.04, rate=1.1)), 3.0) == []
        assert made.next_at == 602.0

    def test_price_speed_and_s_are_some(self) -> None:
        for event, trigger in (
            (WorkerSeen(worker("a", usd=2.0)), "a costs 2 $/h instead of 1"),
            (WorkerSeen(worker("a", rate=0.5)), "a is slower than it was"),
            (WorkerGone("a", "preempted"), "a left: preempted"),
            (DemandSeen(replace(DEMAND, staleness_limit=5)), "S is 5 instead of 4"),
            (DemandSeen(replace(DEMAND, t_train_s=60.0)), "a step takes 60 s instead of 50"),
            (DemandSeen(replace(DEMAND, usd_per_hour_max=3.0)), "the rules or the budget have changed"),
        ):
            made = replanner(worker("a"), worker("b"))
            answer(made, first_problem(made), 2.0)
            assert made.handle(event, 3.0) == []
            assert problem_of(made.handle(Tick(), 5.0)).trigger == trigger

    def test_one_that_was_not_measured_is_left_on_and_out_of_the_plan(self) -> None:
        made = replanner(worker("a"), worker("new", rate=0.0, usd=4.0), demand=replace(DEMAND, usd_per_hour_max=10.0))
        problem = first_problem(made)
        assert [one.worker_id for one in problem.workers] == ["a"]
        assert problem.demand.usd_per_hour_max == 6.0


class TestDwell:
    def test_what_was_started_is_pinned_on_and_what_was_stopped_rests(self) -> None:
        made = replanner(worker("a"), worker("b", active=False))
        assert answer(made, first_problem(made), 2.0, on="b", off="a") == [Start("b", "on: so"), Stop("a", "off: so")]
        made.handle(WorkerSeen(worker("b", usd=9.0)), 10.0)
        problem = problem_of(made.handle(Tick(), 12.0))
        assert {one.worker_id: (one.active, one.pin) for one in problem.workers} == {
            "a": (False, ""),
            "b": (True, "on"),
        }
        assert (problem.dwelling, problem.resting) == (("b",), ("a",))

    def test_its_end_is_a_cause(self) -> None:
        made = replanner(worker("a"), worker("b", active=False))
        answer(made, first_problem(made), 2.0, on="b")
        made.handle(WorkerSeen(worker("b", usd=9.0)), 10.0)
        assert answer(made, problem_of(made.handle(Tick(), 12.0)), 13.0) == []
        assert made.next_at == 102.0
        assert problem_of(made.handle(Tick(), 102.0)).dwelling == ()

    def test_nothing_that_started_meanwhile_is_stopped(self) -> None:
        made = replanner(worker("a", active=False))
        problem = first_problem(made)
        assert made.handle(Starving(), 3.0) == [Start("a", "on: the learner waits for rollouts")]
        assert answer(made, problem, 4.0, off="a") == []


class TestPins:
    def test_hold_at_once(self) -> None:
        made = replanner(worker("a"))
        assert made.handle(WorkerSeen(worker("a", pin="off")), 1.0) == [Stop("a", "off: pinned by the operator")]
        assert made.handle(WorkerSeen(worker("a", pin="on")), 1.0) == [Start("a", "on: pinned by the operator")]

    def test_outlive_a_plan_that_did_not_know_them(self) -> None:
        made = replanner(worker("a"), worker("b", active=False))
        problem = first_problem(made)
        made.handle(WorkerSeen(worker("a", pin="on")), 3.0)
        made.handle(WorkerSeen(worker("b", pin="off", active=False)), 3.0)
        assert [type(one) for one in answer(made, problem, 4.0, on="b", off="a")] == []


class TestWithoutAPlan:
    def test_a_worker_is_started_when_the_last_one_leaves(self) -> None:
        made = replanner(worker("a"), worker("b", active=False), worker("c", active=False, rate=3.0))
        answer(made, first_problem(made), 2.0)
        assert made.handle(WorkerGone("a", "lost"), 10.0) == [Start("c", "on: no other worker is left")]

    def test_a_learner_that_waits_has_more_started_once_a_step(self) -> None:
        made = replanner(worker("a"), *(worker(f"b{n}", active=False, usd=n) for n in range(1, 5)))
        answer(made, first_problem(made), 2.0)
        started = made.handle(Starving(), 10.0)  # a quarter of 2.1 rollouts a second
        assert started == [Start("b1", "on: the learner waits for rollouts")]
        assert made.handle(Starving(), 11.0) == []

    def test_what_was_started_then_is_planned_with_afterwards(self) -> None:
        made = replanner(worker("a", rate=3.0), worker("b", active=False))
        answer(made, first_problem(made), 2.0)
        assert made.handle(Starving(), 10.0) == [Start("b", "on: the learner waits for rollouts")]
        problem = problem_of(made.handle(Tick(), 12.0))
        assert [one.speeds[0].rollouts_per_second for one in problem.workers] == [2.0, 2.0 / 3.0]  # 2 are needed

    def test_a_new_set_has_a_step_to_show_what_it_makes(self) -> None:
        made = replanner(worker("a"), worker("b", active=False), worker("c", active=False))
        answer(made, first_problem(made), 20.0, on="b")
        assert made.handle(Starving(), 69.0) == []
        assert made.handle(Starving(), 70.0) == [Start("c", "on: the learner waits for rollouts")]

    def test_the_budget_holds_even_then(self) -> None:
        made = replanner(worker("a"), worker("b", active=False), demand=replace(DEMAND, usd_per_hour_max=1.5))
        answer(made, first_problem(made), 2.0)
        assert made.handle(Starving(), 10.0) == []

    def test_a_planner_that_fails_leaves_the_set_and_fills_it_up(self) -> None:
        made = replanner(worker("a", rate=2.0), worker("b", active=False))
        problem = first_problem(made)
        started = made.handle(SolveFailed(problem.number, "it broke"), 3.0)
        assert started == [Start("b", "on: the workers that are on are too slow, and it broke")]
        assert made.failed == "it broke"

    def test_a_planner_that_never_answers_is_not_waited_for(self) -> None:
        made = replanner(worker("a", rate=3.0))
        problem = first_problem(made)
        assert made.handle(Tick(), 31.0) == []
        assert made.handle(Tick(), 32.0) == []
        assert made.failed
        assert answer(made, problem, 33.0, off="a") == []


class TestCorrections:
    def test_what_one_set_made_all_the_time_corrects_the_model(self) -> None:
        made = replanner(worker("a"), worker("b"))
        answer(made, first_problem(made), 2.0)
        for turn in range(20):
            made.handle(Measured(60.0, 1.6, workers_limit=True), 100.0 + 60.0 * turn)
        assert abs(made.corrections.rate - 0.8) < 0.01

    def test_a_measurement_of_a_changed_set_is_discarded(self) -> None:
        made = replanner(worker("a"), worker("b", active=False))
        answer(made, first_problem(made), 2.0, on="b")
        made.handle(Measured(60.0, 0.2, workers_limit=True), 50.0)
        assert made.corrections.rate == 1.0


NAMES = ["a", "b", "c"]
EVENTS = st.one_of(
    st.builds(
        lambda name, usd, rate, pin: WorkerSeen(worker(name, usd=usd, rate=rate, pin=pin)),
        st.sampled_from(NAMES),
        st.sampled_from([0.0, 1.0, 2.0]),
        st.sampled_from([0.0, 1.0, 2.0]),
        st.sampled_from(["", "on", "off"]),
    ),
    st.builds(WorkerGone, st.sampled_from(NAMES), st.just("lost")),
    st.just(DemandSeen(DEMAND)),
    st.just(DemandSeen(replace(DEMAND, staleness_limit=2))),
    st.just(Starving()),
    st.just(Tick()),
    st.sampled_from([("answer", "a b c", ""), ("answer", "a", "b c"), ("answer", "", "a b c")]),
)


@settings(max_examples=200)
@given(st.lists(st.tuples(EVENTS, st.sampled_from([0.0, 1.0, 30.0, 120.0])), max_size=40))
def test_dwells_and_pins_hold_whatever_happens(story: list[tuple[object, float]]) -> None:
    made, now, pending = Replanner(SETTINGS), 0.0, 0
    on: dict[str, bool] = {}
    started: dict[str, float] = {}
    pins: dict[str, str] = {}
    for event, gap_s in story:
        now += gap_s
        if isinstance(event, tuple):
            turned = [tuple((name, "so") for name in names.split()) for names in event[1:]]
            event = Solved(number=pending, turn_on=turned[0], turn_off=turned[1])
        if isinstance(event, WorkerSeen):
            on.setdefault(event.worker.worker_id, True)
            pins[event.worker.worker_id] = event.worker.pin
        if isinstance(event, WorkerGone):
            on.pop(event.worker_id, None)
            started.pop(event.worker_id, None)
        for action in made.handle(event, now):  # type: ignore[arg-type]
            match action:
                case Solve(problem):
                    pending = problem.number
                case Start(name, _):
                    assert on[name] is False
                    assert pins[name] != "off"
                    on[name], started[name] = True, now
                case Stop(name, _):
                    assert on[name] is True
                    assert pins[name] != "on"
                    assert pins[name] == "off" or now - started.get(name, -1e9) >= SETTINGS.dwell_s
                    on[name] = False
        for name, is_on in on.items():
            known = made.worker(name)
            assert known is not None
            assert known.active is is_on


class TestReplacing:
    """A worker that others replace stays on until they generate."""

    def replaced(self, demand: Demand = DEMAND) -> tuple[Replanner, list[Action]]:
        made = replanner(worker("a"), worker("b", active=False), of=replace(SETTINGS, start_s=50.0), demand=demand)
        return made, answer(made, first_problem(made), 2.0, on="b", off="a")

    def test_it_stops_when_they_have_had_time_to_start(self) -> None:
        made, at_once = self.replaced()
        assert at_once == [Start("b", "on: so")]
        assert made.next_at == 52.0
        assert made.handle(Tick(), 51.0) == []
        assert made.handle(Tick(), 52.0) == [Stop("a", "off: so")]
        assert made.handle(Tick(), 53.0) == []

    def test_it_stays_where_the_next_plan_keeps_it(self) -> None:
        made, _ = self.replaced()
        made.handle(WorkerGone("b", "lost"), 10.0)
        answer(made, problem_of(made.handle(Tick(), 12.0)), 13.0)
        assert made.handle(Tick(), 60.0) == []

    def test_it_stops_at_once_where_nothing_starts_or_a_budget_limits_the_set(self) -> None:
        made = replanner(worker("a"), worker("b"), of=replace(SETTINGS, start_s=50.0))
        assert answer(made, first_problem(made), 2.0, off="a") == [Stop("a", "off: so")]
        _, at_once = self.replaced(replace(DEMAND, usd_per_hour_max=9.0))
        assert Stop("a", "off: so") in at_once


def test_preemptions_are_learned() -> None:
    made = replanner(worker("a"), worker("b"), worker("c"))
    answer(made, first_problem(made), 2.0)
    made.handle(WorkerGone("a", "left"), 10.0)
    (before, _) = problem_of(made.handle(Tick(), 12.0)).workers
    made = replanner(worker("a"), worker("b"), worker("c"))
    answer(made, first_problem(made), 2.0)
    made.handle(WorkerGone("a", "taken away", preempted=True), 10.0)
    (after, _) = problem_of(made.handle(Tick(), 12.0)).workers
    assert before.preemptions_per_hour == 0.0 < after.preemptions_per_hour


def test_the_headroom_follows_the_learner_s_price() -> None:
    made = replanner(worker("a"), worker("b"), worker("c"), demand=replace(DEMAND, learner_usd_per_hour=10.0))
    assert first_problem(made).demand.headroom == HEADROOM_LEAST
    assert first_problem(replanner(worker("a"))).demand.headroom == DEMAND.headroom
