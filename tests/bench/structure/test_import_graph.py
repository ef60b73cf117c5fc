from __future__ import annotations

from pathlib import Path

import pytest

from bench.structure import import_graph
from bench.structure.import_graph import FloorGraph


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def graph_of(root: Path) -> FloorGraph:
    modules = import_graph.find_modules(root)
    return import_graph.build_floor_graph(modules, import_graph.find_imports(root, modules))


def test_modules_are_counted_where_they_lie(tmp_path: Path) -> None:
    names = ("peer/__init__.py", "peer/service.py", "peer/relay/__init__.py", "peer/relay/a.py", "peer/relay/b.py")
    write(tmp_path, dict.fromkeys((*names, "rollcast/wire/proto/x_pb2.py", "other/c.py"), ""))
    modules = import_graph.find_modules(tmp_path)
    assert set(modules) == {"peer", "peer.service", "peer.relay", "peer.relay.a", "peer.relay.b"}
    assert import_graph.count_by_folder(modules) == {"peer": 1, "peer/relay": 2}


def test_every_form_of_import_counts(tmp_path: Path) -> None:
    text = """
import typing
import peer.links.one
from peer.links import two, NAME
if typing.TYPE_CHECKING:
    from peer.links.three import Three
def late():
    from peer.links import four as other
"""
    write(tmp_path, {"peer/links/__init__.py": "", "peer/relay/a.py": text})
    write(tmp_path, {f"peer/links/{name}.py": "" for name in ("one", "two", "three", "four", "five")})
    pairs = import_graph.find_imports(tmp_path, import_graph.find_modules(tmp_path))
    assert {importing for importing, _ in pairs} == {"peer.relay.a"}
    assert {imported for _, imported in pairs} == {
        *("peer.links", "peer.links.one", "peer.links.two", "peer.links.three", "peer.links.four")
    }


def test_a_relative_import_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, {"peer/a.py": "from . import b", "peer/b.py": ""})
    with pytest.raises(ValueError, match=r"peer/a.py, line 1: relative import"):
        import_graph.find_imports(tmp_path, import_graph.find_modules(tmp_path))


def test_folders_that_import_each_other_are_a_circle(tmp_path: Path) -> None:
    files = {"peer/a/one.py": "import peer.b.two", "peer/b/two.py": "", "peer/b/three.py": "import peer.a.four"}
    write(tmp_path, files | {"peer/a/four.py": "", "peer/c/five.py": "import peer.a.one"})
    assert import_graph.find_circles(graph_of(tmp_path)) == [frozenset({"peer/a", "peer/b"})]


def test_doors_are_floors_of_their_own(tmp_path: Path) -> None:
    below = {"peer/a/one.py": "from peer.config import C", "peer/config.py": ""}
    write(tmp_path, below | {"peer/service.py": "import peer.a.one", "rollcast/sim/world.py": "import peer.service"})
    assert import_graph.find_circles(graph_of(tmp_path)) == []
    write(tmp_path, {"peer/config.py": "import peer.service"})
    assert import_graph.find_circles(graph_of(tmp_path)) == [frozenset({"peer/a", "peer/config.py", "peer/service.py"})]


def test_the_fewest_imports_are_cut() -> None:
    graph: FloorGraph = {
        ("a", "b"): {("a.1", "b.1"), ("a.2", "b.1")},
        ("b", "c"): {("b.1", "c.1"), ("b.2", "c.1")},
        ("c", "a"): {("c.1", "a.1")},
        ("c", "b"): {("c.1", "b.1")},
        ("d", "a"): {("d.1", "a.1")},
    }
    (circle,) = import_graph.find_circles(graph)
    assert circle == {"a", "b", "c"}
    assert import_graph.imports_to_cut(circle, graph) == {("c.1", "a.1"), ("c.1", "b.1")}
    left = {edge: pairs for edge, pairs in graph.items() if edge not in {("c", "a"), ("c", "b")}}
    assert import_graph.find_circles(left) == []


def test_imports_against_the_package_rules_are_found() -> None:
    rules: dict[str, set[str]] = {"rollcast.wire": {"rollcast.runtime"}, "peer": {"rollcast.wire"}}
    allowed = {("peer.a", "rollcast.wire.ids"), ("peer.a", "peer.b"), ("peer.a", "rollcast"), ("bench.a", "peer.a")}
    forbidden = {("peer.a", "rollcast.runtime.errors"), ("rollcast.wire.ids", "peer.a"), ("peer.a", "bench.a")}
    assert import_graph.break_rules(allowed | forbidden, rules) == forbidden
