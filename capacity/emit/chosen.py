"""Collect what files are written for: the workers that a plan chose, by the row of the pool that they come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from capacity.inputs.pool.rows import PoolRow, Start
from capacity.providers.config import RECONNECT_TIMEOUT_S
from capacity.questions.plan_json import PlanDocument


@dataclass(frozen=True, slots=True)
class ChosenRow:
    """A row of the pool and the names of its workers that the plan chose."""

    row: PoolRow
    worker_ids: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.row.worker_id


@dataclass(frozen=True, slots=True)
class Files:
    """Files by name, and the steps that a person takes with them, in order."""

    texts: Mapping[str, str]
    steps: tuple[str, ...]


def chosen_rows(document: PlanDocument, start: Start) -> tuple[tuple[ChosenRow, ...], tuple[str, ...]]:
    """Return the plan's chosen workers that this tool starts, by row, and the names of all other chosen workers."""
    chosen = {one.worker.worker_id for one in document.plan.chosen}
    found = []
    for row in document.machines:
        mine = tuple(worker_id for worker_id in row.worker_ids if worker_id in chosen)
        if row.start == start and mine:
            found.append(ChosenRow(row, mine))
    named = {worker_id for one in found for worker_id in one.worker_ids}
    return tuple(found), tuple(sorted(chosen - named))


def peer_settings(row: PoolRow) -> dict[str, Any]:
    """Return the settings of a row's peers that do not depend on the tool.

    A worker that costs money ends when its coordinator is gone, and sends no more than the plan counted on.
    """
    settings: dict[str, Any] = {"join_timeout_s": RECONNECT_TIMEOUT_S, "reconnect_timeout_s": RECONNECT_TIMEOUT_S}
    if row.egress_usd_per_gb:
        settings["link"] = {"lan_exempt": False, "upload_mbit_s_max": row.upload_mbit_per_second}
    return settings
