"""Find how the state of a version follows from other states by deltas, and which files are needed for that. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from rollcast.wire.ids import Version


@dataclass(frozen=True, slots=True)
class Step:
    """Apply the delta of a version: forwards it leads to this version, backwards to the version that it starts from."""

    delta: Version
    forwards: bool


@dataclass(frozen=True, slots=True)
class Path:
    """The way from a version whose state is here to another one."""

    source: Version
    steps: tuple[Step, ...]


class Lineage:
    """The versions whose deltas are kept, each with the version that its delta starts from.

    Args:
        bases: the version from which the delta of each version leads to it.
        invertible: returns whether the delta of a version also leads back.
    """

    def __init__(self, bases: Mapping[Version, Version], invertible: Callable[[Version], bool]) -> None:
        self._bases = bases
        self._invertible = invertible
        self._following: dict[Version, list[Version]] = {}
        for version, base in bases.items():
            self._following.setdefault(base, []).append(version)

    def path(self, target: Version, sources: Collection[Version]) -> Path | None:
        """Return the way with the fewest deltas from one of the sources to a version; None if there is none."""
        ways = {target: Path(target, ())}
        queue = deque([target])
        while queue:
            version = queue.popleft()
            if version in sources:
                return ways[version]
            for before, step in self._before(version):
                if before not in ways:
                    ways[before] = Path(before, (step, *ways[version].steps))
                    queue.append(before)
        return None

    def needed(self, wanted: Iterable[Version], states: Collection[Version]) -> tuple[set[Version], set[Version]]:
        """Return the states, and the versions of the deltas, that are needed to make the state of each wanted version.

        Of the states from which a version can be made, the newest is taken, so that few are needed.
        """
        needed_states, needed_deltas = set[Version](), set[Version]()
        for version in wanted:
            for source in sorted(states, reverse=True):
                if (path := self.path(version, {source})) is not None:
                    needed_states.add(source)
                    needed_deltas |= {step.delta for step in path.steps}
                    break
        return needed_states, needed_deltas

    def _before(self, version: Version) -> Iterable[tuple[Version, Step]]:
        if version in self._bases:
            yield self._bases[version], Step(version, forwards=True)
        for later in self._following.get(version, ()):
            if self._invertible(later):
                yield later, Step(later, forwards=False)
