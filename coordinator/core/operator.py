"""Carry out the operator's orders: drain, ban and enable peers, change S, kappa and the budget, pause and end the run.

A drained peer finishes its leases, gets no new work and does not relay: its children get another parent with the next
plan. It continues to receive versions, so that enabling it takes effect at once. A banned peer's leases go to other
peers, its session ends, and its identity is rejected from then on. Rollouts that either of them delivered before are
still trained on.
"""

from __future__ import annotations

from typing import assert_never

from coordinator.core.activation.activation import Activation
from coordinator.core.decisions import evaluating
from coordinator.core.decisions.broadcasts import Broadcasts
from coordinator.core.decisions.issuing import issue
from coordinator.core.decisions.rollouts import drop_stale, form_batch
from coordinator.core.decisions.state import CoreState
from coordinator.core.events.actions import (
    Action,
    LiftQuarantine,
    Note,
    RecordVersionsKept,
    SetBudget,
    TellActivation,
)
from coordinator.core.events.operator_events import (
    BudgetChanged,
    Order,
    PeerBanned,
    PeerDrained,
    PeerEnabled,
    PeerPinned,
    PricesChanged,
    PublishPeriodChanged,
    RunFinishing,
    RunPaused,
    RunResumed,
    StalenessLimitChanged,
)
from coordinator.core.events.prices import Budget
from coordinator.core.presence import Presence, refused, told


class Operator:
    """Carries out the operator's orders in the core."""

    def __init__(self, state: CoreState, broadcasts: Broadcasts, presence: Presence, activation: Activation) -> None:
        self._state = state
        self._broadcasts = broadcasts
        self._presence = presence
        self._activation = activation

    def ordered(self, order: Order, now: float) -> list[Action]:
        """Carry out one order; repeating it changes nothing."""
        match order:
            case PeerPinned():
                return self._activation.pinned(order, now)
            case PeerDrained():
                return self._drained(order, now)
            case PeerBanned():
                return self._banned(order, now)
            case PeerEnabled():
                return self._enabled(order, now)
            case PricesChanged():
                return self._activation.priced(order, now)
            case StalenessLimitChanged():
                return self._limit_changed(order, now)
            case PublishPeriodChanged():
                return self._period_changed(order, now)
            case BudgetChanged():
                return self._budget_changed(order, now)
            case RunPaused():
                return self._paused(order)
            case RunResumed():
                return self._resumed(order, now)
            case RunFinishing():
                return self._finishing(order, now)
            case _:
                assert_never(order)

    # ---------------------------------------------------------------- the run

    def _paused(self, order: RunPaused) -> list[Action]:
        """Give out no more work and form no batch. Work in progress is finished and kept: no step makes it older."""
        state = self._state
        if state.paused or state.last_step is not None:
            return []
        state.paused = _in_words("paused", order.reason)
        return [Note("paused", "run", state.paused)]

    def _resumed(self, order: RunResumed, now: float) -> list[Action]:
        state = self._state
        if not state.paused:
            return []
        state.paused = ""
        self._activation.observe_soon(now)
        note = Note("resumed", "run", _in_words("resumed", order.reason))
        return [note, *form_batch(state, now), *issue(state, now)]

    def _finishing(self, order: RunFinishing, now: float) -> list[Action]:
        """Form no batch from this step on: the learner finishes instead of waiting for it."""
        state = self._state
        if state.last_step is not None:
            return []
        state.paused, state.last_step = "", max(order.last_step, state.batches.next_step)
        state.batches.wanted = None
        state.late_wait.cancel(now)
        words = _in_words("ended", order.reason)
        return [Note("finishing", "run", f"{words}; the learner finishes after step {state.last_step}")]

    # ---------------------------------------------------------------- peers

    def _drained(self, order: PeerDrained, now: float) -> list[Action]:
        state, reputation = self._state, self._state.members.reputation(order.peer_id)
        before, reputation.drained = reputation.drained, _in_words("drained", order.reason)
        reputation.name = reputation.name or order.name
        if before == reputation.drained:
            return []
        actions: list[Action] = [Note("drained", order.peer_id, reputation.drained)]
        member = state.members.get(order.peer_id)
        if member is None or reputation.kept_out:
            return actions
        actions.append(TellActivation(order.peer_id, False, reputation.drained))
        if before:
            return actions
        state.members.changed([order.peer_id])
        state.dissemination.left(order.peer_id)
        self._activation.observe_soon(now)
        return actions + self._broadcasts.changed(now) + issue(state, now)

    def _banned(self, order: PeerBanned, now: float) -> list[Action]:
        state, reputation = self._state, self._state.members.reputation(order.peer_id)
        before, reputation.name = reputation.banned, reputation.name or order.name
        member = state.members.get(order.peer_id)
        reputation.invite = order.invite or reputation.invite
        reason = _in_words("banned with its invite" if order.invite else "banned", order.reason)
        if before == reason:
            return []
        actions: list[Action] = [Note("banned", order.peer_id, reason)]
        state.partials.discard(order.peer_id)
        actions += state.close_attempts(state.book.held_by(order.peer_id), "revoked", notify_peers=member is not None)
        actions += evaluating.dismissed(state, order.peer_id)
        if member is not None:
            actions += self._presence.dismissed(order.peer_id, reason, now)
            actions.append(refused(order.peer_id, reason))
        reputation.banned = reason
        self._activation.observe_soon(now)
        return actions + issue(state, now)

    def _enabled(self, order: PeerEnabled, now: float) -> list[Action]:
        state = self._state
        undone = state.members.enable(order.peer_id)
        here = state.members.get(order.peer_id)
        state.audit.pardon(order.peer_id, "" if here is None else here.invite)
        if not undone:
            return []
        detail = f"no longer {undone}"
        actions: list[Action] = [
            Note("enabled", order.peer_id, f"{detail}: {order.reason}" if order.reason else detail)
        ]
        if "quarantined" in undone:
            actions.append(LiftQuarantine(order.peer_id))
        self._activation.observe_soon(now)
        member = state.members.get(order.peer_id)
        if member is None:
            return actions
        actions.append(told(state, order.peer_id))
        standby = member.reputation.standby
        actions.append(TellActivation(order.peer_id, not standby, standby or "on: enabled by the operator"))
        return actions + self._broadcasts.changed(now) + issue(state, now)

    # ---------------------------------------------------------------- rules

    def _limit_changed(self, order: StalenessLimitChanged, now: float) -> list[Action]:
        """Change S: groups that are too old for it now are dropped, and the set of active peers is planned again."""
        state, rules = self._state, self._state.rules
        before, kept = rules.limit, rules.kept
        rules.change_limit(order.staleness_limit, state.batches.next_step)
        self._activation.observe_soon(now)
        detail = f"S is {order.staleness_limit} instead of {before}"
        noted: list[Action] = []
        if rules.kept != kept:
            detail += f"; versions from {rules.kept.oldest} on are kept for it"
            noted.append(RecordVersionsKept(rules.kept))
        noted.append(Note("staleness_limit", "capacity", detail))
        return noted + drop_stale(state) + issue(state, now)

    def _period_changed(self, order: PublishPeriodChanged, now: float) -> list[Action]:
        """Change kappa, which the learner receives with its next batch."""
        state = self._state
        before = _period(state.rules.rules.publish_every_steps)
        state.rules.change_period(order.publish_every_steps)
        self._activation.observe_soon(now)
        after = _period(order.publish_every_steps)
        return [Note("publish_every_steps", "capacity", f"kappa is {after} instead of {before}"), *issue(state, now)]

    def _budget_changed(self, order: BudgetChanged, now: float) -> list[Action]:
        state, budget = self._state, order.budget
        before, state.budget = state.budget, budget
        self._activation.observe_soon(now)
        detail = f"{_limits(budget)} instead of {_limits(before)}"
        return [Note("budget", "capacity", detail), SetBudget(budget.usd_per_hour_max, budget.usd_total_max)]


def _in_words(what: str, reason: str) -> str:
    return f"{what} by the operator: {reason}" if reason else f"{what} by the operator"


def _period(publish_every_steps: int) -> str:
    return str(publish_every_steps) if publish_every_steps else "auto"


def _limits(budget: Budget) -> str:
    hourly, total = budget.usd_per_hour_max, budget.usd_total_max
    an_hour = "no hourly limit" if hourly is None else f"{hourly:g} $/h"
    return f"{an_hour} and {'no total limit' if total is None else f'{total:g} $ in total'}"
