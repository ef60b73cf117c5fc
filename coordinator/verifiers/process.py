"""Control one verifier process for the pool: start it, send a batch, read one result, kill it."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coordinator.verifiers.messages import read_verdict
from coordinator.verifiers.scorer import ScoreItem, Verdict
from coordinator.workers.line_process import LineProcess, WorkerDied

LINE_BYTES_MAX = 64 << 10  # of a verdict: a long detail, of characters that JSON escapes


class VerifierProcess(LineProcess):
    """A verifier process; it can be restarted after it was killed."""

    def __init__(
        self,
        command: Sequence[str],
        task_config_json: str,
        seed: int,
        timeout_s: float,
        tokenizer_folder: Path | None = None,
    ) -> None:
        hello = {"task": json.loads(task_config_json), "seed": seed, "timeout_s": timeout_s}
        if tokenizer_folder is not None:
            hello["tokenizer_folder"] = str(tokenizer_folder)
        super().__init__(command, hello, name="verifier", line_bytes_max=LINE_BYTES_MAX)
        self._timeout_s = timeout_s
        self.tokenizer_json = ""
        """The run's own tokenizer, by which it decodes token ids; empty: that of the folder, or none."""
        self._knows_tokenizer = False
        self.together = False
        """Whether the items of a batch are scored at once; known once it has started."""

    async def start(self) -> Mapping[str, Any]:
        self._knows_tokenizer = False
        answer = await super().start()
        self.together = bool(answer.get("together"))
        return answer

    async def send_batch(self, items: Sequence[ScoreItem]) -> None:
        """Send a batch of items.

        Raises:
            WorkerDied: it ended before it had read the batch, so that no item is to blame.
        """
        message: dict[str, Any] = {}
        if self.tokenizer_json and not self._knows_tokenizer:
            message["tokenizer"], self._knows_tokenizer = self.tokenizer_json, True
        message["items"] = [
            (one.problem.to_json(), {"token_ids": b64encode(one.token_ids).decode()})
            if one.token_ids
            else (one.problem.to_json(), one.completion_text)
            for one in items
        ]
        await self.send(message, self._timeout_s)

    async def result(self, key: str, items: int = 1) -> Verdict:
        """Return the verdict on the next item of the batch, under this key.

        Args:
            items: that are scored before this verdict comes: all of a batch that is scored at once.

        Raises:
            WorkerHung: they exceeded their timeout.
            WorkerDied: the process ended during this item.
        """
        verdict = read_verdict(key, await self.receive(items * self._timeout_s))
        if verdict is None:
            raise WorkerDied("it sent something that is not a verdict")
        return verdict
