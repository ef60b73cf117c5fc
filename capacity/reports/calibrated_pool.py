"""Report a calibration as rows of a pool, as values of a demand, and as tables."""

from __future__ import annotations

import math
from typing import Any

from capacity.inputs.calibration import Calibration, Fitted
from capacity.inputs.pool.columns import Record
from capacity.inputs.pool.files import Row
from capacity.inputs.pool.live import LiveRun
from capacity.reports.tables import Cell, Column, Sheet


def calibrated_run(calibration: Calibration, run_name: str) -> LiveRun:
    """Return a row for each fitted peer, named by its id, and the demand; the records hold no links and no prices."""
    rows = tuple(Row(f"peer {record['worker_id']}", record) for record in _records(calibration))
    return LiveRun(run_name, rows, demand_values(calibration))


def demand_values(calibration: Calibration) -> dict[str, Any]:
    """Return the values of the [demand] section that the records determine."""
    demand = calibration.demand()
    return {
        "rollouts_per_step": demand.rollouts_per_step,
        "t_train_s": demand.t_train_s,
        "staleness_limit": demand.staleness_limit,
        "publish_every_steps": demand.publish_every_steps,
        "update_bytes": demand.update_bytes,
        "t_load_s": demand.t_load_s,
        "t_score_s": demand.t_score_s,
    }


def calibration_sheets(calibration: Calibration, *, ids: bool = False) -> list[Sheet]:
    """Return the fitted figures as tables: the learner and the versions first, then the peers.

    Args:
        ids: whether each peer's id follows its name.
    """
    columns = (
        Column("figure", "figure"),
        Column("value", "value", 3),
        Column("two_standard_errors", "± (2 s.e.)", 3),
        Column("count", "measurements"),
        Column("meaning", "meaning", prose=True),
    )
    rows = (
        _row("t_train_s", calibration.t_train_s, "seconds of a learner step, waiting not counted"),
        _row("t_bcast_s", calibration.t_bcast_s, "seconds from announcement to the last verified copy"),
        _row("t_score_s", calibration.t_score_s, "seconds from a rollout's arrival to its score"),
        _row("t_publish_s", calibration.t_publish_s, "seconds from a step's end to its version's announcement"),
        _row("t_load_s", calibration.t_load_s, "seconds from the last copy to the first rollout made with it"),
        ("utilisation", calibration.utilisation, None, None, "share of the time in which the learner trained"),
        ("mean_age", calibration.mean_age, None, None, "of the rollouts trained, learner steps"),
        ("update_bytes", calibration.update_bytes, None, None, "what a peer receives for one version"),
    )
    return [Sheet("calibration", columns, rows), _peers(calibration, ids=ids)]


def _peers(calibration: Calibration, *, ids: bool) -> Sheet:
    columns = (
        Column("name", "peer"),
        *([Column("worker_id", "id")] if ids else []),
        Column("rollouts_per_second", "rollouts/s", 3),
        Column("two_standard_errors", "± (2 s.e.)", 3),
        Column("concurrency", "at once"),
        Column("t_gen_mean_s", "T_gen mean s", 3),
        Column("t_gen_p90_s", "T_gen p90 s", 3),
        Column("count", "rollouts"),
    )
    rows = tuple(
        (
            calibration.names.get(peer.peer_id) or peer.peer_id,
            *([peer.peer_id] if ids else []),
            peer.speed.rollouts_per_second,
            _finite(peer.speed.rollouts_per_second * peer.t_gen_s.relative_uncertainty),
            peer.concurrency,
            peer.t_gen_s.value,
            peer.t_gen_p90_s,
            peer.t_gen_s.count,
        )
        for peer in calibration.peers
    )
    return Sheet("peers", columns, rows, lines=(f"{_peers_text(len(rows))} made enough rollouts to have a speed",))


def _peers_text(count: int) -> str:
    return "1 peer" if count == 1 else f"{count} peers"


def _records(calibration: Calibration) -> list[Record]:
    return [
        {
            "worker_id": peer.peer_id,
            "name": calibration.names.get(peer.peer_id, ""),
            "rollouts_per_second": peer.speed.rollouts_per_second,
            "concurrency": peer.concurrency,
            "t_gen_p90_s": peer.t_gen_p90_s,
            "active": True,
        }
        for peer in calibration.peers
    ]


def _row(name: str, fitted: Fitted, meaning: str) -> tuple[Cell, ...]:
    return (name, fitted.value, _finite(2.0 * fitted.error), fitted.count, meaning)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
