"""Keys of a federation: who may read them, and that none is ever overwritten."""

import ssl
import stat

import pytest
from cryptography import x509

from partwise.errors import ConfigError
from partwise.federation.keys import make_keys, public_keys


def files(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_keys_are_for_their_owner_alone(tmp_path):
    folder = tmp_path / "keys"
    made = make_keys(folder, ["hospital.example", "192.0.2.7"], ["bern", "lyon"])
    assert {path.relative_to(folder).as_posix() for path in made} == set(files(folder)) == {
        *("ca.pem", "ca.key", "server.pem", "server.key", "superexec.secret"),
        *(f"silos/{name}.{kind}" for name in ("bern", "lyon") for kind in ("key", "pub")),
    }  # fmt: skip
    for path in folder.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert sorted(public_keys(folder).values()) == ["bern", "lyon"]


def test_the_servers_certificate_names_its_hosts_and_this_machine(tmp_path):
    make_keys(tmp_path, ["hospital.example", "192.0.2.7"], [])
    certificate = x509.load_pem_x509_certificate((tmp_path / "server.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["hospital.example", "localhost"]
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["192.0.2.7", "127.0.0.1", "::1"]
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate((tmp_path / "ca.pem").read_bytes()))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")


def test_a_silo_is_added_later_and_nothing_else_changes(tmp_path):
    make_keys(tmp_path, ["hospital.example"], ["bern"])
    before = files(tmp_path)
    make_keys(tmp_path, [], ["lyon"])
    after = files(tmp_path)
    assert after.keys() - before.keys() == {"silos/lyon.key", "silos/lyon.pub"}
    assert all(after[name] == content for name, content in before.items())


@pytest.mark.parametrize(
    ("hosts", "silos", "line"),
    [
        ([], ["bern"], "bern.key' is there already"),
        (["hospital.example"], ["lyon"], "server.pem' is there already"),
        ([], ["../lyon"], "silo '../lyon': a name has"),
        ([], [".lyon"], "silo '.lyon': a name has"),
        ([], ["lyon", "lyon"], "named twice"),
    ],
)
def test_what_is_refused_changes_nothing(tmp_path, hosts, silos, line):
    make_keys(tmp_path, ["hospital.example"], ["bern"])
    before = files(tmp_path)
    with pytest.raises(ConfigError, match=line) as error:
        make_keys(tmp_path, hosts, silos)
    assert len(error.value.problems) == 1 and "\n" not in str(error.value)
    assert files(tmp_path) == before


def test_the_first_keys_need_to_know_the_server(tmp_path):
    with pytest.raises(ConfigError, match="--server is needed"):
        make_keys(tmp_path / "keys", [], ["bern"])
    with pytest.raises(ConfigError, match="letters of ASCII"):
        make_keys(tmp_path / "keys", ["spital.zürich"], ["bern"])
    assert not (tmp_path / "keys").exists()


def test_two_silos_with_one_key_are_refused(tmp_path):
    make_keys(tmp_path, ["hospital.example"], ["bern"])
    (tmp_path / "silos" / "lyon.pub").write_bytes((tmp_path / "silos" / "bern.pub").read_bytes())
    with pytest.raises(ConfigError, match="'bern' and 'lyon' have the same key"):
        public_keys(tmp_path)
    (tmp_path / "silos" / "lyon.pub").write_text("ssh-ed25519 nonsense")
    with pytest.raises(ConfigError, match="is no public key"):
        public_keys(tmp_path)
