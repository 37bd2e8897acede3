"""The accountant: Opacus' numbers, and what a run counts for them."""

import logging
import subprocess
import sys

import pytest
import torch

from partwise.errors import DataError
from partwise.privacy import accountant
from partwise.privacy.accountant import MEMORY, epsilon
from tests.support.runs import awkward_federation, network, simulate

pytest.importorskip("opacus")


def test_the_figure_that_is_known():
    """RDP at a sampling rate of 0.1, noise 1, 100 steps, delta 1e-5; the other accountant is tighter."""
    assert epsilon("rdp", {(1.0, 0.1): 100}, 1e-5) == pytest.approx(7.899, abs=5e-4)
    assert 6.5 < epsilon("prv", {(1.0, 0.1): 100}, 1e-5) < 7.899


def test_it_is_opacus_own():
    rdp = accountant.opacus().RDPAccountant()
    for noise, rate, steps in ((1.1, 0.25, 7), (0.8, 1.0, 3), (1.1, 0.25, 2)):
        for _ in range(steps):
            rdp.step(noise_multiplier=noise, sample_rate=rate)
    assert epsilon("rdp", {(1.1, 0.25): 9, (0.8, 1.0): 3}, 1e-6) == pytest.approx(rdp.get_epsilon(1e-6), rel=1e-12)
    assert epsilon("rdp", {(1.0, 0.5): 0}, 1e-5) == 0


def test_importing_it_leaves_everybodys_log_alone():
    code = (
        "import logging; from partwise.privacy.accountant import opacus; opacus(); print(logging.getLogger().handlers)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_clients_uploads_are_counted():
    """Four of eight clients in each of three rounds; whoever took part most often did so that often."""
    run = simulate("fedavg", network("mlp"), rounds=3, participation=0.5, upload_clip=1.0, upload_noise=2.0)
    most = int(run.server.times.max())
    for row in run.history.rows:
        assert row["epsilon"]["client"] == epsilon("rdp", {(2.0, 0.5): row["round"]}, 1e-5)
    assert run.history.rows[-1]["epsilon"]["client_unsampled"] == epsilon("rdp", {(2.0, 1.0): most}, 1e-5)
    [note] = [note for note in run.notes if note.startswith("privacy of a client's data: (epsilon, delta) = (")]
    assert "1e-05" in note


def test_what_is_told_before_the_first_round_counts():
    """FedFCD's class means go up before the first round, of everybody, and after every round."""
    settings = {"participation": 0.5, "upload_clip": 1.0, "upload_noise": 2.0, "histograms": "laplace:0.5"}
    run = simulate("fedfcd", network("mlp"), rounds=2, **settings)
    spent, most = run.history.rows[-1]["epsilon"], int(run.server.times.max())
    assert spent["client"] == epsilon("rdp", {(2.0, 0.5): 2, (2.0, 1.0): 1}, 1e-5)
    assert spent["labels"] == 0.5 * (1 + most)


def test_hops_of_a_relay_are_one_upload_of_each_client():
    settings = {"coordinators_a": 2, "coordinators_b": 2, "rounds_1": 2, "rounds_2": 1}
    run = simulate("fed3p2p", network("mlp of two layers"), upload_clip=1.0, upload_noise=2.0, **settings)
    assert run.server.memory[MEMORY]["rates"].tolist() == [1.0, 1.0, 1.0]
    assert run.server.memory[MEMORY]["uploads"].tolist() == [3] * 8


def test_uses_of_a_record_are_counted():
    """The smallest client has one sample, less than a mini-batch of 8: an epoch is a step that surely holds it."""
    run = simulate("fedrep", network("mlp"), rounds=2, dp_clip=1.0, dp_noise=2.0, head_epochs=2, body_epochs=3)
    [uses] = run.server.accountant.uses
    assert (uses.steps, uses.rate, uses.passes) == (5, 1.0, 5)  # two epochs on the head, three on the body
    assert run.history.rows[-1]["epsilon"]["record_unsampled"] == epsilon("rdp", {(2.0, 1.0): 10}, 1e-5)


def test_steps_of_larger_clients_are_counted_at_their_rate():
    run = simulate(
        "fedavg", network("mlp"), awkward_federation((20, 31)), rounds=2, dp_clip=1.0, dp_noise=2.0, epochs=3
    )
    [uses] = run.server.accountant.uses
    assert (uses.steps, uses.rate, uses.passes) == (9, 8 / 20, 3)  # 8, 8 and 4 samples, three times
    assert run.history.rows[-1]["epsilon"]["record"] == epsilon("rdp", {(2.0, 0.4): 18}, 1e-5)


def test_going_back_to_the_best_round_gives_nothing_back():
    federation = awkward_federation(validated=3)
    settings = {"rounds": 8, "patience": 2, "lr": 0.0, "upload_clip": 1e-6, "upload_noise": 1.0}
    run = simulate("fedavg", network("mlp"), federation, **settings)
    assert run.history.rows[-1]["restored"] < len(run.history.rows)
    uploads = run.server.memory[MEMORY]["uploads"]
    assert torch.equal(uploads, torch.full_like(uploads, len(run.history.rows)))


def test_without_opacus_a_run_with_noise_is_refused_before_it_begins(monkeypatch):
    monkeypatch.setitem(sys.modules, "opacus.accountants", None)
    with pytest.raises(DataError, match=r"pip install 'partwise\[privacy\]'"):
        simulate("fedavg", network("mlp"), upload_clip=1.0, upload_noise=1.0)
    simulate("fedavg", network("mlp"), rounds=1, upload_clip=1.0, histograms="laplace:1")


def test_without_noise_nothing_is_told(caplog):
    with caplog.at_level(logging.WARNING):
        run = simulate("fedavg", network("mlp"), rounds=1, upload_clip=1.0, dp_clip=1.0)
    assert "epsilon" not in run.history.rows[0] and not [note for note in run.notes if "epsilon" in note]
    assert MEMORY not in run.server.memory and "epsilon" not in caplog.text


def test_what_is_not_covered_is_said():
    run = simulate("fedproto", network("mlp"), rounds=1, upload_clip=1.0, upload_noise=1.0, dp_clip=1.0, dp_noise=1.0)
    assert said(run) == (
        "not covered by epsilon: training losses, scores, sample counts, label counts (histograms = laplace:EPSILON "
        "adds noise), for a record, what fedproto computes beside training"
    )
    plain = simulate("fedavg", network("mlp"), rounds=1, dp_clip=1.0, dp_noise=1.0)
    assert said(plain) == "not covered by epsilon: training losses, scores, sample counts"


def said(run):
    [line] = [note for note in run.notes if note.startswith("not covered")]
    return line


def test_fault_65_a_run_lists_what_its_epsilon_does_not_cover():
    noisy = simulate("fedavg", network("mlp"), rounds=1, upload_clip=1.0, upload_noise=1.0)
    assert said(noisy) == "not covered by epsilon: training losses, scores, sample counts"
    labels = simulate("fedproto", network("mlp"), rounds=1, histograms="laplace:1")
    assert said(labels) == "not covered by epsilon: uploads, training losses, scores, sample counts"
