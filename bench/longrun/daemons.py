"""Run the daemons of a broadcast benchmark, which count their own objects, with a learner that never waits."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import Any

from bench.longrun.census import Census
from bench.longrun.churn import Act
from bench.longrun.stalls import Moment
from bench.systems.base import Case
from bench.systems.rollcast_daemons import Daemons
from bench.wan.network import Network
from rollcast.runtime.errors import WaitTimedOut

_COUNT_S = 15.0
_ERROR_CHARACTERS = 600
_HELD = ("version held", "version held, not announced yet")


class LongDaemons(Daemons):
    """The processes of a long run; see Daemons.

    Args:
        interval_s: seconds between two versions.
    """

    def __init__(self, network: Network, case: Case, census: Census, interval_s: float) -> None:
        super().__init__(network, case)
        self._census = census
        self._interval_s = interval_s
        self.versions: list[Moment] = []

    def begin(self) -> None:
        """Make the learner publish from now on."""
        self.send_command("begin")

    def act(self, act: Act) -> None:
        """Carry out a disturbance of one process."""
        name = f"peer-{act.node}"
        match act.what:
            case "kill":
                self.kill(name)
            case "leave":
                self.remove_peer(act.node)
            case "freeze":
                self._processes[name].send_signal(signal.SIGSTOP)
            case "libp2p_dies":
                self._processes[name].send_signal(signal.SIGUSR1)
            case "coordinator_dies":
                self.kill("coordinator")
            case "start" | "join":
                self.start_peer(act.node)
            case "thaw":
                self._processes[name].send_signal(signal.SIGCONT)
            case "coordinator_starts":
                self.start_coordinator()

    def sample(self, now_s: float) -> None:
        """Sample every process."""
        for name, process in self._processes.items():
            self._census.take(name, process.pid, now_s)

    def read_published(self) -> None:
        """Read the learner's lines since the last call.

        Raises:
            ProcessFailed: the learner ended.
        """
        while True:
            try:
                _, line = self._lines.next("the learner", 0.0)
            except WaitTimedOut:
                return
            answer = json.loads(line)
            if answer["event"] == "published":
                self.versions.append(Moment(answer["at_s"], answer["version"]))

    def ended(self) -> list[str]:
        """Return the processes that ended by themselves since the last call."""
        gone = [name for name, process in self._processes.items() if self._network.has_ended(process)]
        for name in gone:
            del self._processes[name]
        return gone

    def last_error(self, name: str) -> str:
        """Return the last characters that a process printed on stderr."""
        path = self._folder.logs / f"{name}.err"
        return path.read_text(errors="replace").strip()[-_ERROR_CHARACTERS:] if path.exists() else ""

    def held(self, name: str) -> list[Moment]:
        """Return the versions that a peer logged as held whole, whether the coordinator has announced them or not."""
        log = self.log(name)
        return [Moment(*moment) for moment in sorted(moment for event in _HELD for moment in log.moments(event))]

    def _learner_program(self, files: list[str]) -> list[str]:
        _, *arguments = super()._learner_program(files)
        return ["bench.programs.steady_learner", *arguments, str(self._interval_s)]

    def _spawn(self, node: int, name: str, command: list[str], **options: Any) -> subprocess.Popen[Any]:
        path = self._census.file_of(name)
        path.unlink(missing_ok=True)
        python, _, *module = command
        counted = [python, "-m", "bench.programs.counted", str(path), str(_COUNT_S), *module]
        return super()._spawn(node, name, counted, **options)
