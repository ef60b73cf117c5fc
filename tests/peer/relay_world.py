"""A small network of relay cores in memory: every message, store job and dial waits until a test lets it happen."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from peer.chunk_set import ChunkSet
from peer.relay_actions import (
    AbandonVersion,
    Accuse,
    Action,
    AnnounceHeld,
    BeginStore,
    CloseLink,
    Dial,
    FinishVersion,
    SendCancel,
    SendChunk,
    SendChunkList,
    SendCredit,
    SendHave,
    SendHeld,
    SendWant,
    VerifyAndStore,
)
from peer.relay_core import RelayCore
from peer.relay_events import (
    CancelReceived,
    ChunkArrived,
    ChunkCorrupt,
    ChunkListReceived,
    ChunkSent,
    ChunkStored,
    CreditReceived,
    DialFailed,
    EncodingKey,
    Event,
    HaveReceived,
    HeldReceived,
    LinkDown,
    LinkId,
    LinkUp,
    Neighbour,
    PlanChanged,
    StoreReady,
    Tick,
    VersionFinished,
    VersionKnown,
    VersionRestored,
    WantReceived,
)
from peer.relay_state import RelaySettings
from rollcast.wire.ids import ChunkIndex, EncodingId, PeerId, PlanId, Version

CHUNK_BYTES = 16
STEPS_MOST = 50_000  # between two ticks; an honest end of the largest test takes a tenth


def key_of(version: int) -> EncodingKey:
    return EncodingKey(Version(version), EncodingId(0))


def truth(key: EncodingKey, index: int) -> bytes:
    return f"{key.version}/{index}".encode().ljust(CHUNK_BYTES, b".")


@dataclass
class Node:
    name: str
    role: str
    core: RelayCore
    lies: bool = False
    alive: bool = True
    disk: dict[EncodingKey, dict[int, bytes]] = field(default_factory=dict)
    held: set[EncodingKey] = field(default_factory=set)
    abandoned: dict[EncodingKey, str] = field(default_factory=dict)
    accused: list[Accuse] = field(default_factory=list)
    jobs: deque[Callable[[], Event]] = field(default_factory=deque)
    bytes_sent: int = 0


@dataclass
class End:
    """One end of a link and what travels towards it."""

    node: Node
    link: LinkId
    incoming: deque[Callable[[], object]] = field(default_factory=deque)
    open: bool = True


class World:
    """Nodes, links between them and versions of ``chunks`` chunks each."""

    def __init__(self, random: Random, chunks: int, credit_chunks: int = 4) -> None:
        self.random = random
        self.chunks = chunks
        self.credit_chunks = credit_chunks
        self.now = 0.0
        self.nodes: dict[str, Node] = {}
        self.ends: dict[tuple[str, LinkId], tuple[End, End]] = {}  # mine, theirs
        self.dials: deque[tuple[Node, Neighbour]] = deque()
        self.next_link = 1
        self.plan_id = 0

    def add(self, name: str, role: str = "peer") -> Node:
        settings = RelaySettings(role=role, credit_chunks=self.credit_chunks, stall_timeout_s=3.0, penalty_s=20.0)
        node = Node(name, role, RelayCore(settings))
        self.nodes[name] = node
        return node

    # ------------------------------------------------------------ faults and news

    def publish(self, version: int) -> None:
        """The origin holds a version as if from an earlier life."""
        origin = self.nodes["origin"]
        origin.disk[key_of(version)] = {index: truth(key_of(version), index) for index in range(self.chunks)}
        self.tell(origin, VersionRestored(key_of(version), self.chunks))

    def announce(self, node: Node, version: int) -> None:
        self.tell(node, VersionKnown(key_of(version), self.chunks))

    def plan(self, parent_of: dict[str, str]) -> None:
        """Give every live node its part of a tree; everybody else is a fallback, the origin last."""
        self.plan_id += 1
        names = [name for name, node in self.nodes.items() if node.alive]
        for name in names:
            parents = [self._neighbour(parent_of[name], True)] if name in parent_of else []
            children = [self._neighbour(child, False) for child, parent in parent_of.items() if parent == name]
            others = [other for other in names if other not in (name, parent_of.get(name))]
            others.sort(key=lambda other: other == "origin")
            fallbacks = [self._neighbour(other, True) for other in others] if name != "origin" else []
            plan = PlanChanged(PlanId(self.plan_id), tuple(parents), tuple(children), tuple(fallbacks))
            self.tell(self.nodes[name], plan)

    def kill(self, node: Node) -> None:
        node.alive = False
        for name, link in [place for place in self.ends if place[0] == node.name]:
            self.sever(name, link)

    def sever(self, name: str, link: LinkId) -> None:
        """Cut a link; what was on its way is lost."""
        for end in self.ends.pop((name, link)):
            end.open = False
            end.incoming.clear()
            self.ends.pop((end.node.name, end.link), None)
            if end.node.alive:
                self.tell(end.node, LinkDown(end.link, "cut", self.random.random()))

    # ------------------------------------------------------------ time

    def pending(self) -> list[Callable[[], object]]:
        """Whatever may happen next."""
        steps: list[Callable[[], object]] = []
        for mine, _theirs in self.ends.values():
            if mine.incoming:
                steps.append(lambda end=mine: end.incoming.popleft()())  # type: ignore[misc]
        for node in self.nodes.values():
            if node.alive and node.jobs:
                steps.append(lambda node=node: self.tell(node, node.jobs.popleft()()))  # type: ignore[misc]
        if self.dials:
            steps.append(self._finish_dial)
        return steps

    def step(self) -> bool:
        """Let one thing happen, chosen by chance."""
        steps = self.pending()
        if steps:
            self.random.choice(steps)()
        return bool(steps)

    def tick(self, seconds: float) -> None:
        self.now += seconds
        for node in self.nodes.values():
            if node.alive:
                self.tell(node, Tick())

    def settle(self, done: Callable[[], bool], seconds: float = 300.0) -> bool:
        """Run until ``done``, or until ``seconds`` of virtual time have passed."""
        until = self.now + seconds
        while self.now < until:
            steps = 0
            while self.step():
                steps += 1
                assert steps < STEPS_MOST, "messages chase each other without time passing"
            if done():
                return True
            self.tick(0.5)
        return False

    def tell(self, node: Node, event: Event) -> list[Action]:
        actions = node.core.handle(event, self.now)
        node.core.state.validate()
        for action in actions:
            self._do(node, action)
        return actions

    # ------------------------------------------------------------ the shell

    def _do(self, node: Node, action: Action) -> None:
        match action:
            case Dial(neighbour=neighbour):
                self.dials.append((node, neighbour))
            case CloseLink(link=link):
                self._close(node, link)
            case BeginStore(key=key):
                node.disk.setdefault(key, {})
                node.jobs.append(lambda: StoreReady(key, ChunkSet(self.chunks, node.disk[key]).bitmap))
            case FinishVersion(key=key):
                node.jobs.append(lambda: VersionFinished(key))
            case AnnounceHeld(key=key):
                assert node.disk[key] == {index: truth(key, index) for index in range(self.chunks)}
                node.held.add(key)
            case AbandonVersion(key=key, reason=reason):
                node.abandoned[key] = reason
            case Accuse():
                assert self.nodes[action.peer_id].lies, f"{node.name} accuses honest {action.peer_id}"
                node.accused.append(action)
            case VerifyAndStore():
                raise AssertionError("only in answer to an arriving chunk")
            case _:
                self._send(node, action)

    def _send(self, node: Node, action: Action) -> None:
        assert isinstance(action, SendWant | SendHave | SendCredit | SendCancel | SendHeld | SendChunkList | SendChunk)
        ends = self.ends.get((node.name, action.link))
        if ends is None:
            return
        theirs = ends[1]
        if isinstance(action, SendChunk):
            node.jobs.append(lambda: ChunkSent(action.link))
            data = self._read(node, action.key, action.index)
            theirs.incoming.append(lambda: self._arrive(theirs, action.key, action.index, data))
            return
        event = _as_received(action, theirs.link)
        theirs.incoming.append(lambda: self.tell(theirs.node, event))

    def _read(self, node: Node, key: EncodingKey, index: ChunkIndex) -> bytes:
        data = node.disk[key][index]
        assert data == truth(key, index), "an invalid byte was stored and forwarded"
        node.bytes_sent += len(data)
        return bytes([data[0] ^ 1]) + data[1:] if node.lies and self.random.random() < 0.5 else data

    def _arrive(self, end: End, key: EncodingKey, index: ChunkIndex, data: bytes) -> None:
        node = end.node
        actions = node.core.handle(ChunkArrived(end.link, key, index, len(data)), self.now)
        node.core.state.validate()
        for action in actions:
            if isinstance(action, VerifyAndStore):
                node.jobs.append(lambda: self._verify(node, end.link, key, index, data))
            else:
                self._do(node, action)

    def _verify(self, node: Node, link: LinkId, key: EncodingKey, index: ChunkIndex, data: bytes) -> Event:
        if data != truth(key, index):
            return ChunkCorrupt(link, key, index)
        node.disk[key][index] = data
        return ChunkStored(link, key, index, len(data))

    def _close(self, node: Node, link: LinkId) -> None:
        ends = self.ends.pop((node.name, link), None)
        if ends is None:
            return
        mine, theirs = ends
        mine.open = False
        theirs.incoming.append(lambda: self._closed_by_other(theirs))

    def _closed_by_other(self, end: End) -> None:
        if self.ends.pop((end.node.name, end.link), None) is not None:
            end.open = False
            self.tell(end.node, LinkDown(end.link, "closed by the other end", self.random.random()))

    def _finish_dial(self) -> None:
        node, neighbour = self.dials.popleft()
        target = self.nodes[neighbour.peer_id]
        if not node.alive:
            return
        if not target.alive:
            self.tell(node, DialFailed(target_id(target), "nobody there", self.random.random()))
            return
        mine, theirs = End(node, LinkId(self.next_link)), End(target, LinkId(self.next_link + 1))
        self.next_link += 2
        self.ends[(node.name, mine.link)] = (mine, theirs)
        self.ends[(target.name, theirs.link)] = (theirs, mine)
        self.tell(node, LinkUp(mine.link, target_id(target), target.role, True))
        self.tell(target, LinkUp(theirs.link, target_id(node), node.role, False))

    def _neighbour(self, name: str, we_dial: bool) -> Neighbour:
        node = self.nodes[name]
        return Neighbour(target_id(node), node.role, f"{name}:1", we_dial)


def target_id(node: Node) -> PeerId:
    return PeerId(node.name)


def _as_received(
    action: SendWant | SendHave | SendCredit | SendCancel | SendHeld | SendChunkList, link: LinkId
) -> Event:
    match action:
        case SendWant():
            return WantReceived(link, action.key)
        case SendHave():
            return HaveReceived(link, action.key, action.chunk_count, action.bitmap, action.complete)
        case SendCredit():
            return CreditReceived(link, action.key, action.chunks)
        case SendCancel():
            return CancelReceived(link, action.key, action.reason)
        case SendHeld():
            return HeldReceived(link, action.version)
        case SendChunkList():
            return ChunkListReceived(link, action.key, True)
