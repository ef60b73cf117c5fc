"""Configure tasks: the source of problems, and the check of answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from coordinator.config.checks import CheckConfig, CodeCheck, MathCheck, PythonCheck, SingleCheckConfig, single_checks
from coordinator.config.environments import GymTask, VerifiersTask
from rollcast.runtime.config import ConfigModel

#: chain_sum at a size that the default model can learn.
TWO_DIGIT_SUMS = {"min_terms": 2, "max_terms": 2, "min_digits": 2, "max_digits": 2}
PART_NAME = r"^[a-z0-9][a-z0-9._-]{0,31}$"
SET_NAME = r"^[a-z0-9][a-z0-9_-]{0,23}$"


class FieldsConfig(ConfigModel):
    """Columns of a row that hold the parts of a problem. Dots address nested values: `messages.0.content`."""

    prompt: str = Field("prompt", min_length=1)
    """Column with the problem text that the policy is given."""
    answer: str = "answer"
    """Column with the right answer, text or number; empty: rows have no answer (unit tests check completions)."""
    tests: str = ""
    """Column with the unit tests of a programming problem; empty: none."""
    metadata: list[str] = Field(default_factory=list, max_length=32)
    """Further columns to keep with each problem."""


class ReasoningGymTask(ConfigModel):
    """Problems made by a generator of the library reasoning-gym."""

    kind: Literal["reasoning-gym"] = "reasoning-gym"
    """Selects this source of problems."""
    name: str = "chain_sum"
    """Name of the generator in reasoning-gym."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """Parameters of the generator, for example min_terms and max_digits."""


class RowsConfig(ConfigModel):
    """Settings that all tasks made of rows share."""

    fields: FieldsConfig = FieldsConfig()
    """Columns that hold the parts of a problem."""
    check: CheckConfig = MathCheck()
    """Check of the answers."""
    bad_rows: Literal["refuse", "skip"] = "refuse"
    """Whether a row without prompt or answer keeps the run from starting, or is skipped and counted."""
    rows_max: int = Field(5_000_000, ge=1)
    """Most rows to read. They are kept in a temporary file and take eight bytes of memory each."""


class JsonlTask(RowsConfig):
    """Problems from a JSONL file, one object per line."""

    kind: Literal["jsonl"]
    """Selects this source of problems."""
    path: Path
    """The file; a relative path starts at the working directory."""


class ParquetTask(RowsConfig):
    """Problems from a Parquet file, read row group by row group. Needs the extra `data`."""

    kind: Literal["parquet"]
    """Selects this source of problems."""
    path: Path
    """The file, or a folder whose *.parquet files are read in the order of their names."""


class HuggingFaceTask(RowsConfig):
    """Problems from a dataset on the Hugging Face Hub or in a local folder, streamed. Needs the extra `hf`."""

    kind: Literal["huggingface"]
    """Selects this source of problems."""
    name: str = Field(min_length=1)
    """Dataset on the Hub (`owner/name`), or a local folder."""
    subset: str = ""
    """Configuration of the dataset, if it has several; empty: its default."""
    split: str = "train"
    """Split of the dataset."""
    revision: str = ""
    """Commit, tag or branch; empty: the newest. A commit makes the run repeatable."""


class PythonTask(RowsConfig):
    """Problems from a Python function that yields rows: the same ones at each start."""

    kind: Literal["python"]
    """Selects this source of problems."""
    path: str = Field(min_length=1)
    """The function: `FILE.py:NAME`, relative to the working directory, or the name of an entry point of the group
    `rollcast.tasks`."""
    rows_max: int = Field(100_000, ge=1)
    """Rows to read at most, so that an endless generator is cut off here."""


SingleTaskConfig = Annotated[
    ReasoningGymTask | JsonlTask | ParquetTask | HuggingFaceTask | PythonTask | GymTask | VerifiersTask,
    Field(discriminator="kind"),
]


class EvaluationSetConfig(ConfigModel):
    """A set of problems on which the policy is evaluated. Its prompts are never trained on."""

    task: SingleTaskConfig
    """Source of the problems, and the check of answers."""
    problems: int = Field(256, ge=1, le=100_000)
    """Number of problems to take, from the first one on."""


class MixturePart(ConfigModel):
    """One task of a mixture."""

    name: str = Field(pattern=PART_NAME)
    """Name shown in views and used in the problems' ids; stages refer to it."""
    task: SingleTaskConfig
    """Source of this part's problems, and the check of answers."""
    weight: float = Field(1.0, ge=0.0)
    """Share of the prompts relative to the other parts' weights, until the first stage begins."""


class MixtureStage(ConfigModel):
    """Weights that apply from a given learner step on."""

    from_step: int = Field(ge=1)
    """First learner step whose prompts are sampled with these weights."""
    weights: dict[str, float]
    """Weights by part name; a part that is not named has weight 0."""


class MixtureTask(ConfigModel):
    """Several tasks at once, with weights that may change from stage to stage."""

    kind: Literal["mixture"]
    """Selects this source of problems."""
    parts: list[MixturePart] = Field(min_length=1, max_length=64)
    """Tasks of the mixture."""
    stages: list[MixtureStage] = Field(default_factory=list, max_length=256)
    """Curriculum: stages in the order of their from_step."""

    @model_validator(mode="after")
    def _stages_name_parts(self) -> MixtureTask:
        names = [part.name for part in self.parts]
        if len(set(names)) != len(names):
            raise ValueError("two parts of the mixture have the same name; give each its own")
        steps = [stage.from_step for stage in self.stages]
        if steps != sorted(set(steps)):
            raise ValueError("stages are out of order; sort them by from_step and give each its own")
        for weights in [{part.name: part.weight for part in self.parts}, *(stage.weights for stage in self.stages)]:
            if unknown := sorted(set(weights) - set(names)):
                raise ValueError(f"a stage names the unknown part {unknown[0]!r}; the parts are {', '.join(names)}")
            if any(weight < 0 for weight in weights.values()) or not sum(weights.values()) > 0:
                raise ValueError("weights must not be negative, and at least one must be above 0")
        return self


TaskConfig = Annotated[
    ReasoningGymTask | JsonlTask | ParquetTask | HuggingFaceTask | PythonTask | GymTask | VerifiersTask | MixtureTask,
    Field(discriminator="kind"),
]


def single_tasks(config: TaskConfig) -> list[SingleTaskConfig]:
    """Return the tasks that a task consists of: a mixture's, or itself."""
    return [part.task for part in config.parts] if isinstance(config, MixtureTask) else [config]


def runs_programs(config: TaskConfig) -> bool:
    """Whether a check of the task runs the programs that completions contain."""
    return any(isinstance(check, CodeCheck) for check in _checks(config))


def users_code(config: TaskConfig) -> bool:
    """Whether a reward function of the user scores completions of the task."""
    return any(isinstance(check, PythonCheck) for check in _checks(config))


def _checks(config: TaskConfig) -> list[SingleCheckConfig]:
    tasks = [task for task in single_tasks(config) if isinstance(task, RowsConfig)]
    return [check for task in tasks for check in single_checks(task.check)]
