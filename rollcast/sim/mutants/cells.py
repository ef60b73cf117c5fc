"""Define the bugs to plant into cells, which generate for a head and keep rollouts until the head has them."""

from __future__ import annotations

from typing import Any

from coordinator.core import cell
from coordinator.core.leases.groups import Group, slot_seed
from coordinator.core.leases.lease_book import LeaseBook
from rollcast.sim.mutants.planting import Mutant, Patch, always

#: Settings of the fleet in which bugs of cells are hunted: two cells besides its peers.
_CELLS = {"cells": 2}


def _own_seeds(new_group: Any) -> Any:
    """Give each slot that the head lends a seed of the cell's own, as slots of a run's own problems have."""

    def mutated(self: LeaseBook, group_id: Any, prompt: Any) -> Group:
        group: Group = new_group(self, group_id, prompt)
        for index, slot in enumerate(group.slots):
            slot.seed = slot_seed(self._run_seed, group_id, index)
        return group

    return mutated


MUTANTS = (
    Mutant(
        "refused-counts-as-delivered",
        "cell",
        "a cell counts as delivered what the head refused to store",
        (Patch(cell, "_reason_of", always("delivered")),),
        _CELLS,
    ),
    Mutant(
        "seeds-of-the-cell",
        "I7",
        "a cell has the head's slots generated with seeds of its own",
        (Patch(LeaseBook, "_new_group", _own_seeds),),
        _CELLS,
    ),
)
