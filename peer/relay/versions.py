"""Handle versions in the relay's shell: announcements, chunk lists, the store, and the version book's commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

import structlog

from peer.links.neighbours import EncodingKey
from peer.mirrors.publish import MirrorFolder
from peer.relay.chunk_memory import EarlyChunks
from peer.relay.core.state.actions import AbandonVersion, AnnounceHeld, BeginStore, FinishVersion, ListChunks, Verify
from peer.relay.core.state.events import (
    AnnouncementReceived,
    BroadcastStarted,
    ChunkArrived,
    ChunkCorrupt,
    ChunkListReceived,
    ChunkVerified,
    EncodingKnown,
    EncodingUnwanted,
    Event,
    KeyframeMade,
    LinkId,
    StoreReady,
    VersionRestored,
    VersionsRemoved,
)
from peer.relay.draft_book import AppendChunk, DiscardDraft, DraftBook, OpenDraft, RefuseChunk
from peer.relay.draft_book import Command as DraftCommand
from peer.relay.draft_file import DraftFile
from peer.relay.store_worker import EncodingsRemoved, StateMade, StateNotMade, StoreEvent, StoreWorker, keep_verified
from peer.relay.version_book import (
    Acknowledge,
    Command,
    Drop,
    Materialise,
    Receive,
    Report,
    SendToAll,
    VersionBook,
    broadcast_manifest,
)
from peer.relay.version_paths import key_of
from rollcast.runtime.errors import CorruptChunk, MalformedMessage
from rollcast.wire.ids import ChunkIndex, Version
from rollcast.wire.links.frames import ChunkFrame
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.versions.chunk_store import ChunkStore
from rollcast.wire.versions.chunks import BytesLike, blake3_hash, check_chunk
from rollcast.wire.versions.records import KEYFRAME_ID, VerifiedVersion
from rollcast.wire.versions.stored_encoding import StoredEncoding

log = structlog.get_logger()

OnComplete = Callable[[VerifiedVersion, StoredEncoding], None]

# Chunk lists kept for encodings that are not in the store yet.
_LISTS_MOST = 32


class RelayVersions:
    """Connects the version book and the store to the relay's core.

    Args:
        verify: checks an announcement's signatures and bounds.
        handle: passes an event to the core.
        post: sends a message on a link.
        progress: returns the chunks held and all chunks of an encoding that is being received.
        spared: returns the keyframes that peers fetch from this process and that retention must keep.
        on_complete: see peer.relay.relay.Relay.
        mirror_folder: the folder in which finished encodings are published for a web server; None: none.
        on_arrival: see VersionBook.
    """

    def __init__(
        self,
        store: ChunkStore,
        role: str,
        *,
        verify: Callable[[pb.VersionAnnouncement], VerifiedVersion],
        handle: Callable[[Event], None],
        post: Callable[[LinkId, pb.LinkMessage], None],
        progress: Callable[[EncodingKey], tuple[int, int]],
        spared: Callable[[], frozenset[EncodingKey]],
        on_complete: OnComplete,
        mirror_folder: MirrorFolder | None = None,
        on_arrival: bool = False,
    ) -> None:
        self.worker = StoreWorker(store, self._stored, durable_first=role == "origin", mirror_folder=mirror_folder)
        self._store = store
        self._role = role
        self._verify = verify
        self._handle = handle
        self._post = post
        self._spared = spared
        self._on_complete = on_complete
        self._book = VersionBook(role, progress, on_arrival=on_arrival)
        self._lists: dict[EncodingKey, bytes] = {}  # of encodings that are not received yet
        self._opening: dict[EncodingKey, bytes] = {}  # of encodings that the store is opening
        self._early = EarlyChunks()
        self._drafts = DraftBook()
        self._draft: DraftFile | None = None
        self._arriving: tuple[bytes, BytesLike] = b"", b""  # the chunk list and the chunk that the core is told of
        self.delta_bytes_saved = 0  # keyframe bytes that need not be received, less what was received instead

    # ------------------------------------------------------------ announcements and lists

    def restore(self) -> None:
        """Offer what the store holds. Blocks on the disk.

        Raises:
            StoreError: versions that another learner signed cannot be removed from the store.
        """
        ours = [one for one in keep_verified(self._store, self._verify) if self._list_stored(one)]
        for stored in ours:
            key = EncodingKey(stored.version, stored.encoding_id)
            manifest = stored.manifest
            self._handle(VersionRestored(key, manifest.chunk_count, manifest.chunk_size_bytes))
            self._carry_out(self._book.encoding_held(key))
        # Only now: what follows, such as a state to be computed from a delta, depends on all of them.
        for stored in ours:
            self._carry_out(self._book.add_announcement(stored.verified, announced=False))
            self._handle(AnnouncementReceived(key_of(broadcast_manifest(stored.verified))))

    def _list_stored(self, stored: StoredEncoding) -> bool:
        """Hash the chunks of a state without a chunk list. Returns False, and removes the state, if it is damaged."""
        try:
            stored.list_chunks()
        except CorruptChunk as error:
            log.error("stored state removed, it is received again", version=stored.version, reason=str(error))
            self._store.discard_encoding(stored.version, stored.encoding_id)
            return False
        return True

    def add_announcement(
        self,
        announcement: pb.VersionAnnouncement,
        *,
        announced: bool,
        link: LinkId | None = None,
        learner: bool = False,
    ) -> VerifiedVersion:
        """Verify an announcement and act on it.

        Args:
            announced: whether the coordinator sent it.
            link: the link on which it came; None: it came from the coordinator.
            learner: whether the learner sent it on its own link.

        Raises:
            WrongKey: another key than the learner's signed it.
            BadSignature: it was changed after it was signed.
            MalformedMessage: it is of another run or out of bounds, or another record of that version is here.
        """
        verified = self._known_already(announcement) or self._verify(announcement)
        for one in (verified, verified.base):
            known = None if one is None else self._book.verified(one.version)
            if known is not None and one is not None and known.record_hash != one.record_hash:
                raise MalformedMessage(f"the learner signed two records of version {one.version}")
        self._carry_out(
            self._book.add_announcement(verified, announced=announced, learner_link=link if learner else None)
        )
        self._handle(AnnouncementReceived(key_of(broadcast_manifest(verified)), link))
        self._carry_out_drafts(self._drafts.announced(verified.version))
        if announced:
            self.worker.announced(verified.version)
        return verified

    def _known_already(self, announcement: pb.VersionAnnouncement) -> VerifiedVersion | None:
        """Return the same announcement if it was verified before: several neighbours may send it, and verifying the
        signatures costs a millisecond."""
        known = self._book.with_signature(announcement.record.signature)
        return known if known is not None and known.announcement == announcement else None

    def receive_again(self, version: Version) -> None:
        """See Relay.receive_again."""
        key = EncodingKey(version, KEYFRAME_ID)
        self.worker.discard(key)
        self._removed((key,))
        self._carry_out(self._book.state_lost(version))

    def set_offline(self, offline: bool) -> None:
        """See VersionBook.set_offline."""
        self._carry_out(self._book.set_offline(offline))

    def known(self, version: int) -> VerifiedVersion | None:
        """Return the verified announcement of a version; None if it is not known."""
        return self._book.verified(version)

    def announcement(self, version: Version) -> pb.VersionAnnouncement | None:
        """Return the signed announcement of a version; None if it is not known."""
        verified = self._book.verified(version)
        return None if verified is None else verified.announcement

    def list_received(self, link: LinkId, key: EncodingKey, hashes: bytes) -> None:
        """Check a chunk list against the signed manifest; lists of encodings that are not announced are ignored."""
        verified = self._book.verified(key.version)
        manifest = verified.manifest(key.encoding_id) if verified is not None else None
        if manifest is None:
            return
        if self.chunk_list(key) is None:
            try:
                manifest.check_chunk_list(hashes)
            except MalformedMessage:
                self._handle(ChunkListReceived(link, key, False))
                return
            self._lists[key] = hashes
            while len(self._lists) > _LISTS_MOST:
                del self._lists[min(one for one in self._lists if one != key)]
        self._handle(ChunkListReceived(link, key, True))
        for early_link, frame in self._early.take(key):
            self.chunk_arrived(early_link, frame)

    def chunk_list(self, key: EncodingKey) -> bytes | None:
        """Return the verified chunk list of an encoding; None if it is not here."""
        stored = self._store.get(key.version, key.encoding_id)
        if stored is not None and stored.listed:
            return stored.chunk_list()
        return self._opening.get(key) or self._lists.get(key)

    def link_lost(self, link: LinkId) -> None:
        """Note that a link ended; it may have been the learner's."""
        self._book.link_lost(link)

    # ------------------------------------------------------------ chunks

    def chunk_arrived(self, link: LinkId, frame: ChunkFrame, now: float = 0.0) -> None:
        """Give the core a chunk; a chunk that overtook its list is kept for a short time."""
        key = EncodingKey(frame.version, frame.encoding_id)
        hashes = self.chunk_list(key)
        if hashes is None:
            self._early.keep(link, frame, now)
            return
        self._arriving = hashes, frame.payload
        self._handle(ChunkArrived(link, key, frame.index, frame.stripe, len(frame.payload)))
        self._arriving = b"", b""

    def verify(self, action: Verify) -> None:
        """Check the arriving chunk; the answer reaches the core before this returns."""
        hashes, payload = self._arriving
        try:
            check_chunk(hashes, action.index, payload)
        except CorruptChunk:
            self._handle(ChunkCorrupt(action.link, action.key, action.index, blake3_hash(payload)))
            return
        self.worker.write(action.key, action.index, payload)
        self._handle(ChunkVerified(action.link, action.key, action.index, action.stripe, len(payload)))

    def chunk(self, key: EncodingKey, index: ChunkIndex) -> BytesLike | None:
        """Return a chunk's bytes; None if they are not in memory."""
        payload = self.worker.memory.get(key, index)
        return payload if payload is not None else self.worker.ahead.get(key, index)

    # ------------------------------------------------------------ what the learner sends before it has signed it

    def draft_arrived(self, frame: ChunkFrame, now: float) -> str:
        """Keep a chunk that came on the learner's link, of a version that is not announced.

        Returns:
            Why the link is to be closed; empty if it is not.
        """
        payload = frame.payload
        return self._carry_out_drafts(
            self._drafts.chunk_came(frame.version, frame.encoding_id, frame.index, len(payload), now), frame
        )

    def tick(self, now: float) -> None:
        """Discard what has waited for its announcement for too long."""
        self._carry_out_drafts(self._drafts.tick(now))

    def _carry_out_drafts(self, commands: list[DraftCommand], frame: ChunkFrame | None = None) -> str:
        refused = ""
        for command in commands:
            match command:
                case OpenDraft(version=version, chunk_size_bytes=size):
                    self._draft = DraftFile(self._store.draft_path, version, size)
                case AppendChunk():
                    assert frame is not None, "only a chunk that came is appended"
                    assert self._draft is not None, "only an open draft is continued"
                    self.worker.append_draft(self._draft, frame.payload)
                case DiscardDraft(version=version, reason=reason):
                    log.info("draft of a version discarded", version=version, reason=reason)
                    assert self._draft is not None, "only an open draft is discarded"
                    self.worker.discard_draft(self._draft)
                    self._draft = None
                case RefuseChunk(reason=reason):
                    refused = reason
                case _:
                    assert_never(command)
        return refused

    def _take_draft(self, key: EncodingKey) -> DraftFile | None:
        if key.encoding_id != KEYFRAME_ID or not self._drafts.take(key.version):
            return None
        draft, self._draft = self._draft, None
        return draft

    # ------------------------------------------------------------ what the core asks

    def carry_out(self, action: BeginStore | FinishVersion | AnnounceHeld | ListChunks | AbandonVersion) -> None:
        """Carry out an action that concerns a whole encoding."""
        key = action.key
        match action:
            case BeginStore():
                verified = self._book.verified(key.version)
                manifest = verified.manifest(key.encoding_id) if verified is not None else None
                assert verified is not None, "only known versions are received"
                assert manifest is not None, "only signed encodings are received"
                hashes = self.chunk_list(key)
                assert hashes is not None, "only listed encodings are stored"
                self._opening[key] = hashes
                self._lists.pop(key, None)
                self.worker.begin(key, verified, manifest, hashes, self._take_draft(key))
            case FinishVersion():
                self.worker.finish(key)
            case AnnounceHeld():
                self._carry_out(self._book.encoding_held(key))
                self._log_if_unannounced(key)
                self.worker.prune(self._spared() | self._book.in_use)
            case ListChunks():
                self.worker.list_chunks(key)
            case AbandonVersion(reason=reason, again=again, in_vain=in_vain):
                log.info("encoding abandoned", version=key.version, encoding=key.encoding_id, reason=reason)
                self._discard_list(key)
                self._book.given_up(key, again=again)
                self.worker.discard(key)
                if in_vain:
                    self._carry_out(self._book.not_to_be_had(key))

    # ------------------------------------------------------------ what the store answers

    def _stored(self, event: StoreEvent) -> None:
        match event:
            case StateMade(key=key, base_taken=base):
                self._count_saved(key)
                self._base_taken(base)
                self._carry_out(self._book.made(key))
                self._handle(KeyframeMade(EncodingKey(key.version, KEYFRAME_ID)))
                self._log_if_unannounced(key)
                self.worker.prune(self._spared() | self._book.in_use)
            case StateNotMade(key=key, reason=reason, base_taken=base):
                log.error("delta unusable", version=key.version, encoding=key.encoding_id, reason=reason)
                self._base_taken(base)
                self._carry_out(self._book.not_made(key))
            case EncodingsRemoved(keys=keys):
                self._book.removed(frozenset(keys))
                self._removed(keys)
            case StoreReady(key=key):
                self._discard_list(key)  # from now on the store has it
                self._handle(event)
            case _:
                self._handle(event)

    def _base_taken(self, base: EncodingKey | None) -> None:
        if base is not None:
            self._book.base_taken(base.version)
            self._removed((base,))

    def _removed(self, keys: tuple[EncodingKey, ...]) -> None:
        self.worker.memory.discard(keys)
        self.worker.ahead.discard(keys)
        for key in keys:
            self._discard_list(key)
        self._handle(VersionsRemoved(keys))

    def _log_if_unannounced(self, key: EncodingKey) -> None:
        # After a restart the deltas on the disk are applied one after the other.
        newest = max((one.version for one in self._store.finished()), default=key.version)
        if key.version >= newest and self._book.waits_for_announcement(key.version):
            log.info("version held, not announced yet", version=key.version)

    def _discard_list(self, key: EncodingKey) -> None:
        self._opening.pop(key, None)
        self._lists.pop(key, None)

    def _count_saved(self, key: EncodingKey) -> None:
        verified = self._book.verified(key.version)
        delta = verified.manifest(key.encoding_id) if verified is not None else None
        if verified is not None and delta is not None:
            self.delta_bytes_saved += verified.keyframe.size_bytes - delta.size_bytes

    # ------------------------------------------------------------ what the book decides

    def _carry_out(self, commands: list[Command]) -> None:
        for command in commands:
            self._do(command)

    def _do(self, command: Command) -> None:
        match command:
            case Receive(manifest=manifest, announced=announced, holder=holder, is_base=is_base):
                key = key_of(manifest)
                hashes = self.chunk_list(key)
                if hashes is not None:
                    # The store may be discarding, in its thread, what an earlier reception left.
                    self._lists[key] = hashes
                verified = self._book.verified(key.version)
                pushed = verified is not None and manifest == broadcast_manifest(verified)
                sizes = (manifest.chunk_count, manifest.chunk_size_bytes)
                self._handle(EncodingKnown(key, *sizes, announced, hashes is not None, holder, pushed, is_base))
            case Drop(key=key, reason=reason):
                self._handle(EncodingUnwanted(key, reason))
            case Materialise(key=key):
                # An origin's state is used by no engine: every step would otherwise copy it, because the coordinator
                # announces a version only once the origin holds it.
                in_use = frozenset() if self._role == "origin" else self._book.in_use
                self.worker.materialise(key, self._spared() | in_use)
            case Report(version=version):
                self._report(version)
            case Acknowledge(version=version, holder=holder):
                verified = self._book.verified(version)
                epoch = verified.record.epoch if verified is not None else 0
                self._post(holder, pb.LinkMessage(held=pb.VersionHeld(epoch=epoch, version=version)))
            case SendToAll(key=key):
                self._handle(BroadcastStarted(key))
            case _:
                assert_never(command)

    def _report(self, version: Version) -> None:
        stored = self._store.get(version)
        if stored is not None:
            log.info("version held", version=version)
            self._on_complete(stored.verified, stored)
