"""Check whether members can be dialled at their advertised addresses, from here and from a few other members. Pure.

The method follows AutoNAT v2 (libp2p specification "autonat/autonat-v2"): only addresses of the asking host itself, or
such that the operator allows, are dialled, few at a time, with a single handshake each, so that no member can have
third parties dialled (amplification). Members behind the target's own router do not dial, since their result says
nothing about others. An address counts as dialable if at least half of the attempts succeeded. One failed check is
retried a moment later, and twice if the address was dialable before, as the machine may have been busy. A member that
advertises an address over IPv4 and one over IPv6 is dialable if one of them is.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice

from coordinator.core.decisions.state import CoreState
from coordinator.core.events.actions import Action, Note, SendToPeer, TryAddress
from coordinator.core.events.reach_events import DialBackEnded, ReachEvent
from coordinator.core.members.membership import Member
from coordinator.core.reach.address_book import host_part
from coordinator.core.reach.credible import ADDRESSES_MOST
from coordinator.core.reach.dial_settings import is_numeric
from coordinator.core.traversal.component import ReachComponent
from rollcast.wire.ids import PeerId
from rollcast.wire.proto import rollcast_pb2 as pb

HELPERS_MOST = 3
ANSWER_WITHIN_S = 8.0  # a dial takes 5 s at most (rollcast.wire.links.probe)
FIRST_AFTER_S = 3.0  # after the join, because others join at the same time
AGAIN_AFTER_FAILURE_S = 10.0
UNDIALABLE_AGAIN_S = 300.0
DIALABLE_AGAIN_S = 1800.0
_UNANSWERED_AGAIN_S = 60.0
#: Failures in a row until an address counts as not dialable, by the earlier verdict: a busy machine answers late.
_FAILURES_NEEDED: Mapping[bool | None, int] = {None: 2, True: 3, False: 1}
_SPACING_S = 10.0  # between checks of one member, whatever it reports
_RUNNING_MOST = 32
_HELPERS_CONSIDERED = 64
OURSELVES = PeerId("")
_NEVER = float("inf")


@dataclass(slots=True)
class _Check:
    """A check in progress. ``asked``: the members that dial; ``results``: whether they reached it."""

    peer_id: PeerId
    address: str
    ends_at: float
    asked: set[PeerId] = field(default_factory=set)
    results: dict[PeerId, bool] = field(default_factory=dict)
    problems: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class _Target:
    """A member, and the addresses that it advertised last; each is checked until others got through to one."""

    addresses: tuple[str, ...] = ()  # host:port; none: it reports that it cannot be dialled
    turn: int = 0  # index of the address that was, or will be, checked
    due_at: float = _NEVER  # also while a check is in progress
    started_at: float = -_NEVER
    failures: int = 0  # in a row
    unchecked: bool = False  # because the member was not seen at any of the addresses

    @property
    def address(self) -> str:
        """The address that was, or will be, checked; empty if there is none."""
        return self.addresses[self.turn] if self.addresses else ""


class DialBacks(ReachComponent):
    """Keeps the checks in progress, and when the next ones are due. Times are the core's clock in seconds."""

    takes = (DialBackEnded,)

    def __init__(self, state: CoreState) -> None:
        self._state = state
        self._settings = state.settings.dial_backs
        self._targets: dict[PeerId, _Target] = {}
        self._due: list[tuple[float, PeerId]] = []  # a heap; entries that no longer hold are passed over
        self._running: dict[int, _Check] = {}  # in order of their ends
        self._helpers: OrderedDict[PeerId, None] = OrderedDict()  # the member considered longest ago first
        self._helping: Counter[PeerId] = Counter()
        self._last_id = 0
        self.figures = state.reach.dial_backs

    # ---------------------------------------------------------------- events

    def joined(self, member: Member, now: float) -> list[Action]:
        """Consider a new member for being checked, and for checking others."""
        self.left(member.peer_id, now)
        if self._settings.enabled:
            self._helpers[member.peer_id] = None
            # An address that only a dial-back makes credible is in no plan before it.
            waits = bool(self._state.reach.of(member.peer_id).refused)
            self._schedule(member.peer_id, now if waits else now + FIRST_AFTER_S)
        return []

    def left(self, peer_id: PeerId, now: float) -> list[Action]:
        """End the checks of a member that left, and stop waiting for its findings."""
        self._targets.pop(peer_id, None)
        self._helpers.pop(peer_id, None)
        self._helping.pop(peer_id, None)
        for check_id in [key for key, one in self._running.items() if one.peer_id == peer_id]:
            self._end(check_id)
        for check in self._running.values():
            if peer_id not in check.results:
                check.asked.discard(peer_id)
        return []

    def reported(self, member: Member, now: float) -> list[Action]:
        """Check a member that may advertise another address than before."""
        if self._settings.enabled:
            self._schedule(member.peer_id, now)
        return []

    def received(self, event: ReachEvent, now: float) -> list[Action]:
        """Handle the outcome of one dial."""
        assert isinstance(event, DialBackEnded)
        check = self._running.get(event.check_id)
        if check is None or event.peer_id not in check.asked or event.peer_id in check.results:
            return []
        self._no_longer_helps(event.peer_id)
        if not event.tried:
            return self._not_tried(event, now)
        check.results[event.peer_id] = event.reached
        if event.problem:
            check.problems[event.problem] += 1
        actions: list[Action] = []
        if event.address:  # the name that was advertised has this one
            actions = self._ask_helpers(event.check_id, check, event.address)
        return actions + (self._settle(event.check_id, now) if len(check.results) == len(check.asked) else [])

    def tick(self, now: float) -> list[Action]:
        """Settle the checks that are overdue, and begin those that are due."""
        actions: list[Action] = []
        while self._running:
            check_id, check = next(iter(self._running.items()))
            if now < check.ends_at:
                break
            actions += self._settle(check_id, now)
        while self._due and self._due[0][0] <= now and len(self._running) < _RUNNING_MOST:
            due_at, peer_id = heapq.heappop(self._due)
            target = self._targets.get(peer_id)
            if target is not None and target.due_at == due_at:
                actions += self._start(peer_id, target, now)
        return actions

    # ---------------------------------------------------------------- decisions

    def _schedule(self, peer_id: PeerId, at: float) -> None:
        """Schedule a check of the addresses that a member advertises now, unless one is in progress or done."""
        addresses = direct_addresses(self._state.reach.of(peer_id).advertised)
        target = self._targets.setdefault(peer_id, _Target())
        if target.addresses != addresses or target.unchecked:
            target.addresses, target.turn, target.failures, target.unchecked = addresses, 0, 0, False
            self._at(peer_id, target, max(at, target.started_at + _SPACING_S))

    def _at(self, peer_id: PeerId, target: _Target, at: float) -> None:
        if target.due_at != at:  # a member that changes its address often has one entry in the heap
            target.due_at = at
            heapq.heappush(self._due, (at, peer_id))

    def _start(self, peer_id: PeerId, target: _Target, now: float) -> list[Action]:
        target.due_at = _NEVER
        if not target.address:
            return []
        host = self._state.reach.of(peer_id).host
        target.started_at = now
        if not host:  # the host of its session is unknown: nothing may be dialled
            self._at(peer_id, target, now + DIALABLE_AGAIN_S)
            return []
        target.unchecked = not self._turn_to_allowed(peer_id, target, target.turn)
        if target.unchecked:
            return self._unchecked(
                peer_id, target, f"its session comes from {host}: no other address may be dialled", now
            )
        numeric = is_numeric(host_part(target.address))
        self._last_id += 1
        check = _Check(peer_id, target.address, now + ANSWER_WITHIN_S, {OURSELVES})
        self._running[self._last_id] = check
        self.figures.begun += 1
        ours = TryAddress(self._last_id, peer_id, target.address, "" if numeric else host)
        return [ours, *(self._ask_helpers(self._last_id, check, target.address) if numeric else [])]

    def _turn_to_allowed(self, peer_id: PeerId, target: _Target, first: int) -> bool:
        """Turn to the first address from this one on that may be dialled; return False, and turn back, if none may."""
        hosts = self._state.reach.of(peer_id).seen_at
        for turn in range(first, len(target.addresses)):
            name = host_part(target.addresses[turn])
            if not is_numeric(name) or any(self._settings.allow(name, host) for host in hosts):
                target.turn = turn
                return True
        target.turn = 0
        return False

    def _not_tried(self, event: DialBackEnded, now: float) -> list[Action]:
        """Settle a name that resolves to an address that may not be dialled."""
        check = self._end(event.check_id)
        target = self._targets.get(check.peer_id)
        return [] if target is None else self._unchecked(check.peer_id, target, event.problem, now)

    def _unchecked(self, peer_id: PeerId, target: _Target, problem: str, now: float) -> list[Action]:
        """Settle a check that cannot be carried out: the verdict stays as it was, with the reason."""
        self._at(peer_id, target, now + DIALABLE_AGAIN_S)
        dialable = self._state.reach.of(peer_id).dialable
        address = self._state.reach.of(peer_id).checked_address
        self._state.reach.found(peer_id, dialable=dialable, address=address, checked=f"not checked: {problem}")
        verdict = pb.DialVerdict(address=target.address, dialable=dialable is not False, problem=problem)
        return [_verdict(peer_id, verdict)]

    def _ask_helpers(self, check_id: int, check: _Check, address: str) -> list[Action]:
        chosen = self._choose(check.peer_id)
        for helper in chosen:
            self._helping[helper] += 1
        check.asked.update(chosen)
        order = pb.DialBack(check_id=check_id, peer_id=check.peer_id, address=address)
        return [SendToPeer(helper, pb.CoordinatorMessage(dial_back=order)) for helper in chosen]

    def _choose(self, target: PeerId) -> list[PeerId]:
        """Return the members of other networks that may dial, those considered longest ago first."""
        members, reach = self._state.members, self._state.reach
        member = members.get(target)
        use_sites = self._state.settings.lan_preferred  # else one network prefix is no local network here
        site = member.site if member is not None and use_sites else ""
        host = reach.of(target).host
        found: list[PeerId] = []
        for peer_id in list(islice(self._helpers, _HELPERS_CONSIDERED)):
            self._helpers.move_to_end(peer_id)  # one that may not be asked now must not stay ahead of the others
            one = members.get(peer_id)
            if one is None or not one.may_relay or self._helping[peer_id] or reach.of(peer_id).host in ("", host):
                continue
            if site and one.site == site:
                continue
            found.append(peer_id)
            if len(found) == HELPERS_MOST:
                break
        return found

    def _settle(self, check_id: int, now: float) -> list[Action]:
        check = self._end(check_id)
        target = self._targets.get(check.peer_id)
        if target is None or target.address != check.address:
            return []  # it now advertises another address, which gets a check of its own
        if not check.results:
            self.figures.unanswered += 1
            self._at(check.peer_id, target, now + _UNANSWERED_AGAIN_S)
            return []
        reached = sum(check.results.values())
        dialable = 2 * reached >= len(check.results)
        target.failures = 0 if dialable else target.failures + 1
        if 0 < target.failures < _FAILURES_NEEDED[self._state.reach.of(check.peer_id).dialable]:
            self._at(check.peer_id, target, now + AGAIN_AFTER_FAILURE_S * target.failures)
            return []
        if not dialable and self._turn_to_allowed(check.peer_id, target, target.turn + 1):
            target.failures = 0
            self._at(check.peer_id, target, max(now, target.started_at + _SPACING_S))
            return []
        self._at(check.peer_id, target, now + (DIALABLE_AGAIN_S if dialable else UNDIALABLE_AGAIN_S))
        return self._found(check, reached, dialable=dialable)

    def _found(self, check: _Check, reached: int, *, dialable: bool) -> list[Action]:
        asked = len(check.results)
        problem = "" if dialable else max(check.problems, key=lambda one: (check.problems[one], one), default="")
        reach, member = self._state.reach.of(check.peer_id), self._state.members.get(check.peer_id)
        before, checked_before = reach.dialable, reach.checked
        why = f": {problem}" if problem else ""
        checked = f"{reached} of {asked} peers that tried could connect to {check.address}{why}"
        # Without the origin no peer receives anything, so peers that might reach it keep trying.
        in_plans = None if member is not None and member.role == "origin" and not dialable else dialable
        self._state.reach.found(check.peer_id, dialable=in_plans, address=check.address, checked=checked)
        if dialable:
            self.figures.dialable += 1
        else:
            self.figures.undialable += 1
        verdict = pb.DialVerdict(
            address=check.address, dialable=dialable, asked=asked, reached=reached, problem=problem
        )
        actions: list[Action] = [_verdict(check.peer_id, verdict)]
        if checked != checked_before and before != dialable and (before is False or not dialable):
            kind = "peer_dialable" if dialable else "peer_undialable"
            actions.append(Note(kind, check.peer_id, checked))
        return actions

    def _end(self, check_id: int) -> _Check:
        check = self._running.pop(check_id)
        for helper in check.asked - check.results.keys():
            self._no_longer_helps(helper)
        return check

    def _no_longer_helps(self, helper: PeerId) -> None:
        self._helping[helper] -= 1
        if self._helping[helper] <= 0:
            del self._helping[helper]


def direct_addresses(advertised: str) -> tuple[str, ...]:
    """Return each host:port among the addresses that a member advertises, in their order."""
    return tuple(filter(_is_direct, advertised.split()[:ADDRESSES_MOST]))


def _is_direct(address: str) -> bool:
    host, _, port = address.rpartition(":")
    return bool(host) and "/" not in host and port.isascii() and port.isdecimal() and int(port) < 1 << 16


def _verdict(peer_id: PeerId, verdict: pb.DialVerdict) -> Action:
    return SendToPeer(peer_id, pb.CoordinatorMessage(dial_verdict=verdict))
