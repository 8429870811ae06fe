"""Generate the certificates and keys of this folder (see README.md)."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HERE = Path(__file__).parent
START = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
END = datetime.datetime(2120, 1, 1, tzinfo=datetime.UTC)


def common_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def make(
    name: str,
    issuer: x509.Certificate | None = None,
    issuer_key: ec.EllipticCurvePrivateKey | None = None,
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Return a certificate and its key; without an issuer, those of a CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    alternatives = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(common_name(name))
        .issuer_name(issuer.subject if issuer else common_name(name))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(START)
        .not_valid_after(END)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(issuer_key or key, hashes.SHA256())
    )
    return certificate, key


def write(
    name: str,
    certificate: x509.Certificate | None,
    key: ec.EllipticCurvePrivateKey | None = None,
    password: bytes | None = None,
) -> None:
    """Write ``name``.pem and ``name``.key, the key encrypted if there is a password."""
    if certificate is not None:
        pem = certificate.public_bytes(serialization.Encoding.PEM)
        (HERE / f"{name}.pem").write_bytes(pem)
    if key is not None:
        encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password is not None:
            encryption = serialization.BestAvailableEncryption(password)
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
        )
        (HERE / f"{name}.key").write_bytes(pem)


def main() -> None:
    ca, ca_key = make("rmqpy test CA")
    write("ca", ca)
    for name in ("server", "client"):
        certificate, key = make(f"rmqpy test {name}", ca, ca_key)
        write(name, certificate, key)
        if name == "client":
            write("client-locked", None, key, b"open-sesame")
    other_ca, other_ca_key = make("another CA")
    write("other-ca", other_ca)
    write("other", *make("another server", other_ca, other_ca_key))


if __name__ == "__main__":
    main()
