"""Run the relay of one process: connect links and store to the core, which decides what is received and passed on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import assert_never

import structlog

from peer.config import PeerConfig
from peer.links.dial_policy import DialPolicy
from peer.links.gate import BANNED, NetworkGate, refusal
from peer.links.neighbours import EncodingKey, Neighbour
from peer.links.traffic import LinkTraffic
from peer.links.transport import Link, LinkReceiver
from peer.links.uplink_probe import Prober
from peer.mirrors.http_ranges import shown
from peer.mirrors.publish import mirror_folder_of
from peer.mirrors.transport import MirrorTransport, own_mirrors
from peer.relay.accusations import Accusations
from peer.relay.codec import event_of, key_of, plan_of
from peer.relay.core.catch_up import spared
from peer.relay.core.core import RelayCore
from peer.relay.core.state import actions as acts
from peer.relay.core.state.events import (
    ChunkSent,
    DialFailed,
    Event,
    HoldersKnown,
    LinkDown,
    LinkId,
    LinkUp,
    OfflineChanged,
    Tick,
)
from peer.relay.core.state.relay_state import RelaySettings
from peer.relay.link import LinkWatcher, RelayLink
from peer.relay.sender import RelaySending
from peer.relay.stats import RelayStats, VersionBytes, stats_of
from peer.relay.versions import OnComplete, RelayVersions
from peer.transports.transports import transports_of
from peer.transports.upgrades import Upgrading
from rollcast.runtime.background import Background, or_fail
from rollcast.runtime.errors import MalformedMessage, RollcastError, StoreError
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.tls import Caller, TlsCredentials
from rollcast.wire.ids import PeerId, RunId, Version
from rollcast.wire.links.frames import ChunkFrame, LinkFrame, LinkMessageFrame
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.versions.chunk_store import ChunkStore
from rollcast.wire.versions.records import VerifiedVersion, verify_announcement

log = structlog.get_logger()

OnAccuse = Callable[[pb.Accusation], None]
OnGiveUp = Callable[[Exception], None]

_TICK_S = 0.05
_IDLE_TICK_S = 0.25
# The pause after a tick is this many times as long as it took: on a full processor ticks take long, and fewer come.
_PAUSE_TICKS = 10.0


def tick_pause_s(took_s: float, *, busy: bool) -> float:
    """Return the seconds until the next tick.

    Args:
        took_s: how long the last one took, waits for the processor included.
        busy: whether chunks are on their way.
    """
    return min(_IDLE_TICK_S, max(_TICK_S, _PAUSE_TICKS * took_s)) if busy else _IDLE_TICK_S


class Relay:
    """Receives versions, verifies them and passes them on; an origin takes them from the learner and broadcasts them.

    Make it inside a running event loop.

    Args:
        credentials: this process's certificate of the run CA; ``identity`` is its key, which signs receipts and which
            libp2p needs.
        store: the store of versions; no other component writes to it.
        learner_public_key: 32 bytes; only what this key signed is received.
        on_complete: called on the event loop when an announced version's state is verified; also for one that the
            store holds already.
        on_accuse: called on the event loop with the report on a peer that sent wrong bytes, for the coordinator.
        on_give_up: called on the event loop once nothing can be stored, or once periodic work broke, which is a bug.
        coordinator_host: returns the host of the coordinator's address that is in use, on which it depends which
            addresses are dialled.
    """

    def __init__(
        self,
        *,
        credentials: TlsCredentials,
        store: ChunkStore,
        config: PeerConfig,
        run_id: RunId,
        learner_public_key: bytes,
        on_complete: OnComplete,
        on_accuse: OnAccuse,
        on_give_up: OnGiveUp,
        coordinator_host: Callable[[], str],
        identity: Identity,
    ) -> None:
        self.role = role = config.role
        self._mirrors = own_mirrors(config.mirror)
        self._run_id = run_id
        self._learner_public_key = learner_public_key
        self._on_give_up = on_give_up
        keep = config.store
        settings = RelaySettings(role, config.link.stall_timeout_s, keep.retry_s, keep.give_up_s, random.random())
        self._core = RelayCore(settings)
        self._versions = RelayVersions(
            store,
            role,
            verify=self._verified,
            handle=self._handle,
            post=self._post,
            progress=self._progress,
            spared=lambda: spared(self._core.state),
            on_complete=on_complete,
            mirror_folder=mirror_folder_of(config.mirror, store),
            on_arrival=config.link.relay_on_arrival,
        )
        self.traffic = LinkTraffic(config.link)
        self.policy = DialPolicy(coordinator_host, networks=config.link.dial_networks)
        mirrors = MirrorTransport(config.mirror, self._versions.known, self.traffic)
        self.transports = transports_of(
            config.link, credentials, run_id, self.admit, mirrors, self.traffic, identity, self.policy
        )
        self._links: dict[LinkId, RelayLink] = {}
        self._background = Background("relay task failed")
        self._sending = RelaySending(
            self._links,
            self._versions,
            sent=self._handle,
            spawn=self._background.spawn,
            soon=asyncio.get_running_loop().call_soon,
        )
        self._accusations = Accusations(run_id, identity, self._versions, self._sending.read, on_accuse)
        self._upgrading = Upgrading(self.transports, self, random.SystemRandom())
        self._last_link = 0
        self._chunk_bytes_sent = 0
        self._paused = self._closing = False
        self._bytes_received = VersionBytes()
        self._prober = Prober()
        self._gate = NetworkGate()
        self._banned: frozenset[PeerId] = frozenset()
        self.watcher: LinkWatcher | None = None
        """Gets notice of links, and the peer records that arrive on them; None: no watcher."""

    # ------------------------------------------------------------ what the peer calls

    async def start(self) -> str:
        """Accept links and offer what the store holds.

        Returns:
            host:port that other processes can dial; empty if they cannot.

        Raises:
            PortInUse: the address cannot be bound.
            ConfigError: the address to advertise is not known.
            StoreError: versions that another learner signed cannot be removed from the store.
        """
        self._versions.restore()
        address = await self.transports.start(self._on_link)
        for work in (self._versions.worker.run(), self._tick(), self._upgrading.run()):
            self._background.spawn(or_fail(work, self._on_give_up))
        return address

    def apply_plan(self, plan: pb.RelayPlan) -> None:
        """Follow the coordinator's newest plan; older ones are ignored.

        Raises:
            MalformedMessage: the plan names a neighbour or a stripe that does not exist.
        """
        changed = plan_of(plan)
        self.transports.expect((*changed.neighbours, *changed.fallbacks))
        self._handle(replace(changed, fallbacks=(*changed.fallbacks, *self._mirrors)))

    def announce(self, announcement: pb.VersionAnnouncement) -> VerifiedVersion:
        """Verify an announcement of the coordinator and receive its version.

        Raises:
            WrongKey: another key than the learner's signed it.
            BadSignature: it was changed after it was signed.
            MalformedMessage: it is of another run or out of bounds, or another record of that version is here.
        """
        return self._versions.add_announcement(announcement, announced=True)

    def receive_again(self, version: Version) -> None:
        """Discard the stored state of a version, which proved damaged, and receive or compute it again."""
        self._versions.receive_again(version)

    def set_offline(self, offline: bool) -> None:
        """Note whether the coordinator is unreachable: then the learner's signature is enough to receive a version, and
        every linked peer may be asked."""
        self._versions.set_offline(offline)
        self._handle(OfflineChanged(offline))

    def know_holders(self, holders: tuple[Neighbour, ...]) -> None:
        """Set the peers to dial where the plan's neighbours and fallbacks do not help, the likeliest first."""
        self.policy.know_near("found", (holder.peer_id for holder in holders if holder.lan))
        self._handle(HoldersKnown(holders))

    def renew(self, credentials: TlsCredentials) -> None:
        """Use a renewed certificate for links opened from now on."""
        self.transports.renew(credentials)

    def bytes_received(self, version: int) -> int:
        """Return the bytes of chunks received for a version, in any encoding; 0 for all but the newest versions."""
        return self._bytes_received.of(version)

    def probe(self, probe: pb.Probe) -> None:
        """Measure the uplink by sending padding to a neighbour; the result appears in ``stats``."""
        link = self._core.state.link_to.get(PeerId(probe.peer_id))
        if link is not None and self._gate.send:
            self._background.spawn(self._prober.run(self._links[link.link].link, probe))

    def allow(self, gate: NetworkGate) -> None:
        """Apply the owner's limits on chunks. If none may come in, every link is closed and none is opened."""
        self._gate = self._sending.gate = gate
        self.transports.allow(gate)
        for link in () if gate.links else list(self._links.values()):
            link.close(gate.reason)

    def keep_out(self, banned: frozenset[PeerId]) -> None:
        """Set the peers that the operator banned: links with them are closed, and none is accepted."""
        self._banned = banned
        self.transports.keep_out(banned)
        for link in [one for one in self._links.values() if one.link.peer_id in banned]:
            link.close(BANNED)

    def stats(self) -> RelayStats:
        """Return the relay's progress and counters."""
        links = [link.link for link_id, link in self._links.items() if link_id in self._core.state.links]
        now = asyncio.get_running_loop().time()
        stats = stats_of(self._core.state, links, self.traffic, self._chunk_bytes_sent, now)
        stats.report.addresses_refused = self.policy.refused
        stats.report.uplink_probe_id = self._prober.last_id
        stats.report.p2p = self.transports.p2p.state if self.transports.p2p is not None else ""
        stats.report.delta_bytes_saved = self._versions.delta_bytes_saved
        return stats

    def admit(self, caller: Caller) -> str:
        """Return why a caller may not have a link with this process; empty if it may."""
        return refusal(caller, self.role, self._gate, self._banned)

    def _closed_to(self, peer_id: PeerId) -> str:
        """Return why there may be no link with a peer; empty if there may be one."""
        return self._gate.reason if not self._gate.links else BANNED if peer_id in self._banned else ""

    async def close(self) -> None:
        """Close every link; verified chunks stay on disk."""
        self._closing = True
        for link in list(self._links.values()):
            link.close("the process that closed it shuts down")
        await self.transports.close()
        await self._background.end()
        await asyncio.to_thread(self._versions.worker.close)

    def _verified(self, announcement: pb.VersionAnnouncement) -> VerifiedVersion:
        return verify_announcement(announcement, run_id=self._run_id, learner_public_key=self._learner_public_key)

    def _progress(self, key: EncodingKey) -> tuple[int, int]:
        encoding = self._core.state.encodings.get(key)
        if encoding is None or not encoding.in_flight:
            return 0, 0
        return encoding.have.count, encoding.chunk_count

    # ------------------------------------------------------------ events in

    def _handle(self, event: Event) -> None:
        if self._closing:
            return
        for action in self._core.handle(event, asyncio.get_running_loop().time()):
            self._do(action)

    async def _tick(self) -> None:
        loop, took_s = asyncio.get_running_loop(), 0.0
        while True:
            await asyncio.sleep(tick_pause_s(took_s, busy=self._core.busy and self._gate.links))
            began_s = loop.time()
            self._handle(Tick())
            self._versions.tick(began_s)
            self._throttle()
            took_s = loop.time() - began_s

    def _throttle(self) -> None:
        """Stop reading links while the disk is far behind, and read them again once it has caught up."""
        if self._versions.worker.memory.full == self._paused:
            return
        self._paused = not self._paused
        for link in self._links.values():
            if self._paused:
                link.link.pause_reading()
            else:
                link.link.resume_reading()

    # ------------------------------------------------------------ links

    def _on_link(self, link: Link) -> LinkReceiver:
        self._last_link += 1
        relay_link = RelayLink(LinkId(self._last_link), link, self)
        self._links[relay_link.link_id] = relay_link
        log.info("link up", peer=link.peer_id, peer_role=link.role, dialled=link.dialled, transport=link.transport)
        # The transport sets the receiver after this returns; before that the link must not be used.
        asyncio.get_running_loop().call_soon(self._link_up, relay_link)
        return relay_link

    def _link_up(self, link: RelayLink) -> None:
        if link.link_id in self._links:
            if self._paused:
                link.link.pause_reading()
            rtt_s = link.link.measure().rtt_s
            self._handle(LinkUp(link.link_id, link.link.peer_id, link.link.role, link.link.dialled, rtt_s))
            if self.watcher is not None:
                self.watcher.linked(link.link)
            if closed := self._closed_to(link.link.peer_id):  # the limit or ban came while it was dialled or greeted
                link.close(closed)

    async def _dial(self, neighbour: Neighbour) -> None:
        if closed := self._closed_to(neighbour.peer_id):
            self._handle(DialFailed(neighbour.peer_id, closed, random.random()))
            return
        try:
            link = await self.transports.dial(neighbour.peer_id, neighbour.address, neighbour.role)
        except RollcastError as error:
            log.info("dial failed", peer=neighbour.peer_id, address=shown(neighbour.address), reason=error.what)
            self._handle(DialFailed(neighbour.peer_id, error.what, random.random()))
            if self.watcher is not None:
                self.watcher.not_reached(neighbour.peer_id)
            return
        self.take_link(link)

    def take_link(self, link: Link) -> None:
        """See peer.transports.upgrades.LinkHolder."""
        link.start(self._on_link(link))

    def open_links(self) -> list[tuple[Link, str]]:
        """See peer.transports.upgrades.LinkHolder. The newest link of each peer that this process dialled: the end that
        dials looks for a better address."""
        state = self._core.state
        newest = [one.link for one in state.links.values() if state.link_to.get(one.peer_id) is one]
        links = [self._links[link_id].link for link_id in newest if link_id in self._links]  # not while closing
        plan = {one.peer_id: one.address for one in (*state.plan.fallbacks, *state.plan.neighbours) if one.we_dial}
        return [(link, plan.get(link.peer_id, "")) for link in links if link.dialled] if self._gate.links else []

    def drop_link(self, link: Link, reason: str) -> None:
        """See peer.transports.upgrades.LinkHolder."""
        for one in self._links.values():
            if one.link is link:
                one.close(reason)
                return

    def received(self, link: RelayLink, frame: LinkFrame) -> None:
        """See peer.relay.link.LinkOwner."""
        match frame:
            case ChunkFrame():
                self._on_chunk(link, frame)
                if self._versions.worker.memory.full:
                    self._throttle()
            case LinkMessageFrame(message=message):
                self._on_message(link, message)

    def _on_chunk(self, link: RelayLink, frame: ChunkFrame) -> None:
        now = asyncio.get_running_loop().time()
        if self._versions.known(frame.version) is not None:
            self._bytes_received.add(frame.version, len(frame.payload))
        elif link.link.role == "learner":
            if refused := self._versions.draft_arrived(frame, now):
                link.close(refused, MalformedMessage.code)
            return
        self._versions.chunk_arrived(link.link_id, frame, now)

    def sent(self, link: RelayLink, size_bytes: int) -> None:
        """See peer.relay.link.LinkOwner."""
        self._chunk_bytes_sent += size_bytes
        self._handle(ChunkSent(link.link_id))

    def ended(self, link: RelayLink, reason: str) -> None:
        """See peer.relay.link.LinkOwner."""
        if self._links.pop(link.link_id, None) is not None:
            log.info("link down", peer=link.link.peer_id, reason=reason)
            self._versions.link_lost(link.link_id)
            self._accusations.link_lost(link.link_id)
            self._handle(LinkDown(link.link_id, reason, random.random()))
            if self.watcher is not None:
                self.watcher.unlinked(link.link)

    def _on_message(self, link: RelayLink, message: pb.LinkMessage) -> None:
        match message.WhichOneof("body"):
            case "announcement" if link.may_announce(asyncio.get_running_loop().time()):
                self._on_announcement(link, message.announcement)
            case "chunk_list":
                self._versions.list_received(link.link_id, key_of(message.chunk_list), message.chunk_list.hashes)
            case "receipt_request":
                self._background.spawn(self._accusations.give_receipt(link, message.receipt_request))
            case "receipt":
                self._accusations.receipt_received(link.link_id, message.receipt)
            case "peer_records":
                if self.watcher is not None:
                    self.watcher.records_received(link.link, message.peer_records)
            case _:
                event = event_of(link.link_id, message)
                if event is not None:
                    self._handle(event)

    def _on_announcement(self, link: RelayLink, announcement: pb.VersionAnnouncement) -> None:
        """Take an announcement: the learner's begins a push to the origin, a relay's precedes the coordinator's."""
        from_learner = link.link.role == "learner"
        try:
            self._versions.add_announcement(announcement, announced=False, link=link.link_id, learner=from_learner)
        except RollcastError as error:
            link.close(error.what, error.code)

    # ------------------------------------------------------------ actions out

    def _do(self, action: acts.Action) -> None:
        match action:
            case acts.Verify():
                self._versions.verify(action)
            case acts.SendChunk() | acts.SendWant() | acts.SendRequest() | acts.SendHave() | acts.SendCredit():
                self._sending.send(action)
            case acts.SendGot() | acts.SendDecline():
                self._sending.send(action)
            case acts.SendCancel() | acts.SendAnnouncement() | acts.SendChunkList():
                self._sending.send(action)
            case (
                acts.BeginStore()
                | acts.FinishVersion()
                | acts.AnnounceHeld()
                | acts.ListChunks()
                | acts.AbandonVersion()
            ):
                self._versions.carry_out(action)
            case acts.Dial(neighbour=neighbour):
                self._background.spawn(self._dial(neighbour))
            case acts.CloseLink(link=link, reason=reason):
                if link in self._links:
                    self._links[link].close(reason)
            case acts.Accuse():
                self._background.spawn(self._accusations.accuse(action, self._links.get(action.link)))
            case acts.GiveUp(version=version, reason=reason, fix=fix):
                what = f"cannot store version {version}, after several tries"
                self._on_give_up(StoreError(what, cause=reason, fix=fix))
            case acts.Warn(code=code, what=what, fix=fix):
                log.warning(what, code=code, fix=fix)
            case _:
                assert_never(action)

    def _post(self, link_id: LinkId, message: pb.LinkMessage) -> None:
        self._sending.post(link_id, message)
