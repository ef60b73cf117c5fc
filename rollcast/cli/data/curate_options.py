"""Options of `rollcast curate` in groups, and what each group comes to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from coordinator.config.tasks import FieldsConfig, HuggingFaceTask, JsonlTask, ParquetTask
from coordinator.tasks.curation.contamination import EvaluationTexts
from coordinator.tasks.curation.curate import CurationSettings, Profile, recorded
from coordinator.tasks.curation.pass_rates import PassRate, read_run, read_samples
from coordinator.tasks.sources import RowsTask, good_rows
from rollcast.runtime.config import parse_config
from rollcast.runtime.errors import ConfigError
from rollcast.runtime.run_folder import RunFolder

Names = Annotated[tuple[str, ...], Parameter(negative=())]
Paths = Annotated[tuple[Path, ...], Parameter(negative=())]


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Where a row's parts are, and how its answers are checked."""

    prompt: str = "prompt"
    """column of the prompt; dots lead inwards."""
    answer: str = "answer"
    """column of the answer; empty: there is none."""
    tests: str = ""
    """column of unit tests; empty: there are none."""
    metadata: Names = ()
    """further columns to keep."""
    split: str = "train"
    """of a Hugging Face dataset."""
    subset: str = ""
    """of a Hugging Face dataset."""
    revision: str = ""
    """of a Hugging Face dataset."""
    check: Literal["math", "exact", "code"] = "math"
    """how --profile checks answers."""

    def task(self, source: str) -> RowsTask:
        """The rows of a source.

        Raises:
            ConfigError: an option is not valid.
        """
        fields = {"prompt": self.prompt, "answer": self.answer, "tests": self.tests, "metadata": list(self.metadata)}
        hub = {"split": self.split, "subset": self.subset, "revision": self.revision}
        return _task(source, fields, hub, self.check)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """What counts as there already, or as part of an evaluation set."""

    against: Names = ()
    """evaluation sets as NAME=SOURCE whose problems must not be in the data."""
    ngram: int = 8
    """words of the n-grams that overlap is measured in."""
    overlap: float = 0.5
    """share of n-grams in common from which on a row is removed."""
    near: float = 0.8
    """estimated similarity from which on a prompt counts as an earlier one; above 1: never."""
    normalise: bool = True
    """bring answers into one form."""

    def evaluation(self, prompt_column: str) -> EvaluationTexts | None:
        """The evaluation sets' prompts; None: there is no set.

        Raises:
            ConfigError, TaskError: a set is not named, or cannot be read.
        """
        if not self.against:
            return None
        return EvaluationTexts([_evaluation_set(one, prompt_column) for one in self.against], self.ngram)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Difficulty:
    """How often problems are solved, and which are kept for that."""

    pass_rates: Paths = ()
    """files of recorded samples, or run folders, that say how often problems are solved."""
    profile: Path | None = None
    """the run folder of a run, whose newest checkpoint solves the problems here to find out."""
    learner_folder: Path | None = None
    """the learner's, where the checkpoints are; that of --profile by default."""
    samples: int = 8
    """completions of each problem for --profile."""
    low: float = 0.0
    """rows that are solved less often are removed."""
    high: float = 1.0
    """rows that are solved more often are removed."""
    keep_unknown: Annotated[bool, Parameter(negative=())] = False
    """keep rows without a pass rate."""

    @contextmanager
    def rates(self, task: RowsTask, out: Path) -> Iterator[Profile | None]:
        """Where pass rates come from; None: they do not matter. What --profile finds is kept beside ``out``.

        Raises:
            RollcastError: the recorded samples, the run or its checkpoint cannot be used.
        """
        if self.profile is None:
            yield recorded(_recorded(self.pass_rates)) if self.pass_rates else None
            return
        from rollcast.cli.data.profiling import profiling  # imports jax

        kept = out.with_name(f"{out.name}.profile.jsonl")
        with profiling(self.profile, self.learner_folder or self.profile, task, self.samples, kept) as rates:
            yield rates


def curation_settings(repeats: Repeats, difficulty: Difficulty) -> CurationSettings:
    """What is removed.

    Raises:
        ConfigError: a number is out of range, or options do not go together.
    """
    ngram, overlap, samples = repeats.ngram, repeats.overlap, difficulty.samples
    low, high, profile = difficulty.low, difficulty.high, difficulty.profile
    if not (0.0 <= low <= high <= 1.0 and 0.0 < overlap <= 1.0 and ngram >= 1 and samples >= 1):
        raise ConfigError(
            "a share is out of range",
            cause=f"--low {low:g} --high {high:g} --overlap {overlap:g} --ngram {ngram} --samples {samples}",
            fix="use 0 <= low <= high <= 1, overlap above 0 and up to 1, and at least 1 for the others",
        )
    if difficulty.pass_rates and profile is not None:
        raise ConfigError("--pass-rates and --profile cannot be used together", fix="leave one away")
    if (low, high) != (0.0, 1.0) and not difficulty.pass_rates and profile is None:
        raise ConfigError("--low and --high need pass rates", fix="give --pass-rates FILE or --profile RUN")
    return CurationSettings(
        normalise=repeats.normalise,
        near_similarity=repeats.near,
        overlap=overlap,
        pass_rate_low=low,
        pass_rate_high=high,
        keep_unknown=difficulty.keep_unknown,
    )


def _task(source: str, fields: dict[str, Any], hub: dict[str, str], check: str) -> RowsTask:
    """The source as a task's configuration."""
    values: dict[str, Any] = {"fields": fields, "check": {"kind": check}, "bad_rows": "skip"}
    if source.startswith("hf:"):
        named = {"kind": "huggingface", "name": source.removeprefix("hf:")}
        return parse_config(values | hub | named, HuggingFaceTask, source=source)
    path = Path(source)
    if path.suffix == ".parquet" or path.is_dir():
        return parse_config(values | {"kind": "parquet", "path": path}, ParquetTask, source=source)
    return parse_config(values | {"kind": "jsonl", "path": path}, JsonlTask, source=source)


def _evaluation_set(named: str, prompt_column: str) -> tuple[str, Iterator[str]]:
    """Prompts of an evaluation set; its columns are called as the source's, or prompt."""
    name, separator, source = named.partition("=")
    if not separator or not name or not source:
        raise ConfigError(f"--against {named} names no set", fix="write it as NAME=SOURCE")
    mapping = FieldsConfig(prompt=prompt_column, answer="").model_dump()
    task = _task(source, mapping, {"split": "test"}, "exact").model_copy(update={"bad_rows": "refuse"})
    return name, (row.prompt for row in good_rows(task))


def _recorded(paths: Iterable[Path]) -> dict[int, PassRate]:
    rates: dict[int, PassRate] = {}
    for path in paths:
        for key, rate in (read_run(RunFolder(path)) if path.is_dir() else read_samples(path)).items():
            rates[key] = rates[key] + rate if key in rates else rate
    return rates
