"""Make the dashboard's views of a busy run, for tests of pages, with the same random figures each time."""

from __future__ import annotations

import math
import random
from typing import Any

from tests.coordinator.sample_status import sample_status, split_means

REGIONS = ("eu-west", "us-east", "us-west", "ap-south", "sa-east", "lab")
HARDWARE = ("RTX 4090, 24 GB", "H100, 80 GB", "A10, 24 GB", "cpu, 16 cores", "TPU v5e-4", "RTX 3090, 24 GB")
HISTORY_UNITS = {
    "tokens_per_s": ("tokens/s", 4120.0, 310.0),
    "version_lag": ("versions", 0.4, 5.0),
    "t_bcast_s": ("s", 1.9, 7.4),
    "accept_share": ("share", 0.982, 0.61),
    "last_seen_s": ("s", 0.6, 5.2),
    "upload_bytes_per_s": ("bytes/s", 6.1e6, 0.78e6),
    "age_steps": ("steps", 1.3, 4.0),
    "learner_utilisation": ("share", 0.91, None),
    "usd_per_hour": ("USD/h", 14.2, None),
    "mismatch_kl": ("nats/token", 3e-4, 4e-3),
}
NOW_UNIX_S = 1_795_000_000.0


def alert(severity: str, text: str, **changes: Any) -> dict[str, Any]:
    """Return one alert."""
    return {
        "id": text[:12],
        "severity": severity,
        "text": text,
        "fix": "",
        "since_s": 41.0,
        "page": "workers",
        "subject": "",
        **changes,
    }


def sample_overview(**changes: Any) -> dict[str, Any]:
    """Return an overview after 87 of 200 steps, with one peer lost."""
    status = sample_status()
    del status["peers"]
    sentence = (
        "Waiting for 3 of 32 groups for the batch of step 88, since 0.8 s: 19 rollouts are still being generated; "
        "step 88 is trained as soon as they are scored."
    )
    return {
        **status,
        "learner_profile": {
            "profile_id": "9f2c11aa",
            "stage": "saved",
            "steps": 3,
            "first_step": 71,
            "steps_done": 3,
            "folder": "/data/runs/learner/profiles/step-000071",
            "size_bytes": 3_400_000,
            "failure": "",
        },
        "workers": {
            "on": 41,
            "idle": 2,
            "standby": 6,
            "lost": 1,
            "quarantined": 1,
            "drained": 2,
            "banned": 0,
            "total": 51,
        },
        "usd_per_hour": 14.2,
        "usd_per_accepted_rollout": 0.00061,
        "spent_usd": 31.7,
        "alerts": [
            alert(
                "critical",
                "peer-3 is lost: silent for 5.2 s",
                fix="Its leases were given out again; look at its log.",
                subject="peer-3",
            ),
            alert("warning", "peer-5 takes four times as long as the median to receive a version", page="broadcast"),
        ],
        "waiting": {
            "for": "3 of 32 groups, 19 rollouts still being generated",
            "since_s": 0.8,
            "next": "step 88 is trained as soon as they are scored",
            "sentence": sentence,
        },
        **changes,
    }


def sample_history(points: int = 240, every_s: float = 5.0) -> dict[str, Any]:
    """Return the history of the last ``points * every_s`` seconds."""
    source = random.Random(7)
    times = [NOW_UNIX_S - every_s * (points - 1 - index) for index in range(points)]
    series = {}
    for number, (name, (unit, mean, worst)) in enumerate(HISTORY_UNITS.items()):
        waves = [1 + 0.09 * math.sin(index / 9 + number) + 0.04 * source.gauss(0, 1) for index in range(points)]
        series[name] = {
            "unit": unit,
            "mean": [min(mean * wave, 1.0) if unit == "share" else mean * wave for wave in waves],
            "worst": [None if worst is None else worst * (1 + 0.15 * source.gauss(0, 1)) for _ in range(points)],
            "worst_who": ["" if worst is None else f"peer-{3 + index // 60}" for index in range(points)],
        }
    return {"times_unix_s": times, "series": series}


STEP_COLUMNS = (
    *("step", "version", "newest_version", "loss", "reward", "reward_mean", "grad_norm", "ratio_mean", "clip_fraction"),
    *("kl_k3", "reference_kl", "entropy", "mismatch_kl_k3", "kl_k3_worst", "kl_k3_worst_peer"),
    *("kl_k3_worst_name", "tokens"),
    *("train_s", "behaviour_s", "compile_s", "wait_s", "publish_s", "checkpoint_s", "other_s", "step_s", "epoch"),
    *("learning_rate", "staleness_max_trained", "age_split", "t_bcast_last_s", "tokens_per_s", "peers", "elapsed_s"),
    *("eval_held_out_pass_at_1", "eval_held_out_pass_at_1_low", "eval_held_out_pass_at_1_high"),
    *("eval_held_out_pass_at_8", "eval_held_out_pass_at_8_low", "eval_held_out_pass_at_8_high"),
)


STEP_TIMES = {
    "train_s": 0.9,
    "behaviour_s": 0.2,
    "compile_s": 0.0,
    "wait_s": 0.1,
    "publish_s": 0.02,
    "checkpoint_s": 0.01,
    "other_s": 0.03,
    "step_s": 1.26,
}


def _step_row(step: int, source: random.Random, best: float) -> dict[str, Any]:
    share = 1 - math.exp(-step / 38)
    reward = min(0.99, 0.34 + (best - 0.34) * share + 0.03 * source.gauss(0, 1))
    row: dict[str, Any] = {
        "step": step,
        "version": step,
        "newest_version": step,
        "loss": -0.01 + 0.02 * source.gauss(0, 1),
        "reward": reward,
        "reward_mean": reward,
        "grad_norm": 0.4 + 0.4 * math.exp(-step / 30) + 0.06 * abs(source.gauss(0, 1)),
        "learning_rate": 1e-6 * min(1.0, step / 20),
        "ratio_mean": 1 + 0.004 * source.gauss(0, 1),
        "clip_fraction": 0.02 + 0.01 * abs(source.gauss(0, 1)),
        "kl_k3": 0.002 + 0.001 * abs(source.gauss(0, 1)),
        "reference_kl": 0.4 * share,
        "entropy": 1.4 * math.exp(-step / 70) + 0.02 * source.gauss(0, 1),
        "mismatch_kl_k3": 3e-4 + 1e-4 * abs(source.gauss(0, 1)),
        "kl_k3_worst": 9e-4 + 4e-4 * abs(source.gauss(0, 1)),
        "kl_k3_worst_peer": "12D3KooWExampleExampleExampleExampleExample" + ("peerA", "peerB")[step // 50 % 2],
        "kl_k3_worst_name": ("garage", None)[step // 50 % 2],
        "tokens": 52_000 + 900 * source.gauss(0, 1),
        **STEP_TIMES,
        "epoch": 0,
        "staleness_max_trained": min(4, step // 3),
        "age_split": split_means(256, 1.3 + 0.3 * source.random()),
        "t_bcast_last_s": 1.9,
        "tokens_per_s": 168_000.0,
        "peers": 41,
        "elapsed_s": 1.26 * step,
    }
    if step % 10 == 0:
        for k, gain in ((1, 0.0), (8, 0.12)):
            value = min(0.97, reward + gain)
            row |= {f"eval_held_out_pass_at_{k}": value, f"eval_held_out_pass_at_{k}_low": value - 0.04}
            row[f"eval_held_out_pass_at_{k}_high"] = min(1.0, value + 0.03)
    return row


def sample_steps(run: str = "local", steps: int = 87, best: float = 0.92, from_step: int = 0) -> dict[str, Any]:
    """Return the lines of metrics.jsonl in columns."""
    source = random.Random(run)
    rows = [_step_row(step, source, best) for step in range(1, steps + 1)]
    return {
        "run": run,
        "columns": list(STEP_COLUMNS),
        "rows": [[row.get(name) for name in STEP_COLUMNS] for row in rows if row["step"] >= from_step],
    }


def sample_runs() -> dict[str, Any]:
    """Return the run and two earlier ones."""
    names = (("local", True, 87), ("local-20260313-221904", False, 200), ("local-20260312-080011", False, 64))
    return {
        "runs": [
            {"name": name, "current": current, "steps": steps, "began_unix_s": NOW_UNIX_S - 86_400 * day}
            for day, (name, current, steps) in enumerate(names)
        ]
    }
