"""Read events for replaying a plan: JSON lines, each with the seconds since the start.

{"at_s": 60, "kind": "gone", "worker_id": "l4-2", "reason": "preempted"}
{"at_s": 300, "kind": "back", "worker_id": "l4-2"}
{"at_s": 400, "kind": "price", "worker_id": "l4-1", "usd_per_hour": 0.9}
{"at_s": 500, "kind": "speed", "worker_id": "l4-1", "factor": 0.5}
{"at_s": 600, "kind": "demand", "staleness_limit": 3}
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, assert_never

import msgspec

from capacity.model.demand import Demand
from capacity.model.workers import Worker
from capacity.replan.events import DemandSeen, WorkerGone, WorkerSeen
from capacity.replan.replaying import PoolEvent
from rollcast.runtime.errors import PlanFileError

FILE_BYTES_MAX = 64 << 20


class Gone(msgspec.Struct, tag_field="kind", tag="gone", forbid_unknown_fields=True):
    """A worker of the plan leaves."""

    at_s: float
    worker_id: str
    reason: str = "gone"


class Back(msgspec.Struct, tag_field="kind", tag="back", forbid_unknown_fields=True):
    """The worker is available again, off, with its last known figures."""

    at_s: float
    worker_id: str


class Price(msgspec.Struct, tag_field="kind", tag="price", forbid_unknown_fields=True):
    """The worker's price changes."""

    at_s: float
    worker_id: str
    usd_per_hour: float


class Slower(msgspec.Struct, tag_field="kind", tag="speed", forbid_unknown_fields=True):
    """The worker generates ``factor`` times the plan's rate from now on."""

    at_s: float
    worker_id: str
    factor: float


class Asked(msgspec.Struct, tag_field="kind", tag="demand", forbid_unknown_fields=True):
    """The run's settings change; those that are not given stay."""

    at_s: float
    staleness_limit: int | None = None
    publish_every_steps: int | None = None
    t_train_s: float | None = None
    usd_per_hour_max: float | None = None


Line = Gone | Back | Price | Slower | Asked


def read_events(path: Path) -> list[Line]:
    """Read the lines in order of time.

    Raises:
        PlanFileError: the file cannot be read or is too large, or a line is no event; the message has its number.
    """
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise PlanFileError(f"{path} is larger than {FILE_BYTES_MAX >> 20} MiB", fix="give a shorter record")
        data = path.read_bytes()
    except OSError as error:
        raise PlanFileError(f"cannot read {path}", cause=str(error), fix="give the path of a JSON lines file") from None
    decoder = msgspec.json.Decoder(Line)
    lines: list[Line] = []
    for number, text in enumerate(data.splitlines(), 1):
        if not text.strip():
            continue
        try:
            line: Line = decoder.decode(text)
            _check(line, lines[-1].at_s if lines else 0.0)
        except (msgspec.DecodeError, ValueError) as error:
            raise PlanFileError(
                f"{path} line {number} is no event",
                cause=str(error),
                fix="docs/capacity.md has an example of each kind",
            ) from None
        lines.append(line)
    return lines


def pool_events(
    demand: Demand, workers: Sequence[Worker], lines: Sequence[Line], source: str
) -> Iterator[tuple[float, PoolEvent]]:
    """Return a replanner's events: everything in the plan at 0 s, then the lines.

    Raises:
        PlanFileError: a line names a worker that is not in the plan.
    """
    known = {worker.worker_id: worker for worker in workers}
    yield 0.0, DemandSeen(demand)
    for worker in workers:
        yield 0.0, WorkerSeen(worker)
    as_planned = dict(known)
    for line in lines:
        if not isinstance(line, Asked) and line.worker_id not in known:
            raise PlanFileError(f"{source} names the worker {line.worker_id!r}, which is not in the plan")
        match line:
            case Asked():
                demand = replace(demand, **_given(line))
                yield line.at_s, DemandSeen(demand)
            case Gone():
                yield line.at_s, WorkerGone(line.worker_id, line.reason)
            case Back():
                yield line.at_s, WorkerSeen(replace(known[line.worker_id], active=False))
            case Price():
                known[line.worker_id] = replace(known[line.worker_id], usd_per_hour=line.usd_per_hour)
                yield line.at_s, WorkerSeen(known[line.worker_id])
            case Slower():
                speeds = as_planned[line.worker_id].speeds
                slower = tuple(
                    replace(
                        speed,
                        rollouts_per_second=speed.rollouts_per_second * line.factor,
                        t_gen_p90_s=speed.t_gen_p90_s / line.factor,
                        t_gen_mean_s=speed.t_gen_mean_s / line.factor,
                    )
                    for speed in speeds
                )
                known[line.worker_id] = replace(known[line.worker_id], speeds=slower)
                yield line.at_s, WorkerSeen(known[line.worker_id])
            case _:
                assert_never(line)


def _given(line: Asked) -> dict[str, Any]:
    values: dict[str, Any] = msgspec.structs.asdict(line)
    return {name: value for name, value in values.items() if name != "at_s" and value is not None}


def _check(line: Line, earliest_s: float) -> None:
    if not line.at_s >= earliest_s:
        raise ValueError("at_s must not be less than in the line before")
    if isinstance(line, Slower) and not line.factor > 0:
        raise ValueError("factor must be positive; a worker that generates nothing is an event of kind gone")
    if isinstance(line, Price) and not line.usd_per_hour >= 0:
        raise ValueError("usd_per_hour must not be negative")
