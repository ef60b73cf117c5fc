"""Decide which rented workers to start and stop at their providers, and when.

The activation model decides which workers are wanted. The manager follows as far as the budget, failures and time
allow: it starts missing workers, drains and stops unwanted ones, retries with backoff, finds workers that an earlier
coordinator left running, and keeps the accounts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import assert_never

from capacity.fleet.accounts import FleetAccounts
from capacity.fleet.backoff import ProviderPatience, Uniform
from capacity.fleet.billing import Terms
from capacity.fleet.budget import Budget
from capacity.fleet.events import (
    AskOffers,
    BytesSent,
    DrainWorker,
    FleetEvent,
    LimitsChanged,
    ListFailed,
    ListWorkers,
    Note,
    OffersSeen,
    RecordMark,
    RunOver,
    Spent,
    StartFailed,
    StartSucceeded,
    StartWorker,
    StopFailed,
    StopSucceeded,
    StopWorker,
    Tick,
    WorkerJoined,
    WorkerLeft,
    WorkersListed,
    WorkersWanted,
)
from capacity.fleet.state import Actions, FleetSettings, Phase, Restored, Slot, WorkerView
from capacity.providers.base import Offer, Running, WorkerTag

STOP_RETRY_FIRST_S = 2.0
STOP_RETRY_MOST_S = 60.0
STOP_ANSWER_S = 1800.0  # an answer that has not come by then was lost
ENDED_KEPT_S = 3600.0
_COUNTS_AS_START: tuple[Phase, ...] = ("starting", "joining")
_GOING: tuple[Phase, ...] = ("draining", "stopping")


class FleetManager:
    """Start and stop rented workers; ``handle`` takes events and returns actions.

    ``now`` is Unix time in seconds and never falls. ``uniform`` is ``random.uniform`` of a seeded source.
    """

    QUEUED = "others are started first"
    """The reason in ``held_back`` of a worker that is started as soon as those before it are."""

    def __init__(self, settings: FleetSettings, restored: Restored, uniform: Uniform, now: float) -> None:
        self.settings = settings
        self._uniform = uniform
        self._accounts = FleetAccounts(settings.limits, restored, now)
        self._patience = ProviderPatience(settings.patience, uniform)
        self._slots = {
            str(one.tag): Slot(one.tag, one.provider, "unknown", now, away_since=now) for one in restored.opened
        }
        self._offers: dict[str, dict[str, Offer]] = {}
        self._wanted: WorkersWanted | None = None
        self._over = ""
        self._incarnations = dict(restored.incarnations)
        self._held_back: dict[str, str] = {}  # worker id -> why it is not started, in words
        self._failures: dict[str, str] = {}  # worker id -> why it failed last, until its next start
        self._ended_at: dict[str, float] = {}  # the last hour's: a list requested earlier may still have them
        self._started_at = now
        self._next_list = dict.fromkeys(settings.providers, now)
        self._next_offers = dict.fromkeys(settings.providers, now)

    # ---------------------------------------------------------------- questions

    @property
    def idle(self) -> bool:
        """Whether no worker of this run is known to be running anywhere."""
        return not self._slots

    @property
    def budget(self) -> Budget:
        """The budget, for reading only."""
        return self._accounts.budget

    @property
    def held_back(self) -> Mapping[str, str]:
        """Wanted workers that are not started now, with the reason."""
        return self._held_back

    @property
    def failures(self) -> Mapping[str, str]:
        """Workers that failed and have not been started since, with the reason."""
        return self._failures

    def failing(self, now: float) -> frozenset[str]:
        """Return the offered workers that are not started for a while because they or their provider failed."""
        workers = (offer.worker for offer in self.offers)
        return frozenset(one.worker_id for one in workers if self._patience.refusal(one.worker_id, one.provider, now))

    @property
    def offers(self) -> tuple[Offer, ...]:
        """Offers of all providers."""
        return tuple(offer for offers in self._offers.values() for offer in offers.values())

    def spent(self) -> dict[str, Spent]:
        """Return what each provider's workers have cost since the run began."""
        return self._accounts.spent()

    def workers(self) -> tuple[WorkerView, ...]:
        """Return every tag that has not ended."""
        return tuple(_view(slot, self.budget) for slot in self._slots.values())

    # ---------------------------------------------------------------- events

    def handle(self, event: FleetEvent, now: float) -> Actions:
        """Return the actions that the shell must carry out for this event, in this order."""
        self._accounts.pass_time(now)
        actions = self._dispatch(event, now)
        actions += self._keep_budget(now)
        return actions + self._reconcile(now)

    def _dispatch(self, event: FleetEvent, now: float) -> Actions:
        match event:
            case Tick():
                return self._tick(now)
            case BytesSent():
                for tag, sent_bytes in event.sent_bytes.items():
                    if str(tag) in self._slots:
                        self.budget.sent(str(tag), sent_bytes, now)
                return []
            case OffersSeen():
                self._offers[event.provider] = {one.worker.worker_id: one for one in event.offers}
                self._expect()
                return []
            case WorkersWanted():
                self._wanted = event
                self._expect()
                return []
            case RunOver():
                self._over = event.reason
                self._expect()
                return []
            case LimitsChanged(hourly, total):
                self.budget.limits = replace(self.budget.limits, usd_per_hour_max=hourly, usd_max=total)
                return []
            case WorkersListed():
                return self._listed(event, now)
            case ListFailed():
                return [Note("provider_silent", event.provider, event.reason)]
            case _:
                slot = self._slots.get(str(event.tag))
                return [] if slot is None else self._about(slot, event, now)

    def _about(
        self,
        slot: Slot,
        event: StartSucceeded | StartFailed | StopSucceeded | StopFailed | WorkerJoined | WorkerLeft,
        now: float,
    ) -> Actions:
        match event:
            case StartSucceeded():
                slot.where, slot.up_at = event.where, now
                if slot.phase == "starting":
                    slot.phase = "joining"  # its timeout runs from the start
                return []
            case StartFailed():
                return self._failed(slot, event.reason, now) if slot.phase == "starting" else []
            case StopSucceeded():
                return self._close(slot, now, now)
            case StopFailed():
                return self._stop_again(slot, event.reason, now)
            case WorkerJoined():
                return self._joined(slot, now)
            case WorkerLeft():
                return self._left(slot, now, finished=event.finished)
            case _:
                assert_never(event)

    def _expect(self) -> None:
        """Set the expected costs: of every wanted worker that is offered, at its planned or listed price."""
        planned = {} if self._wanted is None else self._wanted.forecast_usd_per_hour
        wanted = () if self._wanted is None or self._over else self._wanted.reasons
        found = {worker_id: offer.worker for worker_id in wanted if (offer := self._offer(worker_id)) is not None}
        self._accounts.expect(
            {worker_id: (one.provider, planned.get(worker_id, one.usd_per_hour)) for worker_id, one in found.items()}
        )

    # ---------------------------------------------------------------- one worker

    def _joined(self, slot: Slot, now: float) -> Actions:
        slot.away_since = None
        if slot.phase not in ("starting", "joining", "unknown"):
            return []
        slot.joined_at, slot.up_at = now, slot.up_at or now
        slot.enter("on", now)
        self._patience.joined(slot.provider)
        return [Note("worker_joined", slot.key, f"at {slot.provider}")]

    def _left(self, slot: Slot, now: float, *, finished: bool) -> Actions:
        slot.away_since = now
        if slot.phase == "draining":
            return self._stop(slot, now)
        if slot.phase == "on" and finished:
            return self._lost(slot, "its peer reported that it will not return", now)
        return []

    def _lost(self, slot: Slot, how: str, now: float) -> Actions:
        """Handle the loss of a wanted worker: it was preempted, switched off by its owner, or broke."""
        worked_s = 0.0 if slot.joined_at is None else now - slot.joined_at
        if worked_s < self.settings.stable_s:
            return self._failed(slot, f"{how} after {worked_s:.0f} s of work", now)
        self._patience.proved(slot.tag.worker_id)
        return [Note("worker_lost", slot.key, how), *self._stop(slot, now, how)]

    def _failed(self, slot: Slot, reason: str, now: float) -> Actions:
        """Back off from a worker, and from its provider after many failures, and stop whatever was started."""
        self._failures[slot.tag.worker_id] = reason
        rest = self._patience.failed(slot.tag.worker_id, slot.key, slot.provider, now)
        notes = [Note("worker_failed", slot.key, reason)]
        if rest:
            notes.append(Note("provider_rests", slot.provider, rest))
        return [*notes, *self._stop(slot, now, reason)]

    def _drain(self, slot: Slot, reason: str, now: float) -> Actions:
        """Let the worker finish first if it has a session; otherwise stop it."""
        self.budget.stop_wanted(slot.key, now)
        if slot.phase in _GOING:
            return []
        self._patience.called_off(slot.key, slot.provider)
        note = Note("worker_unwanted", slot.key, reason)
        if slot.phase != "on" or slot.away_since is not None:
            return [note, *self._stop(slot, now, reason)]
        slot.enter("draining", now, reason)
        return [note, DrainWorker(slot.tag, reason)]

    def _stop(self, slot: Slot, now: float, reason: str = "") -> Actions:
        self.budget.stop_wanted(slot.key, now)
        slot.enter("stopping", now, reason)
        slot.stop_due = None
        return [StopWorker(slot.tag, slot.provider)]

    def _stop_again(self, slot: Slot, reason: str, now: float) -> Actions:
        """Retry a stop, without limit: the worker costs money until it has ended."""
        ceiling_s = min(STOP_RETRY_MOST_S, STOP_RETRY_FIRST_S * 2.0 ** min(slot.stop_failures, 32))
        slot.stop_failures += 1
        slot.stop_due = now + self._uniform(ceiling_s / 2.0, ceiling_s)
        return [Note("stop_failed", slot.key, reason)]

    def _close(self, slot: Slot, ended_at: float, now: float) -> Actions:
        del self._slots[slot.key]
        self._ended_at = {key: at for key, at in self._ended_at.items() if at > now - ENDED_KEPT_S} | {slot.key: now}
        closed = self._accounts.close(slot.tag, ended_at)
        cost = f"it cost {closed.machine_usd + closed.egress_usd:.4g} $"
        return [closed, Note("worker_stopped", slot.key, f"{slot.reason}; {cost}")]

    # ---------------------------------------------------------------- what runs at a provider

    def _listed(self, event: WorkersListed, now: float) -> Actions:
        running = {str(one.tag): one for one in event.listing.running if one.tag.run_id == self.settings.run_id}
        actions: Actions = []
        for slot in [one for one in self._slots.values() if one.provider == event.provider]:
            found = running.pop(slot.key, None)
            if found is not None:
                actions += self._found(slot, found, now)
            elif slot.tag.worker_id not in event.listing.silent:
                actions += self._missed(slot, event.asked_at, now)
        for orphan in running.values():
            if self._ended_at.get(str(orphan.tag), -1.0) < event.asked_at:
                actions += self._stop_orphan(orphan, event.provider, now)
        return actions

    def _found(self, slot: Slot, found: Running, now: float) -> Actions:
        slot.where = found.where
        if slot.phase != "unknown":
            return []
        slot.up_at = now
        slot.enter("joining", now)
        return [Note("worker_adopted", slot.key, f"it runs: {found.where}")]

    def _missed(self, slot: Slot, asked_at: float, now: float) -> Actions:
        if slot.phase == "unknown":
            slot.reason = "it ended while no coordinator ran"
            return self._close(slot, self._accounts.missed_at(slot.tag, now), now)
        if slot.phase in ("joining", "on") and slot.up_at < asked_at:
            return self._lost(slot, "it ended by itself", now)
        return []

    def _stop_orphan(self, orphan: Running, provider: str, now: float) -> Actions:
        """Stop a worker of this run that no journal has.

        The journal was deleted, or the run was copied; the worker is paid for until it has ended.
        """
        worker_id, offer = orphan.tag.worker_id, self._offer(orphan.tag.worker_id)
        terms = Terms(usd_per_hour=0.0) if offer is None else Terms.of(offer)
        self._incarnations[worker_id] = max(orphan.tag.incarnation, self._incarnations.get(worker_id, 0))
        slot = Slot(orphan.tag, provider, "unknown", now, where=orphan.where, away_since=now)
        self._slots[slot.key] = slot
        return [
            self._accounts.open(slot.tag, provider, terms, min(now, orphan.started_unix_s or now)),
            Note("orphan_found", slot.key, f"it runs without an entry in the journal: {orphan.where}"),
            *self._stop(slot, now, "it has no entry in the journal"),
        ]

    # ---------------------------------------------------------------- time and money

    def _tick(self, now: float) -> Actions:
        actions: Actions = []
        for provider in self.settings.providers:
            if now >= self._next_offers[provider]:
                self._next_offers[provider] = now + self.settings.offers_every_s
                actions.append(AskOffers(provider))
            if now >= self._next_list[provider]:
                self._next_list[provider] = now + self.settings.list_every_s
                actions.append(ListWorkers(provider))
        for slot in list(self._slots.values()):
            actions += self._grow_old(slot, now)
        return [*actions, self._accounts.mark(now)] if self._accounts.mark_is_due(now) else actions

    def mark(self, now: float) -> RecordMark:
        """Return the action that records everything spent since the last mark, for shutdown."""
        self._accounts.pass_time(now)
        return self._accounts.mark(now)

    def _grow_old(self, slot: Slot, now: float) -> Actions:
        settings, age_s = self.settings, now - slot.since
        match slot.phase:
            case "starting" | "joining" if age_s >= settings.start_timeout_s:
                return self._failed(slot, f"it did not join within {settings.start_timeout_s:g} s", now)
            case "draining" if age_s >= settings.drain_timeout_s:
                return self._stop(slot, now)
            case "stopping" if now >= (slot.since + STOP_ANSWER_S if slot.stop_due is None else slot.stop_due):
                slot.stop_due, slot.since = None, now
                return [StopWorker(slot.tag, slot.provider)]
            case "on" if slot.away_since is not None and now - slot.away_since >= settings.leave_grace_s:
                return self._lost(slot, f"it was disconnected for {settings.leave_grace_s:g} s", now)
        return []

    def _keep_budget(self, now: float) -> Actions:
        actions = Actions()
        for key, reason in self.budget.overdue(now).items():
            actions += self._drain(self._slots[key], reason, now)
        return actions

    # ---------------------------------------------------------------- what is wanted

    def _reconcile(self, now: float) -> Actions:
        wanted = self._wanted_now(now)
        if wanted is None:
            return []
        kept: tuple[Phase, ...] = _GOING if self._over else (*_GOING, "unknown")
        actions: Actions = []
        for slot in list(self._slots.values()):
            if slot.tag.worker_id not in wanted and slot.phase not in kept:
                actions += self._drain(slot, self._over or "it is no longer wanted", now)
        taken = {slot.tag.worker_id for slot in self._slots.values()}
        for worker_id, reason in wanted.items():
            if worker_id not in taken:
                actions += self._start_if_possible(worker_id, reason, now)
        for worker_id in [one for one in self._held_back if one not in wanted]:
            del self._held_back[worker_id]
        return actions

    def _wanted_now(self, now: float) -> Mapping[str, str] | None:
        """Return the wanted workers; None while they are not known, so that running workers keep running."""
        if self._over:
            return {}
        if self._wanted is not None:
            return self._wanted.reasons
        return None if now - self._started_at < self.settings.wanted_grace_s else {}

    def _start_if_possible(self, worker_id: str, reason: str, now: float) -> Actions:
        offer = self._offer(worker_id)
        if offer is None:
            return self._hold_back(worker_id, "no provider offers it now")
        terms, provider = Terms.of(offer), offer.worker.provider
        under_way = sum(one.provider == provider and one.phase in _COUNTS_AS_START for one in self._slots.values())
        if under_way >= self.settings.starts_at_once:
            return self._hold_back(worker_id, self.QUEUED)
        refusal = self._patience.refusal(worker_id, provider, now) or self.budget.refusal(terms, now)
        return self._hold_back(worker_id, refusal) if refusal else self._start(worker_id, provider, terms, reason, now)

    def _hold_back(self, worker_id: str, why: str) -> Actions:
        """Report once that a worker is not started; again only after it was started or when the reason changes."""
        was, self._held_back[worker_id] = self._held_back.get(worker_id, ""), why
        is_news = was.partition(" ")[2] != why.partition(" ")[2]  # a leading figure may change all the time
        return [Note("worker_held_back", worker_id, why)] if is_news else []

    def _start(self, worker_id: str, provider: str, terms: Terms, reason: str, now: float) -> Actions:
        self._incarnations[worker_id] = self._incarnations.get(worker_id, 0) + 1
        tag = WorkerTag(self.settings.run_id, worker_id, self._incarnations[worker_id])
        self._held_back.pop(worker_id, None)
        self._failures.pop(worker_id, None)
        self._slots[str(tag)] = Slot(tag, provider, "starting", now, reason)
        self._patience.started(str(tag), provider)
        return [
            self._accounts.open(tag, provider, terms, now),
            Note("worker_started", str(tag), f"at {provider} for {terms.usd_per_hour:.4g} $/h: {reason}"),
            StartWorker(tag, provider),
        ]

    def _offer(self, worker_id: str) -> Offer | None:
        return next((offers[worker_id] for offers in self._offers.values() if worker_id in offers), None)


def _view(slot: Slot, budget: Budget) -> WorkerView:
    account = budget.accounts[slot.key]
    spent_usd, price, tag = account.machine_usd + account.egress_usd, account.terms.usd_per_hour, slot.tag
    return WorkerView(tag.worker_id, slot.key, slot.provider, slot.phase, slot.reason, slot.where, price, spent_usd)
