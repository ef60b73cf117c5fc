"""Whom the operator has sent away: we have no links with them, though their certificates count for a while."""

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
    """A connectivity component (peer.connect.connectivity). What was told last counts while the coordinator is away.

    Args:
        keep_out: each is told all of them, whenever they change.
    """

    kinds = frozenset({"banned"})

    def __init__(self, *keep_out: Callable[[frozenset[PeerId]], None]) -> None:
        self._keep_out = keep_out
        self._now: dict[PeerId, None] = {}  # who was told of longest ago first

    async def run(self) -> None:
        """It has nothing to do by itself."""
        await asyncio.Event().wait()

    def opened(self, welcome: pb.Welcome) -> None:
        """Whoever is banned is told of again."""
        self._set({})

    def lost(self) -> None:
        """See ConnectivityComponent."""

    def received(self, message: pb.CoordinatorMessage) -> None:
        """Some more, or fewer.

        Raises:
            MalformedMessage: more than there can be, or no peer ids.
        """
        told = message.banned
        if max(len(told.peer_ids), len(told.pardoned)) > BANNED_MAX:
            raise MalformedMessage("more banned peers than there can be")
        if any(len(one) > PEER_ID_LENGTH_MAX for one in (*told.peer_ids, *told.pardoned)):
            raise MalformedMessage("the id of a banned peer is too long")
        banned = self._now | dict.fromkeys(map(PeerId, told.peer_ids))
        for one in map(PeerId, told.pardoned):
            banned.pop(one, None)
        self._set(dict.fromkeys([*banned][-BANNED_MAX:]))

    def _set(self, banned: dict[PeerId, None]) -> None:
        if banned.keys() == self._now.keys():
            return
        self._now = banned
        log.info("banned peers", count=len(banned))
        for tell in self._keep_out:
            tell(frozenset(banned))
