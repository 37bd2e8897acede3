"""Fault 63: losses and scores of few samples are an oracle for records. They leave as a silo's file says."""

import math
from dataclasses import replace

import pytest
import torch

from partwise.errors import ConfigError, PartwiseError
from partwise.federation.protocol.launch import federated
from partwise.federation.protocol.leaving import round_losses, with_loss
from partwise.federation.protocol.node import Node
from partwise.federation.protocol.silo import read_silo
from partwise.records.wire import unpack_tree
from partwise.reporting.tables import one_run
from partwise.rounds.acceptance import accept_updates
from partwise.rounds.messages import Request, Updates
from partwise.rounds.mixing import Copies
from partwise.runs.config import make_config
from partwise.runs.folder import RunFolder
from partwise.runs.simulation import mean_loss
from tests.support.nodes import InProcess, members, silos
from tests.support.runs import awkward_federation

HOSTED = [[0, 2], [1], [3]]
SIZES = (1, 6, 9, 11)
SETTINGS = {"rounds": 2, "lr": 0.05, "batch": 4, "dtype": "float64", "model": "mlp-100", "threads": 1, "eval_every": 1}
NOISE = {"upload_clip": 1.0, "upload_noise": 1000.0}
NOISE_ON_GRADIENTS = {"dp_clip": 1.0, "dp_noise": 1000.0}
USUAL = {"loss": "no", "scores": None}  # what a silo's file says of them where it says nothing


def ready(folder, method="fedavg", federation=None, name="a-run", settings=(), **allow):
    """A run over three nodes, ready for round 0."""
    own = silos(federation or awkward_federation(SIZES), folder, HOSTED, **allow)
    config = make_config(method, {**SETTINGS, **dict(settings)})
    link = InProcess({name: Node(silo) for name, silo in own.items()})
    return federated(config, members(link, config, name))


def loss_of(simulation):
    return simulation.history.rows[-1]["train_loss"]


# ---- the attack


def reading(simulation, pixel):
    """A request of client 0 for the loss of a made-up network, whose first logit is 1 + a pixel and the others 0."""
    server = simulation.server
    copies = {name: Copies(torch.zeros_like(each.values)) for name, each in server.copies.items()}
    weight, bias, *_ = (name for name in copies if name.startswith("body"))
    head = next(name for name in copies if name.startswith("head") and copies[name].values.dim() == 3)
    copies[weight].values[0, 0, pixel] = 1
    copies[bias].values[0, 0] = 1
    copies[head].values[0, 0, 0] = 1
    return replace(server.request("train", [0]), copies=copies, rate=0.0)


def test_fault_63_a_made_up_network_reads_a_pixel_from_the_exact_loss_and_nothing_by_default(tmp_path):
    """Cross-entropy of the logits (u, 0, 0, 0) is log(e^u + 3) - u of class 0, and log(e^u + 3) of another."""
    federation, pixel = awkward_federation(SIZES), 9
    [sample] = federation.train[0].tolist()
    true = (float(federation.source.x[sample].flatten()[pixel]) - 127.5) / 127.5
    exact = ready(tmp_path / "exact")
    loss = float(exact.engine.run(reading(exact, pixel)).loss)
    label = int(federation.source.y[sample])
    read = -math.log((math.exp(loss) - 1) / 3) if label == 0 else math.log(math.exp(loss) - 3)
    assert read - 1 == pytest.approx(true, abs=1e-9)
    usual = ready(tmp_path / "usual", **USUAL)
    assert usual.engine.run(reading(usual, pixel)).loss.isnan().all()


def another_patient(federation, client):
    """The same federation, in which one training sample and one test sample of a client are another's."""
    x = federation.source.x.clone()
    for own in (federation.train[client], federation.test[client]):
        x[own[0]] = 255 - x[own[0]]
    return replace(federation, source=replace(federation.source, x=x))


def without_noise(simulation, lr=0.05):
    """All that node n1 answers to a training and an evaluation with a made-up network, but for tensors with noise."""
    server, link = simulation.server, simulation.engine.nodes.link
    random = torch.Generator().manual_seed(3)
    for name, copies in server.copies.items():
        server.copies[name] = Copies(3 * torch.randn(copies.values.shape, generator=random, dtype=torch.float64))
    simulation.engine.run(replace(server.request("train", [1], evaluate=True), rate=lr / 0.05))
    simulation.engine.run(server.request("predict", [1], evaluate=True))
    answers = [unpack_tree(answer) for _, message, answer in link.sent if unpack_tree(message)["kind"] == "request"]
    for answer in answers:
        assert all(value.isfinite().all() for value in answer["updates"].pop("parts").values())
    return str(answers)


@pytest.mark.parametrize("lr", [0.05, 1e300], ids=["", "that diverge"])
@pytest.mark.parametrize("on", ["uploads", "gradients"])
def test_fault_63_under_noise_two_silos_that_differ_in_a_patient_answer_the_same(on, lr, tmp_path):
    """Whatever the server sends: only tensors with noise depend on the patient, be it by a client that diverges."""
    federation = awkward_federation(SIZES, tested=5)
    both = {"one": federation, "other": another_patient(federation, 1)}
    noise, least = (NOISE, "least_noise") if on == "uploads" else (NOISE_ON_GRADIENTS, "least_dp_noise")
    closed = {**USUAL, least: 1000.0}
    seen = [
        without_noise(ready(tmp_path / name, federation=each, settings=noise, **closed), lr)
        for name, each in both.items()
    ]
    assert seen[0] == seen[1] and "'withheld': tensor([True])" in seen[0] and "'finite': tensor([True])" in seen[0]
    exact = [without_noise(ready(tmp_path / f"open-{name}", federation=each)) for name, each in both.items()]
    assert exact[0] != exact[1]


# ---- the policy


def test_fault_63_a_loss_leaves_exact_rounded_or_not_at_all(tmp_path):
    seen = {how: loss_of(ready(tmp_path / how, loss=how).run()) for how in ("exact", "rounded", "no")}
    assert seen["no"] is None
    assert 0 < abs(seen["rounded"] - seen["exact"]) < 0.005
    values = torch.tensor([1.23456, 0.00123456, 98765.4], dtype=torch.float64)
    assert round_losses(values).tolist() == [1.23, 0.00123, 98800.0]


def test_the_mean_loss_is_of_those_who_tell_it(tmp_path):
    every, some = ready(tmp_path / "every"), ready(tmp_path / "some")
    node = some.engine.nodes.link.nodes["n1"].run
    node.silo = replace(node.silo, allow=replace(node.silo.allow, loss="no"))
    told = every.engine.run(every.server.request("train", [0, 1, 2, 3])).loss
    some.server.step()
    [(_, updates)] = some.server.asked
    assert mean_loss([updates]) == pytest.approx(float(told[[0, 2, 3]].mean()), abs=1e-12)


def test_fault_63_scores_leave_exact_rounded_or_not_at_all_and_never_of_few_samples(tmp_path):
    """Three test samples each: an accuracy is a third, and 0.333 of three digits."""
    seen = {how: ready(tmp_path / how, scores=how).run() for how in ("exact", "rounded", "no")}
    scores = {how: run.history.scores.get("received", {}) for how, run in seen.items()}
    assert scores["no"] == {} and sorted(scores["exact"]) == [0, 1, 2, 3]
    for client, score in scores["rounded"].items():
        assert score.accuracy == round(scores["exact"][client].accuracy, 3)
        assert score.ece == round(scores["exact"][client].ece, 3) != scores["exact"][client].ece
    few = ready(tmp_path / "few", min_test_samples=4).run()
    assert few.history.scores.get("received", {}) == {}
    several = awkward_federation(SIZES, tested=4)
    enough = ready(tmp_path / "enough", federation=several, min_test_samples=4).run()
    assert sorted(enough.history.scores["received"]) == [0, 1, 2, 3]


@pytest.mark.parametrize("noise", [NOISE, {"dp_clip": 1.0, "dp_noise": 1.0}], ids=["uploads", "gradients"])
def test_fault_63_under_noise_scores_leave_only_where_a_silo_says_so(noise, tmp_path):
    usual = ready(tmp_path / "usual", settings=noise, **USUAL).run()
    assert "received" not in usual.history.scores and loss_of(usual) is None
    said = ready(tmp_path / "said", settings=noise, loss="no", scores="rounded").run()
    assert sorted(said.history.scores["received"]) == [0, 1, 2, 3]


@pytest.mark.parametrize("demand", ["least_noise = 1", "least_dp_noise = 1", "most_epsilon = 8"])
@pytest.mark.parametrize("what", ['loss = "rounded"', 'scores = "exact"'])
def test_fault_63_a_file_that_demands_noise_and_tells_without_noise_is_refused(what, demand, tmp_path):
    path, first = tmp_path / "silo.toml", 'name = "Graz"\n[data]\ndata = "digits"\n[allow]\n'
    path.write_text(f"{first}{demand}\n{what}\n")
    name = what.split()[0]
    with pytest.raises(ConfigError, match=f"{name} = .* leaves without noise, .* demands noise: leave out {name}"):
        read_silo(path)
    path.write_text(f'{first}{demand}\nloss = "no"\n')
    assert read_silo(path).allow.telling("scores", make_config("fedavg", {}).privacy) == "no"


def test_what_a_file_does_not_say_is_open_for_simulated_clients_alone(tmp_path):
    path, privacy = tmp_path / "silo.toml", make_config("fedavg", {}).privacy
    path.write_text('name = "left"\nhosts = "0-9"\n[allow]\nmin_batch = 4\n')
    allow = read_silo(path).allow
    assert (allow.telling("loss", privacy), allow.telling("scores", privacy)) == ("exact", "exact")
    assert (allow.min_batch, allow.min_test_samples, allow.min_clients, allow.relay) == (4, 1, 1, True)
    path.write_text('name = "Graz"\n[data]\ndata = "digits"\n')
    allow = read_silo(path).allow
    assert (allow.telling("loss", privacy), allow.telling("scores", privacy)) == ("no", "rounded")
    assert (allow.min_batch, allow.min_test_samples, allow.min_clients, allow.relay) == (8, 20, 2, False)
    for line, said in (("most_rounds = 0", "at least 1"), ('loss = "rouned"', "did you mean 'rounded'")):
        path.write_text(f'name = "Graz"\n[data]\ndata = "digits"\n[allow]\n{line}\n')
        with pytest.raises(ConfigError, match=said):
            read_silo(path)


def test_fault_63_a_run_that_asks_for_scores_is_refused_where_they_stay(tmp_path):
    line = r"n0 keeps its scores \(\[allow\] scores\), and moment = adapted needs them: leave out moment"
    with pytest.raises(PartwiseError, match=line):
        ready(tmp_path, settings={"moment": "adapted"}, scores="no")


# ---- what the server makes of it


def test_fault_63_a_run_in_which_no_silo_tells_scores_ends_with_a_table_that_says_so(tmp_path):
    simulation = ready(tmp_path / "nodes", loss="no", scores="no")
    result = RunFolder(tmp_path / "run", simulation.config).record(simulation)
    table = one_run(result.summary).to_text()
    assert "no scores: no silo lets scores of its test samples leave; see scores in its [allow] table" in table
    rows = (tmp_path / "run" / "clients.csv").read_text().splitlines()
    assert rows[0].split(",")[7] == "received" and {row.split(",")[7] for row in rows[1:]} == {""}
    assert [row["received"] for row in result.metrics] == [{"clients": 0}] * 2


def test_fault_63_a_loss_that_is_withheld_still_says_that_it_is_not_finite():
    """Of two clients the first has an infinite loss; noise on uploads covers even that."""
    ones, loss = torch.ones(2), torch.tensor([torch.inf, 1.0])
    updates = Updates([0, 1], 0, ones, ones, loss, {}, {}, finite=torch.tensor([True, True]))
    request = Request("train", None, 0, [0, 1], {})
    kept = with_loss(updates, "no", covered=False)
    assert kept.loss.isnan().all() and kept.finite.tolist() == [False, True]
    assert accept_updates(kept, request, {}, torch.tensor([1, 1]))[0].clients == [1]
    assert with_loss(updates, "no", covered=True).finite.tolist() == [True, True]


def test_fault_63_a_client_that_diverged_is_left_out_though_its_loss_is_withheld(tmp_path):
    """Law: whoever the simulation refuses is refused, and the others' updates are used."""
    federation = awkward_federation(SIZES)
    x = federation.source.x.float()
    x[federation.train[2]] = float("nan")
    federation = replace(federation, source=replace(federation.source, x=x))
    run = ready(tmp_path, federation=federation, settings={"allow_nonfinite_data": True}, loss="no").run()
    assert [row["refused"] for row in run.history.rows] == [[2], [2]]
    assert loss_of(run) is None
