"""What the operator says about which peers are worth having on: the mode, prices, limits."""

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
    """What peers cost that match every pattern that is given; ``*`` and ``?`` as in file names.

    Args:
        preemptions_per_hour: how often such a machine is taken away, on average.
    """

    peer_id: str = "*"
    name: str = "*"
    hardware: str = "*"
    region: str = "*"
    usd_per_hour: float
    egress_usd_per_gb: float = 0.0
    preemptions_per_hour: float = 0.0

    def matches(self, *, peer_id: str, name: str, hardware: str, region: str) -> bool:
        """Whether it is the price of this peer. What a peer calls itself is believed: put peer ids first."""
        return (  # asked for every peer whenever what they cost together is shown
            (self.hardware == "*" or fnmatchcase(hardware, self.hardware))
            and (self.name == "*" or fnmatchcase(name, self.name))
            and (self.region == "*" or fnmatchcase(region, self.region))
            and (self.peer_id == "*" or fnmatchcase(peer_id, self.peer_id))
        )


FREE = Price(usd_per_hour=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What may be spent, in US dollars; None: no limit.

    Args:
        usd_per_hour_max: by peers and their traffic together: no set above it is chosen.
        usd_total_max: by workers that the coordinator starts at providers, since the run began.
    """

    usd_per_hour_max: float | None = None
    usd_total_max: float | None = None


def price_of(prices: Sequence[Price], *, peer_id: str, name: str, hardware: str, region: str) -> Price:
    """The first that matches; a peer that none matches is donated and costs nothing."""
    for price in prices:
        if price.matches(peer_id=peer_id, name=name, hardware=hardware, region=region):
            return price
    return FREE


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationSettings:
    """How the capacity model switches peers on and off. Durations in seconds, prices in US dollars.

    Args:
        mode: off; advise: only say what it would do; act.
        prices: the first that matches a peer is its price.
        origin_egress_usd_per_gb: of what the origin sends.
        budget: what may be spent until the operator says otherwise.
        headroom: rollouts a second bought / needed.
        share_without_a_region: of the needed rate that is left when any one region is lost; 0: not asked for.
        standby_receives: whether peers that are off go on receiving versions, so that they can start at once.
        unknown_download_bytes_per_second, unknown_upload_bytes_per_second: of links that were not measured.
    """

    mode: Mode = "off"
    prices: tuple[Price, ...] = ()
    origin_egress_usd_per_gb: float = 0.0
    budget: Budget = Budget()
    headroom: float = 1.15
    share_without_a_region: float = 0.0
    standby_receives: StandbyReceives = "cheap"
    unknown_download_bytes_per_second: float = 1.25e8
    unknown_upload_bytes_per_second: float = 1.25e6
    replan: ReplanSettings = field(default_factory=ReplanSettings)
