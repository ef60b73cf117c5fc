"""Broadcast with Rollcast itself: coordinator, origin, peers and a publisher as in a real run, TLS and checks on.

The clock runs from the coordinator's log entry of the announcement to each peer's log entry that it holds the version,
whose state hash it has then checked. All daemons log by the same machine's clock. The result differs from the
coordinator's own T_bcast (``reported_s``) only by the travel time of the peers' messages.

The first two versions warm connections up and let the rates of relays and receivers be measured; they do not count.
Where the case has trouble, broadcasts with and without it alternate through the same daemons, and one that does not
count follows each trouble.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.systems.base import Broadcast, Case, check_copies
from bench.systems.rollcast_daemons import Daemons
from bench.wan.machines import Loopback, Machines
from bench.wan.meter import Meter
from bench.wan.network import Network
from bench.wan.scenarios import SLOWED_TO, Trouble
from rollcast.runtime.errors import ProcessFailed, WaitTimedOut

_POLL_S = 0.02
_JOIN_TIMEOUT_S = 60.0
_DURABLE_TIMEOUT_S = 30.0


def missing() -> str:
    """Return an empty string: the system needs only this project."""
    return ""


def broadcasts(case: Case) -> Iterator[Broadcast]:
    """Yield the measured broadcasts of one version after another through the same daemons.

    Raises:
        ConfigError: a setting is wrong.
        RollcastError: a daemon ended, or a version did not arrive in time.
    """
    with _running(case, Daemons) as run:
        run.clean()
        run.clean()
        while True:
            yield run.clean()
            if case.trouble is not None:
                yield run.troubled(case.trouble)
                run.clean()


@contextmanager
def running(
    case: Case, daemons_of: Callable[[Machines, Case], Daemons] = Daemons
) -> Iterator[Callable[[str], Broadcast]]:
    """Run the daemons while the body of the context runs.

    Yields a function that publishes a version of the named content (see bench.programs.noise_learner) and measures its
    broadcast. The first broadcasts warm connections up.

    Args:
        daemons_of: function that makes the daemons; they are started here.

    Raises:
        RollcastError: see broadcasts.
    """
    with _running(case, daemons_of) as run:
        yield run.clean


@contextmanager
def _running(case: Case, daemons_of: Callable[[Machines, Case], Daemons]) -> Iterator[_Run]:
    with _machines(case) as network:
        daemons = daemons_of(network, case)
        try:
            daemons.start()
            yield _Run(network, daemons, case)
        except ProcessFailed as error:
            raise ProcessFailed(error.what, cause=daemons.last_words() or error.cause, fix=error.fix) from None
        finally:
            daemons.stop()


def _machines(case: Case) -> Network | Loopback:
    return Network(case.nodes, case.sockets) if case.emulated else Loopback(case.nodes, 1 + os.getpid() % 250)


class _Run:
    """A sequence of broadcasts through running daemons."""

    def __init__(self, network: Machines, daemons: Daemons, case: Case) -> None:
        self._network = network
        self._daemons = daemons
        self._case = case
        self._version = -1
        self._on_arrival = "origin.link.relay_on_arrival=true" in case.settings
        self._origin_answer: dict[str, Any] = {}  # the learner's, once the origin holds the version

    def clean(self, content: str = "publish") -> Broadcast:
        """Publish one version and follow it to the last peer."""
        meter = self._announce(content)
        self._wait_for(self._case.receivers)
        cost = meter.read()
        answer = self._peers_hold()
        self._check_copies(self._case.receivers)
        seconds = self._seconds(self._case.receivers)
        return Broadcast(
            seconds,
            cost,
            from_freeze_s=self._from_freeze_s(seconds),
            reported_s=float(answer["t_bcast_s"]),
            origin_s=float(self._origin_answer["seconds"]),
            encoding_bytes=tuple(self._origin_answer["encoding_bytes"]),
            written_bytes=self._daemons.written_bytes(self._origin_answer["started_at"]),
        )

    def _from_freeze_s(self, seconds: Mapping[int, float]) -> float:
        """Return the seconds from the freeze to the last copy, without what the benchmark itself does meanwhile."""
        if self._on_arrival:
            held = [at for number in self._case.receivers if (at := self._held_at(number)) is not None]
            return max(held) - float(self._origin_answer["started_at"])
        return float(self._origin_answer["seconds"]) + max(seconds.values())

    def troubled(self, trouble: Trouble) -> Broadcast:
        """Publish one version with trouble in the middle of its broadcast, and end the trouble afterwards."""
        node = trouble.node
        if trouble.what == "joins":
            self._daemons.remove_peer(node)
            self._daemons.start_peer(node, waits=True)
        meter, started_s = self._announce(), time.monotonic()
        time.sleep(max(0.0, trouble.after_bounds * self._case.bound_s - (time.monotonic() - started_s)))
        began_at = time.time()
        self._begin(trouble)
        counted = [number for number in self._case.receivers if trouble.what != "dies" or number != node]
        self._wait_for(counted)
        cost = meter.read()
        seconds = self._seconds(counted)
        if trouble.what == "joins":
            seconds[node] = self._since_joining(node, began_at)
        self._end(trouble)
        self._peers_hold()
        self._check_copies(self._case.receivers)
        return Broadcast(seconds, cost, troubled=True)

    @property
    def _emulated(self) -> Network:
        assert isinstance(self._network, Network), "scenarios with trouble are emulated"
        return self._network

    def _begin(self, trouble: Trouble) -> None:
        match trouble.what:
            case "dies":
                self._daemons.kill(f"peer-{trouble.node}")
            case "slows":
                node = self._case.nodes[trouble.node]
                self._emulated.set_rates(trouble.node, node.with_uplink(SLOWED_TO * node.up_mbit_s))
            case "joins":
                self._daemons.join_peer(trouble.node)

    def _end(self, trouble: Trouble) -> None:
        match trouble.what:
            case "dies":
                self._daemons.start_peer(trouble.node)  # the restarted peer resumes from its state folder
            case "slows":
                self._emulated.set_rates(trouble.node, self._case.nodes[trouble.node])
            case "joins":
                pass  # the node stays until the next trouble removes it

    # ------------------------------------------------------------ one version

    def _announce(self, content: str = "publish") -> Meter:
        """Publish the next version and announce it; returns the meter that starts just before the announcement."""
        time.sleep(self._case.settle_s)
        self._version += 1
        self._daemons.send_command(content)
        self._origin_answer = self._daemons.next_answer("origin_holds", self._case.limit_s)
        if content == "update" and not self._on_arrival:
            self._daemons.populate_memory(self._version)
        meter = Meter(self._network)
        self._daemons.send_command("announce")
        return meter

    def _peers_hold(self) -> dict[str, float]:
        answer = self._daemons.next_answer("peers_hold", self._case.limit_s + _JOIN_TIMEOUT_S)
        if answer["version"] != self._version:
            raise ProcessFailed(f"the learner published version {answer['version']}, not {self._version}")
        return answer

    def _held_at(self, number: int) -> float | None:
        return self._daemons.log(f"peer-{number}").last("version held", self._version)

    def _wait_for(self, numbers: Sequence[int]) -> None:
        end_s = time.monotonic() + self._case.limit_s
        while any(self._held_at(number) is None for number in numbers):
            if time.monotonic() > end_s:
                raise WaitTimedOut(f"waited {self._case.limit_s:.0f} s for peers to hold version {self._version}")
            time.sleep(_POLL_S)

    def _seconds(self, numbers: Sequence[int]) -> dict[int, float]:
        announced_at = self._daemons.log("coordinator").last("version announced", self._version)
        if announced_at is None:
            raise ProcessFailed(f"the coordinator's log has no entry that version {self._version} was announced")
        seconds: dict[int, float] = {}
        for number in numbers:
            held_at = self._held_at(number)
            if held_at is None:
                raise ProcessFailed(f"the log of peer {number} has no entry that it holds version {self._version}")
            seconds[number] = held_at - announced_at
        return seconds

    def _since_joining(self, number: int, began_at: float) -> float:
        joined_at = self._daemons.log(f"peer-{number}").last("session opened")
        held_at = self._held_at(number)
        if joined_at is None or held_at is None or joined_at < began_at:
            raise ProcessFailed(f"the log of peer {number} has no entry that it joined")
        return held_at - joined_at

    def _check_copies(self, numbers: Sequence[int]) -> None:
        """Check that every peer's file equals the learner's, byte for byte."""
        copies = {number: self._copy(number) for number in numbers}
        published = self._daemons.published(self._version)
        check_copies(copies, hashlib.sha256(published).hexdigest())

    def _copy(self, number: int) -> Path:
        """Return a peer's file, which becomes durable and gets its name a little after the version is held."""
        end_s = time.monotonic() + _DURABLE_TIMEOUT_S
        while not (path := self._daemons.stored(number, self._version)).is_file() and time.monotonic() < end_s:
            time.sleep(_POLL_S)
        return path
