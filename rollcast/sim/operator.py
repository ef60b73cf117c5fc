"""Simulate an operator who pins, drains, bans and enables peers, and changes prices, S, kappa and the budget."""

from __future__ import annotations

from collections.abc import Callable

from coordinator.core.events.operator_events import (
    BudgetChanged,
    PeerBanned,
    PeerDrained,
    PeerEnabled,
    PeerPinned,
    PricesChanged,
    PublishPeriodChanged,
    StalenessLimitChanged,
)
from coordinator.core.events.prices import Budget, Price
from rollcast.sim.nodes.coordinator import CoordinatorNode
from rollcast.sim.world import Ground
from rollcast.wire.ids import PeerId

_PRICE_FACTORS = (0.5, 0.8, 1.25, 2.0)
_RAISED_BY = 2  # learner steps that S may get above the configured one


class Operator:
    """An operator who gives a random order every ``operator_every_s`` seconds on average.

    At most one peer is pinned, and at most one drained or banned, at a time, so that the run can continue.
    """

    def __init__(self, ground: Ground, leader: Callable[[], CoordinatorNode]) -> None:
        self._ground = ground
        self._leader = leader
        self._random = ground.chance.of("operator")
        self._prices = list(ground.settings.activation.prices)
        self._pinned = self._kept_out = ""
        self._wait()

    def _wait(self) -> None:
        self._ground.agenda.after(self._random.expovariate(1.0 / self._ground.settings.operator_every_s), self._act)

    def _act(self) -> None:
        self._wait()
        if self._leader().core is not None:
            acts = (
                self._reprice,
                self._pin,
                self._change_limit,
                self._keep_out,
                self._change_period,
                self._change_budget,
            )
            self._random.choice(acts)()

    def _reprice(self) -> None:
        if not self._prices:
            return
        number = self._random.randrange(len(self._prices))
        factor = self._random.choice(_PRICE_FACTORS)
        price = self._prices[number]
        self._prices[number] = Price(name=price.name, usd_per_hour=round(price.usd_per_hour * factor, 4))
        self._leader().give(PricesChanged(tuple(self._prices)))

    def _pin(self) -> None:
        """Unpin the pinned peer; if none is pinned, pin one."""
        if self._pinned:
            self._leader().give(PeerPinned(PeerId(self._pinned), ""))
            self._pinned = ""
            return
        self._pinned = f"peer-{self._random.randrange(self._ground.settings.peers)}"
        self._leader().give(PeerPinned(PeerId(self._pinned), self._random.choice(("on", "off"))))

    def _change_limit(self) -> None:
        core = self._leader().core
        assert core is not None
        most = self._ground.settings.staleness_limit + _RAISED_BY
        limit = self._random.randint(core.rules.limit_least, most)
        self._leader().give(StalenessLimitChanged(limit))

    def _keep_out(self) -> None:
        """Enable the drained or banned peer; if there is none, drain or ban one."""
        if self._kept_out:
            self._leader().give(PeerEnabled(PeerId(self._kept_out), "tried again"))
            self._kept_out = ""
            return
        self._kept_out = f"peer-{self._random.randrange(self._ground.settings.peers)}"
        order = self._random.choice((PeerDrained, PeerBanned))
        self._leader().give(order(PeerId(self._kept_out), "a whim", self._kept_out))

    def _change_period(self) -> None:
        core = self._leader().core
        assert core is not None
        self._leader().give(PublishPeriodChanged(self._random.randint(0, core.rules.limit + 1)))

    def _change_budget(self) -> None:
        hourly = self._random.choice((None, 2.0, 4.0))
        self._leader().give(BudgetChanged(Budget(usd_per_hour_max=hourly)))
