from __future__ import annotations

from rollcast.runtime.windows import IDENTITIES_KEPT, Distribution, RecentIdentities, Series, Window


def test_percentiles_are_nearest_rank() -> None:
    window = Window()
    assert (window.last, window.percentile(50)) == (None, None)
    for value in (5.0, 1.0, 4.0, 2.0, 3.0):
        window.add(value)
    assert [window.percentile(percent) for percent in (0, 50, 90, 95, 100)] == [1.0, 3.0, 5.0, 5.0, 5.0]
    assert window.last == 3.0


def test_a_window_keeps_the_newest() -> None:
    window = Window(size=2)
    for value in (9.0, 1.0, 2.0):
        window.add(value)
    assert window.percentile(100) == 2.0


def test_a_distribution_counts_what_is_at_most_each_bound() -> None:
    distribution = Distribution((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        distribution.add(value)
    assert (distribution.at_most(), distribution.sum) == ((2, 3, 4), 12.0)


def test_a_series_is_thinned_evenly_and_always_shows_its_end() -> None:
    series = Series(points_max=4)
    for x in range(1, 12):
        series.add(x, float(x))
    xs = [x for x, _ in series.points()]
    assert xs == [4, 8, 11]
    for x in range(12, 200):
        series.add(x, float(x))
        points = series.points()
        assert len(points) <= 5
        assert points[-1] == (x, float(x))


def test_the_identity_used_longest_ago_is_discarded_first() -> None:
    values: RecentIdentities[str, int] = RecentIdentities()
    values.limit = 2
    for number, name in enumerate("abac"):
        values.use(name, number)
    assert list(values.items()) == [("a", 2), ("c", 3)]


def test_there_is_room_for_the_members_and_as_many_that_left() -> None:
    values: RecentIdentities[str, int] = RecentIdentities()
    values.make_room(3)
    assert values.limit == IDENTITIES_KEPT
    values.make_room(IDENTITIES_KEPT)
    assert values.limit == 2 * IDENTITIES_KEPT


def test_a_value_is_made_once_and_its_use_keeps_it() -> None:
    values: RecentIdentities[str, list[int]] = RecentIdentities()
    values.limit = 2
    first = values.used("a", list)
    values.used("b", list)
    assert values.used("a", list) is first
    values.used("c", list)
    assert list(values) == ["a", "c"], "b was used longest ago"
