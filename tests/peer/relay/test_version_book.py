from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.links.neighbours import EncodingKey
from peer.relay.core.state.events import LinkId
from peer.relay.version_book import (
    Acknowledge,
    Command,
    Drop,
    Materialise,
    Receive,
    Report,
    SendToAll,
    VersionBook,
    broadcast_manifest,
)
from rollcast.wire.ids import Version
from tests.peer.relay.relay_steps import key_of
from tests.peer.relay.test_version_paths import announced, run_of

LEARNER = LinkId(7)
KNOWN = run_of(range(1, 41))  # keyframes of 1000, single deltas of 10, from eight versions before of 50
LONGER = KNOWN | run_of(range(41, 127))


class Story:
    """A book, and the relay's progress with each encoding."""

    def __init__(self, role: str = "peer", *, on_arrival: bool = False) -> None:
        self.progress: dict[EncodingKey, tuple[int, int]] = {}
        self.book = VersionBook(role, lambda key: self.progress.get(key, (0, 0)), on_arrival=on_arrival)

    def announce(self, version: int, *, announced: bool = True, learner: LinkId | None = None) -> list[Command]:
        return self.book.add_announcement(KNOWN[Version(version)], announced=announced, learner_link=learner)

    def held(self, version: int, encoding_id: int = 0) -> list[Command]:
        self.progress.pop(key_of(version, encoding_id), None)
        return self.book.encoding_held(key_of(version, encoding_id))

    def made(self, version: int, encoding_id: int = 1) -> list[Command]:
        return self.book.made(key_of(version, encoding_id))


def dropped(version: int, encoding_id: int = 0) -> Drop:
    return Drop(key_of(version, encoding_id), "another encoding is cheaper, or a newer version is available")


def receive(version: int, encoding_id: int = 0, *, announced: bool = True, holder: LinkId | None = None) -> Receive:
    manifest = KNOWN[Version(version)].manifest(encoding_id)
    assert manifest is not None
    return Receive(manifest, announced, holder)


# ---------------------------------------------------------------- a peer


def test_a_state_that_replaced_its_base_is_not_computed_again() -> None:
    story = Story()
    story.held(4)
    story.announce(5)
    assert story.held(5, 1) == [Materialise(key_of(5, 1))]
    story.book.base_taken(Version(4))
    assert story.made(5) == [Report(Version(5))]
    story.announce(6)
    story.held(6, 1)
    story.book.base_taken(Version(5))
    assert story.made(6) == [Report(Version(6))]
    assert story.announce(5) == []
    assert story.announce(7) == [receive(7, 1)]


def test_a_base_lost_with_a_wrong_delta_is_computed_again() -> None:
    story = Story()
    story.held(4)
    for version in (5, 6):
        story.announce(version)
        story.held(version, 1)
        story.made(version)
    story.book.base_taken(Version(5))
    story.announce(7)
    story.held(7, 1)
    story.book.base_taken(Version(6))
    commands = story.book.not_made(key_of(7, 1))
    assert Materialise(key_of(5, 1)) in commands, "version 4 is on disk still"
    assert receive(7, 0) in commands
    assert story.made(5) == [Materialise(key_of(6, 1))]


def test_two_deltas_are_not_applied_to_one_base_at_the_same_time() -> None:
    """The first may take the base's memory; the other would then count as wrong."""
    story = Story()
    story.held(4)
    for version in (5, 12):
        story.announce(version)
    assert story.held(5, 1) == [Materialise(key_of(5, 1))]
    assert not any(isinstance(one, Materialise) for one in story.held(12, 2))
    assert Materialise(key_of(12, 2)) in story.made(5), "its base is held still"


def test_a_first_version_without_deltas_is_received_and_reported() -> None:
    story = Story()
    first = announced(1, {0: (None, 1000)})
    assert story.book.add_announcement(first, announced=True) == [Receive(first.keyframe, True, None)]
    assert story.book.add_announcement(first, announced=True) == []
    assert story.held(1) == [Report(Version(1))]
    assert story.book.add_announcement(first, announced=True) == []


def test_a_next_version_is_received_as_a_delta_and_computed() -> None:
    story = Story()
    story.announce(4)
    story.held(4)
    assert story.announce(5) == [receive(5, 1)]
    assert story.held(5, 1) == [Materialise(key_of(5, 1))]
    assert story.made(5) == [Report(Version(5))]


def test_a_version_ahead_of_its_announcement_is_received_but_not_reported() -> None:
    story = Story()
    story.held(4)
    assert story.announce(5, announced=False) == [receive(5, 1, announced=False)]
    assert story.held(5, 1) == [Materialise(key_of(5, 1))]
    assert story.made(5) == []
    assert story.announce(5) == [Report(Version(5))]


def test_without_the_coordinator_a_version_is_received_and_reported_once_announced() -> None:
    story = Story()
    story.held(4)
    story.announce(5, announced=False)
    assert story.book.set_offline(True) == [receive(5, 1)]
    story.held(5, 1)
    assert story.made(5) == []
    assert story.book.waits_for_announcement(5)
    assert story.announce(6, announced=False) == [receive(6, 1)]
    assert story.book.set_offline(False) == []
    assert story.announce(5) == [Report(Version(5))]
    assert not story.book.waits_for_announcement(5)


def test_without_the_coordinator_the_origin_broadcasts_the_learners_versions() -> None:
    story = Story("origin")
    first = announced(1, {0: (None, 1000)})
    story.book.add_announcement(first, announced=False, learner_link=LEARNER)
    assert story.held(1) == [Acknowledge(Version(1), LEARNER)]
    assert story.book.set_offline(True) == [SendToAll(key_of(1))]
    assert story.book.add_announcement(first, announced=True) == [Report(Version(1))]


def test_the_relay_gets_another_receive_when_the_version_is_announced() -> None:
    story = Story()
    story.held(4)
    story.announce(5, announced=False)
    assert story.announce(5) == [receive(5, 1)]


def test_a_joiner_receives_the_keyframe_and_the_broadcast_delta() -> None:
    story = Story()
    assert story.announce(5) == [receive(5, 1), receive(5, 0)]
    assert story.held(5) == [
        Drop(key_of(5, 1), "another encoding is cheaper, or a newer version is available"),
        Report(Version(5)),
    ]


def test_a_keyframe_half_way_is_finished_and_the_delta_added_to_it() -> None:
    story = Story()
    story.announce(5)
    story.progress[key_of(5, 0)] = (300, 1000)
    assert receive(6, 0) not in story.announce(6)
    story.held(5)
    assert story.held(6, 1) == [Materialise(key_of(6, 1))]
    assert story.made(6) == [Report(Version(6))]


def test_a_superseded_encoding_is_dropped_unless_most_of_it_is_here() -> None:
    story = Story()
    story.held(4)
    story.announce(5)
    story.progress[key_of(5, 1)] = (6, 10)
    assert story.held(13) == []
    assert Drop(key_of(5, 1), "another encoding is cheaper, or a newer version is available") not in story.announce(13)
    story.progress[key_of(5, 1)] = (4, 10)
    assert story.announce(14) == [
        receive(14, 1),
        Drop(key_of(5, 1), "another encoding is cheaper, or a newer version is available"),
    ]


def test_a_step_whose_announcement_was_missed_is_fetched_as_well() -> None:
    story = Story()
    story.held(4)
    assert story.announce(5, announced=False) == [receive(5, 1, announced=False)]
    assert story.announce(6) == [receive(6, 1), receive(5, 1)]
    story.held(6, 1)
    assert story.held(5, 1) == [Materialise(key_of(5, 1))]
    assert story.made(5) == [Materialise(key_of(6, 1))]
    assert story.made(6) == [Report(Version(6))]


def test_a_delta_that_gives_other_bytes_is_replaced_by_the_keyframe() -> None:
    story = Story()
    story.held(4)
    story.announce(5)
    story.held(5, 1)
    drop = Drop(key_of(5, 1), "another encoding is cheaper, or a newer version is available")
    assert story.book.not_made(key_of(5, 1)) == [receive(5, 0), drop]
    assert story.held(5) == [Report(Version(5))]


def test_a_delta_that_is_lost_is_received_and_applied_again() -> None:
    """Check a disk that was full when the state was computed: the relay abandons the delta and receives it again."""
    story = Story()
    story.held(4)
    story.announce(5)
    assert story.held(5, 1) == [Materialise(key_of(5, 1))]
    story.book.given_up(key_of(5, 1), again=True)
    assert story.announce(5) == []
    assert story.held(5, 1) == [Materialise(key_of(5, 1))]


def test_an_encoding_that_waits_for_its_retry_is_dropped_once_it_is_useless() -> None:
    story = Story()
    story.announce(5)
    story.book.given_up(key_of(5, 0), again=True)
    story.held(12)
    commands = story.announce(13)
    assert Drop(key_of(5, 0), "another encoding is cheaper, or a newer version is available") in commands


def test_an_abandoned_encoding_gets_another_receive() -> None:
    story = Story()
    story.held(4)
    story.announce(5)
    story.book.given_up(key_of(5, 1), again=False)
    assert story.announce(5) == [receive(5, 1)]


def test_a_state_that_proved_damaged_is_received_and_reported_again() -> None:
    story = Story()
    story.announce(5)
    assert story.held(5) == [dropped(5, 1), Report(Version(5))]
    assert story.book.state_lost(Version(5)) == [receive(5, 1), receive(5, 0)]
    assert story.held(5) == [dropped(5, 1), Report(Version(5))]


def test_a_removed_version_is_no_longer_a_base() -> None:
    story = Story()
    story.held(4)
    story.book.removed(frozenset({key_of(4, 0)}))
    assert receive(5, 0) in story.announce(5)


def test_versions_that_are_not_announced_yet_do_not_displace_the_announced_one() -> None:
    story = Story()
    story.announce(4)
    story.held(4)
    for version in (5, 6, 7):
        story.announce(version, announced=False)
        story.held(version, 1)
        story.made(version)
    assert story.book.in_use == {key_of(4, 0)}
    story.announce(7)
    assert story.book.in_use == {key_of(7, 0)}


def behind() -> Story:
    """Return a joiner that had nothing of version 10's keyframe when version 11 came, whose keyframe it receives."""
    story = Story()
    story.announce(10)
    assert story.announce(11) == [receive(11, 1), receive(11, 0), dropped(10, 1), dropped(10, 0)]
    return story


def test_a_peer_that_is_behind_completes_one_keyframe_and_receives_the_deltas_meanwhile() -> None:
    story = behind()
    assert story.announce(12) == [receive(12, 1), dropped(11, 1)]
    assert story.announce(13) == [receive(13, 1)]
    assert story.held(13, 1) == []
    assert story.held(12, 1) == []
    assert story.held(11) == [Materialise(key_of(12, 1)), Report(Version(11))]


def test_a_peer_that_is_behind_completes_its_keyframe_however_many_versions_come() -> None:
    story = behind()
    received = [
        one
        for version in range(12, 126)
        for one in story.book.add_announcement(LONGER[Version(version)], announced=True)
    ]
    assert not any(isinstance(one, Receive) and one.manifest.kind == "keyframe" for one in received)
    commands = story.held(11)
    assert Report(Version(11)) in commands
    assert Receive(LONGER[Version(125)].keyframe, True, None) in commands, "what leads on from it is forgotten"
    story.book.add_announcement(LONGER[Version(126)], announced=True)
    assert story.book.verified(11) is None


def test_a_peer_that_is_many_deltas_behind_receives_the_first_of_them_and_the_newest() -> None:
    story = Story()
    story.held(1)
    receiving: set[Version] = set()
    for version in range(2, 21):
        single = announced(version, {0: (None, 1000), 1: (version - 1, 10)})
        for command in story.book.add_announcement(single, announced=True):
            match command:
                case Receive(manifest=manifest):
                    receiving.add(manifest.version)
                case Drop(key=key):
                    receiving.discard(key.version)
    assert sorted(receiving) == [2, 3, 4, 5, 6, 7, 20]
    assert receive(8, 1) in story.held(2, 1)


def test_a_keyframe_without_a_source_is_replaced_by_the_newest() -> None:
    story = behind()
    story.announce(12)
    story.book.given_up(key_of(11), again=False)
    assert story.book.not_to_be_had(key_of(11)) == [receive(12, 0)]
    assert story.held(12) == [dropped(12, 1), Report(Version(12))]


def test_a_delta_without_a_source_costs_a_keyframe() -> None:
    story = Story()
    story.held(4)
    story.announce(5)
    story.announce(6)
    story.book.given_up(key_of(5, 1), again=False)
    assert story.book.not_to_be_had(key_of(5, 1)) == [receive(6, 0)]
    assert story.held(6) == [dropped(6, 1), Report(Version(6))]


def test_known_announcements_are_bounded() -> None:
    story = Story()
    story.held(1)
    for version in range(1, 101):
        story.book.add_announcement(LONGER[Version(version)], announced=True)
    assert [version for version in range(1, 101) if story.book.verified(version) is not None] == list(range(5, 101))
    assert story.announce(1) == []
    assert story.book.verified(1) is None


def test_what_is_still_to_be_received_of_a_version_that_is_too_old_is_dropped() -> None:
    story = Story("origin")
    for version in range(1, 97):
        story.book.add_announcement(LONGER[Version(version)], announced=False, learner_link=LEARNER)
    story.held(1, 1)
    commands = story.book.add_announcement(LONGER[Version(97)], announced=False, learner_link=LEARNER)
    assert [command for command in commands if isinstance(command, Drop)] == [
        Drop(key_of(1, 0), "many newer versions are available")
    ]


# ---------------------------------------------------------------- an origin


def test_an_origin_receives_every_encoding_acknowledges_and_broadcasts_the_delta() -> None:
    story = Story("origin")
    story.held(9)
    assert story.announce(10, announced=False, learner=LEARNER) == [
        receive(10, 1, announced=False, holder=LEARNER),
        receive(10, 2, announced=False, holder=LEARNER),
    ]
    assert story.held(10, 1) == [Materialise(key_of(10, 1))]
    assert story.made(10) == []
    assert story.held(10, 2) == [Acknowledge(Version(10), LEARNER)]
    assert story.announce(10) == [Report(Version(10)), SendToAll(key_of(10, 1))]
    assert story.announce(10) == []


def test_a_first_version_is_sent_to_all_as_its_keyframe() -> None:
    story = Story("origin")
    first = announced(1, {0: (None, 1000)})
    story.book.add_announcement(first, announced=True, learner_link=LEARNER)
    assert story.held(1) == [Report(Version(1)), Acknowledge(Version(1), LEARNER), SendToAll(key_of(1))]


def test_an_origin_sends_on_what_the_learner_begins_to_push_once() -> None:
    story = Story("origin", on_arrival=True)
    story.held(9)
    assert story.announce(10, announced=False, learner=LEARNER) == [
        receive(10, 1, announced=False, holder=LEARNER),
        SendToAll(key_of(10, 1)),
        receive(10, 2, announced=False, holder=LEARNER),
    ]
    again = LinkId(8)
    assert story.announce(10, announced=False, learner=again) == [
        receive(10, 1, announced=False, holder=again),
        receive(10, 2, announced=False, holder=again),
    ]
    story.held(10, 1), story.made(10), story.held(10, 2)
    assert story.announce(10) == [Report(Version(10))]


def test_an_origin_begins_again_with_what_it_could_not_store() -> None:
    story = Story("origin", on_arrival=True)
    story.held(9)
    story.announce(10, announced=False, learner=LEARNER)
    story.book.given_up(key_of(10, 1), again=False)
    story.book.link_lost(LEARNER)
    assert SendToAll(key_of(10, 1)) in story.announce(10, announced=False, learner=LinkId(8))


def test_a_peer_applies_a_delta_ahead_of_its_announcement_only_if_no_engine_uses_the_base() -> None:
    story = Story()
    story.announce(9), story.held(9)
    story.announce(10, announced=False)
    assert story.held(10, 1) == []
    assert story.announce(10) == [Materialise(key_of(10, 1))]
    restarted = Story()
    restarted.held(9)
    restarted.announce(9, announced=False), restarted.announce(10, announced=False)
    assert restarted.held(10, 1) == [Materialise(key_of(10, 1))]


def broadcasts_of(announced_versions: list[int], base_of_3: int | None) -> list[Command]:
    """Return the broadcasts of an origin that holds versions 2 and 3 and is given them in this order."""
    story = Story("origin")
    deltas = {0: (None, 1000)} | ({} if base_of_3 is None else {1: (base_of_3, 10)})
    known = {2: announced(2, {0: (None, 1000)}), 3: announced(3, deltas)}
    for verified in known.values():
        story.book.add_announcement(verified, announced=False, learner_link=LEARNER)
        for manifest in verified.manifests:
            story.held(verified.version, manifest.encoding_id)
    commands = [
        one for version in announced_versions for one in story.book.add_announcement(known[version], announced=True)
    ]
    return [one for one in commands if isinstance(one, SendToAll)]


def test_an_older_version_that_is_announced_late_is_not_sent_to_all() -> None:
    assert broadcasts_of([2, 3], None) == [SendToAll(key_of(2)), SendToAll(key_of(3))]
    assert broadcasts_of([3, 2], None) == [SendToAll(key_of(3))]


def test_an_older_version_that_the_newer_one_starts_from_is_sent_to_all_even_late() -> None:
    assert broadcasts_of([3, 2], 2) == [SendToAll(key_of(3, 1)), SendToAll(key_of(2))]


def test_a_learner_that_comes_back_is_acknowledged_again() -> None:
    story, again = Story("origin"), LinkId(8)
    first = announced(1, {0: (None, 1000)})
    story.book.add_announcement(first, announced=False, learner_link=LEARNER)
    story.held(1)
    story.book.link_lost(LEARNER)
    assert story.book.add_announcement(first, announced=False, learner_link=again) == [Acknowledge(Version(1), again)]


def test_a_learner_that_comes_back_is_asked_for_the_rest() -> None:
    story, again = Story("origin"), LinkId(8)
    first = announced(1, {0: (None, 1000)})
    assert story.book.add_announcement(first, announced=False, learner_link=LEARNER) == [
        Receive(first.keyframe, False, LEARNER)
    ]
    story.book.link_lost(LEARNER)
    assert story.book.add_announcement(first, announced=False, learner_link=again) == [
        Receive(first.keyframe, False, again)
    ]


def test_a_version_broadcast_before_a_restart_is_not_broadcast_again() -> None:
    story = Story("origin")
    story.held(1)
    story.announce(1, announced=False)
    assert story.announce(1) == [receive(1, 1), Report(Version(1))]
    assert broadcast_manifest(KNOWN[Version(10)]).encoding_id == 1


# ---------------------------------------------------------------- whatever happens


class Life:
    """Carry out a book's commands as a relay and a store do, in a random order."""

    def __init__(self, random: Random, unusable: set[EncodingKey]) -> None:
        self.random = random
        self.unusable = unusable  # deltas that give other bytes than were signed
        self.receiving: dict[EncodingKey, tuple[int, int]] = {}
        self.announced: set[EncodingKey] = set()
        self.making: list[EncodingKey] = []
        self.held: set[EncodingKey] = set()
        self.reported: list[Version] = []
        self.retrying: set[EncodingKey] = set()
        self.commands = 0
        self.newest = -1  # of those announced
        self.book = VersionBook("peer", lambda key: self.receiving.get(key, (0, 0)))

    def carry_out(self, commands: list[Command]) -> None:
        self.commands += len(commands)
        for command in commands:
            match command:
                case Receive(manifest=manifest, announced=announced):
                    key = EncodingKey(manifest.version, manifest.encoding_id)
                    assert key not in self.held, "asks for what is here"
                    if announced:
                        self.announced.add(key)
                    if key not in self.retrying:
                        self.receiving.setdefault(key, (0, manifest.chunk_count))
                case Drop(key=key):
                    self.receiving.pop(key, None)
                    self.retrying.discard(key)
                    self.announced.discard(key)
                case Materialise(key=key):
                    manifest_of = KNOWN[key.version].manifest(key.encoding_id)
                    assert manifest_of is not None
                    assert key in self.held
                    assert EncodingKey(manifest_of.base_version or Version(0), key_of(1).encoding_id) in self.held
                    assert key.version not in {other.version for other in self.making}, "makes a state twice"
                    self.making.append(key)
                case Report(version=version):
                    assert key_of(version) in self.held
                    assert version not in self.reported
                    self.reported.append(version)
                case _:
                    raise AssertionError(f"{command} is for origins")

    def step(self) -> bool:
        """Let one event happen; return False if no work is in progress."""
        wanted = sorted(key for key in self.receiving if key in self.announced)
        if self.making and (not wanted or self.random.random() < 0.5):
            self._make(self.making.pop(self.random.randrange(len(self.making))))
        elif wanted:
            self._progress(self.random.choice(wanted))
        elif self.retrying:
            self._try_again()
        else:
            return False
        return True

    def _progress(self, key: EncodingKey) -> None:
        have, total = self.receiving[key]
        have = min(total, have + self.random.choice([1 + total // 3, total]))
        if self.random.random() < 0.1:
            del self.receiving[key]
            again = self.random.random() < 0.5
            self.retrying |= {key} if again else set()
            self.book.given_up(key, again=again)
            if not again:
                self.announced.discard(key)
                if key.version < self.newest and self.random.random() < 0.5:
                    self.carry_out(self.book.not_to_be_had(key))
                    return
                self.carry_out(self.book.add_announcement(KNOWN[key.version], announced=False))
        elif have < total:
            self.receiving[key] = (have, total)
        else:
            del self.receiving[key]
            self.held.add(key)
            self.carry_out(self.book.encoding_held(key))

    def _make(self, key: EncodingKey) -> None:
        if key in self.unusable:
            self.carry_out(self.book.not_made(key))
            return
        self.receiving.pop(key_of(key.version), None)
        self.held.add(key_of(key.version))
        self.carry_out(self.book.made(key))

    def _try_again(self) -> None:
        for key in sorted(self.retrying):
            manifest = KNOWN[key.version].manifest(key.encoding_id)
            assert manifest is not None
            self.receiving[key] = (0, manifest.chunk_count)
            self.announced.add(key)
        self.retrying.clear()


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 1 << 30),
    start=st.sets(st.integers(1, 8), max_size=2),
    announcements=st.lists(st.tuples(st.integers(1, 24), st.booleans()), min_size=1, max_size=12),
    unusable=st.sets(st.tuples(st.integers(1, 24), st.integers(1, 2)), max_size=6),
)
def test_in_the_end_the_newest_announced_state_is_held(
    seed: int, start: set[int], announcements: list[tuple[int, bool]], unusable: set[tuple[int, int]]
) -> None:
    life = Life(Random(seed), {key_of(*one) for one in unusable})
    for version in start:
        life.held.add(key_of(version))
        life.carry_out(life.book.encoding_held(key_of(version)))
    for version, is_announced in [*announcements, (announcements[-1][0], True)]:
        life.newest = max(life.newest, version if is_announced else -1)
        life.carry_out(life.book.add_announcement(KNOWN[Version(version)], announced=is_announced))
        for _ in range(life.random.randrange(4)):
            life.step()
    steps = 0
    while life.step():
        steps += 1
        assert steps < 2000, "goes on for ever"
    newest = max([version for version, is_announced in announcements if is_announced] + [announcements[-1][0]])
    assert key_of(newest) in life.held
    assert newest in life.reported
    assert life.commands < 600


@pytest.mark.parametrize("seed", range(3))
def test_a_long_run_of_steps_receives_every_delta_once(seed: int) -> None:
    life = Life(Random(seed), set())
    life.random.random = lambda: 0.9  # type: ignore[method-assign]
    life.held.add(key_of(1))
    life.carry_out(life.book.encoding_held(key_of(1)))
    for version in range(2, 41):
        life.carry_out(life.book.add_announcement(KNOWN[Version(version)], announced=True))
        while life.step():
            pass
    assert life.reported == list(range(2, 41))
    assert sorted(key for key in life.held if key.encoding_id) == [key_of(version, 1) for version in range(2, 41)]


@pytest.mark.parametrize("deltas", [True, False])
def test_a_peer_that_receives_slower_than_versions_come_still_gets_some(deltas: bool) -> None:
    story = Story()
    keyframes: set[EncodingKey] = set()
    for version in range(10, 20):
        verified = KNOWN[Version(version)] if deltas else announced(version, {0: (None, 1000)})
        for command in story.book.add_announcement(verified, announced=True):
            match command:
                case Receive(manifest=manifest):
                    key = key_of(manifest.version, manifest.encoding_id)
                    story.progress[key] = (1, 10)
                    keyframes |= {key} if manifest.kind == "keyframe" else set()
                case Drop(key=key):
                    keyframes.discard(key)
    assert keyframes, "what took the place of a dropped keyframe is received to its end"
