"""The settings of local training and aggregation, which every method has."""

from dataclasses import dataclass
from typing import Literal

from partwise.client_settings import read_per_client
from partwise.options import Checked, option


@dataclass(kw_only=True)
class Training(Checked):
    """The settings of local training and aggregation, the same for every method.

    A method overrides the default of a setting only where the method itself requires it, not to match its paper.
    """

    rounds: int = option(100, "Number of rounds.", minimum=1)
    epochs: int = option(1, "Local epochs: a client's passes over its training data in a round.", minimum=1)
    batch: int = option(32, "Number of samples in a mini-batch.", minimum=1)
    per_client: str | None = option(
        None,
        "CSV file of epochs and batch for single clients, in place of the run's; columns client, epochs, batch.",
        read=read_per_client,
    )
    lr: float = option(0.01, "Learning rate of local training in the first round.", minimum=0)
    lr_schedule: Literal["constant", "step", "cosine"] = option(
        "constant",
        "Schedule of learning rates over rounds. constant: times --lr-decay a round; step: times --lr-factor every "
        "--lr-step rounds; cosine: half a cosine, nearly 0 in the last round.",
    )
    lr_decay: float = option(
        1.0,
        "Factor that multiplies the learning rate after every round.",
        above=0,
        maximum=1,
        when="lr_schedule=constant",
    )
    lr_step: int = option(
        30, "Rounds after which the step schedule lowers learning rates.", minimum=1, when="lr_schedule=step"
    )
    lr_factor: float = option(
        0.1, "Factor by which the step schedule lowers learning rates.", above=0, maximum=1, when="lr_schedule=step"
    )
    lr_warmup: int = option(
        0, "Rounds of linear warm-up, in which learning rates rise before the schedule begins.", minimum=0
    )
    momentum: float = option(
        0.0, "Momentum of SGD (AdamW: beta 1 is always 0.9).", minimum=0, below=1, when="optimizer=sgd"
    )
    weight_decay: float = option(0.0, "Weight decay: an L2 penalty with SGD, decoupled with AdamW.", minimum=0)
    optimizer: Literal["sgd", "adamw"] = option("sgd", "Optimiser of local training.")
    clip_norm: float | None = option(
        None, "Scale gradients with a larger norm down to this norm; unset: no clipping.", above=0
    )
    class_weights: Literal["equal", "balanced"] = option(
        "equal", "Weights of classes in cross-entropy; balanced: inverse to a client's number of samples of the class."
    )
    sampling: Literal["shuffled", "balanced"] = option(
        "shuffled",
        "Composition of mini-batches. shuffled: every sample once an epoch; balanced: as many random draws, each class "
        "equally likely.",
    )
    drop_last: bool = option(False, "Leave out an epoch's last mini-batch if it is incomplete.")
    persist_optimizer_state: bool = option(False, "Keep a client's optimiser state between rounds.")
    participation: float = option(
        1.0, "Fraction of clients that take part in a round.", above=0, maximum=1, when="not clients_per_round"
    )
    clients_per_round: int | None = option(
        None, "Number of clients that take part in a round; unset: --participation decides.", minimum=1
    )
    aggregation: Literal["samples", "uniform"] = option(
        "samples", "Weight of a client in a mean: its number of training samples, or the same for all."
    )
    server_optimizer: Literal["sgd", "adam"] = option(
        "sgd", "Server's optimiser, which takes the difference to the clients' mean as its gradient."
    )
    server_learning_rate: float | None = option(
        None, "Learning rate of the server's optimiser; unset: 1 with sgd (the mean itself), 0.01 with adam.", above=0
    )
    server_momentum: float | None = option(
        None, "Momentum of the server's optimiser; unset: 0 with sgd, 0.9 with adam.", minimum=0, below=1
    )
    init: Literal["common", "per_client"] = option(
        "common", "Initial values of personal parts: the same for all clients, or drawn for each."
    )
    bn_buffers: Literal["local", "average"] = option(
        "local", "Running statistics of batch-norm: kept by each client, or averaged by the server."
    )
    finetune_epochs: int = option(5, "Epochs of fine-tuning a copy before it is tested (adapted).", minimum=1)
    finetune_lr: float | None = option(
        None,
        "Learning rate of fine-tuning; unset: the learning rate of the last round, which is nearly 0 with cosine.",
        minimum=0,
    )
    finetune_part: str = option("*", "Parts to fine-tune: `head`, `body.fc1 head`, or `*` for all.")
