"""`rollcast eval RUN`: pass@1 and pass@8 of a run's newest checkpoint on its held-out problems."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from coordinator.config import CoordinatorConfig
from coordinator.problems import Problems
from learner.offline_eval import EvaluationResult, evaluate_run
from rollcast.cli.options import Json
from rollcast.runtime.config import parse_config
from rollcast.runtime.errors import RunFolderError
from rollcast.runtime.run_folder import RunFolder
from rollcast.wire.proto import rollcast_pb2 as pb

_SCORE_DEADLINE_S = 600.0


def evaluate(
    run: Path,
    /,
    *,
    learner_folder: Path | None = None,
    samples: int = 8,
    problems: int = 512,
    json_output: Json = False,
) -> int:
    """Reload a run's newest checkpoint and print pass@1 and pass@8 on held-out problems.

    Parameters
    ----------
    run
        the coordinator's run folder, for example runs/latest.
    learner_folder
        the learner's, where the checkpoints are; the same by default.
    samples
        completions a problem, at least 8; more give a tighter estimate.
    problems
        held-out problems at most.
    json_output
        print one JSON object.
    """
    config_file = RunFolder(run).config / "coordinator.json"
    if not config_file.exists():
        raise RunFolderError(
            f"{run} is not a run folder", cause=f"no {config_file}", fix="give a folder under runs/, or runs/latest"
        )
    config = parse_config(json.loads(config_file.read_text()), CoordinatorConfig, source=str(config_file))
    result = asyncio.run(_evaluate(config, learner_folder or run, samples, problems))
    if json_output:
        print(json.dumps(asdict(result)))
    else:
        print(f"step       {result.step}\nproblems   {result.problems}, {samples} samples each")
        print(f"pass@1     {result.pass_at_1:.3f}\npass@8     {result.pass_at_8:.3f}\nseconds    {result.seconds:.1f}")
    return 0


async def _evaluate(config: CoordinatorConfig, run: Path, samples: int, problems: int) -> EvaluationResult:
    """Sampling runs in a thread; scoring comes back to this loop, where the verifier processes are."""
    source = await Problems.start(config, None)
    loop = asyncio.get_running_loop()

    async def score_all(completions: Sequence[pb.Completion]) -> list[pb.CompletionScore]:
        verdicts = await asyncio.gather(
            *(source.score_held_out(one.example_id, tuple(one.token_ids)) for one in completions)
        )
        return [
            pb.CompletionScore(example_id=one.example_id, reward=verdict.reward, exact=verdict.exact)
            for one, verdict in zip(completions, verdicts, strict=True)
        ]

    def score(completions: Sequence[pb.Completion]) -> list[pb.CompletionScore]:
        return asyncio.run_coroutine_threadsafe(score_all(completions), loop).result(_SCORE_DEADLINE_S)

    try:
        held_out = await source.held_out(problems)
        return await asyncio.to_thread(
            evaluate_run,
            run,
            samples,
            problems,
            held_out=lambda count: held_out[:count],
            score=score,
            seed=config.run.seed,
        )
    finally:
        await source.close()
