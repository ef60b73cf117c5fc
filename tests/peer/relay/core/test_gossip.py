"""Test which peer sends which message about a version, and to which peers."""

from __future__ import annotations

from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from peer.relay.core.state.actions import Action, Dial, SendAnnouncement, SendHave, SendWant
from peer.relay.core.state.events import (
    AnnouncementReceived,
    DialFailed,
    EncodingKnown,
    Event,
    HaveReceived,
    HoldersKnown,
    LinkDown,
    LinkId,
    LinkUp,
    OfflineChanged,
    StoreReady,
    WantReceived,
)
from rollcast.sim.nodes.relay import as_received
from rollcast.wire.ids import PeerId
from tests.peer.relay.relay_steps import KEY, Steps, bitmap, key_of, neighbour, plan

A, B, C = 1, 2, 3
CHUNKS = 8
NEWER = key_of(2)


def says(steps: Steps, link: int, version: int = 2, *indices: int) -> list[Action]:
    """Return the event that the other end reports these chunks of a version."""
    return steps.tell(HaveReceived(LinkId(link), key_of(version), CHUNKS, bitmap(CHUNKS, *indices), False))


def ask(link: int, version: int = 2) -> SendWant:
    return SendWant(LinkId(link), key_of(version), False, announcement=True)


def told(link: int, *indices: int) -> SendHave:
    return SendHave(LinkId(link), KEY, CHUNKS, bitmap(CHUNKS, *indices), False)


def linked(*names: str) -> Steps:
    """Return steps with links 1, 2, ... to these peers, none of which is in the plan."""
    steps = Steps()
    for link, name in enumerate(names, start=1):
        steps.up(link, name)
    return steps


# ---------------------------------------------------------------- saying


def test_a_peer_that_seems_not_to_know_a_version_gets_one_have() -> None:
    steps = linked("a", "b")
    steps.receive(CHUNKS, announced=False)
    steps.tell(AnnouncementReceived(KEY, LinkId(A)))
    assert steps.wait(0.4) == []
    assert steps.wait(0.2) == [told(B)]
    assert steps.ticks(5.0) == []


def test_a_peer_that_mentioned_a_version_gets_no_have() -> None:
    steps = linked("a", "b", "c")
    steps.tell(AnnouncementReceived(KEY))
    steps.tell(WantReceived(LinkId(A), KEY), HaveReceived(LinkId(B), KEY, CHUNKS, bitmap(CHUNKS, 1), False))
    actions = steps.wait(1.0)
    assert [action.link for action in actions if isinstance(action, SendHave)] == [C]


def test_list_children_have_the_announcement_already() -> None:
    steps = Steps()
    steps.tell(plan(neighbour("a"), lists=["a"]))
    steps.up(A, "a")
    steps.receive(CHUNKS, announced=False)
    steps.tell(AnnouncementReceived(KEY))
    assert not any(isinstance(action, SendHave) for action in steps.wait(1.0))


def test_a_new_link_gets_a_have_unless_it_is_a_learner_or_mirror() -> None:
    steps = linked("a")
    steps.tell(AnnouncementReceived(KEY, LinkId(A)))
    steps.wait(1.0)
    steps.up(B, "b")
    steps.up(C, "learner", "learner")
    assert steps.wait(1.0) == [SendHave(LinkId(B), KEY, 0, b"", False)]


def test_only_the_newest_versions_are_mentioned() -> None:
    steps = linked("a")
    for version in range(1, 10):
        steps.tell(AnnouncementReceived(key_of(version)))
    assert [action.key.version for action in steps.wait(1.0) if isinstance(action, SendHave)] == [6, 7, 8, 9]
    assert steps.link(A).known_versions == {6, 7, 8, 9}


# ---------------------------------------------------------------- asking


def test_one_peer_that_knows_a_version_is_asked_and_then_another() -> None:
    steps = linked("a", "b")
    assert says(steps, A) == [ask(A)]
    assert says(steps, B) == []
    assert says(steps, A) == []
    assert steps.wait(1.0) == []
    assert steps.wait(1.1) == [ask(B)]
    steps.tell(AnnouncementReceived(NEWER, LinkId(B)))
    assert steps.ticks(10.0) == []


def test_a_peer_that_never_answers_is_no_longer_asked() -> None:
    steps = linked("a")
    says(steps, A)
    assert [action for action in steps.ticks(60.0, 0.5) if isinstance(action, SendWant)] == [ask(A)] * 2
    assert steps.link(A).mentioned is None


def test_a_known_version_is_not_requested() -> None:
    steps = linked("a")
    steps.tell(AnnouncementReceived(NEWER))
    assert says(steps, A, 1) == says(steps, A, 2) == []


def test_a_peer_that_mentions_many_versions_is_asked_for_one_at_a_time() -> None:
    steps = linked("a")
    assert says(steps, A, 5) == [ask(A, 5)]
    assert says(steps, A, 7) == [ask(A, 7)]
    assert says(steps, A, 6) == []
    assert steps.link(A).mentioned == key_of(7)


# ---------------------------------------------------------------- answering


def test_a_link_gets_an_announcement_twice_at_most() -> None:
    steps = linked("a")
    asked = WantReceived(LinkId(A), KEY, announcement=True)
    assert steps.tell(asked) == []
    steps.tell(AnnouncementReceived(KEY))
    assert steps.tell(asked, asked, asked) == [SendAnnouncement(LinkId(A), KEY.version)] * 2
    assert KEY not in steps.link(A).wants


def test_announcements_from_before_a_restart_are_sent_too() -> None:
    steps = linked("a")
    steps.hold(CHUNKS)
    assert steps.tell(WantReceived(LinkId(A), key_of(1), announcement=True)) == [
        SendAnnouncement(LinkId(A), KEY.version)
    ]


# ---------------------------------------------------------------- without the coordinator


def dials(actions: list[Action]) -> list[str]:
    return [action.neighbour.peer_id for action in actions if isinstance(action, Dial)]


def test_without_the_coordinator_a_few_links_are_kept() -> None:
    steps = linked("a")
    holders = tuple(neighbour(name, we_dial=True) for name in "bcdefg")
    assert dials(steps.tell(HoldersKnown(holders))) == []
    assert dials(steps.tell(OfflineChanged(True))) == ["b", "c", "d"]
    for link, name in enumerate("bcd", start=2):
        steps.up(link, name, dialled=True)
    assert dials(steps.ticks(20.0)) == []
    assert steps.tell(OfflineChanged(False)) == []
    closed = steps.ticks(20.0)
    assert len(closed) == 3  # the plan is followed again, and knows nothing of them


def test_without_the_coordinator_every_linked_peer_is_asked() -> None:
    steps = linked("a", "b")
    steps.tell(OfflineChanged(True))
    steps.receive(CHUNKS)
    wants = [action.link for action in steps.ticks(3.5) if isinstance(action, SendWant)]
    assert set(wants) == {A, B}


def test_further_holders_are_dialled_when_the_plan_does_not_help_and_few_of_them() -> None:
    steps = Steps()
    steps.tell(HoldersKnown(tuple(neighbour(name, we_dial=True) for name in "abcdefgh")))
    steps.tell(plan(neighbour("x", we_dial=True)))
    linked: list[str] = []
    failed = DialFailed(PeerId("x"), "refused")
    asked = deque(dials(steps.tell(failed, EncodingKnown(KEY, CHUNKS, listed=True), StoreReady(KEY, bitmap(CHUNKS)))))
    for _ in range(600):
        asked += dials(steps.wait(0.1))
        while asked:
            if (name := asked.popleft()) == "x":
                asked += dials(steps.tell(failed))
            else:
                linked.append(name)
                asked += dials(steps.up(len(linked), name, dialled=True))
    assert linked == ["a", "b", "c", "d"]


# ---------------------------------------------------------------- a whole network


class Network:
    """A network of cores with random links and delays, without a plan, a coordinator or chunks."""

    def __init__(self, size: int, pairs: set[tuple[int, int]]) -> None:
        self.cores = [Steps() for _ in range(size)]
        self.announcements = [0] * size  # that each got
        self.pairs = set[tuple[int, int]]()
        for steps in self.cores:
            steps.tell(OfflineChanged(True))  # otherwise links that no plan needs are closed
        for one, other in pairs:
            self.join(one, other)

    def join(self, one: int, other: int) -> None:
        self.pairs |= {(one, other), (other, one)}
        for here, there in ((one, other), (other, one)):
            self.cores[here].tell(LinkUp(LinkId(there), PeerId(str(there)), "peer", here < there))

    def kill(self, node: int) -> None:
        for pair in [pair for pair in self.pairs if pair[0] == node]:
            self.pairs -= {pair, pair[::-1]}
            self.cores[pair[1]].tell(LinkDown(LinkId(node), "gone"))

    def wait(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.25)):
            sent = [(here, action) for here, steps in enumerate(self.cores) for action in steps.wait(0.25)]
            while sent:
                sent = [(there, action) for here, one in sent for there, action in self._deliver(here, one)]

    def _deliver(self, here: int, action: Action) -> list[tuple[int, Action]]:
        link = getattr(action, "link", None)
        if link is None or (here, link) not in self.pairs:
            return []
        back = LinkId(here)
        match action:
            case SendAnnouncement(version=version):
                self.announcements[link] += 1
                event: Event = AnnouncementReceived(key_of(version), back)
            case SendHave() | SendWant():
                event = as_received(action, back)
            case _:
                return []
        return [(link, one) for one in self.cores[link].tell(event)]

    def reached(self, node: int) -> set[int]:
        """Return the nodes that are connected with a node, directly or through others."""
        seen, new = {node}, {node}
        while new:
            new = {there for here, there in self.pairs if here in new} - seen
            seen |= new
        return seen

    def knowing(self, version: int) -> set[int]:
        return {node for node, steps in enumerate(self.cores) if version in steps.state.known_versions}


NODES = 12
PAIRS = st.sets(
    st.tuples(st.integers(0, NODES - 1), st.integers(0, NODES - 1)).filter(lambda pair: pair[0] < pair[1]), max_size=40
)


@settings(deadline=None, max_examples=40)
@given(PAIRS, st.sets(st.integers(1, NODES - 1), max_size=4))
def test_every_linked_node_gets_each_announcement_once(pairs: set[tuple[int, int]], dying: set[int]) -> None:
    network = Network(NODES, pairs)
    network.cores[0].tell(AnnouncementReceived(key_of(1)))
    network.wait(12.0)
    assert network.knowing(1) == network.reached(0)
    for node in dying:
        network.kill(node)
    network.cores[0].tell(AnnouncementReceived(key_of(2)))
    network.wait(12.0)
    assert network.knowing(2) == network.reached(0)
    for node in range(1, NODES):
        assert network.announcements[node] == (node in network.knowing(1)) + (node in network.knowing(2))


@settings(deadline=None, max_examples=20)
@given(PAIRS)
def test_a_node_that_joins_later_gets_the_announcement_too(pairs: set[tuple[int, int]]) -> None:
    network = Network(NODES + 1, pairs)
    network.cores[0].tell(AnnouncementReceived(key_of(1)))
    network.wait(12.0)
    network.join(0, NODES)
    network.wait(2.0)
    assert NODES in network.knowing(1)
