from __future__ import annotations

import asyncio
import sys
from itertools import repeat
from pathlib import Path

import pytest

from coordinator.config.config import CoordinatorConfig
from learner.config import LearnerConfig
from peer.config import PeerConfig
from rollcast.cli import processes
from rollcast.cli.files import load
from rollcast.cli.processes import Fleet, Restart, accelerators_here, device_shares
from rollcast.cli.up import new_run_folder
from rollcast.cli.up_config import DevicesConfig, UpConfig, with_full_keys
from rollcast.policy.sizing.device_shares import Accelerators
from rollcast.runtime.config import load_config
from rollcast.runtime.errors import ProcessFailed, WaitTimedOut
from rollcast.wire.joining.invite import QUOTA_DEFAULT

CONFIGS = Path(__file__).parents[2] / "configs"

#: Stands for the coordinator: argv is role, config, --log-file, path, --with-parent.
COORDINATOR = """
import json, pathlib, sys, time, tomllib
root = pathlib.Path(tomllib.load(open(sys.argv[2], "rb"))["run_folder"])
url = "http://127.0.0.1:1"
(root / "endpoints.tmp").write_text(json.dumps({"http_url": url, "grpc_address": "127.0.0.1:2", "page_url": url}))
(root / "endpoints.tmp").rename(root / "endpoints.json")
time.sleep(60)
"""
SLEEP = "import time; time.sleep(60)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('{deaf}', flush=True); time.sleep(60)"
FAIL = "import sys; print('{\"event\": \"a log line\"}'); print('RC302: the key is wrong'); sys.exit(77)"


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    settings = [f'runs_folder="{tmp_path}"', "stop_timeout_s=1", "start_timeout_s=10", "peers=1"]
    config = load(CONFIGS / "local.toml", "up", settings)
    assert isinstance(config, UpConfig)
    found = Fleet(config, new_run_folder(config))
    for name, code in (("coordinator", COORDINATOR), ("learner", SLEEP), ("origin", SLEEP), ("peer-1", SLEEP)):
        found.programs[name] = [sys.executable, "-c", code]
    return found


def latest(fleet: Fleet) -> Path:
    return fleet.folder.root.parent / "latest"


def test_prepare_resolves_every_process(fleet: Fleet) -> None:
    fleet.prepare()
    names = {path.name for path in fleet.folder.config.iterdir()}
    assert names == {"up.json", "coordinator.toml", "learner.toml", "origin.toml", "peer-1.toml"}
    peer = load_config(fleet.folder.config / "peer-1.toml", PeerConfig)
    assert peer.name == "peer-1"
    assert peer.invite_file == fleet.folder.secrets / "invite-peer.txt"
    joining = load_config(fleet.folder.config / "coordinator.toml", CoordinatorConfig).join
    assert joining.peers_max == QUOTA_DEFAULT + 1, "the run's own peer leaves the invite's quota to others"
    learner = load_config(fleet.folder.config / "learner.toml", LearnerConfig)
    assert learner.distributed.processes == 1, "a launcher's other tasks do not belong to this run"


@pytest.mark.parametrize(
    ("section", "said", "meant"),
    [
        ("coordinator", "set held_out_problems to at most 40", "set coordinator.held_out_problems to at most 40"),
        ("coordinator", "raise run.steps.", "raise coordinator.run.steps."),
        ("coordinator", "lower coordinator.run.steps", "lower coordinator.run.steps"),
        ("peer", "pass --set link.advertise=X", "pass --set peer.link.advertise=X"),
        ("peer", "raise held_out_problems", "raise held_out_problems"),
        ("learner", "see /tmp/init_from or x.init_from/y", "see /tmp/init_from or x.init_from/y"),
    ],
)
def test_keys_of_a_process_are_named_as_in_the_file_of_up(section: str, said: str, meant: str) -> None:
    assert with_full_keys(said, section) == meant


async def test_start_and_stop_leave_nothing(fleet: Fleet) -> None:
    fleet.prepare()
    endpoints = await fleet.start(asyncio.Event())
    assert endpoints is not None
    assert endpoints.grpc_address == "127.0.0.1:2"
    assert latest(fleet).resolve() == fleet.folder.root
    assert fleet.ended() == {}
    fleet.add_peer("late")
    await fleet.stop()
    assert set(fleet.ended()) == {"coordinator", "learner", "origin", "peer-1", "late"}


async def test_a_coordinator_that_stays_is_told_so_and_ends_with_the_fleet(fleet: Fleet) -> None:
    fleet.stay_s = 60.0
    fleet.prepare()
    assert load_config(fleet.folder.config / "coordinator.toml", CoordinatorConfig).serve.stay_s == 60.0
    await fleet.start(asyncio.Event())
    assert not fleet.stays(), "the run has no summary yet"
    fleet.folder.summary.write_text("{}")
    assert fleet.stays()
    await fleet.stop()
    assert not fleet.stays()


async def test_process_that_ignores_sigterm_is_killed(fleet: Fleet) -> None:
    fleet.programs["learner"] = [sys.executable, "-c", DEAF]
    fleet.prepare()
    await fleet.start(asyncio.Event())
    while "deaf" not in fleet.log_path("learner").read_text():
        fleet.check()
    await fleet.stop()
    assert fleet.ended()["learner"] == -9


async def test_failed_process_is_named_with_its_output(fleet: Fleet) -> None:
    fleet.programs["coordinator"] = [sys.executable, "-c", FAIL]
    fleet.prepare()
    with pytest.raises(ProcessFailed) as caught:
        await fleet.start(asyncio.Event())
    text = str(caught.value)
    assert "the coordinator ended with status 77" in text
    assert "RC302: the key is wrong" in text
    assert "a log line" not in text
    assert "coordinator.log" in text
    assert not latest(fleet).is_symlink(), "a run that did not start is not the newest one"


@pytest.mark.parametrize("name", ["coordinator", "learner", "origin"])
async def test_killed_process_is_restarted_a_limited_number_of_times(fleet: Fleet, name: str) -> None:
    told: list[Restart] = []
    fleet.on_restart = told.append
    fleet.restart_delays_s = lambda: repeat(0.0)
    fleet.config = fleet.config.model_copy(update={"restarts_max": 1})
    fleet.prepare()
    await fleet.start(asyncio.Event())
    killed = fleet.processes[name]
    fleet.kill(name)
    fleet.check()
    assert (fleet.ended(), told) == ({}, [Restart(name, -9, 0.0, 1, 1, fleet.log_path(name))])
    assert fleet.processes[name].args == killed.args
    fleet.kill(name)
    with pytest.raises(ProcessFailed, match=rf"the {name} ended with status -9 after 1 restarts \(restarts_max = 1\)"):
        fleet.check()
    await fleet.stop()


@pytest.mark.parametrize("name", ["coordinator", "learner", "origin", "peer-1"])
async def test_crashed_process_is_restarted_after_a_delay(fleet: Fleet, name: str) -> None:
    told: list[Restart] = []
    fleet.on_restart, fleet.restart_peers = told.append, True
    fleet.restart_delays_s = lambda: repeat(0.3)
    fleet.prepare()
    await fleet.start(asyncio.Event())
    program = fleet.programs[name]
    fleet.programs[name] = [sys.executable, "-c", "raise KeyError"]
    fleet.kill(name)
    fleet.restart(name)
    fleet.programs[name] = program
    crashed = fleet.processes[name]
    assert crashed.wait() == 1
    fleet.check()
    assert fleet.processes[name] is crashed, "it waits for its delay"
    assert fleet.ended() == {}, "the run is not over while it waits"
    line = f"{name} ended with status 1; restarting in 0.3 s (restart 1 of 10); log: {fleet.log_path(name)}"
    assert list(map(str, told)) == [line]
    await asyncio.sleep(0.35)
    fleet.check()
    assert fleet.processes[name] is not crashed
    await fleet.stop()


async def test_a_peer_that_dies_again_and_again_does_not_end_the_run(fleet: Fleet) -> None:
    fleet.restart_peers, fleet.restart_delays_s = True, lambda: repeat(0.0)
    fleet.config = fleet.config.model_copy(update={"restarts_max": 2})
    fleet.prepare()
    await fleet.start(asyncio.Event())
    for _ in range(3):
        fleet.kill("peer-1")
        fleet.check()
    assert (fleet.ended(), fleet.restarts) == ({"peer-1": -9}, {"peer-1": 2})
    await fleet.stop()


async def test_a_peer_that_the_run_goes_on_without_is_told_once(fleet: Fleet) -> None:
    told: list[ProcessFailed] = []
    fleet.restart_peers, fleet.on_loss = True, told.append
    fleet.programs["peer-1"] = [sys.executable, "-c", FAIL]
    fleet.prepare()
    await fleet.start(asyncio.Event())
    fleet.processes["peer-1"].wait()
    fleet.check()
    fleet.check()
    assert [failure.what for failure in told] == ["peer-1 ended with status 77"]
    assert "RC302: the key is wrong" in told[0].cause
    assert fleet.restarts.total() == 0
    await fleet.stop()


async def test_an_error_that_every_peer_has_ends_the_run_at_once(fleet: Fleet) -> None:
    fleet.restart_peers = True
    code = "import sys; print('RC603: vLLM cannot run it', 'fix: set engine.kind = 1', sep='\\n'); sys.exit(65)"
    fleet.programs["peer-1"] = [sys.executable, "-c", code]
    fleet.prepare()
    await fleet.start(asyncio.Event())
    fleet.processes["peer-1"].wait()
    with pytest.raises(ProcessFailed, match="peer-1 ended with status 65") as caught:
        fleet.check()
    assert "vLLM cannot run it\n    fix: set peer.engine.kind = 1" in caught.value.cause
    assert "section [peer]" in caught.value.fix
    await fleet.stop()


async def test_an_error_with_a_status_of_its_own_is_not_restarted(fleet: Fleet) -> None:
    fleet.programs["origin"] = [sys.executable, "-c", FAIL]
    fleet.prepare()
    await fleet.start(asyncio.Event())
    fleet.processes["origin"].wait()
    with pytest.raises(ProcessFailed, match="the origin ended with status 77\n"):
        fleet.check()
    await fleet.stop()


async def test_a_coordinator_that_crashes_before_it_listens_ends_the_run(fleet: Fleet) -> None:
    fleet.programs["coordinator"] = [sys.executable, "-c", "raise KeyError"]
    fleet.prepare()
    with pytest.raises(ProcessFailed, match="the coordinator ended with status 1\n"):
        await fleet.start(asyncio.Event())


async def test_coordinator_with_a_summary_is_not_restarted(fleet: Fleet) -> None:
    fleet.prepare()
    await fleet.start(asyncio.Event())
    fleet.folder.summary.write_text("{}")
    fleet.kill("coordinator")
    fleet.check()
    assert (fleet.ended(), fleet.restarts.total()) == ({"coordinator": -9}, 0)
    await fleet.stop()


async def test_stopped_process_is_not_restarted(fleet: Fleet) -> None:
    fleet.prepare()
    await fleet.start(asyncio.Event())
    fleet.processes["learner"].terminate()
    fleet.processes["learner"].wait()
    with pytest.raises(ProcessFailed, match="the learner ended with status -15"):
        fleet.check()
    await fleet.stop()


#: Loads for two seconds, reports so four times, and listens.
LOADING = """
import json, pathlib, sys, time, tomllib
root = pathlib.Path(tomllib.load(open(sys.argv[2], "rb"))["run_folder"])
for number in range(4):
    (root / "starting.tmp").write_text(json.dumps({"doing": f"loading the task: {number} rows read"}))
    (root / "starting.tmp").rename(root / "starting.json")
    time.sleep(0.5)
""" + COORDINATOR.replace("import json, pathlib, sys, time, tomllib", "(root / 'starting.json').unlink()")
STUCK = LOADING.replace("time.sleep(0.5)", "time.sleep(60)")


async def test_a_coordinator_that_reports_its_loading_is_waited_for(fleet: Fleet) -> None:
    doing: list[str] = []
    fleet.on_starting = doing.append
    fleet.config = fleet.config.model_copy(update={"start_timeout_s": 1.5})
    fleet.programs["coordinator"] = [sys.executable, "-c", LOADING]
    fleet.prepare()
    assert await fleet.start(asyncio.Event()) is not None
    await fleet.stop()
    assert doing == [f"loading the task: {number} rows read" for number in range(4)]


async def test_a_coordinator_whose_report_stays_the_same_times_out(fleet: Fleet) -> None:
    fleet.config = fleet.config.model_copy(update={"start_timeout_s": 1.0})
    fleet.programs["coordinator"] = [sys.executable, "-c", STUCK]
    fleet.prepare()
    try:
        with pytest.raises(WaitTimedOut, match="the coordinator does not listen"):
            await fleet.start(asyncio.Event())
    finally:
        await fleet.stop()


async def test_wait_for_a_silent_coordinator_times_out(fleet: Fleet) -> None:
    fleet.config = fleet.config.model_copy(update={"start_timeout_s": 0.2})
    fleet.programs["coordinator"] = [sys.executable, "-c", SLEEP]
    fleet.prepare()
    try:
        with pytest.raises(WaitTimedOut, match="the coordinator does not listen"):
            await fleet.start(asyncio.Event())
    finally:
        fleet.kill_all()


async def test_stop_is_honoured_while_starting(fleet: Fleet) -> None:
    fleet.programs["coordinator"] = [sys.executable, "-c", SLEEP]
    fleet.prepare()
    stop = asyncio.Event()
    stop.set()
    assert await fleet.start(stop) is None
    assert set(fleet.processes) == {"coordinator"}
    await fleet.stop()
    assert set(fleet.ended()) == {"coordinator"}


async def test_dead_peer_does_not_fail_the_run(fleet: Fleet) -> None:
    fleet.prepare()
    await fleet.start(asyncio.Event())
    fleet.kill("peer-1")
    fleet.check()
    assert fleet.ended() == {"peer-1": -9}
    await fleet.stop()


def test_the_devices_of_this_machine_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class TwoGpus:
        def devices(self) -> list[tuple[str, int, int]]:
            return [("L4", 1, 1)] * 2

    monkeypatch.setattr(processes.GpuSensors, "here", TwoGpus)
    assert accelerators_here({}, tmp_path) == Accelerators("gpu", ("0", "1"))
    assert accelerators_here({"CUDA_VISIBLE_DEVICES": "3, 5"}, tmp_path) == Accelerators("gpu", ("3", "5"))
    assert accelerators_here({"JAX_PLATFORMS": "cpu"}, tmp_path) is None
    for name in ("accel10", "accel2", "accel_other"):
        (tmp_path / name).touch()
    assert accelerators_here({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == Accelerators("tpu", ("2", "10"))
    assert accelerators_here({"CUDA_VISIBLE_DEVICES": ""}, tmp_path / "none") is None


async def test_each_process_sees_its_own_devices(fleet: Fleet) -> None:
    fleet.shares = device_shares(fleet.config, Accelerators("gpu", ("0", "1")))
    show = "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES'), os.environ.get('XLA_PYTHON_CLIENT_MEM_FRACTION'))"
    for name in ("learner", "origin", "peer-1"):
        fleet.programs[name] = [sys.executable, "-c", show]
    fleet.prepare()
    await fleet.start(asyncio.Event())
    assert await fleet.wait(["learner", "peer-1", "origin"], 10.0) == []
    await fleet.stop()
    logs = [fleet.log_path(name).read_text().strip() for name in ("learner", "peer-1")]
    assert logs == ["0 0.950", "1 0.950"]
    peer = load_config(fleet.folder.config / "peer-1.toml", PeerConfig)
    assert peer.limits.vram_share_max == 0.95


def test_devices_are_left_alone_where_that_is_asked_for(fleet: Fleet) -> None:
    alone = fleet.config.model_copy(update={"devices": DevicesConfig(assign=False)})
    assert device_shares(alone, Accelerators("gpu", ("0",))) == {}
    assert device_shares(fleet.config, None) == {}
