"""Test decisions about holes: whole lists of actions, and events in any order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from peer.punching.core import (
    ANSWER_S,
    RUNNING_MOST,
    WAITING_MOST,
    Ask,
    Begin,
    Event,
    Failed,
    FailWaiting,
    GaveUp,
    Opened,
    Order,
    Ordered,
    PunchCore,
    Refused,
    Report,
    SessionLost,
    SessionOpened,
    Tick,
    Wanted,
)
from rollcast.runtime.errors import Unreachable
from rollcast.wire.ids import PeerId

ANNA, BERT = PeerId("anna"), PeerId("bert")
NO_CONNECTION = Unreachable("no connection")


def order(punch_id: int = 1, peer_id: PeerId = BERT, *, asked: bool = True) -> Order:
    return Order(punch_id, peer_id, "192.0.2.1:4000", serves=False, asked=asked, deadline_s=3.0)


def connected() -> PunchCore:
    core = PunchCore()
    core.handle(SessionOpened(), 0.0)
    return core


def failure_text(core: PunchCore, event: Event, now: float) -> str:
    actions = core.handle(event, now)
    assert len(actions) == 1
    assert isinstance(actions[0], FailWaiting)
    return actions[0].error.what


def test_a_hole_is_requested_started_and_reported() -> None:
    core = connected()
    assert core.handle(Wanted(BERT), 0.0) == [Ask(BERT)]
    due_s = core.next_deadline_s
    assert due_s == ANSWER_S
    assert core.handle(Ordered(order()), 0.1) == [Begin(order())]
    assert core.next_deadline_s is None
    assert core.handle(Opened(1), 0.5) == [Report(1, True, 0.4)]
    assert core.running == 0


def test_an_attempt_of_another_peer_is_started_without_a_caller() -> None:
    core = connected()
    told = order(asked=False)
    assert core.handle(Ordered(told), 0.0) == [Begin(told)]
    assert core.handle(Failed(1, NO_CONNECTION), 3.0) == [Report(1, False, 3.0)]
    assert core.handle(Wanted(BERT), 3.0) == [Ask(BERT)], "their failure is not ours"


def test_each_failure_fails_its_caller_and_doubles_the_pause() -> None:
    core, now = connected(), 0.0
    for pause_s in (5.0, 10.0, 20.0):
        assert core.handle(Wanted(BERT), now) == [Ask(BERT)]
        assert core.handle(Ordered(order()), now) == [Begin(order())]
        assert core.handle(Failed(1, NO_CONNECTION), now) == [Report(1, False, 0.0), FailWaiting(BERT, NO_CONNECTION)]
        assert "failures" in failure_text(core, Wanted(BERT), now + pause_s - 0.1)
        now += pause_s
    assert core.handle(Wanted(BERT), now) == [Ask(BERT)]
    core.handle(Ordered(order()), now)
    core.handle(Opened(1), now)
    assert core.handle(Wanted(BERT), now) == [Ask(BERT)], "a hole that opened clears the slate"


def test_a_refusal_fails_the_caller_and_a_silent_coordinator_is_a_failure() -> None:
    core = connected()
    core.handle(Wanted(ANNA), 0.0)
    core.handle(Wanted(BERT), 0.5)
    assert failure_text(core, Refused(ANNA, "it is not here"), 0.6) == f"cannot punch a hole to {ANNA}: it is not here"
    assert core.handle(Tick(), ANSWER_S) == []
    (action,) = core.handle(Tick(), 0.5 + ANSWER_S)
    assert isinstance(action, FailWaiting)
    assert "waited 2 s" in action.error.what
    assert "after 1 failures" in failure_text(core, Wanted(BERT), 3.0)
    assert core.handle(Wanted(ANNA), 3.0) == [Ask(ANNA)]


def test_refusals_do_not_add_up() -> None:
    core = connected()
    for now in (0.0, 1.0, 2.0, 3.0):
        assert core.handle(Wanted(BERT), now) == [Ask(BERT)]
        core.handle(Refused(BERT, "it has only just come"), now)
        assert "after 0 failures no further attempt for 0.5 s" in failure_text(core, Wanted(BERT), now + 0.5)


def test_without_a_session_nothing_is_requested_and_attempts_continue() -> None:
    core = PunchCore()
    assert "coordinator" in failure_text(core, Wanted(BERT), 0.0)
    core.handle(SessionOpened(), 0.0)
    core.handle(Wanted(ANNA), 0.0)
    core.handle(Ordered(order(asked=False)), 0.0)
    assert "unreachable" in failure_text(core, SessionLost(), 1.0)
    assert core.handle(Opened(1), 1.0) == [Report(1, True, 1.0)]
    core.handle(SessionOpened(), 2.0)
    assert core.handle(Wanted(ANNA), 2.0) == [Ask(ANNA)], "a lost session is nobody's failure"


def test_one_request_per_peer() -> None:
    core = connected()
    core.handle(Wanted(BERT), 0.0)
    assert "under way" in failure_text(core, Wanted(BERT), 0.1)
    core.handle(Ordered(order()), 0.2)
    assert "under way" in failure_text(core, Wanted(BERT), 0.3)


def test_of_two_simultaneous_requests_one_opens_the_link() -> None:
    core = connected()
    core.handle(Wanted(BERT), 0.0)
    told = order(asked=False)
    failed, begun = core.handle(Ordered(told), 0.1)
    assert isinstance(failed, FailWaiting)
    assert "that peer dials this one" in failed.error.what
    assert begun == Begin(told)


def test_an_attempt_without_a_caller_is_not_started() -> None:
    core = connected()
    core.handle(Wanted(BERT), 0.0)
    assert core.handle(GaveUp(BERT), 0.1) == []
    assert core.handle(Ordered(order()), 0.2) == [Report(1, False, 0.0)]


def test_attempts_at_a_time_are_bounded() -> None:
    core = connected()
    for number in range(RUNNING_MOST):
        told = order(number, PeerId(f"peer{number}"), asked=False)
        assert core.handle(Ordered(told), 0.0) == [Begin(told)]
    assert core.handle(Ordered(order(99, asked=False)), 0.0) == [Report(99, False, 0.0)]
    assert "too many" in failure_text(core, Wanted(BERT), 0.0)
    core.handle(Opened(0), 0.0)
    for number in range(WAITING_MOST):
        assert core.handle(Wanted(PeerId(f"far{number}")), 0.0) == [Ask(PeerId(f"far{number}"))]
    assert "too many" in failure_text(core, Wanted(BERT), 0.0)


peers = st.sampled_from([PeerId(f"peer{number}") for number in range(30)])
events = st.one_of(
    st.builds(Wanted, peers),
    st.builds(GaveUp, peers),
    st.builds(
        lambda number, peer, asked: Ordered(order(number, peer, asked=asked)), st.integers(0, 30), peers, st.booleans()
    ),
    st.builds(Refused, peers, st.just("no")),
    st.builds(Opened, st.integers(0, 30)),
    st.builds(lambda number: Failed(number, NO_CONNECTION), st.integers(0, 30)),
    st.builds(SessionOpened),
    st.builds(SessionLost),
    st.builds(Tick),
)


@given(st.lists(st.tuples(events, st.floats(0.0, 5.0)), max_size=200))
def test_every_attempt_is_reported_once_and_every_caller_answered(steps: list[tuple[Event, float]]) -> None:
    """Each Begin has one Report, each caller fails at most once, and the bounds hold."""
    core, now = PunchCore(), 0.0
    begun: set[int] = set()
    waits: set[PeerId] = set()
    for event, after_s in steps:
        now += after_s
        for action in core.handle(event, now):
            match action:
                case Ask(peer_id):
                    assert peer_id not in waits
                    waits.add(peer_id)
                case Begin(one):
                    assert one.punch_id not in begun
                    begun.add(one.punch_id)
                    waits.discard(one.peer_id)
                case Report(punch_id, _, seconds):
                    assert seconds >= 0.0
                    if isinstance(event, Opened | Failed):
                        begun.remove(punch_id)
                case FailWaiting(peer_id):
                    waits.discard(peer_id) if not isinstance(event, Wanted) else None
        if isinstance(event, GaveUp):
            waits.discard(event.peer_id)
        assert core.running == len(begun) <= RUNNING_MOST
        assert len(waits) <= WAITING_MOST
        assert (core.next_deadline_s is None) == (not waits)
    core.handle(Tick(), now + ANSWER_S)
    assert core.next_deadline_s is None
