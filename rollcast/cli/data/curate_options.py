"""Options of `rollcast curate` in groups, each turned into the objects that curation needs."""

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
from rollcast.runtime.errors import ConfigError, RollcastError
from rollcast.runtime.run_folder import RunFolder

Names = Annotated[tuple[str, ...], Parameter(negative=())]
Paths = Annotated[tuple[Path, ...], Parameter(negative=())]


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Columns of a row's fields, and the check of its answers."""

    prompt: str = "prompt"
    """Column of the prompt. Dots address nested fields."""
    answer: str = "answer"
    """Column of the answer; empty if there is none."""
    tests: str = ""
    """Column of the unit tests; empty if there are none."""
    metadata: Names = ()
    """Further column to keep. May be repeated."""
    split: str = "train"
    """Split of a Hugging Face dataset."""
    subset: str = ""
    """Subset of a Hugging Face dataset; empty for the default."""
    revision: str = ""
    """Revision of a Hugging Face dataset; empty for the newest."""
    check: Literal["math", "exact", "code"] = "math"
    """Check with which --profile scores answers."""

    def task(self, source: str) -> RowsTask:
        """Return the task that reads the rows of a source.

        Raises:
            ConfigError: an option is not valid.
        """
        fields = {"prompt": self.prompt, "answer": self.answer, "tests": self.tests, "metadata": list(self.metadata)}
        hub = {"split": self.split, "subset": self.subset, "revision": self.revision}
        return _task(source, fields, hub, self.check)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """Thresholds at which a row counts as a duplicate, or as part of an evaluation set."""

    against: Names = ()
    """Evaluation set as NAME=SOURCE whose problems must not be in the data. May be repeated."""
    ngram: int = 8
    """Number of words in the n-grams that measure overlap with evaluation sets."""
    overlap: float = 0.5
    """Remove a row if at least this share of its n-grams is in an evaluation set."""
    near: float = 0.8
    """Remove a prompt whose estimated similarity to an earlier one is at least this; above 1 keeps all."""
    normalise: bool = True
    """Normalise answers to one form."""

    def evaluation(self, prompt_column: str) -> EvaluationTexts | None:
        """Return the prompts of the evaluation sets; None if no set was named.

        Raises:
            ConfigError, TaskError: a set has no name, or cannot be read.
        """
        if not self.against:
            return None
        return EvaluationTexts([_evaluation_set(one, prompt_column) for one in self.against], self.ngram)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Difficulty:
    """Source of pass rates, and the range of rates that are kept."""

    pass_rates: Paths = ()
    """File of recorded samples, or run folder, to take pass rates from. May be repeated."""
    profile: Path | None = None
    """Run folder whose newest checkpoint tries to solve the problems on this machine to measure pass rates."""
    learner_folder: Path | None = None
    """The learner's run folder, which has the checkpoints; that of --profile by default."""
    samples: int = 8
    """Number of completions per problem for --profile."""
    low: float = 0.0
    """Remove rows with a lower pass rate."""
    high: float = 1.0
    """Remove rows with a higher pass rate."""
    keep_unknown: Annotated[bool, Parameter(negative=())] = False
    """Keep rows without a pass rate."""

    @contextmanager
    def rates(self, task: RowsTask, out: Path) -> Iterator[Profile | None]:
        """Yield the source of pass rates; None if they are not used. Results of --profile are kept next to ``out``.

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
    """Return the rules by which rows are removed.

    Raises:
        ConfigError: a number is out of range, or options contradict each other.
    """
    ngram, overlap, samples = repeats.ngram, repeats.overlap, difficulty.samples
    low, high, profile = difficulty.low, difficulty.high, difficulty.profile
    if not (0.0 <= low <= high <= 1.0 and 0.0 < overlap <= 1.0 and ngram >= 1 and samples >= 1):
        raise ConfigError(
            "an option is out of range",
            cause=f"--low {low:g} --high {high:g} --overlap {overlap:g} --ngram {ngram} --samples {samples}",
            fix="choose 0 <= low <= high <= 1, an overlap above 0 and up to 1, and at least 1 for the others",
        )
    if difficulty.pass_rates and profile is not None:
        raise ConfigError("--pass-rates and --profile cannot be used together", fix="leave out one of them")
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
    """Return the task's configuration that reads the source."""
    values: dict[str, Any] = {"fields": fields, "check": {"kind": check}, "bad_rows": "skip"}
    if source.startswith("hf:"):
        named = {"kind": "huggingface", "name": source.removeprefix("hf:")}
        return parse_config(values | hub | named, HuggingFaceTask, source=source)
    path = Path(source)
    if path.suffix == ".parquet" or path.is_dir():
        return parse_config(values | {"kind": "parquet", "path": path}, ParquetTask, source=source)
    return parse_config(values | {"kind": "jsonl", "path": path}, JsonlTask, source=source)


def _evaluation_set(named: str, prompt_column: str) -> tuple[str, Iterator[str]]:
    """Return name and prompts of an evaluation set; its prompts are in the same column as the source's."""
    name, separator, source = named.partition("=")
    if not separator or not name or not source:
        raise ConfigError(f"--against {named} has no name and source", fix="write it as NAME=SOURCE")
    mapping = FieldsConfig(prompt=prompt_column, answer="").model_dump()
    task = _task(source, mapping, {"split": "test"}, "exact").model_copy(update={"bad_rows": "refuse"})
    return name, _prompts(task, source, prompt_column)


def _prompts(task: RowsTask, source: str, prompt_column: str) -> Iterator[str]:
    try:
        yield from (row.prompt for row in good_rows(task))
    except RollcastError as error:
        if prompt_column in error.what and "is missing" in error.what:
            error.fix = f"rename the column of the prompts in {source}: --prompt names it for both files"
        raise


def _recorded(paths: Iterable[Path]) -> dict[int, PassRate]:
    rates: dict[int, PassRate] = {}
    for path in paths:
        for key, rate in (read_run(RunFolder(path)) if path.is_dir() else read_samples(path)).items():
            rates[key] = rates[key] + rate if key in rates else rate
    return rates
