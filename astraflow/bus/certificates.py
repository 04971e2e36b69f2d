"""A certificate authority of our own and the server's certificate, for `astraflow bus --secure`; self-signed ones.

It needs the `cryptography` package, and only here. Invariants: private keys are readable by their owner only; what is
there and still good is kept, so that a second call changes nothing and clients keep trusting.
"""

import datetime
import ipaddress
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from astraflow import clock
from astraflow.bus.private import write_private
from astraflow.errors import ConfigError
from astraflow.extras import install_hint

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

_CA_DAYS, _SERVER_DAYS, _RENEW_DAYS = 3650, 397, 30
_DAY = datetime.timedelta(days=1)


def own_names(host: str) -> tuple[str, ...]:
    """Names and addresses by which this machine is reached when the server listens on `host`."""
    found = ["localhost", "127.0.0.1", "::1", socket.gethostname(), socket.getfqdn()]
    return tuple(dict.fromkeys([*found, *([] if host in ("0.0.0.0", "::") else [host])]))


def make_certificates(folder: Path, names: Sequence[str]) -> None:
    """ca.pem, ca.key, server.pem and server.key in `folder`, the server's for `names` (host names and addresses).

    A server certificate that lacks a name, or ends within _RENEW_DAYS, is made anew by the same authority.
    Raises: ConfigError without the cryptography package, or if a file there can't be read.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError as exc:
        raise ConfigError(f"TLS certificates need the cryptography package: {install_hint('secure')}") from exc
    try:
        if not (folder / "ca.pem").exists() or not (folder / "ca.key").exists():
            _make_authority(folder)
        authority = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
        key = load_pem_private_key((folder / "ca.key").read_bytes(), password=None)
        known = _good_names(folder / "server.pem", authority)
    except (ValueError, OSError) as exc:
        raise ConfigError(f"certificates in {folder} can't be read: {exc}; move them away to get new ones") from exc
    if not set(names) <= known:
        _make_server(folder, authority, key, sorted(known | set(names)))  # type: ignore[arg-type]  # ours is always EC


def _good_names(path: Path, authority: "x509.Certificate") -> set[str]:
    """Names that the server's certificate is good for; none if it is missing, old, or another authority's."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

    if not path.exists():
        return set()
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError):
        return set()
    if certificate.not_valid_after_utc - _now() < _RENEW_DAYS * _DAY:
        return set()
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(name.value) for name in names}


def _make_authority(folder: Path) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder("AstraFlow bus CA", _CA_DAYS).issuer_name(_name("AstraFlow bus CA")).public_key(key.public_key())
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write(folder, "ca", certificate, key)


def _make_server(
    folder: Path, authority: "x509.Certificate", authority_key: "EllipticCurvePrivateKey", names: Sequence[str]
) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    key = ec.generate_private_key(ec.SECP256R1())
    issuer = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    certificate = (
        _builder("AstraFlow bus", _SERVER_DAYS)
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .add_extension(x509.SubjectAlternativeName([_general(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            # clients too: the servers of a cluster and leaf nodes dial each other with it
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
            critical=False,
        )
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    _write(folder, "server", certificate, key)


def _builder(name: str, days: int) -> "x509.CertificateBuilder":
    from cryptography import x509

    now = _now()
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)  # clocks of other machines may be behind
        .not_valid_after(now + days * _DAY)
    )


def _now() -> datetime.datetime:
    """Certificates are good for a span of wall time, whoever looks at them."""
    return datetime.datetime.fromtimestamp(clock.wall(), datetime.UTC)


def _name(common: str) -> "x509.Name":
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _general(name: str) -> "x509.GeneralName":
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write(folder: Path, stem: str, certificate: "x509.Certificate", key: "EllipticCurvePrivateKey") -> None:
    from cryptography.hazmat.primitives.serialization import Encoding

    write_private(folder / f"{stem}.key", _private_pem(key))
    (folder / f"{stem}.pem").write_bytes(certificate.public_bytes(Encoding.PEM))


def self_signed(name: str) -> tuple[str, str]:
    """A certificate for `name` that vouches for itself, and its key, as PEM; for peers that are told to trust it.

    Raises: ConfigError without the cryptography package.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import Encoding
    except ImportError as exc:
        raise ConfigError(f"TLS certificates need the cryptography package: {install_hint('secure')}") from exc
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _builder("AstraFlow", _SERVER_DAYS)
        .issuer_name(_name("AstraFlow"))
        .public_key(key.public_key())
        .add_extension(x509.SubjectAlternativeName([_general(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(Encoding.PEM).decode(), _private_pem(key)


def _private_pem(key: "EllipticCurvePrivateKey") -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
