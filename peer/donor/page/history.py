"""Keep the last hour's samples for the page's charts: one every few seconds, the oldest are dropped. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

EVERY_S = 5.0
_SAMPLES_KEPT = 720  # an hour

COLUMNS = (
    "time_unix_s",
    "tokens_per_second",
    "sent_bytes_per_second",
    "received_bytes_per_second",
    "cpu_celsius",
    "gpu_celsius",
    "power_watts",
    "others_cpu_share",
)
"""Columns of every sample; a value is null if this machine does not report it, and for rates in the first sample."""


class History:
    """The samples of the last hour; call ``sample`` every EVERY_S seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float | None, ...]] = deque(maxlen=_SAMPLES_KEPT)
        self._moved_before: tuple[float, float, float] | None = None  # when, bytes sent, bytes received

    def sample(self, report: Mapping[str, Any], now_unix_s: float) -> None:
        """Add a sample of a report (peer.donor.report); its rates are means since the sample before."""
        sent, received = self._rates(report, now_unix_s)
        readings = report["readings"]
        seen = (readings[name] for name in ("cpu_celsius", "gpu_celsius", "power_watts", "others_cpu_share"))
        self._samples.append((now_unix_s, report["tokens_per_second"], sent, received, *seen))

    def newest(self) -> list[float | None]:
        """Return the last sample, one value per column; empty before the first."""
        return list(self._samples[-1]) if self._samples else []

    def to_json(self) -> dict[str, Any]:
        """Return {"columns": [...], "rows": [[...], ...]} with the oldest sample first."""
        return {"columns": list(COLUMNS), "rows": [list(sample) for sample in self._samples]}

    def _rates(self, report: Mapping[str, Any], now_unix_s: float) -> tuple[float | None, float | None]:
        sent = float(report["chunk_bytes_sent"])
        received = float(report["chunk_bytes_from_origin"] + report["chunk_bytes_from_peers"])
        before, self._moved_before = self._moved_before, (now_unix_s, sent, received)
        if before is None or now_unix_s <= before[0]:
            return None, None
        seconds = now_unix_s - before[0]
        return max(0.0, sent - before[1]) / seconds, max(0.0, received - before[2]) / seconds
