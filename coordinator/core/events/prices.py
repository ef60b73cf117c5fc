"""Define the operator's settings of the capacity model: the mode, prices and limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

from capacity.replan.events import ReplanSettings

Mode = Literal["off", "advise", "act"]
StandbyReceives = Literal["cheap", "always", "never"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """The price of the peers that match every given pattern; ``*`` and ``?`` are as in file names.

    Args:
        preemptions_per_hour: mean number of preemptions of such a machine.
    """

    peer_id: str = "*"
    name: str = "*"
    hardware: str = "*"
    region: str = "*"
    usd_per_hour: float
    egress_usd_per_gb: float = 0.0
    preemptions_per_hour: float = 0.0

    def matches(self, *, peer_id: str, name: str, hardware: str, region: str) -> bool:
        """Whether this price applies to a peer. Peers choose their names, so put prices by peer id first."""
        return (  # skips fnmatch for *: this runs for every peer whenever their total price is shown
            (self.hardware == "*" or fnmatchcase(hardware, self.hardware))
            and (self.name == "*" or fnmatchcase(name, self.name))
            and (self.region == "*" or fnmatchcase(region, self.region))
            and (self.peer_id == "*" or fnmatchcase(peer_id, self.peer_id))
        )


FREE = Price(usd_per_hour=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Spending limits in US dollars; None for no limit.

    Args:
        usd_per_hour_max: limit for peers and their traffic together: no set above it is chosen.
        usd_total_max: limit for workers that the coordinator starts at providers, since the run began.
    """

    usd_per_hour_max: float | None = None
    usd_total_max: float | None = None


def price_of(prices: Sequence[Price], *, peer_id: str, name: str, hardware: str, region: str) -> Price:
    """Return the first price that matches a peer; a peer that matches none is donated and costs nothing."""
    for price in prices:
        if price.matches(peer_id=peer_id, name=name, hardware=hardware, region=region):
            return price
    return FREE


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationSettings:
    """How the capacity model switches peers on and off. Durations in seconds, prices in US dollars.

    Args:
        mode: "off"; "advise", which only reports what the model would do; or "act".
        prices: prices, of which the first that matches a peer applies.
        origin_egress_usd_per_gb: price of what the origin sends.
        budget: spending limits until the operator changes them.
        learner_usd_per_hour: price of the learner's machines; 0 if it is not known.
        headroom: rollouts a second bought / needed.
        share_without_a_region: share of the needed rate that must remain if any one region is lost; 0 for no such rule.
        standby_receives: whether peers that are off continue to receive versions, so that they can start at once.
        unknown_download_bytes_per_second, unknown_upload_bytes_per_second: assumed for links without a measurement.
    """

    mode: Mode = "off"
    prices: tuple[Price, ...] = ()
    origin_egress_usd_per_gb: float = 0.0
    learner_usd_per_hour: float = 0.0
    budget: Budget = Budget()
    headroom: float = 1.15
    share_without_a_region: float = 0.0
    standby_receives: StandbyReceives = "cheap"
    unknown_download_bytes_per_second: float = 1.25e8
    unknown_upload_bytes_per_second: float = 1.25e6
    replan: ReplanSettings = field(default_factory=ReplanSettings)
