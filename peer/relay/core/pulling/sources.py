"""Choose whom to ask what it holds (Want): neighbours, mirrors, a file on this disk, holders beyond the plan."""

from __future__ import annotations

from peer.links.neighbours import DISK_ROLE, MIRROR_ROLE, MIRROR_ROLES, EncodingKey, Neighbour
from peer.relay.core.state.actions import Dial, SendWant
from peer.relay.core.state.reach import distance_class
from peer.relay.core.state.relay_state import EncodingState, LinkState, RelayState, Source
from peer.relay.core.state.window import ServiceWindow
from rollcast.wire.ids import Version
from rollcast.wire.versions.records import KEYFRAME_ID


def want_from_all(state: RelayState, encoding: EncodingState, now: float) -> None:
    """Ask mirrors and every neighbour what they hold; if there is none to ask, another holder."""
    _ask_mirrors(state, encoding, now)
    links = list(state.link_to.values())
    if encoding.joining:
        links.sort(key=lambda link: (not link.lan, distance_class(link.rtt_s)))  # not all are asked if there are many
    for link in links:
        if len(encoding.sources) >= state.settings.sources_most:
            return
        wanted = link.link == encoding.holder or (encoding.announced and state.helps(link))
        if wanted and _willing(state, encoding, link, now) and link.link not in encoding.sources:
            want(state, encoding, link, now)
    if not encoding.sources:
        ask_next(state, encoding, now)


def _ask_mirrors(state: RelayState, encoding: EncodingState, now: float) -> None:
    for mirror in state.plan.fallbacks:
        if mirror.role not in MIRROR_ROLES or not of_use(state, encoding, mirror.role):
            continue
        link = state.link_to.get(mirror.peer_id)
        if link is None:
            dial(state, mirror, now)
        elif link.link not in encoding.sources and _willing(state, encoding, link, now):
            want(state, encoding, link, now)


def of_use(state: RelayState, encoding: EncodingState, role: str) -> bool:
    """Return whether a mirror is asked for an encoding at once, although neighbours have it.

    It is for a keyframe that is not pushed: those who join should not take all of it from the others. A file on this
    disk is also asked for what is pushed.
    """
    if encoding.key.encoding_id != KEYFRAME_ID or not encoding.announced:
        return False
    not_pushed = encoding.is_base or not encoding.pushed
    return not_pushed if role == MIRROR_ROLE else role == DISK_ROLE and may_be_on_disk(state, encoding)


def may_be_on_disk(state: RelayState, encoding: EncodingState) -> bool:
    """Return whether this machine may have public weights with the encoding: they are version 0's."""
    is_first = encoding.announced and encoding.key == EncodingKey(Version(0), KEYFRAME_ID)
    return is_first and any(one.role == DISK_ROLE for one in state.plan.fallbacks)


def _willing(state: RelayState, encoding: EncodingState, link: LinkState, now: float) -> bool:
    return encoding.refused_until_s.get(link.peer_id, 0.0) <= now and not state.penalised(link.peer_id, now)


def ask_next(state: RelayState, encoding: EncodingState, now: float) -> bool:
    """Ask one more holder what it holds, dialling it if necessary; return False if there is none."""
    if not encoding.announced:
        return False  # only the learner, which sends it here, has it
    asked = {state.links[link_id].peer_id for link_id in encoding.sources}
    for neighbour in (*state.plan.neighbours, *state.plan.fallbacks, *state.further):
        peer_id = neighbour.peer_id
        refused = encoding.refused_until_s.get(peer_id, 0.0) > now or state.penalised(peer_id, now)
        if peer_id in asked or refused:
            continue
        link = state.link_to.get(peer_id)
        if link is not None:
            want(state, encoding, link, now)
            return True
        if dial(state, neighbour, now):
            encoding.awaited = peer_id
            return True
    return False


def dial(state: RelayState, neighbour: Neighbour, now: float) -> bool:
    """Dial a neighbour; return whether a dial is in progress.

    It is not dialled if it is to dial this process, has no address, or failed a moment ago.
    """
    if not neighbour.we_dial or not neighbour.address:
        return False
    dialling = state.dial_state(neighbour.peer_id)
    if dialling.dialling:
        return True
    if dialling.retry_at_s > now or (neighbour in state.further and not _room_for_further(state)):
        return False
    dialling.dialling, dialling.dialled_at_s = True, now
    state.do(Dial(neighbour))
    return True


def _room_for_further(state: RelayState) -> bool:
    """Return whether another holder beyond the plan may be dialled: few are, because each serves its own neighbours."""
    further = {holder.peer_id for holder in state.further} - state.neighbours.keys()
    busy = sum(peer_id in state.link_to or state.dial_state(peer_id).dialling for peer_id in further)
    return busy < state.settings.further_links_most


def want(state: RelayState, encoding: EncodingState, link: LinkState, now: float) -> None:
    """Ask the other end what it holds; a repeated question gives up on the chunks that were requested from it."""
    if encoding.awaited == link.peer_id:
        encoding.awaited = None
    source = encoding.sources.get(link.link)
    if source is None:
        encoding.sources[link.link] = Source(_window_of(state, encoding, link))
    else:
        source.unanswered += bool(source.requested)
        source.requested.clear()
    state.do(SendWant(link.link, encoding.key, not encoding.listed))


def _window_of(state: RelayState, encoding: EncodingState, link: LinkState) -> ServiceWindow:
    settings, first = state.settings, state.settings.window_first
    if link.link == encoding.holder or link.role in ("learner", *MIRROR_ROLES):
        first = settings.window_first_of_holder
    if link.role == "learner":
        least = max(first, settings.window_least_of_learner_bytes / encoding.chunk_size_bytes)
        return ServiceWindow(least, least)
    return ServiceWindow(first)


def search_further(state: RelayState, encoding: EncodingState, now: float) -> None:
    """Discard all requests, because no chunk came for long, and ask every source again and one holder more."""
    encoding.searched_at_s = now
    encoding.awaited = None
    ask_again(state, encoding, now)
    want_from_all(state, encoding, now)
    ask_next(state, encoding, now)


def ask_again(state: RelayState, encoding: EncodingState, now: float) -> None:
    for link_id in encoding.sources:
        want(state, encoding, state.links[link_id], now)
