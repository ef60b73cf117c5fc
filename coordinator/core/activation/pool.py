"""Describe the run to the capacity model: peers and the learner's demand, from what was measured so far."""

from __future__ import annotations

from collections.abc import Sequence

from capacity.model.demand import NOTICE_S, Conduct, Demand
from capacity.model.topologies import Topology
from capacity.model.workers import Speed, Worker
from coordinator.core.decisions.state import CoreState
from coordinator.core.events.prices import Price, price_of
from coordinator.core.members.membership import Member

_NEW_SHARE = 0.3  # weight of a new measurement of a peer's speed: rollouts vary more than machines do
_STEPS_TIMED_LEAST = 4
_ALIKE = 0.75  # share of another peer's speed above which waiting for work explains the difference
_JUMP = 2.0  # a speed that changed by this factor is taken as measured, without smoothing
_LENGTH_QUANTILES = 100  # the measured lengths are too few for more
_SPREAD_UNKNOWN = 1.5  # assumed p90 of a rollout's duration over the mean, before anything was measured


def is_usable(member: Member) -> bool:
    """Whether a member can be switched on at all."""
    resting = member.facts is not None and member.facts.state in ("draining", "paused")
    reputation = member.reputation
    return member.role == "peer" and not (reputation.quarantined or reputation.drained or reputation.banned or resting)


def measure(state: CoreState, member: Member, now: float) -> None:
    """Blend in the newest measurement of a member's speed; without one the known speed stays."""
    per_s = state.forecast.slots_per_s(member.peer_id, now)
    is_new = now - member.joined_at < state.settings.activation.replan.dwell_s
    if not per_s or (is_new and not state.forecast.is_settled(member.peer_id)):
        return
    known = member.reputation.slots_per_s
    jumps = not known or not 1.0 / _JUMP < per_s / known < _JUMP
    member.reputation.slots_per_s = per_s if jumps else known + _NEW_SHARE * (per_s - known)


def measured_slots_per_s(state: CoreState, member: Member, now: float) -> float:
    """Return a member's speed in slots per second as the planner keeps it, or as it was measured lately; 0 if neither.

    Where the planner is off, nothing keeps speeds, and the newest measurements are all there is.
    """
    return member.reputation.slots_per_s or state.forecast.slots_per_s(member.peer_id, now) or 0.0


def price(prices: Sequence[Price], member: Member) -> Price:
    """Return the price of a member."""
    return price_of(prices, peer_id=member.peer_id, name=member.name, hardware=member.hardware, region=member.region)


class Assumed:
    """Assumes speeds for peers that had little to do: that of the slowest active peer with the same hardware.

    A peer that waits for work between its batches makes less than it can, so its own measurement would be too low.
    """

    def __init__(self, state: CoreState) -> None:
        self._least: dict[str, float] = {}  # slots a second for each concurrent rollout, by hardware
        for member in state.members:
            per_s = member.reputation.slots_per_s
            if per_s and member.role == "peer" and not member.reputation.standby:
                each = per_s / max(1, member.concurrent_rollouts)
                self._least[member.hardware] = min(each, self._least.get(member.hardware, each))

    def slots_per_s(self, member: Member, *, had_nothing_to_do: bool) -> float:
        """Return the speed to assume for a peer, in slots per second; 0 if it is not known.

        A measured peer has its own speed, or on standby that of active peers like it if it was not much slower. A peer
        without a measurement has the speed of others only after it had nothing to do for a while.
        """
        known, at_once = member.reputation.slots_per_s, max(1, member.concurrent_rollouts)
        like_it = self._least.get(member.hardware, 0.0) * at_once
        if known:
            alike = member.reputation.standby and known >= _ALIKE * like_it
            return max(known, like_it) if alike else known
        if not had_nothing_to_do:
            return 0.0
        return like_it or min(self._least.values(), default=0.0) * at_once


def worker_of(state: CoreState, member: Member, prices: Sequence[Price], now: float, slots_per_s: float) -> Worker:
    """Return a member as the planner sees a worker; it has no speeds if ``slots_per_s`` is 0, which is not known."""
    costs = state.offers.price_of(member.peer_id) or price(prices, member)
    settings = state.settings.activation
    link = state.links.estimate(member.peer_id, now, upload_cap_bytes_per_second=member.upload_cap_bytes_per_second)
    upload = link.uplink_bytes_per_second or settings.unknown_upload_bytes_per_second
    return Worker(
        worker_id=member.peer_id,
        speeds=_speeds(state, member, slots_per_s),
        usd_per_hour=costs.usd_per_hour,
        upload_bytes_per_second=upload,
        download_bytes_per_second=link.downlink_bytes_per_second or settings.unknown_download_bytes_per_second,
        egress_usd_per_gb=costs.egress_usd_per_gb,
        relays=member.may_relay and not member.metered,
        preemptions_per_hour=costs.preemptions_per_hour,
        lost_per_preemption_s=state.settings.lease_deadline_s,
        name=member.name,
        hardware=member.hardware,
        region=member.region,
        active=not member.reputation.standby,
        pin=member.reputation.pin,
    )


def _speeds(state: CoreState, member: Member, slots_per_s: float) -> tuple[Speed, ...]:
    """Return a member's speed in whole rollouts: one that plays episodes fills a slot once for each of its turns."""
    at_once, forecast = max(1, member.concurrent_rollouts), state.forecast
    if not slots_per_s:
        return ()
    per_s = slots_per_s / forecast.own_turns
    mean_s = at_once / per_s
    p90_s = forecast.episode_p90_s() or mean_s * (forecast.spread(0.9) or _SPREAD_UNKNOWN)
    return (Speed(at_once, per_s, p90_s, mean_s),)


def learner_step_s(state: CoreState) -> float | None:
    """Return T_train, the seconds of a step without waiting for a batch, or of a whole step if that is shorter.

    It is None in the first steps, which compile: a learner that seems slow would be given too few peers.
    """
    if state.forecast.steps_timed < _STEPS_TIMED_LEAST:
        return None
    known = [one for one in (state.forecast.learner_s, state.forecast.step_period_s) if one]
    return min(known, default=None)


def conduct_of(state: CoreState) -> Conduct:
    """Return how the run is operated: its rules, and the publishing time as it was measured.

    What rollouts in flight do at a new version is left at "continue", which costs nothing here: a peer's measured speed
    is over whole turnarounds, so that it contains what swaps and the drains of "finish" cost.
    """
    settings = state.settings
    return Conduct(
        samples_per_group=settings.samples_per_group,
        lead_margin_steps=settings.lead_margin_steps,
        prefetch_batches=settings.prefetch_batches,
        prefetch_s=settings.prefetch_s,
        t_publish_s=state.ages.publish_s() or 0.0,
        t_notice_s=NOTICE_S,
        reconnect_grace_s=settings.reconnect_grace_s,
    )


def demand_of(state: CoreState, now: float) -> Demand | None:
    """Return the learner's demand; None before a step was timed and a version announced."""
    settings, t_train_s, broadcast = state.settings.activation, learner_step_s(state), state.dissemination.newest
    if not t_train_s or broadcast is None:
        return None
    sizes = [one.size_bytes for one in broadcast.encodings]
    update_bytes = broadcast.bytes_per_peer or (float(min(sizes)) if sizes else 0.0)
    origin = state.members.origin
    uplink = None if origin is None else state.links.uplink(origin.peer_id, now)[0]
    rollouts = state.settings.groups_per_step * state.settings.samples_per_group
    return Demand(
        rollouts_per_step=max(1, round(rollouts * state.usefulness.groups_per_useful_one)),
        t_train_s=t_train_s,
        staleness_limit=state.rules.limit,
        publish_every_steps=state.rules.publish_every_steps,
        update_bytes=update_bytes,
        learner_upload_bytes_per_second=uplink or settings.unknown_download_bytes_per_second,
        learner_egress_usd_per_gb=settings.origin_egress_usd_per_gb,
        topology=Topology("stripes", max(1, state.settings.plan_shape.stripes)),
        t_score_s=state.forecast.scoring_s(0.5) or 0.0,
        headroom=settings.headroom,
        share_without_a_region=settings.share_without_a_region,
        usd_per_hour_max=state.budget.usd_per_hour_max,
        learner_usd_per_hour=settings.learner_usd_per_hour,
        conduct=conduct_of(state),
        length_quantiles=state.forecast.length_quantiles(_LENGTH_QUANTILES),
    )
