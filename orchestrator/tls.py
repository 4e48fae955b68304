"""A small CA of the host's own and the server certificate it signs.

The connection string holds the CA's SHA-256, so the certificate can be renewed without new strings. What clients
verify is the name ``cornerman.internal``: a host reached by another address, or through a tunnel, still proves itself.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterable
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from orchestrator.errors import ConfigError
from orchestrator.files import write_atomically
from orchestrator.tls_files import Files, files, serving

__all__ = ["Files", "ensure", "files", "fingerprint", "serving", "valid_until"]

INTERNAL_NAME = "cornerman.internal"
ALWAYS_NAMED = (INTERNAL_NAME, "localhost", "127.0.0.1", "::1")
CA_LIVES = datetime.timedelta(days=3650)
CERTIFICATE_LIVES = datetime.timedelta(days=820)  # browsers refuse more than 825 days
RENEW_WITHIN = datetime.timedelta(days=30)
_CLOCKS_DIFFER = datetime.timedelta(days=1)


def ensure(state_dir: Path, *, public_host: str, now: datetime.datetime, renew: bool = False) -> bool:
    """Make the CA unless it is there, and a certificate unless there is a good one; True when one was made.

    ``renew`` makes one in any case. ConfigError when the CA's files are broken: with a new CA every connection string
    would be useless.
    """
    where = files(state_dir)
    where.ca.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not where.ca.exists():
        _make_ca(where, now)
    names = list(dict.fromkeys((*ALWAYS_NAMED, public_host)))
    if not renew and _serves(where, names, now):
        return False
    _make_certificate(where, names, now)
    return True


def fingerprint(ca: Path) -> str:
    """The SHA-256 of the CA certificate (DER) in hexadecimal, as the connection string has it."""
    return _read_certificate(ca).fingerprint(hashes.SHA256()).hex()


def valid_until(certificate: Path) -> datetime.datetime:
    """The end of a certificate's life, UTC."""
    return _read_certificate(certificate).not_valid_after_utc


def _make_ca(where: Files, now: datetime.datetime) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Cornerman CA {x509.random_serial_number():x}"[:40])])
    authority = (
        _builder(subject, subject, key, now, CA_LIVES)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    write_atomically(where.ca_key, _private_pem(key))  # first: a CA without its key would be of no use
    write_atomically(where.ca, authority.public_bytes(serialization.Encoding.PEM))


def _make_certificate(where: Files, names: list[str], now: datetime.datetime) -> None:
    authority, authority_key = _read_certificate(where.ca), _read_key(where.ca_key)
    if authority.public_key() != authority_key.public_key():
        raise ConfigError(f"{where.ca} and {where.ca_key} do not belong together: restore both from one backup.")
    # The key stays the same over renewals: whoever reads both files meanwhile never sees two that do not match.
    try:
        key = _read_key(where.key)
    except ConfigError:
        key = ec.generate_private_key(ec.SECP256R1())
        write_atomically(where.key, _private_pem(key))
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, INTERNAL_NAME)])
    lives = min(CERTIFICATE_LIVES, authority.not_valid_after_utc - now)
    certificate = (
        _builder(subject, authority.subject, key, now, lives)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    write_atomically(where.certificate, certificate.public_bytes(serialization.Encoding.PEM))


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: datetime.datetime,
    lives: datetime.timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + lives)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _serves(where: Files, names: Iterable[str], now: datetime.datetime) -> bool:
    """Whether the certificate that is there can go on serving."""
    authority = _read_certificate(where.ca)
    try:
        certificate, key = _read_certificate(where.certificate), _read_key(where.key)
        certificate.verify_directly_issued_by(authority)
        named = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ConfigError, InvalidSignature, ValueError, x509.ExtensionNotFound):
        return False
    return (
        certificate.public_key() == key.public_key()
        and certificate.not_valid_after_utc - now >= RENEW_WITHIN
        and {_general_name(name) for name in names} <= set(named)
    )


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise _unusable(path, error) from error


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise _unusable(path, error) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{path} is not a key that 'cornerman init' made: restore it from a backup.")
    return key


def _unusable(path: Path, error: Exception) -> ConfigError:
    if isinstance(error, PermissionError):
        return ConfigError(f"{path} may not be read by this user: run as the user who owns it.")
    why = error.strerror if isinstance(error, OSError) else "it is not valid PEM"
    return ConfigError(f"{path} cannot be used ({why}): restore it from a backup.")
