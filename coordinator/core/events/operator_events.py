"""Define the events of an operator's orders during a run, as plain data.

Every order outlives a coordinator (ledger/saved_orders.py); ``reason`` is in the operator's words, empty if none.
"""

from __future__ import annotations

from dataclasses import dataclass

from capacity.model.workers import Pin
from coordinator.core.events.prices import Budget, Price
from rollcast.wire.ids import PeerId, Step


@dataclass(frozen=True, slots=True)
class PeerPinned:
    """The operator pinned a peer on or off whatever it costs, or (empty) left it to the capacity model again."""

    peer_id: PeerId
    pin: Pin


@dataclass(frozen=True, slots=True)
class PeerDrained:
    """The operator drained a peer: it finishes its leases, then gets no new work and relays to no other peer."""

    peer_id: PeerId
    reason: str = ""
    name: str = ""  # as it called itself, for a coordinator that has not met it


@dataclass(frozen=True, slots=True)
class PeerBanned:
    """The operator banned a peer: its leases are revoked, and its identity may not rejoin."""

    peer_id: PeerId
    reason: str = ""
    name: str = ""
    invite: str = ""  # whose ban this is part of; empty if the peer alone is banned


@dataclass(frozen=True, slots=True)
class PeerEnabled:
    """The operator enabled a peer, which undoes whatever keeps it from working: drain, ban, quarantine."""

    peer_id: PeerId
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PricesChanged:
    """The operator replaced the prices of peers; the first that matches a peer applies."""

    prices: tuple[Price, ...]


@dataclass(frozen=True, slots=True)
class StalenessLimitChanged:
    """The operator changed S during the run, down to where the newest version may still be trained."""

    staleness_limit: int


@dataclass(frozen=True, slots=True)
class PublishPeriodChanged:
    """The operator changed kappa during the run, up to S + 1; 0 publishes as often as measured broadcasts allow."""

    publish_every_steps: int


@dataclass(frozen=True, slots=True)
class BudgetChanged:
    """The operator replaced both spending limits."""

    budget: Budget


@dataclass(frozen=True, slots=True)
class RunPaused:
    """The operator paused the run: no work is given out and no batch is formed until it is resumed."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class RunResumed:
    """The operator resumed the paused run."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class RunFinishing:
    """The operator ends the run early: no batch is formed from ``last_step`` on, and the learner finishes."""

    last_step: Step
    reason: str = ""


Order = (
    PeerPinned
    | PeerDrained
    | PeerBanned
    | PeerEnabled
    | PricesChanged
    | StalenessLimitChanged
    | PublishPeriodChanged
    | BudgetChanged
    | RunPaused
    | RunResumed
    | RunFinishing
)
