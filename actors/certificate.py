"""A certificate for one pipeline, where the configuration names none."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from diffuspec.rpc.security import SharedCertificate

_NAME = "diffuspec"
_VALID = timedelta(days=825)
_SKEW = timedelta(days=1)  # by which clocks of nodes may differ


def make_certificate() -> SharedCertificate:
    """Return a new key, and a certificate that it has signed itself.

    It admits every client that has the key, for 825 days: the longest run of a pipeline.
    """
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _NAME)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + _VALID)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(_NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    private = key.private_bytes(
        encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return SharedCertificate(certificate.public_bytes(encoding), private, _NAME)
