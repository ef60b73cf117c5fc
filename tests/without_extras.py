"""Hide every package that only extras outside `dev` install, as a pytest plugin.

`make test` installs no other extra than `dev`; a developer's environment often has more. There,
`python -m pytest -p tests.without_extras` shows what the tests do on a fresh machine.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = "rollcast"


def pytest_addoption() -> None:
    """Hide the packages. Of all hooks, only this one runs before pytest loads the plugins of installed packages."""
    hide(hidden_distributions())


def hidden_distributions() -> set[str]:
    """Return the distributions that an extra of ours needs, directly or through others, and `dev` does not."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras: Mapping[str, list[str]] = project["optional-dependencies"]
    return _needed_by(extras, extras) - {PROJECT} - _needed_by(["dev"], extras, project["dependencies"])


def installed_distributions() -> set[str]:
    """Return the distributions of this environment."""
    return {canonicalize_name(one.name) for one in metadata.distributions()}


def hide(distributions: set[str]) -> None:
    """Make the rest of this process take these distributions for not installed."""
    for module, providers in metadata.packages_distributions().items():
        # A wheel may contain a stray top-level folder with a name that we use, such as `tests`.
        if distributions.issuperset(map(canonicalize_name, providers)) and not (ROOT / module).exists():
            # None makes `import` raise ModuleNotFoundError, and `find_spec` find nothing.
            sys.modules[module] = None  # type: ignore[assignment]
    find = metadata.MetadataPathFinder.find_distributions

    # Entry points: hypothesis, for example, would load trio's.
    def find_others(*args: Any, **kwargs: Any) -> Iterator[metadata.Distribution]:
        return (one for one in find(*args, **kwargs) if canonicalize_name(one.name) not in distributions)

    metadata.MetadataPathFinder.find_distributions = find_others  # type: ignore[method-assign, assignment]


def _needed_by(names: Iterable[str], extras: Mapping[str, list[str]], dependencies: Iterable[str] = ()) -> set[str]:
    waiting = [Requirement(line) for line in (*dependencies, f"{PROJECT}[{','.join(names)}]")]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        key = (name, frozenset(wanted.extras))
        if key in seen:
            continue
        seen.add(key)
        lines = [line for extra in wanted.extras for line in extras[extra]] if name == PROJECT else _requires(name)
        waiting += [needed for line in lines if _applies(needed := Requirement(line), wanted.extras)]
    return {name for name, _ in seen}


def _requires(distribution: str) -> list[str]:
    try:
        return metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:
        return []  # not installed, so there is nothing to hide


def _applies(needed: Requirement, extras: Iterable[str]) -> bool:
    return needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in (*extras, ""))
