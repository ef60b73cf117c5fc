"""The relay of one process: links, store and core together. Receives versions, verifies them, passes them on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import assert_never

import structlog

from peer.config import LinkConfig
from peer.direct_transport import DirectTransport
from peer.link_runner import LinkRunner, OutgoingChunk
from peer.relay_actions import (
    AbandonVersion,
    Accuse,
    Action,
    AnnounceHeld,
    BeginStore,
    CloseLink,
    Dial,
    FinishVersion,
    GiveUp,
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
    ChunkArrived,
    ChunkListReceived,
    ChunkSent,
    DialFailed,
    EncodingKey,
    Event,
    LinkDown,
    LinkId,
    LinkUp,
    Neighbour,
    Tick,
    VersionKnown,
    VersionRestored,
)
from peer.relay_state import RelaySettings
from peer.relay_stats import RelayStats, stats_of
from peer.relay_wire import accusation_of, event_of, key_of, message_of, plan_of
from peer.store_worker import StoreWorker, keep_verified
from peer.transport import ChunkTransport, Link, say_goodbye
from rollcast.runtime.errors import MalformedMessage, RollcastError, StoreError
from rollcast.wire.chunk_store import ChunkStore
from rollcast.wire.ids import ChunkIndex, RunId, Version
from rollcast.wire.link import ChunkFrame, LinkFrame, LinkMessageFrame
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.records import KEYFRAME_ID, VerifiedVersion, verify_announcement
from rollcast.wire.stored_encoding import StoredEncoding
from rollcast.wire.tls import Caller, TlsCredentials

log = structlog.get_logger()

OnComplete = Callable[[VerifiedVersion, StoredEncoding], None]
OnAccuse = Callable[[pb.Accusation], None]
OnGiveUp = Callable[[StoreError], None]


class Relay:
    """Make it inside a running event loop.

    Args:
        credentials: certificate of the run CA that names us.
        store: where versions are kept; nobody else writes to it.
        store_retry_s: see peer.config.StoreConfig.
        learner_public_key: 32 bytes; only what this key signed is received.
        role: "peer", or "origin", which also takes versions from the learner.
        on_complete: called on the event loop when a version is complete, durable and its state hash matches; also
            for an announced version that the store holds already.
        on_accuse: called on the event loop with what to tell the coordinator about a peer that sent wrong bytes.
        on_give_up: called on the event loop once nothing can be stored.
        transport: how links are opened; by default directly.
    """

    def __init__(
        self,
        *,
        credentials: TlsCredentials,
        store: ChunkStore,
        config: LinkConfig,
        store_retry_s: float,
        run_id: RunId,
        learner_public_key: bytes,
        role: str,
        on_complete: OnComplete,
        on_accuse: OnAccuse,
        on_give_up: OnGiveUp,
        transport: ChunkTransport | None = None,
    ) -> None:
        self.role = role
        self._store = store
        self._run_id = run_id
        self._learner_public_key = learner_public_key
        self._on_complete = on_complete
        self._on_accuse = on_accuse
        self._on_give_up = on_give_up
        self._transport = transport or DirectTransport(config, credentials, run_id, self.admit)
        self._core = RelayCore(RelaySettings(role, config.credit_chunks, config.stall_timeout_s, store_retry_s))
        self._tick_s = min(0.25, config.stall_timeout_s / 4)
        self._worker = StoreWorker(store, self._handle)
        self._versions: dict[Version, VerifiedVersion] = {}
        self._lists: dict[EncodingKey, bytes] = {}
        self._reported: set[Version] = set()
        self._received_any = False
        self._runners: dict[LinkId, LinkRunner] = {}
        self._last_link = 0
        self._chunk_bytes_sent = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._arriving: ChunkFrame | None = None
        self._closing = False

    # ------------------------------------------------------------ what others call

    async def start(self) -> str:
        """Accept links and offer what the store holds.

        Returns:
            host:port that others can dial; empty where they cannot.

        Raises:
            PortInUse: the address cannot be bound.
            ConfigError: the address to advertise is not known.
            StoreError: what another learner signed cannot be removed from the store.
        """
        for stored in await asyncio.to_thread(keep_verified, self._store, self._verified):
            self._versions[stored.version] = stored.verified
            key = EncodingKey(stored.version, KEYFRAME_ID)
            self._handle(VersionRestored(key, stored.manifest.chunk_count))
        address = await self._transport.start(self._run_link)
        self._spawn(self._worker.run())
        self._spawn(self._tick())
        return address

    def apply_plan(self, plan: pb.RelayPlan) -> None:
        """Follow the coordinator's newest plan; older ones are ignored."""
        self._handle(plan_of(plan))

    def announce(self, announcement: pb.VersionAnnouncement) -> VerifiedVersion:
        """Verify an announcement and receive its version.

        Raises:
            WrongKey: signed by somebody else than the learner.
            BadSignature: changed after it was signed.
            MalformedMessage: of another run, out of bounds, or another record than the one we have of that version.
        """
        return self._announced(announcement, None)

    def renew(self, credentials: TlsCredentials) -> None:
        """Use a renewed certificate for links opened from now on."""
        self._transport.renew(credentials)

    def stats(self) -> RelayStats:
        """Where the relay stands."""
        links = [runner.link for runner in self._runners.values()]
        return stats_of(self._core.state, links, self._chunk_bytes_sent)

    def admit(self, caller: Caller) -> str:
        """Why a caller may not have a link with us; empty where it may."""
        accepted = ("learner", "origin", "peer") if self.role == "origin" else ("origin", "peer")
        return "" if caller.role in accepted else f"a {self.role} accepts no links from a {caller.role}"

    async def close(self) -> None:
        """End every link; what is verified stays on disk."""
        self._closing = True
        for runner in self._runners.values():
            runner.end("this process stops")
        await self._transport.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self._worker.close)

    def _verified(self, announcement: pb.VersionAnnouncement) -> VerifiedVersion:
        return verify_announcement(announcement, run_id=self._run_id, learner_public_key=self._learner_public_key)

    # ------------------------------------------------------------ events in

    def _handle(self, event: Event) -> None:
        if self._closing:
            return
        for action in self._core.handle(event, asyncio.get_running_loop().time()):
            self._do(action)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._tick_s)
            self._handle(Tick())

    def _announced(self, announcement: pb.VersionAnnouncement, link: LinkId | None) -> VerifiedVersion:
        verified = self._verified(announcement)
        version = verified.version
        known = self._versions.get(version)
        if known is not None and known.record_hash != verified.record_hash:
            raise MalformedMessage(f"the learner signed two records of version {version}")
        key = EncodingKey(version, KEYFRAME_ID)
        stored = self._store.get(version, KEYFRAME_ID)
        held = stored is not None and stored.finished
        # What an earlier life of this process began can only be of the first version that we hear of now.
        resumable = not held and not self._received_any
        self._received_any = self._received_any or not held
        self._versions[version] = verified
        self._handle(VersionKnown(key, verified.keyframe.chunk_count, link, resumable))
        if held:
            self._report(key)
        return verified

    def _report(self, key: EncodingKey) -> None:
        stored = self._store.get(key.version, key.encoding_id)
        if stored is not None and key.version not in self._reported:
            self._reported.add(key.version)
            log.info("version held", version=key.version)
            self._on_complete(stored.verified, stored)

    # ------------------------------------------------------------ links

    async def _run_link(self, link: Link) -> None:
        self._last_link += 1
        link_id = LinkId(self._last_link)
        runner = LinkRunner(
            link_id,
            link,
            read_chunk=self._worker.read,
            on_frame=self._on_frame,
            on_chunk_sent=self._on_chunk_sent,
        )
        self._runners[link_id] = runner
        log.info("link up", peer=link.peer_id, peer_role=link.role, dialled=link.dialled)
        reason = "this process stops"
        try:
            self._handle(LinkUp(link_id, link.peer_id, link.role, link.dialled))
            reason = await runner.run()
            if runner.ended_by_us:
                await say_goodbye(link, runner.code, reason)
        finally:
            self._runners.pop(link_id, None)
            await link.close()
            log.info("link down", peer=link.peer_id, reason=reason)
            self._handle(LinkDown(link_id, reason, random.random()))

    async def _dial(self, neighbour: Neighbour) -> None:
        try:
            link = await self._transport.dial(neighbour.peer_id, neighbour.address)
        except RollcastError as error:
            log.info("dial failed", peer=neighbour.peer_id, address=neighbour.address, reason=error.what)
            self._handle(DialFailed(neighbour.peer_id, error.what, random.random()))
            return
        await self._run_link(link)

    def _on_frame(self, runner: LinkRunner, frame: LinkFrame) -> None:
        match frame:
            case ChunkFrame():
                self._arriving = frame
                key = EncodingKey(frame.version, frame.encoding_id)
                self._handle(ChunkArrived(runner.link_id, key, frame.index, len(frame.payload)))
                self._arriving = None
            case LinkMessageFrame(message=message):
                self._on_message(runner, message)

    def _on_message(self, runner: LinkRunner, message: pb.LinkMessage) -> None:
        match message.WhichOneof("body"):
            case "announcement":
                if self.role == "origin" and runner.link.role == "learner":
                    self._announced(message.announcement, runner.link_id)
            case "chunk_list":
                self._on_chunk_list(runner, message.chunk_list)
            case "error":
                runner.end(f"the other end closed the link: {message.error.code} {message.error.what}")
            case _:
                event = event_of(runner.link_id, message)
                if event is not None:
                    self._handle(event)

    def _on_chunk_list(self, runner: LinkRunner, message: pb.ChunkList) -> None:
        key = key_of(message)
        verified = self._versions.get(key.version)
        manifest = verified.manifest(key.encoding_id) if verified is not None else None
        encoding = self._core.state.encodings.get(key)
        if manifest is None or encoding is None or encoding.phase != "waiting":
            return  # not asked for, or known already
        try:
            manifest.check_chunk_list(message.hashes)
            self._lists[key] = message.hashes
            valid = True
        except MalformedMessage:
            valid = False
        self._handle(ChunkListReceived(runner.link_id, key, valid))

    def _on_chunk_sent(self, runner: LinkRunner, size_bytes: int) -> None:
        self._chunk_bytes_sent += size_bytes
        self._handle(ChunkSent(runner.link_id))

    # ------------------------------------------------------------ actions out

    def _do(self, action: Action) -> None:
        match action:
            case SendWant() | SendHave() | SendCredit() | SendCancel():
                self._post(action.link, message_of(action))
            case SendChunk(link=link, key=key, index=index):
                self._post(link, OutgoingChunk(key, index))
            case SendChunkList() | SendHeld():
                self._send_from_store(action)
            case VerifyAndStore(link=link, key=key, index=index):
                self._verify_and_store(link, key, index)
            case BeginStore() | FinishVersion() | AnnounceHeld() | AbandonVersion():
                self._do_to_version(action)
            case Dial(neighbour=neighbour):
                self._spawn(self._dial(neighbour))
            case CloseLink(link=link, reason=reason):
                self._close_link(link, reason)
            case Accuse():
                self._accuse(action)
            case GiveUp(version=version, reason=reason, fix=fix):
                self._on_give_up(
                    StoreError(f"cannot store version {version}, after several tries", cause=reason, fix=fix)
                )
            case _:
                assert_never(action)

    def _do_to_version(self, action: BeginStore | FinishVersion | AnnounceHeld | AbandonVersion) -> None:
        key = action.key
        match action:
            case BeginStore():
                verified = self._versions[key.version]
                manifest = verified.manifest(key.encoding_id)
                assert manifest is not None
                self._worker.begin(key, verified, manifest, self._lists.pop(key))
            case FinishVersion():
                self._worker.finish(key)
            case AnnounceHeld():
                self._report(key)
                self._worker.prune()
                self._forget_old_versions()
            case AbandonVersion(reason=reason):
                log.info("version abandoned", version=key.version, reason=reason)
                self._worker.discard(key)

    def _forget_old_versions(self) -> None:
        state = self._core.state
        known = {key.version for key in state.encodings}
        if state.store_failure is not None:
            known.add(state.store_failure.key.version)  # received again later
        self._versions = {version: record for version, record in self._versions.items() if version in known}
        self._reported &= known

    def _send_from_store(self, action: SendChunkList | SendHeld) -> None:
        match action:
            case SendChunkList(link=link, key=key):
                stored = self._store.get(key.version, key.encoding_id)
                if stored is not None:
                    body = pb.ChunkList(version=key.version, encoding_id=key.encoding_id, hashes=stored.chunk_list())
                    self._post(link, pb.LinkMessage(chunk_list=body))
            case SendHeld(link=link, version=version):
                epoch = self._versions[version].record.epoch
                self._post(link, pb.LinkMessage(held=pb.VersionHeld(epoch=epoch, version=version)))

    def _verify_and_store(self, link: LinkId, key: EncodingKey, index: ChunkIndex) -> None:
        assert self._arriving is not None, "only in answer to an arriving chunk"
        self._worker.write(link, key, index, self._arriving.payload)

    def _post(self, link: LinkId, item: pb.LinkMessage | OutgoingChunk) -> None:
        runner = self._runners.get(link)
        if runner is not None:
            runner.post(item)

    def _close_link(self, link: LinkId, reason: str) -> None:
        runner = self._runners.get(link)
        if runner is not None:
            runner.end(reason)

    def _accuse(self, action: Accuse) -> None:
        log.warning("peer accused", culprit=action.peer_id, version=action.version, reason=action.reason)
        self._on_accuse(accusation_of(action))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("relay task failed", exc_info=error)
