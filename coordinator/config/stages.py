"""Define the configuration of a run's stages."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from pydantic import Field, model_validator

from rollcast.runtime.config import ConfigModel


class StageConfig(ConfigModel):
    """A stage of the run: from which learner step on, how long completions may be, and which problems are sampled."""

    name: str = Field(pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._-]{0,31}$")
    """Name shown in the status."""
    from_step: int | None = Field(None, ge=0)
    """Learner step at which the stage begins; 0 for the first one. It ends where the next one begins. None: it begins
    when the stage before ends by its `until_reward` or `until_steps`."""
    until_reward: float | None = None
    """The stage ends once the mean reward of `reward_steps` of its steps in a row reaches this."""
    until_steps: int | None = Field(None, ge=1)
    """The stage ends after so many of its learner steps, if it has not ended before."""
    reward_steps: int = Field(8, ge=1, le=10_000)
    """Learner steps whose mean reward is compared with `until_reward`."""
    new_tokens_max: int | None = Field(None, ge=1)
    """Longest completion in tokens; none: sampling.new_tokens_max, which no stage exceeds. It never falls."""
    pass_rate_min: float = Field(0.0, ge=0.0, le=1.0)
    """Problems of files whose mean reward so far is below this are sampled with probability selection.chance_least."""
    pass_rate_max: float = Field(1.0, ge=0.0, le=1.0)
    """The same for problems above this. Problems without a rollout are sampled in every stage."""

    @model_validator(mode="after")
    def _some_pass_rate_is_left(self) -> StageConfig:
        if self.pass_rate_min > self.pass_rate_max:
            raise ValueError(f"pass_rate_min {self.pass_rate_min:g} is above pass_rate_max {self.pass_rate_max:g}")
        return self

    @property
    def is_conditional(self) -> bool:
        """Return whether the stage ends by a condition."""
        return self.until_reward is not None or self.until_steps is not None

    @property
    def is_selective(self) -> bool:
        """Return whether the stage leaves out problems by their mean reward."""
        return self.pass_rate_min > 0.0 or self.pass_rate_max < 1.0


def stage_errors(stages: Sequence[StageConfig], new_tokens_max: int) -> str:
    """Return why stages do not go together, or with the longest completion of the run; empty if they do."""
    if wrong := _order_errors(stages):
        return wrong
    lengths = [stage.new_tokens_max or new_tokens_max for stage in stages]
    if lengths != sorted(lengths):
        return "new_tokens_max falls from one stage to the next: completions may only grow longer"
    if lengths and lengths[-1] > new_tokens_max:
        return f"a stage's new_tokens_max {lengths[-1]} is above sampling.new_tokens_max = {new_tokens_max}"
    return ""


def _order_errors(stages: Sequence[StageConfig]) -> str:
    """Return why it is not clear when each stage begins; empty if it is."""
    steps = [stage.from_step for stage in stages if stage.from_step is not None]
    if stages and (steps != sorted(set(steps)) or stages[0].from_step != 0):
        return "stages are out of order: the first begins at from_step = 0, each other one later than the one before"
    for before, after in itertools.pairwise(stages):
        if (after.from_step is None) != before.is_conditional:
            return (
                f"stage {after.name} begins either at its from_step, or when stage {before.name} ends by until_reward "
                "or until_steps: set exactly one of the two"
            )
        if before.from_step is None and after.from_step is not None:
            return f"stage {after.name} has a from_step, but stage {before.name} before it begins at no fixed step"
    if stages and stages[-1].is_conditional:
        return f"no stage follows {stages[-1].name}, so its until_reward and until_steps have no effect"
    return ""
