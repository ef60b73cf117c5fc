from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.wire.versions.retention import Kept, Retention, surplus

STATE, DELTA = 1000, 10


def version(number: int, *, busy: bool = False, delta: bool = True) -> list[Kept]:
    state = Kept(number, 0, STATE, True, busy)
    return [state, Kept(number, 1, DELTA, False)] if delta else [state]


def test_of_states_in_memory_the_newest_is_kept() -> None:
    kept = [Kept(1, 0, STATE, True), *(Kept(one, 0, 0, True, in_memory=True) for one in (2, 3, 4))]
    assert surplus(kept, Retention(keep_versions=4, keep_deltas=8, keep_bytes=0)) == kept[1:3]
    kept[1] = replace(kept[1], busy=True)
    assert surplus(kept, Retention(keep_versions=4, keep_deltas=8, keep_bytes=0)) == kept[2:3]


def test_states_go_by_count_and_deltas_later() -> None:
    kept = [one for number in range(10) for one in version(number)]
    gone = surplus(kept, Retention(keep_versions=2, keep_deltas=4, keep_bytes=0))
    assert [one.version for one in gone if one.is_state] == list(range(8))
    assert [one.version for one in gone if not one.is_state] == list(range(6))


def test_busy_encodings_stay() -> None:
    kept = [*version(1, busy=True), *version(2), *version(3), *version(4)]
    gone = surplus(kept, Retention(keep_versions=1, keep_deltas=8, keep_bytes=1))
    assert [(one.version, one.encoding_id) for one in gone] == [(1, 1), (2, 0), (2, 1), (3, 0), (3, 1), (4, 1)]


def test_spared_encodings_stay_unless_they_take_too_many_bytes() -> None:
    kept = [Kept(1, 0, STATE, True, spared=True), *(Kept(number, 0, STATE, True) for number in range(2, 6))]
    gone = surplus(kept, Retention(keep_versions=2, keep_deltas=8, keep_bytes=0))
    assert [one.version for one in gone] == [2, 3]
    gone = surplus(kept, Retention(keep_versions=2, keep_deltas=8, keep_bytes=2 * STATE))
    assert [one.version for one in gone] == [1, 2, 3]


def test_nothing_is_removed_before_a_state_is_held() -> None:
    deltas = [Kept(number, 1, DELTA, False) for number in range(9)]
    assert surplus(deltas, Retention(keep_versions=1, keep_deltas=1, keep_bytes=1)) == []
    gone = surplus([*version(3), *deltas[4:]], Retention(keep_versions=1, keep_deltas=1, keep_bytes=1000))
    assert [one.version for one in gone] == [3], "later deltas lead on from the only state"


def test_deltas_that_lead_on_from_a_state_that_stays_old_are_bounded() -> None:
    ahead = [Kept(number, 1, DELTA, False) for number in range(4, 104)]
    gone = surplus([*version(3), *ahead], Retention(keep_versions=1, keep_deltas=4, keep_bytes=0))
    assert [one.version for one in gone] == [3, *range(4, 72)]
    assert not any(one.is_state for one in gone)


#: A version has one state, its keyframe.
KEPT = st.builds(
    lambda version, encoding_id, size_bytes, busy: Kept(version, encoding_id, size_bytes, encoding_id == 0, busy),
    st.integers(0, 12),
    st.integers(0, 2),
    st.integers(1, 1000),
    st.booleans(),
)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(KEPT, unique_by=lambda one: (one.version, one.encoding_id), max_size=20),
    st.builds(Retention, st.integers(1, 5), st.integers(1, 8), st.integers(0, 3000)),
)
def test_limits_hold_and_the_newest_state_stays(kept: list[Kept], retention: Retention) -> None:
    gone = surplus(kept, retention)
    left = [one for one in kept if one not in gone]
    states = sorted(one for one in kept if one.is_state)
    assert not any(one.busy for one in gone)
    assert states or not gone
    if not states:
        return
    assert {one for one in kept if one == states[-1] or one.version > states[-1].version} <= set(left)
    newest = states[-1]
    idle = [one for one in left if not one.busy and one != newest and one.version <= newest.version]
    assert len([one for one in idle if one.is_state]) < retention.keep_versions
    if retention.keep_bytes and idle:
        assert sum(one.size_bytes for one in left) <= retention.keep_bytes
