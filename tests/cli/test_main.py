"""Test the command line as a whole: exit statuses, errors, and the commands that docs/models.md shows."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from learner.config import LearnerConfig
from rollcast.cli.main import app, main
from rollcast.cli.up_config import UpConfig
from rollcast.policy.published import ARCHITECTURES

CONFIGS = Path(__file__).parents[2] / "configs"


def rollcast(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rollcast.cli.main", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | environment,
    )


@dataclass(frozen=True)
class Called:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., Called]:
    """Return what `rollcast` does, called in this process: starting one takes half a second of a core."""

    def called(*arguments: str, **environment: str) -> Called:
        capsys.readouterr()
        with pytest.MonkeyPatch.context() as patched, warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Cyclopts application invoked without tokens")
            for name, value in {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), **environment}.items():
                patched.setenv(name, value)  # the command prepends to the path that processes inherit
            patched.setattr(sys, "argv", ["rollcast", *arguments])
            with pytest.raises(SystemExit) as ended:
                main()
        captured = capsys.readouterr()
        return Called(int(ended.value.code or 0), captured.out, captured.err)

    return called


def test_version_names_release() -> None:
    result = rollcast("--version")
    assert result.returncode == 0
    assert result.stdout.startswith("rollcast 0.")


def test_help_imports_no_role() -> None:
    code = (
        "import sys\nfrom rollcast.cli.main import app\n"
        "try:\n    app(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'jax', 'grpc', 'aiohttp', 'coordinator', 'learner', 'peer'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert "Run a peer" in result.stdout


def test_help_describes_the_options(call: Callable[..., Called]) -> None:
    assert "Refresh every second until Ctrl-C." in call("broadcast", "status", "--help", COLUMNS="200").stdout


def test_a_broadcast_without_a_coordinator(call: Callable[..., Called]) -> None:
    result = call("broadcast", "status", "--url", "http://127.0.0.1:1")
    assert (result.returncode, result.stderr.splitlines()[0]) == (
        69,
        "RC203: no coordinator answers at http://127.0.0.1:1/api/v1/broadcast",
    )


def test_validate_and_show(call: Callable[..., Called]) -> None:
    result = call("config", "validate", str(CONFIGS / "local.toml"))
    assert (result.returncode, "valid configuration of up" in result.stdout) == (0, True)
    shown = json.loads(call("config", "show", str(CONFIGS / "peer.toml")).stdout)
    assert shown["engine"]["concurrent_rollouts"] >= 1
    keys = {row["key"]: row for row in json.loads(call("config", "show", "--role", "coordinator", "--json").stdout)}
    assert "hard limit" in keys["run.staleness_limit"]["meaning"]


@pytest.mark.parametrize("role", ["up", "coordinator", "learner", "peer"])
def test_every_key_has_a_meaning(call: Callable[..., Called], role: str) -> None:
    for row in json.loads(call("config", "show", "--role", role, "--json").stdout):
        assert row["meaning"], row["key"]


def test_unknown_key_is_one_clear_error(call: Callable[..., Called], tmp_path: Path) -> None:
    file = tmp_path / "peer.toml"
    file.write_text('[engine]\nconcurrent_rollout = 8\n[link]\nhost = "127.0.0.1"\n')
    result = call("peer", "run", str(file))
    assert result.returncode == 64
    assert result.stderr.startswith("RC101: ")
    assert "did you mean 'concurrent_rollouts'" in result.stderr
    assert "Traceback" not in result.stderr


def test_unsatisfiable_staleness_limit_is_refused(call: Callable[..., Called]) -> None:
    settings = ["coordinator.run.staleness_limit=1", "coordinator.run.publish_every_steps=3"]
    result = call("up", str(CONFIGS / "local.toml"), "--set", settings[0], "--set", settings[1], "--dry-run")
    assert result.returncode == 64
    assert "staleness_limit = 1 cannot be kept with publish_every_steps = 3" in result.stderr


def test_dry_run_with_settings_starts_nothing(call: Callable[..., Called], tmp_path: Path) -> None:
    result = call(
        "up", str(CONFIGS / "local.toml"), "--dry-run", "--set", f"runs_folder={tmp_path}/runs", "--set", "peers=5"
    )
    assert json.loads(result.stdout)["peers"] == 5
    assert not (tmp_path / "runs").exists()


def test_options_from_the_environment(call: Callable[..., Called]) -> None:
    result = call("peer", "run", str(CONFIGS / "peer.toml"), ROLLCAST_PEER_RUN_DRY_RUN="true")
    assert json.loads(result.stdout)["role"] == "peer"


def test_options_of_commands_with_a_dash_from_the_environment(call: Callable[..., Called]) -> None:
    """A shell can export no variable with a dash in its name."""
    result = call("capacity", "what-if", "--help", COLUMNS="200")
    assert "ROLLCAST_CAPACITY_WHAT_IF_FROM_RUN" in result.stdout
    result = call("plan-memory", str(CONFIGS / "qwen3-4b-math.toml"), ROLLCAST_PLAN_MEMORY_JSON="true")
    assert json.loads(result.stdout)


SLOW = {"jax", "scipy", "matplotlib", "coordinator.core", "rollcast.sim", "learner.training"}


@pytest.mark.parametrize(
    "command", ["simulate", "study scale", "backup", "restore", "migrate", "audit", "plan-memory", "up"]
)
def test_help_of_a_command_imports_nothing_slow(command: str) -> None:
    code = (
        "import sys\nfrom rollcast.cli.main import app\n"
        f"try:\n    app([*{command.split()!r}, '--help'])\nexcept SystemExit:\n    pass\n"
        "print(sorted(sys.modules), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    imported = set(re.findall(r"'([\w.]+)'", result.stderr))
    assert not {slow for slow in SLOW if any(one == slow or one.startswith(f"{slow}.") for one in imported)}


@pytest.mark.parametrize("command", [f"up {CONFIGS}/local.toml --dry-run", "config show --role up"])
def test_a_configuration_is_read_without_what_only_a_run_needs(command: str) -> None:
    result = rollcast(*command.split(), PYTHONPROFILEIMPORTTIME="1")
    imported = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines()}
    assert "coordinator.config.config" in imported
    assert imported.isdisjoint({"numpy", "aiohttp", "cryptography", "google.protobuf", "ml_dtypes", "blake3", "jax"})


def test_memory_is_estimated_without_jax() -> None:
    """Only a model's config.json is read."""
    result = rollcast("plan-memory", str(CONFIGS / "qwen3-4b-math.toml"), PYTHONPROFILEIMPORTTIME="1")
    imported = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines()}
    assert "rollcast.policy.hub.config" in imported
    assert imported.isdisjoint({"jax", "flax"})


def test_an_invite_is_never_shown(call: Callable[..., Called]) -> None:
    result = call("peer", "run", str(CONFIGS / "peer.toml"), "--dry-run", "--set", "invite=rollcast1-abcdef")
    assert json.loads(result.stdout)["invite"] == "**********"
    assert "abcdef" not in result.stdout + result.stderr


def test_identity(call: Callable[..., Called], tmp_path: Path) -> None:
    file = tmp_path / "learner.key"
    first = json.loads(call("identity", str(file), "--json").stdout)
    assert json.loads(call("identity", str(file), "--json").stdout) == first
    assert first["peer_id"].startswith("12D3KooW")
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("arguments", [["up", "--bogus"], ["up"]])
def test_wrong_command_line_has_its_exit_status(call: Callable[..., Called], arguments: list[str]) -> None:
    result = call(*arguments)
    assert result.returncode == 64
    assert "Traceback" not in result.stdout + result.stderr


def test_unknown_command_is_refused_without_jax() -> None:
    """No group of commands is imported: what was meant is found by the names alone."""
    result = rollcast("bogus", PYTHONPROFILEIMPORTTIME="1")
    assert (result.returncode, "Traceback" in result.stderr) == (64, False)
    imported = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines()}
    assert imported.isdisjoint({"rollcast.cli.run.evaluate_live", "jax"})


def test_read_only_run_folder(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file, not a folder")
    result = rollcast("up", str(CONFIGS / "local.toml"), "--set", f"runs_folder={tmp_path}/runs")
    assert result.returncode == 73
    assert result.stderr.startswith("RC104: ")


def test_paths_are_those_of_this_user(call: Callable[..., Called], tmp_path: Path) -> None:
    (tmp_path / "rollcast").mkdir()
    (tmp_path / "rollcast" / "peer.toml").touch()
    folders = {"XDG_STATE_HOME": str(tmp_path / "state"), "XDG_CONFIG_HOME": str(tmp_path)}
    found = json.loads(call("config", "paths", "--json", **folders).stdout)
    assert found["peer configuration"] == {"path": str(tmp_path / "rollcast" / "peer.toml"), "exists": True}
    assert found["peer identity"] == {"path": str(tmp_path / "state/rollcast/peer/identity.key"), "exists": False}


@pytest.mark.parametrize("arguments", [["config", "show", "--role", "coordinator", "--json"], ["--help"]])
def test_closed_output_is_not_a_failure(arguments: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "rollcast.cli.main", *arguments]
    result = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(write)
    assert (result.returncode, result.stderr) == (0, "")


PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text()

COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_understood(command: str) -> None:
    program, *arguments = shlex.split(command)
    assert program == "rollcast"
    app.parse_args(arguments, exit_on_error=False, print_error=False)


def test_configurations_are_valid() -> None:
    by_file = {"learner.toml": LearnerConfig, "run.toml": UpConfig}
    blocks = re.findall(r"```toml\n# (\S+)\n(.*?)```", PAGE, re.DOTALL)
    assert {name for name, _ in blocks} == set(by_file)
    for name, text in blocks:
        by_file[name].model_validate(tomllib.loads(text))


def test_every_preset_is_on_the_page() -> None:
    table = "".join(line for line in PAGE.splitlines() if line.startswith("|"))
    assert set(ARCHITECTURES) == {name for name in re.findall(r"`([a-z0-9.-]+)`", table) if "-" in name}
