from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from peer.transports.upgrades import PathUpgrades
from rollcast.wire.ids import PeerId

A, B = PeerId("a"), PeerId("b")
DIRECT = ("10.0.0.1:1",)


def looking(*better: tuple[PeerId, tuple[str, ...]], now: float = 0.0) -> PathUpgrades:
    upgrades = PathUpgrades()
    upgrades.update(better, 1.0, now)
    return upgrades


def test_a_better_way_is_tried_after_a_while_and_then_ever_more_rarely() -> None:
    upgrades, now, tries = looking((A, DIRECT)), 0.0, []
    while len(tries) < 9:
        if upgrades.due(now) == (A, DIRECT):
            tries.append(now)
            upgrades.failed(A, 1.0, now)
        now += 1.0
    waits = [later - before for before, later in zip([0.0, *tries], tries, strict=False)]
    assert waits == [30.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1800.0, 1800.0, 1800.0]


def test_a_look_does_not_begin_again_unless_there_is_a_new_way() -> None:
    upgrades = looking((A, DIRECT))
    upgrades.failed(A, 1.0, 30.0)
    upgrades.update([(A, DIRECT)], 1.0, 80.0)
    assert upgrades.due(89.0) is None
    assert upgrades.due(90.0) == (A, DIRECT)
    upgrades.update([(A, (*DIRECT, "punch"))], 1.0, 90.0)
    assert upgrades.due(119.0) is None
    assert upgrades.due(120.0) == (A, (*DIRECT, "punch"))


def test_who_has_no_better_way_any_more_is_forgotten() -> None:
    upgrades = looking((A, DIRECT), (B, DIRECT))
    upgrades.update([(B, DIRECT)], 1.0, 10.0)
    assert upgrades.due(1e9) == (B, DIRECT)
    upgrades.opened(B)
    assert upgrades.due(1e9) is None
    upgrades.failed(A, 0.5, 0.0)
    assert upgrades.due(1e9) is None


def test_whoever_waits_for_longest_is_first() -> None:
    upgrades = looking((A, DIRECT), (B, DIRECT))
    upgrades.failed(A, 1.0, 0.0)
    assert upgrades.due(1e6) == (B, DIRECT)


@given(jitter=st.floats(0.0, 1.0), tries=st.integers(0, 40))
def test_waits_stay_between_a_quarter_minute_and_half_an_hour(jitter: float, tries: int) -> None:
    upgrades = PathUpgrades()
    upgrades.update([(A, DIRECT)], jitter, 0.0)
    for _ in range(tries):
        upgrades.failed(A, jitter, 0.0)
    assert upgrades.due(14.9) is None
    assert upgrades.due(1800.0) == (A, DIRECT)
