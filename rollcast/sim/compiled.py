"""Compile the cores and the simulator with mypyc, and import them so: an option for simulations of many peers or hours.

`make compiled` needs gcc and Python's headers, takes minutes, and writes to build/compiled, so that no compiled module
lies beside a source. Nothing imports the result unless `use` is called before the modules are imported. It refuses when
a source has changed since: an edit is never ignored silently. Live processes run the sources.

    python -m rollcast.sim.compiled build
    python -m rollcast.sim.compiled run MODULE ARGUMENT...    # MODULE.main(ARGUMENT...) with what was compiled
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import sys
from collections.abc import Sequence
from hashlib import sha256
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from sysconfig import get_path
from types import ModuleType

from rollcast.runtime.errors import ConfigError, RollcastError

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "compiled"

FOLDERS = (
    "coordinator/core",
    "coordinator/core/broadcast",
    "coordinator/core/decisions",
    "coordinator/core/events",
    "coordinator/core/leases",
    "coordinator/core/members",
    "coordinator/core/reach",
    "coordinator/core/staleness",
    "coordinator/core/traversal",
    "peer/worker/core",
    "rollcast/sim",
    "rollcast/sim/judge",
    "rollcast/sim/kernel",
    "rollcast/sim/nodes",
    "rollcast/sim/store",
)
"""Folders whose modules handle most events of a simulation."""
MODULES = (
    *(f"rollcast/wire/{name}.py" for name in ("address_scope", "rollout_messages", "rollouts", "token_ids")),
    "capacity/model/broadcast_bound.py",
    "capacity/model/pacing_rules.py",
    "coordinator/core/lent/lent.py",
    "coordinator/core/status/status.py",
    "coordinator/core/status/wait_causes.py",
    "coordinator/tasks/checks/task.py",
    "learner/training/trained_ids.py",
    "rollcast/wire/versions/records.py",
)
"""Modules of other folders, which nearly every simulated rollout passes through."""
_PACKAGES = ("capacity", "coordinator", "learner", "peer", "rollcast")
_INTERPRETED = ("compiled.py", "parallel.py", "validation.py")
_GROUP = "rollcast_cores"  # all modules share one library, in which they call each other as C functions
_LIBRARY = f"{_GROUP}__mypyc"
_MANIFEST = "manifest.json"


def sources() -> list[str]:
    """Return the paths of the modules that are compiled, relative to ROOT; a package's `__init__` only describes it."""
    found = (path for folder in FOLDERS for path in (ROOT / folder).glob("*.py"))
    wanted = (path for path in found if not path.name.startswith("__") and path.name not in _INTERPRETED)
    return sorted([*(path.relative_to(ROOT).as_posix() for path in wanted), *MODULES])


def module_name(source: str) -> str:
    """Return the name under which a source is imported."""
    return source.removesuffix(".py").replace("/", ".")


def hashes() -> dict[str, str]:
    """Return the SHA-256 of each source that is compiled."""
    return {source: sha256((ROOT / source).read_bytes()).hexdigest() for source in sources()}


def build() -> None:
    """Compile the sources into FOLDER, and write there of which sources and for which Python they are.

    Raises:
        ConfigError: this machine has no C compiler, or no headers of Python.
    """
    _check_tools()
    from mypyc.build import mypycify
    from setuptools import setup

    shutil.rmtree(FOLDER, ignore_errors=True)
    compiled_from = hashes()
    os.chdir(_staged(list(compiled_from)))
    extensions = mypycify(
        list(compiled_from),
        opt_level="2",
        debug_level="0",
        multi_file=True,
        group_name=_GROUP,
        target_dir=str(FOLDER / "c"),
    )
    for one in extensions:  # they call each other within one library, which then needs no table of addresses
        one.extra_compile_args = [*one.extra_compile_args, "-fvisibility=hidden"]  # all share the list that they had
    folders = ["--build-lib", str(FOLDER / "lib"), "--build-temp", str(FOLDER / "objects")]
    os.chdir(ROOT)
    setup(name=_GROUP, packages=[], ext_modules=extensions, script_args=["--quiet", "build_ext", *folders])
    manifest = {"suffix": EXTENSION_SUFFIXES[0], "sources": compiled_from}
    (FOLDER / _MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")


def _staged(compiled_from: Sequence[str]) -> Path:
    """Copy all packages to a folder, with what is compiled in the form that mypyc compiles best; return the folder."""
    staged = FOLDER / "sources"
    for package in _PACKAGES:
        shutil.copytree(ROOT / package, staged / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", staged)
    for source in compiled_from:
        text = with_constructors(with_type_tests(with_finals((ROOT / source).read_text("utf-8"))))
        (staged / source).write_text(text, "utf-8")
    return staged


def with_finals(source: str) -> str:
    """Return a module's source with its numbers and texts declared as ``Final``, so that mypyc compiles their values.

    Every other name of a module is looked up in its dictionary whenever it is used. Line numbers stay.
    """
    lines, tree = source.splitlines(keepends=True), ast.parse(source)
    head = "from __future__ import annotations"
    if f"{head}\n" not in lines or any(isinstance(node, ast.Global) for node in ast.walk(tree)):
        return source
    lines[lines.index(f"{head}\n")] = f"{head}; from typing import Final\n"
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(target, ast.Name):
            continue
        if re.fullmatch(r"_?[A-Z][A-Z0-9_]+", target.id) and isinstance(node.value, ast.Constant):
            kind = f"Final[{ast.unparse(node.annotation)}]" if isinstance(node, ast.AnnAssign) else "Final"
            line = lines[node.lineno - 1]
            lines[node.lineno - 1] = f"{target.id}: {kind} = {line[line.index('= ') + 2 :]}"
    return "".join(lines)


def with_type_tests(source: str) -> str:
    """Return a module's source with ``isinstance`` in the place of each ``match`` whose cases are classes only.

    For a case mypyc looks up the class by its name and calls ``PyObject_IsInstance``; for ``isinstance`` it compares
    two pointers. Line numbers stay.
    """
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Match) or not isinstance(node.subject, ast.Name):
            continue
        tests = [_type_test(node.subject.id, case) for case in node.cases]
        if None in tests:
            continue
        _replace_head(lines, node, node.subject, "if True")
        for number, (case, test) in enumerate(zip(node.cases, tests, strict=True)):
            words = test and ("elif " if number else "if ") + test
            _replace_head(lines, case.pattern, case.guard or case.pattern, words or "else")
    return "".join(lines)


def _type_test(subject: str, case: ast.match_case) -> str | None:
    """Return the test that a case stands for; empty for the wildcard, and None if it is no test of a type."""
    pattern = case.pattern
    if isinstance(pattern, ast.MatchAs) and pattern.pattern is None and pattern.name is None and case.guard is None:
        return ""
    classes = list[str]()
    for one in pattern.patterns if isinstance(pattern, ast.MatchOr) else [pattern]:
        if not isinstance(one, ast.MatchClass) or one.patterns or one.kwd_patterns:
            return None
        classes.append(ast.unparse(one.cls))
    wanted = classes[0] if len(classes) == 1 else f"({', '.join(classes)})"
    test = f"isinstance({subject}, {wanted})"
    return test if case.guard is None else f"{test} and ({ast.unparse(case.guard)})"


def _replace_head(lines: list[str], first: ast.stmt | ast.pattern, last: ast.expr | ast.pattern, words: str) -> None:
    """Replace the line of a ``match`` or ``case`` by these words, up to the colon after ``last``."""
    line = lines[first.lineno - 1]
    assert first.lineno == last.end_lineno or isinstance(first, ast.Match), f"a case over several lines: {line}"
    indent = line[: len(line) - len(line.lstrip())]
    lines[first.lineno - 1] = indent + words + line[last.end_col_offset :]


def with_constructors(source: str) -> str:
    """Return a module's source with an ``__init__`` in its dataclasses, for mypyc, which compiles what it sees.

    The decorator makes constructors only when the module is imported, in Python: with arguments as a tuple and a
    dictionary, and in a frozen class a call for each field. They took a seventh of a simulation's time.
    """
    lines = source.splitlines(keepends=True)
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    bases = {ast.unparse(base) for node in classes for base in node.bases}  # mypyc would call theirs for the others
    for node in reversed([node for node in classes if node.name not in bases]):
        lines[node.end_lineno : node.end_lineno] = [f"    {line}\n" for line in _constructor(node)]
    return "".join(lines)


def _constructor(node: ast.ClassDef) -> list[str]:
    """Return the lines of a class's constructor; none if it is no dataclass, has one, or inherits fields."""
    options = _dataclass_options(node)
    methods = {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
    fields = [one for one in node.body if isinstance(one, ast.AnnAssign)]
    if options is None or "kw_only" in options or node.bases or "__init__" in methods or not fields:
        return []
    parameters, body = ["self"], list[str]()
    assigned = "{0} = {1}" + ("  # type: ignore[misc]" if "frozen" in options else "")
    for one in fields:
        name, kind = ast.unparse(one.target), ast.unparse(one.annotation)
        settings = _field_settings(one.value)
        if "init" in settings:  # __post_init__ sets it
            continue
        value = name
        if "default_factory" in settings:
            value = f"({settings['default_factory']})() if {name} is None else {name}"
            kind, settings = f"{kind} | None", {"default": "None"}
        parameters.append(f"{name}: {kind}" + (f" = {settings['default']}" if "default" in settings else ""))
        body.append(assigned.format(f"self.{name}", value))
    if "__post_init__" in methods:
        body.append("self.__post_init__()")
    return [f"def __init__({', '.join(parameters)}) -> None:", *(f"    {line}" for line in body)]


def _dataclass_options(node: ast.ClassDef) -> set[str] | None:
    """Return the names of the options with which a class is a dataclass; None if it is none."""
    for one in node.decorator_list:
        called, options = (one.func, one.keywords) if isinstance(one, ast.Call) else (one, [])
        if isinstance(called, ast.Name) and called.id == "dataclass":
            return {option.arg or "" for option in options}
    return None


def _field_settings(value: ast.expr | None) -> dict[str, str]:
    """Return the settings of a dataclass's field, as source: empty, its default, or what is passed to ``field``."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "field":
        return {word.arg or "": ast.unparse(word.value) for word in value.keywords}
    return {} if value is None else {"default": ast.unparse(value)}


def _check_tools() -> None:
    compiler = os.environ.get("CC", "gcc").split()[0]
    header = Path(get_path("include")) / "Python.h"
    absent = [
        *([] if shutil.which(compiler) else [f"there is no {compiler}"]),
        *([] if header.exists() else [f"there is no {header}"]),
    ]
    if absent:
        fix = "install a C compiler and Python's headers (Debian: apt-get install gcc libc6-dev python3-dev)"
        raise ConfigError("the cores cannot be compiled here", cause=", and ".join(absent), fix=fix)


def use() -> None:
    """Import what was compiled in place of its sources from now on.

    Raises:
        ConfigError: nothing was compiled, or for another Python, or from other sources than these.
        RuntimeError: one of the modules has been imported already.
    """
    if in_use():
        return
    check()
    early = [source for source in sources() if module_name(source) in sys.modules]
    if early:
        raise RuntimeError(f"{len(early)} modules were imported as sources already, such as {early[0]}")
    sys.meta_path.insert(0, _Finder())


def in_use() -> bool:
    """Whether the cores of this process are compiled."""
    return any(isinstance(finder, _Finder) for finder in sys.meta_path)


def check() -> None:
    """Raise ConfigError unless what was compiled is of these sources and for this Python."""
    fix = "run `make compiled` in the checkout, or do without --compiled"
    try:
        manifest = json.loads((FOLDER / _MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ConfigError("the cores are not compiled", cause=f"{FOLDER} holds none", fix=fix) from None
    if manifest["suffix"] != EXTENSION_SUFFIXES[0]:
        cause = f"they have the suffix {manifest['suffix']}, and this Python reads {EXTENSION_SUFFIXES[0]}"
        raise ConfigError("the cores were compiled for another Python", cause=cause, fix=fix)
    now, then = hashes(), manifest["sources"]
    other = sorted(source for source in now.keys() | then.keys() if now.get(source) != then.get(source))
    if other:
        cause = f"{other[0]} has changed since" + (f", and {len(other) - 1} more" if other[1:] else "")
        raise ConfigError("the cores were compiled from other sources", cause=cause, fix=fix)


class _Finder(MetaPathFinder):
    """Finds the compiled modules, before Python finds their sources."""

    def __init__(self) -> None:
        names = [_LIBRARY, *map(module_name, sources())]
        self._files = {name: FOLDER / "lib" / (name.replace(".", "/") + EXTENSION_SUFFIXES[0]) for name in names}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        """Return where a compiled module is; None if it is none."""
        file = self._files.get(fullname)
        if file is None:
            return None
        return spec_from_file_location(fullname, file, loader=ExtensionFileLoader(fullname, str(file)))


def main(act: str, *arguments: str) -> None:
    """Build, or run another module's ``main`` with what was compiled."""
    if act == "build":
        build()
        return
    from rollcast.sim import compiled  # this module may run as __main__

    compiled.use()
    import_module(arguments[0]).main(*arguments[1:])


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except RollcastError as error:
        sys.exit(str(error))
