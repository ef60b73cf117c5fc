"""Keep samples in two rings: the last hour every few seconds, the last day every two minutes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from coordinator.views.samples import SERIES, Name, Point

SAMPLE_S = 5.0
FINE_KEPT_S = 3600.0
COARSE_S = 120.0
COARSE_KEPT_S = 86_400.0

Sample = Mapping[Name, Point]


@dataclass(frozen=True, slots=True)
class SeriesView:
    """One series with a value for each time; None if nothing was measured then."""

    unit: str
    mean: tuple[float | None, ...]
    worst: tuple[float | None, ...]
    worst_who: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HistoryView:
    """Series over the same times, oldest first."""

    times_unix_s: tuple[float, ...]
    series: dict[str, SeriesView]


@dataclass(frozen=True, slots=True)
class SampleView:
    """The newest sample: mean, worst and worst member of each series."""

    time_unix_s: float
    values: dict[str, tuple[float | None, float | None, str]]


class History:
    """Keeps the samples in two rings, a fine and a coarse one."""

    def __init__(self) -> None:
        self._fine: deque[tuple[float, Sample]] = deque(maxlen=round(FINE_KEPT_S / SAMPLE_S))
        self._coarse: deque[tuple[float, Sample]] = deque(maxlen=round(COARSE_KEPT_S / COARSE_S))
        self._gathered: list[tuple[float, Sample]] = []

    def add(self, unix_s: float, sample: Sample) -> None:
        """Add a sample; to be called every SAMPLE_S seconds."""
        self._fine.append((unix_s, sample))
        self._gathered.append((unix_s, sample))
        if unix_s - self._gathered[0][0] >= COARSE_S - 1.5 * SAMPLE_S:
            self._coarse.append((unix_s, merged([one for _, one in self._gathered])))
            self._gathered = []

    def newest(self) -> SampleView | None:
        """Return the newest sample; None before the first one."""
        if not self._fine:
            return None
        unix_s, sample = self._fine[-1]
        values: dict[str, tuple[float | None, float | None, str]] = {
            name: (_short(one.mean), _short(one.worst), one.who) for name, one in sample.items()
        }
        return SampleView(round(unix_s, 3), values)

    def view(self, span_s: float, unix_s: float) -> HistoryView:
        """Return the samples of the last ``span_s`` seconds; those older than the fine ring are coarse."""
        taken = list(self._between(unix_s - span_s, unix_s))
        return HistoryView(
            tuple(round(at, 3) for at, _ in taken),
            {name: _series(name, unit, [sample for _, sample in taken]) for name, (unit, _) in SERIES.items()},
        )

    def _between(self, since: float, until: float) -> Iterator[tuple[float, Sample]]:
        fine_from = self._fine[0][0] if self._fine else until
        if since < fine_from:
            yield from (one for one in self._coarse if since <= one[0] < fine_from)
        yield from (one for one in self._fine if since <= one[0] <= until)


def merged(samples: Sequence[Sample]) -> dict[Name, Point]:
    """Merge several samples into one: the mean of the means, the worst of the worst."""
    return {name: _merged([sample[name] for sample in samples], worst == "most") for name, (_, worst) in SERIES.items()}


def _merged(points: Sequence[Point], most: bool) -> Point:
    means = [one.mean for one in points if one.mean is not None]
    mean = sum(means) / len(means) if means else None
    bad = [(one.worst, one.who) for one in points if one.worst is not None]
    if not bad:
        return Point(mean)
    worst = (max if most else min)(bad, key=lambda one: one[0])
    return Point(mean, *worst)


def _series(name: Name, unit: str, samples: Sequence[Sample]) -> SeriesView:
    points = [sample[name] for sample in samples]
    return SeriesView(
        unit,
        tuple(_short(one.mean) for one in points),
        tuple(_short(one.worst) for one in points),
        tuple(one.who for one in points),
    )


def _short(value: float | None) -> float | None:
    """Round to five significant digits, which are enough for a chart."""
    return None if value is None else float(f"{value:.5g}")
