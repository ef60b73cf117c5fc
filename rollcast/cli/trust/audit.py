"""`rollcast audit RUN`: replay the evidence against peers."""

from __future__ import annotations

import json
from pathlib import Path

from rollcast.cli.options import LATEST_RUN, Json
from rollcast.runtime.errors import RunFolderError
from rollcast.runtime.run_folder import RunFolder


def audit(run: Path = LATEST_RUN, evidence: Path | None = None, /, *, json_output: Json = False) -> int:
    """Judge every rollout again that was left out of training, with the weights that it claims.

    Exits with 1 if a verdict is not confirmed.

    Parameters
    ----------
    run
        The learner's run folder, which has the weights.
    evidence
        File of evidence; by default that of the run folder.
    json_output
        Print one JSON object.
    """
    path = evidence or RunFolder(run).evidence
    if evidence is None and run.is_dir() and not path.exists():
        print(json.dumps({"records": []}) if json_output else f"No evidence against any peer was recorded in {run}.")
        return 0
    from learner.audit.replay import replay  # imports jax

    try:
        found = replay(path, run)
    except OSError as error:
        raise RunFolderError(
            f"{path} cannot be read",
            cause=error.strerror or "",
            fix="give the learner's run folder, or the file of evidence after it",
        ) from None
    rows = [
        {
            "rollout_id": one.record.rollout_id,
            "step": one.record.step,
            "peers": sorted({part.peer_id for part in one.record.parts}),
            "recorded_nats": one.record.worst_nats,
            "replayed_nats": one.worst_nats,
            "verdict": "not replayed" if one.worst_nats is None else "confirmed" if one.confirmed else "not confirmed",
        }
        for one in found
    ]
    if json_output:
        print(json.dumps({"records": rows}))
    else:
        for row in rows:
            replayed = "a version is not kept" if row["replayed_nats"] is None else f"{row['replayed_nats']:.3g} nats"
            print(
                f"rollout {row['rollout_id']}  {row['recorded_nats']:.3g} nats  replayed: {replayed}  {row['verdict']}"
            )
        print(f"{len(rows)} records; their chain of hashes is complete")
    return 1 if any(row["verdict"] == "not confirmed" for row in rows) else 0
