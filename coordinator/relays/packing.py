"""Encode a relay problem and its solution for the pipe between the coordinator and the process that solves it. Pure.

Members are named by their place in the problem's list. A solution holds only the assignments that differ from those of
the solution before, and goes in messages of a few hundred members, so that no turn of the event loop reads much.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from coordinator.core.broadcast.nodes import Parents, Plan, PlanMode, PlanShape, RelayNode, Stripe
from coordinator.core.broadcast.problem import RelayProblem, RelaySolution
from coordinator.core.events.actions import Assignment, Neighbour, StripeAssignment
from rollcast.wire.ids import PeerId, StripeId

NODES_A_MESSAGE = 500
PARTS_A_MESSAGE = 200  # some 5 ms of the event loop

_PLACES, _RATES = "I", "d"  # type codes of arrays: members' places, and bytes a second


class Nodes(msgspec.Struct, frozen=True, array_like=True, tag="nodes"):
    """The next members of a problem, and the upload of each to plan with."""

    nodes: list[RelayNode]
    uplinks: bytes


class Solve(msgspec.Struct, frozen=True, array_like=True, tag="solve"):
    """The end of a problem. ``continues``: from the process's newest solution."""

    root: int
    continues: bool


class Parts(msgspec.Struct, frozen=True, array_like=True, tag="parts"):
    """The next assignments that changed; ``neighbours`` extends the table into which they index."""

    neighbours: list[Neighbour]
    parts: list[PackedPart]


class PackedPart(msgspec.Struct, frozen=True, array_like=True):
    """The assignment of the member at ``place``."""

    place: int
    neighbours: tuple[int, ...]
    stripes: tuple[StripeAssignment, ...]
    list_children: tuple[int, ...]
    parents: tuple[int, ...]
    fallbacks: tuple[int, ...]
    direct_copies: bool


class Tree(msgspec.Struct, frozen=True, array_like=True, tag="tree"):
    """The next stripe of the plan, or the tree of announcements, which has no stripe and comes last."""

    stripe: StripeId | None
    share: float
    children: bytes
    parents: bytes


class Solved(msgspec.Struct, frozen=True, array_like=True, tag="solved"):
    """The end of a solution."""

    mode: PlanMode
    bytes_per_second: float
    pullers: bytes


_encoder = msgspec.msgpack.Encoder()
_to_solver = msgspec.msgpack.Decoder(Nodes | Solve)
_from_solver = msgspec.msgpack.Decoder(Parts | Tree | Solved)
_shape = msgspec.msgpack.Decoder(PlanShape)


def pack_shape(shape: PlanShape) -> bytes:
    """Return the settings of every problem of a process."""
    return _encoder.encode(shape)


def unpack_shape(data: bytes) -> PlanShape:
    """Return what pack_shape encoded."""
    return _shape.decode(data)


def pack_problem(problem: RelayProblem, *, continues: bool) -> Iterator[bytes]:
    """Yield the messages of a problem."""
    for first in range(0, len(problem.nodes), NODES_A_MESSAGE):
        nodes = problem.nodes[first : first + NODES_A_MESSAGE]
        uplinks = array(_RATES, [problem.uplinks[node.peer_id] for node in nodes])
        yield _encoder.encode(Nodes(list(nodes), uplinks.tobytes()))
    yield _encoder.encode(Solve(problem.nodes.index(problem.root), continues))


class ProblemReader:
    """Reads the messages of problems, in the process that solves them."""

    def __init__(self, shape: PlanShape) -> None:
        self._shape = shape
        self._nodes: list[RelayNode] = []
        self._uplinks: dict[PeerId, float] = {}

    def take(self, data: bytes, newest: RelaySolution | None) -> RelayProblem | None:
        """Read a message; return the problem once it is complete.

        Args:
            newest: the newest solution of this process, from which the problem may continue.
        """
        message = _to_solver.decode(data)
        if isinstance(message, Nodes):
            rates = array(_RATES, message.uplinks)
            self._uplinks.update(zip((node.peer_id for node in message.nodes), rates, strict=True))
            self._nodes += message.nodes
            return None
        nodes, uplinks, self._nodes, self._uplinks = self._nodes, self._uplinks, [], {}
        before = newest if message.continues else None
        return RelayProblem(nodes, nodes[message.root], uplinks, self._shape, before)


def pack_solution(problem: RelayProblem) -> Iterator[bytes]:
    """Yield the messages of a solved problem."""
    solution, before = problem.solve(), problem.before
    places = {node.peer_id: place for place, node in enumerate(problem.nodes)}
    known: Mapping[PeerId, Assignment] = {} if before is None else before.parts
    changed = [peer_id for peer_id, part in solution.parts.items() if known.get(peer_id) != part]
    table: dict[Neighbour, int] = {}
    for first in range(0, len(changed), PARTS_A_MESSAGE):
        named = len(table)
        parts = [_packed(places[one], solution.parts[one], table) for one in changed[first : first + PARTS_A_MESSAGE]]
        yield _encoder.encode(Parts(list(table)[named:], parts))
    plan = solution.plan
    for stripe in plan.stripes:
        yield _encoder.encode(_tree(stripe.stripe, stripe.share, stripe.parents, places))
    yield _encoder.encode(_tree(None, 0.0, plan.list_parents, places))
    pullers = array(_PLACES, sorted(places[one] for one in plan.pullers))
    yield _encoder.encode(Solved(plan.mode, plan.bytes_per_second, pullers.tobytes()))


def _packed(place: int, part: Assignment, table: dict[Neighbour, int]) -> PackedPart:
    return PackedPart(
        place,
        tuple([table.setdefault(one, len(table)) for one in part.neighbours]),
        part.stripes,
        part.list_children,
        part.parents,
        tuple([table.setdefault(one, len(table)) for one in part.fallbacks]),
        part.direct_copies,
    )


def _tree(stripe: StripeId | None, share: float, parents: Parents, places: Mapping[PeerId, int]) -> Tree:
    children = array(_PLACES, [places[one] for one in parents])
    above = array(_PLACES, [places[one] for one in parents.values()])
    return Tree(stripe, share, children.tobytes(), above.tobytes())


class SolutionReader:
    """Reads the messages of one solution, in the coordinator.

    Args:
        before: the solution that the process had when it was given the problem; None if it began afresh.
    """

    def __init__(self, problem: RelayProblem, before: RelaySolution | None) -> None:
        self._problem = problem
        self._ids = [node.peer_id for node in problem.nodes]
        self._known: Mapping[PeerId, Assignment] = {} if before is None else before.parts
        self._table: list[Neighbour] = []
        self._changed: dict[PeerId, Assignment] = {}
        self._stripes: list[Stripe] = []
        self._list_parents: Parents = {}

    def take(self, data: bytes) -> RelaySolution | None:
        """Read a message; return the solution once it is complete.

        Raises:
            ValueError, LookupError: the message is not what the process writes.
        """
        match _from_solver.decode(data):
            case Parts(neighbours, parts):
                self._table += neighbours
                for part in parts:
                    self._changed[self._ids[part.place]] = self._assignment(part)
            case Tree(stripe, share, children, parents):
                tree = dict(zip(self._named(children), self._named(parents), strict=True))
                if stripe is None:
                    self._list_parents = tree
                else:
                    self._stripes.append(Stripe(stripe, tree, share))
            case Solved(mode, rate, pullers):
                root, slow = self._problem.root.peer_id, frozenset(self._named(pullers))
                plan = Plan(root, mode, tuple(self._stripes), rate, self._list_parents, slow)
                return RelaySolution(plan, self._parts(), None)
        return None

    def _parts(self) -> dict[PeerId, Assignment]:
        changed, known = self._changed, self._known
        return {one: changed[one] if one in changed else known[one] for one in self._ids}

    def _assignment(self, part: PackedPart) -> Assignment:
        table = self._table
        return Assignment(
            tuple([table[one] for one in part.neighbours]),
            part.stripes,
            part.list_children,
            part.parents,
            tuple([table[one] for one in part.fallbacks]),
            part.direct_copies,
        )

    def _named(self, places: bytes) -> Sequence[PeerId]:
        ids = self._ids
        return [ids[place] for place in array(_PLACES, places)]
