"""Test that images and the compose file name only files, extras, targets and options that exist."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from coordinator.config.config import CoordinatorConfig
from learner.config import LearnerConfig
from peer.config import PeerConfig

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
CONTAINERFILE = (DEPLOY / "containers" / "Containerfile").read_text()


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return found


def test_images_use_only_files_and_extras_that_exist() -> None:
    copied = re.findall(r"^COPY (?!--from)(.+)$", CONTAINERFILE, re.MULTILINE)
    sources = [word for line in copied for word in line.split()[:-1]]
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for source in sources:
        assert (ROOT / source).exists(), source
        assert f"!{source}" in ignored, f"{source} is left out of what is sent to the builder"
    packages = [ROOT / source for source in sources if (ROOT / source / "__init__.py").exists()]
    links = [path for package in packages for path in package.rglob("*") if path.is_symlink()]
    for link in links:  # what a package links to is part of its wheel
        assert any(link.resolve().is_relative_to(ROOT / source) for source in sources), link
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for names in re.findall(r"\.whl\)\[([^\]]+)\]", CONTAINERFILE):
        own, _, accelerator = names.partition("${ACCELERATOR:+,")
        assert set(own.split(",")) <= set(extras)
        assert accelerator in ("", "$ACCELERATOR}")


def test_images_for_accelerators_install_an_extra_of_that_name() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for role in ("learner", "peer"):
        assert re.search(
            rf"AS {role}\nARG ACCELERATOR=\n.*\[{role}\$\{{ACCELERATOR:\+,\$ACCELERATOR\}}\]", CONTAINERFILE
        )
    for name in ("cuda12", "cuda13", "tpu"):
        assert extras[name] == [line.replace("jax>", f"jax[{name}]>") for line in extras["learner"] if "jax>" in line]
        assert not any(name in line for line in (*extras["all"], *extras["dev"]))


def test_images_run_as_a_user_of_their_own() -> None:
    stages = re.split(r"^FROM ", CONTAINERFILE, flags=re.MULTILINE)
    roles = [stage for stage in stages if re.match(r"base AS (coordinator|learner|peer)", stage)]
    assert len(roles) == 3
    for stage in roles:
        assert "USER rollcast" in stage


def test_services_name_only_images_volumes_and_services_that_exist() -> None:
    file = compose()
    for name, service in file["services"].items():
        for other in service.get("depends_on", ()):
            assert other in file["services"], name
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            known = (DEPLOY / source).exists() if source.startswith(".") else source in file["volumes"]
            assert known, f"{name}: {volume}"


def test_each_image_is_built_once_and_used_by_its_other_services() -> None:
    services = compose()["services"]
    builds = yaml.safe_load((DEPLOY / "compose.build.yaml").read_text())["services"]
    assert set(builds) == {name for name, one in services.items() if one["image"].startswith("rollcast-")}
    built: list[str] = []
    for name, service in builds.items():
        if "build" not in service:
            assert service == {"pull_policy": "never"}
            continue
        build, image = service["build"], services[name]["image"]
        built.append(image)
        assert all(f"\nARG {argument}=" in CONTAINERFILE for argument in build["args"])
        assert build["target"] in re.findall(r"AS (\w+)$", CONTAINERFILE, re.MULTILINE)
        assert image == f"rollcast-{build['target']}:{VERSION}", "the name that deploy/release gives it"
    assert sorted(built) == sorted({services[name]["image"] for name in builds})


def test_a_release_installs_the_packages_that_it_was_tested_with() -> None:
    release = (DEPLOY / "release").read_text()
    assert r"pip install --constraint \"\$URL/constraints.txt\"" in release
    assert "cp constraints.txt dist/" in release


def test_our_services_need_no_root() -> None:
    # A root without capabilities may not read the files of others. New volumes take over the owners of these folders.
    (made,) = re.findall(r"install -d -o rollcast -g rollcast (.+)$", CONTAINERFILE, re.MULTILINE)
    for name, service in compose()["services"].items():
        if service["image"].startswith("rollcast-"):
            assert "user" not in service
            assert service["cap_drop"] == ["ALL"]
            assert "cap_add" not in service
            volumes = [volume.split(":") for volume in service["volumes"] if not volume.startswith(".")]
            assert {volume[1] for volume in volumes} <= set(made.split()), name


def test_a_release_has_every_file_that_its_deployments_name_and_none_that_builds_from_sources() -> None:
    (line,) = re.findall(r"^git archive .+HEAD (.+) \|", (DEPLOY / "release").read_text(), re.MULTILINE)
    packed = subprocess.run(
        ["bash", "-c", f"git ls-files -- {line}"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    files = set(packed.stdout.split())
    assert {"deploy/compose.yaml", "configs/local.toml", "examples/demo/run.toml", "deploy/README.md"} <= files
    assert not {"deploy/compose.build.yaml", "deploy/containers/Containerfile", "deploy/release"} & files
    for service in compose()["services"].values():
        assert "build" not in service
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("."):
                path = f"deploy/{source.removeprefix('./')}"
                assert any(file == path or file.startswith(f"{path}/") for file in files), source


def test_images_of_a_release_have_names_that_docker_and_podman_shorten_to_those_of_compose() -> None:
    release = (DEPLOY / "release").read_text()
    assert "image=docker.io/library/rollcast-$role:$tag\n" in release
    assert re.findall(r'"\$builder" (?:build .*--tag|save) "([^"]+)"', release) == ["$image", "$image"]


def test_ports_are_open_to_this_machine_only() -> None:
    ports = [port for service in compose()["services"].values() for port in service.get("ports", ())]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("coordinator", CoordinatorConfig),
        ("learner", LearnerConfig),
        ("origin", PeerConfig),
        ("peer", PeerConfig),
    ],
)
def test_configurations_are_such_as_the_processes_read(name: str, model: Any) -> None:
    model.model_validate(tomllib.loads((DEPLOY / "compose" / f"{name}.toml").read_text()))


def test_only_services_that_issue_credentials_see_the_run_folder() -> None:
    holders = [
        name
        for name, service in compose()["services"].items()
        if any(volume.startswith("coordinator:") for volume in service.get("volumes", ()))
    ]
    assert holders == ["coordinator", "handout"]


def test_images_of_a_release_keep_their_health_checks() -> None:
    """podman leaves a HEALTHCHECK out of an image unless it is told Docker's format."""
    assert "HEALTHCHECK" in (DEPLOY / "containers" / "Containerfile").read_text()
    release = (DEPLOY / "release").read_text()
    assert release.index("export BUILDAH_FORMAT=docker") < release.index('"$builder" build')
