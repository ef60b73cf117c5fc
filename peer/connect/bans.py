"""Keep banned peers off this machine's links: their certificates stay valid for a while after the operator's ban."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.ids import PeerId
from rollcast.wire.limits import BANNED_MAX, PEER_ID_LENGTH_MAX
from rollcast.wire.proto import rollcast_pb2 as pb

log = structlog.get_logger()


class Bans:
    """The set of banned peers, a connectivity component (peer.connect.connectivity).

    The last set that the coordinator sent stays in force while there is no session.

    Args:
        keep_out: functions that are called with all banned peers whenever the set changes.
    """

    kinds = frozenset({"banned"})

    def __init__(self, *keep_out: Callable[[frozenset[PeerId]], None]) -> None:
        self._keep_out = keep_out
        self._now: dict[PeerId, None] = {}  # ordered, the earliest ban first

    async def run(self) -> None:
        """Wait until cancelled: only messages change the set."""
        await asyncio.Event().wait()

    def opened(self, welcome: pb.Welcome) -> None:
        """Clear the set: the coordinator sends all current bans at the start of a session."""
        self._set({})

    def lost(self) -> None:
        """See ConnectivityComponent."""

    def received(self, message: pb.CoordinatorMessage) -> None:
        """Add newly banned peers and remove pardoned ones.

        Raises:
            MalformedMessage: there are more than BANNED_MAX ids, or one is too long.
        """
        change = message.banned
        if max(len(change.peer_ids), len(change.pardoned)) > BANNED_MAX:
            raise MalformedMessage(f"a message bans or pardons more than {BANNED_MAX} peers")
        if any(len(one) > PEER_ID_LENGTH_MAX for one in (*change.peer_ids, *change.pardoned)):
            raise MalformedMessage("the id of a banned peer is too long")
        banned = self._now | dict.fromkeys(map(PeerId, change.peer_ids))
        for one in map(PeerId, change.pardoned):
            banned.pop(one, None)
        self._set(dict.fromkeys([*banned][-BANNED_MAX:]))

    def _set(self, banned: dict[PeerId, None]) -> None:
        if banned.keys() == self._now.keys():
            return
        self._now = banned
        log.info("banned peers", count=len(banned))
        for keep_out in self._keep_out:
            keep_out(frozenset(banned))
