"""Run lives of a real learner, one process each, for ``bench resume``: import once and fork.

The program reads one JSON object {"config", "kill_point", "log"} per line and prints that life's exit status; -9 means
that it was killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import warnings
from typing import Any

from learner.config import LearnerConfig
from learner.kill_points import VARIABLE
from learner.service import run
from rollcast.runtime.errors import RollcastError


def main() -> int:
    # Nothing of jax has run in this process yet, so there are no threads that a fork would lose.
    warnings.filterwarnings("ignore", message="os.fork")
    for line in sys.stdin:
        life = os.fork()
        if life == 0:
            os._exit(_live(json.loads(line)))
        _, status = os.waitpid(life, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    return 0


def _live(asked: dict[str, Any]) -> int:
    log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.environ[VARIABLE] = asked["kill_point"]
    try:
        return asyncio.run(run(LearnerConfig.model_validate(asked["config"]), asyncio.Event()))
    except RollcastError as error:
        print(error, flush=True)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
