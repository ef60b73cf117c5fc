from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from learner.publishing.lineage import Lineage, Path, Step
from rollcast.wire.ids import Version


def lineage(bases: dict[int, int], *, without_inverse: frozenset[int] = frozenset()) -> Lineage:
    versions = {Version(version): Version(base) for version, base in bases.items()}
    return Lineage(versions, lambda version: version not in without_inverse)


def forwards(*versions: int) -> tuple[Step, ...]:
    return tuple(Step(Version(version), forwards=True) for version in versions)


def backwards(*versions: int) -> tuple[Step, ...]:
    return tuple(Step(Version(version), forwards=False) for version in versions)


CHAIN = {2: 0, 4: 2, 6: 4, 8: 6}


def test_the_way_with_the_fewest_deltas_is_taken() -> None:
    found = lineage(CHAIN)
    assert found.path(Version(4), {Version(4), Version(6)}) == Path(Version(4), ())
    assert found.path(Version(4), {Version(0)}) == Path(Version(0), forwards(2, 4))
    assert found.path(Version(4), {Version(0), Version(6)}) == Path(Version(6), backwards(6))
    assert found.path(Version(0), {Version(8)}) == Path(Version(8), backwards(8, 6, 4, 2))


def test_a_delta_without_inverse_leads_forward_only() -> None:
    found = lineage(CHAIN, without_inverse=frozenset({6}))
    assert found.path(Version(4), {Version(0), Version(6)}) == Path(Version(0), forwards(2, 4))
    assert found.path(Version(4), {Version(6), Version(8)}) is None
    assert found.path(Version(8), {Version(4)}) == Path(Version(4), forwards(6, 8))


def test_versions_that_no_delta_joins_do_not_follow_from_each_other() -> None:
    found = lineage({2: 0, 6: 5})
    assert found.path(Version(6), {Version(2)}) is None
    assert found.path(Version(9), {Version(2)}) is None
    assert found.path(Version(9), {Version(9)}) == Path(Version(9), ())


def test_one_state_serves_all_versions_that_it_reaches() -> None:
    found = lineage(CHAIN)
    wanted = [Version(2), Version(4), Version(8)]
    assert found.needed(wanted, {Version(0)}) == ({0}, {2, 4, 6, 8})
    assert found.needed(wanted, {Version(0), Version(6)}) == ({6}, {4, 6, 8})
    assert lineage(CHAIN, without_inverse=frozenset({4})).needed(wanted, {Version(0), Version(6)}) == (
        {0, 6},
        {2, 8, 6},
    )


@given(
    cut=st.frozensets(st.integers(1, 12), max_size=4),
    one_way=st.frozensets(st.integers(1, 12), max_size=6),
    states=st.frozensets(st.integers(0, 12).map(Version), min_size=1, max_size=5),
    kept=st.frozensets(st.integers(0, 12).map(Version)),
)
def test_what_is_needed_suffices(
    cut: frozenset[int], one_way: frozenset[int], states: frozenset[Version], kept: frozenset[Version]
) -> None:
    bases = {version: version - 1 for version in range(1, 13) if version not in cut}
    whole = lineage(bases, without_inverse=one_way)
    made = [version for version in kept if whole.path(version, states) is not None]
    left_states, left_deltas = whole.needed(made, states)
    left = lineage({delta: bases[delta] for delta in left_deltas}, without_inverse=one_way)
    assert left_states <= states
    assert all(left.path(version, left_states) is not None for version in made)
