"""Test the whole loop with real processes: kills, a corrupting relay, a late peer, a clean stop."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from bench.hub.small_model import MODEL, sums, write_problems, write_tokenizer, write_weights
from learner.evaluation.export import export
from rollcast.cli.files import load
from rollcast.cli.processes import Endpoints, Fleet
from rollcast.cli.run.evaluate import evaluate
from rollcast.cli.up import new_run_folder
from rollcast.cli.up_config import UpConfig
from rollcast.cli.watch import run_fleet
from rollcast.policy.hub.load import load_params
from rollcast.policy.params import initial_params
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.text.hub_tokenizer import HubTokenizer
from rollcast.wire.text.tokenizer import Tokenizer
from rollcast.wire.token_ids import unpack_ids
from tests.conftest import COMPILATION_CACHE
from tests.e2e.slow_peer import slow_down

ROOT = Path(__file__).parents[2]
CORRUPTING, DYING, SLOW = (
    [sys.executable, str(Path(__file__).with_name(f"{kind}_peer.py"))] for kind in ("corrupting", "dying", "slow")
)

STEPS = 60
SLICE_S = 0.3  # that a slow peer waits with each slice
STOP_STRING = "77"

#: Small enough for seconds; everything else is the shipped configuration.
SMALL = [
    "coordinator.run.groups_per_step=16",
    "coordinator.run.samples_per_group=4",
    "coordinator.held_out_problems=64",
    "coordinator.membership.heartbeat_timeout_s=3.0",
    "coordinator.serve.http_port=0",
    "learner.model.width=64",
    "learner.model.feed_forward_width=128",
    "learner.warm_start.examples=1024",
    "learner.warm_start.steps_max=50",
    "learner.warm_start.flawed_steps=0",
    "learner.evaluation_problems=64",
    "learner.publish.chunk_size_bytes=8192",
    "learner.checkpoint.every_steps=20",
    "peer.engine.concurrent_rollouts=8",  # at most a quarter of a step per peer, so that all get work
    "peer.link.stall_timeout_s=1.0",
    f'learner.compilation_cache="{COMPILATION_CACHE}"',
    f'peer.engine.compilation_cache="{COMPILATION_CACHE}"',
]


def make_fleet(folder: Path, *settings: str) -> Fleet:
    config = load(ROOT / "configs" / "local.toml", "up", [f'runs_folder="{folder}"', *SMALL, *settings])
    assert isinstance(config, UpConfig)
    return Fleet(config, new_run_folder(config))


class Trouble:
    """The faults of the run: a corrupting peer first, then the others, and one more when the dying peer is dead.

    All peers generate slowly until the corrupting one is detected and the others have accepted rollouts: starting a
    peer takes many seconds, a step a twentieth of one, and the run would be over first. How long that takes depends on
    the machine's other load, and on who relays a version to whom: the peers get slower with every sixth of the run.
    Then, half way, the coordinator is killed.
    """

    def __init__(self, fleet: Fleet, slow: Path) -> None:
        self.fleet = fleet
        self.slow = slow
        slow_down(slow, SLICE_S)
        self.others_started = self.replaced = self.coordinator_killed = False
        self.quarantined: set[str] = set()

    def on_status(self, status: Mapping[str, Any], ended: Mapping[str, int]) -> None:
        peers = {peer["name"]: peer for peer in status["peers"]}
        self.quarantined |= {name for name, peer in peers.items() if peer["quarantined"]}
        if not self.others_started and "peer-1" in peers:  # the corrupting peer joins first, so that it relays
            self.others_started = True
            self.fleet.add_peer("peer-2")
            self.fleet.add_peer("peer-3")
        if not self.replaced and ended.get("peer-2") == -signal.SIGKILL:
            self.replaced = True
            self.fleet.add_peer("peer-late")
        worked = {name for name, peer in peers.items() if peer["accepted"]}
        if self.quarantined and worked >= {"peer-3", "peer-late"}:
            self.slow.unlink(missing_ok=True)
        elif self.slow.exists():
            slow_down(self.slow, SLICE_S * 2.0 ** (6 * int(status["step"]) // STEPS))
        if not self.slow.exists() and not self.coordinator_killed and int(status["step"]) >= STEPS // 2:
            self.coordinator_killed = True
            self.fleet.kill("coordinator")


@pytest.mark.e2e
@pytest.mark.timeout(400)
def test_the_run_survives_a_corrupting_relay_and_a_killed_peer_and_coordinator(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = "coordinator.store.margin_steps=1000"  # keeps each rollout's peer for the checks afterwards
    stop = f'coordinator.sampling.stop_strings=["{STOP_STRING}"]'
    fleet = make_fleet(tmp_path, f"coordinator.run.steps={STEPS}", "peers=1", kept, stop)
    slow = tmp_path / "slow"
    fleet.programs |= {"peer-1": [*CORRUPTING, str(slow)], "peer-2": DYING}
    fleet.programs |= {name: [*SLOW, str(slow)] for name in ("peer-3", "peer-late")}
    trouble = Trouble(fleet, slow)

    async def follow() -> bool:
        return await run_fleet(fleet, lambda _endpoints: None, trouble.on_status, asyncio.Event())

    try:
        assert asyncio.run(follow())
    finally:
        fleet.kill_all()

    assert trouble.replaced
    assert trouble.quarantined == {"peer-1"}
    assert fleet.restarts == {"coordinator": 1}
    summary = json.loads(fleet.folder.summary.read_text())
    rollouts = summary["rollouts"]
    assert summary["staleness_max_trained"] <= summary["staleness_limit"]
    assert rollouts["trained"] == STEPS * 16 * 4
    assert rollouts["open"] == 0
    assert rollouts["issued"] == rollouts["trained"] + sum(rollouts["dropped"].values())
    again = rollouts["dropped"].get("lease_expired", 0) + rollouts["dropped"].get("late_duplicate", 0)
    assert again > 0, "what the dead peer held went to others"
    assert {"reward_before", "reward_after", "peer_byte_share", "learner_utilisation", "wall_s"} <= set(summary)
    assert len(fleet.folder.metrics.read_text().splitlines()) == STEPS
    assert fleet.folder.reward_plot.stat().st_size > 1000
    with closing(sqlite3.connect(fleet.folder.ledger)) as database:
        (trained,) = database.execute("SELECT count(DISTINCT rollout_id) FROM batch_rollouts").fetchone()
        (gone,) = database.execute("SELECT coalesce(sum(count), 0) FROM compacted WHERE kind = 'trained'").fetchone()
        assert trained + gone == STEPS * 16 * 4
        (workers,) = database.execute("SELECT count(DISTINCT peer_id) FROM rollouts").fetchone()
        assert 2 <= workers <= 3  # the dead peer did nothing, and the corrupting one little
        quarantined = database.execute("SELECT reason FROM quarantines").fetchall()
        assert [reason.partition(":")[0] for (reason,) in quarantined] == ["sent a corrupt chunk"]
        _assert_stop_strings_end_rollouts(database)
    assert {name for name, status in fleet.ended().items() if status == 0} >= {"coordinator", "learner", "origin"}
    assert fleet.ended()["peer-3"] == fleet.ended()["peer-late"] == 0

    assert evaluate(fleet.folder.root, problems=16, json_output=True) == 0
    evaluation = json.loads(capsys.readouterr().out)
    found = evaluation["sets"]["held_out"]
    assert (evaluation["step"], found["problems"]) == (STEPS, 16)
    assert 0.0 <= found["pass_at"]["1"]["mean"] <= found["pass_at"]["8"]["mean"] <= 1.0


def _assert_stop_strings_end_rollouts(database: sqlite3.Connection) -> None:
    """Check that a rollout ends with the token that completes a stop string, and otherwise as usual."""
    (kept,) = database.execute("SELECT value FROM meta WHERE key = 'tokenizer'").fetchone()
    tokenizer = Tokenizer.from_json(kept)
    rollouts = [pb.Rollout.FromString(body) for (body,) in database.execute("SELECT body FROM rollouts")]
    by_text = 0
    for rollout in rollouts:
        tokens = [token for segment in rollout.segments for token in unpack_ids(segment.packed_ids)]
        assert STOP_STRING not in tokenizer.decode(tokens[:-1])
        if tokens[-1] != tokenizer.eos_id and STOP_STRING in tokenizer.decode(tokens):
            by_text += 1
            assert rollout.finish_reason == pb.STOP
        else:
            assert rollout.finish_reason == (pb.STOP if tokens[-1] == tokenizer.eos_id else pb.LENGTH)
    assert by_text > 0


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_ctrl_c_stops_a_run_of_a_published_model_in_order(tmp_path: Path) -> None:
    published = tmp_path / "model"
    command = [sys.executable, "-m", "rollcast.cli.main", "up", str(ROOT / "configs" / "local.toml"), "--plain"]
    settings = [
        *SMALL,
        *_published_model(published),
        f'runs_folder="{tmp_path}"',
        "coordinator.run.steps=100000",
        "learner.warm_start.steps_max=0",
    ]
    for setting in settings:
        command += ["--set", setting]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        run = _await_training(process, tmp_path)
        children = psutil.Process(process.pid).children(recursive=True)
        endpoints = Endpoints(**json.loads((run / "endpoints.json").read_text()))
        assert len(children) >= 5
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    _gone, alive = psutil.wait_procs(children, timeout=5)
    assert not alive
    summary = json.loads((run / "summary.json").read_text())
    assert summary["phase"] == "stopped"
    rollouts = summary["rollouts"]
    assert rollouts["issued"] == rollouts["trained"] + rollouts["open"] + sum(rollouts["dropped"].values())
    _assert_port_is_free(endpoints)

    export(run, tmp_path / "exported")
    assert HubTokenizer(tmp_path / "exported") == HubTokenizer(published)
    before, after = (load_params(MODEL, folder) for folder in (published, tmp_path / "exported"))
    assert all(np.array_equal(before[name], after[name]) for name in before), "an untaught model earns no reward"


def _published_model(folder: Path) -> list[str]:
    """Write an untaught model as on the Hugging Face Hub, and return the settings of a run that starts from it."""
    folder.mkdir()
    write_tokenizer(folder)
    write_weights(folder, initial_params(MODEL, seed=1))
    write_problems(folder / "sums.jsonl", sums(1)[:500])
    return [
        "peers=1",
        f'coordinator.task={{ kind = "jsonl", path = "{folder}/sums.jsonl", check = {{ kind = "exact" }} }}',
        f'coordinator.tokenizer.folder="{folder}"',
        "coordinator.sampling.prompt_tokens_max=24",
        f'learner.init_from="{folder}"',
    ]


def _await_training(process: subprocess.Popen[str], runs_folder: Path) -> Path:
    """Read the plain view until the first steps are done; returns the run folder."""
    assert process.stdout is not None
    end = time.monotonic() + 120
    for text in process.stdout:
        assert time.monotonic() < end, "no training within two minutes"
        if "training: step" in text and "training: step 0/" not in text:
            return (runs_folder / "latest").resolve()
    raise AssertionError("rollcast up ended by itself")


def _assert_port_is_free(endpoints: Endpoints) -> None:

    host, _, port = endpoints.grpc_address.rpartition(":")
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, int(port)))
