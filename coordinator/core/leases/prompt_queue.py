"""Problems drawn from the mixture ahead of need, in bounded bulk."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from coordinator.core.events.actions import SupplyPrompts
from coordinator.core.events.events import Prompt


class PromptQueue:
    """Prompts in mixture order; at most one request to the source is outstanding."""

    def __init__(self, *, groups_per_step: int, ahead_max: int) -> None:
        self._target = min(2 * groups_per_step, ahead_max)
        self._prompts: deque[Prompt] = deque()
        self._asked = 0
        self.exhausted = False

    def __len__(self) -> int:
        return len(self._prompts)

    def take(self) -> Prompt | None:
        return self._prompts.popleft() if self._prompts else None

    @property
    def low(self) -> bool:
        """Whether at most half of the stock is left, and more was not asked for."""
        return not self._asked and not self.exhausted and len(self._prompts) <= self._target // 2

    def ask(self, needed: int) -> list[SupplyPrompts]:
        """A request if the stock is low; ``needed`` is how many may still be used at all."""
        if not self.low:
            return []
        count = min(self._target, needed) - len(self._prompts)
        if count <= 0:
            return []
        self._asked = count
        return [SupplyPrompts(count)]

    def supplied(self, prompts: Sequence[Prompt]) -> None:
        """The answer; fewer than asked means that the source has no more."""
        self.exhausted = len(prompts) < self._asked
        self._asked = 0
        self._prompts.extend(prompts)
