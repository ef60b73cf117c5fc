"""Versions of adapters in the version book: their base is received first, once, and never given up."""

from __future__ import annotations

from peer.links.neighbours import EncodingKey
from peer.relay.core.state.events import LinkId
from peer.relay.version_book import Acknowledge, Command, Materialise, Receive, Report, SendToAll, VersionBook
from rollcast.wire.ids import Version
from rollcast.wire.versions.records import VerifiedVersion
from tests.peer.relay.relay_steps import key_of
from tests.peer.relay.test_version_paths import announced

LEARNER = LinkId(7)
BASE = announced(0, {0: (None, 10_000)})
ADAPTERS = {
    version: announced(version, {0: (None, 100)} | ({1: (version - 1, 10)} if version > 1 else {}), base=BASE)
    for version in range(1, 60)
}
BASE_KEYFRAME = Receive(BASE.keyframe, announced=True, holder=None, is_base=True)


class Story:
    """A book, and how far it is with each encoding."""

    def __init__(self, role: str = "peer") -> None:
        self.progress: dict[EncodingKey, tuple[int, int]] = {}
        self.book = VersionBook(role, lambda key: self.progress.get(key, (0, 0)))

    def announce(self, verified: VerifiedVersion, *, learner: LinkId | None = None) -> list[Command]:
        return self.book.add_announcement(verified, announced=learner is None, learner_link=learner)

    def held(self, version: int, encoding_id: int = 0) -> list[Command]:
        return self.book.encoding_held(key_of(version, encoding_id))


def keyframe(version: int) -> Receive:
    return Receive(ADAPTERS[version].keyframe, announced=True, holder=None)


def delta(version: int) -> Receive:
    manifest = ADAPTERS[version].manifest(1)
    assert manifest is not None
    return Receive(manifest, announced=True, holder=None)


def test_a_joiner_receives_the_base_and_reports_the_adapters_once_both_are_here() -> None:
    story = Story()
    assert story.announce(ADAPTERS[5]) == [delta(5), keyframe(5), BASE_KEYFRAME]
    assert not [one for one in story.held(5) if isinstance(one, Report)]
    assert not story.book.waits_for_announcement(5)
    assert story.held(0) == [Report(Version(5))], "the base by itself is not a version to generate with"
    assert story.announce(ADAPTERS[6]) == [delta(6)], "the base is received once"


def test_the_base_is_finished_however_many_adapters_come_meanwhile() -> None:
    story = Story()
    story.announce(ADAPTERS[2])
    story.held(2)
    story.progress[key_of(0)] = (1, 10_000)  # far less than the half that protects other encodings
    for version in range(3, 60):
        assert story.announce(ADAPTERS[version]) == [delta(version)]
        assert story.held(version, 1) == [Materialise(key_of(version, 1))]
        assert story.book.made(key_of(version, 1)) == []
    assert story.held(0)[-1] == Report(Version(59))


def test_a_version_that_becomes_a_base_is_not_given_up() -> None:
    story = Story()
    assert story.announce(BASE) == [Receive(BASE.keyframe, announced=True, holder=None)]
    story.progress[key_of(0)] = (1, 10_000)
    assert story.announce(ADAPTERS[1]) == [keyframe(1), BASE_KEYFRAME]
    assert story.held(1) == []
    assert story.held(0) == [Report(Version(0)), Report(Version(1))]


def test_a_peer_that_holds_the_base_does_not_receive_it() -> None:
    story = Story()
    story.held(0)
    story.announce(BASE)
    assert story.announce(ADAPTERS[1]) == [keyframe(1)]
    assert story.held(1) == [Report(Version(1))]


def test_an_origin_acknowledges_adapters_with_their_base_and_broadcasts_no_base_twice() -> None:
    story = Story("origin")
    story.book.set_offline(True)
    received = story.announce(ADAPTERS[5], learner=LEARNER)
    assert {
        (one.manifest.version, one.manifest.encoding_id, one.holder) for one in received if type(one) is Receive
    } == {
        (0, 0, LEARNER),
        (5, 0, LEARNER),
        (5, 1, LEARNER),
    }
    story.held(5)
    assert story.held(5, 1) == [], "not acknowledged without the base"
    commands = story.held(0)
    assert Acknowledge(Version(5), LEARNER) in commands
    assert [one for one in commands if isinstance(one, SendToAll)] == [SendToAll(key_of(5, 1))]


def test_an_origin_that_holds_the_base_does_not_ask_the_learner_for_it() -> None:
    story = Story("origin")
    story.held(0)
    story.announce(BASE)
    received = story.announce(ADAPTERS[5], learner=LEARNER)
    assert {one.manifest.version for one in received if isinstance(one, Receive)} == {5}
