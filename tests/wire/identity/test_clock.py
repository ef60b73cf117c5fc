"""Test which failed verifications are this machine's clock's fault."""

from __future__ import annotations

import ssl

from rollcast.wire.identity.clock import CLOCK_FIX, out_of_time


def failed(verify_code: int, verify_message: str) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code, error.verify_message = verify_code, verify_message
    return error


def test_a_certificate_outside_its_time_is_the_clocks_fault() -> None:
    for code, message in ((9, "certificate is not yet valid"), (10, "certificate has expired")):
        error = out_of_time("192.0.2.1:7420", failed(code, message))
        assert error is not None
        assert (error.code, error.cause, error.fix) == ("RC206", message, CLOCK_FIX)
        assert "192.0.2.1:7420" in error.what


def test_a_certificate_of_another_authority_is_not() -> None:
    assert out_of_time("192.0.2.1:7420", failed(19, "self-signed certificate in certificate chain")) is None
    assert out_of_time("192.0.2.1:7420", OSError()) is None
    assert out_of_time("192.0.2.1:7420", None) is None
