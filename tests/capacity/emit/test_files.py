"""Test the files for SkyPilot, Kubernetes and Terraform: valid, consistent with deploy/, and without a secret."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from capacity.emit import kubernetes, skypilot, terraform
from capacity.emit.chosen import ChosenRow, chosen_rows
from capacity.emit.files import files_for, write_files
from capacity.emit.yaml import yaml_of
from capacity.inputs.pool.checks import check_pool
from capacity.inputs.pool.files import read_pool
from peer.config import PeerConfig
from rollcast.cli.main import app
from rollcast.cli.roles import peer
from rollcast.runtime.errors import ConfigError
from tests.capacity.providers.pool_machines import pool_row
from tests.capacity.sample_fleet import chosen_document
from tests.deploy.helm_rendering import Chart

DEPLOY = Path(__file__).parents[3] / "deploy"
COSTLY = {"egress_usd_per_gb": 0.09, "upload_mbit_per_second": 50, "spot": True, "preemptions_per_hour": 0.1}


def chosen(name: str, *numbers: int, **values: Any) -> ChosenRow:
    row = pool_row(worker_id=name, count=max(numbers), **COSTLY, **values)
    return ChosenRow(row, tuple(f"{name}-{number}" for number in numbers))


SKY = chosen("l4", 1, 3, start="sky", infra="gcp/us-central1", hardware="l4", gpus=2)
PODS = chosen("a100", 1, 2, start="kubernetes", hardware="NVIDIA A100-SXM4-80GB", gpus=4)
CLOUD = chosen("4090-like", 1, 2, start="terraform", region="aws:us-east-1b", instance_type="g6.xlarge")
HERE = replace(CLOUD, row=pool_row(worker_id="calm", start="terraform", region="aws:eu-west-1", instance_type="p5"))


def assert_peer(words: str, settings: dict[str, Any]) -> None:
    """Assert that these words run a peer, and that it accepts its settings."""
    command, bound, _ = app.parse_args(shlex.split(words), exit_on_error=False)
    assert command is peer
    assert str(bound.arguments["config"]).endswith(".toml")
    config = PeerConfig.model_validate(settings)
    assert (config.reconnect_timeout_s, config.link.upload_mbit_s_max) == (120.0, 50.0)


def test_rows_are_those_that_the_tool_starts() -> None:
    document = chosen_document("local-1", "cloud", "donor")
    rows, others = chosen_rows(document, "terraform")
    assert [(one.name, one.worker_ids) for one in rows] == [("cloud", ("cloud",))]
    assert others == ("donor", "local-1")


def test_skypilot_launches_a_cluster_for_each_worker() -> None:
    files = skypilot.files_of([SKY])
    assert set(files.texts) == {"l4.yaml", "l4.peer.toml", "launch.sh"}
    task = yaml.safe_load(files.texts["l4.yaml"])
    assert task["resources"] == {"infra": "gcp/us-central1", "accelerators": "L4:2", "use_spot": True}
    assert task["secrets"] == {"ROLLCAST_INVITE": None}
    assert "@ $ROLLCAST_RELEASE" in task["setup"]
    assert task["envs"]["ROLLCAST_RELEASE"] is None
    assert list(task["file_mounts"].values()) == ["l4.peer.toml"]
    last = task["run"].splitlines()[-1].partition("rollcast.cli.main ")[2]
    assert_peer(last, tomllib.loads(files.texts["l4.peer.toml"]))
    launched = [shlex.split(line) for line in files.texts["launch.sh"].splitlines() if line.startswith("sky ")]
    assert [one[one.index("--cluster") + 1] for one in launched] == ["rollcast-l4-1", "rollcast-l4-3"]
    assert [one[one.index("--env") + 1] for one in launched] == ["ROLLCAST_WORKER=l4-1", "ROLLCAST_WORKER=l4-3"]
    assert {one[-1] for one in launched} == {"l4.yaml"}
    assert "ROLLCAST_RELEASE=" in files.steps[0]
    assert "--quota 2" in files.steps[1]


def shipped_rows() -> list[ChosenRow]:
    checked = check_pool(read_pool(DEPLOY / "skypilot" / "pool.csv"))
    assert not checked.skipped
    return [ChosenRow(row, row.worker_ids) for row in checked.taken]


def test_the_shipped_tasks_are_those_of_their_pool() -> None:
    """ROLLCAST_WRITE_TASKS=1 writes them anew."""
    files = skypilot.files_of(shipped_rows())
    folder = DEPLOY / "skypilot"
    if os.environ.get("ROLLCAST_WRITE_TASKS"):
        for name, text in files.texts.items():
            (folder / name).write_text(text)
    assert {one.name for one in folder.iterdir()} == {"pool.csv", *files.texts}
    for name, text in files.texts.items():
        assert (folder / name).read_text() == text, name
    tasks = {name: yaml.safe_load(text) for name, text in files.texts.items() if name in TASKS}
    assert {task["resources"]["infra"] for task in tasks.values()} == {"slurm", "vast", "runpod"}


TASKS = ("slurm.yaml", "vast.yaml", "runpod.yaml")
#: Runs in SkyPilot's interpreter. Its parser looks accelerators up in a catalog, which it downloads if there is none.
PARSE = """\
import sys
import sky, yaml
for path in sys.argv[1:]:
    config = yaml.safe_load(open(path))
    config["envs"]["ROLLCAST_RELEASE"] = "https://example.org/rollcast.whl"
    task = sky.Task.from_yaml_config(config, secrets_overrides=[("ROLLCAST_INVITE", "hidden")])
    task.validate_name()
    (resources,) = task.resources
    print(task.name, resources.cloud, resources.accelerators, resources.use_spot, task.num_nodes)
"""
CATALOG = {
    "accelerators.csv": "AcceleratorName,Clouds\nH100,\"['slurm']\"\nRTX4090,\"['vast']\"\nA100-80GB,\"['runpod']\"\n",
    "metadata.csv": "GPU,MemoryGB,AcceleratorName\n",
}


def test_skypilots_own_parser_reads_the_shipped_tasks(tmp_path: Path) -> None:
    """ROLLCAST_SKY_PYTHON names an interpreter that has SkyPilot, whose packages contradict constraints.txt."""
    python = os.environ.get("ROLLCAST_SKY_PYTHON") or (sys.executable if importlib.util.find_spec("sky") else "")
    if not python:
        pytest.skip("SkyPilot is not installed (the extra sky), and ROLLCAST_SKY_PYTHON names no interpreter with it")
    catalog = tmp_path / ".sky" / "catalogs" / "v8" / "common"
    catalog.mkdir(parents=True)
    for name, text in CATALOG.items():
        (catalog / name).write_text(text)
    folder = DEPLOY / "skypilot"
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    read = subprocess.run(
        [python, "-c", PARSE, *TASKS],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert read.returncode == 0, read.stderr
    assert [line for line in read.stdout.splitlines() if line.startswith("rollcast-")] == [
        "rollcast-slurm Slurm {'H100': 8} False 1",
        "rollcast-vast Vast {'RTX4090': 1} True 1",
        "rollcast-runpod RunPod {'A100-80GB': 1} False 1",
    ]


def test_the_script_refuses_to_launch_without_an_invite_or_a_release(tmp_path: Path) -> None:
    script = tmp_path / "launch.sh"
    script.write_text(skypilot.files_of([SKY]).texts["launch.sh"])
    (tmp_path / "sky").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "sky").chmod(0o755)
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    for lacking in ({"ROLLCAST_INVITE": "hidden"}, {"ROLLCAST_RELEASE": "https://a/b.whl"}):
        refused = subprocess.run(
            ["sh", script], capture_output=True, text=True, timeout=60, check=False, env=path | lacking
        )
        assert (refused.returncode != 0, refused.stdout) == (True, "")
    invited = path | {"ROLLCAST_INVITE": "hidden", "ROLLCAST_RELEASE": "https://a/b.whl"}
    ran = subprocess.run(["sh", script], capture_output=True, text=True, timeout=60, check=True, env=invited)
    assert (len(ran.stdout.splitlines()), "hidden" in ran.stdout) == (2, False)


def test_the_task_passes_skypilots_own_checks() -> None:
    """This runs where SkyPilot is installed, which the tests do not require."""
    common_utils = pytest.importorskip("sky.utils.common_utils", reason="SkyPilot is not installed")
    from sky.utils import schemas

    task = yaml.safe_load(skypilot.files_of([SKY]).texts["l4.yaml"])
    common_utils.validate_schema(task, schemas.get_task_schema(), "Invalid task: ")
    common_utils.validate_schema(task["resources"], schemas.get_resources_schema(), "Invalid resources: ")


def objects() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(kubernetes.files_of([PODS], "rollcast-peer:0.1.0").texts["workers.yaml"]))


def test_pods_are_those_of_the_chart_on_nodes_of_the_hardware() -> None:
    configuration, workers = objects()
    charts = Chart(DEPLOY / "helm" / "rollcast", peers__replicas=2, peers__accelerators=4).documents()
    (theirs,) = [one for one in charts if one["kind"] == "StatefulSet" and one["metadata"]["name"].endswith("-peer")]
    ours = workers["spec"]["template"]["spec"]["containers"][0]
    chart = theirs["spec"]["template"]["spec"]["containers"][0]
    for key in chart.keys() - {"args", "resources"}:
        assert ours[key] == chart[key], key
    assert [one if "/etc/" not in one else "" for one in ours["args"]] == [
        one if "/etc/" not in one else "" for one in chart["args"]
    ]
    assert ours["resources"]["limits"] == {"memory": "128Gi", "nvidia.com/gpu": 4}
    pod = workers["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"rollcast/hardware": "NVIDIA-A100-SXM4-80GB"}
    assert (workers["spec"]["replicas"], workers["spec"]["ordinals"]) == (2, {"start": 1})
    assert workers["spec"]["selector"]["matchLabels"] == workers["spec"]["template"]["metadata"]["labels"]
    secret = theirs["spec"]["template"]["spec"]["volumes"][1]
    assert pod["volumes"][1] == secret
    settings = tomllib.loads(configuration["data"]["a100.toml"])
    assert_peer(" ".join(ours["args"]).replace("$(", "").replace(")", ""), settings)
    assert settings["invite_file"] == "/invite/invite"


def test_kubernetes_schemas_accept_the_objects() -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="objects were not validated: no kubernetes-validate")
    for one in objects():
        validate.validate(one, "1.30", strict=True)


def test_terraform_asks_for_spot_machines_in_their_zones() -> None:
    document = json.loads(terraform.files_of([CLOUD, HERE]).texts["workers.tf.json"])
    spot, calm = document["resource"]["aws_instance"].values()
    assert spot["for_each"] == '${toset(["4090-like-1", "4090-like-2"])}'
    assert spot["instance_market_options"]["market_type"] == "spot"
    assert (spot["availability_zone"], spot["instance_type"]) == ("us-east-1b", "g6.xlarge")
    assert "instance_market_options" not in calm
    assert document["provider"]["aws"] == [
        {"alias": "us_east_1", "region": "us-east-1"},
        {"alias": "eu_west_1", "region": "eu-west-1"},
    ]
    assert set(document["data"]["aws_ssm_parameter"]) == {"us_east_1", "eu_west_1"}
    names = [*document["resource"]["aws_instance"], *document["variable"]]
    assert all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", name) for name in names)
    boot = spot["user_data"]
    toml = boot.partition("<<'END'\n")[2].partition("END\n")[0]
    assert_peer(boot.split("rollcast.cli.main ")[1].replace("${each.key}", "w"), tomllib.loads(toml))
    for reference in set(re.findall(r"\$\{([a-z_.0-9]+)", json.dumps(document))):
        assert reference.split(".")[0] in ("var", "each", "data", "aws_iam_role", "aws_iam_instance_profile", "toset")


def test_the_boot_script_is_a_script() -> None:
    document = json.loads(terraform.files_of([CLOUD]).texts["workers.tf.json"])
    (spot,) = document["resource"]["aws_instance"].values()
    script = re.sub(r"\$\{[^}]*\}", "x", spot["user_data"])
    subprocess.run(["bash", "-n"], input=script, text=True, timeout=60, check=True)


@pytest.mark.skipif(shutil.which("terraform") is None, reason="terraform is not installed")
def test_terraform_reads_its_file(tmp_path: Path) -> None:
    for name, text in terraform.files_of([CLOUD, HERE]).texts.items():
        (tmp_path / name).write_text(text)
    read = subprocess.run(
        ["terraform", "providers"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (read.returncode, "hashicorp/aws" in read.stdout) == (0, True), read.stderr


def test_no_file_holds_an_invite_or_needs_one_in_an_argument_of_a_process_there() -> None:
    files = [skypilot.files_of([SKY]), kubernetes.files_of([PODS], "image"), terraform.files_of([CLOUD])]
    for one in files:
        for text in one.texts.values():
            assert "rollcast1-" not in text
            assert "invite=" not in text


def test_files_are_written_once_and_never_over_others(tmp_path: Path) -> None:
    document = chosen_document("cloud", "donor")
    files, left_out = files_for(document, "terraform")
    assert left_out == ("donor",)
    for _ in range(2):
        write_files(files, tmp_path / "files")
    (tmp_path / "files" / "workers.tf.json").write_text("mine")
    with pytest.raises(ConfigError, match="exists and differs"):
        write_files(files, tmp_path / "files")
    with pytest.raises(ConfigError, match="cannot write into"):
        write_files(files, tmp_path / "files" / "workers.tf.json")
    with pytest.raises(ConfigError, match="no worker that skypilot starts"):
        files_for(document, "skypilot")


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=30) | st.sampled_from(["a\nb\n", "\n", " a\n", "on"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(st.characters(codec="ascii"), max_size=8), PLAIN, min_size=1, max_size=3))
def test_yaml_is_read_as_it_was_written(value: dict[str, Any]) -> None:
    assert yaml.safe_load(yaml_of(value)) == value
