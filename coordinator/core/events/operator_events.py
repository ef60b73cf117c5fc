"""What an operator orders while a run goes on, as the core is told of it. Plain data.

Every one of these outlives a coordinator (orders.py); ``reason`` is the operator's own words, empty if none were given.
"""

from __future__ import annotations

from dataclasses import dataclass

from capacity.model.workers import Pin
from coordinator.core.events.prices import Budget, Price
from rollcast.wire.ids import PeerId


@dataclass(frozen=True, slots=True)
class PeerPinned:
    """The operator switches a peer on or off whatever it costs, or (empty) leaves it to the capacity model again."""

    peer_id: PeerId
    pin: Pin


@dataclass(frozen=True, slots=True)
class PeerDrained:
    """The operator wants a peer to finish what it holds, and to be given nothing new and relay to nobody after that."""

    peer_id: PeerId
    reason: str = ""
    name: str = ""  # as it called itself, for a coordinator that has not met it


@dataclass(frozen=True, slots=True)
class PeerBanned:
    """The operator sends a peer away for good: what it holds is taken from it, and its identity may not come back."""

    peer_id: PeerId
    reason: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class PeerEnabled:
    """The operator undoes whatever keeps a peer from working: drain, ban, quarantine."""

    peer_id: PeerId
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PricesChanged:
    """The operator says anew what peers cost: the first that matches a peer is its price."""

    prices: tuple[Price, ...]


@dataclass(frozen=True, slots=True)
class StalenessLimitChanged:
    """The operator sets S while the run goes on: from where the newest version may be trained to S at the start."""

    staleness_limit: int


@dataclass(frozen=True, slots=True)
class PublishPeriodChanged:
    """The operator sets kappa while the run goes on, up to S + 1; 0: as often as measured broadcasts allow."""

    publish_every_steps: int


@dataclass(frozen=True, slots=True)
class BudgetChanged:
    """The operator says anew what may be spent: both limits, as they hold from now on."""

    budget: Budget


Order = (
    PeerPinned
    | PeerDrained
    | PeerBanned
    | PeerEnabled
    | PricesChanged
    | StalenessLimitChanged
    | PublishPeriodChanged
    | BudgetChanged
)
