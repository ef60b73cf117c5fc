"""Run `rollcast sft`: read the examples, build the model, train, and write summary and export."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import structlog

from learner.checkpoints.checkpoint import Checkpoints, HostState, configured_folder
from learner.distributed.processes import TrainerOf, run_processes
from learner.evaluation.export import check_free, export
from learner.supervised.config import SftConfig
from learner.supervised.examples import Examples, read_examples, read_tokenizer
from learner.supervised.session import Plan, Report, Session
from learner.training.starting_model import starting_model
from rollcast.policy.compilation import use_compilation_cache
from rollcast.policy.config import ModelConfig
from rollcast.runtime.config import dump_json
from rollcast.runtime.process import EXIT_INTERRUPTED
from rollcast.runtime.run_folder import RunFolder, write_atomically, write_json
from rollcast.wire.text.model_folder import ModelFolder
from rollcast.wire.text.tokenizer import TextTokenizer, read_record

_log = structlog.get_logger()


async def run(config: SftConfig, stop: asyncio.Event, report: Report = lambda values: None) -> int:
    """Train until all epochs are done, or until ``stop`` is set.

    Args:
        report: called on another thread with each step's line of metrics.jsonl, and ``steps``, their number.

    Returns:
        The exit status: 0 when all steps are done, 130 when stopped before (after saving a checkpoint).

    Raises:
        RollcastError: something failed that a person can act on.
    """
    return await run_processes(config.learner(), stop, lambda make_trainer: _train(config, stop, make_trainer, report))


async def _train(config: SftConfig, stop: asyncio.Event, make_trainer: TrainerOf, report: Report) -> int:
    use_compilation_cache(config.compilation_cache)
    stopped = threading.Event()

    async def pass_on() -> None:
        await stop.wait()
        stopped.set()

    watcher = asyncio.create_task(pass_on(), name="forward the stop")
    # One thread does all jax work, so that signals are handled meanwhile.
    worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="jax")
    try:
        done = await asyncio.get_running_loop().run_in_executor(
            worker, lambda: train(config, make_trainer, report, stopped)
        )
    finally:
        watcher.cancel()
        worker.shutdown(wait=True, cancel_futures=True)
    return 0 if done else EXIT_INTERRUPTED


def train(config: SftConfig, make_trainer: TrainerOf, report: Report, stop: threading.Event) -> bool:
    """Train in this thread; see run. Returns False if stopped before all steps were done."""
    began_s = time.monotonic()
    folder = RunFolder(config.run_folder).prepare()
    if config.export is not None and not _is_exported(config.export, folder):
        check_free(config.export)
    write_atomically(folder.config / "sft.json", dump_json(config).encode())
    tokenizer = read_tokenizer(config)
    examples = read_examples(config, tokenizer)
    plan = Plan.of(config, examples.all)
    model = starting_model(config.learner(), read_record(tokenizer.to_json()))
    if config.model_folder is not None:
        ModelFolder(config.model_folder).copy_small_files(folder.model)
    _log_plan(config, examples, plan)
    checkpoints = Checkpoints(configured_folder(folder, config.checkpoint.folder), keep=config.checkpoint.keep)
    host = _host_of(config, examples, tokenizer, model)
    trainer = make_trainer(model, config.optimiser_of(len(plan.steps)))

    def with_steps(values: Any) -> None:
        report({**values, "steps": len(plan.steps)})

    session = Session(config, plan, trainer, checkpoints, host, with_steps, stop)
    done = session.run()
    if done:
        _finish(config, folder, examples, plan, session.figures | {"wall_s": time.monotonic() - began_s})
    return done


def _finish(config: SftConfig, folder: RunFolder, examples: Examples, plan: Plan, figures: dict[str, float]) -> None:
    summary: dict[str, Any] = figures | {
        "steps": len(plan.steps),
        "epochs": config.epochs,
        "rows": examples.rows,
        "rows_left_out": sum(examples.bad.values()),
        "examples_trained": len(plan.examples),
    }
    if config.export is not None:
        if not _is_exported(config.export, folder):
            export(config.run_folder, config.export, tokenizer_folder=config.model_folder)
        summary["export"] = str(config.export)
    write_json(folder.summary, summary)


def _is_exported(target: Path, folder: RunFolder) -> bool:
    """Return whether this run has ended before, with this export."""
    if not (target.exists() and folder.summary.exists()):
        return False
    found: bool = json.loads(folder.summary.read_text()).get("export") == str(target)
    return found


def _log_plan(config: SftConfig, examples: Examples, plan: Plan) -> None:
    tokens = sum(map(len, examples.all))
    rows = sum(len(rows) for _, rows in plan.steps)
    trained = sum(len(example) for example in plan.examples) * config.epochs
    _log.info(
        "examples are read",
        rows=examples.rows,
        rows_left_out=sum(examples.bad.values()),
        examples=len(examples.all),
        tokens=tokens,
        examples_held_out=len(examples.all) - len(plan.examples),
        steps=len(plan.steps),
        share_of_rows_filled=round(trained / max(1, rows * config.row_tokens), 3),
    )


def _host_of(config: SftConfig, examples: Examples, tokenizer: TextTokenizer, model: ModelConfig) -> Any:
    """Return the function that makes the host part of a checkpoint of (step, hash of the base, figures)."""
    identity = repr(
        (
            examples.digest(),
            config.seed,
            config.epochs,
            config.row_tokens,
            config.batch_rows,
            config.data.held_out_share,
        )
    )
    run_id = "sft-" + hashlib.sha256(identity.encode()).hexdigest()[:16]
    ends = {"temperature": 1.0, "max_new_tokens": config.row_tokens, "stop_token_ids": list(tokenizer.stop_ids)}

    def host(step: int, base_hash: str, figures: dict[str, float]) -> HostState:
        return HostState(
            step=step,
            newest_version=0,
            run_id=run_id,
            epoch=0,
            seed=config.seed,
            tokenizer_json=tokenizer.to_json(),
            model_json=model.model_dump_json(),
            base_hash=base_hash,
            sampling=ends,
            prompt_tokens_max=config.row_tokens,
            trained_ranges=[],
            figures=figures,
        )

    return host
