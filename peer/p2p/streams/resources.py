"""Bound what libp2p counts of its connections, and release what it takes for one that fails (trio).

This module stands alone because it imports libp2p, which is an extra; peer.p2p.streams.limits is read without it.

If a dial is cancelled, or a handshake fails at the wrong moment, libp2p 0.8 keeps counting the connection. After some
hundred of these its manager would refuse every further one.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, TypeVar

from libp2p.rcmgr.connection_limits import ConnectionLimits
from libp2p.rcmgr.manager import ResourceLimits, ResourceManager
from libp2p.rcmgr.memory_limits import MemoryConnectionLimits

ResultT = TypeVar("ResultT")

_MEMORY_MB = 256
_MAKERS = ("_dial_with_retry", "upgrade_outbound_raw_conn", "upgrade_inbound_raw_conn")
_taken: ContextVar[list[Any] | None] = ContextVar("taken", default=None)


class Resources(ResourceManager):  # type: ignore[misc]
    """Bounds on what libp2p itself holds, without a bound on the share of the machine's memory that is in use."""

    def __init__(self, connections_most: int) -> None:
        super().__init__(
            limits=ResourceLimits(connections_most, _MEMORY_MB, 8 * connections_most),
            connection_limits=ConnectionLimits(
                max_pending_inbound=connections_most,
                max_pending_outbound=connections_most,
                max_established_per_peer=8,
                max_established_total=connections_most,
            ),
            memory_limits=MemoryConnectionLimits(),
            enable_circuit_breaker=False,
            enable_graceful_degradation=False,
            enable_metrics=False,
        )

    def open_connection(self, *args: Any, **more: Any) -> Any:
        """See libp2p's ResourceManager; the scope is noted for the connection that is being made."""
        scope = super().open_connection(*args, **more)
        taken = _taken.get()
        if scope is not None and taken is not None:
            taken.append(scope)
        return scope


def give_back_what_fails(network: Any) -> None:
    """Release the resources of a network's connections that fail while they are made."""
    for name in _MAKERS:
        setattr(network, name, _giving_back(getattr(network, name)))


def _giving_back(make: Callable[..., Awaitable[ResultT]]) -> Callable[..., Awaitable[ResultT]]:
    @functools.wraps(make)
    async def giving_back(*args: Any, **more: Any) -> ResultT:
        taken: list[Any] = []
        before = _taken.set(taken)
        try:
            return await make(*args, **more)
        except BaseException:
            for scope in taken:
                scope.close()  # has an effect only once, although libp2p may close it too
            raise
        finally:
            _taken.reset(before)

    return giving_back
