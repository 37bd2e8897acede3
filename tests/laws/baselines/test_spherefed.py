"""SphereFed: unit features against fixed orthonormal class vectors, and a fit in closed form at the end."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from partwise.methods.spherefed import Orthonormal, SphereFed
from partwise.network.parts import redraw
from partwise.network.view import Batch
from partwise.reporting.tables import leaderboard, one_run
from partwise.runs.metrics import CHANGED_AT_END
from partwise.runs.result import Result
from partwise.studies.leaderboard import standings
from partwise.tasks import Classes
from tests.support import oracle
from tests.support.runs import CLASSES, network, simulate

HEAD = "head.weight"


def test_loss_by_hand():
    """Features (3, 4) and (0, 2) become (0.6, 0.8) and (0, 1); the last row is padding."""
    net = SimpleNamespace(body=lambda x: x, head=lambda z: z @ torch.tensor([[1.0, 0, 0], [0, 1, 1]]).double())
    x = torch.tensor([[3.0, 4], [0, 2], [7, 7]], dtype=torch.float64)
    b = Batch(x, torch.tensor([1, 0, 2]), torch.arange(3) < 2, Classes.numbered(3))
    assert SphereFed().predict_global(net, x)[0].tolist() == pytest.approx([0.6, 0.8, 0.8])
    first, second = 0.6**2 + (0.8 - 1) ** 2 + 0.8**2, 1 + 1 + 1
    assert float(SphereFed().loss(net, b, None)) == pytest.approx((first + second) / 3 / 2)


def test_class_vectors_are_orthonormal_or_directions_where_there_are_too_many():
    few, many = (redraw(Orthonormal(5, classes), 1).weight for classes in (5, 7))
    assert torch.allclose(few @ few.T, torch.eye(5), atol=1e-6)
    assert torch.allclose(many.norm(dim=1), torch.ones(7)) and torch.linalg.matrix_rank(many) == 5
    assert (many @ many.T - torch.eye(7)).abs().max() < 0.99  # no two alike


def test_the_head_comes_from_the_seed_is_never_trained_and_never_sent():
    record, again, other = (
        oracle.Record("spherefed", "mlp", seed=seed, rounds=2, calibration=False) for seed in (0, 0, 1)
    )
    head = record.initial[HEAD]
    assert torch.equal(head, again.initial[HEAD]) and not torch.equal(head, other.initial[HEAD])
    assert [name for name in record.initial if name.startswith("head")] == [HEAD]  # no bias
    assert torch.allclose(head @ head.T, torch.eye(CLASSES).double(), atol=1e-6)
    assert torch.equal(record.run.server.copies[HEAD].values[0], head)
    for seen in record.rounds:
        oracle.assert_bytes(seen, 65 * 100, 65 * 100, len(seen.cohort))  # the body's
    assert not torch.equal(record.run.server.copies["body.fc1.1.bias"].values[0], record.initial["body.fc1.1.bias"])


@pytest.mark.parametrize(("settings", "ridge"), [({}, 1.0), ({"calibration_ridge": 0.25}, 0.25)])
def test_calibration_is_ridge_regression_on_the_samples_of_all(settings, ridge):
    record = oracle.Record("spherefed", "mlp", rounds=2, **settings)
    server = {name: copies.values[0] for name, copies in record.run.server.copies.items()}
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 100), nn.ReLU()).double()
    body.load_state_dict({f"1.{name}": server[f"body.fc1.1.{name}"] for name in ("weight", "bias")})
    samples = torch.cat(record.train)
    features = body(record.x[samples]).detach()
    z, y = features / features.norm(dim=1, keepdim=True), torch.eye(CLASSES, dtype=torch.float64)[record.y[samples]]
    # The gradient of |z V - y|^2 + ridge |V|^2 is zero there.
    assert (z.T @ (z @ server[HEAD].T - y) + ridge * server[HEAD].T).abs().max() < 1e-9
    received = record.logits(3, lambda x: nn.functional.normalize(body(x)) @ server[HEAD].T)
    assert torch.allclose(record.rounds[-1].predictions["received"][3], received, atol=1e-9)


def test_tables_say_that_earlier_rounds_were_tested_before_calibration():
    line = f"SphereFed {CHANGED_AT_END}"
    for calibration in (True, False):
        run = simulate("spherefed", network("mlp"), rounds=2, calibration=calibration)
        assert ["changed_at_end" in row for row in run.history.rows] == [False, calibration]
        summary = Result(run).summary
        for table in (one_run(summary), leaderboard(standings([summary]), summary)):
            assert (line in table.notes) == calibration
