"""Switch peers on and off, by the operator's pins and by the capacity model from live measurements.

A peer on standby gets no new work, finishes the leases that it holds, and continues to receive versions where that is
cheap, so that it can start at once. Every switch has a reason in words, which is sent to the peer and stays in the
run's story. The programme is solved outside the event loop: the action PlanActivation requests it, and the event
ActivationPlanned brings the result, so that a replay of the record needs no solver.
"""

from __future__ import annotations

from dataclasses import dataclass

from capacity.model.workers import Worker
from capacity.replan.corrections import Corrections
from capacity.replan.events import Action as Replanned
from capacity.replan.events import (
    DemandSeen,
    Measured,
    Solve,
    Solved,
    SolveFailed,
    Start,
    Starving,
    Tick,
    WorkerGone,
    WorkerSeen,
)
from capacity.replan.events import Event as Replannable
from capacity.replan.replanning import Replanner
from coordinator.core.activation.pool import Assumed, demand_of, is_usable, learner_step_s, measure, price, worker_of
from coordinator.core.activation.status import ActivationStatus, PlannedSet
from coordinator.core.decisions.broadcasts import Broadcasts
from coordinator.core.decisions.issuing import issue
from coordinator.core.decisions.state import CoreState
from coordinator.core.events.actions import Action, Note, PlanActivation, SendAnnouncement, TellActivation, WantWorker
from coordinator.core.events.events import LearnedRestored, StandbyRestored, WorkersOffered
from coordinator.core.events.operator_events import PeerPinned, PricesChanged
from coordinator.core.members.census import Census, census_of
from coordinator.core.members.membership import Member
from coordinator.core.staleness.epochs import NEWEST_KEPT
from rollcast.wire.ids import PeerId

_OBSERVE_S = 1.0
_RECONNECT_S = 15.0  # time for peers to reconnect to a restarted coordinator; they dial every 5 s
_MEMBERS_OBSERVED_A_SECOND = 1000  # so that measuring takes a small share of the coordinator's time
_MEMBERS_OBSERVED_AT_ONCE = 512  # so that no other event waits for long
_MEASURED_LEAST_STEPS = 4  # fewest learner steps over which the rollouts of a set are counted
_LIMITED_SHARE = 0.05  # workers limit the run if the learner waited at more than this share of the measurements


class _Meter:
    """Counts the rollouts accepted since the last measurement. Times are the core's clock in seconds."""

    def __init__(self) -> None:
        self.running = False
        self._began_at = 0.0
        self._accepted = 0
        self._observations = self._limited = 0

    def begin(self, now: float, accepted: int) -> None:
        self.running, self._began_at, self._accepted, self._observations, self._limited = True, now, accepted, 0, 0

    def lasts_s(self, now: float) -> float:
        return now - self._began_at

    def observe(self, *, limited: bool) -> None:
        self._observations += 1
        self._limited += limited

    def measured(self, now: float, accepted: int, *, t_bcast_s: float | None, t_train_s: float | None) -> Measured:
        seconds = max(self.lasts_s(now), 1e-9)
        limited = self._limited > _LIMITED_SHARE * self._observations
        return Measured(seconds, (accepted - self._accepted) / seconds, limited, t_bcast_s, t_train_s)


@dataclass(slots=True)
class _Observation:
    """One measurement of every member, in progress."""

    members: list[Member]  # still to be measured
    assumed: Assumed
    idle: int = 0  # members measured so far that are on and could hold more slots


class Activation:
    """Connects the capacity model to membership and measurements."""

    def __init__(self, state: CoreState, broadcasts: Broadcasts) -> None:
        self._state = state
        self._broadcasts = broadcasts
        settings = state.settings.activation
        self._acts = settings.mode == "act"
        self._replanner = None if settings.mode == "off" else Replanner(settings.replan)
        self._observe_at = float("-inf")
        self._observation: _Observation | None = None
        self._reported: dict[PeerId, Worker] = {}
        self._meter = _Meter()
        self._switches = 0
        self._restored: tuple[PeerId, ...] = ()  # switched off before a restart, until the first plan
        self._restored_at = 0.0

    # ---------------------------------------------------------------- events

    def joined(self, peer_id: PeerId) -> list[Action]:
        """Inform a peer that opened a session if it is switched off."""
        off = self._state.members.reputation(peer_id).switched_off
        return [TellActivation(peer_id, False, off)] if off else []

    def restored(self, event: StandbyRestored, now: float) -> None:
        """Continue with the restored set until there is a plan; if the model does not act, every peer is on."""
        if not self._acts:
            return
        self._restored, self._restored_at = tuple(event.peers), now
        for peer_id, (reason, dark) in event.peers.items():
            reputation = self._state.members.reputation(peer_id)
            reputation.standby, reputation.dark = reason, dark

    def learned_restored(self, event: LearnedRestored, now: float) -> None:
        """Continue with what was learned before a restart."""
        if self._replanner is not None:
            self._replanner.corrections = event.corrections
            self._replanner.preemptions.restore(event.markets, now)

    def _replace_absent(self, now: float) -> list[Action]:
        """Switch restored peers on if all that were on have left and the learner waits: a plan needs a working peer."""
        state, replanner = self._state, self._replanner
        if replanner is None or replanner.plan is not None:
            self._restored = ()
            return []
        works = any(is_usable(one) and not one.reputation.standby for one in state.members)
        if works or state.batches.wanted is None or now - self._restored_at < _RECONNECT_S:
            return []
        peers, self._restored = self._restored, ()
        reason = "on: no peer that was on has reconnected"
        return [action for peer_id in peers for action in self._switch(peer_id, True, reason, now)]

    def observe_soon(self, now: float) -> None:
        """Measure everything with the next tick, because an operator gave an order."""
        self._observe_at = now

    def tick(self, now: float) -> list[Action]:
        """Measure the run if that is due."""
        replanner = self._replanner
        if replanner is None or self._state.ended or self._state.holds_work:
            return []
        back = self._replace_absent(now) if self._restored else []
        if now >= self._observe_at:
            return back + self._observe(now)
        return back + self._handle(Tick(), now) if now >= replanner.next_at else back

    def planned(self, solved: Solved, now: float) -> list[Action]:
        """Switch peers as the planner answered."""
        what = f"{solved.on} on for {solved.usd_per_hour:.4g} $/h, {solved.off} off"
        if solved.infeasible:
            what = f"no set of workers is sufficient: {'; '.join((solved.infeasible, *solved.remedies))}; {what}"
        return [Note("activation_planned", f"plan {solved.number}", what), *self._handle(solved, now)]

    def plan_failed(self, number: int, why: str, now: float) -> list[Action]:
        """Keep the set because the planner failed, and add peers if the set is too slow."""
        return [Note("activation_failed", f"plan {number}", why), *self._handle(SolveFailed(number, why), now)]

    def pinned(self, event: PeerPinned, now: float) -> list[Action]:
        """Pin one peer on or off, or unpin it, by the operator's order."""
        reputation = self._state.members.reputation(event.peer_id)
        reputation.pin = event.pin
        word = f"pinned {event.pin}" if event.pin else "left to the capacity model"
        actions: list[Action] = [Note("pinned", event.peer_id, word)]
        member = self._state.members.get(event.peer_id)
        if self._acts:
            return actions if member is None else actions + self._report(member, now)
        if event.pin == "off":
            return actions + self._switch(event.peer_id, False, "off: pinned by the operator", now)
        reason = "on: pinned by the operator" if event.pin else "on: no longer pinned off"
        actions += self._switch(event.peer_id, True, reason, now)
        if not event.pin:
            reputation.switched = ""  # a pin that is gone explains nothing later
        return actions

    def priced(self, event: PricesChanged, now: float) -> list[Action]:
        """Change the prices of peers, by the operator's order."""
        self._state.prices = event.prices
        self._observe_at = now
        return [Note("priced", "capacity", f"{len(event.prices)} prices")]

    def offered(self, event: WorkersOffered, now: float) -> None:
        """Take over the workers that providers offer now."""
        self._state.offers.replace(event.workers, event.backed, self._state.settings.activation)
        self._observe_at = now

    # ---------------------------------------------------------------- measurements

    def _observe(self, now: float) -> list[Action]:
        """Report peers and their speeds to the replanner, and the demand last; a large fleet takes several calls."""
        state, actions = self._state, list[Action]()
        demand = demand_of(state, now)
        if demand is None:
            return []
        observation = self._observation = self._observation or _Observation(list(state.members), Assumed(state))
        for _ in range(min(len(observation.members), _MEMBERS_OBSERVED_AT_ONCE)):
            member = observation.members.pop()
            if state.members.get(member.peer_id) is not member or not is_usable(member):
                continue
            holds = state.book.held_count(member.peer_id)
            observation.idle += not member.reputation.standby and holds < member.concurrent_rollouts
            actions += self._report(member, now, observation.assumed)
        if observation.members:
            return actions
        self._observation = None
        self._observe_at = now + max(_OBSERVE_S, len(state.members) / _MEMBERS_OBSERVED_A_SECOND)
        actions += self._report_offers(now) + self._handle(DemandSeen(demand), now)
        return actions + self._measure(now, limited=not observation.idle and state.batches.wanted is not None)

    def _report_offers(self, now: float) -> list[Action]:
        """Report the offered workers to the replanner after the peers, since a peer may be one of them.

        Workers reported before that are neither offered nor usable members now are reported as gone.
        """
        state, actions, offers = self._state, list[Action](), self._state.offers.workers
        for worker in offers.values():
            worker_id = PeerId(worker.worker_id)
            if self._reported.get(worker_id) != worker:
                self._reported[worker_id] = worker
                actions += self._handle(WorkerSeen(worker), now)
        for peer_id in [peer_id for peer_id in self._reported if peer_id not in offers]:
            member = state.members.get(peer_id)
            if member is None or not is_usable(member):
                was_peer = not self._reported.pop(peer_id).provider
                gone = WorkerGone(peer_id, "left, or may not work", preempted=was_peer and member is None)
                actions += self._handle(gone, now)
        return actions

    def _report(self, member: Member, now: float, assumed: Assumed | None = None) -> list[Action]:
        state = self._state
        measure(state, member, now)
        slots_per_s = member.reputation.slots_per_s
        if assumed is not None:
            nothing_to_do = now - member.joined_at >= state.settings.activation.replan.dwell_s
            slots_per_s = assumed.slots_per_s(member, had_nothing_to_do=nothing_to_do)
        worker = worker_of(state, member, state.prices, now, slots_per_s)
        if self._reported.get(member.peer_id) == worker:
            return []
        self._reported[member.peer_id] = worker
        return self._handle(WorkerSeen(worker), now)

    def _measure(self, now: float, *, limited: bool) -> list[Action]:
        """Measure the rollouts that the set of active peers makes, and report the result to the replanner.

        Unless the model acts nothing is measured: the active set is not the planned one, so its pace says nothing about
        the plan.
        """
        state, meter = self._state, self._meter
        if not self._acts:
            return []
        if not meter.running:
            meter.begin(now, state.accounts.accepted)
        meter.observe(limited=limited)
        actions: list[Action] = []
        if limited and state.forecast.learner_starves(now):
            actions += self._handle(Starving(), now)
        t_train_s = learner_step_s(state) or 0.0
        lasts_s = max(state.settings.activation.replan.interval_s, _MEASURED_LEAST_STEPS * t_train_s)
        if meter.lasts_s(now) >= lasts_s:
            t_bcast_s = state.dissemination.seconds.percentile(50)
            measured = meter.measured(now, state.accounts.accepted, t_bcast_s=t_bcast_s, t_train_s=None)
            actions += self._handle(measured, now)
            meter.begin(now, state.accounts.accepted)
        return actions

    # ---------------------------------------------------------------- switches

    def _handle(self, event: Replannable, now: float) -> list[Action]:
        if self._replanner is None:
            return []
        replanned = self._replanner.handle(event, now)
        actions = [action for one in replanned for action in self._carry_out(one, now)]
        if isinstance(event, Solved):
            self._give_reasons(event)
        return actions

    def _carry_out(self, replanned: Replanned, now: float) -> list[Action]:
        if isinstance(replanned, Solve):
            return [PlanActivation(replanned.problem)]
        worker_id = self._state.offers.worker_id(replanned.worker_id)
        wants: list[Action] = []
        if worker_id and self._acts:
            wants.append(WantWorker(worker_id, isinstance(replanned, Start), replanned.reason))
        if replanned.worker_id in self._state.offers.workers:
            return wants
        peer_id, reason, on = PeerId(replanned.worker_id), replanned.reason, isinstance(replanned, Start)
        if not self._acts and not self._state.members.reputation(peer_id).pin:
            self._state.members.reputation(peer_id).switched = f"advice: {reason}"
            return []
        receives = on or getattr(replanned, "receives", True)
        return wants + self._switch(peer_id, on, reason, now, receives=receives)

    def _give_reasons(self, solved: Solved) -> None:
        """Update the reasons of all peers in the plan, including peers that stay as they are."""
        for worker_id, reason in solved.reasons:
            if worker_id in self._state.offers.workers:
                continue
            reputation = self._state.members.reputation(PeerId(worker_id))
            if not self._acts:
                reputation.switched = f"advice: {reason}"
            elif reputation.standby:
                reputation.standby = reason
            else:
                reputation.switched = reason

    def _switch(self, peer_id: PeerId, on: bool, reason: str, now: float, *, receives: bool = True) -> list[Action]:
        """Switch a peer on or off and inform it; if it is in that state already, nothing happens."""
        state, reputation = self._state, self._state.members.reputation(peer_id)
        if on is not bool(reputation.standby):  # it is in that state already
            return []
        was_dark = reputation.dark
        reputation.standby, reputation.switched = ("", reason) if on else (reason, "")
        reputation.dark = not on and not self._receives(receives)
        self._switches += 1
        actions: list[Action] = [Note("activated" if on else "standby", peer_id, reason)]
        if state.members.get(peer_id) is None:
            return actions
        if not reputation.drained:  # a drained peer stays off whatever the model decides
            actions.append(TellActivation(peer_id, on, reason))
        state.members.changed([peer_id])
        if not on:
            state.dissemination.left(peer_id)
        if reputation.dark != was_dark:
            state.relay.discard(peer_id)
            actions += self._broadcasts.changed(now)
        if was_dark and not reputation.dark:
            actions += [SendAnnouncement((peer_id,), version) for version in state.announced.latest(NEWEST_KEPT)]
        return actions + issue(state, now)

    def _receives(self, is_cheap: bool) -> bool:
        wanted = self._state.settings.activation.standby_receives
        return is_cheap if wanted == "cheap" else wanted == "always"

    # ---------------------------------------------------------------- questions

    @property
    def corrections(self) -> Corrections | None:
        """The learned factors measured / predicted; None if the capacity model is off."""
        return None if self._replanner is None else self._replanner.corrections

    @property
    def learned(self) -> LearnedRestored:
        """What a restarted coordinator resumes with; empty if the capacity model is off."""
        replanner = self._replanner
        if replanner is None:
            return LearnedRestored()
        return LearnedRestored(replanner.preemptions.seen(), replanner.corrections)

    def status(self, census: Census | None = None) -> ActivationStatus:
        """Return the decisions of the capacity model, for people. ``census``: of the members now, if it is known."""
        census = census or census_of(self._state.members)
        on = census.peers_on
        replanner = self._replanner
        factors = (1.0, 1.0, 1.0)
        if replanner is not None:
            corrections = replanner.corrections
            factors = (corrections.rate, corrections.t_bcast, corrections.t_train)
        return ActivationStatus(
            self._state.settings.activation.mode,
            len(on),
            census.peers_on_standby,
            sum(self._price(member) for member in on) if self._state.prices or self._state.offers.backed else 0.0,
            self._switches,
            None if replanner is None or replanner.plan is None else _planned_set(replanner.plan),
            "" if replanner is None else replanner.failed,
            *factors,
            self._state.budget.usd_per_hour_max,
            self._state.budget.usd_total_max,
        )

    def _price(self, member: Member) -> float:
        state = self._state
        return (state.offers.price_of(member.peer_id) or price(state.prices, member)).usd_per_hour


def _planned_set(solved: Solved) -> PlannedSet:
    return PlannedSet(**{name: getattr(solved, name) for name in PlannedSet.__slots__})
