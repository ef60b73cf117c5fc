"""What commands that work on a run folder need of it: its configuration, its tokenizer, scores by its verifiers."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.config.config import CoordinatorConfig
from rollcast.runtime.config import parse_config
from rollcast.runtime.errors import RunFolderError, StoreError
from rollcast.runtime.run_folder import RunFolder
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.text.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from coordinator.prompts.problems import Problems
    from coordinator.prompts.samples import SampleBook

SCORE_DEADLINE_S = 600.0


def run_config(run: Path) -> CoordinatorConfig:
    """The configuration with which a run's coordinator was started.

    Raises:
        RunFolderError: it is no run folder.
        ConfigError: the configuration is of another version of Rollcast.
    """
    config_file = RunFolder(run).config / "coordinator.json"
    if not config_file.exists():
        raise RunFolderError(
            f"{run} is not a run folder", cause=f"no {config_file}", fix="give a folder under runs/, or runs/latest"
        )
    return parse_config(json.loads(config_file.read_text()), CoordinatorConfig, source=str(config_file))


def run_tokenizer(config: CoordinatorConfig, folder: RunFolder) -> TextTokenizer:
    """The run's own tokenizer, as its ledger has it.

    Raises:
        StoreError: the ledger has none yet, or cannot be read.
    """
    from coordinator.ledger.sql_facts import get_meta
    from coordinator.ledger.story import reading
    from coordinator.prompts.tokenizers import kept_tokenizer
    from coordinator.recovery.resume import TOKENIZER

    with reading(folder.ledger) as connection:
        try:
            kept = get_meta(connection, TOKENIZER)
        except sqlite3.Error as error:
            raise StoreError(f"cannot read the ledger {folder.ledger}", cause=str(error)) from None
    if kept is None:
        raise StoreError(f"the run in {folder.root} has no tokenizer yet", fix="wait until its task is loaded")
    return kept_tokenizer(config.tokenizer, kept)


def scorer(
    source: Problems, loop: asyncio.AbstractEventLoop, book: SampleBook | None
) -> Callable[[Sequence[pb.Completion]], list[pb.CompletionScore]]:
    """Scores for a thread that samples, from the loop where the verifier processes are."""

    async def score_all(completions: Sequence[pb.Completion]) -> list[pb.CompletionScore]:
        return list(await asyncio.gather(*(source.score_completion(one, book) for one in completions)))

    def score(completions: Sequence[pb.Completion]) -> list[pb.CompletionScore]:
        return asyncio.run_coroutine_threadsafe(score_all(completions), loop).result(SCORE_DEADLINE_S)

    return score
