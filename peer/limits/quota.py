"""Monthly traffic quotas that survive restarts. Pure: dates and byte counters are arguments."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date


@dataclass(frozen=True, slots=True)
class MonthUse:
    """Bytes sent and received in one month.

    Args:
        month: such as "2026-11", by the local calendar; empty: nothing was counted yet.
    """

    month: str = ""
    sent_bytes: int = 0
    received_bytes: int = 0


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
        self.use = MonthUse(use.month, use.sent_bytes + sent_bytes, use.received_bytes + received_bytes)

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
        """Return the use that counts on this day. A clock set back to an earlier month does not renew the quota."""
        month = self._month(today)
        return self.use if month <= self.use.month else MonthUse(month)

    def _month(self, today: date) -> str:
        """Return the month in which the running period began."""
        year, month = today.year, today.month
        if today.day < self._reset_day:
            year, month = (year - 1, 12) if month == 1 else (year, month - 1)
        return f"{year:04d}-{month:02d}"
