"""The relay's decisions: who is dialled, who is asked, which chunk goes where. Pure: no socket, clock, disk or chance.

Chunks flow along the coordinator's plan: a child asks its parent (Want), says what it holds already (Have) and gives
credit; the parent pushes each chunk as soon as it has verified it itself, newest version first, one credit a chunk.
Ownership and credits follow Mutualcast (Li, Chou, Zhang 2005); striped plans only change who is asked for what.
"""

from __future__ import annotations

from typing import assert_never

from peer import relay_receiving as receiving
from peer import relay_serving as serving
from peer import relay_sources as sources
from peer.chunk_set import ChunkSet
from peer.relay_actions import Action, CloseLink
from peer.relay_events import (
    CancelReceived,
    ChunkArrived,
    ChunkCorrupt,
    ChunkListReceived,
    ChunkSent,
    ChunkStored,
    CreditReceived,
    DialFailed,
    Event,
    HaveReceived,
    HeldReceived,
    LinkDown,
    LinkUp,
    PlanChanged,
    StoreFailed,
    StoreReady,
    Tick,
    VersionFinished,
    VersionKnown,
    VersionRestored,
    VersionsRemoved,
    WantReceived,
)
from peer.relay_state import EncodingState, LinkState, RelaySettings, RelayState
from rollcast.wire.ids import PeerId

# Links that one peer may have open to us: a second one replaces a half-dead first.
_LINKS_PER_PEER_MOST = 2


class RelayCore:
    """Receives and serves encodings of versions over links.

    ``handle`` takes one event and the time in seconds of any monotonic clock, and returns the actions to carry out, in
    order.
    """

    def __init__(self, settings: RelaySettings) -> None:
        self.state = RelayState(settings)

    def handle(self, event: Event, now: float) -> list[Action]:
        """Apply one event.

        Args:
            now: seconds on a monotonic clock, never less than in the call before.
        """
        self._apply(event, now)
        actions, self.state.actions = self.state.actions, []
        return actions

    def _apply(self, event: Event, now: float) -> None:
        match event:
            case ChunkArrived() | ChunkStored() | ChunkCorrupt() | ChunkSent():
                self._apply_chunk(event, now)
            case WantReceived() | CancelReceived() | HaveReceived() | ChunkListReceived():
                self._apply_message(event, now)
            case CreditReceived() | HeldReceived():
                self._apply_receipt(event)
            case PlanChanged() | LinkUp() | LinkDown() | DialFailed():
                self._apply_link(event, now)
            case VersionKnown() | VersionRestored() | VersionsRemoved() | StoreReady() | VersionFinished():
                self._apply_version(event, now)
            case StoreFailed():
                receiving.store_failed(self.state, event, now)
            case Tick():
                _tick(self.state, now)
            case _:
                assert_never(event)

    def _apply_chunk(self, event: ChunkArrived | ChunkStored | ChunkCorrupt | ChunkSent, now: float) -> None:
        match event:
            case ChunkArrived():
                receiving.chunk_arrived(self.state, event, now)
            case ChunkStored():
                receiving.chunk_stored(self.state, event, now)
            case ChunkCorrupt():
                receiving.chunk_corrupt(self.state, event, now)
            case ChunkSent():
                serving.chunk_sent(self.state, event.link)

    def _apply_message(
        self, event: WantReceived | CancelReceived | HaveReceived | ChunkListReceived, now: float
    ) -> None:
        match event:
            case WantReceived():
                serving.want_received(self.state, event)
            case CancelReceived():
                serving.stop_serving(self.state, event)
                sources.source_cancelled(self.state, event, now)
            case HaveReceived():
                sources.source_claims(self.state, event)
                serving.have_received(self.state, event)
            case ChunkListReceived():
                receiving.chunk_list_received(self.state, event, now)

    def _apply_receipt(self, event: CreditReceived | HeldReceived) -> None:
        match event:
            case CreditReceived():
                serving.credit_received(self.state, event)
            case HeldReceived():
                serving.stop_serving(self.state, event)

    def _apply_version(
        self,
        event: VersionKnown | VersionRestored | VersionsRemoved | StoreReady | VersionFinished,
        now: float,
    ) -> None:
        match event:
            case VersionKnown():
                receiving.version_known(self.state, event, now)
            case VersionRestored():
                _restore(self.state, event)
            case VersionsRemoved():
                for key in event.keys:
                    if self.state.encodings.pop(key, None) is not None:
                        serving.forget(self.state, key, "no longer kept")
            case StoreReady():
                receiving.store_ready(self.state, event)
            case VersionFinished():
                receiving.version_finished(self.state, event)

    def _apply_link(self, event: PlanChanged | LinkUp | LinkDown | DialFailed, now: float) -> None:
        match event:
            case PlanChanged():
                _plan_changed(self.state, event, now)
            case LinkUp():
                _link_up(self.state, event, now)
            case LinkDown():
                _link_down(self.state, event, now)
            case DialFailed():
                _dial_failed(self.state, event, now)


def _restore(state: RelayState, event: VersionRestored) -> None:
    have = ChunkSet.full(event.chunk_count)
    state.encodings[event.key] = EncodingState(event.key, "held", have, order=list(have))


def _plan_changed(state: RelayState, event: PlanChanged, now: float) -> None:
    """Re-parent: nothing that is verified is lost, and old sources go on until the new parent can be asked."""
    if event.plan_id < state.plan.plan_id:
        return
    state.plan = event
    _dial_neighbours(state, now)
    for encoding in state.in_flight():
        encoding.passed_over.clear()
        for parent in event.parents:
            link = state.newest_link(parent.peer_id)
            if link is not None:
                _prefer_parent(state, encoding, link, now)
                break
        sources.seek(state, encoding, now)


def _prefer_parent(state: RelayState, encoding: EncodingState, link: LinkState, now: float) -> None:
    """Ask a parent instead of whoever stood in for it."""
    peers = {state.links[link_id].peer_id for link_id in encoding.sources}
    refused = encoding.refused_until_s.get(link.peer_id, 0.0) > now
    unwilling = refused or link.peer_id in encoding.passed_over or state.penalised(link.peer_id, now)
    if unwilling or encoding.announced_on is not None or any(state.is_parent(peer_id) for peer_id in peers):
        return
    stand_ins = list(encoding.sources)
    sources.want(state, encoding, link, now)
    for link_id in stand_ins:
        sources.drop_source(state, encoding, link_id, "the plan names another parent")


def _link_up(state: RelayState, event: LinkUp, now: float) -> None:
    older = [link for link in state.links.values() if link.peer_id == event.peer_id]
    link = LinkState(event.link, event.peer_id, event.role, event.dialled, needed_at_s=now)
    state.links[event.link] = link
    dialling = state.dial_state(event.peer_id)
    dialling.failures = 0
    if event.dialled:
        dialling.dialling = False
    for encoding in state.in_flight():
        if encoding.awaited == event.peer_id:
            sources.want(state, encoding, link, now)
        elif state.is_parent(event.peer_id):
            _prefer_parent(state, encoding, link, now)
        elif not encoding.sources:
            encoding.awaited = None if encoding.awaited == event.peer_id else encoding.awaited
            sources.seek(state, encoding, now)
    if len(older) >= _LINKS_PER_PEER_MOST:
        _forget_link(state, min(older, key=lambda old: old.link), "replaced by a newer link", now)


def _forget_link(state: RelayState, link: LinkState, reason: str, now: float) -> None:
    state.do(CloseLink(link.link, reason))
    del state.links[link.link]
    sources.lose_link(state, link.link, now)


def _link_down(state: RelayState, event: LinkDown, now: float) -> None:
    link = state.links.pop(event.link, None)
    if link is None:
        return
    if state.newest_link(link.peer_id) is None:
        _back_off(state, link.peer_id, event.jitter, now)
    sources.lose_link(state, event.link, now)


def _dial_failed(state: RelayState, event: DialFailed, now: float) -> None:
    state.dial_state(event.peer_id).dialling = False
    _back_off(state, event.peer_id, event.jitter, now)
    for encoding in state.in_flight():
        if encoding.awaited == event.peer_id:
            encoding.awaited = None
            sources.ask_next(state, encoding, now)


def _back_off(state: RelayState, peer_id: PeerId, jitter: float, now: float) -> None:
    """Wait between half of the ceiling and all of it; the ceiling doubles with each failure."""
    settings = state.settings
    dialling = state.dial_state(peer_id)
    ceiling_s = min(settings.redial_most_s, settings.redial_first_s * 2.0 ** min(dialling.failures, 16))
    dialling.failures += 1
    dialling.retry_at_s = now + ceiling_s * (0.5 + 0.5 * jitter)


def _dial_neighbours(state: RelayState, now: float) -> None:
    """Keep the plan's links open and warm, versions or not."""
    for neighbour in (*state.plan.parents, *state.plan.children):
        if state.newest_link(neighbour.peer_id) is None:
            is_parent = state.is_parent(neighbour.peer_id)
            if not (is_parent and state.penalised(neighbour.peer_id, now)):
                sources.dial(state, neighbour, now)


def _tick(state: RelayState, now: float) -> None:
    _dial_neighbours(state, now)
    receiving.retry_failed(state, now)
    for encoding in state.in_flight():
        sources.watch(state, encoding, now)
    _close_unneeded(state, now)
    for peer_id in [peer_id for peer_id, until_s in state.penalised_until_s.items() if until_s <= now]:
        del state.penalised_until_s[peer_id]


def _close_unneeded(state: RelayState, now: float) -> None:
    """Close links that we dialled to stand-ins, once they have served."""
    planned = {neighbour.peer_id for neighbour in (*state.plan.parents, *state.plan.children)}
    for link in list(state.links.values()):
        asked = any(link.link in encoding.sources for encoding in state.encodings.values())
        if not link.dialled or link.peer_id in planned or asked or link.serving:
            link.needed_at_s = now
        elif now - link.needed_at_s > state.settings.linger_s:
            _forget_link(state, link, "no longer needed", now)
