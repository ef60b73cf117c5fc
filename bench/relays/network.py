"""Simulate a network of relay cores in virtual time, where nodes and links fail, and time its broadcasts.

The wire is modelled (rollcast/sim/kernel/bandwidth.py), the shells are played (bench/relays/shells.py), and
the cores are the real ones. The same arguments always give the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from random import Random

from bench.relays.bound import delivery_bound_s
from bench.relays.shells import Core, Member, Shells, key_of
from bench.relays.story import (
    ORDINARY,
    ORIGIN,
    Conditions,
    DropLinks,
    Fault,
    Join,
    Kill,
    Lie,
    Planner,
    Replan,
    Result,
    SetRates,
    mesh_plan,
    name_of,
)
from bench.wan.scenarios import BYTES_PER_MEGABIT, Node, site_of
from peer.links.neighbours import EncodingKey
from peer.relay.core.core import RelayCore
from peer.relay.core.state import events
from peer.relay.core.state.relay_state import RelaySettings
from rollcast.sim.kernel.bandwidth import Port
from rollcast.wire.ids import PlanId


def broadcast(
    nodes: Sequence[Node],
    size_bytes: int,
    chunk_bytes: int,
    settings: RelaySettings,
    faults: Sequence[Fault] = (),
    *,
    plan: Planner = mesh_plan,
    conditions: Conditions = ORDINARY,
    warm_up: bool = True,
    limit_s: float = 600.0,
    seed: int = 0,
) -> Result:
    """Simulate one broadcast among real cores; with ``warm_up`` another one goes before it.

    Nodes that are ``beside`` another one share its access link, and reach each other over a local network.

    Args:
        settings: of every core, apart from the role and from where in a keyframe it begins to ask.
        faults: with seconds from the announcement; nodes that join are not there before.
    """

    chance = Random(seed)

    def core(role: str) -> Core:
        return RelayCore(replace(settings, role=role, pull_from=chance.random()))

    network = RelayNetwork(nodes, chunks_of(size_bytes, chunk_bytes), core, plan, conditions, late_in(faults), seed)
    if warm_up:
        network.broadcast((), limit_s)
    return network.broadcast(faults, limit_s)


def chunks_of(size_bytes: int, chunk_bytes: int) -> list[int]:
    """Return the sizes of the chunks; the last one may be shorter."""
    return [min(chunk_bytes, size_bytes - start) for start in range(0, size_bytes, chunk_bytes)]


def late_in(faults: Sequence[Fault]) -> list[int]:
    return [fault.node for fault in faults if isinstance(fault, Join)]


class RelayNetwork(Shells):
    """The nodes of a broadcast; number 0 is the origin.

    Args:
        cores: makes a node's core, given its role.
        plan: what the coordinator would send.
        late: nodes that are not there at the start.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        chunk_sizes: Sequence[int],
        cores: Callable[[str], Core],
        plan: Planner = mesh_plan,
        conditions: Conditions = ORDINARY,
        late: Sequence[int] = (),
        seed: int = 0,
    ) -> None:
        super().__init__(chunk_sizes, conditions, seed)
        self._nodes = nodes
        self._cores = cores
        self._planner = plan
        self._plan_id = PlanId(0)
        self._version = 0
        self._lacking: Member | None = None  # a node that lacked the version when last looked at
        for number in range(len(nodes)):
            if number not in late:
                self._add(number)
        self._replan()

    def broadcast(self, faults: Sequence[Fault] = (), limit_s: float = 600.0) -> Result:
        """Give the origin the next version, announce it a while later, and run until every live node has it."""
        self._version += 1
        key = key_of(self._version)
        agenda, origin = self.agenda, self.members[ORIGIN]
        agenda.after(self.conditions.lead_s / 2, partial(self._origin_holds, key))
        agenda.run(agenda.now + self.conditions.lead_s)
        start_s, sent_bytes, told = agenda.now, origin.port.sent_bytes, self.events
        self.into_sites_bytes = 0
        self.given.clear()
        self.sent_bytes.clear()
        before = {number: member.duplicates for number, member in self.members.items()}
        for fault in faults:
            agenda.after(fault.at_s, partial(self._happen, fault))
        for member in self.members.values():
            agenda.after(self._from_coordinator_s(member), partial(self._announce, member, key))
        quiet_s = start_s + max((fault.at_s for fault in faults), default=0.0)
        agenda.run(start_s + limit_s, lambda: self._all_hold(key) and agenda.now > quiet_s)
        peers = [member for number, member in self.members.items() if number != ORIGIN]
        return Result(
            seconds={one.number: _since(max(start_s, one.joined_s), one.held_s.get(key)) for one in peers if one.alive},
            nodes=self._nodes,
            bound_s=self._bound_s,
            site_copies=self.into_sites_bytes / sum(self.sizes) / max(1, len({one.site for one in peers} - {None})),
            source_bytes_ratio=(origin.port.sent_bytes - sent_bytes) / sum(self.sizes),
            duplicates={one.number: one.duplicates - before.get(one.number, 0) for one in peers},
            given=dict(self.given),
            sent_bytes=dict(self.sent_bytes),
            accused=frozenset(self.accused),
            abandoned=dict(self.abandoned),
            events=self.events - told,
        )

    @cached_property
    def _bound_s(self) -> float:
        return delivery_bound_s(sum(self.sizes), self._nodes, self.conditions.lan_mbit_s)

    def _all_hold(self, key: EncodingKey) -> bool:
        """Return whether every live node holds a version; asked after each event, so one that lacks it is kept."""
        lacking = self._lacking
        if lacking is not None and lacking.alive and key not in lacking.held_s:
            return False
        members = self.members.values()
        self._lacking = next((one for one in members if one.alive and key not in one.held_s), None)
        return self._lacking is None

    def _from_coordinator_s(self, member: Member) -> float:
        """Return the delay from the coordinator, which is at the origin's place."""
        return member.port.delay_s + self.members[ORIGIN].port.delay_s

    def _replan(self) -> None:
        self._plan_id = PlanId(self._plan_id + 1)
        alive = [number for number, member in sorted(self.members.items()) if member.alive]
        for number, plan in self._planner(self._plan_id, alive).items():
            member = self.members[number]
            self.agenda.after(self._from_coordinator_s(member), partial(self.tell, member, plan))

    def _add(self, number: int) -> Member:
        node, conditions = self._nodes[number], self.conditions
        site = site_of(number, self._nodes)
        if node.beside is None:
            port = self._port(node.up_mbit_s, node.down_mbit_s, node.delay_ms / 1e3)
        else:
            port = self.members[node.beside].port
        member = Member(number, self._cores("peer" if number else "origin"), port, joined_s=self.agenda.now)
        if site is not None:
            member.site = site
            member.lan = self._port(conditions.lan_mbit_s, conditions.lan_mbit_s, conditions.lan_delay_s)
        self.members[number] = member
        self.by_name[name_of(number)] = member
        self.agenda.after(conditions.tick_s * self.random.random(), partial(self._tick, member))
        return member

    def _port(self, up_mbit_s: float, down_mbit_s: float, delay_s: float) -> Port:
        return Port(
            self.agenda,
            self._bytes_per_second(up_mbit_s),
            self._bytes_per_second(down_mbit_s),
            delay_s,
            piece_bytes=self.conditions.piece_bytes,
            low_water_bytes=self.conditions.low_water_bytes,
        )

    def _bytes_per_second(self, mbit_s: float) -> float:
        return mbit_s * BYTES_PER_MEGABIT / self.conditions.wire_overhead

    def _tick(self, member: Member) -> None:
        if member.alive:
            self.tell(member, events.Tick())
            self.agenda.after(self.conditions.tick_s, partial(self._tick, member))

    def _origin_holds(self, key: EncodingKey) -> None:
        origin, count = self.members[ORIGIN], len(self.sizes)
        origin.announced.add(key.version)
        origin.listed.add(key)
        origin.disk[key] = dict.fromkeys(range(count), True)
        origin.held_s[key] = self.agenda.now
        self.tell(origin, self.known(origin, key, announced=False))
        self.tell(origin, events.AnnouncementReceived(key))
        self.tell(origin, events.VersionRestored(key, count, self.sizes[0]))

    def _announce(self, member: Member, key: EncodingKey) -> None:
        member.announced.add(key.version)
        self.tell(member, self.known(member, key, announced=True))
        self.tell(member, events.AnnouncementReceived(key))
        if member.number == ORIGIN:
            self.tell(member, events.BroadcastStarted(key))

    # ------------------------------------------------------------ faults

    def _happen(self, fault: Fault) -> None:
        match fault:
            case Kill(node=number, silent=silent):
                self._kill(self.members[number], silent)
            case SetRates(node=number):
                port = self.members[number].port
                port.up_bytes_s = self._bytes_per_second(fault.up_mbit_s)
                port.down_bytes_s = self._bytes_per_second(fault.down_mbit_s)
            case Join(node=number):
                member = self._add(number)
                self._replan()
                self.agenda.after(
                    self._from_coordinator_s(member), partial(self._announce, member, key_of(self._version))
                )
            case Lie(node=number, share=share):
                self.members[number].lies = share
                self.liars.add(name_of(number))
            case DropLinks():
                self._drop_links(fault)
            case Replan():
                self._replan()

    def _drop_links(self, fault: DropLinks) -> None:
        for end in list(self.members[fault.one].ends.values()):
            if end.other is not None and end.other.member.number == fault.other:
                self.cut(end, 0.0)

    def _kill(self, member: Member, silent: bool) -> None:
        member.alive = False
        notice_s = self.conditions.silence_s if silent else self.conditions.notice_s
        for end in list(member.ends.values()):
            self.cut(end, notice_s)
        self.agenda.after(notice_s, self._replan)


def _since(start_s: float, end_s: float | None) -> float | None:
    return None if end_s is None else end_s - start_s
