"""Run a verifier process: read problems and completions as JSON lines from stdin, write scores to stdout, in order.

    -> {"task": {...}, "seed": 7, "timeout_s": 10}      with "tokenizer_folder", a path, if it is to decode token ids
    <- {"ready": true, "together": false}  or {"refused": {"code", "what", "cause", "fix"}}
    -> {"items": [[problem as JSON text, completion], ...]}
                                           the first time with "tokenizer", the run's own as JSON, if it has one;
                                           a completion is its text, or {"token_ids": base64 of little-endian uint32}
    <- ["scored", reward, exact, detail, parts] or ["failed", reason, detail, retryable]
                                           one line per item, as soon as it has a verdict

The process ends when stdin closes, even during an item, so that a killed pool leaves no process behind.
"""

from __future__ import annotations

import asyncio
import json
import math
import resource
import struct
import sys
from base64 import b64decode
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from coordinator.config.tasks import TaskConfig, users_code
from coordinator.tasks.build import build_task, task_config_from_json
from coordinator.tasks.checks.checker import Outcome, outcome_of
from coordinator.tasks.checks.task import FailureReason, Problem, Score, ScoringFailure, TaskAdapter
from coordinator.tasks.multi_task import Mixed
from coordinator.verifiers.batches import checks_together, verify_many
from coordinator.verifiers.messages import verdict_message
from coordinator.verifiers.scorer import COMPLETION_LENGTH_MAX, TOO_LONG, Failed, Scored, Verdict
from coordinator.workers.child import Pipe, keep_quiet
from coordinator.workers.tracebacks import USERS_ERRORS, users_traceback
from rollcast.runtime.errors import RollcastError, TaskError
from rollcast.wire.text.tokenizer import TextTokenizer, Tokenizer

TOKEN_BYTES = 4
ADDRESS_SPACE_BYTES = 4 << 30  # sympy and numpy reserve much more than they use

BuildTask = Callable[[TaskConfig, int], TaskAdapter | Mixed]


def main(build: BuildTask = build_task) -> int:
    """Serve until stdin closes. ``build`` makes the task from its configuration."""
    pipe = Pipe()
    pipe.listen()
    keep_quiet()
    hello = pipe.receive()
    try:
        config = task_config_from_json(json.dumps(hello["task"]))
        task = build(config, int(hello["seed"]))
        task.warm_up()
        read = CompletionReader.from_folder(hello.get("tokenizer_folder"))
    except RollcastError as error:
        pipe.send({"refused": {"what": error.what, "cause": error.cause, "fix": error.fix}})
        return 1
    _limit_resources(starts_processes=task.starts_processes, users_code=users_code(config))
    together, timeout_s = checks_together(task), float(hello["timeout_s"])
    pipe.send({"ready": True, "together": together})
    with asyncio.Runner() as runner:
        while True:
            message = pipe.receive()
            items = message["items"]
            if "tokenizer" in message:
                read = CompletionReader(Tokenizer.from_json(message["tokenizer"]))
            if together:
                _limit_cpu(timeout_s * len(items))
                for verdict in runner.run(_score_together(task, read, items, timeout_s)):
                    pipe.send(verdict_message(verdict))
                continue
            for problem_json, completion in items:
                _limit_cpu(timeout_s)
                pipe.send(verdict_message(_score(task, read, problem_json, completion)))


class CompletionReader:
    """Returns the text of a completion, decoded if it came as token ids; ``tokenizer`` None: all come as text."""

    def __init__(self, tokenizer: TextTokenizer | None) -> None:
        self._tokenizer = tokenizer

    @classmethod
    def from_folder(cls, tokenizer_folder: str | None) -> CompletionReader:
        """Return a reader with the published tokenizer of a folder; None: with none.

        Raises:
            ModelError, MissingExtra: see HubTokenizer.
        """
        if tokenizer_folder is None:
            return cls(None)
        # Imported only here: it takes a tenth of a second, of a process for which a run waits when it starts.
        from rollcast.wire.text.hub_tokenizer import ChatSettings, HubTokenizer

        return cls(HubTokenizer(Path(tokenizer_folder), ChatSettings(enabled=False)))

    def __call__(self, completion: Any) -> str:
        if isinstance(completion, str):
            return completion
        assert self._tokenizer is not None, "token ids come only where a tokenizer was named"
        packed = b64decode(completion["token_ids"])
        return self._tokenizer.decode(struct.unpack(f"<{len(packed) // TOKEN_BYTES}I", packed))


def _score(task: TaskAdapter | Mixed, read: CompletionReader, problem_json: str, completion: Any) -> Verdict:
    """Score a completion; an exception of the verifier is a failure, never a reward."""

    def verify() -> Score:
        text = read(completion)
        if len(text) > COMPLETION_LENGTH_MAX:
            return TOO_LONG
        return task.verify(Problem.from_json(problem_json), text)

    return _verdict_of(outcome_of(verify))


async def _score_together(
    task: TaskAdapter | Mixed, read: CompletionReader, items: Sequence[tuple[str, Any]], timeout_s: float
) -> list[Verdict]:
    """Score a batch at once; an exception of the verifier fails the whole batch."""
    try:
        texts = [read(completion) for _, completion in items]
        short = [place for place, text in enumerate(texts) if len(text) <= COMPLETION_LENGTH_MAX]
        asked = [(Problem.from_json(items[place][0]), texts[place]) for place in short]
        found = dict(zip(short, await verify_many(task, asked, timeout_s), strict=True))
        return [_verdict_of(found.get(place, TOO_LONG)) for place in range(len(items))]
    except USERS_ERRORS as error:
        reason: FailureReason = "timeout" if isinstance(error, TimeoutError) else "exception"
        return [Failed("", reason, users_traceback(error))] * len(items)


def _verdict_of(outcome: Outcome) -> Verdict:
    if isinstance(outcome, ScoringFailure):
        return Failed("", outcome.reason, outcome.detail, outcome.retryable)
    return Scored("", outcome)


def _limit_resources(*, starts_processes: bool, users_code: bool) -> None:
    """Forbid core dumps, files and child processes, and bound memory; called once everything is imported.

    A task that runs programs limits those itself; a reward function of the user has the limits of the coordinator.
    """
    limits = [(resource.RLIMIT_CORE, 0)]
    if not users_code:
        limits.append((resource.RLIMIT_AS, ADDRESS_SPACE_BYTES))
    if not starts_processes:
        limits += [(resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_NPROC, 0)]
    for limit, most in limits:
        _, hard = resource.getrlimit(limit)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(limit, (most, most))


def _limit_cpu(timeout_s: float) -> None:
    """Let the kernel end an item that runs for twice its timeout, in case the pool has died."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    soft = math.ceil(usage.ru_utime + usage.ru_stime + 2 * timeout_s) + 1
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (TaskError, KeyError, ValueError) as error:
        sys.exit(str(error))
