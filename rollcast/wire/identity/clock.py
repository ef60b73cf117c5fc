"""Tell a certificate that this machine's clock makes invalid from one that is wrong."""

from __future__ import annotations

import ssl

from rollcast.runtime.errors import ClockWrong

CLOCK_FIX = "turn on time synchronisation: timedatectl set-ntp true"
_OUT_OF_TIME = (9, 10)  # X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED of OpenSSL


def out_of_time(shown: str, error: Exception | None) -> ClockWrong | None:
    """Return the error to raise if a certificate was refused only for the time at which it is valid, otherwise None.

    Args:
        shown: the address that showed the certificate.
        error: the failed verification.
    """
    if not isinstance(error, ssl.SSLCertVerificationError) or error.verify_code not in _OUT_OF_TIME:
        return None
    return ClockWrong(
        f"the certificate that {shown} shows is not valid by this machine's clock",
        cause=error.verify_message,
        fix=CLOCK_FIX,
    )
