"""Keep a bounded stock of prompts sampled from the mixture ahead of need, so that opening a group never waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from coordinator.core.events.actions import SupplyPrompts
from coordinator.core.events.events import Prompt


class PromptQueue:
    """Queues prompts in mixture order; at most one request to the source is outstanding."""

    def __init__(self, *, groups_per_step: int, ahead_max: int) -> None:
        self._target = min(2 * groups_per_step, ahead_max)
        self._asked = 0
        self.stock: deque[Prompt] = deque()
        self.exhausted = False
        self.low = True
        """Whether at most half of the target is in stock, no request is outstanding, and the source has more."""

    def take(self) -> Prompt | None:
        """Return the next prompt; None if there is none in stock."""
        if not self.stock:
            return None
        prompt = self.stock.popleft()
        self._update_low()
        return prompt

    def ask(self, needed: int) -> list[SupplyPrompts]:
        """Return a request if the stock is low, else an empty list. At most ``needed`` prompts can still be used."""
        if not self.low:
            return []
        count = min(self._target, needed) - len(self.stock)
        if count <= 0:
            return []
        self._asked = count
        self._update_low()
        return [SupplyPrompts(count)]

    def supplied(self, prompts: Sequence[Prompt]) -> None:
        """Add the prompts of the answer. Fewer than requested means that the source is exhausted."""
        self.exhausted = len(prompts) < self._asked
        self._asked = 0
        self.stock.extend(prompts)
        self._update_low()

    def remove(self, problem_id: str) -> None:
        """Take a problem out of the stock, if it is in it."""
        self.stock = deque(one for one in self.stock if one.problem_id != problem_id)
        self._update_low()

    def _update_low(self) -> None:
        self.low = not self._asked and not self.exhausted and len(self.stock) <= self._target // 2
