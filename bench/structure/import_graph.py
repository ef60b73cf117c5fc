"""Build the import graph of a source tree: its modules, folders and doors, and the circles among them.

Everything is found by walking the folders below a root, so that the same code measures any arrangement of the files.
The architecture test and ``python -m bench house`` share it.

Terms:
    module: a Python file below one of the packages; generated protocol files do not count.
    role: a top-level package, or a folder directly below ``rollcast/``, which holds packages of equal rank.
    door: a module at the top of a role (``coordinator/service.py``). Doors connect the folders of their role, therefore
        each one is a node of its own.
    floor: a node of the folder graph: a door, or a folder with the modules that lie directly in it.
    circle: several floors that all reach each other through imports.
"""

from __future__ import annotations

import ast
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from functools import cache
from pathlib import Path, PurePosixPath

PACKAGES = ("rollcast", "coordinator", "peer", "learner", "capacity", "bench")

#: An import: the importing module and the imported one, as dotted names.
Pair = tuple[str, str]
#: Importing floor and imported floor -> the imports between them.
FloorGraph = dict[tuple[str, str], set[Pair]]

_PARENT_OF_ROLES = "rollcast"
_GENERATED = ("_pb2.py", "_pb2_grpc.py")
_ORDERS_TRIED = 32  # random orders from which the smallest cut of a circle is searched


def find_modules(root: Path, packages: tuple[str, ...] = PACKAGES) -> dict[str, PurePosixPath]:
    """Return every module by its dotted name, with its path relative to the root; packages' ``__init__`` included."""
    found = {}
    for package in packages:
        for path in sorted((root / package).rglob("*.py")):
            if not path.name.endswith(_GENERATED):
                relative = PurePosixPath(path.relative_to(root).as_posix())
                found[_dotted(relative)] = relative
    return found


def find_imports(root: Path, modules: Mapping[str, PurePosixPath]) -> set[Pair]:
    """Return all pairs of an importing and an imported module.

    Imports inside functions and under ``if TYPE_CHECKING`` count as well. Modules named only in strings do not.

    Raises:
        ValueError: a module has a relative import, which this project does not use.
    """
    pairs = set()
    for name, path in modules.items():
        for candidates in _imported_names(root / path):
            target = next((one for one in candidates if one in modules), None)
            if target is not None and target != name:
                pairs.add((name, target))
    return pairs


@cache
def import_statements(source: str) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """Return the import statements of a module's source, those inside functions too.

    They are kept, because each rule asks for those of the whole tree, and parsing is nearly all of its time.
    """
    return tuple(node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom))


def count_by_folder(modules: Mapping[str, PurePosixPath]) -> dict[str, int]:
    """Return the number of modules directly in each folder; ``__init__`` does not count."""
    counts: dict[str, int] = defaultdict(int)
    for path in modules.values():
        if path.name != "__init__.py":
            counts[str(path.parent)] += 1
    return dict(counts)


def floor_of(path: PurePosixPath) -> str:
    """Return the floor of a module: its own path if it is a door, else its folder."""
    folder = path.parent
    at_top = len(folder.parts) == (2 if folder.parts[0] == _PARENT_OF_ROLES else 1)
    return str(path if at_top and path.name != "__init__.py" else folder)


def build_floor_graph(modules: Mapping[str, PurePosixPath], pairs: Set[Pair]) -> FloorGraph:
    """Return the imports between different floors."""
    graph: FloorGraph = defaultdict(set)
    for importing, imported in pairs:
        lower, upper = floor_of(modules[imported]), floor_of(modules[importing])
        if lower != upper:
            graph[upper, lower].add((importing, imported))
    return dict(graph)


def find_circles(graph: FloorGraph) -> list[frozenset[str]]:
    """Return the strongly connected components of more than one floor, the largest first."""
    targets: dict[str, set[str]] = defaultdict(set)
    for upper, lower in graph:
        targets[upper].add(lower)
    reached = {floor: _reachable(floor, targets) for floor in sorted(targets)}
    circles = {frozenset(one for one in below if floor in reached.get(one, ())) for floor, below in reached.items()} - {
        frozenset()
    }
    return sorted(circles, key=lambda circle: (-len(circle), sorted(circle)))


def imports_to_cut(circle: Set[str], graph: FloorGraph) -> set[Pair]:
    """Return the smallest set of imports found whose removal leaves no circle among these floors.

    That is the minimum feedback arc set, weighted by imports. The search moves one floor at a time to its best place,
    from many orders that are the same in each call; on circles of a few dozen floors it finds the minimum in practice.
    """
    inside = {edge: pairs for edge, pairs in graph.items() if circle >= set(edge)}
    chance = random.Random(0)
    best: set[Pair] | None = None
    for _ in range(_ORDERS_TRIED):
        order = sorted(circle)
        chance.shuffle(order)
        place = {floor: number for number, floor in enumerate(_improve(order, inside))}
        upward = {one for (upper, lower), pairs in inside.items() if place[upper] < place[lower] for one in pairs}
        if best is None or len(upward) < len(best):
            best = upward
    return best or set()


def break_rules(pairs: Set[Pair], may_import: Mapping[str, Set[str]]) -> set[Pair]:
    """Return the imports that the package rules forbid.

    Args:
        may_import: role as a dotted name -> the roles that it may import besides itself. A role without an entry may
            import every other one.
    """
    broken = set()
    for importing, imported in pairs:
        own, other = _role_of(importing), _role_of(imported)
        if own in may_import and other not in {own, _PARENT_OF_ROLES, *may_import[own]}:
            broken.add((importing, imported))
    return broken


def _dotted(path: PurePosixPath) -> str:
    parts = path.parent.parts if path.name == "__init__.py" else path.with_suffix("").parts
    return ".".join(parts)


def _role_of(module: str) -> str:
    """Return the role of a module as a dotted name; ``rollcast`` itself, which is above the roles, for its own."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == _PARENT_OF_ROLES else parts[0]


def _imported_names(path: Path) -> Iterator[tuple[str, ...]]:
    """Yield for each imported name the modules that it may mean, the most specific one first."""
    for node in import_statements(path.read_text()):
        if isinstance(node, ast.Import):
            yield from ((alias.name,) for alias in node.names)
        else:
            if node.level:
                raise ValueError(f"{path}, line {node.lineno}: relative import")
            yield from ((f"{node.module}.{alias.name}", node.module or "") for alias in node.names)


def _reachable(start: str, targets: Mapping[str, Set[str]]) -> set[str]:
    """Return the floors that this one imports, directly or through others."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        fresh = targets.get(waiting.pop(), set()) - found
        found |= fresh
        waiting.extend(fresh)
    return found


def _improve(order: list[str], graph: FloorGraph) -> list[str]:
    """Return the order, lowest floor first, after moving single floors until no move removes an upward import."""
    weights = {edge: len(pairs) for edge, pairs in graph.items()}

    def upward_at(floor: str, others: list[str], place: int) -> int:
        into = sum(weights.get((below, floor), 0) for below in others[:place])
        return into + sum(weights.get((floor, above), 0) for above in others[place:])

    improved = True
    while improved:
        improved = False
        for floor in list(order):
            now = order.index(floor)
            others = order[:now] + order[now + 1 :]
            costs = [upward_at(floor, others, place) for place in range(len(order))]
            best = costs.index(min(costs))
            if costs[best] < costs[now]:
                order, improved = [*others[:best], floor, *others[best:]], True
    return order
