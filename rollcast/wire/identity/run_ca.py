"""Issue the certificates of one run as its certificate authority (CA), which only the coordinator holds."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from rollcast.runtime.errors import MalformedMessage, WrongKey
from rollcast.runtime.run_folder import run_folder_error, write_atomically
from rollcast.wire.identity.certificates import (
    COORDINATOR_ID,
    COORDINATOR_NAME,
    Caller,
    caller_from_san_uris,
    fingerprint_of,
)
from rollcast.wire.ids import PeerId, Role, RunId

_CSR_BYTES_MAX = 4096
_CA_LIFETIME = timedelta(days=3650)
_COORDINATOR_LIFETIME_S = 365 * 86400.0
_CLOCK_SKEW = timedelta(hours=1)  # seconds in the past from which certificates are valid, for clocks that are behind


class RunCA:
    """The key and certificate of one run's certificate authority."""

    def __init__(self, run_id: RunId, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self.run_id = run_id
        self.certificate_pem: bytes = certificate.public_bytes(Encoding.PEM)
        self.fingerprint: str = fingerprint_of(self.certificate_pem)
        self._key = key
        self._certificate = certificate

    @classmethod
    def create(cls, folder: Path, run_id: RunId) -> RunCA:
        """Create a CA and store it in ``folder`` (mode 0600).

        Raises:
            RunFolderError: the folder cannot be written.
            WrongKey: the run id is not possible in a certificate.
        """
        caller_from_san_uris([_caller_uri(run_id, "coordinator", COORDINATOR_ID)])
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _self_signed(run_id, key)
        bundle = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + certificate.public_bytes(
            Encoding.PEM
        )
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(run_ca_path(folder), bundle, mode=0o600)
        except OSError as error:
            raise run_folder_error(folder, error) from None
        return cls(run_id, key, certificate)

    @classmethod
    def load(cls, folder: Path) -> RunCA:
        """Read the CA that ``create`` stored.

        Raises:
            WrongKey: the file does not exist or is damaged.
        """
        try:
            bundle = run_ca_path(folder).read_bytes()
            key = load_pem_private_key(bundle, password=None)
            certificate = x509.load_pem_x509_certificate(bundle)
        except (OSError, ValueError) as error:
            raise WrongKey(f"cannot read the run CA in {folder}", cause=str(error)) from None
        name = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        if len(name) != 1 or not isinstance(key, ec.EllipticCurvePrivateKey):
            raise WrongKey(f"{run_ca_path(folder)} holds no run CA")
        return cls(RunId(str(name[0].value)), key, certificate)

    @classmethod
    def load_or_create(cls, folder: Path, run_id: RunId) -> RunCA:
        """Read the CA in ``folder``, or create one for ``run_id`` if there is none.

        Raises:
            WrongKey: the stored CA is damaged or of another run.
            RunFolderError: the folder cannot be written.
        """
        if not run_ca_path(folder).exists():
            return cls.create(folder, run_id)
        authority = cls.load(folder)
        if authority.run_id != run_id:
            raise WrongKey(f"the run CA in {folder} is of run {authority.run_id}, not of {run_id}")
        return authority

    def issue(self, csr_pem: bytes, *, peer_id: PeerId, role: Role, lifetime_s: float) -> bytes:
        """Return a certificate (PEM) for the key of ``csr_pem``, valid from now for ``lifetime_s`` seconds.

        Only the key is taken from the request; the caller decides about every name.

        Raises:
            MalformedMessage: the bytes are no request, or it does not prove its key, or its key is not P-256.
            WrongKey: ``peer_id`` is no peer id.
        """
        caller = caller_from_san_uris([_caller_uri(self.run_id, role, peer_id)])
        return self._issue(csr_pem, caller, [], lifetime_s)

    def issue_coordinator(
        self, csr_pem: bytes, hosts: Iterable[str], *, lifetime_s: float = _COORDINATOR_LIFETIME_S
    ) -> bytes:
        """Return the coordinator's certificate (PEM), for ``coordinator.rollcast``, loopback, and ``hosts``.

        Args:
            hosts: further DNS names and IP addresses.

        Raises:
            MalformedMessage: see ``issue``.
            WrongKey: a host is neither a DNS name nor an address.
        """
        return self._issue(csr_pem, Caller(self.run_id, "coordinator", COORDINATOR_ID), _names(hosts), lifetime_s)

    def issue_gateway(self, csr_pem: bytes, peer_id: PeerId, hosts: Iterable[str]) -> bytes:
        """Return the certificate (PEM) that a gateway shows to peers; it has the coordinator's names, and ``hosts``.

        Raises:
            MalformedMessage, WrongKey: see ``issue`` and ``issue_coordinator``.
        """
        caller = caller_from_san_uris([_caller_uri(self.run_id, "gateway", peer_id)])
        return self._issue(csr_pem, caller, _names(hosts), _COORDINATOR_LIFETIME_S)

    def _issue(self, csr_pem: bytes, caller: Caller, names: list[x509.GeneralName], lifetime_s: float) -> bytes:
        now = datetime.now(UTC)
        public_key = _requested_key(csr_pem)
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, caller.peer_id)]))
            .issuer_name(self._certificate.subject)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _CLOCK_SKEW)
            .not_valid_after(now + timedelta(seconds=lifetime_s))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(is_ca=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]),
                critical=False,
            )
            .add_extension(
                x509.SubjectAlternativeName([x509.UniformResourceIdentifier(caller.uri), *names]), critical=False
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        return builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)


def run_ca_path(folder: Path) -> Path:
    return folder / "run-ca.pem"


def _caller_uri(run_id: str, role: Role, peer_id: str) -> str:
    return f"rollcast://{run_id}/{role}/{peer_id}"


def _self_signed(run_id: RunId, key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Rollcast run CA"),
            x509.NameAttribute(NameOID.COMMON_NAME, run_id),
        ]
    )
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + _CA_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(is_ca=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _key_usage(*, is_ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_ca,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _requested_key(csr_pem: bytes) -> ec.EllipticCurvePublicKey:
    if len(csr_pem) > _CSR_BYTES_MAX:
        raise MalformedMessage("a certificate request is too long")
    try:
        request = x509.load_pem_x509_csr(csr_pem)
        proven = request.is_signature_valid
        key = request.public_key()
    except Exception as error:  # cryptography documents no closed list for hostile requests
        raise MalformedMessage("not a certificate request", cause=str(error)) from None
    if not proven:
        raise MalformedMessage("a certificate request does not prove its key")
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise MalformedMessage("a certificate request is not for a P-256 key")
    return key


def _names(hosts: Iterable[str]) -> list[x509.GeneralName]:
    """Return the names of a process that peers dial as the coordinator."""
    return [_general_name(host) for host in dict.fromkeys([COORDINATOR_NAME, "localhost", "127.0.0.1", "::1", *hosts])]


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise WrongKey(f"{host!r} is not possible in a certificate", cause=str(error)) from None
