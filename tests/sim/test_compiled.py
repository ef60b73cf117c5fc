"""Test that compiled cores are used only for the sources that they are of, and that they decide as the sources do."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from rollcast.runtime.errors import ConfigError
from rollcast.sim import compiled

SIMULATE = """
import json, sys
from dataclasses import replace
from rollcast.sim import compiled
if sys.argv[1] == "compiled":
    compiled.use()
from rollcast.sim import simulation
from rollcast.sim.scenario import realistic
found = [simulation.simulate_standard(seed) for seed in (0, 6, 15, 148)]
found.append(simulation.simulate_standard(9, turns_most=4, environment_faults=0.05))
found.append(simulation.simulate_standard(0, coordinators=2))
found.append(simulation.simulate_standard(1, cells=2))
found.append(simulation.simulate(realistic(32), 0, seconds=900.0))
found.append(simulation.simulate(realistic(600), 0, seconds=90.0))
digests = [one.digest + f" {len(one.violations)}" for one in found]
print(json.dumps({"compiled": {one.compiled for one in found} == {True}, "digests": digests}))
"""


def simulated(how: str) -> tuple[bool, list[str]]:
    command = [sys.executable, "-c", SIMULATE, how]
    found = subprocess.run(command, capture_output=True, text=True, check=False, cwd=compiled.ROOT, timeout=300)
    assert found.returncode == 0, found.stderr
    document = json.loads(found.stdout)
    return document["compiled"], document["digests"]


@pytest.mark.sim
@pytest.mark.timeout(600)
def test_compiled_cores_give_the_same_digests_as_their_sources() -> None:
    try:
        compiled.check()
    except ConfigError as missing:
        pytest.skip(f"{missing.what} ({missing.cause}): run `make compiled`")
    is_compiled, digests = simulated("compiled")
    assert is_compiled
    assert simulated("interpreted") == (False, digests)


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A manifest of what is compiled, as if it had just been built."""
    monkeypatch.setattr(compiled, "FOLDER", tmp_path)
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps({"suffix": EXTENSION_SUFFIXES[0], "sources": compiled.hashes()}))
    return manifest


def test_a_machine_without_a_compiler_is_told_what_to_install(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler -O2")
    with pytest.raises(ConfigError, match="cannot be compiled here") as refused:
        compiled.build()
    assert "there is no no-such-compiler" in (refused.value.cause or "")
    assert built.exists(), "what was compiled before is kept"


def test_what_was_compiled_from_these_sources_may_be_used(built: Path) -> None:
    compiled.check()


def test_nothing_compiled_is_refused(built: Path) -> None:
    built.unlink()
    with pytest.raises(ConfigError, match="the cores are not compiled") as refused:
        compiled.check()
    assert "make compiled" in refused.value.fix


def test_a_changed_source_is_refused_by_name(built: Path) -> None:
    manifest = json.loads(built.read_text())
    manifest["sources"]["coordinator/core/core.py"] = "0" * 64
    manifest["sources"]["coordinator/core/removed.py"] = "0" * 64
    built.write_text(json.dumps(manifest))
    with pytest.raises(ConfigError, match="other sources") as refused:
        compiled.check()
    assert refused.value.cause == "coordinator/core/core.py has changed since, and 1 more"


def test_another_python_is_refused(built: Path) -> None:
    built.write_text(json.dumps({**json.loads(built.read_text()), "suffix": ".cpython-39-x86_64-linux-gnu.so"}))
    with pytest.raises(ConfigError, match="another Python"):
        compiled.check()


def test_modules_that_were_imported_before_are_a_bug(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import coordinator.core.core  # noqa: F401

    with pytest.raises(RuntimeError, match="were imported as sources already"):
        compiled.use()
    assert not compiled.in_use()


def test_every_source_exists_and_none_is_an_entry_point() -> None:
    sources = compiled.sources()
    assert len(sources) > 100
    assert all((compiled.ROOT / source).is_file() for source in sources)
    assert len(set(sources)) == len(sources)
    assert not {"rollcast/sim/compiled.py", "coordinator/service.py"} & set(sources)


def test_another_module_runs_with_what_was_compiled(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[str] = []
    monkeypatch.setattr(compiled, "use", lambda: used.append("use"))
    monkeypatch.setattr("rollcast.sim.scale.main", lambda *arguments: used.extend(arguments))
    compiled.main("run", "rollcast.sim.scale", "{}")
    assert used == ["use", "{}"]
