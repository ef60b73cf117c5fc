"""Fit workers' speeds, T_train and T_bcast from a run's records, with their standard errors, and derive its demand.

A peer's mu is its concurrency / the mean time of a rollout, pauses between rollouts included: the rate at which it
generates while it is fully loaded. Its concurrency is the number of rollouts that it was observed to
generate at once. T_train is the part of a step in which the learner did not wait. The recorded T_bcast / the fluid
bound of the same links, where these are known, is the overhead that the bound leaves out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from capacity.inputs.run_records import LearnerStep, MadeRollout, RunRecords
from capacity.model.broadcast_bound import broadcast_seconds
from capacity.model.demand import Conduct, Demand
from capacity.model.topologies import Topology
from capacity.model.workers import Speed, Worker
from rollcast.wire.version_swap import at_version_swap_from_pb

_ROLLOUTS_MIN = 5  # a peer with fewer rollouts gets no speed: their mean would be mostly noise
_MEDIAN_ERROR = math.sqrt(math.pi / 2.0)  # standard error of a median / that of the mean, of a normal quantity
_AT_ONCE_S = 0.05  # rollouts of one peer that arrive within this time count as uploaded together
_AT_ONCE_QUANTILE = 0.75
_TOGETHER_SHARE = 0.9  # share of pairs that arrived together above which peers count as uploading whole batches


@dataclass(frozen=True, slots=True)
class Fitted:
    """One fitted quantity: its value, its standard error, and the number of measurements behind it."""

    value: float
    error: float
    count: int

    @property
    def relative_uncertainty(self) -> float:
        """Return two standard errors / the value; infinite with fewer than two measurements or a value of 0."""
        return 2.0 * self.error / abs(self.value) if self.value and self.count > 1 else math.inf


@dataclass(frozen=True, slots=True)
class FittedPeer:
    """The speed of one peer, fitted from its rollouts.

    Args:
        concurrency: rollouts that it generated at once.
        t_gen_s, t_gen_p90_s: mean and 90th percentile of the time to generate one rollout, in seconds.
        pause: time with leases / time spent generating, at least 1; the rest is swaps and waits between rollouts.
    """

    peer_id: str
    concurrency: int
    t_gen_s: Fitted
    t_gen_p90_s: float
    pause: float

    @property
    def speed(self) -> Speed:
        """Return the peer's speed while it is fully loaded."""
        mean_s = self.t_gen_s.value * self.pause
        return Speed(self.concurrency, self.concurrency / mean_s, self.t_gen_p90_s * self.pause, mean_s)


@dataclass(frozen=True, slots=True)
class Calibration:
    """Everything fitted from a run's records. Durations are in seconds.

    Args:
        busy_share: training time / step time without waiting; the remainder is publishing and saving.
        t_load_s: lower estimate of the time from the last peer's copy to the first rollout begun with that version,
            swaps included.
        whole_batches: whether peers upload the rollouts of a batch together rather than each as it ends.
        update_bytes: bytes that a peer receives for one version.
        utilisation: the learner's utilisation over the steps that were fitted, as the learner counts it.
        mean_age: mean age of the rollouts trained in those steps, in learner steps.
        run, lease: tables `run` and `lease` of the coordinator's configuration.
        names: peer id -> name, of those whose name is known.
    """

    peers: tuple[FittedPeer, ...]
    t_train_s: Fitted
    busy_share: float
    t_bcast_s: Fitted
    t_score_s: Fitted
    t_publish_s: Fitted
    t_load_s: Fitted
    whole_batches: bool
    update_bytes: float
    utilisation: float
    mean_age: float
    run: Mapping[str, Any]
    lease: Mapping[str, Any]
    names: Mapping[str, str] = field(default_factory=dict)

    def conduct(self) -> Conduct:
        """Return the rules by which the run issues leases and publishes versions."""
        defaults = Conduct()
        return Conduct(
            samples_per_group=int(self.run.get("samples_per_group", 1)),
            lead_margin_steps=float(self.lease.get("lead_margin_steps", defaults.lead_margin_steps)),
            prefetch_batches=float(self.lease.get("prefetch_batches", defaults.prefetch_batches)),
            prefetch_s=float(self.lease.get("prefetch_s", defaults.prefetch_s)),
            reconnect_grace_s=float(self.lease.get("reconnect_grace_s", defaults.reconnect_grace_s)),
            whole_batches=self.whole_batches,
            at_version_swap=at_version_swap_from_pb(str(self.lease.get("at_version_swap", ""))),
            t_publish_s=self.t_publish_s.value,
        )

    def demand(self, links: Links | None = None) -> Demand:
        """Return what this run's learner needs; the origin's uplink is that of ``links``, or unlimited without them."""
        run = self.run
        return Demand(
            conduct=self.conduct(),
            rollouts_per_step=int(run.get("groups_per_step", 1)) * int(run.get("samples_per_group", 1)),
            t_train_s=self.t_train_s.value,
            staleness_limit=int(run.get("staleness_limit", 1)),
            publish_every_steps=max(1, int(run.get("publish_every_steps", 1))),
            update_bytes=self.update_bytes,
            learner_upload_bytes_per_second=links.source if links else _NO_LIMIT,
            topology=links.topology if links else Topology(),
            t_load_s=self.t_load_s.value,
            t_score_s=self.t_score_s.value,
        )

    def overhead(self, links: Links, receivers: int) -> float:
        """Return the measured T_bcast / the fluid bound of these links with ``receivers`` receivers."""
        return self.t_bcast_s.value / links.bound_s(self.update_bytes, receivers)

    def workers(self, links: Links | None = None) -> list[tuple[Worker, Speed]]:
        """Return every peer that has a speed, at a price of 0, with the rates of ``links``, or else unlimited ones."""
        up, down = (links.upload, links.download) if links else (_NO_LIMIT, _NO_LIMIT)
        return [(_worker(peer, up, down), peer.speed) for peer in self.peers]

    def with_bcast(self, links: Links | None, receivers: int) -> tuple[Demand, Conduct]:
        """Return a demand and rules with which T_bcast for this run's peers equals the measured one.

        With known links the bytes grow by the overhead, so that the bound for another set of workers follows its links.
        Without them every set is assumed to have the measured T_bcast.
        """
        demand, conduct = self.demand(links), self.conduct()
        if links is None:
            return demand, replace(conduct, t_notice_s=self.t_bcast_s.value)
        return replace(demand, update_bytes=self.update_bytes * self.overhead(links, receivers)), conduct


_NO_LIMIT = 1e15  # bytes per second


@dataclass(frozen=True, slots=True)
class Links:
    """Access links with the same rates for every peer, in bytes per second: an experiment's caps, or known rates.

    Args:
        source: the origin's uplink.
        upload, download: each peer's uplink and downlink.
    """

    source: float
    upload: float
    download: float = _NO_LIMIT
    topology: Topology = field(default_factory=Topology)

    def bound_s(self, size_bytes: float, receivers: int) -> float:
        """Return T_bcast by the fluid bound, in seconds, for ``size_bytes`` to ``receivers`` receivers."""
        uploads, downloads = np.full(receivers, self.upload), np.full(receivers, self.download)
        return broadcast_seconds(size_bytes, self.source, uploads, downloads, self.topology)


def calibrate(records: RunRecords) -> Calibration:
    """Fit everything that the records hold. A quantity without measurements has the value 0 and the count 0.

    Raises:
        ValueError: no step was reported, or no peer made enough rollouts.
    """
    steps = [one for one in records.steps if one.figures.get("step_s", 0.0) > 0.0]
    by_peer: dict[str, list[MadeRollout]] = {}
    for rollout in records.rollouts:
        by_peer.setdefault(rollout.peer_id, []).append(rollout)
    peers = tuple(_peer(name, made) for name, made in sorted(by_peer.items()) if len(made) >= _ROLLOUTS_MIN)
    if not steps or not peers:
        raise ValueError("a calibration needs learner steps, and peers that made some rollouts in them")
    t_bcast_s = fitted_median(one.t_bcast_s for one in steps if one.t_bcast_s is not None)
    ages = [one.mean_age for one in steps if one.mean_age is not None]
    return Calibration(
        peers=peers,
        t_train_s=fitted(_computed_s(one) for one in steps),
        busy_share=sum(map(_busy_s, steps)) / sum(map(_computed_s, steps)),
        t_bcast_s=t_bcast_s,
        t_score_s=fitted(one.scored_s - one.received_s for one in records.rollouts if one.scored_s is not None),
        t_publish_s=fitted_median(_publish_times(records)),
        t_load_s=fitted_median(max(0.0, lag - t_bcast_s.value) for lag in _first_use_lags(records)),
        whole_batches=_together(by_peer),
        update_bytes=records.update_bytes,
        utilisation=sum(map(_busy_s, steps)) / sum(_step_s(one) for one in steps),
        mean_age=sum(ages) / len(ages) if ages else 0.0,
        run=records.run,
        lease=records.lease,
        names=records.names,
    )


def fitted(values: Iterable[float]) -> Fitted:
    """Return the mean and its standard error; value and count are 0 where there are no values."""
    found = np.array(list(values), np.float64)
    if not found.size:
        return Fitted(0.0, math.inf, 0)
    error = float(found.std(ddof=1)) / math.sqrt(found.size) if found.size > 1 else math.inf
    return Fitted(float(found.mean()), error, int(found.size))


def fitted_median(values: Iterable[float]) -> Fitted:
    """Return the median and its standard error, the latter as of a normal quantity.

    It replaces the mean where the few outliers that reconnections cause would distort that.
    """
    found = list(values)
    mean = fitted(found)
    return replace(mean, value=float(np.median(found)), error=_MEDIAN_ERROR * mean.error) if found else mean


def _step_s(step: LearnerStep) -> float:
    """Return the wall time of a step without its compilation: a calibrated run has compiled everything."""
    return float(step.figures["step_s"] - step.figures.get("compile_s", 0.0))


def _computed_s(step: LearnerStep) -> float:
    return _step_s(step) - float(step.figures.get("wait_s", 0.0))


def _busy_s(step: LearnerStep) -> float:
    return float(step.figures.get("train_s", 0.0) + step.figures.get("behaviour_s", 0.0))


def _peer(peer_id: str, made: Sequence[MadeRollout]) -> FittedPeer:
    times = np.array([one.generate_s for one in made])
    held_s = _covered_s([(one.issued_s, one.received_s) for one in made])
    drawing_s = _covered_s([(one.begun_s, one.received_s) for one in made])
    pause = max(1.0, held_s / drawing_s) if drawing_s > 0 else 1.0
    return FittedPeer(peer_id, _at_once(made), fitted(times), float(np.quantile(times, 0.9)), pause)


def _covered_s(intervals: Sequence[tuple[float, float]]) -> float:
    """Return the length of the intervals' union, in seconds."""
    covered, until = 0.0, -math.inf
    for begin, end in sorted(intervals):
        covered += max(0.0, end - max(begin, until))
        until = max(until, end)
    return covered


def _at_once(made: Sequence[MadeRollout]) -> int:
    """Return the rollouts in flight at the middle of a rollout, as the 75th percentile over all of them, at least 1.

    The highest quarter is left out: start and end times are derived from uploads, so where each place is refilled at
    once (``at_version_swap = "continue"``) a late upload counts beside the rollout that took its place.
    """
    begins = np.sort(np.array([one.begun_s for one in made]))
    ends = np.sort(np.array([one.received_s for one in made]))
    middles = np.array([(one.begun_s + one.received_s) / 2.0 for one in made])
    running = np.searchsorted(begins, middles, "right") - np.searchsorted(ends, middles, "right")
    return max(1, round(float(np.quantile(running, _AT_ONCE_QUANTILE))))


def _together(by_peer: Mapping[str, Sequence[MadeRollout]]) -> bool:
    """Return whether rollouts that were begun together arrived together although their lengths differ."""
    pairs = same = 0
    for made in by_peer.values():
        ordered = sorted(made, key=lambda one: one.begun_s)
        for one, other in pairwise(ordered):
            if other.begun_s - one.begun_s < _AT_ONCE_S and one.tokens != other.tokens:
                pairs += 1
                same += abs(other.received_s - one.received_s) < _AT_ONCE_S
    return pairs > 0 and same > _TOGETHER_SHARE * pairs


def _publish_times(records: RunRecords) -> list[float]:
    """Return the seconds from each step's report to the announcement of its version, at least 0."""
    reported = {one.step: one.reported_s for one in records.steps}
    return [max(0.0, at - reported[version]) for version, at in records.announced_s.items() if version in reported]


def _first_use_lags(records: RunRecords) -> list[float]:
    """Return the seconds from each version's announcement to the first rollout that was begun with it."""
    first: dict[int, float] = {}
    for one in records.rollouts:
        first[one.oldest_version] = min(one.begun_s, first.get(one.oldest_version, math.inf))
    return [first[version] - at for version, at in records.announced_s.items() if version in first]


def _worker(peer: FittedPeer, upload: float, download: float) -> Worker:
    return Worker(
        worker_id=peer.peer_id,
        speeds=(peer.speed,),
        usd_per_hour=0.0,
        upload_bytes_per_second=upload,
        download_bytes_per_second=download,
    )
