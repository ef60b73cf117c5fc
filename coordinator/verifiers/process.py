"""Control one verifier process for the pool: start it, send a batch, read one result, kill it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from coordinator.verifiers.messages import read_verdict
from coordinator.verifiers.scorer import ScoreItem, Verdict
from coordinator.workers.line_process import LineProcess, WorkerDied

LINE_BYTES_MAX = 64 << 10  # of a verdict: a long detail, of characters that JSON escapes
GATHER_S = 0.01  # for which verdicts of a batch wait for those that follow: each turn of the loop costs more than most


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
        tokenizer = b""
        if self.tokenizer_json and not self._knows_tokenizer:
            tokenizer, self._knows_tokenizer = b'"tokenizer":' + json.dumps(self.tokenizer_json).encode() + b",", True
        await self.send_json(b'{%s"items":[%s]}' % (tokenizer, b",".join(map(_item_json, items))), self._timeout_s)

    async def result(self, key: str, items: int = 1, *, is_last: bool = True) -> Verdict:
        """Return the verdict on the next item of the batch, under this key.

        Args:
            items: that are scored before this verdict comes: all of a batch that is scored at once.
            is_last: whether no verdict follows; others are awaited for GATHER_S, so that they are read together.

        Raises:
            WorkerHung: they exceeded their timeout.
            WorkerDied: the process ended during this item.
        """
        answer = await self.receive(items * self._timeout_s, 0.0 if is_last else GATHER_S)
        verdict = read_verdict(key, answer)
        if verdict is None:
            raise WorkerDied("it sent something that is not a verdict")
        return verdict


def _item_json(item: ScoreItem) -> bytes:
    """Return an item as the process reads it."""
    problem_json = item.problem.to_json()
    if not item.token_ids:  # text may have lone surrogates, which UTF-8 lacks and the json module escapes
        return json.dumps((problem_json, item.completion_text)).encode()
    # msgspec writes bytes as base64, without the copies that the json module would make of some 20 KB.
    return msgspec.json.encode((problem_json, {"token_ids": item.token_ids}))
