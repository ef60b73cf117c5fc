from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coordinator.views.history import COARSE_S, FINE_KEPT_S, SAMPLE_S, History, merged
from coordinator.views.samples import SERIES, Name, Point

POINTS = st.builds(
    lambda values, who: Point(values[0], values[1], who),
    st.tuples(st.none() | st.floats(-1e6, 1e6), st.none() | st.floats(-1e6, 1e6)),
    st.sampled_from(["a", "b"]),
)


def sample(value: float, who: str = "a") -> dict[Name, Point]:
    return dict.fromkeys(SERIES, Point(value, value + 1.0, who))


def test_the_newest_sample_is_told_and_short() -> None:
    history = History()
    assert history.newest() is None
    history.add(10.0, sample(1 / 3))
    newest = history.newest()
    assert newest is not None
    assert (newest.time_unix_s, newest.values["tokens_per_s"]) == (10.0, (0.33333, 1.3333, "a"))


def test_a_view_holds_the_span_that_was_asked_for() -> None:
    history = History()
    for number in range(20):
        history.add(number * SAMPLE_S, sample(float(number), f"p{number}"))
    view = history.view(30.0, 95.0)
    assert view.times_unix_s == tuple(65.0 + SAMPLE_S * number for number in range(7))
    series = view.series["version_lag"]
    assert (series.unit, series.mean[0], series.worst[-1], series.worst_who[-1]) == ("steps", 13.0, 20.0, "p19")
    assert History().view(60.0, 0.0).times_unix_s == ()


def test_beyond_an_hour_samples_are_merged_and_none_is_told_twice() -> None:
    history, samples = History(), round((FINE_KEPT_S + 1200.0) / SAMPLE_S)
    for number in range(samples):
        history.add(number * SAMPLE_S, sample(float(number)))
    view = history.view(86_400.0, samples * SAMPLE_S)
    times = view.times_unix_s
    assert list(times) == sorted(set(times))
    assert times[0] < 2 * COARSE_S
    assert times[1] - times[0] == COARSE_S
    assert times[-1] - times[-2] == SAMPLE_S
    assert len(times) == 720 + 10


@given(st.lists(POINTS, min_size=1, max_size=5))
def test_merged_samples_keep_the_worst_with_its_name(points: list[Point]) -> None:
    found = merged([dict.fromkeys(SERIES, one) for one in points])
    worst = [one.worst for one in points if one.worst is not None]
    means = [one.mean for one in points if one.mean is not None]
    for name, (_, which) in SERIES.items():
        point = found[name]
        if which == "most":
            assert point.worst == max(worst, default=None)
        else:
            assert point.worst == min(worst, default=None)
        assert (point.mean is None) == (not means)
        assert point.worst is None or (point.worst, point.who) in {(one.worst, one.who) for one in points}
