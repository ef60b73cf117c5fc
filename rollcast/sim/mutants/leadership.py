"""Define the bugs to plant where a standby takes the leadership over from a coordinator that was frozen or killed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coordinator.core.events.restored import Restored
from rollcast.sim.mutants.planting import Mutant, Patch, always
from rollcast.sim.nodes.coordinator import CoordinatorNode
from rollcast.sim.store.leadership import Fence, LeadershipRow
from rollcast.sim.store.store import MemoryStore

#: Settings of the fleet in which bugs of the leadership are hunted: a leader and a standby share one database.
_TWO = {"coordinators": 2}


def _read_while_waiting(lead: Any) -> Any:
    """Read the ledger before the coordinator leads, and restore that state once it does."""

    def mutated(self: Any, row: LeadershipRow) -> Any:
        early: Restored = type(self)._read(self, MemoryStore(self.tables), 0)
        self._read = lambda _store, incarnation: replace(early, incarnation=incarnation)
        return lead(self, row)

    return mutated


MUTANTS = (
    Mutant(
        "commit-without-fence",
        "leader",
        "a transaction does not check that its coordinator still leads",
        (Patch(Fence, "refusal", always(None)),),
        _TWO,
    ),
    Mutant(
        "serve-before-epoch-read",
        "I1",
        "a standby serves what it read from the ledger while it waited, not what the ledger holds in its epoch",
        (Patch(CoordinatorNode, "_lead", _read_while_waiting),),
        _TWO,
    ),
)
