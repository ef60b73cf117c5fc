"""Somebody who changes prices, pins peers and sets S while the run goes on."""

from __future__ import annotations

from coordinator import events as ev
from coordinator.activation_settings import Price
from rollcast.sim.coordinator_node import CoordinatorNode
from rollcast.sim.ground import Ground
from rollcast.wire.ids import PeerId

_PRICE_FACTORS = (0.5, 0.8, 1.25, 2.0)


class Operator:
    """Acts every ``operator_every_s`` on average; one peer at most is pinned at a time, so that the run can go on."""

    def __init__(self, ground: Ground, coordinator: CoordinatorNode) -> None:
        self._ground = ground
        self._coordinator = coordinator
        self._random = ground.chance.of("operator")
        self._prices = list(ground.settings.activation.prices)
        self._pinned = ""
        self._wait()

    def _wait(self) -> None:
        self._ground.agenda.after(self._random.expovariate(1.0 / self._ground.settings.operator_every_s), self._act)

    def _act(self) -> None:
        self._wait()
        if self._coordinator.core is not None:
            self._random.choice((self._reprice, self._pin, self._change_limit))()

    def _reprice(self) -> None:
        if not self._prices:
            return
        number = self._random.randrange(len(self._prices))
        factor = self._random.choice(_PRICE_FACTORS)
        price = self._prices[number]
        self._prices[number] = Price(name=price.name, usd_per_hour=round(price.usd_per_hour * factor, 4))
        self._coordinator.apply(ev.PricesChanged(tuple(self._prices)))

    def _pin(self) -> None:
        """Unpin the one that is pinned, else pin one."""
        if self._pinned:
            self._coordinator.apply(ev.PeerPinned(PeerId(self._pinned), ""))
            self._pinned = ""
            return
        self._pinned = f"peer-{self._random.randrange(self._ground.settings.peers)}"
        self._coordinator.apply(ev.PeerPinned(PeerId(self._pinned), self._random.choice(("on", "off"))))

    def _change_limit(self) -> None:
        core = self._coordinator.core
        assert core is not None
        limit = self._random.randint(core.rules.limit_least, core.rules.limit_most)
        self._coordinator.apply(ev.StalenessLimitChanged(limit))
