"""Keep the links of the relay plan open: dial neighbours, redial after failures, and greet new links."""

from __future__ import annotations

from peer.relay.core import link_loss, origin, reports
from peer.relay.core.pulling import sources
from peer.relay.core.state.actions import CloseLink, Warn
from peer.relay.core.state.events import DialFailed, HoldersKnown, LinkDown, LinkUp, OfflineChanged, PlanChanged
from peer.relay.core.state.relay_state import LinkState, RelayState
from rollcast.runtime.errors import NotDialable
from rollcast.wire.ids import PeerId
from rollcast.wire.links.frames import DIRECT_STRIPE
from rollcast.wire.reach_words import PUNCH

# Neighbours that are to dial this process try at once and every few seconds, so one of them succeeds within this long.
_DIALLED_WITHIN_S = 60.0
# Links that one peer may have open to this process: a second one replaces a half-dead first.
_LINKS_PER_PEER_MOST = 2


def plan_changed(state: RelayState, event: PlanChanged, now: float) -> None:
    """Follow a newer plan. Verified chunks stay, and so do links while they are of use."""
    if event.plan_id < state.plan.plan_id:
        return
    lost = set(state.plan.parents) - set(event.parents)
    if lost and state.in_flight():
        state.counters.reparentings += 1
    state.plan = event
    state.stripes = {one.stripe: one for one in event.stripes if one.stripe != DIRECT_STRIPE}
    state.discard_failures()
    state.neighbours = {neighbour.peer_id: neighbour for neighbour in event.neighbours}
    _discard_strangers(state, now)
    for link in state.links.values():
        link.lan = _is_lan(state, link.peer_id)
        reports.introduce_all(state, link)
    dial_neighbours(state, now)
    origin.issue(state, now)


def _discard_strangers(state: RelayState, now: float) -> None:
    """Discard what is kept of peers outside the plan; otherwise the state would grow with each peer that leaves."""
    plan = state.plan
    around = (*plan.neighbours, *plan.fallbacks, *state.further)
    known = {neighbour.peer_id for neighbour in around} | state.link_to.keys()
    state.windows = {key: window for key, window in state.windows.items() if key[0] in known}
    state.dials = {
        peer_id: dialling
        for peer_id, dialling in state.dials.items()
        if peer_id in known or dialling.dialling or dialling.retry_at_s > now
    }


def set_offline(state: RelayState, event: OfflineChanged, now: float) -> None:
    """Note whether the coordinator is unreachable: then the plan stays as it was, and any linked peer may be asked."""
    state.offline = event.offline
    dial_neighbours(state, now)


def holders_known(state: RelayState, event: HoldersKnown, now: float) -> None:
    """Replace the peers that are dialled where the plan's neighbours and fallbacks do not help."""
    state.further = event.holders
    _discard_strangers(state, now)
    dial_neighbours(state, now)


def _is_lan(state: RelayState, peer_id: PeerId) -> bool:
    neighbour = state.neighbours.get(peer_id) or next((one for one in state.further if one.peer_id == peer_id), None)
    return neighbour is not None and neighbour.lan


def link_up(state: RelayState, event: LinkUp, now: float) -> None:
    """Add a new link: send it the newest chunk lists, and ask it for the encodings that waited for it."""
    dialling = state.dial_state(event.peer_id)
    if event.dialled:
        dialling.dialling = False
    if state.penalised(event.peer_id, now):
        state.do(CloseLink(event.link, "this peer sent wrong bytes lately"))
        return
    older = [link for link in state.links.values() if link.peer_id == event.peer_id]
    lan = _is_lan(state, event.peer_id)
    link = LinkState(event.link, event.peer_id, event.role, event.dialled, now, now, lan, event.rtt_s)
    state.links[event.link] = state.link_to[event.peer_id] = link
    if len(older) >= _LINKS_PER_PEER_MOST:
        oldest = min(older, key=lambda old: old.link)
        state.do(CloseLink(oldest.link, "replaced by a newer link"))
        link_loss.discard_link(state, oldest, now)
    reports.introduce_all(state, link)
    for encoding in state.in_flight():
        helps = state.helps(link) or sources.of_use(state, encoding, link.role)
        if encoding.awaited == event.peer_id or (encoding.pulling and helps):
            sources.want(state, encoding, link, now)
    for encoding in state.encodings.values():
        # A neighbour that was disconnected learns what it need not send, and what it can request here.
        held = encoding.phase == "held" and encoding.announced_at_s
        begun = encoding.phase == "receiving" and encoding.have.count
        if state.helps(link) and (held or begun):
            reports.report(state, link, encoding)
    origin.issue(state, now)


def link_down(state: RelayState, event: LinkDown, now: float) -> None:
    """Remove a link that ended, and wait before its other end is dialled again."""
    link = state.links.get(event.link)
    if link is None:
        return
    link_loss.discard_link(state, link, now)
    if now - link.opened_at_s >= state.settings.redial_most_s:
        state.dial_state(link.peer_id).failures = 0
    if link.peer_id not in state.link_to:
        _back_off(state, link.peer_id, event.jitter, now)


def dial_failed(state: RelayState, event: DialFailed, now: float) -> None:
    """Note that a dial failed; encodings that waited for it ask the next holder."""
    dialling = state.dial_state(event.peer_id)
    dialling.dialling = False
    _back_off(state, event.peer_id, event.jitter, now, least_s=now - dialling.dialled_at_s)
    for encoding in state.in_flight():
        if encoding.awaited == event.peer_id:
            encoding.awaited = None
            sources.ask_next(state, encoding, now)


def _back_off(state: RelayState, peer_id: PeerId, jitter: float, now: float, least_s: float = 0.0) -> None:
    """Wait between half of the ceiling and all of it; the ceiling doubles with each failure.

    Args:
        least_s: seconds that the ceiling has at least. A dial that took long failed for want of room on a line or of
            processor time at either end, which the next one would take as well.
    """
    settings = state.settings
    dialling = state.dial_state(peer_id)
    ceiling_s = max(least_s, settings.redial_first_s * 2.0 ** min(dialling.failures, 16))
    ceiling_s = min(settings.redial_most_s, ceiling_s)
    dialling.failures += 1
    dialling.retry_at_s = now + ceiling_s * (0.5 + 0.5 * jitter)


def dial_neighbours(state: RelayState, now: float) -> None:
    """Dial the plan's neighbours that are not linked: links stay open between versions, so that none starts cold."""
    for neighbour in state.plan.neighbours:
        if neighbour.peer_id not in state.link_to and not state.penalised(neighbour.peer_id, now):
            sources.dial(state, neighbour, now)
    if state.offline:
        _dial_further(state, now)


def _dial_further(state: RelayState, now: float) -> None:
    """Dial holders beyond the plan while too few links are open, so that versions spread without the coordinator."""
    linked = {link.peer_id for link in state.links.values() if link.role in ("peer", "origin")}
    missing = state.settings.alone_links_least - len(linked)
    for holder in state.further:
        if missing <= 0:
            return
        if holder.peer_id not in linked and not state.penalised(holder.peer_id, now):
            missing -= sources.dial(state, holder, now)


def watch_dials(state: RelayState, now: float) -> None:
    """Warn once if no neighbour reaches the address advertised here: such a peer is sent less, and later."""
    expected = [one.peer_id for one in state.plan.neighbours if not one.we_dial and one.address != PUNCH]
    if state.dials_judged or not expected:
        state.undialled_since_s = None
    elif any(peer_id in state.link_to for peer_id in expected):
        state.dials_judged = True
    elif state.undialled_since_s is None:
        state.undialled_since_s = now
    elif now - state.undialled_since_s >= _DIALLED_WITHIN_S:
        state.dials_judged = True
        what = f"none of {len(expected)} that are to dial this process got through in {_DIALLED_WITHIN_S:.0f} s"
        fix = (
            "`rollcast peer check` reports what is in between, and how to open it; "
            'or set link.advertise to "none": then this process dials the others'
        )
        state.do(Warn(NotDialable.code, what, fix))


def close_unneeded(state: RelayState, now: float) -> None:
    """Close links that this process dialled and that neither the plan nor any request needs any more."""
    for link in list(state.links.values()):
        asked = any(link.link in encoding.sources for encoding in state.encodings.values())
        if not link.dialled or state.helps(link) or asked or link.pulls or link.pushes or link.wants:
            link.needed_at_s = now
        elif now - link.needed_at_s > state.settings.linger_s:
            state.do(CloseLink(link.link, "no longer needed"))
            link_loss.discard_link(state, link, now)
