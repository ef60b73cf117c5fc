"""Compare predictions with real local runs: the second half of a run from its first half, and a run with fewer peers.

All are runs of `rollcast up` with real processes and groups of 8, at both conducts at a new version. Engines and
learner are slowed down to declared times (bench/programs/throttled.py), so that a machine's other work changes little,
and uplinks are capped, so that T_bcast depends on which peers relay. The prediction is not given the declared times; it
is given the caps, as an operator knows the lines.

``local_continue_error_*`` and ``local_finish_error_*``: the first half of a run is calibrated, its second half
predicted. ``local_fewer_error_*``: the whole run with "continue" is calibrated, and one with fewer peers predicted.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import runs
from bench.machine import Outcome
from capacity.inputs.calibration import Calibration, Links, calibrate
from capacity.inputs.run_records import RunRecords, read_run
from capacity.predict.prediction import Prediction, predict
from rollcast.cli.processes import Fleet
from rollcast.wire.version_swap import AtVersionSwap

_UPLINK_MBIT_S, _ORIGIN_MBIT_S = 1.0, 2.0
_BYTES = 1e6 / 8.0  # per second, of 1 Mbit/s
_CONDUCTS: tuple[AtVersionSwap, ...] = ("continue", "finish")

#: A small policy, short steps; everything else is the shipped configuration.
_SMALL = [
    "coordinator.run.groups_per_step=4",
    "coordinator.run.samples_per_group=8",
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
    parser.add_argument("--peers", type=int, default=3, help="peers of the calibrated run (--local)")
    parser.add_argument("--fewer-peers", type=int, default=2, help="peers of the predicted run, 0: none (--local)")
    parser.add_argument("--local-steps", type=int, default=70, help="learner steps of each run (--local)")
    parser.add_argument("--local-warm-up", type=int, default=20, help="first steps, which do not count (--local)")
    parser.add_argument("--token-s", type=float, default=0.2, help="declared seconds per token of an engine (--local)")
    parser.add_argument("--train-s", type=float, default=1.5, help="declared seconds of a learner step (--local)")


def run(arguments: argparse.Namespace) -> Outcome:
    begin, end = arguments.local_warm_up, arguments.local_steps + 1
    middle = (begin + end) // 2
    figures: dict[str, float] = {}
    whole: dict[AtVersionSwap, Calibration] = {}
    for at_swap in _CONDUCTS:
        records = _records(arguments, arguments.peers, at_swap)
        halves = calibrate(records.between(begin, middle)), calibrate(records.between(middle, end))
        figures |= _compared(f"local_{at_swap}", *halves)
        whole[at_swap] = calibrate(records.between(begin, end))
    if arguments.fewer_peers:
        fewer = _records(arguments, arguments.fewer_peers, "continue")
        figures |= _compared("local_fewer", whole["continue"], calibrate(fewer.between(begin, end)))
    settings: dict[str, Any] = {
        name: getattr(arguments, name)
        for name in ("peers", "fewer_peers", "local_steps", "local_warm_up", "token_s", "train_s")
    }
    return Outcome(settings, figures)


def _compared(name: str, calibrated: Calibration, found: Calibration) -> dict[str, float]:
    """Return the errors of the figures predicted from one calibration, relative to those that the other one found."""
    predicted = predict_with(calibrated, len(found.peers), LINKS)
    pairs = {
        "utilisation": (predicted.utilisation * calibrated.busy_share, found.utilisation),
        "t_bcast": (predicted.t_bcast_s, found.t_bcast_s.value),
        "mean_staleness": (predicted.mean_staleness, found.mean_age),
    }
    figures = {f"{name}_error_{key}": abs(said - was) / was for key, (said, was) in pairs.items()}
    for key, (said, was) in pairs.items():
        figures |= {f"{name}_{key}_predicted": said, f"{name}_{key}_measured": was}
    for kind, one in (("calibrated", calibrated), ("measured", found)):
        figures |= {f"{name}_t_train_s_{kind}": one.t_train_s.value, f"{name}_mu_per_s_{kind}": _mean_rate(one)}
    return figures


LINKS = Links(source=_ORIGIN_MBIT_S * _BYTES, upload=_UPLINK_MBIT_S * _BYTES)


def predict_with(calibration: Calibration, peers: int, links: Links) -> Prediction:
    """Predict the run with ``peers`` peers, each taken in turn from those of the calibration."""
    demand, conduct = calibration.with_bcast(links, len(calibration.peers))
    workers = calibration.workers(links)
    return predict(demand, [workers[number % len(workers)] for number in range(peers)], conduct)


def _mean_rate(calibration: Calibration) -> float:
    return sum(peer.speed.rollouts_per_second for peer in calibration.peers) / len(calibration.peers)


class _Throttled(runs.Story):
    """A story that starts peers and learner as programs slowed down to declared times."""

    def __init__(self, token_s: float, train_s: float) -> None:
        super().__init__()
        self._token_s, self._train_s = token_s, train_s

    def begin(self, fleet: Fleet) -> None:
        program = [sys.executable, "-m", "bench.programs.throttled"]
        fleet.programs["learner"] = [*program, str(self._train_s)]
        for number in range(1, fleet.config.peers + 1):
            fleet.programs[f"peer-{number}"] = [*program, str(self._token_s)]


def _records(arguments: argparse.Namespace, peers: int, at_swap: AtVersionSwap) -> RunRecords:
    settings = [
        *_SMALL,
        f"peers={peers}",
        f"coordinator.run.steps={arguments.local_steps}",
        f"coordinator.lease.at_version_swap={at_swap}",
    ]
    story = _Throttled(arguments.token_s, arguments.train_s)
    with tempfile.TemporaryDirectory(prefix="rollcast-bench-") as folder:
        summary = runs.run(arguments.config, Path(folder), settings, story)
        return read_run(Path(summary["run_folder"]))
