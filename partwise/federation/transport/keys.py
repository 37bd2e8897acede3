"""Keys and certificates of a federation: one authority, the server's certificate, a pair of keys for every silo.

Flower signs every request of a node with the node's private key, and knows nodes by their public keys alone
(https://flower.ai/docs/framework/how-to-authenticate-supernodes.html).
"""

import ipaddress
import os
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
    load_ssh_public_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from partwise.errors import ConfigError
from partwise.writing import PART, make_folder, refusing

CA, CA_KEY = "ca.pem", "ca.key"
SERVER_CERTIFICATE, SERVER_KEY = "server.pem", "server.key"
SECRET = "superexec.secret"  # shows Flower that whoever sends messages to silos may read the server's folder
SILOS = "silos"
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")  # where the server's own processes meet
YEARS = 10
SILO_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


def make_keys(
    folder: Path, hosts: Sequence[str], silos: Sequence[str], public: Mapping[str, Path] | None = None
) -> list[Path]:
    """Make what is missing of a federation's keys, and return the files; none is ever overwritten.

    `public` are public keys that silos have made themselves. A certificate or a public key is written after its private
    key: where it is missing, an earlier call was killed, and this one goes on from there.
    """
    public = public or {}
    names = [*silos, *public]
    check_silo_names(names)
    if not hosts and not (folder / SERVER_CERTIFICATE).exists():
        raise ConfigError("--server is needed: the names or addresses by which silos reach the server")
    for file in [*([SERVER_CERTIFICATE] if hosts else []), *(f"{SILOS}/{name}.pub" for name in names)]:
        if os.path.lexists(folder / file):
            raise ConfigError(f"'{folder / file}' is there already, and keys are never overwritten")
    if len(set(names)) < len(names):
        raise ConfigError("a silo is named twice")
    addresses = [general_name(host) for host in (*hosts, *LOCAL_HOSTS)]
    begun = os.path.lexists(folder / CA_KEY)
    if (folder / CA).exists() and not begun:
        raise ConfigError(f"'{folder}' holds {CA} without {CA_KEY}: bring it back")
    if begun and not (folder / CA).exists() and (folder / SERVER_CERTIFICATE).exists():
        raise ConfigError(f"'{folder}' holds {CA_KEY} without {CA}: bring it back")
    brought = {name: (path, read_public(path)) for name, path in public.items()}
    known = public_keys(folder)
    for path, key in brought.values():
        if pem_of(key) in known:
            raise ConfigError(f"'{path}' is the key of silo '{known[pem_of(key)]}' already")

    for each in (folder, folder / SILOS):
        make_folder(each)
        each.chmod(0o700)
        for part in each.glob(f"*{PART}"):  # what a killed call has left
            part.unlink()
    files = []
    if not (folder / CA).exists():
        make_authority(folder)
        files += [CA, CA_KEY]
    if hosts:
        make_server(folder, addresses)
        files += [SERVER_CERTIFICATE, SERVER_KEY]
    if make_secret(folder):
        files.append(SECRET)
    for silo in silos:
        (folder / SILOS / f"{silo}.key").unlink(missing_ok=True)  # without its .pub it opens nothing, nor shall it
        make_pair(folder / SILOS, silo)
        files += [f"{SILOS}/{silo}.key", f"{SILOS}/{silo}.pub"]
    for name, (_, key) in brought.items():
        new_file(folder / SILOS / f"{name}.pub", public_line(key, name))
        files.append(f"{SILOS}/{name}.pub")
    return [folder / file for file in files]


def make_own_keys(folder: Path, silo: str) -> list[Path]:
    """Make a silo's own pair of keys, on its own machine: the private one never leaves it."""
    check_silo_names([silo])
    files = [folder / f"{silo}.key", folder / f"{silo}.pub"]
    if os.path.lexists(files[1]):
        raise ConfigError(f"'{files[1]}' is there already, and keys are never overwritten")
    make_folder(folder)
    make_pair(folder, silo)
    return files


def remove_handed_over(folder: Path, silos: Sequence[str]) -> list[Path]:
    """Remove private keys that their silos have by now; return the files. The public ones stay."""
    check_silo_names(silos)
    files = [folder / SILOS / f"{silo}.key" for silo in silos]
    for silo, file in zip(silos, files, strict=True):
        if not file.is_file():
            raise ConfigError(f"'{file}' is not there")
        if not file.with_suffix(".pub").is_file():
            raise ConfigError(f"'{file}' has no {silo}.pub beside it: the silo could not be known without it")
    for file in files:
        file.with_name(f"{file.name}{PART}").unlink(missing_ok=True)
        file.unlink()
    return files


def check_silo_names(silos: Iterable[str]) -> None:
    """Refuse names that are none: files are called after them."""
    for silo in silos:
        if not SILO_NAME.fullmatch(silo):
            raise ConfigError(f"silo '{silo}': a name has up to 63 letters, digits, '_', '.' and '-', no sign first")


def make_pair(folder: Path, silo: str) -> None:
    """Make a silo's private key, and its public one."""
    key = private_key(folder / f"{silo}.key", PrivateFormat.OpenSSH)
    new_file(folder / f"{silo}.pub", public_line(key.public_key(), silo))


def public_line(key: ec.EllipticCurvePublicKey, silo: str) -> bytes:
    """Return a public key as OpenSSH writes it."""
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + f" {silo}\n".encode()


def read_public(path: Path) -> ec.EllipticCurvePublicKey:
    """Return the public key of a file."""
    try:
        key = load_ssh_public_key(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ConfigError(f"'{path}' is no public key of an elliptic curve; `partwise keys` makes them")
    return key


def pem_of(key: ec.EllipticCurvePublicKey) -> bytes:
    """Return a public key as Flower writes it."""
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def private_key(path: Path, form: PrivateFormat) -> ec.EllipticCurvePrivateKey:
    """Make a private key and its file; one that a killed process has left is taken: nobody has its other half."""
    if not os.path.lexists(path):
        key = ec.generate_private_key(ec.SECP256R1())
        new_file(path, key.private_bytes(Encoding.PEM, form, NoEncryption()))
        return key
    load = load_ssh_private_key if form == PrivateFormat.OpenSSH else load_pem_private_key
    try:
        found = load(path.read_bytes(), None)
    except (OSError, ValueError, UnsupportedAlgorithm):
        found = None
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"'{path}' is no private key of an elliptic curve: remove it, and a new one is made")
    return found


def public_keys(folder: Path) -> dict[bytes, str]:
    """Return the silo of each public key, as Flower writes keys; refuse a key that two silos have."""
    found: dict[bytes, str] = {}
    try:
        there = os.listdir(folder / SILOS)  # not glob, which finds nothing where no descriptor is left
    except FileNotFoundError:
        there = []
    for path in sorted(folder / SILOS / name for name in there if name.endswith(".pub")):
        pem = pem_of(read_public(path))
        if pem in found:
            raise ConfigError(f"silos '{found[pem]}' and '{path.stem}' have the same key: remove one of them")
        found[pem] = path.stem
    return found


def make_secret(folder: Path) -> bool:
    """Make the secret that the server's own processes share; return False where there is one."""
    if (folder / SECRET).exists():
        return False
    new_file(folder / SECRET, secrets.token_bytes(32))
    return True


def make_authority(folder: Path) -> None:
    """Write the key and the certificate of a federation's own authority."""
    key = private_key(folder / CA_KEY, PrivateFormat.PKCS8)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"partwise {secrets.token_hex(4)}")])
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)  # signs certificates, and lists
    certificate = (
        begun(name, name, key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    new_file(folder / CA, certificate.public_bytes(Encoding.PEM))


def make_server(folder: Path, names: list[x509.GeneralName]) -> None:
    """Write the server's key, and its certificate for these names."""
    authority = x509.load_pem_x509_certificate((folder / CA).read_bytes())
    signer = load_pem_private_key((folder / CA_KEY).read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = private_key(folder / SERVER_KEY, PrivateFormat.PKCS8)
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
    new_file(folder / SERVER_CERTIFICATE, certificate.public_bytes(Encoding.PEM))


def begun(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    """Return a certificate to complete and sign, valid from now on."""
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
    """Return a host as certificates name it; refuse what is neither an address nor a name."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError:
        raise ConfigError(f"--server {host}: a name in letters of ASCII, or an address") from None


def new_file(path: Path, content: bytes) -> None:
    """Write a file that nobody else may read, and that was not there: it is whole, or absent."""
    part = path.with_name(f"{path.name}{PART}")
    with refusing(path):
        part.unlink(missing_ok=True)
        try:
            with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.link(part, path)  # not renamed: what is there already stays
        finally:
            part.unlink(missing_ok=True)
