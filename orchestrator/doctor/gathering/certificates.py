"""The certificate that API and relay show, as it lies on the disk."""

from __future__ import annotations

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization

from orchestrator import tls
from orchestrator.config import Config
from orchestrator.doctor.certificates import CertificateFacts


def certificate(config: Config) -> CertificateFacts | None:
    """Made by init, or brought; None without TLS."""
    if not config.server.tls:
        return None
    now = datetime.datetime.now(datetime.timezone.utc)
    own = tls.files(config.state_dir)
    path, key = config.server.certificate or own.certificate, config.server.key or own.key
    try:
        found = x509.load_pem_x509_certificates(path.read_bytes())[0]
        private = serialization.load_pem_private_key(key.read_bytes(), password=None)
        authority = None if config.server.certificate else x509.load_pem_x509_certificate(own.ca.read_bytes())
    except OSError as error:
        return CertificateFacts(str(path), now, fault=f"{error.filename} cannot be read ({error.strerror}).")
    except (ValueError, TypeError):
        return CertificateFacts(str(path), now, fault=f"{path}, its key or its CA is no valid PEM.")
    return CertificateFacts(
        path=str(path),
        now=now,
        not_before=found.not_valid_before_utc,
        not_after=found.not_valid_after_utc,
        names=_names(found),
        fits_key=private.public_key() == found.public_key(),
        signed_by_ca=authority is None or issued_by(found, authority),
        ca_not_after=None if authority is None else authority.not_valid_after_utc,
    )


def issued_by(found: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether ``authority`` signed it."""
    try:
        found.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def shown_is_ours(config: Config, shown: bytes) -> bool:
    """Whether a certificate (DER) that somebody shows is the one of this host, or signed by its CA."""
    own = tls.files(config.state_dir)
    path = config.server.certificate or own.certificate
    try:
        certificate = x509.load_der_x509_certificate(shown)
        if certificate == x509.load_pem_x509_certificates(path.read_bytes())[0]:
            return True
        return config.server.certificate is None and issued_by(certificate, _load(own.ca))
    except (OSError, ValueError):
        return False


def _load(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def _names(found: x509.Certificate) -> tuple[str, ...]:
    try:
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    addresses = names.get_values_for_type(x509.IPAddress)
    return (*names.get_values_for_type(x509.DNSName), *map(str, addresses))
