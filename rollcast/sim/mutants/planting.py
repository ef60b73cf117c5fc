"""How a bug is planted into the real code, and taken out again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

#: Given what is there, gives what takes its place.
Change = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Patch:
    """One attribute of a module or a class, and what becomes of it."""

    owner: Any
    name: str
    change: Change


@dataclass(frozen=True, slots=True)
class Mutant:
    """A planted bug. ``against`` is the invariant that it breaks; another rule may see it first."""

    name: str
    against: str
    text: str
    patches: tuple[Patch, ...]


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """The bug is in the code for as long as the body runs."""
    before = [(patch, vars(patch.owner)[patch.name]) for patch in mutant.patches]
    try:
        for patch, original in before:
            setattr(patch.owner, patch.name, patch.change(original))
        yield
    finally:
        for patch, original in before:
            setattr(patch.owner, patch.name, original)


def always(value: Any) -> Change:
    """A function that looks at nothing and returns this."""
    return lambda _original: lambda *_args, **_kwargs: value


def plain(value: Any) -> Change:
    """Another value."""
    return lambda _original: value
