"""FedBABU: rounds by hand, and its fine-tuning."""

from partwise.methods.fedbabu import FedBABU
from tests.support import oracle
from tests.support.plain import Followed


def test_three_rounds_by_hand():
    """The head neither trains nor travels."""
    run = Followed("fedbabu")
    run.assert_that_clients_share("body", phases=("body",))
    oracle.assert_copies({name: value for name, value in run.start.items() if name.startswith("head")}, run.rounds[-1])


def test_a_copy_of_everything_is_fine_tuned_at_a_rate_that_does_not_decay():
    run = Followed("fedbabu", rounds=2, lr_decay=0.5, finetune_lr=0.2, finetune_epochs=2)
    adapted = {}
    for client in range(8):
        w = run.copies(-1)
        [steps] = run.rounds[-1].evaluations["method_adapted"].batches(client)
        assert sum(step.shape[1] for step in steps) == 2 * len(run.train[client])
        for x, y in run.mini_batches(steps):
            w = run.step(w, x, y, 0.2)
        adapted[client] = run.logits(client, w)
    oracle.assert_predictions(adapted, run.rounds[-1], "method_adapted")


def test_other_parts_may_be_fine_tuned():
    assert [FedBABU(finetune_part=part).adapt().moves[0].parts for part in ("*", "head")] == ["*", "head"]
