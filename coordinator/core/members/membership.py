"""Keep the members with an open session, and the reputation of each identity across its sessions."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

from capacity.model.workers import Pin
from coordinator.core.events.events import PeerFacts, PeerJoined
from coordinator.core.leases.attempts import Attempt
from coordinator.core.members.allowances import Allowances, Earned
from coordinator.core.members.awake_clock import AwakeClock, longest_gap_s, patience_s
from coordinator.core.members.fair_share import FairShare
from rollcast.wire.ids import PeerId, Version

_REPUTATIONS_KEPT = 16384  # identities remembered after they left; quarantined ones are kept beyond it
_LOOKED_AT_MAX = 16  # of those that left first, for each that is remembered beyond it
_CELL_MEMBERS_KEPT = 65_536  # members of cells whose cell is remembered
_DEPARTED_KEPT = 16  # members that the operator still sees until they return or others leave
_RESTING_STATES = frozenset({"draining", "finishing", "paused"})  # it is about to leave, or its owner needs the machine
RECONSIDERED_AT_ONCE = 1_000
"""Members that are considered again in one round of giving out work, which takes 10 to 20 ms."""


@dataclass(slots=True)
class Reputation:
    """The reputation of an identity, kept when it leaves, so that a new session does not reset it."""

    accepted: int = 0
    dropped: int = 0
    is_origin: bool = False  # whether it joined as the origin
    is_cell: bool = False  # whether it joined as a cell
    gave_up: set[PeerId] = field(default_factory=set)  # peers whose links it gave up by its word alone
    quarantined: str = ""  # why it is quarantined; empty if it is not
    returns: int = 0  # how often it returned leases since a rollout of it was accepted
    resting: str = ""  # why it gets no work for a while; empty if it may
    evaluates_from: float = 0.0  # when it may evaluate again after it returned a lease, on the core's clock
    standby: str = ""  # why the capacity model switched it off; empty if it is on
    dark: bool = False  # on standby, and not even sent new versions
    switched: str = ""  # why it is on, or what the capacity model would do with it; for people
    pin: Pin = ""  # the operator's pin
    name: str = ""  # name with which it joined last
    invite: str = ""  # id of the invite with which it joined; empty if unknown
    drained: str = ""  # why the operator gives it no new work; empty if it may get some
    banned: str = ""  # why it may not take part; empty if it may
    earned: Earned = field(default_factory=Earned)  # how many slots it may hold
    oldest_own_version: Version = Version(0)  # noqa: RUF009  # newest that it is known to have generated with
    slots_per_s: float = 0.0  # smoothed speed, kept while it generates nothing; 0: never measured

    def generated_with(self, version: Version) -> None:
        """Note that the identity generated with a version: it may use no older one under leases from now on.

        Else it could keep several, generate with each, and return the best of its answers to one slot.
        """
        self.oldest_own_version = max(self.oldest_own_version, version)

    @property
    def kept_out(self) -> str:
        """Why the identity may not take part at all; empty if it may."""
        return self.banned or self.quarantined

    @property
    def switched_off(self) -> str:
        """Why the identity gets no new work; empty if it may. The operator's decision overrides the model's."""
        return self.drained or self.standby

    @property
    def is_on(self) -> bool:
        """Whether the identity may take part and get new work: it is neither kept out nor switched off.

        In one expression, as a view asks this of every member of a large fleet.
        """
        return not (self.banned or self.quarantined or self.drained or self.standby)

    @property
    def ordered(self) -> bool:
        """Whether an operator gave an order about the identity that outlives its sessions."""
        return bool(self.banned or self.drained or self.pin)


@dataclass(slots=True)
class Member:
    """One peer with an open session. Times are the core's clock in seconds."""

    peer_id: PeerId
    role: str
    name: str
    address: str
    concurrent_rollouts: int
    hardware: str
    joined_at: float
    last_seen: float
    last_awake: float  # the same moment, by a clock that stands still while the coordinator's own loop does
    order: int  # rises with every join of this run
    reputation: Reputation
    free_slots: int = 0
    virtual_time: float = 0.0  # its position in fair sharing, see fair_share.py
    version: Version | None = None  # newest version that it holds, and generates with or is about to
    facts: PeerFacts | None = None
    region: str = ""
    site: str = ""
    metered: bool = False
    upload_cap_bytes_per_second: float = 0.0  # 0 for no cap
    software: str = ""
    public_name: str = ""
    host: str = ""  # IP address from which its session comes
    invite: str = ""  # id of the invite with which it joined; empty if unknown
    is_cell: bool = False  # members of a cell generate what it uploads
    gap_s: float = 0.0  # the longest time between two of its messages lately, by the same clock

    @property
    def state(self) -> str:
        """The state that the coordinator or operator put the member in, else the one it reports.

        It is ``joined`` before the first heartbeat.
        """
        reputation = self.reputation
        if reputation.is_on:
            return self.facts.state if self.facts is not None else "joined"
        if reputation.kept_out:
            return "banned" if reputation.banned else "quarantined"
        return "drained" if reputation.drained else "standby"

    @property
    def reason(self) -> str:
        """Why the member is in that state; empty if there is no reason to name."""
        reported = self.facts.reason if self.facts is not None else ""
        if self.reputation.kept_out:
            return self.reputation.kept_out
        reputation = self.reputation
        if reputation.switched_off and self.facts is not None and self.facts.state == "standby":
            reported = ""  # the member repeats the reason that it was sent
        activation = reputation.switched_off or reputation.switched
        return "; ".join(part for part in (activation, reported, reputation.resting) if part)

    @property
    def may_relay(self) -> bool:
        """Whether the member may be assigned children to send chunks to."""
        reputation = self.reputation
        if reputation.kept_out or reputation.drained:
            return False
        if self.facts is None:
            return True
        stopped = self.facts.sending_stopped or self.facts.receiving_stopped
        return not stopped and self.facts.state not in _RESTING_STATES

    def rests_as(self, facts: PeerFacts) -> bool:
        """Whether these facts say the same about resting, sending and receiving as the newest ones."""
        newest = self.facts
        return (
            newest is not None
            and newest.state == facts.state
            and newest.sending_stopped == facts.sending_stopped
            and newest.receiving_stopped == facts.receiving_stopped
        )

    @property
    def roles_in_plan(self) -> tuple[bool, bool]:
        """Whether the member relays, and whether it receives, in the relay plan."""
        return self.may_relay, self.receives

    @property
    def receives(self) -> bool:
        """Whether the member is to receive new versions, as a receiver in the relay plan."""
        return not self.reputation.dark and not (self.facts is not None and self.facts.receiving_stopped)

    @property
    def takes_work(self) -> bool:
        """Whether the member is a peer that may get new work, as far as orders go."""
        return self.role == "peer" and self.reputation.is_on

    @property
    def may_work(self) -> bool:
        """Whether the member may be given slots at all."""
        reputation = self.reputation
        if self.role != "peer" or self.version is None or not reputation.is_on:
            return False
        if self.version < reputation.oldest_own_version:  # restarted without its disk: it receives that version again
            return False
        return self.facts is None or self.facts.state != "draining"

    def holds(self, version: Version) -> bool:
        """Note that the member holds this version. Returns False if it is known to hold this or a newer one (I5)."""
        if self.version is not None and version <= self.version:
            return False
        self.version = version
        return True


@dataclass(frozen=True, slots=True)
class Departed:
    """A member as it was when it left, or when the coordinator ended its session because it was silent."""

    member: Member
    how: Literal["left", "lost"]
    reason: str


class Members:
    """Keeps the members in the order they joined."""

    def __init__(
        self,
        *,
        heartbeat_timeout_s: float,
        tick_s: float | None = None,
        quarantined: Mapping[PeerId, str] | None = None,
    ) -> None:
        """Start without members.

        Args:
            tick_s: interval of the coordinator's ticks; None: late ticks do not matter.
            quarantined: identities that are quarantined from the start, with the reason.
        """
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._awake = AwakeClock(tick_s)
        self._members: dict[PeerId, Member] = {}
        self._by_last_seen: OrderedDict[PeerId, Member] = OrderedDict()  # longest silent first
        self._changed: dict[PeerId, None] = {}
        self._to_reconsider: dict[PeerId, None] = {}  # nothing changed for them, but there may be work now
        self._departed: dict[PeerId, Departed] = {}
        self._reputations: dict[PeerId, Reputation] = {}
        self._absent: dict[PeerId, None] = {}  # identities with a reputation that are no members, in order of leaving
        self._origins: dict[PeerId, Member] = {}
        self.origin: Member | None = None
        """The origin that joined first, if there is one."""
        self._joins = 0
        self.worker_count = 0  # peers that are not quarantined
        self.shares = FairShare()
        self._working: set[PeerId] = set()  # connected peers whose last lease was delivered
        self._newcomers: dict[str, Earned] = {}  # by invite
        self._invites: Counter[str] = Counter()  # of the connected peers
        self._delivered = 0  # rollouts accepted since the start
        self._lost: dict[PeerId, None] = {}
        self._cell_of: dict[PeerId, PeerId] = {}
        self.trial_line: dict[PeerId, None] = {}
        """Newcomers that wait until other newcomers of their invites delivered, in order."""
        for peer_id, reason in (quarantined or {}).items():
            self.quarantine(peer_id, reason)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __len__(self) -> int:
        return len(self._members)

    def get(self, peer_id: PeerId) -> Member | None:
        return self._members.get(peer_id)

    def join(self, event: PeerJoined, now: float) -> Member:
        """Add a member; it must not be one already."""
        self._joins += 1
        member = Member(
            peer_id=event.peer_id,
            role=event.role,
            name=event.name,
            address=event.address,
            concurrent_rollouts=event.concurrent_rollouts,
            hardware=event.hardware,
            joined_at=now,
            last_seen=now,
            last_awake=self._awake.at(now),
            order=self._joins,
            reputation=self.reputation(event.peer_id),
            region=event.region,
            site=event.site,
            metered=event.metered,
            upload_cap_bytes_per_second=event.upload_cap_bytes_per_second,
            software=event.software,
            public_name=event.public_name,
            host=event.host,
            invite=event.invite,
            is_cell=event.is_cell,
        )
        self._members[event.peer_id] = self._by_last_seen[event.peer_id] = member
        self._absent.pop(event.peer_id, None)
        self._changed[event.peer_id] = None
        departed = self._departed.pop(event.peer_id, None)
        if departed is not None:
            member.gap_s = departed.member.gap_s
        if member.role == "origin":
            member.reputation.is_origin = True
            self._origins[event.peer_id] = member
            self.origin = self.origin or member
        self.worker_count += _counts(member)
        if member.role == "peer":
            self._invites[member.invite] += 1
        self._note_work(event.peer_id)
        member.reputation.is_cell = event.is_cell
        member.reputation.name = event.name
        member.reputation.invite = event.invite or member.reputation.invite
        return member

    def leave(self, peer_id: PeerId, how: Literal["left", "lost"], reason: str) -> None:
        """Remove a member; it is shown among the departed for a while."""
        member = self._members.pop(peer_id)
        del self._by_last_seen[peer_id]
        self._absent[peer_id] = None
        self._bound_absent()
        self.shares.leave(peer_id)
        if self._origins.pop(peer_id, None) is not None:
            self.origin = next(iter(self._origins.values()), None)
        self.worker_count -= _counts(member)
        if member.role == "peer":
            self._invites[member.invite] -= 1
            self._invites += Counter()  # without those that are 0
        self._working.discard(peer_id)
        self.trial_line.pop(peer_id, None)
        self._departed[peer_id] = Departed(member, how, reason)
        while len(self._departed) > _DEPARTED_KEPT:
            del self._departed[next(iter(self._departed))]

    def departed(self) -> list[Departed]:
        """Return the members that left last and have not reconnected, oldest first."""
        return list(self._departed.values())

    def set_free_slots(self, member: Member, free_slots: int) -> None:
        """Note that a member can take this many more slots."""
        member.free_slots = free_slots
        self._changed[member.peer_id] = None

    def reputation(self, peer_id: PeerId) -> Reputation:
        """Return the reputation of this identity."""
        reputation = self._reputations.get(peer_id)
        if reputation is None:
            reputation = self._reputations[peer_id] = Reputation()
            self._absent[peer_id] = None
            self._bound_absent()
        return reputation

    def known_name(self, peer_id: PeerId) -> str:
        """Return the name of an identity that is or was a member; empty if it is not known."""
        reputation = self._reputations.get(peer_id)
        return "" if reputation is None else reputation.name

    def _bound_absent(self) -> None:
        """If too many identities that are no members are remembered, discard the harmless one that left first."""
        for _ in range(_LOOKED_AT_MAX):
            if len(self._absent) <= _REPUTATIONS_KEPT:
                return
            peer_id = next(iter(self._absent))
            del self._absent[peer_id]
            reputation = self._reputations[peer_id]
            if reputation.quarantined or reputation.ordered:
                self._absent[peer_id] = None  # behind the others, so that it is not looked at again and again
            else:
                del self._reputations[peer_id]

    # ---------------------------------------------------------------- what they may hold

    def allowances(self, slots_per_step: int, samples_per_group: int) -> Allowances:
        """Return how many slots members may hold now."""
        return Allowances(slots_per_step, samples_per_group, self.worker_count, len(self._working), self._delivered)

    @property
    def has_several_invites(self) -> bool:
        """Whether peers are connected that joined with different invites."""
        return len(self._invites) > 1

    def newcomers(self, invite: str) -> Earned:
        """Return what the newcomers of an invite delivered and lost."""
        newcomers = self._newcomers.get(invite)
        if newcomers is None:
            while len(self._newcomers) >= _REPUTATIONS_KEPT:
                del self._newcomers[next(iter(self._newcomers))]
            newcomers = self._newcomers[invite] = Earned()
        return newcomers

    def delivered(self, attempt: Attempt, allowances: Allowances, most: int, now: float) -> None:
        """Count an accepted rollout. ``most``: slots that any peer can use, by what it says of itself."""
        self._delivered += 1
        self.reputation(attempt.peer_id).earned.delivered(allowances.first, most, now)
        if attempt.on_trial:
            most_in_flight = allowances.most_in_flight
            self.newcomers(attempt.invite).delivered(most_in_flight, most_in_flight, now)
        self._note_work(attempt.peer_id)

    def lost(self, attempt: Attempt, allowances: Allowances, now: float, *, overtaken: bool = False) -> None:
        """Count a lease that expired, or whose rollout was malformed; ``overtaken``: see Earned.overtaken."""
        count = Earned.overtaken if overtaken else Earned.lost
        if count(self.reputation(attempt.peer_id).earned, attempt.issued_at, allowances.first, now):
            self._lost[attempt.peer_id] = None
        if attempt.on_trial:
            newcomers = self.newcomers(attempt.invite)
            first = min(allowances.most_in_flight, allowances.most_on_trial(newcomers))
            count(newcomers, attempt.issued_at, int(first), now)
        self._note_work(attempt.peer_id)

    def take_trial_line(self, count: int) -> list[PeerId]:
        """Return the first ``count`` newcomers of the line, and take them out of it."""
        taken = list(islice(self.trial_line, count))
        for peer_id in taken:
            del self.trial_line[peer_id]
        return taken

    def take_lost(self) -> list[PeerId]:
        """Return the peers that may hold fewer slots since the last call, and clear that set."""
        lost = list(self._lost)
        self._lost.clear()
        return lost

    @property
    def any_works(self) -> bool:
        """Whether any connected peer delivers."""
        return bool(self._working)

    def _note_work(self, peer_id: PeerId) -> None:
        member = self._members.get(peer_id)
        if member is not None and member.role == "peer" and member.reputation.earned.works:
            self._working.add(peer_id)
        else:
            self._working.discard(peer_id)

    def seen(self, peer_id: PeerId, now: float) -> Member | None:
        """Note that a member sent something now, and return it; None if this peer is no member."""
        member = self._members.get(peer_id)
        if member is not None:
            awake = self._awake.at(now)
            member.gap_s = longest_gap_s(member.gap_s, awake - member.last_awake)
            member.last_seen, member.last_awake = now, awake
            self._by_last_seen.move_to_end(peer_id)
        return member

    def changed(self, peer_ids: Iterable[PeerId]) -> None:
        """Consider these members again when work is given out."""
        self._changed.update(dict.fromkeys(peer_ids))

    def reconsider(self, peer_ids: Iterable[PeerId]) -> None:
        """Consider these members again too, RECONSIDERED_AT_ONCE at a time: they may be all of a large fleet."""
        self._to_reconsider.update(dict.fromkeys(peer_ids))

    @property
    def has_changed(self) -> bool:
        """Whether ``take_changed`` would return any member."""
        return bool(self._changed or self._to_reconsider)

    def take_changed(self) -> list[PeerId]:
        """Return the members for which something changed since the last call, and the next ones to reconsider."""
        changed = list(self._changed)
        self._changed.clear()
        again = list(islice(self._to_reconsider, RECONSIDERED_AT_ONCE))
        for peer_id in again:
            del self._to_reconsider[peer_id]
        return changed + again

    def silent(self, now: float) -> list[Member]:
        """Return the members that sent nothing for longer than the heartbeat timeout, longest silent first.

        It is called at every tick. What the coordinator's own loop or the member's is late counts for neither. A member
        whose messages came seconds apart lately may be silent for longer, also if it was here before.
        """
        self._awake.tick(now)
        found: list[Member] = []
        for member in self._by_last_seen.values():
            silent_s = self._awake.at(now) - member.last_awake
            if silent_s <= self._heartbeat_timeout_s:
                break
            lag_s = 0.0 if member.facts is None else member.facts.loop_lag_s
            if silent_s > patience_s(self._heartbeat_timeout_s, lag_s, member.gap_s):
                member.gap_s = silent_s
                found.append(member)
        return found

    def quarantine(self, peer_id: PeerId, reason: str) -> bool:
        """Quarantine an identity, whether it is here or not. Returns False if it was quarantined already."""
        reputation, member = self.reputation(peer_id), self._members.get(peer_id)
        if reputation.quarantined:
            return False
        if member is not None:
            self.worker_count -= _counts(member)
            self._changed[peer_id] = None
        reputation.quarantined = reason
        return True

    def peer_named(self, words: str) -> PeerId | None:
        """Return the id of the peer with this id, or of the only one with this name; None if there is none or several.

        The search includes peers that left lately, and absent ones that are drained, banned, pinned or quarantined.
        """
        member, reputation = self._members.get(PeerId(words)), self._reputations.get(PeerId(words))
        if (member is not None and member.role == "peer") or (
            reputation is not None and (reputation.ordered or reputation.quarantined)
        ):
            return PeerId(words)
        here = [one for one in (*self, *(gone.member for gone in self.departed())) if one.role == "peer"]
        known = {one.peer_id: one.name for one in here}
        known |= {peer_id: one.name for peer_id, one in self._reputations.items() if one.ordered}
        if words in known:
            return PeerId(words)
        ids = [peer_id for peer_id, name in known.items() if name == words]
        return ids[0] if len(ids) == 1 else None

    def reputations(self) -> Iterable[tuple[PeerId, Reputation]]:
        """Return the reputation of every identity that is remembered."""
        return self._reputations.items()

    def generated_in_cell(self, cell: PeerId, authors: Iterable[PeerId]) -> None:
        """Note that these members of a cell generated a rollout that it uploaded."""
        for peer_id in authors:
            self._cell_of[peer_id] = cell
        while len(self._cell_of) > _CELL_MEMBERS_KEPT:
            del self._cell_of[next(iter(self._cell_of))]

    def cell_of(self, peer_id: PeerId) -> PeerId | None:
        """Return the cell that uploaded an identity's rollouts last; None if none did."""
        return self._cell_of.get(peer_id)

    def is_cell(self, peer_id: PeerId) -> bool:
        """Whether this identity joined as a cell."""
        reputation = self._reputations.get(peer_id)
        return reputation is not None and reputation.is_cell

    def kept_out_because(self, peer_id: PeerId) -> str:
        """Return why this identity may not take part; empty if it may."""
        reputation = self._reputations.get(peer_id)
        return "" if reputation is None else reputation.kept_out

    def banned_because(self, peer_id: PeerId) -> str:
        """Return why this identity is banned; empty if it is not."""
        reputation = self._reputations.get(peer_id)
        return "" if reputation is None else reputation.banned

    def banned(self) -> dict[PeerId, Reputation]:
        """Return the banned identities."""
        return {peer_id: one for peer_id, one in self._reputations.items() if one.banned}

    def enable(self, peer_id: PeerId, what: Sequence[str] = ("drained", "banned", "quarantined")) -> str:
        """Undo what keeps an identity from working. Returns what that was, for people; empty if nothing did."""
        reputation = self.reputation(peer_id)
        undone = [name for name in what if getattr(reputation, name)]
        member, counted = self._members.get(peer_id), 0
        if member is not None:
            counted = _counts(member)
        for name in undone:
            setattr(reputation, name, "")
        if member is not None:
            self.worker_count += _counts(member) - counted
            self._changed[peer_id] = None
        return ", ".join(undone)

    def has_role(self, role: str) -> bool:
        """Whether a member of this role is connected, quarantined or not."""
        return any(member.role == role for member in self)


def _counts(member: Member) -> bool:
    """Whether a member counts as a worker: a peer, and not quarantined."""
    return member.role == "peer" and not member.reputation.quarantined
