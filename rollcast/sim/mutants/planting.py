"""Plant a bug into the real code, and remove it again."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

#: Takes the original attribute and returns its replacement.
Change = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Patch:
    """One attribute of a module or a class, and its change."""

    owner: Any
    name: str
    change: Change


@dataclass(frozen=True, slots=True)
class Mutant:
    """A planted bug. ``against`` is the invariant that it breaks; another rule may see it first.

    ``fleet`` has settings of the standard mix that differ while the bug is hunted.
    """

    name: str
    against: str
    text: str
    patches: tuple[Patch, ...]
    fleet: Mapping[str, Any] = field(default_factory=dict)


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """Plant the bug while the body runs. A class that inherits the attribute gets its own; its siblings keep theirs."""
    before = [(patch, inspect.getattr_static(patch.owner, patch.name)) for patch in mutant.patches]
    inherited = [patch for patch, _original in before if patch.name not in vars(patch.owner)]
    try:
        for patch, original in before:
            setattr(patch.owner, patch.name, patch.change(original))
        yield
    finally:
        for patch, original in before:
            if patch in inherited:
                delattr(patch.owner, patch.name)
            else:
                setattr(patch.owner, patch.name, original)


def always(value: Any) -> Change:
    """Return a change that replaces a function by one that ignores its arguments and returns ``value``."""
    return lambda _original: lambda *_args, **_kwargs: value


def plain(value: Any) -> Change:
    """Return a change that replaces an attribute by ``value``."""
    return lambda _original: value
