"""A silo of a real federation loads the models of its own clients, which are those of the simulation."""

import pytest
import torch

import partwise
from partwise import Result
from partwise.federation.protocol.launch import write_models
from partwise.runs.config import make_config
from partwise.runs.prepare import prepare
from tests.support.runs import awkward_federation
from tests.support.silo_tables import SETTINGS as TABLES
from tests.support.silo_tables import run, silo, table
from tests.support.three_nodes import SIZES, made, ready


def test_a_silo_loads_its_own_models(tmp_path):
    """FedProto: prototypes are received, and are in the node's files."""
    config = made("fedproto")
    there = ready(config, tmp_path).run()
    assert write_models(there) == {"n0": 2, "n1": 1, "n2": 1}
    federation = awkward_federation(SIZES)
    here = Result(prepare(config, federation).run())
    x = federation.source.x[:9]
    for client, host in enumerate(there.engine.nodes.hosts):
        run = there.engine.nodes.link.nodes[host].silo.folder / "runs" / "a-run"
        model = partwise.load_model(run, client)
        assert torch.allclose(model(x), here.models[client](x), rtol=0, atol=1e-10)
    with pytest.raises(partwise.ConfigError, match="client 3 has no model here"):
        partwise.load_model(there.engine.nodes.link.nodes["n0"].silo.folder / "runs" / "a-run", 3)


def test_a_silos_model_takes_the_rare_text_that_it_was_trained_with(tmp_path, caplog):
    """No silo may name a text of one sample: it is zero in all features of its column, in training and after it."""
    yes_no = ["yes", "no"] * 30
    frames = table(60, 0, smoker=["pipe", *yes_no[1:]]), table(60, 1, smoker=yes_no)
    own = {name: silo(tmp_path, frame, name) for name, frame in zip(("Graz", "Linz"), frames, strict=True)}
    there = run(make_config("fedavg", {**TABLES, "rounds": 1}), own)
    assert "column 'smoker': 1 row with 'pipe' has no feature: no silo has min_class_count = 5" in caplog.text
    there.run()
    caplog.set_level("INFO")
    write_models(there)
    folder = own["Graz"].folder / "runs" / "a-run"
    assert f"wrote 1 model into '{folder}'" in caplog.text
    caplog.clear()
    model = partwise.load_model(folder, "Graz")
    path = tmp_path / "tables" / "Graz.csv"
    assert len(model.predict(path)) == 60
    [line] = [record.getMessage() for record in caplog.records]
    assert line == f"{path}: column 'smoker': texts without a feature (rows): 'pipe' (1); all features are 0"
    assert model.read(path).x[0, -2:].tolist() == [0, 0] and model.read(path).x[1, -2:].tolist() == [1, 0]  # no, yes
