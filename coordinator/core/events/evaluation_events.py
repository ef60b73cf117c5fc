"""The events of evaluations: problems that are never trained on, completed by peers with one version, and scored."""

from __future__ import annotations

from dataclasses import dataclass

from rollcast.wire.ids import Version
from rollcast.wire.rollouts import Segment


@dataclass(frozen=True, slots=True)
class EvaluationKey:
    """What is measured. Two requests with the same key ask for the same scores."""

    set_name: str
    version: Version
    problems: int  # the set's first ones; all of them if it has fewer
    samples: int  # completions of each problem
    seed: int  # of the noise


@dataclass(frozen=True, slots=True)
class EvaluationProblem:
    """One held-out problem."""

    example_id: int
    prompt_token_ids: tuple[int, ...]
    has_environment: bool = False  # which may answer a completion, so that another turn follows


@dataclass(frozen=True, slots=True)
class EvaluationRequested:
    """Someone asks for an evaluation by the peers, within ``deadline_s`` seconds. The request may repeat."""

    key: EvaluationKey
    problems: tuple[EvaluationProblem, ...]
    deadline_s: float


@dataclass(frozen=True, slots=True)
class EvaluationScored:
    """A completion of a ScoreEvaluation was scored."""

    key: EvaluationKey
    problem: int  # index in the request's problems
    sample_index: int
    reward: float
    exact: bool


@dataclass(frozen=True, slots=True)
class EvaluationAnswered:
    """The environment of a problem answered the newest turn of a ScoreEvaluation: another turn follows."""

    key: EvaluationKey
    problem: int  # index in the request's problems
    sample_index: int
    answer: Segment


@dataclass(frozen=True, slots=True)
class EvaluationUnscorable:
    """A completion of a ScoreEvaluation could not be scored, however often it was tried."""

    key: EvaluationKey
    why: str
