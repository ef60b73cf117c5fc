"""Test that SkyPilot's clusters meet the contract, with a program in place of its command, or its own code."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from capacity.providers.base import WorkerTag
from capacity.providers.config import ProviderConfigs, SkyConfig
from capacity.providers.sky import INVITE as SECRET
from capacity.providers.sky import SkyProvider, resources_of, task_of
from capacity.providers.tag_names import name_of
from rollcast.cli.main import app
from rollcast.cli.roles import peer
from rollcast.runtime.errors import ProviderFailed
from tests.capacity.providers.conformance import DEADLINE_S, INVITE, Setting, check
from tests.capacity.providers.pool_machines import machines, pool_row

#: Keeps clusters as files: what `sky launch`, `sky status` and `sky down` of version 0.14 do, as far as we use them.
FAKE = """\
#!{python}
import json, os, sys
from pathlib import Path
home, (what, *rest) = Path({home!r}), sys.argv[1:]
with (home / "arguments").open("a") as log:
    log.write(" ".join(sys.argv[1:]) + "\\n")
if what == "launch":
    name, task = rest[rest.index("--cluster") + 1], json.loads(Path(rest[-1]).read_text())
    assert task["secrets"] == {{"ROLLCAST_INVITE": None}} and "ROLLCAST_INVITE" in rest
    assert None not in task["envs"].values()
    assert "--down" in rest and all(Path(path).exists() for path in task["file_mounts"].values())
    (home / name).write_text(os.environ["ROLLCAST_INVITE"])
elif what == "status":
    print("Refreshing status for 2 clusters")
    print(json.dumps([{{"name": one.name, "status": "UP", "launched_at": 1700000000}} for one in home.glob("*-*")]))
elif what == "down":
    print("Cluster(s) not found" if not (home / rest[-1]).exists() else "Terminated")
    (home / rest[-1]).unlink(missing_ok=True)
"""


def fake_sky(folder: Path) -> tuple[Path, Path]:
    home, path = folder / "clouds", folder / "fake-sky"
    home.mkdir()
    (home / "other-cluster").write_text("not ours")
    path.write_text(FAKE.format(python=sys.executable, home=str(home)))
    path.chmod(0o755)
    return home, path


ROW: dict[str, str | int | bool] = {
    "worker_id": "a100",
    "count": 2,
    "start": "sky",
    "hardware": "A100-SXM4-80GB",
    "gpus": 4,
    "spot": True,
    "preemptions_per_hour": 0,
}


def provider(folder: Path, command: Path) -> SkyProvider:
    config = ProviderConfigs.model_validate({"sky": {"sky": str(command), "release": "https://example.org/r.whl"}})
    return SkyProvider("sky", machines(dict(ROW)), config, folder)


async def test_it_meets_the_contract(tmp_path: Path) -> None:
    home, path = fake_sky(tmp_path)
    one, two = (provider(tmp_path / "run", path) for _ in range(2))

    def saw(tag: WorkerTag) -> str:
        return (home / name_of(tag)).read_text()

    await check(Setting(one, two, saw))
    assert (home / "other-cluster").exists()
    written = [file.read_text() for file in (tmp_path / "run").rglob("*") if file.is_file()]
    assert not [text for text in (*written, (home / "arguments").read_text()) if INVITE in text]


async def test_a_failed_command_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "sky"
    path.write_text("#!/bin/sh\necho 'NoCloudAccessError: Cloud access is not set up.' >&2\nexit 1\n")
    path.chmod(0o755)
    with pytest.raises(ProviderFailed, match="`sky status` failed") as found:
        await provider(tmp_path, path).list("run-1", deadline_s=DEADLINE_S)
    assert "NoCloudAccessError" in found.value.cause
    path.write_text("#!/bin/sh\necho '{}'\n")
    with pytest.raises(ProviderFailed, match="printed no list of clusters"):
        await provider(tmp_path, path).list("run-1", deadline_s=DEADLINE_S)


async def test_no_machine_is_started_that_could_not_install_rollcast(tmp_path: Path) -> None:
    provider = SkyProvider("sky", machines(dict(ROW)), ProviderConfigs(), tmp_path)
    with pytest.raises(ProviderFailed, match="from where a new machine installs") as found:
        await provider.start(WorkerTag("run", "a100-1", 1), SECRET, deadline_s=5.0)
    assert "providers.sky.release" in (found.value.cause or "")


async def test_commands_of_its_own_install_rollcast_without_a_release(tmp_path: Path) -> None:
    """SkyPilot refuses a task with a variable that has no value."""
    home, path = fake_sky(tmp_path)
    config = ProviderConfigs.model_validate({"sky": {"sky": str(path), "setup": "pip install ./rollcast"}})
    tag = WorkerTag("run", "a100-1", 1)
    await SkyProvider("sky", machines(dict(ROW)), config, tmp_path / "run").start(tag, INVITE, deadline_s=DEADLINE_S)
    assert (home / name_of(tag)).exists()


def test_the_task_runs_a_command_that_exists(tmp_path: Path) -> None:
    """The script runs on another machine, so that nothing else would notice that the command was renamed."""
    last = task_of("t", pool_row(**ROW), SkyConfig(), str(tmp_path / "peer.toml"))["run"].splitlines()[-1]
    program, _, words = last.partition(" rollcast.cli.main ")
    assert program == "exec python -P -m"
    command, bound, _ = app.parse_args(words.split(), exit_on_error=False)
    assert (command, str(bound.arguments["config"])) == (peer, "peer.toml")


def test_resources_are_those_of_the_row_on_top_of_the_configuration() -> None:
    config = SkyConfig(resources={"disk_size": 64, "use_spot": False})
    assert resources_of(pool_row(**ROW), config) == {"disk_size": 64, "use_spot": True, "accelerators": "A100-80GB:4"}
    named = pool_row(**ROW, infra="verda/FIN-01", instance_type="1A100.22V")
    assert resources_of(named, SkyConfig()) == {
        "use_spot": True,
        "infra": "verda/FIN-01",
        "instance_type": "1A100.22V",
    }


def test_the_task_passes_skypilots_own_checks(tmp_path: Path) -> None:
    """This runs where SkyPilot is installed, which the tests do not require."""
    if importlib.util.find_spec("sky") is None:
        pytest.skip("SkyPilot is not installed (the extra sky)")
    from sky.utils import common_utils, schemas

    task = task_of("rollcast-a100-1", pool_row(**ROW), SkyConfig(setup="true"), str(tmp_path / "peer.toml"))
    assert SECRET in task["secrets"]
    common_utils.validate_schema(json.loads(json.dumps(task)), schemas.get_task_schema(), "Invalid task: ")
    common_utils.validate_schema(task["resources"], schemas.get_resources_schema(), "Invalid resources: ")
