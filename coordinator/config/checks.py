"""Configure checks: how the completions of a task of rows are scored."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from rollcast.runtime.config import ConfigModel

CHECK_PART_NAME = r"^[a-z0-9][a-z0-9_]{0,31}$"


class ExactCheck(ConfigModel):
    """Accept a completion that is the same text as the answer."""

    kind: Literal["exact"] = "exact"
    """Selects this check."""
    ignore_case: bool = False
    """Whether upper and lower case count as equal: `Paris` and `paris`."""
    last_line: bool = False
    """Whether only the last line of a completion that is not empty is compared."""


class MathCheck(ConfigModel):
    """Accept a completion that is the same text as the answer or mathematically equal to it (math-verify)."""

    kind: Literal["math"] = "math"
    """Selects this check."""


class CodeCheck(ConfigModel):
    """Accept a program that passes its unit tests in a sandboxed process: no network, bounded time and memory."""

    kind: Literal["code"] = "code"
    """Selects this check."""
    test_timeout_s: float = Field(4.0, gt=0.0, le=600.0)
    """Timeout of one test, in seconds."""
    total_timeout_s: float = Field(8.0, gt=0.0, le=3600.0)
    """Timeout of all tests of a completion together, in seconds; must be less than verifier.timeout_s."""
    tests_max: int = Field(64, ge=1, le=4096)
    """Most tests to run for a completion; the first ones are run."""
    partial_credit: bool = False
    """Whether the reward is the share of tests passed; otherwise it is 1 if all pass and 0 if any fails."""
    memory_bytes: int = Field(512 << 20, ge=32 << 20)
    """Most bytes of address space for each of the program's processes."""
    processes_max: int = Field(8, ge=1, le=256)
    """Most processes and threads that a program may have."""
    output_bytes_max: int = Field(1 << 20, ge=1 << 10, le=64 << 20)
    """Most bytes that a test may print."""
    file_bytes_max: int = Field(16 << 20, ge=0)
    """Most bytes of each file that a program writes in its own folder."""
    isolation: Literal["full", "best"] = "full"
    """full: refuse to start if the kernel cannot keep programs off the network and the files; best: use the
    protections that exist, and log which are missing."""


class FormatCheck(ConfigModel):
    """Give 1 to a completion in which a regular expression is found, else 0; meant as a part of a sum."""

    kind: Literal["format"]
    """Selects this check."""
    pattern: str = Field(min_length=1, max_length=4096)
    """Regular expression of Python's `re`; `(?s)^...$` matches whole completions."""


class LengthCheck(ConfigModel):
    """Give 1 to a completion of at most ``most`` characters, 0 from ``zero_at`` on, and a share in between."""

    kind: Literal["length"]
    """Selects this check."""
    most: int = Field(ge=0)
    """Characters up to which the reward is 1."""
    zero_at: int = Field(ge=1)
    """Characters from which on the reward is 0; more than `most`."""

    @model_validator(mode="after")
    def _in_order(self) -> LengthCheck:
        if self.zero_at <= self.most:
            raise ValueError(f"zero_at = {self.zero_at} must be more than most = {self.most}")
        return self


class PythonCheck(ConfigModel):
    """Score completions with a Python function of prompt, completion, answer and metadata; see docs/tasks.md."""

    kind: Literal["python"]
    """Selects this check."""
    path: str = Field(min_length=1)
    """The function: `FILE.py:NAME`, relative to the working directory, or the name of an entry point of the group
    `rollcast.rewards`."""
    batch: bool = False
    """Whether the function takes lists (prompts, completions, answers, metadata) and returns a list."""


class HttpServiceConfig(ConfigModel):
    """Settings of requests to a service."""

    url: str = Field(pattern=r"^https?://[^\s]+$")
    """Address of the service."""
    secret_file: Path | None = None
    """File whose content is sent as `Authorization: Bearer`; it never appears in logs or events."""
    concurrency: int = Field(8, ge=1, le=256)
    """Requests at a time, of each verifier process."""
    attempts: int = Field(4, ge=1, le=20)
    """Attempts at one request within verifier.timeout_s, with growing, random pauses."""
    connect_timeout_s: float = Field(5.0, gt=0.0, le=600.0)
    """Seconds for one attempt to connect, the resolution of the name included."""
    attempt_timeout_s: float = Field(120.0, gt=0.0, le=3600.0)
    """Seconds for one attempt until its whole answer is there; verifier.timeout_s ends all of them."""
    response_bytes_max: int = Field(1 << 20, ge=1 << 10, le=64 << 20)
    """Most bytes of an answer; a longer one is a failure."""


class HttpCheck(HttpServiceConfig):
    """Have a service score completions: JSON POST of a batch. Suits reward models."""

    kind: Literal["http"]
    """Selects this check."""


class JudgeCheck(HttpServiceConfig):
    """Have a language model score completions, by an OpenAI-compatible endpoint."""

    kind: Literal["judge"]
    """Selects this check."""
    model: str = Field(min_length=1)
    """Name of the model at the endpoint; `url` ends before /chat/completions."""
    rubric: str = Field(min_length=1, max_length=64 << 10)
    """Instruction to the judge; {prompt}, {completion} and {answer} are replaced. It has to ask for a number."""
    scale_max: float = Field(10.0, gt=0.0)
    """Number that is worth the reward 1; the last number of the judge's answer is divided by it."""
    answer_tokens_max: int = Field(512, ge=1, le=65_536)
    """Most tokens of the judge's answer."""
    usd_per_million_input_tokens: float = Field(0.0, ge=0.0)
    """Price of what the judge reads, in US dollars."""
    usd_per_million_output_tokens: float = Field(0.0, ge=0.0)
    """Price of what the judge writes, in US dollars."""
    usd_max: float | None = Field(None, gt=0.0)
    """Most US dollars to spend, after which scoring fails with `limit` and is paused; unset: no limit."""
    tokens_max: int | None = Field(None, ge=1)
    """Most tokens read and written together, with the same effect; unset: no limit."""
    cache_file: Path | None = None
    """SQLite file of judgements and spending, which restarts and all verifier processes share; unset: each process
    keeps its own in memory, and limits hold for each."""


SingleCheckConfig = Annotated[
    ExactCheck | MathCheck | CodeCheck | FormatCheck | LengthCheck | PythonCheck | HttpCheck | JudgeCheck,
    Field(discriminator="kind"),
]


class SumPart(ConfigModel):
    """One part of a sum."""

    name: str = Field(pattern=CHECK_PART_NAME)
    """Name of the part in metrics and on the Run page."""
    weight: float = 1.0
    """Factor of the part's reward in the sum."""
    check: SingleCheckConfig
    """How the part is scored."""


class SumCheck(ConfigModel):
    """Add the weighted rewards of several checks, such as correctness, format and length."""

    kind: Literal["sum"]
    """Selects this check."""
    parts: list[SumPart] = Field(min_length=1, max_length=16)
    """The parts. A completion is fully right if it is so by each part with a positive weight."""

    @model_validator(mode="after")
    def _names_differ(self) -> SumCheck:
        names = [part.name for part in self.parts]
        if len(set(names)) != len(names):
            raise ValueError("two parts of the sum have the same name; give each its own")
        return self


CheckConfig = Annotated[
    ExactCheck | MathCheck | CodeCheck | FormatCheck | LengthCheck | PythonCheck | HttpCheck | JudgeCheck | SumCheck,
    Field(discriminator="kind"),
]


def single_checks(config: CheckConfig) -> list[SingleCheckConfig]:
    """Return the checks that a check consists of: those of a sum's parts, or itself."""
    return [part.check for part in config.parts] if isinstance(config, SumCheck) else [config]
