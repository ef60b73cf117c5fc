"""Test the addresses of other peers, in memory and in a file."""

from __future__ import annotations

import stat
from pathlib import Path
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from peer.discovery.address_book import ENTRIES_MOST, HEARSAY_MOST, NEARBY_MOST, NEARBY_S, AddressBook
from peer.discovery.book_file import BookFile
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.peer_record import PeerRecord, sign_record
from rollcast.wire.ids import PeerId, RunId
from rollcast.wire.proto import rollcast_pb2 as pb

NOW = 1_800_000_000.0

OWN = PeerId("own")


def record(
    name: str, *addresses: str, sequence: int = 1, role: str = "peer", expires: float = NOW + 600.0
) -> PeerRecord:
    return PeerRecord(RunId("run"), PeerId(name), role, sequence, addresses or (f"{name}:1",), int(expires))


def signed(of: PeerRecord) -> pb.Signed:
    """Return a record with a placeholder for its signature: the book's callers verify signatures."""
    return pb.Signed(payload=f"{of}".encode(), signature=f"{of.peer_id} {of.sequence}".encode())


def add(book: AddressBook, of: PeerRecord, source: str | None = None) -> bool:
    return book.add(signed(of), of, source=None if source is None else PeerId(source))


def addresses(book: AddressBook) -> dict[str, str]:
    return {one.peer_id: one.address for one in book.holders(Random(1), 999)}


def sendable(book: AddressBook) -> set[bytes]:
    return {one.signature for one in book.to_send(Random(1), 999)}


def test_the_highest_sequence_counts() -> None:
    book = AddressBook(OWN)
    assert add(book, record("a", "a:2", sequence=2))
    assert not add(book, record("a", "a:1", sequence=1))
    assert not add(book, record("a", "a:9", sequence=2))
    assert add(book, record("a", "a:3", "/ip4/192.0.2.1/tcp/1", sequence=3))
    assert addresses(book) == {"a": "a:3 /ip4/192.0.2.1/tcp/1"}


def test_a_banned_peer_is_discarded_and_not_learned_again() -> None:
    book = AddressBook(OWN)

    def learn() -> None:
        add(book, record("a"))
        add(book, record("b"))
        book.found_nearby(PeerId("a"), "peer", ("192.168.1.2:1",), NOW)
        book.hinted(PeerId("a"), ("192.0.2.1:1",), NOW)

    learn()
    for _ in range(2):
        book.keep_out(frozenset({PeerId("a"), PeerId("c")}))
        assert (set(addresses(book)), sendable(book)) == ({"b"}, {b"b 1"})
        learn()
    book.keep_out(frozenset())
    learn()
    assert set(addresses(book)) == {"a", "b"}


def test_the_own_record_is_not_added() -> None:
    book = AddressBook(OWN)
    assert not add(book, record("own"))
    assert len(book) == 0


def test_a_third_peers_record_is_passed_on_after_a_link_with_its_subject() -> None:
    book = AddressBook(OWN)
    add(book, record("a"))
    add(book, record("b"), source="b")
    add(book, record("c"), source="b")
    assert sendable(book) == {b"a 1", b"b 1"}
    book.met(PeerId("c"), NOW)
    assert sendable(book) == {b"a 1", b"b 1", b"c 1"}
    assert book.to_keep().records[0].signature == b"c 1"


def test_a_peer_without_an_address_is_neither_dialled_nor_passed_on() -> None:
    book = AddressBook(OWN)
    nowhere = PeerRecord(RunId("run"), PeerId("a"), "peer", 1, (), int(NOW) + 600)
    add(book, nowhere)
    assert addresses(book) == {}
    assert sendable(book) == set()


def test_a_record_cannot_name_a_local_file() -> None:
    book = AddressBook(OWN)
    add(book, record("a", "/etc/shadow", "nowhere", "a:1"))
    add(book, record("b", "/etc/shadow"))
    assert addresses(book) == {"a": "a:1"}
    assert book.addresses(PeerId("a")) == ("a:1",)
    assert sendable(book) == {b"a 1"}


def test_a_liar_fills_only_its_share_and_evicts_no_other_peer() -> None:
    book = AddressBook(OWN)
    for number in range(ENTRIES_MOST):
        add(book, record(f"good-{number}"))
    for number in range(500):
        add(book, record(f"lie-{number}"), source="liar")
    assert {name for name in addresses(book) if name.startswith("lie")} == set()
    fresh = AddressBook(OWN)
    for number in range(500):
        add(fresh, record(f"lie-{number}"), source="liar")
    assert len(fresh) == HEARSAY_MOST
    fresh.validate()


def test_failing_peers_come_last_until_they_have_new_addresses() -> None:
    book = AddressBook(OWN)
    for name in "abc":
        add(book, record(name))
    book.met(PeerId("c"), NOW)
    book.failed(PeerId("a"))
    assert [one.peer_id for one in book.holders(Random(1), 3)] == ["c", "b", "a"]
    add(book, record("a", "a:2", sequence=2))
    book.failed(PeerId("c"))
    assert [one.peer_id for one in book.holders(Random(1), 3)][-1] == "c"
    assert [one.peer_id for one in book.holders(Random(1), 3, besides={PeerId("b")})] == ["a", "c"]


def test_a_nearby_peer_is_dialled_at_its_local_address_first() -> None:
    book = AddressBook(OWN)
    add(book, record("a"))
    book.found_nearby(PeerId("a"), "peer", ("192.168.1.5:7",), NOW)
    book.found_nearby(PeerId("z"), "origin", ("192.168.1.6:7",), NOW)
    book.found_nearby(OWN, "peer", ("192.168.1.7:7",), NOW)
    assert addresses(book) == {"a": "192.168.1.5:7 a:1", "z": "192.168.1.6:7"}
    assert all(one.lan for one in book.holders(Random(1), 9))
    assert book.discard_expired(NOW + NEARBY_S)
    assert addresses(book) == {}


def test_hints_come_last_and_are_bounded() -> None:
    book = AddressBook(OWN)
    add(book, record("a"))
    for number in range(200):
        book.hinted(PeerId(f"x{number}"), ("/ip4/192.0.2.1/tcp/1",), NOW)
    book.hinted(PeerId("a"), ("/ip4/192.0.2.6/tcp/1",), NOW)
    book.hinted(OWN, ("/ip4/192.0.2.7/tcp/1",), NOW)
    first, *others = book.holders(Random(1), 999)
    assert (first.peer_id, first.address) == ("a", "a:1")
    assert len(others) == NEARBY_MOST - 1
    assert not any(one.lan for one in others)
    assert [one.peer_id for one in others][-1] == "x199"
    book.discard_expired(NOW + NEARBY_S)
    assert "x199" not in addresses(book)


def test_expired_records_are_discarded() -> None:
    book = AddressBook(OWN)
    add(book, record("a", expires=NOW + 10))
    add(book, record("b", expires=NOW + 20))
    assert not book.discard_expired(NOW + 9)
    assert book.discard_expired(NOW + 10)
    assert set(addresses(book)) == {"b"}


def test_only_an_identical_trusted_record_needs_no_second_verification() -> None:
    book = AddressBook(OWN)
    hearsay, own = record("a"), record("b")
    add(book, hearsay, source="c")
    add(book, own)
    assert book.has(signed(own))
    assert not book.has(signed(hearsay))
    assert not book.has(signed(record("b", "b:7", sequence=2)))


NAMES = st.sampled_from([f"p{number}" for number in range(40)] + ["own"])


class Books(RuleBasedStateMachine):
    """Check that the book stays within its bounds and names no peer twice, whatever records it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.book = AddressBook(OWN)
        self.now = NOW

    @rule(name=NAMES, number=st.integers(0, 600), sequence=st.integers(1, 5), source=st.none() | NAMES)
    def add(self, name: str, number: int, sequence: int, source: str | None) -> None:
        of = record(f"{name}-{number}", sequence=sequence, expires=self.now + 100 * sequence)
        add(self.book, of, source=source)

    @rule(name=NAMES, number=st.integers(0, 600))
    def meet(self, name: str, number: int) -> None:
        self.book.met(PeerId(f"{name}-{number}"), self.now)

    @rule(name=NAMES)
    def fail(self, name: str) -> None:
        self.book.failed(PeerId(name))

    @rule(name=NAMES)
    def find(self, name: str) -> None:
        self.book.found_nearby(PeerId(name), "peer", ("192.168.0.1:1",), self.now)

    @rule(seconds=st.floats(0.0, 300.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.book.discard_expired(self.now)

    @invariant()
    def bounded(self) -> None:
        self.book.validate()
        holders = self.book.holders(Random(1), 999)
        assert len({one.peer_id for one in holders}) == len(holders) <= ENTRIES_MOST + NEARBY_MOST
        assert len(self.book.to_keep().records) <= ENTRIES_MOST


TestBooks = Books.TestCase

TestBooks.settings = settings(deadline=None, max_examples=15, stateful_step_count=60)


@given(st.lists(st.tuples(NAMES, st.integers(1, 3)), max_size=60), st.integers(0, 20))
@settings(deadline=None, max_examples=50)
def test_a_sample_is_no_larger_than_requested(told: list[tuple[str, int]], most: int) -> None:
    book = AddressBook(OWN)
    for name, sequence in told:
        add(book, record(name, sequence=sequence))
    sample = book.to_send(Random(2), most, besides={PeerId("p1")})
    assert len(sample) <= most
    assert all(not one.signature.startswith(b"p1 ") for one in sample)


def stored_record(run_id: str = "run-1", expires: float = NOW + 100.0) -> pb.Signed:
    identity = Identity.generate()
    return sign_record(PeerRecord(RunId(run_id), identity.peer_id, "peer", 1, ("a:1",), int(expires)), identity)


def test_saved_records_are_read_back_without_expired_and_foreign_ones(tmp_path: Path) -> None:
    file = BookFile(tmp_path / "book.pb", RunId("run-1"))
    assert file.read(NOW) == []
    good, changed = stored_record(), stored_record()
    changed.signature = bytes(64)
    file.write(pb.PeerRecords(records=[stored_record("run-2"), good, stored_record(expires=NOW - 1), changed]))
    assert [signed for signed, _ in file.read(NOW)] == [good]
    assert stat.S_IMODE((tmp_path / "book.pb").stat().st_mode) == 0o600


def test_an_unusable_file_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "book.pb").write_bytes(b"\xff\xff\xff")
    assert BookFile(tmp_path / "book.pb", RunId("run-1")).read(NOW) == []
    nowhere = BookFile(tmp_path / "no folder" / "book.pb", RunId("run-1"))
    nowhere.write(pb.PeerRecords(records=[stored_record()]))
    assert nowhere.read(NOW) == []
