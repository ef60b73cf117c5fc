from __future__ import annotations

from dataclasses import replace

from coordinator.actions import SendProbe
from coordinator.probing import ProbeCandidate, ProbeSettings, Probing
from rollcast.wire.ids import PeerId

SETTINGS = ProbeSettings(bytes_max=1000, seconds_max=2.0, spacing_s=1.0)
MEMBERS = 40


def candidate(name: str, *targets: str, confidence: float = 0.0, done: int = 0, wanted: bool = True) -> ProbeCandidate:
    return ProbeCandidate(PeerId(name), wanted, confidence, done, tuple(PeerId(one) for one in targets))


def asked(probing: Probing, candidates: list[ProbeCandidate], now: float) -> list[SendProbe]:
    return probing.next(candidates, now) if probing.is_time(MEMBERS, now) else []


A, B, C = candidate("a", "c"), candidate("b", "c"), candidate("c", "a", wanted=False)


def test_one_at_a_time_the_least_known_first() -> None:
    probing = Probing(SETTINGS)
    known_a_little = replace(A, confidence=0.1)
    assert asked(probing, [known_a_little, B, C], 0.0) == [SendProbe(PeerId("b"), 1, PeerId("c"), 1000, 2.0)]
    assert asked(probing, [known_a_little, B, C], 5.0) == []  # it is under way
    done = replace(B, done_probe_id=1, confidence=0.9)
    assert asked(probing, [known_a_little, done, C], 6.0) == []  # its answer is noticed when it is time for another
    (second,) = asked(probing, [known_a_little, done, C], 20.0)
    assert (second.peer_id, second.probe_id) == ("a", 2)


def test_those_that_are_known_unwanted_or_without_an_idle_target_are_left_alone() -> None:
    probing = Probing(SETTINGS)
    assert asked(probing, [replace(A, confidence=0.5), C], 0.0) == []
    assert asked(probing, [B], 5.0) == []  # looked in vain just now
    assert asked(probing, [B], 10.0) == []  # its target is busy
    assert len(asked(probing, [B, C], 20.0)) == 1


def test_a_probe_that_brought_nothing_is_repeated_ever_later() -> None:
    probing = Probing(SETTINGS)
    times = [now for now in map(float, range(0, 4000, 5)) if asked(probing, [A, C], now)]
    assert times == [0.0, 600.0, 1800.0]


def test_several_at_once_only_among_many_and_never_to_the_same_target() -> None:
    probing = Probing(SETTINGS)
    everybody = [A, B, C, candidate("d", "c", "e"), candidate("e", wanted=False)]
    found: list[tuple[str, str]] = []
    for now in range(10):
        if probing.is_time(200, float(now)):
            found += [(one.peer_id, one.to_peer) for one in probing.next(everybody, float(now))]
    assert found == [("a", "c"), ("d", "e")]


def test_a_peer_that_left_frees_its_place_and_probing_can_be_switched_off() -> None:
    probing = Probing(SETTINGS)
    assert asked(probing, [A, B, C], 0.0)
    probing.left(PeerId("a"))
    assert [one.peer_id for one in asked(probing, [B, C], 1.0)] == ["b"]
    assert not Probing(ProbeSettings(bytes_max=0)).is_time(MEMBERS, 0.0)
