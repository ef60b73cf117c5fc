"""Start a pool, print its processes, and score items until killed; test_pool.py runs this as a process."""

from __future__ import annotations

import asyncio
import json
import sys

from coordinator.tasks.checks.task import Problem
from coordinator.verifiers.pool import VerifierPool
from coordinator.verifiers.scorer import ScoreItem


async def main(command: list[str], task_json: str, completion: str) -> None:
    pool = VerifierPool(task_json, 0, 2, 60.0, 10, command=command)
    await pool.start()
    problem = Problem("hostile:0", "a", "a", {})
    waiting = [asyncio.create_task(pool.score([ScoreItem(str(key), problem, completion)])) for key in range(2)]
    await asyncio.sleep(0.2)  # let the items reach the processes
    print(json.dumps(pool.pids), flush=True)
    await asyncio.gather(*waiting)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]))
