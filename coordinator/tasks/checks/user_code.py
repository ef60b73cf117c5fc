"""Load functions that users wrote: of a file, or of an installed entry point."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from rollcast.runtime.errors import TaskError

REWARDS = "rollcast.rewards"
TASKS = "rollcast.tasks"


def load_function(path: str, name: str, group: str) -> Callable[..., Any]:
    """Return the function of a file (`reward.py:score`), or the entry point ``name`` of ``group``.

    The folder of the file is put on the import path, so that it can import its neighbours. The code runs with the
    rights of this process: it is the operator's own, unlike what completions contain.

    Raises:
        TaskError: the file or function does not exist, or importing it fails; the cause has the end of the traceback.
    """
    what = path or f"the entry point {name!r} of {group}"
    try:
        found = _of_file(path) if path else _of_entry_point(name, group)
    except TaskError:
        raise
    except Exception as error:
        raise TaskError(
            f"{what} cannot be imported", cause=f"{type(error).__name__}: {error}", fix="correct the file"
        ) from error
    if not callable(found):
        raise TaskError(f"{what} is not a function", cause=f"it is a {type(found).__name__}", fix="name a function")
    return found  # type: ignore[no-any-return]


def _of_file(path: str) -> Any:
    text, _, function = path.rpartition(":")
    file = Path(text).expanduser().resolve()
    if not file.is_file():
        raise TaskError(
            f"there is no file {text}", fix="correct the path; a relative one starts at the working directory"
        )
    module_name = f"rollcast_user_{file.stem}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None:
        raise TaskError(f"{text} is not a Python file", fix="give a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    if not hasattr(module, function):
        raise TaskError(f"{text} has no function {function!r}", fix="correct the name after the colon")
    return getattr(module, function)


def _of_entry_point(name: str, group: str) -> Any:
    known = {one.name: one for one in entry_points(group=group)}
    if name not in known:
        installed = ", ".join(sorted(known)) or "none"
        raise TaskError(
            f"no installed package has the entry point {name!r} in {group}",
            cause=f"installed: {installed}",
            fix="install the package, or correct the name",
        )
    return known[name].load()
