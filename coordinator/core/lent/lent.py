"""Describe a slot that a head lends to a cell, and keep which slots the cell has. Pure.

In the cell each such slot is a prompt group of its own. The ledger keeps the slot as the group's mixture position, so
that a restarted cell knows under which lease of the head a rollout is uploaded.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import msgspec

from coordinator.core.events.cell_events import LentKey
from coordinator.core.events.events import Prompt
from rollcast.wire.ids import FencingToken, GroupId, LeaseId, Version
from rollcast.wire.rollouts import LeaseGrant

_PROBLEM = "lent/"  # begins the problem id of a lent slot
_OVER_KEPT = 65_536  # slots that are over and remembered, because the uplink may repeat a lease


@dataclass(frozen=True, slots=True)
class Lent:
    """One slot of a lease of the head."""

    lease_id: LeaseId
    fencing_token: FencingToken
    group_id: GroupId
    sample_index: int
    seed: int
    oldest_useful_version: Version
    max_new_tokens: int

    @property
    def key(self) -> LentKey:
        """Return what names the slot: the head's lease, and the sample index."""
        return self.lease_id, self.sample_index

    def prompt(self, prompt_token_ids: tuple[int, ...]) -> Prompt:
        """Return the prompt as which the cell's members get the slot."""
        position = msgspec.json.encode(self).decode()
        return Prompt(self.problem_id(self.key), prompt_token_ids, position)

    @staticmethod
    def problem_id(key: LentKey) -> str:
        """Return the problem id of a lent slot."""
        lease_id, sample_index = key
        return f"{_PROBLEM}{lease_id}/{sample_index}"

    @classmethod
    def of(cls, prompt: Prompt) -> Lent | None:
        """Return the slot that a prompt stands for; None if it is a problem of the run's own task."""
        if not is_lent(prompt.problem_id):
            return None
        return msgspec.json.decode(prompt.mixture_position, type=cls)


def is_lent(problem_id: str) -> bool:
    """Whether a problem id is that of a slot of the head."""
    return problem_id.startswith(_PROBLEM)


def prompts_of(lease: LeaseGrant) -> tuple[Prompt, ...]:
    """Return the prompts for the slots of a lease of the head."""
    return tuple(
        Lent(
            lease.lease_id,
            lease.fencing_token,
            lease.group_id,
            slot.sample_index,
            slot.seed,
            max(lease.oldest_useful_version, lease.oldest_own_version),
            lease.sampling.max_new_tokens,
        ).prompt(lease.prompt_token_ids)
        for slot in lease.slots
    )


class LentBook:
    """The lent slots that are not over, each with its group once that is open, and the newest that are over."""

    def __init__(self) -> None:
        self._groups: dict[LentKey, GroupId | None] = {}
        self._over: OrderedDict[LentKey, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._groups)

    def add(self, key: LentKey) -> bool:
        """Add a slot. Returns False if it is known, over or not."""
        if key in self._groups or key in self._over:
            return False
        self._groups[key] = None
        return True

    def opened(self, key: LentKey, group_id: GroupId) -> None:
        """Note the group of a slot."""
        self._groups[key] = group_id

    def end(self, key: LentKey) -> tuple[bool, GroupId | None]:
        """Note that a slot is over. Returns whether it was here, and its group; None if none was opened."""
        self._over[key] = None
        while len(self._over) > _OVER_KEPT:
            self._over.popitem(last=False)
        known = key in self._groups
        return known, self._groups.pop(key, None)

    def slots_of(self, lease_id: LeaseId) -> list[LentKey]:
        """Return the slots of a lease of the head that are not over."""
        return [key for key in self._groups if key[0] == lease_id]

    def leases(self) -> list[LeaseId]:
        """Return the head's leases of which a slot is not over."""
        return list(dict.fromkeys(lease_id for lease_id, _ in self._groups))
