"""Read the facts of a report from a run folder, of a run that is over or in progress."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.core.members.progress import WAITED
from coordinator.ledger.sql import RunReader
from coordinator.ledger.sql_facts import peer_names
from coordinator.report import wall_time
from coordinator.stores.reader import has_run, reading
from coordinator.views.runs import steps_view
from rollcast.runtime.errors import RunFolderError
from rollcast.runtime.run_folder import RunFolder, no_run
from rollcast.runtime.steps_file import StepsFile

STEPS_SHOWN = 600  # of more steps, every n-th is shown
EVENTS_SHOWN = 60
PEERS_SHOWN = 200


@dataclass(frozen=True, slots=True)
class PeerWork:
    """One peer's attempts that are still listed in the ledger."""

    peer_id: str
    name: str
    trained: int
    dropped: int
    reasons: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class EventRow:
    """One row of the run's event log."""

    at_unix_s: float
    kind: str
    subject: str
    detail: str


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that the report shows.

    Args:
        summary: summary.json; without one, the newest step's values.
        is_over: whether there is a summary.
        steps: lines of metrics.jsonl, thinned, None if a step lacks a value; see coordinator.views.runs.
        account: where the learner's wall time went; None if no learner has reported.
        events: newest first.
    """

    summary: Mapping[str, Any]
    is_over: bool
    steps: tuple[Mapping[str, Any], ...]
    account: wall_time.Account | None
    peers: tuple[PeerWork, ...]
    peers_left_out: int
    events: tuple[EventRow, ...]
    configuration: str


def read_facts(folder: RunFolder) -> Facts:
    """Read a run.

    Raises:
        RunFolderError: the folder holds no run, or a file of it cannot be read.
        StoreError: the ledger or metrics.jsonl cannot be read.
    """
    if not has_run(folder):
        raise no_run(folder.root, folder.ledger.name)
    steps = _steps(folder)
    summary = _object(folder.summary)
    with reading(folder) as connection:
        peers = _peers(connection)
        events = _events(connection)
    return Facts(
        summary=summary or _summary_so_far(folder, steps),
        is_over=bool(summary),
        steps=steps,
        account=wall_time.account(folder),
        peers=peers[:PEERS_SHOWN],
        peers_left_out=max(0, len(peers) - PEERS_SHOWN),
        events=events,
        configuration=json.dumps(_object(folder.config / "coordinator.json"), indent=2),
    )


def _steps(folder: RunFolder) -> tuple[Mapping[str, Any], ...]:
    """Return the steps as the dashboard's Run page shows them."""
    file = StepsFile(folder.metrics)
    file.refresh()
    view = steps_view(folder.root.name, file.steps, points=STEPS_SHOWN)
    return tuple(dict(zip(view.columns, row, strict=True)) for row in view.rows)


def _object(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise RunFolderError(f"cannot read {path}", cause=str(error)) from None
    return values if isinstance(values, dict) else {}


def _summary_so_far(folder: RunFolder, steps: tuple[Mapping[str, Any], ...]) -> dict[str, Any]:
    last: Mapping[str, Any] = steps[-1] if steps else {}
    config = _object(folder.config / "coordinator.json").get("run", {})
    return {
        "run_name": config.get("name", folder.root.name),
        "phase": "not finished",
        "step": last.get("step", 0),
        "steps": config.get("steps"),
        "staleness_limit": config.get("staleness_limit"),
        "staleness_max_trained": last.get("staleness_max_trained"),
        "wall_s": last.get("elapsed_s"),
    }


def _peers(connection: RunReader) -> tuple[PeerWork, ...]:
    """Return the peers' work, those with the most trained rollouts first."""
    names = peer_names(connection)
    found: dict[str, dict[str, int]] = {}
    rows = connection.execute(
        "SELECT peer_id, coalesce(closed_reason, state), count(*) FROM attempts GROUP BY 1, 2 ORDER BY 1, 2"
    )
    for peer_id, fate, count in rows:
        found.setdefault(str(peer_id), {})[str(fate)] = int(count)
    peers = [
        PeerWork(
            peer_id=peer_id,
            name=names.get(peer_id, ""),
            trained=fates.get("trained", 0),
            dropped=sum(count for fate, count in fates.items() if fate not in ("trained", "filled", "open")),
            reasons={fate: count for fate, count in fates.items() if fate not in ("trained", "filled", "open")},
        )
        for peer_id, fates in found.items()
    ]
    return tuple(sorted(peers, key=lambda one: (-one.trained, one.name, one.peer_id)))


def _events(connection: RunReader) -> tuple[EventRow, ...]:
    rows = connection.execute(
        "SELECT at_unix_s, kind, subject, detail FROM events WHERE kind <> ? ORDER BY event_order DESC LIMIT ?",
        (WAITED, EVENTS_SHOWN),  # waits of the learner have a table of their own
    )
    return tuple(EventRow(float(at), str(kind), str(subject), str(detail)) for at, kind, subject, detail in rows)
