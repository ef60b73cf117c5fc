"""Keep the prompt groups of a modelled run in order, so that the next one to lease is found without a search."""

from __future__ import annotations

from bisect import bisect_left, insort
from operator import attrgetter

from capacity.predict.fleet_parts import Group, Slot

group_number = attrgetter("number")


class Book:
    """Open and ready groups, oldest first."""

    def __init__(self) -> None:
        self.vacant: list[Group] = []
        """Those with slots that no worker holds, oldest first: seldom more than one or two."""
        self.groups: list[Group] = []
        """All of them, oldest first."""
        self._numbers: list[int] = []
        self._begun = 0

    def begin(self, lengths: list[float]) -> Group:
        """Begin a group behind all others, whose slots have these lengths."""
        self._begun += 1
        group = Group(lengths, len(lengths), number=self._begun)
        self.groups.append(group)
        self._numbers.append(group.number)
        self.vacant.append(group)
        return group

    def place(self, group: Group) -> int:
        """Return how many groups are ahead of this one."""
        return bisect_left(self._numbers, group.number)

    def lease(self, group: Group, count: int) -> list[float]:
        """Take so many vacant slots of a group, and return their lengths."""
        lengths = [group.vacant.pop() for _ in range(count)]
        if not group.vacant:
            self.vacant.remove(group)
        return lengths

    def vacate(self, slot: Slot) -> None:
        """Make a leased slot vacant again."""
        if not slot.group.vacant:
            insort(self.vacant, slot.group, key=group_number)
        slot.group.vacant.append(slot.length)

    def remove(self, group: Group) -> None:
        """Remove a group: it is in a batch, or was dropped."""
        group.over = True
        place = self.place(group)
        del self.groups[place], self._numbers[place]
        if group.vacant:
            self.vacant.remove(group)
