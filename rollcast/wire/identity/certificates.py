"""Read the caller that a certificate of the run CA names.

Each certificate names run, role and peer id in one URI, ``rollcast://{run_id}/{role}/{peer_id}``. The keys are P-256
because grpcio cannot use Ed25519 certificates; the peer id binds the Ed25519 identity to the certificate.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import cast

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes

from rollcast.runtime.errors import WrongKey
from rollcast.wire.identity.identity import public_key_of
from rollcast.wire.ids import PeerId, Role, RunId

COORDINATOR_NAME = "coordinator.rollcast"
"""The DNS name in the certificates of coordinator and gateways; clients check it whatever address they dial."""
COORDINATOR_ID = PeerId("coordinator")
"""The coordinator's name in place of a peer id, because the coordinator has no Ed25519 identity."""


_RUN_ID = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_NAME_URI = re.compile(rf"rollcast://({_RUN_ID})/(coordinator|gateway|learner|origin|peer)/([A-Za-z0-9]{{1,64}})")


@dataclass(frozen=True, slots=True)
class Caller:
    """The run, role and peer that a certificate of the run CA names."""

    run_id: RunId
    role: Role
    peer_id: PeerId  # COORDINATOR_ID for the coordinator

    @property
    def uri(self) -> str:
        """Return the URI that names the caller in its certificate."""
        return f"rollcast://{self.run_id}/{self.role}/{self.peer_id}"


def caller_from_san_uris(names: Iterable[str]) -> Caller:
    """Return the caller among a certificate's subject alternative names; names of other kinds are ignored.

    Raises:
        WrongKey: not exactly one name is a well-formed ``rollcast://`` URI.
    """
    ours = [name for name in names if name.lower().startswith("rollcast:")]
    if len(ours) != 1:
        raise WrongKey("a certificate does not name one caller of a run", cause=f"{len(ours)} Rollcast names")
    return _caller_of_name(ours[0])


@lru_cache(maxsize=1 << 14)  # the same peers call repeatedly, and decoding a peer id is slow
def _caller_of_name(name: str) -> Caller:
    match = _NAME_URI.fullmatch(name)
    if match is None:
        raise WrongKey("a certificate does not name one caller of a run", cause="its name has another form")
    run_id, role, peer_id = match.groups()
    if role == "coordinator":
        if peer_id != COORDINATOR_ID:
            raise WrongKey("a coordinator's certificate names a peer")
    else:
        public_key_of(peer_id)
    return Caller(RunId(run_id), cast(Role, role), PeerId(peer_id))


def caller_from_der(der: bytes) -> Caller:
    """Return the caller of a certificate that TLS has already verified against the run CA.

    Raises:
        WrongKey: the bytes are no certificate, or see ``caller_from_san_uris``.
    """
    try:
        certificate = x509.load_der_x509_certificate(der)
    except ValueError as error:
        raise WrongKey("not a certificate", cause=str(error)) from None
    return _caller(certificate)


def caller_issued_by(ca_pem: bytes, der: bytes, now: datetime) -> Caller:
    """Verify a certificate from outside TLS and return its caller.

    Args:
        ca_pem: the certificate of the run CA.
        now: the time to check the validity at, with a time zone.

    Raises:
        WrongKey: the run CA did not issue it, or it is not valid at this time, or see ``caller_from_der``.
    """
    try:
        certificate = x509.load_der_x509_certificate(der)
        certificate.verify_directly_issued_by(parse_certificate(ca_pem))
    except (ValueError, TypeError, InvalidSignature) as error:
        raise WrongKey("a certificate is not of this run's CA", cause=str(error)) from None
    if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
        raise WrongKey(
            "a certificate is not valid at this time",
            cause=f"valid from {certificate.not_valid_before_utc} to {certificate.not_valid_after_utc}",
            fix="check which of the two clocks is wrong",
        )
    return _caller(certificate)


def caller_from_certificate_pem(pem: bytes) -> Caller:
    """Return the caller of a certificate in PEM form; see ``caller_from_der``."""
    return _caller(parse_certificate(pem))


def fingerprint_of(certificate_pem: bytes) -> str:
    """Return the SHA-256 of a certificate's DER form in hex, by which invites pin the run CA.

    Raises:
        WrongKey: the text holds no certificate.
    """
    return parse_certificate(certificate_pem).fingerprint(hashes.SHA256()).hex()


def parse_certificate(pem: bytes) -> x509.Certificate:
    """Return the first certificate of a PEM text.

    Raises:
        WrongKey: the text holds no certificate.
    """
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise WrongKey("not a certificate", cause=str(error)) from None


def _caller(certificate: x509.Certificate) -> Caller:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, x509.DuplicateExtension, ValueError) as error:
        raise WrongKey("a certificate names no caller", cause=str(error)) from None
    return caller_from_san_uris(names.get_values_for_type(x509.UniformResourceIdentifier))
