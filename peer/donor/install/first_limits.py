"""Choose the limits with which a new donor's machine begins: it stays its owner's, who may change each of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from peer.limits.readings import Readings

UPLOAD_SHARE = 0.5  # of the upload that was measured: video calls and others in the house need the rest
OTHERS_CPU_SHARE_MAX = 0.5  # of all cores: above it the owner's own programs would be slowed
CPU_CELSIUS_MAX = 90.0  # below the 95 to 100 at which current processors slow down
GPU_CELSIUS_MAX = 83.0  # where current GPUs begin to slow down
_MBIT = 125_000.0  # bytes
_UPLOAD_LEAST_MBIT_S = 0.1

#: What leaves a donor's machine, in one sentence. docs/donor.md has the details; the owner's page says the same.
WHAT_LEAVES = (
    "This machine sends the texts that it generates and their probabilities, the parts of the model that it relays, "
    "its public key, name, hardware, release, region, network addresses and kind of router, and each second its state "
    "with the reason, speed, traffic, versions and links; it sends no files, and nothing else."
)


@dataclass(frozen=True, slots=True)
class FirstLimits:
    """Limits of a new configuration; None: no limit.

    A temperature is limited only where the machine reports it: a limit without its sensor would stop all work.

    Args:
        upload_measured_mbit_s: the measurement from which ``upload_mbit_s_max`` follows.
    """

    upload_mbit_s_max: float | None = None
    upload_measured_mbit_s: float | None = None
    others_cpu_share_max: float | None = None
    battery_share_min: float | None = None
    cpu_celsius_max: float | None = None
    gpu_celsius_max: float | None = None

    def lines(self) -> tuple[str, ...]:
        """Return the limits in three lines for the owner; none if nothing is limited."""
        if self == FirstLimits():
            return ()
        upload = "uploads without a cap: the upload could not be measured"
        if self.upload_mbit_s_max is not None:
            most, measured = self.upload_mbit_s_max, self.upload_measured_mbit_s
            upload = f"uploads at most {most:g} Mbit/s, half of the {measured:g} measured"
        pauses = ", ".join(self._pauses())
        return (
            upload,
            f"pauses {pauses}",
            "to change: `rollcast peer limits`, and for example `rollcast peer limits set upload_mbit_s_max=20`",
        )

    def _pauses(self) -> Iterator[str]:
        if self.others_cpu_share_max is not None:
            yield f"while other programs use over {100.0 * self.others_cpu_share_max:.0f} % of the processor"
        if self.battery_share_min is not None:
            yield "on battery"
        for what, celsius in (("processor", self.cpu_celsius_max), ("GPU", self.gpu_celsius_max)):
            if celsius is not None:
                yield f"above {celsius:.0f} °C ({what})"


def first_limits(readings: Readings, upload_bytes_per_s: float | None) -> FirstLimits:
    """Return the limits for a machine with these sensors.

    Args:
        upload_bytes_per_s: measured upload to the coordinator; None if it could not be measured.
    """
    measured = None if upload_bytes_per_s is None else _rounded(upload_bytes_per_s / _MBIT)
    return FirstLimits(
        upload_mbit_s_max=None if measured is None else max(_UPLOAD_LEAST_MBIT_S, _rounded(UPLOAD_SHARE * measured)),
        upload_measured_mbit_s=measured,
        others_cpu_share_max=OTHERS_CPU_SHARE_MAX,
        battery_share_min=1.0,
        cpu_celsius_max=None if readings.cpu_celsius is None else CPU_CELSIUS_MAX,
        gpu_celsius_max=None if readings.gpu_celsius is None else GPU_CELSIUS_MAX,
    )


def _rounded(mbit_s: float) -> float:
    return float(f"{mbit_s:.3g}")
