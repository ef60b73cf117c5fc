"""Tell which chunks are late: pushing should have brought them by now, as far as is usual on this peer.

And how long a source may be silent that was asked for them.
"""

from __future__ import annotations

from peer.relay.core.state.relay_state import EncodingState, RelayState

# A chunk is late if it is this many times as far behind the newest as chunks usually are on this peer.
_USUAL_LAGS = 1.5
_LAG_DECAY = 0.995
# One slow parent makes a stripe come seconds late, which must not teach this peer to wait for seconds: chunks are
# requested after _LAG_S_MOST, or after the time in which _LAG_CHUNKS_MOST chunks come where chunks take long.
_LAG_S_MOST = 1.0
_LAG_CHUNKS_MOST = 96
# The newest chunk is noted at most every _FRONTIER_STEP_S, and _FRONTIERS_MOST of these notes are kept.
_FRONTIER_STEP_S = 0.02
_FRONTIERS_MOST = 512
# In the last share of an encoding a chunk is late as soon as it is further behind than any chunk was lately: nothing
# comes after it that would hide the wait. Sooner, everything that is on its way down a tree would be requested as well.
_END_SHARE = 0.02
# A source is silent after the time in which so many chunks usually come, where that is longer than the stall timeout,
# and after _STALL_TIMES_MOST times that timeout at the latest.
_STALL_CHUNKS = 16
_STALL_TIMES_MOST = 4.0


def note_arrival(encoding: EncodingState, index: int, now: float) -> None:
    """Note a pushed chunk: whether it is the newest, or else how long after a newer one it came."""
    encoding.pushed_at_s = now
    if index > encoding.frontier:
        encoding.frontier = index
        times = encoding.frontier_at
        if not times or now - times[-1][0] >= _FRONTIER_STEP_S:
            times.append((now, index))
            if len(times) > _FRONTIERS_MOST:
                times.popleft()
        return
    passed_at_s = _passed_at(encoding, index)
    lag_s = 0.0 if passed_at_s is None else now - passed_at_s
    encoding.lag_s = max(encoding.lag_s * _LAG_DECAY, lag_s)


def _passed_at(encoding: EncodingState, index: int) -> float | None:
    """Return when a chunk with this index or a higher one first came; None if that is longer ago than is noted."""
    passed_at_s = None
    for at_s, frontier in reversed(encoding.frontier_at):  # most chunks are hardly behind the newest
        if frontier < index:
            break
        passed_at_s = at_s
    return passed_at_s


def late_below(state: RelayState, encoding: EncodingState, now: float) -> int:
    """Return the index below which every chunk should have come by push; all chunks if no more pushes are expected."""
    settings = state.settings
    ending = encoding.frontier >= encoding.chunk_count * (1.0 - _END_SHARE) - 1
    least_s = settings.late_s_least_at_end if ending else settings.late_s_least
    usual_s = min(encoding.lag_s, _LAG_S_MOST) if ending else _usual_s(encoding, now)
    before_s = now - max(least_s, usual_s)
    below = next((frontier for at_s, frontier in reversed(encoding.frontier_at) if at_s <= before_s), 0)
    if encoding.pushed_at_s <= before_s:
        below = max(below, encoding.frontier)  # not every rise is noted
    quiet = now - encoding.pushed_at_s >= _quiet_s(state, encoding)
    quiet |= 0.0 < encoding.all_claimed_at_s <= now - settings.late_s_least
    pushed = expects_pushes(state) and encoding.holder is None
    return below if pushed and not quiet else encoding.chunk_count


def _usual_s(encoding: EncodingState, now: float) -> float:
    """Return how far behind the newest a chunk may be: as usual on this peer, unless that shows only a slow parent."""
    return min(_USUAL_LAGS * encoding.lag_s, max(_LAG_S_MOST, _LAG_CHUNKS_MOST * encoding.pace_s(now)))


def expects_pushes(state: RelayState) -> bool:
    """Return whether a parent of the plan is connected: some may refuse this peer."""
    return any(peer_id in state.link_to for peer_id in state.plan.parents)


def _quiet_s(state: RelayState, encoding: EncodingState) -> float:
    """Return the seconds without a pushed chunk after which no more pushes are expected."""
    if not encoding.pushed:
        return 0.0
    settings = state.settings
    if any(source.claims_all for source in encoding.sources.values()):
        return settings.late_s_least  # whatever was still to be pushed, it can be requested now
    return max(settings.late_s_least, min(settings.stall_timeout_s, _usual_s(encoding, state.now_s)))


def stalled_after_s(state: RelayState, encoding: EncodingState, now: float) -> float:
    """Return after how many seconds without a chunk a source, or all of them, count as silent.

    Where chunks take long, sources that are only slow would be given up, and further holders dialled in their place.
    """
    stall_s = state.settings.stall_timeout_s
    return min(_STALL_TIMES_MOST * stall_s, max(stall_s, _STALL_CHUNKS * encoding.known_pace_s(now)))
