"""How a peer is found and reached: the parts that see to it, and which messages of the coordinator concern which."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

import structlog

from rollcast.runtime.errors import RollcastError
from rollcast.wire.proto import rollcast_pb2 as pb

log = structlog.get_logger()


class ConnectivityComponent(Protocol):
    """One concern of reaching each other. Called on the event loop; only ``run`` waits."""

    @property
    def kinds(self) -> frozenset[str]:
        """Bodies of CoordinatorMessage that it takes."""

    async def run(self) -> None:
        """Work until cancelled, and clear up then."""

    def opened(self, welcome: pb.Welcome) -> None:
        """There is a session."""

    def lost(self) -> None:
        """There is none any more."""

    def received(self, message: pb.CoordinatorMessage) -> None:
        """A message of one of ``kinds``.

        Raises:
            RollcastError: it is not what it should be; it is dropped.
        """


class Connectivity:
    """All parts of one peer. One that fails is logged and ends alone: what it was for is a convenience to links."""

    def __init__(self, parts: Sequence[ConnectivityComponent]) -> None:
        self._parts = tuple(parts)
        self._by_kind = {kind: part for part in self._parts for kind in part.kinds}

    async def run(self) -> None:
        """Run every part until cancelled."""
        async with asyncio.TaskGroup() as group:
            for part in self._parts:
                group.create_task(self._run(part))
            group.create_task(asyncio.Event().wait())  # a peer does not end because none has anything to do

    def opened(self, welcome: pb.Welcome) -> None:
        """There is a session."""
        for part in self._parts:
            part.opened(welcome)

    def lost(self) -> None:
        """There is none any more."""
        for part in self._parts:
            part.lost()

    def received(self, message: pb.CoordinatorMessage) -> bool:
        """Hand a message to the part that it is for; False: it is for none.

        Raises:
            RollcastError: it is not what it should be.
        """
        part = self._by_kind.get(message.WhichOneof("body") or "")
        if part is not None:
            part.received(message)
        return part is not None

    async def _run(self, part: ConnectivityComponent) -> None:
        try:
            await part.run()
        except RollcastError as error:
            log.error("a way to be reached is off", part=type(part).__name__, code=error.code, reason=str(error))
        except Exception as error:  # a fault of ours in one of these must not cost the donor the rollouts
            log.error("a way to be reached is off", part=type(part).__name__, exc_info=error)
