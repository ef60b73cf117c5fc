"""Spread announcements of versions between peers, so that they arrive although the coordinator or relays are down.

Announcements come from the coordinator, and ahead of the chunks down the plan's tree. A peer that knows a version sends
a Have (a few bytes to a few KiB) to neighbours that do not seem to know it. A neighbour that lacks it requests the
announcement, which may be a hundred times longer, from one link at a time. Gossipsub calls these messages IHAVE and
IWANT (Vyzovitis et al. 2020, section 3). The learner's signature proves the announcement, whichever peer passes it on.
"""

from __future__ import annotations

from peer.links.neighbours import EncodingKey
from peer.relay.core import reports
from peer.relay.core.state.actions import SendAnnouncement, SendHave, SendWant
from peer.relay.core.state.events import AnnouncementReceived, LinkId
from peer.relay.core.state.relay_state import KnownVersion, LinkState, RelayState
from rollcast.wire.ids import Version

# Versions that are gossiped: the chain of deltas to the newest, for peers that missed a few.
_KNOWN_MOST = 4
# Announcements usually come from the coordinator or the plan's tree within this long.
_PATIENCE_S = 0.5
# A peer that knows a version has this long to send its announcement before another one is asked.
_ANSWER_S = 2.0
_ASKED_OF_ONE_MOST = 3
# Times that one link may request the announcement of one version: the first answer may be lost with an older link.
_ANSWERS_MOST = 2
_ANSWERED_MOST = 16


def announcement_received(state: RelayState, event: AnnouncementReceived, now: float) -> None:
    """Record a version whose announcement is verified, whichever peer sent it."""
    version = event.key.version
    link = state.links.get(event.link) if event.link is not None else None
    if version not in state.known_versions:
        state.known_versions[version] = KnownVersion(event.key, now)
        for old in sorted(state.known_versions)[:-_KNOWN_MOST]:
            del state.known_versions[old]
    for other in state.links.values():
        other.known_versions &= state.known_versions.keys()
        if other.mentioned is not None and other.mentioned.version in state.known_versions:
            other.known_versions.add(other.mentioned.version)
            other.mentioned = None
    if link is not None and version in state.known_versions:
        link.known_versions.add(version)


def mentioned(state: RelayState, link_id: LinkId, key: EncodingKey) -> None:
    """Note that the other end of a link knows a version, because it mentioned it: it needs no Have."""
    link = state.links.get(link_id)
    if link is not None and key.version in state.known_versions:
        link.known_versions.add(key.version)


def follow_mention(state: RelayState, link_id: LinkId, key: EncodingKey, now: float) -> None:
    """Request the announcement of a version that the other end mentions in a Have and that is news here."""
    if key.version in state.known_versions:  # as nearly always: a Have comes many times a second
        mentioned(state, link_id, key)
        return
    link = state.links.get(link_id)
    if link is None or link.role not in ("peer", "origin") or key.version <= _newest(state):
        return
    if link.mentioned is None or link.mentioned.version < key.version:
        link.mentioned, link.mention_requests = key, 0
    _ask(state, key.version, now)


def announcement_wanted(state: RelayState, link_id: LinkId, key: EncodingKey) -> None:
    """Send the announcement that the other end requests, unless it has had it often enough."""
    link = state.links.get(link_id)
    version = key.version
    known = version in state.known_versions or any(one.version == version for one in state.encodings)
    if link is None or not known or link.answered.get(version, 0) >= _ANSWERS_MOST:
        return
    link.answered[version] = link.answered.get(version, 0) + 1
    while len(link.answered) > _ANSWERED_MOST:
        del link.answered[min(link.answered)]
    link.known_versions.add(version)
    state.do(SendAnnouncement(link.link, version))


def gossip(state: RelayState, now: float) -> None:
    """Send a Have to neighbours that seem not to know a recent version, and retry requests for announcements."""
    for version, known in state.known_versions.items():
        if now - known.at_s < _PATIENCE_S:
            continue
        for link in state.links.values():
            ready = link.role in ("peer", "origin") and now - link.opened_at_s >= _PATIENCE_S
            if ready and version not in link.known_versions:
                link.known_versions.add(version)
                _mention(state, link, known.key)
    for version in {link.mentioned.version for link in state.links.values() if link.mentioned is not None}:
        _ask(state, version, now)


def _mention(state: RelayState, link: LinkState, key: EncodingKey) -> None:
    encoding = state.encodings.get(key)
    if encoding is not None:
        reports.report(state, link, encoding)
    else:  # this process has the version in another encoding
        state.do(SendHave(link.link, key, 0, b"", False))


def _newest(state: RelayState) -> Version:
    return max(state.newest_version(), max(state.known_versions, default=Version(-1)))


def _ask(state: RelayState, version: Version, now: float) -> None:
    """Request an announcement from one peer that has it, unless a request is pending; drop peers that never answer."""
    if version <= _newest(state):  # it has come by now, or is obsolete
        for link in state.links.values():
            if link.mentioned is not None and link.mentioned.version == version:
                link.mentioned = None
        return
    knowing = [
        link for link in state.links.values() if link.mentioned is not None and link.mentioned.version == version
    ]
    if any(link.mention_requests and now - link.mention_requested_at_s < _ANSWER_S for link in knowing):
        return
    for link in sorted(knowing, key=lambda one: one.mention_requests):
        if link.mentioned is not None and link.mention_requests >= _ASKED_OF_ONE_MOST:
            link.mentioned = None
            continue
        if link.mentioned is not None:
            link.mention_requests, link.mention_requested_at_s = link.mention_requests + 1, now
            state.do(SendWant(link.link, link.mentioned, False, announcement=True))
        return
