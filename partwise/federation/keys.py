"""Keys and certificates of a federation: one authority, the server's certificate, a pair of keys for every silo.

Flower signs every request of a node with the node's private key, and knows nodes by their public keys alone
(https://flower.ai/docs/framework/how-to-authenticate-supernodes.html).
"""

import ipaddress
import os
import re
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_public_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from partwise.errors import ConfigError
from partwise.writing import make_folder, refusing

CA, CA_KEY = "ca.pem", "ca.key"
SERVER, SERVER_KEY = "server.pem", "server.key"
SECRET = "superexec.secret"  # shows Flower that whoever sends messages to silos may read the server's folder
SILOS = "silos"
LOCAL = ("localhost", "127.0.0.1", "::1")  # where the server's own processes meet
YEARS = 10
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


def make_keys(folder: Path, hosts: Sequence[str], silos: Sequence[str]) -> list[Path]:
    """Make what is missing of a federation's keys, and say which files that are; none is ever overwritten."""
    for silo in silos:
        if not NAME.fullmatch(silo):
            raise ConfigError(f"silo '{silo}': a name has up to 63 letters, digits, '_', '.' and '-', no sign first")
    if not hosts and not (folder / SERVER).exists():
        raise ConfigError("--server is needed: the names or addresses by which silos reach the server")
    files = [SERVER, SERVER_KEY] if hosts else []
    files += [f"{SILOS}/{silo}.{kind}" for silo in silos for kind in ("key", "pub")]
    for file in files:
        if os.path.lexists(folder / file):
            raise ConfigError(f"'{folder / file}' is there already, and keys are never overwritten")
    if len(set(silos)) < len(silos):
        raise ConfigError("a silo is named twice")
    names = [general_name(host) for host in (*hosts, *LOCAL)]
    if os.path.lexists(folder / CA) != os.path.lexists(folder / CA_KEY):
        raise ConfigError(f"'{folder}' holds only one of {CA} and {CA_KEY}: bring back the other one")

    for each in (folder, folder / SILOS):
        make_folder(each)
        each.chmod(0o700)
    if not (folder / CA).exists():
        make_authority(folder)
        files += [CA, CA_KEY]
    if hosts:
        make_server(folder, names)
    if make_secret(folder):
        files.append(SECRET)
    for silo in silos:
        key = ec.generate_private_key(ec.SECP256R1())
        new_file(folder / SILOS / f"{silo}.key", key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
        public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        new_file(folder / SILOS / f"{silo}.pub", public + f" {silo}\n".encode())
    return [folder / file for file in files]


def public_keys(folder: Path) -> dict[bytes, str]:
    """Whose public key it is, as Flower writes keys; a key that two silos have would let one speak for the other."""
    found: dict[bytes, str] = {}
    for path in sorted((folder / SILOS).glob("*.pub")):
        try:
            key = load_ssh_public_key(path.read_bytes())
        except (OSError, ValueError):
            raise ConfigError(f"'{path}' is no public key; `partwise keys` makes them") from None
        pem = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        if pem in found:
            raise ConfigError(f"silos '{found[pem]}' and '{path.stem}' have the same key: remove one of them")
        found[pem] = path.stem
    return found


def make_secret(folder: Path) -> bool:
    """The secret that the server's own processes share, where there is none yet."""
    if (folder / SECRET).exists():
        return False
    new_file(folder / SECRET, secrets.token_bytes(32))
    return True


def make_authority(folder: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"partwise {secrets.token_hex(4)}")])
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)  # signs certificates, and lists
    certificate = (
        begun(name, name, key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    write_pair(certificate, folder / CA, key, folder / CA_KEY)


def make_server(folder: Path, names: list[x509.GeneralName]) -> None:
    authority = x509.load_pem_x509_certificate((folder / CA).read_bytes())
    signer = load_pem_private_key((folder / CA_KEY).read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "partwise server")])
    issuer_key = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    certificate = (
        begun(subject, authority.subject, key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer_key), critical=False)
        .sign(signer, hashes.SHA256())
    )
    write_pair(certificate, folder / SERVER, key, folder / SERVER_KEY)


def begun(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - timedelta(days=1),  # clocks differ
        not_valid_after=now + timedelta(days=365 * YEARS),
    )


def general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError:
        raise ConfigError(f"--server {host}: a name in letters of ASCII, or an address") from None


def write_pair(certificate: x509.Certificate, file: Path, key: ec.EllipticCurvePrivateKey, key_file: Path) -> None:
    new_file(key_file, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    new_file(file, certificate.public_bytes(Encoding.PEM))


def new_file(path: Path, content: bytes) -> None:
    """A file that nobody else may read, and that was not there."""
    with refusing(path), open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
