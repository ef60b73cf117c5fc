"""Run the coordinator process, from startup to the run's summary."""

from __future__ import annotations

import asyncio
import gc
import sys
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any

import structlog

from coordinator.assembly import Coordinator, check, load_http, started
from coordinator.config.config import CoordinatorConfig
from coordinator.core.leases.drop_counts import NEXT_TURN
from coordinator.head import as_cell, head_of
from coordinator.ledger.sql import SqlConnection
from coordinator.ledger.sql_facts import get_meta
from coordinator.prompts.loading import TaskLoading
from coordinator.recovery.authority import can_decrypt_authority
from coordinator.recovery.resume import BATCH_SHAPE, FINISHED, check_shape
from coordinator.report.summary import write_summary
from coordinator.stores.leadership import Leadership
from coordinator.stores.opening import leadership_of
from rollcast.runtime.config import dump_json
from rollcast.runtime.errors import LeadershipLost, StoreError, WaitTimedOut
from rollcast.runtime.process import (
    EXIT_INTERRUPTED,
    collect_garbage_in_small_steps,
    raise_open_files_limit,
    return_large_blocks,
)
from rollcast.runtime.run_folder import RunFolder, run_folder_error, write_atomically
from rollcast.runtime.waits import cancel_and_wait, deadline
from rollcast.wire.joining.invite import Invite

log = structlog.get_logger()

GOODBYE_S = 3.0  # for peers to receive their Stop and disconnect
LAST_STATUS_S = 1.2  # pages are updated once a second and should show how the run ended
SUMMARY_DEADLINE_S = 120.0  # also for millions of rollouts to be counted
AWAY_MOST_S = 30.0  # in a row, for which a finished run waits with its summary for a store that does not answer
AWAY_POLL_S = 0.25
# The same where the run was only stopped. The whole must take less than the 30 s or more after which service managers
# kill, also during an outage of the store: goodbyes, this, the ledger's last commit, and the leadership's end.
STOPPED_SUMMARY_DEADLINE_S = 8.0
# CPython's switch interval (5 ms by default): how long the ledger's thread waits for the interpreter at each statement
# while the loop is busy. Acknowledgements wait for that thread.
THREAD_SWITCH_S = 0.0005
RETURN_S = 8.0  # after a kill at the run's end, for members to come back and receive their Stop; they dial every 5 s


async def run(config: CoordinatorConfig, stop: asyncio.Event) -> int:
    """Coordinate one run until the learner has finished it or ``stop`` is set; return the exit status.

    Raises:
        RollcastError: the run cannot start or continue. The summary so far is written nevertheless.
    """
    head = await head_of(config)
    config = config if head is None else as_cell(config, head)
    check(config)
    sys.setswitchinterval(THREAD_SWITCH_S)
    collect_garbage_in_small_steps()
    return_large_blocks()  # uploads are parsed in blocks of megabytes, a few at a time
    raise_open_files_limit()  # each member has two connections
    folder = await asyncio.to_thread(_prepare, config)
    async with AsyncExitStack() as stack:
        task = TaskLoading(config) if config.store.url else None  # a standby is ready before it leads
        if task is not None:
            stack.push_async_callback(task.close)
        leadership = await _leadership(config, folder, task, stop)
        if leadership is not None:
            stack.push_async_callback(leadership.close)
        elif config.store.url:  # a standby that was stopped before it led
            return EXIT_INTERRUPTED
        return await _coordinate(config, folder, leadership, head, task, stop)


async def _leadership(
    config: CoordinatorConfig, folder: RunFolder, task: TaskLoading | None, stop: asyncio.Event
) -> Leadership | None:
    """Wait until this process leads; None if the store is SQLite, or if ``stop`` is set.

    Raises:
        RollcastError: a standby's task cannot be loaded, so that it could not take over; see also leadership_of and
            _can_take_over.
    """
    address, may_lead = config.serve.advertise_host or config.serve.host, partial(_can_take_over, config, folder)
    leading = asyncio.create_task(leadership_of(config.store, folder, address, stop, may_lead))
    loading = None if task is None else asyncio.create_task(task.loaded())
    try:
        if loading is not None:
            await asyncio.to_thread(load_http)  # a standby has the time: members should not find it busy with it
        await asyncio.wait([leading] if loading is None else [leading, loading], return_when=asyncio.FIRST_COMPLETED)
        if loading is not None and loading.done() and not leading.done():
            loading.result()
        return await leading
    finally:
        waits = [leading] if loading is None else [leading, loading]
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


def _can_take_over(config: CoordinatorConfig, folder: RunFolder, connection: SqlConnection) -> bool:
    """Check a standby while another coordinator leads; return False while the store does not have all to check.

    Raises:
        ConfigError: its configuration asks for batches of another shape.
        RunFolderError, WrongKey: its key does not decrypt that of the run's authority.
    """
    if config.cell.invite_file is None:  # the batches of a cell are the head's
        check_shape(config.run, get_meta(connection, BATCH_SHAPE))
    return can_decrypt_authority(folder.secrets / config.store.key_file, connection)


async def _coordinate(
    config: CoordinatorConfig,
    folder: RunFolder,
    leadership: Leadership | None,
    head: Invite | None,
    task: TaskLoading | None,
    stop: asyncio.Event,
) -> int:
    async with started(config, folder, leadership, head, task) as coordinator:
        gc.freeze()  # the run's parts live as long as the process: the collector need not scan them again and again
        failure = await _wait_until_over(coordinator, leadership, stop)
        if isinstance(failure, LeadershipLost):  # the run goes on at the other coordinator, as do its members
            raise failure
        if coordinator.start.learner_finished:
            await asyncio.sleep(RETURN_S)
        finished = coordinator.shell.finished.is_set() and failure is None
        reason = str(failure).splitlines()[0] if failure else "finished" if finished else "stopped"
        log.info("run ends", reason=reason)
        coordinator.shell.end_run(reason, final=finished)
        if failure is None and not finished:
            await _end_stopped(coordinator, reason)
            return EXIT_INTERRUPTED
        try:
            await _wait_for_goodbyes(coordinator)
            # A failed run is not resumed before a person has examined it.
            await coordinator.fleet_handle.end(reason, config.providers.stop_timeout_s)
            await _write_last_summary(coordinator, reason)
        except Exception:
            if failure is None:
                raise
            log.exception("ending the failed run failed too")
        if failure is not None:
            raise failure
        await _stay(config.serve.stay_s, stop)
        return 0


async def _end_stopped(coordinator: Coordinator, reason: str) -> None:
    """End a run that can be resumed, without its summary if the store does not answer in time."""
    if not coordinator.ledger.is_reached:
        log.warning("the store does not answer: the coordinator waits for it a little, and ends without it")
    await _wait_for_goodbyes(coordinator)
    try:
        await _write_summary(coordinator, reason, STOPPED_SUMMARY_DEADLINE_S)
    except WaitTimedOut as error:
        log.warning("the coordinator ends without a summary, and can be started again", cause=error.what)


async def _wait_until_over(
    coordinator: Coordinator, leadership: Leadership | None, stop: asyncio.Event
) -> Exception | None:
    """Wait until the learner finishes, ``stop`` is set or an error occurs; return the error, or None."""
    waits = [asyncio.create_task(event.wait()) for event in (coordinator.shell.finished, stop)]
    lost = [] if leadership is None else [leadership.lost]
    ends: list[asyncio.Future[Any]] = [*waits, coordinator.shell.failure, *lost]
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    if lost and lost[0].done():
        return lost[0].result()
    return coordinator.shell.failure.result() if coordinator.shell.failure.done() else None


async def _stay(seconds: float, stop: asyncio.Event) -> None:
    """Keep serving the dashboard of the finished run for some time, or until ``stop`` is set."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()


async def _wait_for_goodbyes(coordinator: Coordinator) -> None:
    """Wait until peers have received their queued messages (their Stop included) and pages the last status."""
    with suppress(TimeoutError):
        async with asyncio.timeout(GOODBYE_S):
            await asyncio.gather(coordinator.sessions.all_closed(), asyncio.sleep(LAST_STATUS_S))


async def _write_last_summary(coordinator: Coordinator, reason: str) -> None:
    """Write the summary of a run that is over, and give up a store that does not answer for AWAY_MOST_S.

    Raises:
        StoreError: the store does not answer.
        WaitTimedOut: it answers, and the summary was not written within SUMMARY_DEADLINE_S.
    """
    loop, away_since_s = asyncio.get_running_loop(), None
    writing = asyncio.create_task(_write_summary(coordinator, reason, SUMMARY_DEADLINE_S))
    try:
        while not (await asyncio.wait((writing,), timeout=AWAY_POLL_S))[0]:
            if coordinator.ledger.is_reached:
                away_since_s = None
            elif away_since_s is None:
                away_since_s = loop.time()
                log.warning("the run is over, and its summary waits for the store", most_s=AWAY_MOST_S)
            elif loop.time() - away_since_s >= AWAY_MOST_S:
                raise StoreError(
                    f"the run is over, and its summary is not written: the store did not answer for {AWAY_MOST_S:g} s",
                    fix="start the coordinator again once the store answers: it then writes the summary and ends",
                )
        writing.result()
    finally:
        await cancel_and_wait(writing)


async def _write_summary(coordinator: Coordinator, reason: str, within_s: float) -> None:
    """Write the summary with rollouts counted in the ledger: only the ledger's counts outlive the process.

    Raises:
        WaitTimedOut: it was not written within so many seconds.
    """
    async with deadline(within_s, "the store to count the rollouts for the summary"):
        status, counts = coordinator.fleet_handle.merged(coordinator.shell.status()), await coordinator.ledger.counts()
        counted = {
            "issued": counts.issued,
            "accepted": counts.accepted,
            "trained": counts.trained,
            "turns": counts.dropped.get(NEXT_TURN, 0),
            "open": counts.open,
            "dropped": {reason: count for reason, count in counts.dropped.items() if reason != NEXT_TURN},
        }
        if any(status["rollouts"][name] != counted[name] for name in ("issued", "trained")):
            log.error("the core and the ledger count differently", core=status["rollouts"], ledger=counted)
        ended = {**status, "rollouts": counted, "ended_because": reason}
        await asyncio.to_thread(write_summary, coordinator.folder, ended, coordinator.config)
        if status["phase"] == "finished":
            await coordinator.ledger.set_meta(FINISHED, "yes")


def _prepare(config: CoordinatorConfig) -> RunFolder:
    folder = RunFolder(config.run_folder).prepare()
    try:
        folder.endpoints.unlink(missing_ok=True)
        folder.starting.unlink(missing_ok=True)
        write_atomically(folder.config / "coordinator.json", dump_json(config).encode())
    except OSError as error:
        raise run_folder_error(folder.root, error) from None
    return folder
