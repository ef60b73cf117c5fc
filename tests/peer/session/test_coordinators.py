from __future__ import annotations

from peer.session.coordinators import Coordinators
from rollcast.wire.joining.diagnose import HopFailed

NAME = HopFailed("name lookup", "run.example:7400", "nobody knows it")
REFUSED = HopFailed("connection", "192.0.2.1:7400", "192.0.2.1:7400 refuses it")


def test_addresses_are_tried_in_turn_for_ever() -> None:
    search = Coordinators(["a:1", "b:1", "a:1", "c:1"])
    tried = []
    for second in range(7):
        tried.append(search.current)
        search.failed(REFUSED, float(second))
    assert tried == ["a:1", "b:1", "c:1", "a:1", "b:1", "c:1", "a:1"]


def test_where_a_session_opened_it_is_looked_for_first_again() -> None:
    search = Coordinators(["a:1", "b:1"])
    search.failed(REFUSED, 0.0)
    search.opened()
    assert search.current == "b:1"
    assert search.problems() == []
    assert search.rows(1.0) == []


def test_a_problem_is_said_once_until_it_changes_or_ten_minutes_are_over() -> None:
    search = Coordinators(["a:1"])
    assert search.failed(NAME, 0.0)
    assert not search.failed(NAME, 599.0)
    assert search.failed(REFUSED, 599.5)
    assert not search.failed(REFUSED, 700.0)
    assert search.failed(REFUSED, 1200.0)
    search.opened()
    assert search.failed(REFUSED, 1201.0)


def test_screens_are_told_the_hop_of_each_address() -> None:
    search = Coordinators(["run.example:7400", "192.0.2.1:7400"])
    search.failed(NAME, 1.0)
    search.failed(REFUSED, 2.0)
    search.failed(NAME, 3.0)
    first, second = search.rows(5.0)
    assert (first["address"], first["hop"], first["failures"], first["seconds_ago"]) == (
        "run.example:7400",
        "name lookup",
        2,
        2.0,
    )
    assert second["reason"] == "192.0.2.1:7400 refuses it"
    assert "firewall" in second["fix"]
    assert search.problems() == [NAME, REFUSED]
