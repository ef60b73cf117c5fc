"""Test the order of the core's modules, and the core among hostile peers; other tests cover each module's decisions."""

from __future__ import annotations

import ast
import re
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.links.neighbours import EncodingKey
from peer.relay.core import core
from peer.relay.core.core import RelayCore
from peer.relay.core.state.actions import (
    Accuse,
    Action,
    AnnounceHeld,
    BeginStore,
    CloseLink,
    Dial,
    FinishVersion,
    SendChunk,
    SendRequest,
    SendWant,
    Verify,
)
from peer.relay.core.state.events import (
    AnnouncementReceived,
    BroadcastStarted,
    CancelReceived,
    ChunkArrived,
    ChunkCorrupt,
    ChunkListReceived,
    ChunkSent,
    ChunkVerified,
    CreditReceived,
    DeclineReceived,
    EncodingKnown,
    Event,
    GotReceived,
    HaveReceived,
    LinkDown,
    LinkId,
    LinkUp,
    RequestReceived,
    StoreReady,
    Tick,
    VersionFinished,
    VersionRestored,
    WantReceived,
)
from peer.relay.core.state.relay_state import RelaySettings
from rollcast.wire.ids import ChunkIndex, PeerId, StripeId
from rollcast.wire.links.frames import NO_STRIPE
from tests.peer.relay.relay_steps import CHUNK_BYTES, KEY, Steps, bitmap, key_of, neighbour, plan

CHUNKS = 24
HONEST = LinkId(1)
HOSTILE_NAMES = ("bad-1", "bad-2", "bad-3")
NEIGHBOURS = (neighbour("origin", "origin"), *map(neighbour, HOSTILE_NAMES))
OTHER_KEYS = (KEY, KEY, KEY, key_of(1, 3), key_of(0), key_of(9))

PACKAGE = "peer.relay.core"


# ---------------------------------------------------------------- the pipeline


def pipeline_rows(drawing: str) -> list[list[str]]:
    """Return the modules of each row of the pipeline that a docstring draws, the topmost first."""
    return [found[1].split() for found in re.finditer(r"^    ([a-z_]+(?:  ?[a-z_]+)*)   +\S", drawing, re.MULTILINE)]


def upward_imports(rows: Sequence[Sequence[str]], sources: Mapping[str, str]) -> set[str]:
    """Return the imports, as ``importing -> imported``, that do not lead to a row further down."""
    row_of = {name: number for number, names in enumerate(rows) for name in names}
    found = set()
    for name, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith(PACKAGE):
                continue
            module = (node.module or "").removeprefix(PACKAGE).removeprefix(".").partition(".")[0]
            for imported in [module] if module else [alias.name for alias in node.names]:
                if imported != name and row_of[imported] <= row_of[name]:
                    found.add(f"{name} -> {imported}")
    return found


def test_modules_import_only_from_the_rows_below_their_own() -> None:
    folder = Path(core.__file__).parent
    sources = {path.stem: path.read_text() for path in folder.glob("*.py") if path.stem != "__init__"}
    for path in folder.glob("*/*.py"):
        sources[path.parent.name] = sources.get(path.parent.name, "") + path.read_text()
    rows = pipeline_rows(core.__doc__ or "")
    assert sorted(name for names in rows for name in names) == sorted(sources)
    assert not upward_imports(rows, sources)


@pytest.mark.parametrize(
    ("importing", "source", "expected"),
    [
        ("forwarding", "from peer.relay.core import pulling, receiving", {"forwarding -> receiving"}),
        ("pulling", "from peer.relay.core.links import link_up", {"pulling -> links"}),
        ("pulling", "from peer.relay.core.pulling.late import late_below", set[str]()),
        ("links", "from peer.relay.core import receiving", {"links -> receiving"}),
        ("links", "from peer.relay.core.state.events import Event", set[str]()),
    ],
)
def test_an_upward_import_is_found(importing: str, source: str, expected: set[str]) -> None:
    assert upward_imports(pipeline_rows(core.__doc__ or ""), {importing: source}) == expected


# ---------------------------------------------------------------- among hostile peers


class Nonsense:
    """Generate everything that a peer with a certificate of the run can send."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.links: dict[LinkId, str] = {}
        self.last_link = 10

    def event(self) -> Event:
        random = self.random
        if not self.links or random.random() < 0.03:
            self.last_link += 1
            name = random.choice(HOSTILE_NAMES)
            self.links[LinkId(self.last_link)] = name
            role = random.choice(["peer", "peer", "origin"])
            return LinkUp(LinkId(self.last_link), PeerId(name), role, random.random() < 0.5)
        link, key = random.choice(sorted(self.links)), random.choice(OTHER_KEYS)
        index = random.choice([0, 1, random.randrange(CHUNKS), random.randrange(CHUNKS), CHUNKS, 1 << 31])
        indices = tuple(random.choices(range(CHUNKS + 2), k=random.choice([1, 5, 40])))
        size = random.choice([CHUNKS, CHUNKS, 0, 5])
        claimed = random.choice([b"", b"\xff" * 3, bitmap(CHUNKS, *random.sample(range(CHUNKS), 6)), b"\x01"])
        stripe = random.choice([StripeId(0), StripeId(4), StripeId(77), NO_STRIPE])
        match random.randrange(11):
            case 10:
                news = random.choice([*map(key_of, range(1, 9)), key_of(1 << 40)])
                return HaveReceived(link, news, size, claimed, random.random() < 0.4)
            case 0:
                return WantReceived(link, key, random.random() < 0.5, random.random() < 0.3)
            case 1:
                return RequestReceived(link, key, indices)
            case 2:
                return CancelReceived(link, key, "because")
            case 3 | 4:
                return HaveReceived(link, key, size, claimed, random.random() < 0.4)
            case 5:
                return ChunkListReceived(link, key, random.random() < 0.9)
            case 6:
                kind = random.choice([CreditReceived, GotReceived, DeclineReceived])
                return kind(link, key, indices)
            case 7:
                return ChunkSent(link)
            case 8 if random.random() < 0.2:
                del self.links[link]
                return LinkDown(link, "left", random.random())
        return ChunkArrived(link, key, ChunkIndex(index), stripe, CHUNK_BYTES)


class World:
    """A core, its store, an honest origin, and peers that send nonsense."""

    def __init__(self, core: RelayCore, random: Random, lies: float) -> None:
        self.core = core
        self.nonsense = Nonsense(random)
        self.random = random
        self.lies = lies
        self.now = 0.0
        self.jobs: deque[Event] = deque()
        self.from_honest: deque[Event] = deque()
        self.held: list[EncodingKey] = []
        self.actions = 0

    def tell(self, event: Event) -> None:
        actions = self.core.handle(event, self.now)
        self.core.state.validate()
        self.actions += len(actions)
        for action in actions:
            self._do(action, event)

    def _do(self, action: Action, cause: Event) -> None:
        match action:
            case BeginStore(key=key):
                self.jobs.append(StoreReady(key, bitmap(CHUNKS)))
            case FinishVersion(key=key):
                assert self.core.state.encodings[key].have.complete
                self.jobs.append(VersionFinished(key))
            case AnnounceHeld(key=key):
                self.held.append(key)
            case Verify(link=link, key=key, index=index, stripe=stripe):
                assert isinstance(cause, ChunkArrived)
                if link != HONEST and self.random.random() < self.lies:
                    self.tell(ChunkCorrupt(link, key, index))
                else:
                    self.tell(ChunkVerified(link, key, index, stripe, CHUNK_BYTES))
            case CloseLink(link=link) | Accuse(link=link):
                assert link != HONEST
                self.nonsense.links.pop(link, None)
            case SendChunk(link=link, key=key, index=index):
                assert index in self.core.state.encodings[key].have, "only what is verified is sent"
                if link == HONEST:
                    self.from_honest.append(ChunkSent(link))
            case SendWant(link=link, key=key, chunk_list=chunk_list) if link == HONEST and key == KEY:
                if chunk_list:
                    self.from_honest.append(ChunkListReceived(HONEST, key, True))
                self.from_honest.append(HaveReceived(HONEST, key, CHUNKS, b"", True))
            case SendRequest(link=link, key=key, indices=indices) if link == HONEST:
                assert key == KEY
                self.from_honest.extend(
                    ChunkArrived(HONEST, key, ChunkIndex(index), NO_STRIPE, CHUNK_BYTES) for index in indices
                )
            case Dial():
                raise AssertionError("the plan says that others dial")
            case _:
                pass

    def pass_time(self, seconds: float, nonsense: int) -> None:
        """Advance the time in ticks, each with this much nonsense."""
        for _ in range(round(seconds / 0.1)):
            for _ in range(nonsense):
                self.tell(self.nonsense.event())
            for queue in (self.jobs, self.from_honest):
                for _ in range(min(len(queue), 3)):
                    self.tell(queue.popleft())
            self.now += 0.1
            self.tell(Tick())


def assert_bounded(core: RelayCore) -> None:
    """Assert that the state does not grow with the amount of nonsense."""
    state = core.state
    assert len(state.dials) <= len(NEIGHBOURS)
    assert len(state.windows) <= len(NEIGHBOURS)
    assert len(state.links) <= 2 * len(NEIGHBOURS)
    assert set(state.encodings) <= {KEY}
    for link in state.links.values():
        assert len(link.theirs) <= 1
        assert len(link.lists_sent) <= 1
        assert len(link.account.copies) <= 2000
        assert link.known_versions <= {KEY.version}
        assert len(link.answered) <= 1
        assert len(link.owned) <= CHUNKS


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 1 << 30), st.sampled_from([0.0, 0.05, 1.0]), st.booleans())
def test_one_honest_holder_is_enough(seed: int, lies: float, pushed: bool) -> None:
    random = Random(seed)
    world = World(RelayCore(RelaySettings("peer")), random, lies)
    parents = ("origin", *HOSTILE_NAMES) if pushed else ()
    world.tell(plan(*NEIGHBOURS, stripes={4: HOSTILE_NAMES}, lists=HOSTILE_NAMES, parents=parents))
    world.tell(LinkUp(HONEST, PeerId("origin"), "origin", False))
    world.pass_time(2.0, 5)
    world.tell(EncodingKnown(KEY, CHUNKS, CHUNK_BYTES))
    world.tell(AnnouncementReceived(KEY))
    for _ in range(80):
        world.pass_time(1.0, 5)
        if world.held:
            break
    assert world.held == [KEY]
    assert_bounded(world.core)


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 1 << 30))
def test_an_origin_among_liars_continues(seed: int) -> None:
    world = World(RelayCore(RelaySettings("origin")), Random(seed), 0.0)
    stripes = {number: (name,) for number, name in enumerate(("good", *HOSTILE_NAMES), 1)}
    world.tell(plan(neighbour("good"), *map(neighbour, HOSTILE_NAMES), stripes=stripes, direct=True))
    world.tell(LinkUp(HONEST, PeerId("good"), "peer", False))
    world.tell(VersionRestored(KEY, CHUNKS, CHUNK_BYTES))
    world.tell(BroadcastStarted(KEY))
    for _ in range(15):
        world.pass_time(1.0, 5)
        owned = tuple(owned.index for owned in world.core.state.links[HONEST].owned)
        world.tell(CreditReceived(HONEST, KEY, owned))
    assert_bounded(world.core)
    assert sum(broadcast.left(CHUNKS) for broadcast in world.core.state.broadcasts.values()) <= CHUNKS


def test_time_alone_changes_nothing() -> None:
    steps = Steps()
    steps.tell(plan(neighbour("a")))
    steps.up(1, "a")
    steps.hold(CHUNKS)
    assert steps.ticks(30.0) == []
