"""Apply events to the relay's state: which peer is dialled, which one is asked, and which chunk goes where.

Chunks are pushed along the stripes of the coordinator's plan (``forwarding``); the origin decides which stripe each
chunk takes (``origin``); what pushing does not bring is requested (``pulling``). Sources: Mutualcast (Li, Chou, Zhang
2005) for ownership, SplitStream (Castro et al. 2003) for interior-disjoint trees.

The modules form a pipeline. Each calls only modules of the rows below its own (a test checks the imports):

    core                           dispatches the events
    links  gossip  receiving       a link opens or closes; a version is mentioned; a chunk arrives and is verified
    encodings  link_loss           what a chunk opens or completes; what a lost or bad link leaves to others
    origin  answers                which root is given which chunk; what others ask for
    forwarding  reports            copies for children, in turn; what is held here, and elsewhere
    pulling  catch_up              requests for missing chunks; keyframes for peers that fell behind
    state                          links, encodings, plan; what happened; what the shell is to do
"""

from __future__ import annotations

from typing import assert_never

from peer.relay.core import answers, catch_up, encodings, forwarding, gossip, links, origin, receiving, reports
from peer.relay.core.pulling import pull
from peer.relay.core.state.actions import Action
from peer.relay.core.state.events import (
    AnnouncementReceived,
    BroadcastStarted,
    CancelReceived,
    ChunkArrived,
    ChunkCorrupt,
    ChunkListReceived,
    ChunkSent,
    ChunkVerified,
    CreditReceived,
    DeclineReceived,
    DialFailed,
    EncodingKnown,
    EncodingUnwanted,
    Event,
    GotReceived,
    HaveReceived,
    HoldersKnown,
    KeyframeMade,
    LinkDown,
    LinkUp,
    OfflineChanged,
    PlanChanged,
    RequestReceived,
    StoreFailed,
    StoreReady,
    Tick,
    VersionFinished,
    VersionRestored,
    VersionsRemoved,
    WantReceived,
)
from peer.relay.core.state.relay_state import RelaySettings, RelayState

_Message = (
    WantReceived
    | RequestReceived
    | CancelReceived
    | HaveReceived
    | ChunkListReceived
    | CreditReceived
    | GotReceived
    | DeclineReceived
)
_LinkEvent = PlanChanged | OfflineChanged | HoldersKnown | LinkUp | LinkDown | DialFailed
_EncodingEvent = AnnouncementReceived | EncodingKnown | BroadcastStarted | EncodingUnwanted
_StoreEvent = StoreReady | VersionFinished | StoreFailed | VersionRestored | KeyframeMade | VersionsRemoved


class RelayCore:
    """Receives and serves encodings of versions over links.

    ``handle`` takes one event and the time in seconds of any monotonic clock, and returns the actions to carry out, in
    order.
    """

    def __init__(self, settings: RelaySettings) -> None:
        self.state = RelayState(settings)

    @property
    def busy(self) -> bool:
        """Whether chunks are on their way, so that time matters."""
        state = self.state
        return bool(state.broadcasts) or any(
            encoding.in_flight and encoding.announced for encoding in state.encodings.values()
        )

    def handle(self, event: Event, now: float) -> list[Action]:
        """Apply one event.

        Args:
            now: seconds on a monotonic clock, never less than in the call before.
        """
        self.state.now_s = now
        self._apply(event, now)
        actions, self.state.actions = self.state.actions, []
        return actions

    def _apply(self, event: Event, now: float) -> None:
        match event:
            case ChunkArrived():
                receiving.chunk_arrived(self.state, event, now)
            case ChunkVerified():
                receiving.chunk_verified(self.state, event, now)
            case ChunkCorrupt():
                receiving.chunk_corrupt(self.state, event, now)
            case ChunkSent():
                forwarding.chunk_sent(self.state, event.link)
                origin.issue(self.state, now)
            case (
                WantReceived()
                | RequestReceived()
                | CancelReceived()
                | HaveReceived()
                | ChunkListReceived()
                | CreditReceived()
                | GotReceived()
                | DeclineReceived()
            ):
                self._apply_message(event, now)
            case PlanChanged() | OfflineChanged() | HoldersKnown() | LinkUp() | LinkDown() | DialFailed():
                self._apply_link(event, now)
            case AnnouncementReceived() | EncodingKnown() | BroadcastStarted() | EncodingUnwanted():
                self._apply_encoding(event, now)
            case (
                StoreReady()
                | VersionFinished()
                | StoreFailed()
                | VersionRestored()
                | KeyframeMade()
                | VersionsRemoved()
            ):
                self._apply_store(event, now)
            case Tick():
                self._tick(now)
            case _:
                assert_never(event)

    def _apply_message(self, event: _Message, now: float) -> None:
        match event:
            case WantReceived(announcement=True):
                gossip.announcement_wanted(self.state, event.link, event.key)
            case WantReceived():
                gossip.mentioned(self.state, event.link, event.key)
                answers.want_received(self.state, event)
            case RequestReceived():
                answers.request_received(self.state, event)
            case CancelReceived():
                answers.cancel_received(self.state, event)
                pull.source_cancelled(self.state, event, now)
            case HaveReceived():
                reports.note_theirs(self.state, event)
                pull.source_claims(self.state, event, now)
                gossip.follow_mention(self.state, event.link, event.key, now)
            case ChunkListReceived():
                gossip.mentioned(self.state, event.link, event.key)
                receiving.chunk_list_received(self.state, event, now)
            case CreditReceived():
                gossip.mentioned(self.state, event.link, event.key)
                origin.credit_received(self.state, event, now)
            case GotReceived():
                reports.got_received(self.state, event)
            case DeclineReceived():
                pull.source_declines(self.state, event, now)

    def _apply_link(self, event: _LinkEvent, now: float) -> None:
        match event:
            case PlanChanged():
                links.plan_changed(self.state, event, now)
            case OfflineChanged():
                links.set_offline(self.state, event, now)
            case HoldersKnown():
                links.holders_known(self.state, event, now)
            case LinkUp():
                links.link_up(self.state, event, now)
            case LinkDown():
                links.link_down(self.state, event, now)
            case DialFailed():
                links.dial_failed(self.state, event, now)

    def _apply_encoding(self, event: _EncodingEvent, now: float) -> None:
        match event:
            case AnnouncementReceived():
                gossip.announcement_received(self.state, event, now)
            case EncodingKnown():
                encodings.encoding_known(self.state, event, now)
            case BroadcastStarted():
                origin.broadcast_started(self.state, event, now)
            case EncodingUnwanted():
                encodings.unwanted(self.state, event)

    def _apply_store(self, event: _StoreEvent, now: float) -> None:
        match event:
            case StoreReady():
                encodings.store_ready(self.state, event, now)
            case VersionFinished():
                encodings.version_finished(self.state, event)
            case StoreFailed():
                encodings.store_failed(self.state, event, now)
            case VersionRestored():
                encodings.restored(self.state, event)
            case KeyframeMade():
                catch_up.keyframe_made(self.state, event)
            case VersionsRemoved():
                encodings.removed(self.state, event)

    def _tick(self, now: float) -> None:
        state = self.state
        links.dial_neighbours(state, now)
        links.watch_dials(state, now)
        gossip.gossip(state, now)
        encodings.retry_failed(state, now)
        encodings.give_up_in_vain(state, now)
        for encoding in state.in_flight():
            pull.watch(state, encoding, now)
        forwarding.release_stuck(state)
        reports.report_to_wanting(state, now)
        reports.report_got(state)
        forwarding.take_turns(state)
        origin.watch_roots(state, now)
        links.close_unneeded(state, now)
        for peer_id in [peer_id for peer_id, until_s in state.penalised_until_s.items() if until_s <= now]:
            del state.penalised_until_s[peer_id]
