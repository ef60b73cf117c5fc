"""Define the configuration of supervised training."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator

from learner.config import LearnerConfig, OptimiserConfig, TrainingConfig
from learner.objective.config import SUPERVISED
from rollcast.runtime.config import ConfigModel


class DataConfig(ConfigModel):
    """The file of examples: chats, or prompts with their completions."""

    path: Path
    """File of JSON lines, or with the ending .parquet a Parquet file; a folder stands for its *.parquet files."""
    messages: str = "messages"
    """Column of the chats: a list of objects with role and content. Every answer of the assistant is trained on, all
    else is not. It needs a model with a chat template. Rows without this column have a prompt and a completion."""
    prompt: str = "prompt"
    """Column of the prompts, which are put into the model's chat template as the problems of a task are."""
    completion: str = "completion"
    """Column of the completions, which are trained on with the token that ends them."""
    bad_rows_share_max: float = Field(0.01, ge=0.0, lt=1.0)
    """Highest share of rows that may be unusable: malformed, or longer than row_tokens. They are left out, counted, and
    the first of them named; more of them end the command with RC501."""
    held_out_share: float = Field(0.02, ge=0.0, le=0.5)
    """Share of the examples that are not trained on, chosen at random by the seed; their loss is measured. 0: none."""
    held_out_max: int = Field(512, ge=1)
    """Most examples that are held out."""


class SftOptimiserConfig(OptimiserConfig):
    """The optimiser of supervised steps."""

    learning_rate: float = Field(1e-5, gt=0.0)
    """Highest learning rate. The default suits published models of 7 to 32 billion parameters; small models that start
    from random parameters need a higher one."""
    decay_steps: int = Field(0, ge=0)
    """Steps, warm-up included, after which a falling learning rate has reached its end; 0: all steps of all epochs."""

    @model_validator(mode="after")
    def _schedule_ends(self) -> SftOptimiserConfig:
        if self.schedule != "constant" and 0 < self.decay_steps <= self.warmup_steps:
            raise ValueError(f"decay_steps is not above warmup_steps = {self.warmup_steps}: raise it, or set it to 0")
        return self


class SftConfig(TrainingConfig):
    """Supervised training: the same model, devices, optimiser and checkpoints as the learner's."""

    data: DataConfig
    """Examples."""
    optimiser: SftOptimiserConfig = SftOptimiserConfig()
    """Optimiser."""
    epochs: int = Field(1, ge=1, le=1000)
    """Passes over the examples, each in another order."""
    row_tokens: int = Field(2048, ge=2)
    """Length of a row in tokens, which examples share where they fit. Longer examples are unusable rows."""
    batch_rows: int = Field(16, ge=1)
    """Rows of a step."""
    held_out_every_steps: int = Field(50, ge=1)
    """Steps between two measurements of the held-out loss; before the first and after the last it is measured too."""
    tokenizer: Path | None = None
    """Folder with tokenizer.json and the chat template for a model with random parameters; one with init_from has its
    own. Without both, the tokenizer has one token for each character of the file."""
    run_folder: Path = Path("runs/sft")
    """Folder for checkpoints, metrics.jsonl and summary.json. Started again with the same folder, training resumes."""
    export: Path | None = None
    """Folder to write the model to when training has ended, for init_from of a run; none: `rollcast export` does it."""

    @model_validator(mode="after")
    def _one_tokenizer(self) -> SftConfig:
        if self.tokenizer is not None and self.init_from is not None:
            raise ValueError("the model of init_from has a tokenizer: remove tokenizer")
        return self

    @property
    def model_folder(self) -> Path | None:
        """Return the folder with the tokenizer's files; None if the tokenizer is made of the file."""
        return self.init_from or self.tokenizer

    def learner(self) -> LearnerConfig:
        """Return the learner's configuration for supervised steps; see optimiser_of for the optimiser."""
        shared = {name: getattr(self, name) for name in TrainingConfig.model_fields}
        given = {"optimiser": self.optimiser_of(0), "packed_row_tokens": self.row_tokens, "objective": SUPERVISED}
        return LearnerConfig.model_validate(shared | given)

    def optimiser_of(self, steps: int) -> OptimiserConfig:
        """Return the learner's optimiser; the learning rate falls until so many steps where decay_steps is not set."""
        values = self.optimiser.model_dump()
        values["decay_steps"] = values["decay_steps"] or max(steps, self.optimiser.warmup_steps + 1)
        return OptimiserConfig.model_validate(values)
