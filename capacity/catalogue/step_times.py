"""Look up the seconds of a learner's step as prime-rl measured them. Origin: data/prime-rl/README.md."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from capacity.catalogue.csv_tables import number_or_none, read_rows

FOLDER = "prime-rl"
_HARDWARE = {"a6000": "rtx-a6000", "h100": "h100-sxm", "h200": "h200-sxm", "b200": "b200-sxm"}


@dataclass(frozen=True, slots=True)
class StepTime:
    """The step time in one setting.

    Args:
        kind: rl or sft.
        hardware: name of the GPU in the catalogue.
        lora_rank: rank of the adapters; None: all parameters are trained.
        sequence_tokens: tokens of one micro-batch on one device.
        step_s, step_s_std: mean and standard deviation of the seconds of one micro-batch.
        tokens_per_second: rate of all devices together.
    """

    kind: str
    model: str
    hardware: str
    gpus: int
    lora_rank: int | None
    sequence_tokens: int
    recomputation: str
    attention: str
    step_s: float
    step_s_std: float
    tokens_per_second: float
    peak_memory_gib: float
    date: str


@functools.cache
def step_times() -> tuple[StepTime, ...]:
    """Return all 53 settings."""
    return tuple(
        StepTime(
            kind=row["type"],
            model=row["model"],
            hardware=_HARDWARE[row["hardware"]],
            gpus=int(row["gpus"]),
            lora_rank=None if (rank := number_or_none(row["lora_rank"])) is None else int(rank),
            sequence_tokens=int(row["sequence_tokens"]),
            recomputation=row["recomputation"],
            attention=row["attention"],
            step_s=float(row["step_s"]),
            step_s_std=float(row["step_s_std"]),
            tokens_per_second=float(row["tokens_per_second"]),
            peak_memory_gib=float(row["peak_memory_gib"]),
            date=row["date"],
        )
        for row in read_rows(FOLDER, "step_times.csv")
    )
