"""Configuration of tasks: where problems come from, and how answers to them are checked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from rollcast.runtime.config import ConfigModel

#: chain_sum at a size that the default model can learn.
TWO_DIGIT_SUMS = {"min_terms": 2, "max_terms": 2, "min_digits": 2, "max_digits": 2}
PART_NAME = r"^[a-z0-9][a-z0-9._-]{0,31}$"
SET_NAME = r"^[a-z0-9][a-z0-9_-]{0,23}$"


class FieldsConfig(ConfigModel):
    """Which columns of a row mean what. Dots lead inwards: `reward_model.ground_truth`, `messages.0.content`."""

    prompt: str = Field("prompt", min_length=1)
    """Text that the policy is given."""
    answer: str = "answer"
    """Right answer, text or number; empty: rows have none (they are checked by tests)."""
    tests: str = ""
    """Unit tests of a programming problem; empty: none."""
    metadata: list[str] = Field(default_factory=list, max_length=32)
    """Further columns that are kept with each problem."""


class ExactCheck(ConfigModel):
    """Right if it is the same text."""

    kind: Literal["exact"] = "exact"
    """Which check."""
    ignore_case: bool = False
    """Whether `Paris` and `paris` are the same."""
    last_line: bool = False
    """Whether only the last line of a completion counts that is not empty."""


class MathCheck(ConfigModel):
    """Right if it is the same text, or the same mathematics (math-verify)."""

    kind: Literal["math"] = "math"
    """Which check."""


class CodeCheck(ConfigModel):
    """Right if the program passes its unit tests, in a sandboxed process: no network, bounded time and memory."""

    kind: Literal["code"] = "code"
    """Which check."""
    test_timeout_s: float = Field(4.0, gt=0.0, le=600.0)
    """Seconds of one test."""
    total_timeout_s: float = Field(8.0, gt=0.0, le=3600.0)
    """Seconds of all tests of a completion together; less than verifier.timeout_s, which takes them all back."""
    tests_max: int = Field(64, ge=1, le=4096)
    """Tests run for a completion at most, those that come first."""
    partial_credit: bool = False
    """Whether the reward is the share of tests passed; else 1 if all are, 0 if one is not."""
    memory_bytes: int = Field(512 << 20, ge=32 << 20)
    """Address space of each of the program's processes."""
    processes_max: int = Field(8, ge=1, le=256)
    """Processes and threads of a program."""
    output_bytes_max: int = Field(1 << 20, ge=1 << 10, le=64 << 20)
    """Bytes that a test may print."""
    file_bytes_max: int = Field(16 << 20, ge=0)
    """Size of each file that it writes in its own folder."""
    isolation: Literal["full", "best"] = "full"
    """`full`: refuse to start where the kernel gives no way to keep programs off the network and the files; `best`:
    go on with what there is, and say in the log what is missing."""


CheckConfig = Annotated[ExactCheck | MathCheck | CodeCheck, Field(discriminator="kind")]


class ReasoningGymTask(ConfigModel):
    """Problems made by a generator of the library reasoning-gym."""

    kind: Literal["reasoning-gym"] = "reasoning-gym"
    """Which adapter."""
    name: str = "chain_sum"
    """The generator's name in reasoning-gym."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """Passed to the generator, for example min_terms and max_digits."""


class RowsConfig(ConfigModel):
    """What all tasks made of rows share."""

    fields: FieldsConfig = FieldsConfig()
    """Which columns mean what."""
    check: CheckConfig = MathCheck()
    """How answers are checked."""
    bad_rows: Literal["refuse", "skip"] = "refuse"
    """What happens where a row has no prompt or answer: the run does not start, or the row is left out and counted."""
    rows_max: int = Field(5_000_000, ge=1)
    """Rows at most. They are kept in a temporary file, eight bytes of memory each."""


class JsonlTask(RowsConfig):
    """Problems from a JSONL file, one object a line."""

    kind: Literal["jsonl"]
    """Which adapter."""
    path: Path
    """The file; relative paths are taken from the working directory."""


class ParquetTask(RowsConfig):
    """Problems from a parquet file, read row group by row group. Needs the extra `data`."""

    kind: Literal["parquet"]
    """Which adapter."""
    path: Path
    """The file, or a folder whose *.parquet files are read in order of their names."""


class HuggingFaceTask(RowsConfig):
    """Problems from a dataset on the Hugging Face Hub, or in a local folder, streamed. Needs the extra `hf`."""

    kind: Literal["huggingface"]
    """Which adapter."""
    name: str = Field(min_length=1)
    """`owner/name`, or a folder."""
    subset: str = ""
    """Configuration of the dataset, where it has several."""
    split: str = "train"
    """Which split."""
    revision: str = ""
    """Commit, tag or branch; a commit makes a run repeatable."""


RowsTaskConfig = Annotated[JsonlTask | ParquetTask | HuggingFaceTask, Field(discriminator="kind")]
SingleTaskConfig = Annotated[ReasoningGymTask | JsonlTask | ParquetTask | HuggingFaceTask, Field(discriminator="kind")]


class EvaluationSetConfig(ConfigModel):
    """A set of problems that the policy is measured on. Prompts of it are never trained on."""

    task: SingleTaskConfig
    """Where its problems come from, and how answers are checked."""
    problems: int = Field(256, ge=1, le=100_000)
    """How many, from the first one on."""


class MixturePart(ConfigModel):
    """One task of a mixture."""

    name: str = Field(pattern=PART_NAME)
    """Shown to people and part of its problems' ids; stages refer to it."""
    task: SingleTaskConfig
    """The task."""
    weight: float = Field(1.0, ge=0.0)
    """Its share of the prompts, relative to the others', where no stage says otherwise."""


class MixtureStage(ConfigModel):
    """Other weights from some learner step on."""

    from_step: int = Field(ge=1)
    """First step whose prompts are drawn with these weights."""
    weights: dict[str, float]
    """By the parts' names; parts that are not named have weight 0."""


class MixtureTask(ConfigModel):
    """Several tasks at once, with weights that may change from stage to stage."""

    kind: Literal["mixture"]
    """Which adapter."""
    parts: list[MixturePart] = Field(min_length=1, max_length=64)
    """The tasks."""
    stages: list[MixtureStage] = Field(default_factory=list, max_length=256)
    """A curriculum: later stages come later."""

    @model_validator(mode="after")
    def _stages_name_parts(self) -> MixtureTask:
        names = [part.name for part in self.parts]
        if len(set(names)) != len(names):
            raise ValueError("two parts of the mixture have the same name")
        steps = [stage.from_step for stage in self.stages]
        if steps != sorted(set(steps)):
            raise ValueError("the stages' from_step must rise")
        for weights in [{part.name: part.weight for part in self.parts}, *(stage.weights for stage in self.stages)]:
            if unknown := sorted(set(weights) - set(names)):
                raise ValueError(f"a stage names {unknown[0]!r}, which is no part; there are {', '.join(names)}")
            if any(weight < 0 for weight in weights.values()) or not sum(weights.values()) > 0:
                raise ValueError("weights must not be negative, and one at least must be above 0")
        return self


TaskConfig = Annotated[
    ReasoningGymTask | JsonlTask | ParquetTask | HuggingFaceTask | MixtureTask, Field(discriminator="kind")
]
