"""Check the rules of the source tree: which folder may import which, what is pure, and how full a folder may be.

Each rule is a function of a root folder that returns its breaches as readable lines, so that the tests can plant a
breach in a small tree as well as check the real one. ``docs/architecture.md`` explains the rules.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Set
from pathlib import Path, PurePosixPath

from bench.structure import import_graph

MODULES_PER_FOLDER_MAX = 15

_SHARED = {"rollcast.runtime", "rollcast.wire"}
_ROLES = {*_SHARED, "rollcast.policy", "capacity", "coordinator", "learner", "peer"}

#: Role -> the roles that it may import besides itself. ``bench`` may import everything.
MAY_IMPORT: Mapping[str, Set[str]] = {
    "rollcast.runtime": set(),
    "rollcast.wire": {"rollcast.runtime"},
    "rollcast.policy": _SHARED,
    "rollcast.web": {"rollcast.runtime"},
    "capacity": _SHARED,
    "coordinator": {*_SHARED, "rollcast.web", "capacity"},
    "learner": {*_SHARED, "rollcast.policy"},
    "peer": {*_SHARED, "rollcast.web", "rollcast.policy"},
    "rollcast.sim": {*_ROLES, "rollcast.cell"},
    "rollcast.cell": {*_SHARED, "learner", "peer"},
    "rollcast.cli": {*_ROLES, "rollcast.web", "rollcast.sim", "rollcast.cell"},
}

#: Roles that run without jax.
WITHOUT_JAX = ("rollcast.runtime", "rollcast.wire", "rollcast.web", "capacity", "coordinator")
_JAX = {"jax", "jaxlib", "flax", "optax", "orbax"}

#: Folders that only decide or compute: everything below them takes time, randomness and data as arguments.
PURE_FOLDERS = (
    "capacity/fleet",
    "capacity/model",
    "capacity/planner",
    "capacity/predict",
    "capacity/replan",
    "capacity/reports",
    "coordinator/core",
    "coordinator/views",
    "learner/alignment",
    "learner/objective",
    "peer/limits",
    "peer/relay/core",
    "peer/worker/core",
)
#: Modules of these names are pure wherever they lie.
PURE_NAMES = ("core.py", "events.py", "actions.py")
#: A module whose docstring makes this claim is held to it.
_CLAIM = "Pure"

_IO = {
    *("asyncio", "aiohttp", "grpc", "time", "random", "secrets", "socket", "ssl", "sqlite3", "threading"),
    *("subprocess", "os", "pathlib", "shutil", "tempfile", "structlog", "logging"),
}
#: Module of a pure folder -> what it imports all the same.
IMPURE_ALL_THE_SAME: Mapping[str, Set[str]] = {
    "capacity/fleet/journal.py": {"os", "pathlib"},  # the journal is a file
    "capacity/planner/planner.py": {"time"},  # it reports how long solving took
    "capacity/replan/event_files.py": {"pathlib"},
    "capacity/reports/plots.py": {"pathlib"},
    "coordinator/views/runs.py": {"threading", "pathlib"},
    # The objective is arithmetic on arrays: jax is its language, not I/O.
    **dict.fromkeys((f"learner/objective/{name}.py" for name in ("objective", "factors", "build")), _JAX),
}


def forbidden_imports(root: Path) -> list[str]:
    """Return the imports that ``MAY_IMPORT`` forbids, and those of jax where it must not be."""
    modules = import_graph.find_modules(root)
    broken = import_graph.break_rules(import_graph.find_imports(root, modules), MAY_IMPORT)
    lines = [f"{importing} must not import {imported}" for importing, imported in sorted(broken)]
    for name, path in modules.items():
        if name.startswith(WITHOUT_JAX) and imported_roots(root / path) & _JAX:
            lines.append(f"{path} must not import jax")
    return lines


def circles(root: Path) -> list[str]:
    """Return the circles of folders: imports must go down only, so no two folders may reach each other."""
    modules = import_graph.find_modules(root)
    graph = import_graph.build_floor_graph(modules, import_graph.find_imports(root, modules))
    return [f"these folders import each other: {', '.join(sorted(one))}" for one in import_graph.find_circles(graph)]


def impurities(root: Path) -> list[str]:
    """Return the pure modules that import a clock, randomness, the network, the disk, threads or jax."""
    lines = []
    for path in import_graph.find_modules(root).values():
        if is_pure(path, root):
            found = imported_roots(root / path) & (_IO | _JAX)
            found -= IMPURE_ALL_THE_SAME.get(str(path), set())
            lines += [f"{path} must not import {', '.join(sorted(found))}"] if found else []
    return lines


def is_pure(path: PurePosixPath, root: Path) -> bool:
    """Whether a module is declared pure by its place, its name or its docstring."""
    by_place = any(path.is_relative_to(folder) for folder in PURE_FOLDERS)
    return by_place or path.name in PURE_NAMES or _CLAIM in (_docstring(root / path) or "")


def full_folders(root: Path) -> list[str]:
    """Return the folders with more modules than a reader can survey."""
    counts = import_graph.count_by_folder(import_graph.find_modules(root))
    return [f"{folder} holds {count} modules" for folder, count in counts.items() if count > MODULES_PER_FOLDER_MAX]


def folders_without_a_sentence(root: Path) -> list[str]:
    """Return the folders whose ``__init__.py`` is missing or has no sentence on what belongs there."""
    lines = []
    for folder in import_graph.count_by_folder(import_graph.find_modules(root)):
        init = root / folder / "__init__.py"
        text = (_docstring(init) or "") if init.exists() else ""
        if "." not in text:
            lines.append(f"{folder}/__init__.py does not say what belongs there")
    return lines


def relative_imports(root: Path) -> list[str]:
    """Return the first module with a relative import: the walk over all imports stops there."""
    try:
        import_graph.find_imports(root, import_graph.find_modules(root))
    except ValueError as error:
        return [str(error).removeprefix(f"{root}/")]
    return []


def _docstring(path: Path) -> str | None:
    return ast.get_docstring(ast.parse(path.read_text()))


def imported_roots(path: Path) -> set[str]:
    """Return the top-level packages that a module imports, inside functions too."""
    found: set[str] = set()
    for node in import_graph.import_statements(path.read_text()):
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        else:
            found.add((node.module or "").split(".")[0])
    return found


Rule = Callable[[Path], Iterable[str]]
RULES: tuple[Rule, ...] = (
    relative_imports,
    forbidden_imports,
    circles,
    impurities,
    full_folders,
    folders_without_a_sentence,
)
