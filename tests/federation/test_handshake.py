"""What silos agree on before the first round, and filters that are at work on nodes."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from partwise.errors import PartwiseError
from partwise.federation.protocol.handshake import agree
from partwise.federation.protocol.launch import federated
from partwise.federation.protocol.node import Node
from partwise.federation.protocol.policy import SIMULATED, Allowed
from partwise.federation.protocol.silo import Silo, read_silo
from partwise.records.messages import Joined
from partwise.runs.config import make_config
from partwise.runs.prepare import prepare
from tests.support.nodes import InProcess, members, silos
from tests.support.runs import awkward_federation

SIZES = (7, 6, 9, 11)
HOSTED = [[0, 2], [1], [3]]
SETTINGS = {"rounds": 2, "lr": 0.05, "batch": 4, "dtype": "float64", "threads": 1}


def run(config, own):
    link = InProcess({name: Node(silo) for name, silo in own.items()})
    return federated(config, members(link, config)).run()


def copies(simulation):
    return {name: each.values for name, each in simulation.server.copies.items()}


def apart(one, two):
    return max(float((one[name] - two[name]).abs().max()) for name in one)


SMALL = "min_train_samples = 1\nmin_test_samples = 1\n"  # tables of a few patients, who are made up


def table(rows, seed, **more):
    """Patients whose sex, where there is none of one, has one feature only."""
    random = np.random.default_rng(seed)
    columns = {"age": random.normal(50, 9, rows), "size": random.normal(1e6, 3, rows), "sex": ["f", "m"] * (rows // 2)}
    return pd.DataFrame({**columns, "sick": np.where(columns["size"] > 1e6, "yes", "no"), **more})


def written(folder, **frames):
    for name, frame in frames.items():
        frame.to_csv(folder / f"{name}.csv", index=False)
        text = f'name = "{name}"\n[data]\ndata = "{name}.csv"\nlabel = "sick"\n[allow]\nmin_clients = 1\n{SMALL}'
        text += "min_batch = 1\n"
        (folder / f"{name}.toml").write_text(text)
    return {name: read_silo(folder / f"{name}.toml") for name in frames}


def test_tables_of_silos_are_standardised_by_everybodys_sums(tmp_path):
    own = written(tmp_path, Graz=table(40, 0), Linz=table(30, 1), Wien=table(20, 2))
    config = make_config("fedavg", SETTINGS)
    simulation = run(config, own)
    nodes = simulation.engine.nodes.link.nodes.values()
    training = [(node.run.simulation.federation, client) for client, node in enumerate(nodes)]
    x = torch.cat([federation.source.x[federation.train[client]] for federation, client in training]).double()
    source = simulation.federation.source
    centre, scale = (torch.tensor(values, dtype=torch.float64) for values in (source.centre, source.scale))
    assert torch.allclose(centre, x.mean(0), rtol=1e-12) and torch.allclose(scale, x.std(0, correction=0), rtol=1e-6)
    assert source.class_names == ("no", "yes")


def test_columns_come_in_any_order_and_a_text_need_not_have_all_its_values(tmp_path):
    women = table(30, 1, sex="f")[["sick", "sex", "size", "age"]]
    own = written(tmp_path, Graz=table(40, 0), Linz=women, Wien=table(20, 2))
    simulation = run(make_config("fedavg", SETTINGS), own)
    assert set(simulation.federation.source.feature_names) == {"age", "size", "sex=f", "sex=m"}
    part = simulation.engine.nodes.link.nodes["Linz"].run.simulation.federation.source
    names = list(part.feature_names)
    assert names == list(simulation.federation.source.feature_names)
    assert torch.equal(part.x[:, names.index("sex=m")], torch.zeros(30))
    assert part.x[:, names.index("age")].double().numpy() == pytest.approx(women["age"].to_numpy(), rel=1e-6)


@pytest.mark.parametrize(
    "change, line",
    [
        (lambda frame: frame.drop(columns="age"), "Linz: lacks 'age'"),
        (lambda frame: frame.assign(weight=1.0), "Linz: has 'weight' besides"),
        (
            lambda frame: frame.assign(sick=frame["sick"].str.upper()),
            "Linz: has the classes NO, YES, and no other silo",
        ),
    ],
    ids=["a column less", "a column more", "other classes"],
)
def test_a_silo_that_does_not_fit_is_told_why(change, line, tmp_path):
    own = written(tmp_path, Graz=table(40, 0), Linz=change(table(30, 1)), Wien=table(20, 2))
    with pytest.raises(PartwiseError, match=line):
        run(make_config("fedavg", SETTINGS), own)


def test_two_nodes_cannot_host_one_client():
    told = Joined(
        names=["a"],
        sizes=[[1, 1, 0]],
        shape=[2],
        task="classes",
        places=[],
        classes=2,
        class_names=[],
        columns=[],
        features=[],
        whole=False,
        standardise=False,
        centre=[0.0],
        scale=[1.0],
        white=1.0,
        data="",
        model="",
        min_clients=1,
    )
    with pytest.raises(PartwiseError, match="two nodes host the client 'a'"):
        agree({"n0": told, "n1": told})


@pytest.mark.parametrize(
    "text, line",
    [
        ("", "name is missing"),
        ('name = "x"\n', r"\[data\] must say which data it holds"),
        ('name = "x"\nhosts = "9-3"', 'not of the form "0-999"'),
        ('name = "x"\n[allow]\nmethod = ["fedper"]', "unknown setting 'method'; did you mean 'methods'"),
        ('name = "x"\n[data]\ndata = "digits"\nclients = 3', "unknown setting 'clients'"),
        ('name = "x"\n[allow]\nparts = [1]', "parts is a list of names"),
        ('name = "x', "Illegal|Expected|Unterminated|line 1"),
    ],
)
def test_a_silos_file_is_read_or_refused_in_one_line(text, line, tmp_path):
    (tmp_path / "silo.toml").write_text(text)
    with pytest.raises(PartwiseError, match=line):
        read_silo(tmp_path / "silo.toml")


NOISY = {"upload_clip": 1.0, "upload_noise": 0.1, "upload_bits": 8, "model": "mlp-100"}


def test_filters_on_nodes_are_those_of_the_simulation_but_for_the_noise_which_is_secret(tmp_path):
    federation, config = awkward_federation(SIZES), make_config("fedavg", {**SETTINGS, **NOISY})
    here = prepare(config, federation).run()
    own = silos(federation, tmp_path / "known", HOSTED)
    known = run(config, {name: replace(silo, known_noise=True) for name, silo in own.items()})
    assert apart(copies(here), copies(known)) < 1e-10
    assert [row["bytes_up"] for row in here.history.rows] == [row["bytes_up"] for row in known.history.rows]
    assert here.history.rows[-1]["epsilon"] == known.history.rows[-1]["epsilon"]
    secret = run(config, silos(federation, tmp_path / "secret", HOSTED))
    assert apart(copies(here), copies(secret)) > 1e-3
    again = run(config, silos(federation, tmp_path / "again", HOSTED))
    assert apart(copies(secret), copies(again)) > 1e-3


def test_a_class_with_few_samples_is_not_told_of(tmp_path):
    federation, config = awkward_federation(SIZES), make_config("fedproto", {**SETTINGS, "model": "mlp-100"})
    told = []
    for count in (1, 5):
        own = silos(federation, tmp_path / f"{count}", HOSTED, min_class_count=count)
        link = InProcess({name: Node(silo) for name, silo in own.items()})
        simulation = federated(config, members(link, config))
        simulation.run()
        [updates] = [answers for request, answers in simulation.server.asked if request.job == "train"]
        told.append(updates.extras["prototypes"].counts)
    assert ((told[0] > 0) & (told[0] < 5)).any() and not ((told[1] > 0) & (told[1] < 5)).any()


def test_simulated_clients_over_two_nodes_are_those_of_one_machine(tmp_path):
    settings = {**SETTINGS, "data": "digits", "clients": 5, "partition": "dir:0.3", "model": "mlp-100"}
    config = make_config("fedper", settings)
    hosts = {"left": (0, 1), "right": (2, 4)}
    allow = Allowed(**SIMULATED)
    own = {name: Silo(name, tmp_path / name, allow=allow, hosts=span) for name, span in hosts.items()}
    assert apart(copies(prepare(config).run()), copies(run(config, own))) < 1e-10
