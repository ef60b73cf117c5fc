"""Predicted against a real local run: one run is calibrated, and another with fewer peers is predicted from it.

Both are runs of `rollcast up` with real processes. Engines and learner are slowed down to declared times
(bench/programs/throttled.py), so that a machine's other work changes little, and uplinks are capped, so that T_bcast
depends on who relays. Neither the declared times nor the second run's records are known to the prediction; the caps
are, as an operator knows his lines.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench import runs
from bench.machine import Outcome
from capacity.calibration import Calibration, Links, calibrate
from capacity.prediction import Prediction, predict
from capacity.run_records import read_run
from rollcast.cli.fleet import Fleet

_UPLINK_MBIT_S, _ORIGIN_MBIT_S = 1.0, 2.0
_BYTES = 1e6 / 8.0  # per second, of 1 Mbit/s

#: A small policy, short steps; everything else is the shipped configuration.
_SMALL = [
    "coordinator.run.groups_per_step=8",
    "coordinator.run.samples_per_group=4",
    "coordinator.held_out_problems=32",
    "learner.model.width=64",
    "learner.model.feed_forward_width=128",
    "learner.warm_start.steps_max=50",
    "learner.warm_start.flawed_steps=0",
    "learner.evaluation_problems=32",
    "learner.publish.chunk_size_bytes=8192",
    "peer.engine.concurrent_rollouts=4",
    "peer.link.lan_exempt=false",
    f"peer.link.upload_mbit_s_max={_UPLINK_MBIT_S}",
    "origin.link.lan_exempt=false",
    f"origin.link.upload_mbit_s_max={_ORIGIN_MBIT_S}",
]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, default=Path("configs/local.toml"))
    parser.add_argument("--peers", type=int, default=3, help="of the run that is calibrated (--local)")
    parser.add_argument("--fewer-peers", type=int, default=2, help="of the run that is predicted (--local)")
    parser.add_argument("--local-steps", type=int, default=70, help="learner steps of each run (--local)")
    parser.add_argument("--local-warm-up", type=int, default=20, help="steps that are not looked at (--local)")
    parser.add_argument("--token-s", type=float, default=0.2, help="of an engine (--local)")
    parser.add_argument("--train-s", type=float, default=1.5, help="of a learner step (--local)")


def run(arguments: argparse.Namespace) -> Outcome:
    first, second = (_measure(arguments, peers) for peers in (arguments.peers, arguments.fewer_peers))
    predicted = predict_with(first, arguments.fewer_peers, LINKS)
    utilisation = predicted.utilisation * first.busy_share
    figures = {
        "local_error_utilisation": abs(utilisation - second.utilisation) / second.utilisation,
        "local_error_t_bcast": abs(predicted.t_bcast_s - second.t_bcast_s.value) / second.t_bcast_s.value,
        "local_error_mean_staleness": abs(predicted.mean_staleness - second.mean_age) / second.mean_age,
        "utilisation_predicted": utilisation,
        "utilisation": second.utilisation,
        "utilisation_calibrated": first.utilisation,
        "t_bcast_predicted_s": predicted.t_bcast_s,
        "t_bcast_s": second.t_bcast_s.value,
        "t_bcast_calibrated_s": first.t_bcast_s.value,
        "mean_staleness_predicted": predicted.mean_staleness,
        "mean_staleness": second.mean_age,
        "t_train_calibrated_s": first.t_train_s.value,
        "t_train_s": second.t_train_s.value,
        "mu_calibrated_per_s": _mean_rate(first),
        "mu_per_s": _mean_rate(second),
    }
    settings: dict[str, Any] = {
        name: getattr(arguments, name)
        for name in ("peers", "fewer_peers", "local_steps", "local_warm_up", "token_s", "train_s")
    }
    return Outcome(settings, figures)


LINKS = Links(source=_ORIGIN_MBIT_S * _BYTES, upload=_UPLINK_MBIT_S * _BYTES)


def predict_with(calibration: Calibration, peers: int, links: Links) -> Prediction:
    """What so many peers, each as fast as those that were calibrated are on average, would make of the run."""
    demand, conduct = calibration.with_bcast(links, len(calibration.peers))
    workers = calibration.workers(links)
    return predict(demand, [workers[number % len(workers)] for number in range(peers)], conduct)


def _mean_rate(calibration: Calibration) -> float:
    return sum(peer.speed.rollouts_per_second for peer in calibration.peers) / len(calibration.peers)


class _Throttled(runs.Story):
    """Starts peers and learner as programs that take their time."""

    def __init__(self, token_s: float, train_s: float) -> None:
        super().__init__()
        self._token_s, self._train_s = token_s, train_s

    def begin(self, fleet: Fleet) -> None:
        program = [sys.executable, "-m", "bench.programs.throttled"]
        fleet.programs["learner"] = [*program, str(self._train_s)]
        for number in range(1, fleet.config.peers + 1):
            fleet.programs[f"peer-{number}"] = [*program, str(self._token_s)]


def _measure(arguments: argparse.Namespace, peers: int) -> Calibration:
    steps = arguments.local_steps
    settings = [*_SMALL, f"peers={peers}", f"coordinator.run.steps={steps}"]
    with tempfile.TemporaryDirectory(prefix="rollcast-bench-") as folder:
        summary = runs.run(arguments.config, Path(folder), settings, _Throttled(arguments.token_s, arguments.train_s))
        records = read_run(Path(summary["run_folder"]))
    found = calibrate(records.between(arguments.local_warm_up, steps + 1))
    print(f"{peers} peers: {asdict(found)}", file=sys.stderr)
    return found
