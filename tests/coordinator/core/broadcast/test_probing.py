from __future__ import annotations

from collections.abc import Mapping, Sequence

from coordinator.core.broadcast.probing import ProbeSettings, Probing
from coordinator.core.events.actions import SendProbe
from rollcast.wire.ids import PeerId

SETTINGS = ProbeSettings(bytes_max=1000, seconds_max=2.0, spacing_s=1.0)
MEMBERS = 40

TO_C = {"a": ["c"], "b": ["c"]}


def asked(
    probing: Probing,
    confidences: Mapping[str, float],
    now: float,
    *,
    targets: Mapping[str, Sequence[str]] = TO_C,
    idle: str = "abcde",
    members: int = MEMBERS,
) -> list[SendProbe]:
    if not probing.is_time(members, now):
        return []
    return probing.next(
        [(PeerId(name), confidence) for name, confidence in confidences.items()],
        now,
        is_idle=lambda peer_id: peer_id in idle,
        targets_of=lambda peer_id: [PeerId(name) for name in targets.get(peer_id, ())],
    )


def test_one_at_a_time_the_least_known_first() -> None:
    probing = Probing(SETTINGS)
    assert asked(probing, {"a": 0.1, "b": 0.0}, 0.0) == [SendProbe(PeerId("b"), 1, PeerId("c"), 1000, 2.0)]
    assert asked(probing, {"a": 0.1, "b": 0.0}, 5.0) == []  # it is under way
    assert probing.running == ["b"]
    probing.reported(PeerId("b"), 0)  # that was an earlier one
    assert asked(probing, {"a": 0.1, "b": 0.0}, 6.0) == []
    probing.reported(PeerId("b"), 1)
    assert probing.running == []
    (second,) = asked(probing, {"a": 0.1, "b": 0.9}, 20.0)
    assert (second.peer_id, second.probe_id) == ("a", 2)


def test_those_that_are_known_busy_or_without_an_idle_target_are_left_alone() -> None:
    probing = Probing(SETTINGS)
    assert asked(probing, {"a": 0.5}, 0.0) == []
    assert asked(probing, {"b": 0.0}, 5.0) == []  # looked in vain just now
    assert asked(probing, {"b": 0.0}, 10.0, idle="ab") == []  # its target is busy
    assert asked(probing, {"b": 0.0}, 20.0, idle="c") == []
    assert len(asked(probing, {"b": 0.0}, 30.0)) == 1


def test_nobody_is_asked_whether_it_is_idle_that_needs_no_probe() -> None:
    probing, looked_at = Probing(SETTINGS), []

    def is_idle(peer_id: PeerId) -> bool:
        looked_at.append(peer_id)
        return False

    uplinks = [(PeerId("a"), 0.9), (PeerId("b"), 0.0)]
    assert probing.next(uplinks, 0.0, is_idle=is_idle, targets_of=lambda _: ()) == []
    assert looked_at == ["b"]


def test_a_probe_that_brought_nothing_is_repeated_ever_later() -> None:
    probing = Probing(SETTINGS)
    times = [now for now in map(float, range(0, 4000, 5)) if asked(probing, {"a": 0.0}, now)]
    assert times == [0.0, 600.0, 1800.0]


def test_several_at_once_only_among_many_and_never_to_the_same_target() -> None:
    probing = Probing(SETTINGS)
    targets = TO_C | {"d": ["c", "e"], "c": ["a"]}
    everybody = dict.fromkeys("abcd", 0.0)
    found: list[tuple[str, str]] = []
    for now in range(10):
        probes = asked(probing, everybody, float(now), targets=targets, members=200)
        found += [(one.peer_id, one.to_peer) for one in probes]
    assert found == [("a", "c"), ("d", "e")]


def test_a_peer_that_left_frees_its_place_and_probing_can_be_switched_off() -> None:
    probing = Probing(SETTINGS)
    assert asked(probing, {"a": 0.0, "b": 0.0}, 0.0)
    probing.left(PeerId("a"))
    assert [one.peer_id for one in asked(probing, {"b": 0.0}, 1.0)] == ["b"]
    assert not Probing(ProbeSettings(bytes_max=0)).is_time(MEMBERS, 0.0)
