"""Read a run folder's configuration and tokenizer, and score completions with the run's verifiers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.config.config import CoordinatorConfig
from rollcast.runtime.config import parse_config
from rollcast.runtime.errors import StoreError
from rollcast.runtime.run_folder import RunFolder, no_run
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.text.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from coordinator.prompts.problems import Problems
    from coordinator.prompts.samples import SampleBook

SCORE_DEADLINE_S = 600.0


def run_config(run: Path) -> CoordinatorConfig:
    """Return the configuration that a run's coordinator was started with.

    Raises:
        RunFolderError: the folder holds no run.
        ConfigError: the configuration was written by another version of Rollcast.
    """
    config_file = RunFolder(run).config / "coordinator.json"
    if not config_file.exists():
        raise no_run(run, f"{config_file.parent.name}/{config_file.name}")
    return parse_config(json.loads(config_file.read_text()), CoordinatorConfig, source=str(config_file))


def run_tokenizer(config: CoordinatorConfig, folder: RunFolder) -> TextTokenizer:
    """Return the run's own tokenizer from its ledger.

    Raises:
        StoreError: the ledger has no tokenizer yet, or cannot be read.
    """
    from coordinator.ledger.sql_facts import get_meta
    from coordinator.prompts.tokenizers import stored_tokenizer
    from coordinator.recovery.resume import TOKENIZER
    from coordinator.stores.reader import reading

    with reading(folder) as connection:
        kept = get_meta(connection, TOKENIZER)
    if kept is None:
        raise StoreError(
            f"the run in {folder.root} has no tokenizer yet", fix="wait until the coordinator has loaded its task"
        )
    return stored_tokenizer(config.tokenizer, kept)


def scorer(
    source: Problems, loop: asyncio.AbstractEventLoop, book: SampleBook | None
) -> Callable[[Sequence[pb.Completion]], list[pb.CompletionScore]]:
    """Return a function with which a sampling thread scores completions on the loop of the verifier processes."""

    async def score_all(completions: Sequence[pb.Completion]) -> list[pb.CompletionScore]:
        return list(await asyncio.gather(*(source.score_completion(one, book) for one in completions)))

    def score(completions: Sequence[pb.Completion]) -> list[pb.CompletionScore]:
        return asyncio.run_coroutine_threadsafe(score_all(completions), loop).result(SCORE_DEADLINE_S)

    return score
