"""Run the emulated network of a long run with its daemons, and record what happens to them."""

from __future__ import annotations

import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.longrun.census import Census
from bench.longrun.churn import Act
from bench.longrun.daemons import LongDaemons
from bench.longrun.presence import Presence
from bench.longrun.stalls import Moment, Span
from bench.systems.base import Case
from bench.wan.network import Network, Sockets
from bench.wan.scenarios import Nat, Node

_ROUTERS: tuple[Nat, ...] = ("full-cone", "port-restricted", "symmetric", "port-restricted")
_JOIN_LIMIT_S = 300.0
_SAMPLE_S = 15.0
_RESTART_S = 2.0
_DAY_S = 86_400.0


def nodes_of(peers: int) -> tuple[Node, ...]:
    """Return an origin and ``peers`` homes, every second one behind a router, of the kinds in turn."""
    homes = (Node(20, 80, 10, _ROUTERS[number // 2 % 4] if number % 2 else None) for number in range(peers))
    return (Node(80, 80, 5), *homes)


class LongFleet:
    """The fleet's network and daemons, the disturbances, and the observations."""

    def __init__(self, network: Network, daemons: LongDaemons, census: Census) -> None:
        self._network = network
        self._daemons = daemons
        self._presence: Mapping[int, Presence] = defaultdict(Presence)
        self._sampled_s = 0.0
        self._restart: dict[str, float] = {}
        self.census = census
        self.died: list[str] = []

    @property
    def peers(self) -> range:
        """Return the numbers of the peers' nodes."""
        return range(1, len(self._network.nodes))

    @property
    def published(self) -> list[Moment]:
        """Return what the learner has published so far, in Unix time."""
        return self._daemons.versions

    def start(self) -> None:
        """Start everything; returns once all peers have joined and the learner publishes.

        Raises:
            ProcessFailed, WaitTimedOut: something does not start.
        """
        now = time.time()
        for number in self.peers:
            self._presence[number].started(now)
        self._daemons.start()
        self._daemons.begin()

    def act(self, act: Act) -> None:
        """Carry out a disturbance, and record the presence of its peer."""
        print(f"{time.strftime('%H:%M:%S')} {act.what} {act.node or ''}", file=sys.stderr, flush=True)
        now, presence = time.time(), self._presence[act.node]
        match act.what:
            case "kill" | "leave" | "freeze":
                presence.gone(now)
            case "start" | "join":
                presence.started(now)
            case "thaw":
                presence.thawed(now)
        self._daemons.act(act)

    def watch(self) -> None:
        """Sample the processes, read the learner, and restart processes that ended; to be called about every second.

        Raises:
            ProcessFailed: the learner ended.
        """
        now = time.time()
        if now - self._sampled_s >= _SAMPLE_S:
            self._sampled_s = now
            self._daemons.sample(now)
        self._daemons.read_published()
        for name in self._daemons.ended():
            print(f"{name} ended by itself: {self._daemons.last_error(name)}", file=sys.stderr, flush=True)
            self.died.append(name)
            self._restart[name] = now + _RESTART_S
            if name.startswith("peer-"):
                self._presence[_number(name)].gone(now)
        for name in [name for name, at_s in self._restart.items() if at_s <= now]:
            del self._restart[name]
            self._start_again(name)

    def spans(self, number: int, end_s: float) -> list[Span]:
        """Return the spans in which a peer was present, in Unix time."""
        opened = [at_s for at_s, _ in self._daemons.log(f"peer-{number}").moments("session opened")]
        return self._presence[number].spans(opened, end_s)

    def held(self, number: int) -> list[Moment]:
        """Return when a peer logged each version as held, in Unix time."""
        return self._daemons.held(f"peer-{number}")

    def opened_since(self, number: int, at_s: float) -> bool:
        """Whether a peer has opened a session since then; Unix time."""
        opened_s = self._daemons.log(f"peer-{number}").last("session opened")
        return opened_s is not None and opened_s >= at_s

    def cores(self, since: tuple[float, float]) -> float:
        """Return the processor seconds a second, the emulator's included, since ``clock``."""
        seconds, cpu_s = (now - then for now, then in zip(self.clock(), since, strict=True))
        return cpu_s / seconds

    def clock(self) -> tuple[float, float]:
        """Return the seconds of a steady clock, and the processor seconds used so far."""
        return time.monotonic(), self._network.cpu_s() + self._network.emulator_cpu_s()

    def _start_again(self, name: str) -> None:
        if name.startswith("peer-"):
            self._presence[_number(name)].started(time.time())
            self._daemons.start_peer(_number(name))
        elif name == "origin":
            self._daemons.start_origin()
        elif name == "coordinator":
            self._daemons.start_coordinator()


@contextmanager
def long_fleet(
    peers: int, folder: Path, *, size_bytes: int, interval_s: float, settings: tuple[str, ...]
) -> Iterator[LongFleet]:
    """Run a fleet while the body runs.

    Args:
        size_bytes: size of each version.
        interval_s: seconds between two versions.
        settings: role.section.key=value, on top of the daemons' configuration.

    Raises:
        ConfigError: a setting is wrong.
        MissingExtra: see bench.wan.build.
        ProcessFailed, WaitTimedOut: something does not start.
    """
    nodes = nodes_of(peers)
    own = ("learner.publish.deltas=true", f"learner.reconnect_timeout_s={_DAY_S}")
    case = Case(nodes, size_bytes, Sockets(), folder, _JOIN_LIMIT_S, settings=(*own, *settings))
    census = Census(folder / "run" / "logs")
    # Inherited by the daemons until they handle it: one that has just been started is not ended by "libp2p_dies".
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    with Network(nodes) as network:
        daemons = LongDaemons(network, case, census, interval_s)
        fleet = LongFleet(network, daemons, census)
        try:
            fleet.start()
            yield fleet
        finally:
            daemons.stop()


def _number(name: str) -> int:
    return int(name.removeprefix("peer-"))
