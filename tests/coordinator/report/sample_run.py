"""Write a small run's folder: a ledger with two peers, a line per step, a summary."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

from coordinator.stores.sqlite_schema import migrate
from rollcast.runtime.run_folder import RunFolder

ANN, BOB = "12D3KooWAnnAnnAnnAnn", "12D3KooWBobBobBobBob"


def sample_run(root: Path, *, steps: int = 40, name: str = "sums", over: bool = True) -> RunFolder:
    """Write a run in which peer ann had three rollouts trained, bob one, and bob one dropped for its age."""
    folder = RunFolder(root).prepare()
    with sqlite3.connect(folder.ledger) as connection:
        migrate(connection)
        connection.execute("INSERT INTO groups VALUES (1, 'p', x'00', '', '{}', NULL, '', 1)")
        fates = [(ANN, "trained", None)] * 3 + [(BOB, "trained", None), (BOB, "dropped", "too_old")]
        for index, (peer_id, state, reason) in enumerate(fates):
            connection.execute(
                "INSERT INTO attempts (lease_id, sample_index, fencing_token, group_id, seed, peer_id, state,"
                " closed_reason) VALUES (1, ?, 0, 1, 0, ?, ?, ?)",
                (index, peer_id, state, reason),
            )
        events = [
            ("peer_joined", ANN, "ann as peer"),
            ("peer_joined", BOB, f"{name} as peer"),
            ("learner_waited", "step 1", "[]"),
        ]
        for at, (kind, subject, detail) in enumerate(events):
            connection.execute("INSERT INTO events VALUES (NULL, ?, ?, ?, ?, 'test')", (at, kind, subject, detail))
    connection.close()
    lines = [
        {
            "step": step,
            "reward": step / steps,
            "loss": 1.0 / step,
            "kl_k3": 0.01,
            "train_s": 1.0,
            "wait_s": 0.2,
            "tokens_per_s": 100.0,
            "staleness_histogram": {"0": 3, "2": 5},
            "kl_k3:peer": 0.5,
        }
        if step % 10
        else {"step": step, "reward": step / steps, "eval_held_out_pass_at_1": 0.5}
        for step in range(1, steps + 1)
    ]
    lines[-1] |= {"staleness_histogram": {"0": 3, "2": 5}}
    folder.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 4')
    (folder.config / "coordinator.json").write_text(
        json.dumps({"run": {"name": name, "steps": steps, "staleness_limit": 4}})
    )
    if over:
        split = {"train_s": 0.1, "broadcast_s": 0.2, "queue_s": 0.3, "generate_s": 0.4, "return_s": 0.1}
        rollouts = {"issued": 5, "accepted": 5, "trained": 4, "open": 0, "dropped": {"too_old": 1}}
        folder.summary.write_text(
            json.dumps(
                {
                    "run_name": name,
                    "run_id": "sums-1",
                    "phase": "finished",
                    "ended_because": "finished",
                    "step": steps,
                    "steps": steps,
                    "reward_before": 0.3,
                    "reward_after": 0.9,
                    "staleness_limit": 4,
                    "staleness": {"split": split},
                    "rollouts": rollouts,
                    "wall_s": 60.0,
                }
            )
        )
    return folder
