"""Read recorded batches from the ledger for the learner, which has nothing to do while it waits for them.

An answer of the ledger takes as long as the commit in progress, so requesting one part after the other would make the
learner of a small batch wait for a dozen commits. The first parts are therefore requested together with the record
itself, in whose transaction they are read, and later parts ahead of need. Only durable batches are served.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence

from coordinator.ledger.store import BatchEntry, RunStore
from rollcast.runtime.waits import deadline
from rollcast.wire.ids import RolloutId, Step

ROLLOUTS_AT_ONCE = 32  # read at once; few enough that uploads waiting for the ledger are not delayed
ROUTED_AT_ONCE = 4  # of those that have routes, each some MB
PARTS_AHEAD = 8  # parts requested ahead of the one being sent, so that the learner does not wait for each commit
ROLLOUTS_UNPACED = 512  # the rest of a larger batch is read with pauses, in half of the time only
LEDGER_DEADLINE_S = 60.0


class _BatchRead:
    """One batch that is being read, from its beginning."""

    def __init__(self, ledger: RunStore, step: Step, at_once: int) -> None:
        self._ledger = ledger
        self._step = step
        self._at_once = at_once
        self._requested = 0  # rollouts
        self._size = ledger.batch_size(step)
        self._parts: deque[asyncio.Future[list[BatchEntry]]] = deque()
        while len(self._parts) < PARTS_AHEAD:
            self._request_part()

    def _request_part(self) -> None:
        self._parts.append(self._ledger.batch(self._step, self._requested, self._at_once))
        self._requested += self._at_once

    async def size(self) -> int:
        async with deadline(LEDGER_DEADLINE_S, "the ledger to count a batch"):
            return await self._size

    async def parts(self) -> AsyncIterator[list[BatchEntry]]:
        size = await self.size()
        for first in range(0, size, self._at_once):
            began_s = time.monotonic()
            if not self._parts:
                self._request_part()
            async with deadline(LEDGER_DEADLINE_S, "the ledger to read a part of a batch"):
                entries = await self._parts.popleft()
            while len(self._parts) < PARTS_AHEAD and self._requested < min(size, ROLLOUTS_UNPACED):
                self._request_part()
            yield entries
            if first >= ROLLOUTS_UNPACED:
                await asyncio.sleep(time.monotonic() - began_s)


class BatchReader:
    """Reads batches for one learner.

    Args:
        with_routes: whether rollouts have routes (rollcast.wire.routes), so that fewer are kept in memory.
    """

    def __init__(self, ledger: RunStore, *, with_routes: bool = False) -> None:
        self._ledger = ledger
        self._at_once = ROUTED_AT_ONCE if with_routes else ROLLOUTS_AT_ONCE
        self._reads: dict[Step, _BatchRead] = {}  # the batch that was recorded last, until it is requested

    def recording(self, step: Step) -> None:
        """Start reading a batch right after its record was queued in the ledger: both share a transaction."""
        self._reads = {step: _BatchRead(self._ledger, step, self._at_once)}

    async def read_rollouts(self, rollout_ids: Sequence[RolloutId]) -> list[BatchEntry]:
        """Return rollouts that are in no batch, without those that were compacted; their rewards are 0 if unknown.

        Raises:
            WaitTimedOut: the ledger takes too long.
        """
        async with deadline(LEDGER_DEADLINE_S, "the ledger to read rollouts for an audit"):
            return await self._ledger.rollouts(rollout_ids)

    async def read(self, step: Step) -> tuple[int, AsyncIterator[list[BatchEntry]]]:
        """Return the number of rollouts of a recorded batch, and the rollouts in order, in small parts.

        Raises:
            StoreError: the batch was compacted.
            WaitTimedOut: the ledger takes too long.
        """
        reading = self._reads.pop(step, None) or _BatchRead(self._ledger, step, self._at_once)
        return await reading.size(), reading.parts()
