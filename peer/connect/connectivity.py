"""Run the components through which a peer is found and reached, and route the coordinator's messages to them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

import structlog

from rollcast.runtime.errors import RollcastError
from rollcast.wire.proto import rollcast_pb2 as pb

log = structlog.get_logger()


class ConnectivityComponent(Protocol):
    """One way in which peers find or reach each other, such as port mapping or hole punching.

    All methods are called on the event loop, and only ``run`` may wait.
    """

    @property
    def kinds(self) -> frozenset[str]:
        """The bodies of CoordinatorMessage that this component handles; no other component handles them."""

    async def run(self) -> None:
        """Work until cancelled, then clean up."""

    def opened(self, welcome: pb.Welcome) -> None:
        """A session with the coordinator has opened."""

    def lost(self) -> None:
        """The session has ended."""

    def received(self, message: pb.CoordinatorMessage) -> None:
        """Handle a message whose body is one of ``kinds``.

        Raises:
            RollcastError: the message is malformed; the caller drops it.
        """


class Connectivity:
    """All connectivity components of one peer.

    A component that fails is logged and ends alone: each only adds ways to open links, and direct links work without.
    """

    def __init__(self, components: Sequence[ConnectivityComponent]) -> None:
        self._components = tuple(components)
        self._by_kind = {kind: component for component in self._components for kind in component.kinds}

    async def run(self) -> None:
        """Run every component until cancelled."""
        async with asyncio.TaskGroup() as group:
            for component in self._components:
                group.create_task(self._run(component))
            group.create_task(asyncio.Event().wait())  # the end of this method would end the peer

    def opened(self, welcome: pb.Welcome) -> None:
        """Notify every component that a session has opened."""
        for component in self._components:
            component.opened(welcome)

    def lost(self) -> None:
        """Notify every component that the session has ended."""
        for component in self._components:
            component.lost()

    def received(self, message: pb.CoordinatorMessage) -> bool:
        """Pass a message to the component that handles it. Return False if none does.

        Raises:
            RollcastError: the message is malformed.
        """
        component = self._by_kind.get(message.WhichOneof("body") or "")
        if component is not None:
            component.received(message)
        return component is not None

    async def _run(self, component: ConnectivityComponent) -> None:
        try:
            await component.run()
        except RollcastError as error:
            log.error(
                "connectivity component failed", part=type(component).__name__, code=error.code, reason=str(error)
            )
        except Exception as error:  # a bug in a convenience must not cost the donor its rollouts
            log.error("connectivity component failed", part=type(component).__name__, exc_info=error)
