"""Test that compiled cores are used only for the sources that they are of, and that they decide as the sources do."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

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


DATACLASSES = """
from dataclasses import dataclass, field

@dataclass(slots=True)
class Lease:
    lease_id: int
    "Never 0."
    slots: tuple[int, ...] = ()
    notes: list[str] = field(default_factory=list)
    body: bytes = field(default=b"none", compare=False)
    key: tuple[int, int] = field(init=False)

    def __post_init__(self) -> None:
        self.key = (self.lease_id, len(self.slots))

@dataclass
class Member:
    name: str
"""
FROZEN = """
@dataclass(frozen=True)
class Version:
    number: int
    epoch: int = 0
"""
LEFT_AS_THEY_ARE = """
class Plain:
    name: str = ""

@dataclass(kw_only=True)
class Settings:
    peers: int = 6

@dataclass
class Member:
    name: str

@dataclass
class Cell(Member):
    workers: int = 0

@dataclass
class Tick:
    pass

@dataclass
class Own:
    name: str

    def __init__(self) -> None:
        self.name = "own"
"""


def test_written_constructors_do_what_those_of_dataclasses_do() -> None:
    made, written = dict[str, Any](), dict[str, Any]()
    exec(DATACLASSES, made)
    exec(compiled.with_constructors(DATACLASSES), written)
    for arguments in ((7,), (7, (1, 2)), (7, (), ["late"], b"body")):
        lease = written["Lease"](*arguments)
        assert asdict(lease) == asdict(made["Lease"](*arguments))
    assert written["Lease"](1).notes is not written["Lease"](1).notes
    assert written["Member"](name="peer-1").name == "peer-1"


def test_a_written_constructor_sets_the_fields_of_a_frozen_dataclass() -> None:
    assert compiled.with_constructors(FROZEN) == FROZEN + (
        "    def __init__(self, number: int, epoch: int = 0) -> None:\n"
        "        self.number = number  # type: ignore[misc]\n"
        "        self.epoch = epoch  # type: ignore[misc]\n"
    )


def test_no_constructor_is_written_where_fields_are_not_simply_set() -> None:
    assert compiled.with_constructors(LEFT_AS_THEY_ARE) == LEFT_AS_THEY_ARE


CONSTANTS = """from __future__ import annotations

_LIMIT_S = 2.5  # seconds
KEPT: int = 16
RATES: list[float] = [
    1.0,
]
T = TypeVar("T")
_random = Random()

def limit_s():
    return _LIMIT_S
"""


def test_numbers_of_a_module_are_declared_final() -> None:
    assert compiled.with_finals(CONSTANTS) == (
        CONSTANTS.replace("annotations\n", "annotations; from typing import Final\n", 1)
        .replace("_LIMIT_S = 2.5", "_LIMIT_S: Final = 2.5")
        .replace("KEPT: int", "KEPT: Final[int]")
    )


def test_a_module_that_sets_a_global_is_left_as_it_is() -> None:
    counting = CONSTANTS + "\ndef more():\n    global KEPT\n    KEPT += 1\n"
    assert compiled.with_finals(counting) == counting


MATCHES = """
def kind(event, is_late=False):
    match event:  # the most frequent first
        case bool() if is_late:
            return "late"
        case int() | float():  # numbers
            return "number"
        case _:
            return "other"
"""
TESTS = """
def kind(event, is_late=False):
    if True:  # the most frequent first
        if isinstance(event, bool) and (is_late):
            return "late"
        elif isinstance(event, (int, float)):  # numbers
            return "number"
        else:
            return "other"
"""
OTHER_MATCHES = """
def kind(event):
    match event:
        case int(real=0):
            return "zero"
        case _:
            return "other"

def word(event):
    match event.name:
        case str():
            return "word"
"""


def test_cases_that_are_classes_only_become_tests_of_types() -> None:
    assert compiled.with_type_tests(MATCHES) == TESTS
    assert compiled.with_type_tests(OTHER_MATCHES) == OTHER_MATCHES


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
