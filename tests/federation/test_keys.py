"""Keys of a federation: who may read them, and that none is ever overwritten."""

import os
import ssl
import stat
import subprocess
import sys

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key

from partwise.errors import ConfigError
from partwise.federation.transport.keys import make_keys, make_own_keys, public_keys, remove_handed_over


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
        ([], ["bern"], "bern.pub' is there already"),
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


def test_silos_that_make_their_own_keys_keep_them(tmp_path):
    made = make_own_keys(tmp_path / "graz", "Graz")
    assert [path.name for path in made] == ["Graz.key", "Graz.pub"] and stat.S_IMODE(made[0].stat().st_mode) == 0o600
    make_keys(tmp_path / "server", ["hospital.example"], ["Linz"], {"Graz": made[1]})
    assert sorted(public_keys(tmp_path / "server").values()) == ["Graz", "Linz"]
    assert not (tmp_path / "server" / "silos" / "Graz.key").exists()
    with pytest.raises(ConfigError, match=r"Graz\.pub' is there already"):
        make_own_keys(tmp_path / "graz", "Graz")
    with pytest.raises(ConfigError, match="is the key of silo 'Graz' already"):
        make_keys(tmp_path / "server", [], [], {"Wien": made[1]})
    with pytest.raises(ConfigError, match="is no public key of an elliptic curve"):
        make_keys(tmp_path / "server", [], [], {"Wien": made[0]})
    assert sorted(public_keys(tmp_path / "server").values()) == ["Graz", "Linz"]


def test_keys_that_were_handed_over_leave_the_server(tmp_path):
    make_keys(tmp_path, ["hospital.example"], ["bern", "lyon"])
    with pytest.raises(ConfigError, match=r"rome\.key' is not there"):
        remove_handed_over(tmp_path, ["bern", "rome"])
    assert remove_handed_over(tmp_path, ["bern"]) == [tmp_path / "silos" / "bern.key"]
    assert sorted(path.name for path in (tmp_path / "silos").iterdir()) == ["bern.pub", "lyon.key", "lyon.pub"]
    assert sorted(public_keys(tmp_path).values()) == ["bern", "lyon"]
    with pytest.raises(ConfigError, match=r"bern\.pub' is there already"):
        make_keys(tmp_path, [], ["bern"])


def test_a_silo_that_was_shut_out_gets_another_key(tmp_path):
    make_keys(tmp_path, ["hospital.example"], ["bern"])
    before = (tmp_path / "silos" / "bern.key").read_bytes()
    (tmp_path / "silos" / "bern.pub").unlink()
    make_keys(tmp_path, [], ["bern"])
    assert (tmp_path / "silos" / "bern.key").read_bytes() != before


# Kills itself at the number-th moment before or after a file comes, is written, gets its name, or goes.
KILLED = """
import os, sys
from pathlib import Path
from partwise.federation.transport import keys
left = int(sys.argv[2])

def moment():
    global left
    if not left:
        os._exit(9)
    left -= 1

def killing(function):
    def killed(*arguments, **named):
        moment()
        result = function(*arguments, **named)
        moment()
        return result
    return killed

for name in ("open", "fsync", "link", "unlink"):
    setattr(os, name, killing(getattr(os, name)))
keys.make_keys(Path(sys.argv[1]), ["hospital.example"], ["bern", "lyon"])
"""


def whole(folder):
    """Whether every file that has its own name can be read."""
    public_keys(folder)
    for path in [*folder.glob("*.pem")]:
        x509.load_pem_x509_certificate(path.read_bytes())
    for path in [*folder.glob("*.key")]:
        load_pem_private_key(path.read_bytes(), None)
    for path in (folder / "silos").glob("*.key"):
        load_ssh_private_key(path.read_bytes(), None)
    return all(len(path.read_bytes()) == 32 for path in folder.glob("*.secret"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a moment is tried in a process of its own, copied from this one")
def test_fault_75_keys_are_whole_or_absent_wherever_they_are_killed(tmp_path):
    """One process, imported once, is copied for every moment: os._exit leaves what a kill leaves."""
    tried = f"""
import os, sys
code = compile({KILLED!r}, "killed", "exec")
import partwise.federation.transport.keys
number, status = 0, 1
while status:
    child = os.fork()
    if not child:
        sys.argv = ["", f"{{sys.argv[1]}}/{{number}}", f"{{number}}"]
        exec(code, {{"__name__": "killed"}})
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 9), status
    number += 1
"""
    subprocess.run([sys.executable, "-c", tried, f"{tmp_path}"], check=True)
    folders = sorted(tmp_path.iterdir(), key=lambda path: int(path.name))
    assert len(folders) > 30
    for folder in folders[:-1]:
        assert whole(folder)
        there = {path.stem for path in (folder / "silos").glob("*.pub")}
        hosts = [] if (folder / "server.pem").exists() else ["hospital.example"]
        make_keys(folder, hosts, sorted({"bern", "lyon"} - there))
        assert whole(folder) and sorted(public_keys(folder).values()) == ["bern", "lyon"]
        certificate = x509.load_pem_x509_certificate((folder / "server.pem").read_bytes())
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes()))
        make_keys(folder, [], ["rome"])
        assert not list(folder.rglob("*.part"))
