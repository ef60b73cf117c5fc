"""Control one verifier process for the pool: start it, send a batch, read one result, kill it."""

from __future__ import annotations

import json
from collections.abc import Sequence

from coordinator.verifiers.line_process import LineProcess, WorkerDied


class VerifierProcess(LineProcess):
    """A verifier process; it can be restarted after it was killed."""

    def __init__(self, command: Sequence[str], task_config_json: str, seed: int, timeout_s: float) -> None:
        hello = {"task": json.loads(task_config_json), "seed": seed, "timeout_s": timeout_s}
        super().__init__(command, hello, name="verifier")
        self._timeout_s = timeout_s

    async def send_batch(self, items: Sequence[tuple[str, str]]) -> None:
        """Send a batch of (problem as JSON text, completion).

        Raises:
            WorkerDied: it ended before it had read the batch, so that no item is to blame.
        """
        await self.send({"items": items}, self._timeout_s)

    async def result(self) -> tuple[float, bool, str]:
        """Return reward, exactness and error of the next item of the batch.

        Raises:
            WorkerHung: the item exceeded its timeout.
            WorkerDied: the process ended during this item.
        """
        match await self.receive(self._timeout_s):
            case [int() | float() as reward, bool() as exact, str() as error]:
                return float(reward), exact, error
        raise WorkerDied("it sent something that is not a score")
