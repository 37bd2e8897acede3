"""The leak audit: what leaves, and attacks on it."""

import pytest
import torch

from partwise import cli
from partwise.privacy.attacks import count_shares, inverted, shares_from_bias, total_variation
from partwise.runs.config import make_config
from partwise.studies.audit import audited, plain_and_filtered, rebuilt_samples, shortest

DIGITS = {"data": "digits", "clients": 4, "partition": "dir:0.3", "engine": "loop", "threads": 1}


def audits(method, **settings):
    plain, filtered = plain_and_filtered(shortest(make_config(method, {**DIGITS, **settings})))
    return audited(plain), audited(filtered)


def test_one_step_of_the_bias_tells_the_labels():
    """Zero logits give every class the probability 1/4; the labels are 0, 0, 1 and 3."""
    bias, labels = torch.zeros(4, dtype=torch.float64, requires_grad=True), torch.tensor([0, 0, 1, 3])
    torch.nn.functional.cross_entropy(bias.expand(4, 4), labels).backward()
    assert shares_from_bias(-0.1 * bias.grad, 0.1, 1).tolist() == pytest.approx([0.5, 0.25, 0, 0.25])


def test_how_far_histograms_are_apart():
    assert total_variation(torch.tensor([0.5, 0.5, 0]), torch.tensor([0, 0.5, 0.5])) == 0.5
    assert count_shares(torch.tensor([3.0, 1.0])).tolist() == [0.75, 0.25] and count_shares(
        torch.zeros(2)
    ).tolist() == [0.5, 0.5]


def test_a_sample_is_found_by_its_gradient():
    """A linear layer's gradient is the outer product of the error and the sample: its direction gives the sample's."""
    x, weight = torch.tensor([[1.0, -2.0, 0.5]]).double(), torch.randn(2, 3, generator=torch.Generator().manual_seed(0))

    def gradients(guess):
        own = weight.double().requires_grad_()
        loss = torch.nn.functional.cross_entropy(guess @ own.T, torch.tensor([0]))
        return dict(zip("w", torch.autograd.grad(loss, [own], create_graph=True), strict=True))

    seen = {name: value.detach() for name, value in gradients(x).items()}
    found = inverted(gradients, seen, x.shape, 300, torch.Generator().manual_seed(1))
    assert torch.nn.functional.cosine_similarity(found, x).item() == pytest.approx(1, abs=1e-3)


def test_what_leaves_fedavg_says_the_labels_and_filters_hide_them():
    plain, filtered = audits("fedavg")
    assert {name: entry.classes for name, entry in plain.leaving.items()} == {"body": "", "head": "by its shape"}
    (attack,) = plain.rebuilt
    found, hidden = (sum(each.rebuilt[attack]) / 4 for each in (plain, filtered))
    assert attack == "change of 'head.bias'" and found < plain.blind / 2 < hidden


def test_rare_rows_leave_fedproto_and_with_filters_do_not():
    plain, filtered = audits("fedproto")
    assert set(plain.leaving) == {"prototypes"} and plain.leaving["prototypes"].classes == "a row for each"
    assert plain.leaving["prototypes"].rare > 0 == filtered.leaving["prototypes"].rare
    assert plain.rebuilt["counts in 'prototypes'"] == [0.0] * 4
    assert filtered.sent["prototypes"] < plain.sent["prototypes"]


def test_a_method_of_two_stages_is_seen_in_both():
    plain, _ = audits("fed3p2p", coordinators_a=2, coordinators_b=2)
    assert set(plain.leaving) == {"labels", "body", "filter", "head"}


def test_the_command_says_it_in_tables(capsys):
    arguments = ["audit", "fedper", "--clients", "3", "--threads", "1", "--upload-bits", "4"]
    assert cli.main(arguments) == 0
    shown = capsys.readouterr().out
    assert "filtered: upload_bits = 4" in shown and "body" in shown and "head" not in shown
    assert cli.main(["audit", "local", "--clients", "3", "--threads", "1"]) == 0
    assert capsys.readouterr().out == "local: nothing leaves a client\n"


def test_the_picture_is_of_samples_that_were_found(tmp_path, capsys):
    """Of a mini-batch of four digits at least one is as good as read from FedAvg's upload."""
    plain, _ = plain_and_filtered(shortest(make_config("fedavg", DIGITS)))
    x, found = rebuilt_samples(plain)
    alike = torch.corrcoef(torch.cat([x.flatten(1), found.flatten(1)]))[:4, 4:]
    assert alike.max() > 0.9
    path = tmp_path / "fedavg.png"
    assert cli.main(["audit", "fedavg", "--clients", "3", "--threads", "1", "--picture", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    assert cli.main(["audit", "fedproto", "--clients", "3", "--threads", "1", "--picture", str(path)]) == 2
    assert "fedproto uploads nothing of its network" in capsys.readouterr().err
