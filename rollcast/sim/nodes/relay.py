"""Run a relay in a simulated process: the real core and the real version book over simulated links and disk.

It does what peer/relay/relay.py and peer/relay/versions.py do, in their order, without an event loop. Versions travel
as keyframes of a few chunks whose bytes are real and whose sizes on the wire are those of the settings.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, assert_never

from coordinator.core.events.actions import SendPlan
from coordinator.shell.peer_sender import plan_message
from peer.discovery.offline import OFFLINE_AFTER_S
from peer.links.neighbours import EncodingKey
from peer.relay.codec import plan_of
from peer.relay.core.catch_up import spared
from peer.relay.core.core import RelayCore
from peer.relay.core.state import actions, events
from peer.relay.core.state.chunk_set import ChunkSet
from peer.relay.core.state.events import LinkId
from peer.relay.core.state.relay_state import RelaySettings
from peer.relay.version_book import Acknowledge, Command, Drop, Materialise, Receive, Report, SendToAll, VersionBook
from rollcast.runtime.errors import CorruptChunk, MalformedMessage
from rollcast.sim.kernel.disk import Disk, DiskFull
from rollcast.sim.kernel.process import Process
from rollcast.sim.nodes.relay_disk import Kept, RelayDisk
from rollcast.sim.nodes.relay_links import Links, RelayHost
from rollcast.sim.versions import Published
from rollcast.sim.world import Ground
from rollcast.wire.ids import Version
from rollcast.wire.versions.chunks import check_chunk
from rollcast.wire.versions.records import KEYFRAME_ID, VerifiedVersion

_TICK_S, _IDLE_TICK_S = 0.1, 0.5
_MESSAGE_BYTES = 100.0
_EARLY_MOST = 16  # chunks kept that arrived before their chunk list
_WRITE_S = 0.005
_LEARNER_LINK = LinkId(0)
_RETRY_S = 2.0  # seconds between two attempts to store a version

Chunk = tuple[actions.SendChunk, bytes]


class Relay:
    """One process's relay; each life of the process has a new core and version book.

    Args:
        report: called with each version that is announced and whole.
        accuse: called with the peer that sent wrong bytes.
        has_session: returns whether the session with the coordinator is open.
    """

    def __init__(
        self,
        ground: Ground,
        process: Process,
        role: str,
        disk: Disk,
        hosts: dict[str, RelayHost],
        report: Callable[[VerifiedVersion], None],
        accuse: Callable[[actions.Accuse], None],
        has_session: Callable[[], bool],
    ) -> None:
        self.name = process.name
        self.role = role
        self.process = process
        self.lies = 0.0  # share of the served chunks whose bytes are wrong
        self.receipt = b""  # that it gives for a wrong chunk; empty: it denies what it sent
        self.disk = RelayDisk(disk)
        self._ground = ground
        self._report = report
        self._accuse = accuse
        self._has_session = has_session
        self._random: Random = ground.chance.of(f"relay {process.name}")
        self.links = Links(self, ground.network, hosts, self._random)
        hosts[process.name] = self
        self._chunk_bytes = ground.settings.version_bytes / ground.settings.chunks
        self._new_life()

    def _new_life(self) -> None:
        self.core = RelayCore(RelaySettings(self.role, store_retry_s=_RETRY_S))
        self.book = VersionBook(self.role, self._progress, on_arrival=True)
        self._lists: dict[EncodingKey, bytes] = {}
        self._early: list[tuple[LinkId, Chunk]] = []
        self._heard_at = self.process.agenda.now  # when a session with the coordinator was last open
        self._arriving: bytes = b""
        self._memory: dict[EncodingKey, dict[int, bytes]] = {}  # verified chunks that are not on the disk yet
        self._had: dict[int, frozenset[int]] = {}  # by version: chunks on disk when this life began (judged by I12)

    # ---------------------------------------------------------------- lives

    def begin(self) -> None:
        """Offer the whole versions that the disk holds to other relays."""
        self._new_life()
        kept = self.disk.all()
        self._had = {one.verified.version: frozenset(one.chunks) for one in kept}
        whole = [one for one in kept if one.whole]
        for one in whole:
            key = _key(one.verified.version)
            self._check_whole(one.verified.version)
            self.handle(events.VersionRestored(key, one.count, int(self._chunk_bytes)))
            self._carry_out(self.book.encoding_held(key))
        for one in whole:
            self._carry_out(self.book.add_announcement(one.verified, announced=False))
            self.handle(events.AnnouncementReceived(_key(one.verified.version)))
        self._tick()

    def killed(self) -> None:
        """Break all links of a killed process."""
        self.links.killed()

    def _tick(self) -> None:
        self.links.break_silent(self.process.agenda.now)
        self._look_for_coordinator(self.process.agenda.now)
        self.handle(events.Tick())
        self.process.later(_TICK_S if self.core.busy else _IDLE_TICK_S, self._tick)

    def _look_for_coordinator(self, now: float) -> None:
        if self._has_session():
            self._heard_at = now
        offline = now - self._heard_at >= OFFLINE_AFTER_S
        if offline != self.core.state.offline:
            self._carry_out(self.book.set_offline(offline))
            self.handle(events.OfflineChanged(offline))

    # ---------------------------------------------------------------- inputs

    def planned(self, action: SendPlan) -> None:
        """Handle a relay plan from the coordinator."""
        self.handle(plan_of(plan_message(action).relay_plan))

    def handle_announcement(self, verified: VerifiedVersion, *, announced: bool, link: LinkId | None = None) -> bool:
        """Handle an announcement from the coordinator (``announced``), a relay or the learner.

        Returns:
            False if the announcement contradicts an earlier one of the same version.
        """
        known = self.book.verified(verified.version)
        if known is not None and known.record_hash != verified.record_hash:
            return False
        learner_link = link if link == _LEARNER_LINK else None
        self._carry_out(self.book.add_announcement(verified, announced=announced, learner_link=learner_link))
        self.handle(events.AnnouncementReceived(_key(verified.version), link))
        return True

    def pushed(self, published: Published) -> bool:
        """Handle a version that the learner pushed and that is durable now.

        Returns False as ``handle_announcement`` does.
        """
        verified = published.verified
        key = _key(verified.version)
        if not self.handle_announcement(verified, announced=False):
            return False
        self.handle(events.VersionRestored(key, verified.keyframe.chunk_count, int(self._chunk_bytes)))
        self._carry_out(self.book.encoding_held(key))
        return self.handle_announcement(verified, announced=False, link=_LEARNER_LINK)

    def handle(self, event: events.Event) -> None:
        """Pass an event to the core and carry out its actions."""
        for action in self.core.handle(event, self.process.agenda.now):
            self._do(action)

    def received(self, link: LinkId, message: Any) -> None:
        """Handle a message that arrived on a link."""
        match message:
            case tuple():
                self._chunk_arrived(link, message)
            case VerifiedVersion():
                if not self.handle_announcement(message, announced=False, link=link):
                    self.links.close(link)
            case Kept():
                self._list_received(link, message)
            case _:
                self.handle(as_received(message, link))

    # ---------------------------------------------------------------- chunks

    def _list_received(self, link: LinkId, message: Kept) -> None:
        key = _key(message.verified.version)
        verified = self.book.verified(key.version)
        if verified is None:
            return
        if self._list(key) is None:
            try:
                verified.keyframe.check_chunk_list(message.hashes)
            except MalformedMessage:
                self.handle(events.ChunkListReceived(link, key, False))
                return
            self._lists[key] = message.hashes
        self.handle(events.ChunkListReceived(link, key, True))
        early, self._early = self._early, []
        for early_link, chunk in early:
            self._chunk_arrived(early_link, chunk)

    def _chunk_arrived(self, link: LinkId, chunk: Chunk) -> None:
        action, payload = chunk
        if self._list(action.key) is None:
            self._early = [*self._early, (link, chunk)][-_EARLY_MOST:]
            return
        self._arriving = payload
        self.handle(events.ChunkArrived(link, action.key, action.index, action.stripe, int(self._chunk_bytes)))
        self._arriving = b""

    def _verify(self, action: actions.Verify) -> None:
        key, index, payload = action.key, action.index, self._arriving
        hashes = self._list(key)
        assert hashes is not None, "only chunks of listed encodings are verified"
        try:
            check_chunk(hashes, index, payload)
        except CorruptChunk:
            self.handle(events.ChunkCorrupt(action.link, key, index))
            return
        if index in self._had.get(key.version, ()):
            what = f"{self.name} receives chunk {index} of version {key.version} again, which it had on disk"
            self._ground.oracle.blame("I12", what, self.process.agenda.now, self.name)
        self._memory.setdefault(key, {})[index] = payload
        self.process.later(_WRITE_S, self._write, key, index, payload)
        size = int(self._chunk_bytes)
        self.handle(events.ChunkVerified(action.link, key, index, action.stripe, size))

    def _write(self, key: EncodingKey, index: int, payload: bytes) -> None:
        self._memory[key].pop(index, None)
        try:
            self.disk.add(key.version, index, payload)
        except DiskFull:
            self.handle(events.StoreFailed(key, "the disk is full"))
            return
        self.process.later(self.disk.disk.sync_s(), self.disk.sync, key.version)

    def _list(self, key: EncodingKey) -> bytes | None:
        kept = self.disk.get(key.version)
        return kept.hashes if kept is not None else self._lists.get(key)

    def _progress(self, key: EncodingKey) -> tuple[int, int]:
        encoding = self.core.state.encodings.get(key)
        if encoding is None or not encoding.in_flight:
            return 0, 0
        return encoding.have.count, encoding.chunk_count

    # ---------------------------------------------------------------- actions of the core

    def _do(self, action: actions.Action) -> None:
        match action:
            case actions.Dial():
                self.links.dial(action.neighbour.peer_id)
            case actions.CloseLink():
                self.links.close(action.link)
            case actions.SendChunk():
                self._send_chunk(action)
            case actions.SendAnnouncement():
                verified = self.book.verified(action.version)
                if verified is not None:
                    self.links.send(action.link, verified, 8 * _MESSAGE_BYTES)
            case actions.SendChunkList():
                self._send_list(action)
            case actions.Verify():
                self._verify(action)
            case actions.BeginStore():
                self._begin_store(action.key)
            case actions.FinishVersion():
                self._finish(action.key)
            case actions.AnnounceHeld():
                self._carry_out(self.book.encoding_held(action.key))
                self.prune(self._ground.settings.versions_kept)
            case actions.AbandonVersion():
                self._abandon(action)
            case actions.GiveUp():
                self.process.kill()
            case actions.Accuse():
                self._accuse(action)
                self.links.close(action.link)
            case actions.ListChunks() | actions.Warn():
                pass  # versions travel as keyframes here; warnings are for the person who runs the process
            case _:
                self.links.send(action.link, action, _MESSAGE_BYTES)

    def _send_chunk(self, action: actions.SendChunk) -> None:
        kept = self.disk.get(action.key.version)
        life = self.process.life

        def sent() -> None:
            self.process.call_in_life(life, self.handle, events.ChunkSent(action.link))

        payload = self._memory.get(action.key, {}).get(action.index)
        if payload is None and kept is not None:
            payload = kept.chunks.get(action.index)
        if payload is None:  # pruned since the core decided to send it
            self.process.later(0.0, sent)
            return
        hashes = self._list(action.key)
        self._ground.oracle.relayed(
            self.name, action.key.version, action.index, payload, hashes, self.process.agenda.now
        )
        if self.lies and self._random.random() < self.lies:
            payload = bytes(reversed(payload))
        self.links.send(action.link, (action, payload), _MESSAGE_BYTES + self._chunk_bytes, sent)

    def _send_list(self, action: actions.SendChunkList) -> None:
        verified, hashes = self.book.verified(action.key.version), self._list(action.key)
        if verified is not None and hashes is not None:
            self.links.send(action.link, Kept(verified, hashes), _MESSAGE_BYTES)

    def _begin_store(self, key: EncodingKey) -> None:
        verified, hashes = self.book.verified(key.version), self._list(key)
        assert verified is not None, "only known versions are received"
        assert hashes is not None, "only listed encodings are stored"
        self.process.later(_WRITE_S, self._open, key, verified, hashes)

    def _open(self, key: EncodingKey, verified: VerifiedVersion, hashes: bytes) -> None:
        try:
            kept = self.disk.begin(verified, hashes)
        except DiskFull:
            self.handle(events.StoreFailed(key, "the disk is full"))
            return
        self._lists.pop(key, None)
        self.handle(events.StoreReady(key, ChunkSet(kept.count, kept.chunks).bitmap))

    def _finish(self, key: EncodingKey) -> None:
        if self._memory.get(key):
            self.process.later(_WRITE_S, self._finish, key)
            return
        kept = self.disk.get(key.version)
        if kept is None or not kept.passes:
            self.handle(events.StoreFailed(key, "its state does not hash to its record"))
            return
        try:
            self.disk.finish(key.version)
        except DiskFull:
            self.handle(events.StoreFailed(key, "the disk is full"))
            return
        self.process.later(self.disk.disk.sync_s(), self.disk.sync, key.version)
        self.handle(events.VersionFinished(key))

    def _abandon(self, action: actions.AbandonVersion) -> None:
        key = action.key
        self._lists.pop(key, None)
        self._had.pop(key.version, None)
        self.book.given_up(key, again=action.again)
        self.disk.discard(key.version)
        if action.in_vain:
            self._carry_out(self.book.not_to_be_had(key))

    def prune(self, keep: int) -> None:
        """Remove versions older than the newest ``keep`` whole ones, except those that a neighbour is fetching."""
        needed = spared(self.core.state) | self.book.in_use
        gone = [version for version in self.disk.surplus(keep) if _key(version) not in needed]
        for version in gone:
            self.disk.discard(version)
        if gone:
            keys = tuple(_key(version) for version in gone)
            self.book.removed(frozenset(keys))
            self.handle(events.VersionsRemoved(keys))

    # ---------------------------------------------------------------- commands of the version book

    def _carry_out(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Receive(manifest=manifest):
                    key = _key(manifest.version)
                    listed = self._list(key) is not None
                    sizes = (manifest.chunk_count, int(self._chunk_bytes))
                    self.handle(events.EncodingKnown(key, *sizes, command.announced, listed, command.holder))
                case Drop():
                    self.handle(events.EncodingUnwanted(command.key, command.reason))
                case Report():
                    self._check_whole(command.version)
                    kept = self.disk.get(command.version)
                    if kept is not None:
                        self._report(kept.verified)
                case SendToAll():
                    self.handle(events.BroadcastStarted(command.key))
                case Acknowledge() | Materialise():
                    pass  # the push is answered by its call; versions travel as keyframes
                case _:
                    assert_never(command)

    def _check_whole(self, version: Version) -> None:
        kept = self.disk.get(version)
        if kept is None or not kept.complete:
            what = f"{self.name} offers version {version}, of which chunks are missing"
            self._ground.oracle.blame("I12", what, self.process.agenda.now, self.name)


def _key(version: Version) -> EncodingKey:
    return EncodingKey(version, KEYFRAME_ID)


def as_received(action: actions.Action, link: LinkId) -> events.Event:
    """Return the event that the other end's core receives when this core sends ``action``."""
    match action:
        case actions.SendWant():
            return events.WantReceived(link, action.key, action.chunk_list, action.announcement)
        case actions.SendRequest():
            return events.RequestReceived(link, action.key, action.indices)
        case actions.SendHave():
            return events.HaveReceived(link, action.key, action.chunk_count, action.bitmap, action.complete)
        case actions.SendGot():
            return events.GotReceived(link, action.key, action.indices)
        case actions.SendDecline():
            return events.DeclineReceived(link, action.key, action.indices)
        case actions.SendCredit():
            return events.CreditReceived(link, action.key, action.indices)
        case actions.SendCancel():
            return events.CancelReceived(link, action.key, action.reason)
        case _:
            raise ValueError(f"{action} is no message")
