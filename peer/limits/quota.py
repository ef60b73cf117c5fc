"""Monthly traffic quotas that survive restarts. Pure: dates and byte counters are arguments."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date

_OTHERS_KEPT = 3


@dataclass(frozen=True, slots=True)
class MonthUse:
    """Bytes sent and received in one month.

    Args:
        month: such as "2026-11", by the local calendar; empty: nothing was counted yet.
        others: what was counted last in other months, the newest count first: a clock that jumps returns to them.
    """

    month: str = ""
    sent_bytes: int = 0
    received_bytes: int = 0
    others: tuple[MonthUse, ...] = ()


class Quota:
    """Count the bytes sent and received beyond the local network, and decide when this month's quota is spent.

    Args:
        upload_bytes, download_bytes: bytes per month; None: no quota.
        reset_day: day of the month, 1 to 28, on which counting starts anew: that of the provider's bill.
        use: what an earlier process counted; None: nothing.
    """

    def __init__(
        self,
        *,
        upload_bytes: float | None = None,
        download_bytes: float | None = None,
        reset_day: int = 1,
        use: MonthUse | None = None,
    ) -> None:
        if not 1 <= reset_day <= 28:
            raise ValueError(f"reset_day is {reset_day}, but must be 1 to 28, days that every month has")
        self._upload_bytes = upload_bytes
        self._download_bytes = download_bytes
        self._reset_day = reset_day
        self.use = use or MonthUse()

    def moved(self, *, sent_bytes: int, received_bytes: int, today: date) -> None:
        """Add bytes that were sent and received; both counts must be at least 0."""
        if sent_bytes < 0 or received_bytes < 0:
            raise ValueError("bytes moved cannot be negative")
        use = self._of(today)
        sent_bytes, received_bytes = use.sent_bytes + sent_bytes, use.received_bytes + received_bytes
        self.use = replace(use, sent_bytes=sent_bytes, received_bytes=received_bytes)

    def upload_spent(self, today: date) -> bool:
        """Return whether the upload quota of the running month is used up."""
        return self._upload_bytes is not None and self._of(today).sent_bytes >= self._upload_bytes

    def download_spent(self, today: date) -> bool:
        """Return whether the download quota of the running month is used up."""
        return self._download_bytes is not None and self._of(today).received_bytes >= self._download_bytes

    def resets_on(self, today: date) -> date:
        """Return the next day on which counting starts anew."""
        if today.day < self._reset_day:
            return today.replace(day=self._reset_day)
        year, month = (today.year + 1, 1) if today.month == 12 else (today.year, today.month + 1)
        return date(year, month, self._reset_day)

    def _of(self, today: date) -> MonthUse:
        """Return the use that counts on this day.

        A clock that was ahead returns to what its month had used. One that is set back to a month in which nothing was
        counted does not renew the quota.
        """
        month, use = self._month(today), self.use
        if month == use.month:
            return use
        unknown = MonthUse(month) if month > use.month else replace(use, month=month)
        found = next((other for other in use.others if other.month == month), unknown)
        others = [replace(use, others=()), *(other for other in use.others if other.month != month)]
        return replace(found, others=tuple(other for other in others if other.month)[:_OTHERS_KEPT])

    def _month(self, today: date) -> str:
        """Return the month in which the running period began."""
        year, month = today.year, today.month
        if today.day < self._reset_day:
            year, month = (year - 1, 12) if month == 1 else (year, month - 1)
        return f"{year:04d}-{month:02d}"
