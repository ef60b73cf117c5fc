from __future__ import annotations

import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.runtime.errors import MalformedMessage, RollcastError, RunFolderError, WrongKey
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.run_ca import RunCA
from rollcast.wire.identity.tls import caller_from_certificate_pem, new_tls_key
from rollcast.wire.ids import PeerId, RunId

RUN_ID = RunId("test-run")
PEER_ID = Identity.generate().peer_id


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> RunCA:
    return RunCA.create(tmp_path_factory.mktemp("ca"), RUN_ID)


def request_of(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey, name: str = "", uri: str = "") -> bytes:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)] if name else [])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    if uri:
        names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri), x509.DNSName("coordinator.rollcast")])
        builder = builder.add_extension(names, critical=False)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


def test_the_run_ca_is_stored_privately_and_loaded_again(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    made = RunCA.load_or_create(folder, RUN_ID)
    (path,) = folder.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = RunCA.load_or_create(folder, RUN_ID)
    assert (again.run_id, again.fingerprint) == (made.run_id, made.fingerprint)
    assert len(made.fingerprint) == 64
    with pytest.raises(WrongKey, match="other-run"):
        RunCA.load_or_create(folder, RunId("other-run"))


@pytest.mark.parametrize("content", [b"", b"nonsense", None])
def test_a_damaged_one_is_refused(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "run-ca.pem").write_bytes(content)
    with pytest.raises(WrongKey):
        RunCA.load(tmp_path)


def test_a_folder_that_cannot_be_made_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError):
        RunCA.create(tmp_path / "file" / "secrets", RUN_ID)


@pytest.mark.parametrize("run_id", ["", "a/b", "..", "a b", "r" * 65, "run\n"])
def test_run_ids_must_fit_a_certificate(tmp_path: Path, run_id: str) -> None:
    with pytest.raises(WrongKey):
        RunCA.create(tmp_path, RunId(run_id))
    assert list(tmp_path.iterdir()) == []


def test_only_the_key_of_a_request_is_used(ca: RunCA) -> None:
    request = request_of(
        ec.generate_private_key(ec.SECP256R1()), "coordinator", f"rollcast://test-run/coordinator/{PEER_ID}"
    )
    pem = ca.issue(request, peer_id=PEER_ID, role="peer", lifetime_s=60.0)
    certificate = x509.load_pem_x509_certificate(pem)
    assert caller_from_certificate_pem(pem).role == "peer"
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == []
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    lifetime = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    assert lifetime.total_seconds() == 3600 + 60


def test_keys_of_other_kinds_are_refused(ca: RunCA) -> None:
    for key in (ec.generate_private_key(ec.SECP384R1()), rsa.generate_private_key(65537, 2048)):
        with pytest.raises(MalformedMessage, match="P-256"):
            ca.issue(request_of(key), peer_id=PEER_ID, role="peer", lifetime_s=60.0)


def test_a_request_must_prove_its_key(ca: RunCA) -> None:
    """Flip a bit of every byte of a request: it is refused, or nothing relevant has changed."""
    request = x509.load_pem_x509_csr(new_tls_key().csr_pem())
    der = bytearray(request.public_bytes(Encoding.DER))
    refused = 0
    for at in range(len(der)):
        der[at] ^= 1
        try:
            pem = ca.issue(_pem(bytes(der)), peer_id=PEER_ID, role="peer", lifetime_s=60.0)
            assert x509.load_pem_x509_certificate(pem).public_key() == request.public_key()
        except MalformedMessage:
            refused += 1
        der[at] ^= 1
    assert refused >= len(der) - 4


@given(st.binary(max_size=300))
@settings(deadline=None, max_examples=50)
def test_malformed_requests_are_refused(data: bytes) -> None:
    for request in (data, _pem(data)):
        with pytest.raises(MalformedMessage):
            _SHARED.issue(request, peer_id=PEER_ID, role="peer", lifetime_s=60.0)


@pytest.mark.parametrize("peer_id", ["", "12D3KooW", "../../x", "coordinator"])
def test_certificates_are_for_peer_ids_only(ca: RunCA, peer_id: str) -> None:
    with pytest.raises(WrongKey):
        ca.issue(new_tls_key().csr_pem(), peer_id=PeerId(peer_id), role="peer", lifetime_s=60.0)


def test_long_requests_and_odd_hosts_are_refused(ca: RunCA) -> None:
    with pytest.raises(MalformedMessage):
        ca.issue(b"x" * 5000, peer_id=PEER_ID, role="peer", lifetime_s=60.0)
    with pytest.raises(RollcastError):
        ca.issue_coordinator(new_tls_key().csr_pem(), ["b\u00fccher.example"])
    with pytest.raises(WrongKey):
        ca.issue_gateway(new_tls_key().csr_pem(), PeerId("no-peer-id"), [])


def _pem(der: bytes) -> bytes:
    import base64

    body = base64.encodebytes(der)
    return b"-----BEGIN CERTIFICATE REQUEST-----\n" + body + b"-----END CERTIFICATE REQUEST-----\n"


@pytest.fixture(scope="module", autouse=True)
def _share(ca: RunCA) -> None:
    global _SHARED
    _SHARED = ca


_SHARED: RunCA
