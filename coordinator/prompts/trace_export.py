"""Export samples of a run as conversations: a table at Weights & Biases, or traces of MLflow.

Weights & Biases gets one table with a row for each sample (wandb.Table). MLflow gets one trace for each: the
conversation as inputs and outputs of its root span, a span for each turn of the policy, and the reward with its parts
as feedback (mlflow.start_span_no_context and mlflow.log_feedback of MLflow 3). Both packages read where to send it, and
with which key, from their own variables of the environment.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from coordinator.config.sinks import WandbConfig
from coordinator.metrics.sinks.weights_and_biases import begin_wandb
from coordinator.prompts.samples import Sample
from coordinator.prompts.stored_rollouts import StoredRollout
from rollcast.runtime.errors import Unreachable
from rollcast.wire.text.data_files import optional_import

EXPERIMENT = "rollcast"
"""The experiment of MLflow's traces, unless MLFLOW_EXPERIMENT_NAME names another."""
_FACTS = ("set", "version", "problem_id", "sample_index", "rollout_id", "agent", "peer", "age", "detail")

Message = dict[str, str]


def export_to_wandb(samples: Sequence[Sample], folder: Path, run_id: str, run_name: str, to: WandbConfig) -> None:
    """Write samples as the table ``rollouts`` of a run of their own at Weights & Biases.

    Args:
        folder: where wandb keeps its files; with mode "offline", `wandb sync` sends them.
        run_id: the id of the Rollcast run.

    Raises:
        MissingExtra: wandb is not installed.
        Unreachable: Weights & Biases does not take it.
    """
    wandb = optional_import("wandb", "the export to Weights & Biases needs a package that is not installed", "wandb")
    parts = sorted({name for one in samples for name in one.parts})
    columns = [*_FACTS, "prompt", "messages", "answer", "reward", "exact", *(f"part_{name}" for name in parts)]
    rows = []
    for one in samples:
        facts = _facts(one)
        text = json.dumps(messages_of(one)[1:], ensure_ascii=False)
        scores = [one.reward, one.exact, *(one.parts.get(name) for name in parts)]
        rows.append([*(facts.get(name) for name in _FACTS), one.prompt, text, one.answer, *scores])
    try:
        run = begin_wandb(
            folder,
            run_id=f"{run_id}-rollouts",
            run_name=f"{run_name}-rollouts",
            project=to.project,
            entity=to.entity,
            mode="offline" if os.environ.get("WANDB_MODE") == "offline" else to.mode,
        )
        run.log({"rollouts": wandb.Table(columns=columns, data=rows)})
        run.finish()
    except (wandb.errors.Error, OSError) as error:
        raise Unreachable(
            "Weights & Biases does not take the samples",
            cause=str(error)[:500],
            fix="set WANDB_API_KEY, or set WANDB_MODE=offline and run `wandb sync` later",
        ) from None


def export_to_mlflow(samples: Sequence[Sample], run_id: str) -> None:
    """Write a trace for each sample to the MLflow server or file that MLFLOW_TRACKING_URI names.

    Raises:
        MissingExtra: mlflow is not installed.
        Unreachable: MLflow does not take it.
    """
    what = "the export to MLflow needs a package that is not installed"
    mlflow = optional_import("mlflow", what, "mlflow")
    try:
        mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT)
        traces = [_trace(mlflow, one, run_id) for one in samples]
        mlflow.flush_trace_async_logging()  # feedback is only taken for a trace that is there
        for one, trace_id in zip(samples, traces, strict=True):
            for name, value in {"reward": one.reward, **one.parts}.items():
                mlflow.log_feedback(trace_id=trace_id, name=name, value=value)
    except (mlflow.exceptions.MlflowException, OSError) as error:
        raise Unreachable(
            "MLflow does not take the samples",
            cause=str(error)[:500],
            fix="set MLFLOW_TRACKING_URI to a server that runs, such as http://localhost:5000",
        ) from None


def messages_of(sample: Sample) -> list[Message]:
    """Return the conversation of a sample as chat messages, the prompt first."""
    prompt = {"role": "user", "content": sample.prompt}
    turns = sample.turns if isinstance(sample, StoredRollout) else ()
    if not turns:
        return [prompt, {"role": "assistant", "content": sample.completion}]
    return [prompt, *({"role": one.role, "content": one.text} for one in turns)]


def _trace(mlflow: Any, sample: Sample, run_id: str) -> str:
    """Write the spans of a sample and return the id of its trace."""
    messages, facts = messages_of(sample), _facts(sample)
    tags = {f"rollcast.{name}": str(facts[name]) for name in ("set", "version", "problem_id")}
    root = mlflow.start_span_no_context(
        "rollout",
        inputs={"messages": messages[:1]},
        attributes={**facts, "answer": sample.answer, "exact": sample.exact},
        tags={"rollcast.run_id": run_id, **tags},
    )
    for number, attributes in _policy_turns(sample, messages):
        turn = mlflow.start_span_no_context(
            "assistant",
            span_type="LLM",
            parent_span=root,
            inputs={"messages": messages[:number]},
            attributes=attributes,
        )
        turn.set_outputs(messages[number])
        turn.end()
    root.set_outputs({"messages": messages[1:]})
    root.end()
    return str(root.trace_id)


def _policy_turns(sample: Sample, messages: Sequence[Message]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the index and the attributes of each message that the policy generated."""
    turns = sample.turns if isinstance(sample, StoredRollout) else ()
    for number, message in enumerate(messages[1:]):
        if message["role"] == "assistant":
            known = turns[number] if turns else None
            facts = {} if known is None else {"peer": known.peer, "tokens": len(known.token_ids)}
            yield number + 1, {"version": sample.version if known is None else known.version, **facts}


def _facts(sample: Sample) -> dict[str, Any]:
    found = ((name, getattr(sample, name, None)) for name in _FACTS)
    return {name: value for name, value in found if value not in (None, "")}
