"""Build a pool from a running coordinator's measurements: rows for its peers, and the values of the demand that it has.

Measured figures replace those of the user's own file for workers of the same name. A peer without a price in the run's
configuration counts as donated, unless the file gives its price.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from capacity.inputs.pool.columns import Record
from capacity.inputs.pool.files import Row
from capacity.model.units import BYTES_PER_MBIT

_GONE = ("left", "lost")
_NEWEST_STEPS = 20  # learner steps whose rollouts' lengths count
_MEASURED = (
    "usd_per_hour",
    "upload_mbit_per_second",
    "download_mbit_per_second",
    "rollouts_per_second",
    "tokens_per_second",
    "concurrency",
    "t_gen_p90_s",
    "active",
)


@dataclass(frozen=True, slots=True)
class LiveRun:
    """A run as its coordinator reports it.

    Args:
        rows: one row for each connected worker that is not quarantined.
        demand: measured values by the key of the [demand] section; values that are not known yet are absent.
        unmeasured: names of workers that have not generated yet, or whose links have carried nothing yet.
    """

    run_name: str
    rows: tuple[Row, ...]
    demand: Mapping[str, Any] = field(default_factory=dict)
    unmeasured: tuple[str, ...] = ()


def live_run(
    status: Mapping[str, Any], broadcast: Mapping[str, Any], steps: Mapping[str, Any] | None = None
) -> LiveRun:
    """Turn the answers of /api/v1/status, broadcast and steps into rows of a pool and values of a demand.

    Args:
        steps: gives the tokens of the run's own rollouts; None or no steps yet: speeds stay in tokens.

    Raises:
        KeyError, TypeError, ValueError: the answers are not those of this version of Rollcast.
    """
    links = {one["peer_id"]: one for one in broadcast["peers"]}
    tokens = _tokens_per_rollout(status, steps or {})
    rows, unmeasured = [], []
    for peer in status["peers"]:
        if peer["role"] != "peer" or peer["state"] in _GONE or peer["quarantined"]:
            continue
        record = _record(peer, links.get(peer["peer_id"], {}), tokens, status["t_gen_p90_s"])
        rows.append(Row(f"peer {peer['name']}", record))
        if not {"upload_mbit_per_second", "download_mbit_per_second", "tokens_per_second"} <= record.keys():
            unmeasured.append(str(peer["name"]))
    return LiveRun(str(status["run_name"]), tuple(rows), _demand(status, broadcast), tuple(unmeasured))


def merged(rows: Sequence[Row], live: Sequence[Row]) -> list[Row]:
    """Return the user's rows, updated from measured workers of the same name, then the workers that no row names."""
    measured = {row.values["worker_id"]: row for row in live}
    together = []
    for row in rows:
        found = measured.pop(row.values.get("worker_id", ""), None)
        changes = {name: found.values[name] for name in _MEASURED if name in found.values} if found is not None else {}
        together.append(Row(row.where, row.values | changes))
    return together + list(measured.values())


def _tokens_per_rollout(status: Mapping[str, Any], steps: Mapping[str, Any]) -> float | None:
    """Return the mean tokens of a rollout over the newest steps; None where none was reported."""
    columns = steps.get("columns", ())
    if "tokens" not in columns or not status.get("rollouts_per_step"):
        return None
    place = columns.index("tokens")
    tokens = [float(row[place]) for row in steps["rows"][-_NEWEST_STEPS:] if row[place]]
    return sum(tokens) / len(tokens) / float(status["rollouts_per_step"]) if tokens else None


def _record(
    peer: Mapping[str, Any], link: Mapping[str, Any], tokens_per_rollout: float | None, t_gen_p90_s: float | None
) -> Record:
    """Return a worker's row; the 90th percentile is that of all workers, as the coordinator keeps no other."""
    record: Record = {"worker_id": peer["name"] or peer["peer_id"], "active": not peer["standby"], "pin": peer["pin"]}
    if peer["usd_per_hour"] > 0:
        record["usd_per_hour"] = float(peer["usd_per_hour"])
    else:
        record["donated"] = True  # as the run's own configuration says
    for column, key in (("hardware", "hardware"), ("region", "region")):
        if peer.get(key):
            record[column] = str(peer[key])
    rates = (("upload_mbit_per_second", "uplink"), ("download_mbit_per_second", "downlink"))
    for column, name in rates:
        if rate := link.get(f"{name}_bytes_per_s"):
            record[column] = float(rate) / BYTES_PER_MBIT
    if peer["tokens_per_s"] > 0:
        record["tokens_per_second"] = float(peer["tokens_per_s"])
        if tokens_per_rollout:
            record["rollouts_per_second"] = float(peer["tokens_per_s"]) / tokens_per_rollout
            if t_gen_p90_s:
                record["t_gen_p90_s"] = t_gen_p90_s
        record["concurrency"] = int(peer["concurrent_rollouts"])
    return record


def _demand(status: Mapping[str, Any], broadcast: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {
        "staleness_limit": int(status["staleness_limit"]),
        "publish_every_steps": int(status["publish_every_steps"]),
    }
    for key in ("rollouts_per_step", "t_train_s"):
        if status.get(key):
            values[key] = status[key]
    encoding = broadcast["encoding"]
    if encoding is not None:
        values["update_bytes"] = float(encoding["size_bytes"])
    origin = next((one for one in broadcast["peers"] if one["role"] == "origin"), None)
    if origin is not None and origin["uplink_bytes_per_s"]:
        values["learner_upload_mbit_per_second"] = origin["uplink_bytes_per_s"] / BYTES_PER_MBIT
    return values
