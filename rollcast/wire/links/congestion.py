"""Choose a link's congestion control by the packets that its path loses. Pure: the time and the figures are arguments.

Cubic, like every control that takes each loss for a full queue, sends no more than ``1.2 segments / (RTT sqrt(loss))``
(Mathis et al. 1997): with 1 % of loss at 80 ms that is 2 Mbit/s, however fast the path is. BBR (Cardwell et al. 2016)
ignores such loss, but where losses do come from full queues it causes many more of them than cubic does, and is slower.
So a link changes to BBR only if it loses packets again and again although no queue has formed: its round trips are
hardly longer than the shortest one. Where most links of a process use BBR, the queue is theirs, and the others follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakSet

BBR = "bbr"
_LOST_LEAST = 3  # fewer losses may be chance
# A full queue, that at the end of slow start too, loses many packets at once; a lossy path a few again and again.
_LOSSY_LOOKS_LEAST = 2
# Cubic feels losses from about this share on: at 80 ms it carries 6 Mbit/s.
_LOSSY_SHARE = 0.002
_LOOKS_LEAST = 4  # fewer are no sample of the round trips
_SEGMENTS_MOST = 2_000  # if losses have not come again and again among these, counting restarts
# Round trips longer than the shortest by this and by this share of it have waited in a queue. Queues of 50 ms showed as
# 24 to 57 ms on the mean, and paths without queues as up to 8.
_QUEUE_S_MOST = 0.015
_QUEUE_SHARE_MOST = 0.10
# On shorter paths cubic recovers soon, and segments that seem lost are those of a process that had no processor.
_RTT_S_LEAST = 0.005
_BBR_S = 600.0  # paths change: after this long the system's control gets another chance


@dataclass(frozen=True, slots=True)
class PathFigures:
    """The kernel's figures of a connection, counted since it was opened.

    Args:
        sent_segments: segments with data, sent again ones included.
        lost_segments: segments that were sent again, less those that had arrived after all.
        rtt_s: the smoothed round trip; 0 if it is unknown.
        least_rtt_s: the shortest round trip seen lately; 0 if it is unknown.
    """

    sent_segments: int = 0
    lost_segments: int = 0
    rtt_s: float = 0.0
    least_rtt_s: float = 0.0


class UplinkChoices:
    """The choices of all links of one process, which share its uplink."""

    def __init__(self) -> None:
        self._choices: WeakSet[CongestionChoice] = WeakSet()

    def add(self, choice: CongestionChoice) -> None:
        """Count a link's choice for as long as the link lives."""
        self._choices.add(choice)

    @property
    def mostly_bbr(self) -> bool:
        """Whether more than half of the links that were judged use BBR."""
        judged = [choice.bbr for choice in self._choices if choice.judged]
        return 2 * sum(judged) > len(judged)


class CongestionChoice:
    """Decides for one link whether it uses BBR in place of the system's congestion control.

    Args:
        beside: the choices of the links that share the uplink. Where most use BBR, a queue is theirs, and the link
            that leaves them the path because of its losses gets next to nothing.
    """

    def __init__(self, beside: UplinkChoices | None = None) -> None:
        self._beside = beside or UplinkChoices()
        self._beside.add(self)
        self.judged = False
        """Whether the link has sent enough to be judged."""
        self.bbr = False
        """Whether the link should use BBR now."""
        self.lost_share = 0.0
        """The share of segments that were lost, of the newest ones; 0 if none was."""
        self._since_s = 0.0  # of the change to BBR
        self._counted = (0, 0)  # segments sent and lost when counting began
        self._waited_s = self._shortest_s = 0.0  # sums over the looks since then
        self._looks = self._lossy_looks = 0
        self._lost_before = 0

    def look(self, path: PathFigures, now: float) -> bool:
        """Take the newest figures of a link that is busy; returns whether ``bbr`` has changed.

        It should be called a few times a second, so that the round trips are a sample of all.
        """
        self._looks += 1
        self._waited_s += max(0.0, path.rtt_s - path.least_rtt_s)
        self._shortest_s += path.least_rtt_s
        self._lossy_looks += path.lost_segments > self._lost_before
        self._lost_before = path.lost_segments
        sent, lost = path.sent_segments - self._counted[0], path.lost_segments - self._counted[1]
        repeated = lost >= _LOST_LEAST and self._lossy_looks >= _LOSSY_LOOKS_LEAST
        if self._looks < _LOOKS_LEAST or (not repeated and sent < _SEGMENTS_MOST):
            return False
        before, self.judged, self.lost_share = self.bbr, True, max(0, lost) / max(1, sent)
        if self.bbr:
            self.bbr = now - self._since_s < _BBR_S
        elif repeated and self.lost_share >= _LOSSY_SHARE and path.least_rtt_s >= _RTT_S_LEAST and not self._queues:
            self.bbr, self._since_s = True, now
        self._counted = path.sent_segments, path.lost_segments
        self._waited_s = self._shortest_s = 0.0
        self._looks = self._lossy_looks = 0
        return self.bbr != before

    @property
    def _queues(self) -> bool:
        """Whether the round trips since counting began have waited in queues that losses may come from."""
        if self._beside.mostly_bbr:
            return False
        waited_s, shortest_s = self._waited_s / self._looks, self._shortest_s / self._looks
        return waited_s > max(_QUEUE_S_MOST, _QUEUE_SHARE_MOST * shortest_s)
