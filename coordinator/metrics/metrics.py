"""Export the coordinator's Prometheus metrics, named with the words of docs/architecture.md.

Most are read from the statuses at scrape time, so that the page and Prometheus never disagree. Only what the statuses
lack is measured here: latencies of the service itself, among them how late the event loop is. While the loop is too
late, uploads are shed so that heartbeats and sessions are still served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client import Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from coordinator.core.status.turns import PAUSE_S, Turns, at_once
from coordinator.metrics import broadcast as broadcast_metrics
from coordinator.metrics import fleet
from coordinator.metrics.families import activation_families, staleness_families
from rollcast.runtime import metrics

SHEDS_ABOVE_S = 1.0  # a peer's heartbeat must be read within its timeout, which is a few seconds
TAKES_BELOW_S = 0.25  # well below SHEDS_ABOVE_S: hysteresis against flapping


BLOCKS_WINDOW_S = 15.0  # Prometheus' usual interval between scrapes
LATENCY_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

# (name, help, key of the status); a key whose value is None is left out of the scrape.
GAUGES = (
    ("rollcast_learner_step", "Learner steps completed.", "step"),
    ("rollcast_learner_steps_target", "Learner steps after which the run is finished.", "steps"),
    ("rollcast_version_newest", "Newest announced version.", "newest_version"),
    ("rollcast_epoch", "Epoch of the run.", "epoch"),
    ("rollcast_staleness_limit_steps", "S, the limit on staleness in learner steps.", "staleness_limit"),
    (
        "rollcast_staleness_max_trained_steps",
        "Age in learner steps of the oldest rollout trained.",
        "staleness_max_trained",
    ),
    ("rollcast_reward_train", "Mean reward of the newest batch.", "reward_train"),
    ("rollcast_reward_before", "Reward on held-out problems before RL.", "reward_before"),
    ("rollcast_reward_after", "Reward on held-out problems after RL.", "reward_after"),
    ("rollcast_tokens_per_second", "Tokens per second that all peers together generate.", "tokens_per_s"),
    ("rollcast_learner_utilisation_ratio", "Share of the learner's time spent computing.", "learner_utilisation"),
    (
        "rollcast_learner_mfu_ratio",
        "Model FLOPs of a step / the published peak of the learner's devices.",
        "learner_mfu",
    ),
    (
        "rollcast_learner_memory_peak_ratio",
        "High-water mark of the learner's fullest device / what its runtime may use.",
        "learner_memory_peak_share",
    ),
    ("rollcast_peer_byte_ratio", "Share of chunk bytes served by peers, not the origin.", "peer_byte_share"),
    (
        "rollcast_updates_skipped",
        "Optimiser updates skipped because loss or gradient norm was not finite.",
        "updates_skipped",
    ),
    ("rollcast_run_elapsed_seconds", "Seconds since the coordinator started.", "elapsed_s"),
)


# (name, help, key of the status' mismatch).
MISMATCH = (
    ("rollcast_mismatch_kl_k3", "k3 estimate of KL(engine, learner) of the newest batch, in nats per token.", "kl_k3"),
    (
        "rollcast_mismatch_ratio_mean",
        "Mean probability ratio, learner / engine, of tokens with a reported log-probability.",
        "ratio_mean",
    ),
    ("rollcast_mismatch_outside_ratio", "Share of those tokens whose ratio is outside [0.8, 1.28].", "outside_share"),
    ("rollcast_mismatch_reported_ratio", "Share of trained tokens with a reported log-probability.", "reported_share"),
    ("rollcast_mismatch_peers_alarming", "Peers beyond a threshold of the learner's [mismatch].", "peers_alarming"),
    (
        "rollcast_sampling_lacks_ratio",
        "Share of the expected randomness that the tokens of the last batches lack.",
        "sampling_lacks_share",
    ),
    (
        "rollcast_sampling_peers_alarming",
        "Peers whose tokens are likelier than random sampling allows.",
        "sampling_peers_alarming",
    ),
)


class CoordinatorMetrics:
    """One registry with all metrics; ``status`` and ``broadcast`` are called once per scrape."""

    def __init__(
        self, status: Callable[[], Mapping[str, Any]], broadcast: Callable[[], Turns[Mapping[str, Any]]]
    ) -> None:
        self.registry = metrics.new_registry()
        self.upload_answer_s = Histogram(
            "rollcast_upload_answer_seconds",
            "Seconds from a rollout's arrival to its verdict.",
            buckets=LATENCY_BUCKETS_S,
            registry=self.registry,
        )
        self.loop_lag_s = Histogram(
            "rollcast_loop_lag_seconds",
            "Delay of the coordinator's periodic tick, in seconds.",
            buckets=LATENCY_BUCKETS_S,
            registry=self.registry,
        )
        self.loop_lag = LoopLag()
        self.loop_blocks = LoopBlocks()
        Gauge(
            "rollcast_loop_block_max_seconds",
            "Longest time for which the coordinator's event loop served nothing else, in the last 15 to 30 seconds.",
            registry=self.registry,
        ).set_function(lambda: self.loop_blocks.longest_s)
        self.loop_work = LoopBlocks()
        Gauge(
            "rollcast_loop_work_max_seconds",
            "Most processor time that the coordinator's event loop used in a block and the 20 ms before it, in the last"
            " 15 to 30 seconds; for the rest of a block it waited for a processor or for another thread.",
            registry=self.registry,
        ).set_function(lambda: self.loop_work.longest_s)
        self.store_free_bytes = Gauge(
            "rollcast_store_free_bytes", "Free bytes on the run folder's disk.", registry=self.registry
        )
        self.store_refusing = Gauge(
            "rollcast_store_refusing_uploads",
            "1 while uploads are refused because the disk is almost full, or the store does not answer.",
            registry=self.registry,
        )
        self._statuses = _StatusCollector(status, broadcast)
        self._rendering = asyncio.Lock()
        self.registry.register(self._statuses)
        self._doors: dict[str, Mapping[str, int]] = {}

    def watch_doors(self, doors: Mapping[str, Mapping[str, int]]) -> None:
        """Export what each door has refused by reason, read at every scrape."""
        if not self._doors:
            self.registry.register(_DoorCollector(self._doors))
        self._doors.update(doors)

    def watch_gateways(self, sessions: Callable[[], Mapping[str, int]]) -> None:
        """Export how many sessions each linked gateway holds, read at every scrape."""
        self.registry.register(_GatewayCollector(sessions))

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return metrics.render(self.registry)

    async def render_in_turns(self) -> bytes:
        """Return the same in several turns of the event loop, as statuses of large fleets take it a while.

        Scrapes at the same time take turns: each reads its own statuses, and the next one would have to read them again
        at once.
        """
        async with self._rendering:
            self._statuses.read_status()
            await asyncio.sleep(PAUSE_S)
            for _ in self._statuses.read_broadcast():
                await asyncio.sleep(PAUSE_S)
            await asyncio.sleep(PAUSE_S)
            return self.render()


class LoopLag:
    """Decides from the loop's lateness whether uploads are shed."""

    def __init__(self) -> None:
        self.sheds = False

    def observe(self, seconds: float) -> None:
        """Note how late a tick was, in seconds. Shedding ends only once a tick is less than TAKES_BELOW_S late."""
        if seconds >= SHEDS_ABOVE_S:
            self.sheds = True
        elif seconds < TAKES_BELOW_S:
            self.sheds = False


class LoopBlocks:
    """Keeps the longest block of the event loop, or its work, over this window and the one before.

    A scrape every BLOCKS_WINDOW_S seconds, as is usual, misses no block.
    """

    def __init__(self) -> None:
        self._now_s = self._before_s = 0.0
        self._window_ends_at = 0.0

    def observe(self, seconds: float, at: float) -> None:
        """Note how late a timer was, or how long the loop worked; ``at`` is the loop's time."""
        if at >= self._window_ends_at:
            self._before_s, self._now_s = self._now_s, 0.0
            self._window_ends_at = at + BLOCKS_WINDOW_S
        self._now_s = max(self._now_s, seconds)

    @property
    def longest_s(self) -> float:
        """Return the longest block in seconds."""
        return max(self._now_s, self._before_s)


class _DoorCollector(Collector):
    """Converts the counts of the doors to one metric family."""

    def __init__(self, doors: Mapping[str, Mapping[str, int]]) -> None:
        self._doors = doors

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        text = "Calls, requests and connections refused, by door and reason."
        family = CounterMetricFamily("rollcast_refused", text, labels=["door", "reason"])
        for door, reasons in self._doors.items():
            for reason, count in reasons.items():
                family.add_metric([door, reason], count)
        yield family


class _GatewayCollector(Collector):
    """Converts the sessions of gateways to one metric family."""

    def __init__(self, sessions: Callable[[], Mapping[str, int]]) -> None:
        self._sessions = sessions

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        text = "Sessions that a linked gateway holds."
        family = GaugeMetricFamily("rollcast_gateway_sessions", text, labels=["gateway"])
        for gateway, count in self._sessions().items():
            family.add_metric([gateway], count)
        yield family


class _StatusCollector(Collector):
    """Converts the statuses to metric families."""

    def __init__(
        self, status: Callable[[], Mapping[str, Any]], broadcast: Callable[[], Turns[Mapping[str, Any]]]
    ) -> None:
        self._status = status
        self._broadcast = broadcast
        self._read: Mapping[str, Any] | None = None  # for the next scrape
        self._read_broadcast: Mapping[str, Any] | None = None

    def read_status(self) -> None:
        """Build the status of the next scrape now."""
        self._read = self._status()

    def read_broadcast(self) -> Turns[None]:
        """Build the status of the broadcast for the next scrape, in turns."""
        self._read_broadcast = yield from self._broadcast()

    def describe(self) -> Iterable[Metric]:
        return ()  # so that registering does not scrape

    def collect(self) -> Iterable[Metric]:
        status, broadcast = self._read or self._status(), self._read_broadcast or at_once(self._broadcast())
        self._read = self._read_broadcast = None
        for name, text, key in GAUGES:
            value = status.get(key)
            if value is not None:
                yield GaugeMetricFamily(name, text, value=float(value))
        yield _one_label(
            "rollcast_phase",
            "The run's current phase, which has the value 1.",
            "phase",
            {str(status.get("phase", "")): 1.0},
        )
        yield from _staleness(status)
        yield from staleness_families(status.get("staleness") or {})
        yield from _rollouts(status.get("rollouts", {}))
        yield from _episodes(status.get("episodes") or {})
        yield from _scoring(status.get("scoring") or {})
        yield _peers_by_state(status.get("peers_by_state", ()))
        yield from _peers(status.get("peers", ()))
        yield from _mismatch(status.get("mismatch"))
        yield from _t_bcast(status.get("t_bcast_s") or {})
        yield from activation_families(status.get("activation"))
        yield from fleet.families(status.get("spending"))
        yield from broadcast_metrics.families(broadcast)


def _mismatch(mismatch: Mapping[str, Any] | None) -> Iterable[Metric]:
    for name, text, key in MISMATCH if mismatch else ():
        yield GaugeMetricFamily(name, text, value=float((mismatch or {})[key]))
    if mismatch:
        text = "k3 estimate of KL(engine, learner) by peer, for the worst peers, in nats per token."
        yield _one_label("rollcast_mismatch_peer_kl_k3", text, "peer", mismatch["peers"])
        text = "Share of the expected randomness that a peer's tokens lack, for the worst peers."
        yield _one_label("rollcast_sampling_peer_lacks_ratio", text, "peer", mismatch["sampling_peers"])


def _t_bcast(t_bcast: Mapping[str, Any]) -> Iterable[Metric]:
    quantiles = {quantile: t_bcast.get(key) for quantile, key in (("0.5", "p50"), ("0.95", "p95"))}
    known = {quantile: value for quantile, value in quantiles.items() if value is not None}
    yield _one_label(
        "rollcast_t_bcast_seconds",
        "Quantiles of T_bcast: seconds from announcement to the last active peer's verified copy.",
        "quantile",
        known,
    )
    if t_bcast.get("last") is not None:
        yield GaugeMetricFamily(
            "rollcast_t_bcast_last_seconds", "T_bcast of the newest version.", value=t_bcast["last"]
        )


def _one_label(name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _staleness(status: Mapping[str, Any]) -> Iterable[Metric]:
    """Return rollouts trained by age: ages are few integers, so a labelled counter is exact where buckets are not."""
    family = CounterMetricFamily("rollcast_staleness_trained", "Rollouts trained, by age in steps.", labels=["age"])
    for age, count in (status.get("staleness_histogram") or {}).items():
        family.add_metric([str(age)], count)
    yield family


def _rollouts(rollouts: Mapping[str, Any]) -> Iterable[Metric]:
    outcomes = CounterMetricFamily(
        "rollcast_rollouts", "Rollouts by outcome; turns: of episodes that went on.", labels=["outcome"]
    )
    for outcome in ("issued", "accepted", "trained", "turns"):
        outcomes.add_metric([outcome], rollouts.get(outcome, 0))
    yield outcomes
    yield GaugeMetricFamily(
        "rollcast_rollouts_open", "Rollouts issued and neither trained nor dropped.", value=rollouts.get("open", 0)
    )
    dropped = CounterMetricFamily("rollcast_rollouts_dropped", "Rollouts dropped, by reason.", labels=["reason"])
    for reason, count in (rollouts.get("dropped") or {}).items():
        dropped.add_metric([reason], count)
    yield dropped


def _episodes(episodes: Mapping[str, Any]) -> Iterable[Metric]:
    yield GaugeMetricFamily("rollcast_episodes_open", "Episodes that go on.", value=float(episodes.get("open", 0)))
    text = "Turns of episodes that were stored."
    yield CounterMetricFamily("rollcast_episode_turns", text, value=float(episodes.get("turns", 0)))
    text = "Failures of environments: they hung, died or raised an exception."
    yield CounterMetricFamily("rollcast_environment_failures", text, value=float(episodes.get("failures", 0)))
    ended = CounterMetricFamily("rollcast_episodes_ended", "Episodes stored, by what ended them.", labels=["end"])
    for end, count in (episodes.get("ended") or {}).items():
        ended.add_metric([end], count)
    yield ended
    anew = CounterMetricFamily("rollcast_episodes_begun_anew", "Episodes given up and begun anew.", labels=["reason"])
    for reason, count in (episodes.get("begun_anew") or {}).items():
        anew.add_metric([reason], count)
    yield anew


def _scoring(scoring: Mapping[str, Any]) -> Iterable[Metric]:
    failures = CounterMetricFamily("rollcast_scoring_failures", "Verdicts that are failures.", labels=["reason"])
    for reason, count in (scoring.get("failures") or {}).items():
        failures.add_metric([reason], count)
    yield failures
    yield GaugeMetricFamily(
        "rollcast_scoring_paused",
        "1 while scoring is paused because it fails.",
        value=float(bool(scoring.get("paused"))),
    )
    yield GaugeMetricFamily(
        "rollcast_scoring_waiting", "Rollouts stored and without a score.", value=float(scoring.get("waiting", 0))
    )


def _peers_by_state(found: Iterable[Mapping[str, Any]]) -> Metric:
    by_state = GaugeMetricFamily("rollcast_peers", "Peers by role and state.", labels=["role", "state"])
    for one in found:
        by_state.add_metric([str(one["role"]), str(one["state"])], one["count"])
    return by_state


def _peers(peers: Iterable[Mapping[str, Any]]) -> Iterable[Metric]:
    """Return the figures that distinguish a bad peer from the others; none in fleets beyond PEERS_LABELLED_MAX."""
    rows = list(peers)
    if len(rows) > broadcast_metrics.PEERS_LABELLED_MAX:
        return
    columns = (
        (
            GaugeMetricFamily,
            "rollcast_peer_version_lag_steps",
            "Newest version minus the peer's version.",
            "version_lag",
        ),
        (
            GaugeMetricFamily,
            "rollcast_peer_tokens_per_second",
            "Tokens per second that the peer generates.",
            "tokens_per_s",
        ),
        (
            GaugeMetricFamily,
            "rollcast_peer_swap_paused_seconds",
            "Seconds that the peer could not generate while it last exchanged the weights of its engine.",
            "swap_paused_s",
        ),
        (
            GaugeMetricFamily,
            "rollcast_peer_swap_moved_bytes",
            "Bytes that the peer then moved to its devices.",
            "swap_moved_bytes",
        ),
        (GaugeMetricFamily, "rollcast_cell_workers", "Connected workers of a cell that may work.", "cell_workers"),
        (GaugeMetricFamily, "rollcast_peer_last_seen_seconds", "Seconds since the peer's last message.", "last_seen_s"),
        (CounterMetricFamily, "rollcast_peer_rollouts_accepted", "Rollouts accepted from the peer.", "accepted"),
        (CounterMetricFamily, "rollcast_peer_rollouts_dropped", "Rollouts of the peer that were dropped.", "dropped"),
        (
            CounterMetricFamily,
            "rollcast_peer_chunk_bytes_sent",
            "Chunk bytes that the peer relayed.",
            "chunk_bytes_sent",
        ),
    )
    for cls, name, text, key in columns:
        family = cls(name, text, labels=["peer", "name"])
        for row in rows:
            if row.get(key) is not None:
                family.add_metric([row["peer_id"], row["name"]], float(row[key]))
        yield family
