"""Model a fleet: workers that generate rollouts, groups that fill batches, versions that take time to arrive.

The model has only what decides how long a rollout waits: batches generated together, copies of versions, swaps between
batches, the coordinator's pacing (capacity/model/pacing.py), scoring as a delay, preemptions. Random numbers come from
a hash, so that the same fleet gives the same figures. docs/capacity-prediction.md derives it and lists the omissions.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from typing import Any

from capacity.model.demand import Conduct, Demand
from capacity.model.pacing import Pace
from capacity.model.slot_times import Draws
from capacity.predict.book import Book, group_number
from capacity.predict.fleet_parts import Counts, Group, Measured, ModelWorker, Slot

_BURST_S = 0.02  # seconds that a batch which is not full waits for leases of the same burst
_GROUPS_TRIED = 8
_MOMENT_S = 1e-6


class FleetModel:
    """One fleet on a clock of its own.

    Args:
        workers: as fleet_parts describes them.
        seed: seed of lengths and preemptions.
    """

    def __init__(self, demand: Demand, conduct: Conduct, workers: Sequence[ModelWorker], seed: int = 0) -> None:
        self._demand, self._conduct, self._workers = demand, conduct, workers
        self._per_group = max(1, min(conduct.samples_per_group, demand.rollouts_per_step))
        self._groups_per_step = max(1, round(demand.rollouts_per_step / self._per_group))
        self._pace = Pace(demand.t_score_s, self._per_group)
        self._of_use = math.inf  # open and ready groups that keep the learner busy
        self._draws = Draws(seed)
        self._now = 0.0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = 0
        self._book = Book()
        self._ready: list[Group] = []  # oldest first
        self._line: dict[int, ModelWorker] = {}  # workers that can take slots, by number
        self._asking: dict[int, ModelWorker] = {}  # those of the line that are not set aside, in the same order
        self._clock_s = 0.0  # virtual time of the worker that was served last
        self._step = 0  # the next batch's
        self._wanted = True
        self._steps_done, self._stepped_at = 0, 0.0
        self._newest = 0  # newest published version
        self._newest_announced = -1
        self._publishing_until = 0.0
        self._missing: dict[int, tuple[float, set[int]]] = {}
        self._trained = self._dropped = self._age_steps = 0
        self._ended_before = (0, 0)
        self._t_bcast_s: list[float] = []
        for worker in workers:
            worker.prefetches(conduct)
            if worker.lives_s is not None:
                self._after(-worker.lives_s * math.log(self._draws.uniform()), self._preempted, worker)

    def measure(self, warm_up_steps: int, steps: int) -> Measured:
        """Run on for so many steps' time, then count for so many more.

        A step's time is one without a wait, so that the model ends even where the learner waits for ever; then fewer
        steps are counted.
        """
        if self._order == 0 or self._now == 0.0:
            self._after(0.0, self._announce, 0)
        train_s = self._demand.t_train_s
        self._run(self._now + warm_up_steps * train_s)
        counted_from, before = self._now, self._counts()
        self._run(self._now + steps * train_s)
        now = self._counts()
        unmoved_s = (self._now - counted_from) * (now.steps_done == before.steps_done)
        return Measured(
            seconds=max(now.stepped_at - before.stepped_at, unmoved_s),
            train_s=(now.steps_done - before.steps_done) * train_s,
            trained=now.trained - before.trained,
            dropped=now.dropped - before.dropped,
            age_steps=now.age_steps - before.age_steps,
            t_bcast_s=self._t_bcast_s[before.versions :],
        )

    def _counts(self) -> Counts:
        return Counts(
            self._stepped_at, self._steps_done, self._trained, self._dropped, self._age_steps, len(self._t_bcast_s)
        )

    def _after(self, seconds: float, do: Callable[..., None], *arguments: Any) -> None:
        self._order += 1
        heappush(self._events, (self._now + seconds, self._order, do, arguments))

    def _run(self, until: float) -> None:
        events = self._events
        while events and events[0][0] <= until:
            self._now, _, do, arguments = heappop(events)
            do(*arguments)
        self._now = until

    # ---------------------------------------------------------------- the learner

    def _ask(self) -> None:
        self._wanted = True
        self._drop_stale()
        self._find_of_use()
        if not self._form():
            self._pace.waits(self._now)
            self._after(max(0.0, self._pace.starves_at() - self._now), self._moved)
        self._moved()

    def _form(self) -> bool:
        """Form the wanted batch, if enough groups are ready."""
        count, limit = self._groups_per_step, self._demand.staleness_limit
        if not self._wanted or len(self._ready) < count:
            return False
        urgent_first = sorted(self._ready, key=lambda group: not group.too_old(self._step + 1, limit))
        for group in urgent_first[:count]:
            self._age_steps += self._per_group * self._step - group.versions
            self._trained += self._per_group
            self._remove(group)
        self._wanted = False
        self._pace.group_yield.ended(count, in_time=True)
        trained, dropped = self._ended_before
        self._pace.formed(self._now, self._trained - trained, self._dropped - dropped)
        self._ended_before = (self._trained, self._dropped)
        self._step += 1
        self._drop_stale()
        self._find_of_use()
        self._after(self._demand.t_train_s, self._trained_one)
        return True

    def _trained_one(self) -> None:
        """End a learner step: publish its version and ask for the next batch."""
        self._steps_done, self._stepped_at, wait_s = self._step, self._now, 0.0
        if self._step - self._newest >= self._demand.publish_every_steps:
            wait_s = max(0.0, self._publishing_until - self._now)
            self._newest = self._step
            self._publishing_until = self._now + wait_s + self._conduct.t_publish_s
            self._after(wait_s + self._conduct.t_publish_s, self._announce, self._step)
        self._after(wait_s, self._ask)

    def _find_of_use(self) -> None:
        self._of_use = self._pace.groups_of_use(self._groups_per_step, self._conduct.lead_margin_steps)

    def _drop_stale(self) -> None:
        limit = self._demand.staleness_limit
        for group in [group for group in self._book.groups if group.too_old(self._step, limit)]:
            if group.unfilled:
                self._pace.group_yield.ended(1, in_time=False)
            self._dropped += self._per_group - len(group.vacant)
            self._remove(group)
            self._revoke(group)

    def _revoke(self, group: Group) -> None:
        """Revoke the leases of a group that was dropped: its workers learn of it a message later.

        The coordinator measures those that have delivered nothing as at least as slow as they were so far
        (Forecast.gave_up).
        """
        for worker in self._workers:
            held = [slot for slot in (*worker.running, *worker.waiting) if slot.group is group]
            for slot in held:
                so_far_s = self._now - slot.issued_at
                if so_far_s > self._pace.typical_s(worker.per_s, slot.load):
                    worker.gave_up(slot.load, so_far_s, self._pace.usual_tokens)
            if held:
                self._after(self._conduct.t_notice_s, self._revoked, worker, group)

    def _revoked(self, worker: ModelWorker, group: Group) -> None:
        worker.gives_up(group, running=not self._conduct.whole_batches)
        self._begin(worker)
        self._after(self._conduct.t_turn_s, self._asks, worker)

    def _remove(self, group: Group) -> None:
        self._book.remove(group)
        if group in self._ready:
            self._ready.remove(group)

    # ---------------------------------------------------------------- versions

    def _announce(self, version: int) -> None:
        self._newest_announced = version
        self._missing[version] = (self._now, {worker.number for worker in self._workers if not worker.away})
        for worker in self._workers:
            if not worker.away:
                self._receive(worker, version)

    def _receive(self, worker: ModelWorker, version: int) -> None:
        if version > worker.held and worker.announced(version, self._now):
            self._after(worker.copy_s, self._held, worker, version)

    def _held(self, worker: ModelWorker, version: int) -> None:
        if worker.receiving != version:
            return
        following = worker.following
        worker.stop_receiving(self._now)
        self._receive(worker, following)
        worker.held = version
        self._recall([worker])
        self._pace.came(self._step - 1 - version, self._now)
        self._no_longer_missing(worker, version)
        self._queue(worker)
        self._after(self._demand.t_load_s, self._loaded, worker, version)
        self._issue()

    def _no_longer_missing(self, worker: ModelWorker, version: int) -> None:
        for watched in [one for one in self._missing if one <= version]:
            announced_at, missing = self._missing[watched]
            missing.discard(worker.number)
            if not missing:
                del self._missing[watched]
                self._t_bcast_s.append(self._now - announced_at)

    def _loaded(self, worker: ModelWorker, version: int) -> None:
        worker.loaded = max(worker.loaded, version)
        self._queue(worker)
        self._begin(worker)
        self._issue()

    # ---------------------------------------------------------------- workers

    def _begin(self, worker: ModelWorker) -> None:
        """Start waiting slots as far as they fit into the batch; an idle worker swaps versions first if it can."""
        if worker.away or (not worker.waiting and worker.loaded <= worker.active):
            return
        swap_s = 0.0
        if worker.loaded > worker.active and (self._conduct.at_version_swap != "finish" or not worker.running):
            worker.active, swap_s = worker.loaded, worker.swap_s if worker.running else self._demand.t_swap_s
            worker.swapped_s += swap_s * bool(worker.running)
        if worker.running and (self._conduct.whole_batches or worker.loaded > worker.active):
            return
        self._start(worker, worker.take(worker.concurrency - len(worker.running)), swap_s)

    def _start(self, worker: ModelWorker, slots: list[Slot], delay_s: float) -> None:
        if not slots:
            return
        worker.running |= dict.fromkeys(slots)
        stopped_s = self._stopped_s(worker)
        if self._conduct.whole_batches:
            longest_s = max(delay_s + worker.slot_s(slot.length) for slot in slots)
            self._after(longest_s, self._finished, worker, worker.life, slots, stopped_s)
            return
        for slot in slots:
            seconds = delay_s + worker.slot_s(slot.length)
            self._after(seconds, self._finished, worker, worker.life, (slot,), stopped_s)

    def _finished(self, worker: ModelWorker, life: int, slots: Sequence[Slot], stopped_before_s: float) -> None:
        if life != worker.life:
            return
        stopped_s = self._stopped_s(worker)
        if stopped_s - stopped_before_s > _MOMENT_S:  # generation was stopped that long
            self._after(stopped_s - stopped_before_s, self._finished, worker, life, slots, stopped_s)
            return
        running = worker.running
        ended = [slot for slot in slots if slot in running]
        if not ended:  # their group was dropped, and their leases revoked
            return
        for slot in ended:
            del running[slot]
            self._fill(worker, slot)
        if running:
            self._begin(worker)
        elif worker.waiting:
            self._after(self._conduct.t_turn_s + _BURST_S, self._begin, worker)
        self._after(self._conduct.t_turn_s, self._asks, worker)

    def _stopped_s(self, worker: ModelWorker) -> float:
        """Return the total seconds for which what the worker runs made no progress: swaps, and pauses to receive."""
        received_s = worker.received_s(self._now) if self._demand.pauses_while_receiving else 0.0
        return worker.swapped_s + received_s

    def _asks(self, worker: ModelWorker) -> None:
        self._queue(worker)
        self._issue()

    def _fill(self, worker: ModelWorker, slot: Slot) -> None:
        group = slot.group
        if group.over:
            return
        if self._step - slot.version > self._demand.staleness_limit:
            self._dropped += 1
            self._book.vacate(slot)
            return
        turnaround_s, tokens = self._now - slot.issued_at, worker.tokens(slot.length)
        self._pace.answered(worker.per_s, slot.load, turnaround_s, tokens)
        worker.answered(slot.load, turnaround_s, tokens, self._pace.usual_tokens)
        group.oldest = slot.version if group.oldest is None else min(group.oldest, slot.version)
        group.versions += slot.version
        group.unfilled -= 1
        if not group.unfilled:
            self._after(self._demand.t_score_s, self._scored, group)

    def _scored(self, group: Group) -> None:
        if group.over:
            return
        insort(self._ready, group, key=group_number)
        if self._form():
            self._moved()

    def _preempted(self, worker: ModelWorker) -> None:
        """Preempt a worker: its work is lost, and it is away for ``away_s``."""
        assert worker.lives_s is not None
        lost = [*worker.running, *worker.waiting]
        worker.running, worker.waiting = {}, []
        worker.life, worker.away = worker.life + 1, True
        worker.stop_receiving(self._now)
        self._leave(worker)
        self._no_longer_missing(worker, self._newest_announced)
        away_s = worker.away_s
        self._after(min(away_s, self._conduct.reconnect_grace_s), self._give_up, lost)
        self._after(away_s, self._back, worker)
        self._after(away_s - worker.lives_s * math.log(self._draws.uniform()), self._preempted, worker)

    def _give_up(self, slots: list[Slot]) -> None:
        for slot in slots:
            if not slot.group.over:
                self._book.vacate(slot)
        self._issue()

    def _back(self, worker: ModelWorker) -> None:
        worker.away = False
        self._receive(worker, self._newest_announced)
        self._begin(worker)
        self._asks(worker)

    # ---------------------------------------------------------------- pacing

    def _moved(self) -> None:
        """Queue workers again: a group that was too late for one of them may be in time now."""
        self._recall(self._workers)
        self._issue()

    def _recall(self, workers: Iterable[ModelWorker]) -> None:
        for worker in workers:
            worker.aside = False
        self._asking = {number: worker for number, worker in self._line.items() if not worker.aside}

    def _leave(self, worker: ModelWorker) -> None:
        self._line.pop(worker.number, None)
        self._asking.pop(worker.number, None)

    def _issue(self) -> None:
        """Lease slots to the next workers in line, as long as there is work."""
        begun: list[ModelWorker] = []
        while self._asking and (place := self._next_place()) is not None:
            worker = self._next_in_line(self._oldest_fresh(*place, self._oldest_counted(place[0])))
            if worker is None:
                break
            free = worker.free_slots()
            found = self._group_for(worker, free)
            if found is None:
                worker.aside = True
                del self._asking[worker.number]
                continue
            self._grant(worker, free, *found)
            if worker not in begun:
                begun.append(worker)
        for worker in begun:
            self._begin(worker)

    def _next_place(self) -> tuple[int, int | None] | None:
        """Return the groups ahead of the next group to lease, and its oldest version; None: there is none."""
        if self._book.vacant:
            group = self._book.vacant[0]
            return self._book.place(group), group.oldest
        return (len(self._book.groups), None) if len(self._book.groups) < self._of_use else None

    def _oldest_counted(self, ahead: int) -> int:
        """Return the oldest version for a group at this place that is young enough at its turn."""
        turn = self._step + self._pace.places_ahead(ahead, len(self._ready)) // self._groups_per_step
        return turn - self._demand.staleness_limit

    def _oldest_fresh(self, ahead: int, made_with: int | None, counted: int) -> int:
        """Return the oldest version for a group at this place, such that no worker waits in vain for a newer one.

        ``counted`` is what ``_oldest_counted`` gives for this place.
        """
        old = self._pace.steps_old(ahead, self._groups_per_step, self._of_use, self._demand.publish_every_steps)
        fresh = -1 if old == math.inf else math.ceil(self._step - old)
        return max(counted, fresh if made_with is None else min(fresh, made_with))

    def _next_in_line(self, oldest: int) -> ModelWorker | None:
        """Return the next worker: idle ones first, then the one furthest behind."""
        best: ModelWorker | None = None
        best_key = (True, math.inf)
        for worker in self._asking.values():
            if worker.held >= oldest:
                key = (worker.holds >= worker.concurrency, worker.virtual_s)
                if key < best_key:
                    best, best_key = worker, key
        return best

    def _queue(self, worker: ModelWorker) -> None:
        """Put a worker whose state changed in line, or take it out."""
        if worker.free_slots() <= 0:
            self._leave(worker)
        elif worker.number not in self._line:
            worker.virtual_s = max(worker.virtual_s, self._clock_s)
            self._line[worker.number] = worker
            if not worker.aside:
                self._asking[worker.number] = worker

    def _group_for(self, worker: ModelWorker, free: int) -> tuple[Group, int] | None:
        """Return the group that a worker can do in time, and the oldest version that it may begin with."""
        load = max(worker.concurrency, worker.holds + min(free, self._per_group))
        for group in self._book.vacant[:_GROUPS_TRIED]:
            needs = self._needs(worker, self._book.place(group), group, load)
            if needs is not None:
                return group, needs
        begun = len(self._book.groups)
        needs = self._needs(worker, begun, None, load) if begun < self._of_use else None
        if needs is None:
            return None
        return self._book.begin([self._draws.uniform() for _ in range(self._per_group)]), needs

    def _needs(self, worker: ModelWorker, ahead: int, group: Group | None, load: int) -> int | None:
        """Return the oldest version with which the group is in time; None: the worker's is older."""
        made_with = None if group is None else group.oldest
        oldest = worker.held if made_with is None else min(worker.held, made_with)
        needs = counted = self._oldest_counted(ahead)
        if oldest < needs or (ahead < self._groups_per_step and self._now >= self._pace.starves_at()):
            return needs if oldest >= needs else None
        unfilled = self._per_group if group is None else group.unfilled
        later = self._pace.steps_until_ready(worker.per_s, load, unfilled, self._now, begun=group is not None)
        if later is not None:
            needs = max(needs, self._step + later - self._demand.staleness_limit)
        if oldest < needs:
            return None
        fresh = self._oldest_fresh(ahead, made_with, counted)
        return max(needs, fresh) if worker.held >= fresh else None

    def _grant(self, worker: ModelWorker, free: int, group: Group, needs: int) -> None:
        count = min(free, len(group.vacant))
        load = max(worker.concurrency, worker.holds + count)
        worker.waiting += [Slot(group, length, load, self._now, needs) for length in self._book.lease(group, count)]
        self._clock_s = max(worker.virtual_s, self._clock_s)
        worker.served(count)
        self._leave(worker)
        if free > count:
            self._queue(worker)
