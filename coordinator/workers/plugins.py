"""Load what a user brings: an object of a Python file, or one that an installed package registers.

Only the standard library and our errors are imported, because environments are also loaded by other interpreters.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from pathlib import Path
from typing import Any

from coordinator.workers.tracebacks import users_traceback
from rollcast.runtime.errors import TaskError


def load_plugin(path: str, group: str) -> Any:
    """Return the object that ``path`` names: `FILE.py:NAME`, or the name of an entry point of the group.

    The file's folder is searched for the modules that it imports, as when Python runs the file.

    Raises:
        TaskError: there is no such file, name or entry point, or importing it fails.
    """
    file, colon, name = path.rpartition(":")
    try:
        return _from_file(Path(file), name) if colon else _from_entry_point(path, group)
    except (TaskError, KeyboardInterrupt):
        raise
    except BaseException as error:  # the user's module may raise anything, SystemExit among them
        fix = f"correct {path.rpartition(':')[0] or 'the package'} where the cause says"
        raise TaskError(f"{path} cannot be loaded", cause=users_traceback(error), fix=fix) from error


def _from_file(file: Path, name: str) -> Any:
    if file.suffix != ".py" or not file.is_file():
        found = "is not a Python file" if file.exists() else "does not exist"
        raise TaskError(
            f"{file} {found}",
            cause=f"a path is read as FILE.py:NAME, relative to the working directory {Path.cwd()}",
            fix="correct the path",
        )
    folder = str(file.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module  # as an import would: dataclasses look their module up
    spec.loader.exec_module(module)
    return _attribute(module, name, str(file))


def _attribute(module: Any, name: str, where: str) -> Any:
    if not hasattr(module, name):
        has = sorted(one for one in vars(module) if not one.startswith("_"))
        raise TaskError(f"{where} has no {name!r}", cause=f"it has {', '.join(has)[:300]}", fix="correct the name")
    return getattr(module, name)


def _from_entry_point(name: str, group: str) -> Any:
    found = {one.name: one for one in importlib.metadata.entry_points(group=group)}
    if name not in found:
        raise TaskError(
            f"no installed package offers {name!r}",
            cause=f"the entry points of {group} are {', '.join(sorted(found)) or 'none'}",
            fix="install the package, or write FILE.py:NAME",
        )
    return found[name].load()
