"""Follow the coordinator's orders for profiles: which one may begin, and what is reported on it."""

from __future__ import annotations

from rollcast.wire.proto import rollcast_pb2 as pb


class ProfileOrders:
    """The newest order and the report on it. All methods belong to the event loop's thread.

    A trace begins only once the coordinator has a report on its order: if the trace ends this process, the next one
    reports none, and the coordinator gives the profile up rather than ordering it again.
    """

    def __init__(self) -> None:
        self._order: pb.ProfileOrder | None = None
        self._report: pb.ProfileReport | None = None
        self._acknowledged = False

    @property
    def report(self) -> pb.ProfileReport | None:
        """Return the report that belongs to the next status; None before the first order."""
        return self._report

    def answered(self, order: pb.ProfileOrder | None, *, sent: pb.ProfileReport | None) -> bool:
        """Note the answer to a status with the report ``sent``. Return whether it has to be reported on soon.

        Args:
            order: the profile that the coordinator waits for; None if there is none.
        """
        self._order = order
        if order is None:
            return False
        if self._report is None or self._report.profile_id != order.profile_id:
            self._report, self._acknowledged = pb.ProfileReport(profile_id=order.profile_id), False
            return True
        if sent is not None and sent.profile_id == order.profile_id:
            self._acknowledged = True
        return False

    def may_begin(self) -> pb.ProfileOrder | None:
        """Return the order whose trace may begin now; None if there is none."""
        if self._order is None or self._report is None or not self._acknowledged:
            return None
        return None if self._report.begun or self._report.ended else self._order

    def is_wanted(self, profile_id: str) -> bool:
        """Return whether the coordinator still waits for this profile."""
        return self._order is not None and self._order.profile_id == profile_id

    def report_on(self, report: pb.ProfileReport) -> None:
        """Replace the report, unless there is a newer order meanwhile."""
        if self._report is not None and self._report.profile_id == report.profile_id:
            self._report = report
