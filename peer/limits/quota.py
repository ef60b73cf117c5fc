"""How many bytes a machine may still move this month, over restarts. Pure: months and byte counters are handed in."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date


@dataclass(frozen=True, slots=True)
class MonthUse:
    """Bytes that were moved in one month.

    Args:
        month: as "2026-11", by the local calendar.
    """

    month: str = ""
    sent_bytes: int = 0
    received_bytes: int = 0


class Quota:
    """Counts what is sent and received beyond the local network, and says when it is enough for this month.

    Args:
        upload_bytes, download_bytes: a month; None: no quota.
        reset_day: of the month on which counting begins anew, 1 to 28: the day of one's bill.
        use: what an earlier process counted.
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
            raise ValueError("reset_day must be 1 to 28")
        self._upload_bytes = upload_bytes
        self._download_bytes = download_bytes
        self._reset_day = reset_day
        self.use = use or MonthUse()

    def moved(self, *, sent_bytes: int, received_bytes: int, today: date) -> None:
        """So many bytes more were sent and received; both at least 0."""
        if sent_bytes < 0 or received_bytes < 0:
            raise ValueError("bytes moved cannot be negative")
        use = self._of(today)
        self.use = MonthUse(use.month, use.sent_bytes + sent_bytes, use.received_bytes + received_bytes)

    def upload_spent(self, today: date) -> bool:
        """Whether nothing more may be sent."""
        return self._upload_bytes is not None and self._of(today).sent_bytes >= self._upload_bytes

    def download_spent(self, today: date) -> bool:
        """Whether nothing more may be received."""
        return self._download_bytes is not None and self._of(today).received_bytes >= self._download_bytes

    def resets_on(self, today: date) -> date:
        """The next day on which counting begins anew."""
        if today.day < self._reset_day:
            return today.replace(day=self._reset_day)
        year, month = (today.year + 1, 1) if today.month == 12 else (today.year, today.month + 1)
        return date(year, month, self._reset_day)

    def _of(self, today: date) -> MonthUse:
        """What counts on this day. A clock set back to an earlier month does not give its quota again."""
        month = self._month(today)
        return self.use if month <= self.use.month else MonthUse(month)

    def _month(self, today: date) -> str:
        """The month in which the running period began."""
        year, month = today.year, today.month
        if today.day < self._reset_day:
            year, month = (year - 1, 12) if month == 1 else (year, month - 1)
        return f"{year:04d}-{month:02d}"
