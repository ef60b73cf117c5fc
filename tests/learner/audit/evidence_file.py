"""Write evidence about rollouts of two peers."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from learner.audit.evidence import Evidence, Record, read
from learner.objective.config import ObjectiveConfig
from learner.training.packing import PackedBatch, TrainingRow, pack
from rollcast.wire.ids import Epoch, PeerId, Version
from rollcast.wire.rollouts import Segment
from rollcast.wire.token_ids import pack_ids

BOUND = 0.01
SEED = (1 << 63) + 12345


def rows_of(*numbers: int) -> tuple[list[TrainingRow], PackedBatch]:
    segments = tuple(
        Segment(
            "assistant",
            Epoch(0),
            Version(version),
            PeerId(peer),
            pack_ids(tokens),
            b"\1" * len(tokens),
            sampler="jax-cpu",
        )
        for version, peer, tokens in ((3, "a", (4, 5)), (4, "b", (6, 1)))
    )
    rows = [TrainingRow(number, 0, (2, 3), segments, 1.0, 0.0, SEED) for number in numbers]
    return rows, pack(rows, time=8, objective=ObjectiveConfig(), completion_tokens_max=4)


def written(path: Path, *numbers: int, off: float = 1.0) -> list[Record]:
    rows, packed = rows_of(*numbers)
    margins = np.where(packed.loss_mask, np.float32(0.0), np.float32(np.nan))
    margins[:, 4] = off  # the first token of b
    bounds = np.where(packed.loss_mask, np.float32(BOUND), np.float32(np.inf))
    Evidence(path).add(7, rows, packed, margins, bounds)
    return [record for record, _ in read(path)] if path.exists() else []
