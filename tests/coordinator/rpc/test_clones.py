"""Test sites, which group peers by address, and clones of one identity."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.rpc import clones
from coordinator.rpc.access import site_of
from coordinator.rpc.clones import Clones
from rollcast.wire.ids import PeerId

ALICE = PeerId("alice")


def test_same_instance_may_always_reconnect() -> None:
    book = Clones()
    assert book.verdict(ALICE, "attic", 0.0) == "welcome"
    book.session_opened(ALICE, "attic", 0.0)
    assert book.verdict(ALICE, "attic", 1.0) == "welcome", "its connection broke, and we have not noticed"
    book.session_closed(ALICE)
    assert book.verdict(ALICE, "attic", 2.0) == "welcome"


def test_restored_backup_moves_once_the_old_instance_has_left() -> None:
    book = Clones()
    book.session_opened(ALICE, "attic", 0.0)
    book.session_closed(ALICE)
    assert book.verdict(ALICE, "cellar", 9.0) == "moved"
    book.session_opened(ALICE, "cellar", 9.0)
    assert book.verdict(ALICE, "cellar", 10.0) == "welcome"


def test_silent_first_instance_is_waited_for() -> None:
    book = Clones()
    book.session_opened(ALICE, "attic", 0.0)
    book.message_received(ALICE, 5.0)
    assert [book.verdict(ALICE, "cellar", now) for now in (6.0, 7.0, 14.0)] == ["later"] * 3
    book.session_closed(ALICE)  # its heartbeats did not come
    assert book.verdict(ALICE, "cellar", 15.0) == "moved"


def test_two_instances_at_once_are_a_clone() -> None:
    book = Clones()
    book.session_opened(ALICE, "attic", 0.0)
    assert book.verdict(ALICE, "copy", 1.0) == "later"
    book.message_received(ALICE, 1.5)
    assert book.verdict(ALICE, "copy", 2.0) == "cloned"
    assert book.verdict(ALICE, "copy", 2.1) == "cloned"
    assert book.verdict(ALICE, "attic", 3.0) == "welcome", "the first is not disturbed"
    assert book.verdict(ALICE, "third", 4.0) == "later", "each is judged for itself"
    assert book.verdict(ALICE, "copy", 2.0 + 1e4) == "later", "what it did long ago is forgotten"


def test_software_that_does_not_say_is_let_in() -> None:
    book = Clones()
    book.session_opened(ALICE, "", 0.0)
    book.message_received(ALICE, 1.0)
    assert book.verdict(ALICE, "attic", 2.0) == "welcome"
    book.session_opened(ALICE, "attic", 2.0)
    assert book.verdict(ALICE, "", 3.0) == "welcome"


def test_memory_is_bounded_and_those_away_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clones, "_IDENTITIES_KEPT", 3)
    book = Clones()
    for name in ("a", "b", "c"):
        book.session_opened(PeerId(name), "1", 0.0)
    book.session_closed(PeerId("b"))
    book.session_opened(PeerId("d"), "1", 1.0)
    book.message_received(PeerId("a"), 2.0)
    assert book.verdict(PeerId("b"), "2", 3.0) == "welcome", "forgotten"
    assert book.verdict(PeerId("a"), "2", 3.0) == "later", "remembered"


@given(st.lists(st.tuples(st.sampled_from("hgx12"), st.floats(0.1, 10.0)), max_size=40))
def test_second_instance_is_refused_only_after_a_later_message_of_the_first(steps: list[tuple[str, float]]) -> None:
    book, now, here, heard, came = Clones(), 0.0, True, 0.0, None
    book.session_opened(ALICE, "first", now)
    for what, seconds in steps:
        now += seconds
        if what == "h" and here:
            book.message_received(ALICE, now)
            heard = now
        elif what == "g":
            book.session_closed(ALICE)
            here = False
        else:
            came = now if came is None or now - came > clones._SECOND_EXPIRES_S else came
            verdict = book.verdict(ALICE, "second", now)
            assert verdict == ("moved" if not here else "cloned" if heard > came else "later")
            if not here:
                return


@pytest.mark.parametrize(
    ("peer", "site"),
    [
        ("ipv4:8.8.4.4:4242", "8.8.4.4"),
        ("ipv4:192.168.1.7:4242", "192.168.1.0/24"),
        ("ipv6:[2001:4860:1:2::7]:4242", "2001:4860:1:2::/64"),
        ("ipv6:%5B2001:4860:1:2::7%5D:4242", "2001:4860:1:2::/64"),
        ("ipv6:[::ffff:8.8.4.4]:4242", "8.8.4.4"),
        ("ipv6:[fe80::1%25eth0]:4242", "fe80::/64"),
        ("ipv4:127.0.0.1:4242", ""),
        ("ipv6:[::1]:4242", ""),
        ("unix:/tmp/socket", ""),
        ("ipv4:nonsense", ""),
        ("", ""),
    ],
)
def test_a_site_is_a_public_address_or_a_local_network(peer: str, site: str) -> None:
    assert site_of(peer) == site
