"""Versions by word of mouth: how everybody hears of one although the coordinator is away, or relays are dead.

Announcements come from the coordinator, and ahead of the chunks down the plan's tree. Whoever knows a version says to
those who do not seem to what it holds of it (Have: a few bytes up to a few KiB), and who has not heard of it asks for
the announcement, which may be a hundred times longer, from one link at a time. The same in gossipsub's words: IHAVE,
IWANT (Vyzovitis et al. 2020, section 3). The learner's signature makes it true, whoever passes it on.
"""

from __future__ import annotations

from peer.links.neighbours import EncodingKey
from peer.relay.core import forwarding
from peer.relay.core.actions import SendAnnouncement, SendHave, SendWant
from peer.relay.core.events import LinkId, VersionHeard
from peer.relay.core.state import Heard, LinkState, RelayState
from rollcast.wire.ids import Version

# Versions that are spoken of: a chain of deltas to the newest, for who missed a few.
_HEARD_MOST = 4
# Announcements usually come within this long by themselves.
_PATIENCE_S = 0.5
# Who says that it knows a version has this long to send its announcement before another one is asked.
_ANSWER_S = 2.0
_ASKED_OF_ONE_MOST = 3
# Announcements of one version that one link may have for asking: the first may be lost with an older link.
_ANSWERS_MOST = 2
_ANSWERED_MOST = 16


def version_heard(state: RelayState, event: VersionHeard, now: float) -> None:
    """A verified announcement is here, whoever brought it."""
    version = event.key.version
    link = state.links.get(event.link) if event.link is not None else None
    if version not in state.heard:
        state.heard[version] = Heard(event.key, now)
        for old in sorted(state.heard)[:-_HEARD_MOST]:
            del state.heard[old]
    for other in state.links.values():
        other.knows &= state.heard.keys()
        if other.says is not None and other.says.version in state.heard:
            other.knows.add(other.says.version)
            other.says = None
    if link is not None and version in state.heard:
        link.knows.add(version)


def mentioned(state: RelayState, link_id: LinkId, key: EncodingKey) -> None:
    """The other end of a link speaks of a version: it need not be told of it."""
    link = state.links.get(link_id)
    if link is not None and key.version in state.heard:
        link.knows.add(key.version)


def told_of(state: RelayState, link_id: LinkId, key: EncodingKey, now: float) -> None:
    """The other end says what it holds; of a version that is news to us we ask for the announcement."""
    if key.version in state.heard:  # as nearly always: this is told many times a second
        mentioned(state, link_id, key)
        return
    link = state.links.get(link_id)
    if link is None or link.role not in ("peer", "origin") or key.version <= _newest(state):
        return
    if link.says is None or link.says.version < key.version:
        link.says, link.says_asked = key, 0
    _ask(state, key.version, now)


def announcement_wanted(state: RelayState, link_id: LinkId, key: EncodingKey) -> None:
    """The other end asks for an announcement."""
    link = state.links.get(link_id)
    version = key.version
    known = version in state.heard or any(one.version == version for one in state.encodings)
    if link is None or not known or link.answered.get(version, 0) >= _ANSWERS_MOST:
        return
    link.answered[version] = link.answered.get(version, 0) + 1
    while len(link.answered) > _ANSWERED_MOST:
        del link.answered[min(link.answered)]
    link.knows.add(version)
    state.do(SendAnnouncement(link.link, version))


def gossip(state: RelayState, now: float) -> None:
    """Tell who seems not to know of the newest versions, and ask again for what did not come."""
    for version, heard in state.heard.items():
        if now - heard.at_s < _PATIENCE_S:
            continue
        for link in state.links.values():
            ready = link.role in ("peer", "origin") and now - link.opened_at_s >= _PATIENCE_S
            if ready and version not in link.knows:
                link.knows.add(version)
                _say(state, link, heard.key)
    for version in {link.says.version for link in state.links.values() if link.says is not None}:
        _ask(state, version, now)


def _say(state: RelayState, link: LinkState, key: EncodingKey) -> None:
    encoding = state.encodings.get(key)
    if encoding is not None:
        forwarding.report(state, link, encoding)
    else:  # its state came another way
        state.do(SendHave(link.link, key, 0, b"", False))


def _newest(state: RelayState) -> Version:
    return max(state.newest_version(), max(state.heard, default=Version(-1)))


def _ask(state: RelayState, version: Version, now: float) -> None:
    """Ask one of those who know, unless another one was asked just now; who never answers is asked no more."""
    if version <= _newest(state):  # it is here by now, or no use any more
        for link in state.links.values():
            if link.says is not None and link.says.version == version:
                link.says = None
        return
    knowing = [link for link in state.links.values() if link.says is not None and link.says.version == version]
    if any(link.says_asked and now - link.says_asked_at_s < _ANSWER_S for link in knowing):
        return
    for link in sorted(knowing, key=lambda one: one.says_asked):
        if link.says is not None and link.says_asked >= _ASKED_OF_ONE_MOST:
            link.says = None
            continue
        if link.says is not None:
            link.says_asked, link.says_asked_at_s = link.says_asked + 1, now
            state.do(SendWant(link.link, link.says, False, announcement=True))
        return
