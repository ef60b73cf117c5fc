"""Run the process that solves large relay plans: it reads problems from stdin and writes their solutions to stdout.

    -> {"shape": settings}                 <- {"ready": true}
    -> {"data": message} ...               the messages of a problem (coordinator/relays/packing.py)
    <- {"data": message} ...               those of its solution

Messages are MessagePack in base64. The process keeps its newest solution, from which the next plan may continue.
"""

from __future__ import annotations

import os
import sys
from base64 import b64decode, b64encode

from coordinator.core.broadcast.problem import RelaySolution
from coordinator.relays.packing import ProblemReader, pack_solution, unpack_shape
from coordinator.workers.child import Pipe, keep_quiet

NICENESS = 5  # a plan may take a second longer; acknowledgements of uploads may not


def main() -> int:
    """Serve until stdin closes."""
    pipe = Pipe()
    pipe.listen()
    keep_quiet()
    os.nice(NICENESS)
    reader = ProblemReader(unpack_shape(b64decode(pipe.receive()["shape"])))
    pipe.send({"ready": True})
    newest: RelaySolution | None = None
    while True:
        problem = reader.take(b64decode(pipe.receive()["data"]), newest)
        if problem is None:
            continue
        newest = problem.solve()
        for message in pack_solution(problem):
            pipe.send({"data": b64encode(message).decode()})


if __name__ == "__main__":
    sys.exit(main())
