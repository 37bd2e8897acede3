"""Methods and data sets that an installed package publishes: the package of docs/publishing-a-method.md."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

import partwise
from partwise.data import CATALOGUE, Federation
from partwise.errors import ConfigError, DataError
from partwise.federation.protocol.node import Node
from partwise.federation.protocol.silo import read_silo
from partwise.federation.protocol.software import software
from partwise.methods import find, installed_names, names
from partwise.records.messages import PROTOCOL
from partwise.records.wire import pack_tree, unpack_tree
from partwise.runs.config import make_config
from partwise.runs.prepare import prepare
from tests.support.commands import TINY, completed, invoke, refuse, succeed
from tests.support.node_parity import distance
from tests.support.nodes import in_process, silos
from tests.support.runs import awkward_federation

PAGE = (Path(__file__).parents[2] / "docs" / "publishing-a-method.md").read_text(encoding="utf-8")
CODE, PROJECT = (re.search(rf"```{kind}\n(# \w+\.\w+\n.*?)```", PAGE, re.DOTALL)[1] for kind in ("python", "toml"))
CLOUDS = ("--data", "two-clouds", "--clients", "4", "--rounds", "1")


class Packages:
    """Installs made packages into a folder from which Python imports, as pip would leave them."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.monkeypatch = folder, monkeypatch
        monkeypatch.syspath_prepend(folder)

    def install(self, name="pulled-methods", version="1.0", files=None, **groups):
        """Write the files of a package, and the metadata that name its entry points."""
        for file, text in (files or {}).items():
            path = self.folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            self.monkeypatch.delitem(sys.modules, path.stem, raising=False)
        about = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        sections = (f"[partwise.{group}]\n" + "".join(f"{own}\n" for own in lines) for group, lines in groups.items())
        (about / "entry_points.txt").write_text("\n".join(sections))

    def install_example(self, version="1.0", more=""):
        """Install the package of the page."""
        project = tomllib.loads(PROJECT)["project"]
        groups = {
            group.removeprefix("partwise."): [f"{name} = {value}" for name, value in entries.items()]
            for group, entries in project["entry-points"].items()
        }
        self.install(project["name"], version, {"pulled_methods.py": CODE + more}, **groups)


@pytest.fixture
def packages(tmp_path, monkeypatch):
    yield Packages(tmp_path / "site", monkeypatch)
    for module in [name for name in sys.modules if name.startswith(("pulled_methods", "other"))]:
        del sys.modules[module]


@pytest.fixture
def example(packages):
    packages.install_example()
    return packages


def imported():
    return "pulled_methods" in sys.modules


# ---- by name, as if they were built in


def test_the_commands_of_the_page(example, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    block = re.search(r"```sh\n(.*?)```", PAGE, re.DOTALL)[1]
    listed, ran, compared, described = (
        succeed(capsys, *line.partition("#")[0].split()[1:]) for line in block.splitlines()
    )
    assert "FedPer with a head that is pulled towards zero. [pulled-methods 1.0]" in " ".join(listed.split())
    assert "pulled" in ran and "FedPer" in compared and "pulled" in compared
    assert "  samples  400" in described.splitlines() and "  example" not in described


def test_a_published_method_trains_as_the_same_class_in_a_file(example, tmp_path):
    (tmp_path / "mine.py").write_text(CODE)
    settings = {"data": "two-clouds", "clients": 4, "rounds": 2, "dtype": "float64", "pull": 0.5}
    ours, theirs = (
        partwise.run(name, **settings).simulation.server.copies for name in ("pulled", f"{tmp_path}/mine.py")
    )
    assert all(torch.equal(copies.values, theirs[part].values) for part, copies in ours.items())


def test_workers_find_it_too(example):
    settings = {"data": "two-clouds", "clients": 3, "rounds": 1, "dtype": "float64"}
    one, many = (partwise.run("pulled", engine=engine, **settings) for engine in ("loop", "workers"))
    assert many.simulation.notes[0].startswith("engine: workers")
    assert all(
        torch.equal(copies.values, many.simulation.server.copies[part].values)
        for part, copies in one.simulation.server.copies.items()
    )


def test_a_model_of_it_is_loaded_without_trust(example, tmp_path):
    partwise.run("pulled", data="two-clouds", clients=4, rounds=1, out=tmp_path / "run")
    x = partwise.load("two-clouds").x[:3]
    assert len(partwise.load_model(tmp_path / "run", client=0).predict(x)) == 3
    assert 'name = "pulled"' in (tmp_path / "run" / "config.toml").read_text()


def test_a_run_is_not_resumed_with_other_code(example, tmp_path, capsys):
    run = ("run", "pulled", *CLOUDS, "--out", tmp_path / "run")
    succeed(capsys, *run)
    known = software(["pulled"])["code of pulled"]
    assert f"# SHA-256 {known} pulled-methods 1.0" in (tmp_path / "run" / "config.toml").read_text().splitlines()
    (example.folder / "pulled_methods.py").write_text(CODE + "\n")
    assert f"holds a run with other settings: # SHA-256 {known} pulled-methods 1.0 there" in refuse(
        capsys, *run, "--resume"
    )


def test_a_schedule_takes_it_as_host(example, capsys):
    succeed(capsys, "run", "anti", "--host", "pulled", "--pull", "0.2", *CLOUDS)


def test_its_options_are_known_wherever_its_name_stands(example, capsys):
    assert "--pull" in succeed(capsys, "run", "pulled", "--help")
    succeed(capsys, "run", *CLOUDS, "--pull", "0.2", "pulled")
    assert "did you mean '--pull'" in refuse(capsys, "run", "pulled", "--pul", "0.2", *CLOUDS)


def test_a_module_that_defines_one_method_is_enough(packages):
    packages.install(files={"pulled_methods.py": CODE}, methods=["pulled = pulled_methods"])
    assert find("pulled").__name__ == "Pulled"


# ---- nothing is imported before it is used


def test_lists_and_completions_import_none(example, capsys):
    assert installed_names() == [*names(), "pulled"]
    for arguments in (["methods"], ["data"], ["data", "--json"], ["run", "fedavg", "--help"]):
        succeed(capsys, *arguments)
    assert completed("run", begun="pul") == ["pulled"] and completed("data", begun="two") == ["two-clouds"]
    assert completed("run", "anti", "--host", begun="pul") == ["pulled"]
    assert software(["pulled"])["pulled-methods"] == "1.0"
    assert not imported()
    find("pulled")
    assert imported()


def test_importing_partwise_reads_no_entry_points():
    told = "import sys, partwise; print('importlib.metadata' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", told], capture_output=True, text=True).stdout == "False\n"


def test_the_list_for_programs_names_published_data(example, capsys):
    every = json.loads(succeed(capsys, "data", "--json"))
    assert [about["name"] for about in every] == [*CATALOGUE, "two-clouds"]
    assert every[-1]["summary"] == "Two clouds of points, one for each class. [pulled-methods 1.0]"


# ---- one name, one meaning


def test_a_built_in_name_is_refused(packages, capsys):
    packages.install(
        files={"pulled_methods.py": CODE},
        methods=["fedavg = pulled_methods:Pulled"],
        datasets=["digits = pulled_methods:two_clouds"],
    )
    line = refuse(capsys, "run", "fedavg", *TINY)
    assert line == (
        "error: the method 'fedavg' is published by partwise and by pulled-methods 1.0: uninstall pulled-methods, or "
        "rename its entry point in the group partwise.methods"
    )
    assert "the data set 'digits' is published by partwise and by pulled-methods 1.0" in refuse(
        capsys, "run", "fedper", "--data", "digits"
    )
    assert "is published by partwise and by pulled-methods" in " ".join(succeed(capsys, "methods").split())
    succeed(capsys, "run", "fedper", *TINY)  # other names mean what they did
    assert not imported()


def test_two_packages_with_one_name_are_refused(example):
    example.install("other", "2.0", {"other.py": CODE}, methods=["pulled = other:Pulled"])
    with pytest.raises(ConfigError, match=r"^the method 'pulled' is published by (.*) and by (.*): uninstall"):
        find("pulled")


@pytest.mark.parametrize("name", ["Pulled", "../pulled", "2pulled", "pulled one"])
def test_a_name_that_no_folder_should_have_is_refused(name, packages):
    packages.install(files={"pulled_methods.py": CODE}, methods=[f"{name} = pulled_methods:Pulled"])
    with pytest.raises(ConfigError, match="a name is a small letter, then"):
        find(name)


# ---- packages that are broken


@pytest.mark.parametrize(
    ("value", "code", "why"),
    [
        ("pulled_methods:Pulled", "1 / 0", "cannot be imported: ZeroDivisionError: division by zero"),
        ("pulled_methods:Other", CODE, "cannot be imported: AttributeError: .*no attribute 'Other'"),
        ("pulled_methods.inner:Pulled", CODE, "cannot be imported: ModuleNotFoundError"),
        ("pulled_methods:two_clouds", CODE, "must be a subclass of partwise.Method or a module with one"),
        ("no module:Pulled", CODE, "cannot be imported: "),
        ("pulled_methods", "", "must define one subclass of partwise.Method, it defines 0"),
    ],
)
def test_what_is_no_method_is_refused_in_one_line(value, code, why, packages, capsys):
    packages.install(files={"pulled_methods.py": code}, methods=[f"pulled = {value}"])
    line = refuse(capsys, "run", "pulled", *TINY)
    assert re.search(rf"^error: method 'pulled' of pulled-methods 1.0 {why}", line), line
    assert "pulled" in succeed(capsys, "methods")  # the list does not fail
    assert succeed(capsys, "methods", "fedavg")


@pytest.mark.parametrize(
    ("value", "code", "why"),
    [
        ("pulled_methods:data", "data = 3", "must be a function that returns data"),
        ("pulled_methods:data", "def data(): return 'a.csv'", "returns a path: it must return data"),
        ("pulled_methods:data", "def data(): return {}['a']", "cannot be read: KeyError: 'a'"),
    ],
)
def test_what_is_no_data_set_is_refused_in_one_line(value, code, why, packages):
    packages.install(files={"pulled_methods.py": code}, datasets=[f"two-clouds = {value}"])
    for read in (partwise.load, lambda name: partwise.run("fedavg", data=name)):
        with pytest.raises((ConfigError, DataError), match=f"^data set 'two-clouds' of pulled-methods 1.0 {why}"):
            read("two-clouds")


def test_there_is_nothing_to_download(example, capsys):
    line = refuse(capsys, "data", "two-clouds", "--download")
    assert (
        line == "error: data set 'two-clouds' of pulled-methods 1.0 has no files to be downloaded: leave out --download"
    )


def test_a_mistake_in_its_code_is_one_line_with_the_place(packages, capsys):
    packages.folder = packages.folder / "site-packages"  # where the code of others is no user's own
    packages.monkeypatch.syspath_prepend(packages.folder)
    wrong = CODE.replace('net["head"]["weight"]', 'net["head"]["weigth"]')
    packages.install(files={"pulled_methods.py": wrong}, methods=["pulled = pulled_methods:Pulled"])
    outcome = invoke(capsys, "run", "pulled", *TINY)
    assert outcome.code == 2
    assert re.search(r"^error: pulled_methods\.py:12 in Pulled\.loss \(.*weigth", outcome.err, re.MULTILINE)


# ---- data that come divided


def test_data_of_each_client_come_divided(packages):
    code = CODE + (
        "\ndef two_clinics():\n"
        "    whole = two_clouds()\n"
        "    return {'Graz': (whole.x[:100], whole.y[:100]), 'Wien': (whole.x[100:], whole.y[100:])}\n"
    )
    packages.install(files={"pulled_methods.py": code}, datasets=["clinics = pulled_methods:two_clinics"])
    federation = partwise.run("fedavg", data="clinics", rounds=1).federation
    assert isinstance(federation, Federation) and federation.names == ("Graz", "Wien")
    assert len(partwise.load("clinics").y) == 400
    with pytest.raises(ConfigError, match="the data belong to 2 clients"):
        partwise.run("fedavg", data="clinics", clients=3, rounds=1)


# ---- on nodes


def asked(method="pulled", **settings):
    common = {"rounds": 1, "model": "tabular", "threads": 1}
    own = {"protocol": PROTOCOL, "software": software([method, settings.get("host")]), "method": method, "file": None}
    return {"kind": "join", "run": "a-run", **own, "settings": {**common, **settings}}


def told(node, content):
    return unpack_tree(node.handle(pack_tree(content)))


def node_that_allows(folder, *methods):
    return Node(silos(awkward_federation((7, 6)), folder, [[0, 1]], methods=methods)["n0"])


def test_nodes_equal_the_simulation(example, tmp_path):
    federation = awkward_federation((7, 6, 9))
    settings = {"rounds": 2, "lr": 0.05, "batch": 4, "dtype": "float64", "model": "tabular", "threads": 1, "pull": 0.5}
    config = make_config("pulled", settings)
    here = prepare(config, federation).run()
    there = in_process(config, federation, tmp_path, [[0, 2], [1]], methods=("pulled",)).run()
    assert distance(here, there) < 1e-10


@pytest.mark.parametrize("how", ["method", "host"])
def test_a_node_trains_with_it_only_where_its_silo_names_it(how, example, tmp_path):
    content = asked() if how == "method" else asked("anti", host="pulled")
    line = told(node_that_allows(tmp_path / "any", "*"), content)["refuses"]
    assert line == "n0 allows a method of another package only by its name: pulled" and not imported()
    assert "refuses" not in told(node_that_allows(tmp_path / "named", "*", "pulled"), content)


def test_another_version_or_code_of_it_is_refused_with_both_named(example, tmp_path):
    node, content = node_that_allows(tmp_path, "pulled"), asked()
    known = content["software"]["code of pulled"]
    content["software"]["pulled-methods"] = "1.1"
    line = told(node, content)["refuses"]
    assert line == "pulled-methods is 1.1 on the server and 1.0 on n0: install the same on both"
    content = asked()
    (example.folder / "pulled_methods.py").write_text(CODE + "\n")
    line = told(node, content)["refuses"]
    assert re.fullmatch(rf"code of pulled is {known[:20]} on the server and \w+ on n0: install the same on both", line)


def test_all_files_of_its_package_count(packages):
    files = {"pulled_methods/__init__.py": "from pulled_methods.inner import Pulled\n", "pulled_methods/inner.py": CODE}
    packages.install(files=files, methods=["pulled = pulled_methods:Pulled"])
    before = software(["pulled"])
    (packages.folder / "pulled_methods" / "inner.py").write_text(CODE + "\n")
    assert software(["pulled"])["code of pulled"] != before["code of pulled"]


def test_a_node_with_simulated_clients_reads_published_data_that_its_owner_lists(example, tmp_path):
    refusals = []
    for allowed in ("[]", '["two-clouds"]'):
        (tmp_path / "silo.toml").write_text(f'name = "left"\nhosts = "0-1"\n[allow]\ndata = {allowed}\n')
        node = Node(read_silo(tmp_path / "silo.toml"))
        for data in ("two-clouds", "./two-clouds"):
            content = asked("fedavg", data=data, clients=4, partition="iid")
            refusals.append("reads no file that a server names" in told(node, content).get("refuses", ""))
    assert refusals == [True, True, False, True]
