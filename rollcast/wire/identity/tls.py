"""Hold a process's credentials for a run's mutual TLS, in the forms that gRPC and the ssl module take."""

from __future__ import annotations

import re
import ssl
import tempfile
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from rollcast.runtime.errors import WrongKey
from rollcast.runtime.run_folder import run_folder_error, write_atomically
from rollcast.wire.identity.certificates import (
    COORDINATOR_ID,
    COORDINATOR_NAME,
    Caller,
    caller_from_certificate_pem,
    caller_from_der,
    caller_from_san_uris,
    fingerprint_of,
    parse_certificate,
)
from rollcast.wire.identity.run_ca import RunCA
from rollcast.wire.limits import GRPC_MESSAGE_BYTES_MAX

__all__ = [
    "CHANNEL_OPTIONS",
    "COORDINATOR_ID",
    "COORDINATOR_NAME",
    "SERVER_OPTIONS",
    "Caller",
    "RunCA",
    "TlsCredentials",
    "TlsKey",
    "caller_from_certificate_pem",
    "caller_from_der",
    "caller_from_san_uris",
    "fingerprint_of",
    "new_tls_key",
]

CHANNEL_OPTIONS: tuple[tuple[str, str | int], ...] = (
    ("grpc.ssl_target_name_override", COORDINATOR_NAME),
    ("grpc.max_send_message_length", GRPC_MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", GRPC_MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # a minute by default, whatever keepalive_timeout_ms is
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    ("grpc.enable_http_proxy", 0),  # an http_proxy in the environment must not carry the control connection
)
SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.server_handshake_timeout_ms", 60_000),  # thousands of members that return at once take 50 s together
    # Without probing a stream buffers no more than this, however fast its sender, until its handler asks for a message,
    # which then comes whole: an upload is read as limits allow.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 16 << 10),
    # A connection holds a buffer for its next read and one for what it sends. By default, gRPC keeps 64 KiB for reads
    # after a message of 12 KiB or more, such as an upload, for the next 50 messages or so, and 16 KiB for a TLS record.
    ("grpc.experimental.tcp_max_read_buffer_size", 8 << 10),
    ("grpc.tsi.max_frame_size", 4 << 10),
    ("grpc.max_concurrent_streams", 64),  # of one connection; a peer has its session and a few uploads
    ("grpc.max_send_message_length", GRPC_MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", GRPC_MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_connection_idle_ms", 600_000),  # keepalive cannot find connections that a live member has abandoned
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),  # must be below the clients' keepalive time
    ("grpc.so_reuseport", 0),  # otherwise a second coordinator would silently share the port
)

CREDENTIALS = "credentials.pem"  # of a member, in its state folder
_PEM_BYTES_MAX = 64 << 10


@dataclass(frozen=True, slots=True)
class TlsKey:
    """A P-256 key for TLS; every certificate has a new one."""

    private_pem: bytes = field(repr=False)

    def csr_pem(self) -> bytes:
        """Return a certificate signing request. It carries only the key: the CA decides about every name."""
        key = cast(ec.EllipticCurvePrivateKey, load_pem_private_key(self.private_pem, password=None))
        request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
        return request.public_bytes(Encoding.PEM)


def new_tls_key() -> TlsKey:
    """Return a new P-256 key."""
    key = ec.generate_private_key(ec.SECP256R1())
    return TlsKey(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


@dataclass(frozen=True, slots=True)
class TlsCredentials:
    """The certificate and key that one process presents, and the run CA that it trusts."""

    ca_pem: bytes
    certificate_pem: bytes
    private_key_pem: bytes = field(repr=False)

    @property
    def caller(self) -> Caller:
        """Return the caller that other processes see in this one.

        Raises:
            WrongKey: the certificate names no caller.
        """
        return caller_from_certificate_pem(self.certificate_pem)

    @property
    def certificate_der(self) -> bytes:
        """Return the certificate in DER form, which links without TLS carry in their greeting."""
        return parse_certificate(self.certificate_pem).public_bytes(Encoding.DER)

    @property
    def valid_for_s(self) -> float:
        """Return the seconds until the certificate expires by this machine's clock; negative afterwards."""
        certificate = parse_certificate(self.certificate_pem)
        return (certificate.not_valid_after_utc - datetime.now(UTC)).total_seconds()

    def grpc_channel_credentials(self) -> grpc.ChannelCredentials:
        """Return the credentials of a client's channel to the coordinator."""
        return grpc.ssl_channel_credentials(self.ca_pem, self.private_key_pem, self.certificate_pem)

    def grpc_server_credentials(self) -> grpc.ServerCredentials:
        """Return the coordinator's server credentials, which refuse callers without a certificate of the run CA."""
        pair = (self.private_key_pem, self.certificate_pem)
        return grpc.ssl_server_credentials([pair], self.ca_pem, require_client_auth=True)

    def ssl_client_context(self) -> ssl.SSLContext:
        """Return the context for dialling a chunk link: TLS 1.3, trusting only the run CA.

        Host names are not checked, because peers have no stable names: the caller must check the ``Caller``.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        return self._dress(context)

    def ssl_server_context(self, *, ask_client: bool = True) -> ssl.SSLContext:
        """Return the context for accepting chunk links (mutual TLS 1.3).

        Without ``ask_client`` it asks for no client certificate, which is for pages that browsers open.
        """
        context = self._dress(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        context.verify_mode = ssl.CERT_REQUIRED if ask_client else ssl.CERT_NONE
        return context

    def save(self, folder: Path) -> None:
        """Write ``credentials.pem`` (mode 0600) atomically, so that key, certificate and CA never disagree.

        Raises:
            RunFolderError: the file cannot be written.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            bundle = b"".join((self.private_key_pem, self.certificate_pem, self.ca_pem))
            write_atomically(folder / CREDENTIALS, bundle, mode=0o600)
        except OSError as error:
            raise run_folder_error(folder, error) from None

    @classmethod
    def load(cls, folder: Path) -> TlsCredentials:
        """Read the credentials that ``save`` wrote.

        Raises:
            WrongKey: the file does not exist or is damaged, or key and certificate do not belong together.
        """
        path = folder / CREDENTIALS
        try:
            with path.open("rb") as file:
                bundle = file.read(_PEM_BYTES_MAX)
        except OSError as error:
            raise WrongKey(f"cannot read {path}", cause=str(error)) from None
        blocks = re.findall(rb"-----BEGIN [A-Z ]+-----\n[^-]+-----END [A-Z ]+-----\n", bundle)
        if len(blocks) != 3:
            raise WrongKey(f"{path} is damaged", fix="delete it and join again")
        credentials = cls(ca_pem=blocks[2], certificate_pem=blocks[1], private_key_pem=blocks[0])
        credentials.check()
        return credentials

    def check(self) -> None:
        """Check that key, certificate and CA belong together.

        Raises:
            WrongKey: they do not belong together.
        """
        certificate = parse_certificate(self.certificate_pem)
        authority = parse_certificate(self.ca_pem)
        try:
            certificate.verify_directly_issued_by(authority)
            key = load_pem_private_key(self.private_key_pem, password=None)
        except Exception as error:
            raise WrongKey("a certificate and its key or CA do not belong together", cause=str(error)) from None
        form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        if key.public_key().public_bytes(*form) != certificate.public_key().public_bytes(*form):
            raise WrongKey("a certificate is for another key")

    def _dress(self, context: ssl.SSLContext) -> ssl.SSLContext:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=self.ca_pem.decode("ascii"))
        # The ssl module reads a private key only from a file. The temporary folder is open to this user alone (0700).
        with tempfile.TemporaryDirectory(prefix="rollcast-") as folder:
            path = Path(folder) / CREDENTIALS
            path.touch(mode=0o600)
            path.write_bytes(self.private_key_pem + self.certificate_pem)
            context.load_cert_chain(path)
        return context
