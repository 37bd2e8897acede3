"""What a method says: who shares each part, what trains when, on which loss, and how a client predicts.

A method is a subclass of `Method` in a file of its own, written for one client. It overrides what differs from FedAvg:

    class FedPer(Method):
        share = {"body": ALL, "head": LOCAL}

Everything else - many clients at once, graphs, seeds, bytes, metrics - lives outside and is never mentioned in it.
"""

import dataclasses
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from partwise.errors import ConfigError, first_line
from partwise.hooks import check_hooks
from partwise.options import Checked, obstacle, option, resolve

if TYPE_CHECKING:  # settings are read without torch
    from torch import Tensor

    from partwise.network.parts import Parts, Task
    from partwise.network.view import Batch, Me, Net
    from partwise.rounds.messages import Updates
    from partwise.rounds.server import Server

# --------------------------------------------------------------------------------------- who shares each part?


@dataclass(frozen=True)
class Share:
    """Who makes the next copy of a part, whether it replaces the client's own, and whether that is uploaded."""

    name: str  # as it is written
    copy: Literal["all", "group", "mix", "server"] | None  # of whom the next copy is made; None: it is never sent
    adopt: bool  # the copy replaces the client's own
    upload: bool  # the client's own is sent back

    def __repr__(self) -> str:
        return self.name

    @property
    def sent(self) -> bool:
        """The server's copy travels down every round."""
        return self.copy is not None


ALL = Share("ALL", "all", adopt=True, upload=True)  # the mean of all participants
GUIDE = Share("GUIDE", "all", adopt=False, upload=True)  # the same, but it only guides: the client keeps its own
GROUP = Share("GROUP", "group", adopt=True, upload=True)  # the mean of the participants of my group
CLOUD = Share("CLOUD", "mix", adopt=False, upload=True)  # a mix made for me alone, beside my own
SERVER = Share("SERVER", "server", adopt=True, upload=False)  # trained on the server
SERVER_GUIDE = Share("SERVER_GUIDE", "server", adopt=False, upload=False)  # the same, but the client keeps its own
LOCAL = Share("LOCAL", None, adopt=False, upload=False)  # mine, never sent
UPLOAD = Share("UPLOAD", None, adopt=False, upload=True)  # mine too, but the server sees it
FROZEN = Share("FROZEN", None, adopt=True, upload=False)  # everyone holds the common copy, nobody trains or sends it


# -------------------------------------------------------------------------------------------- what trains when?

Epochs = float | Callable[[int], float] | None  # or (rounds in which a client took part before this one) -> epochs
PerPart = float | dict[str, float | None] | None  # one number, or one for each selector; None is the run's own value


@dataclass(frozen=True)
class Move:
    """One gradient step on some parts, for every mini-batch of its phase."""

    parts: str = "*"  # selectors, separated by spaces
    loss: str | Callable = "loss"  # (net, b, me) -> a number: a method of the method by name, or a function
    gradient: str | Callable | None = None  # (net, b, me) -> gradients by full name, in place of the loss's own
    update: str | Callable | None = None  # (net, b, me) -> tensors to overwrite by full name, in place of a step
    lr: PerPart = None  # one rate, or `{"body": 0.001}` for some selectors; None: the run's own, as in those below
    momentum: PerPart = None  # the same of momentum
    weight_decay: PerPart = None  # the same of weight decay
    clip: float | None = None  # the largest norm of the gradient of all its parts together; None: the run's clip_norm
    repeat: int = 1  # this many gradient steps on the same mini-batch
    batches: int = 1  # this many disjoint mini-batches a step: `b` is then a tuple
    after: str | Callable | None = None  # (net, me) -> tensors to overwrite after each step by full name: a projection
    decay: bool = True  # a rate given here follows the run's decay, as the run's own rate does


@dataclass(frozen=True, init=False)
class Phase:
    """Some epochs (or steps) of local training; each mini-batch goes through every move in turn."""

    moves: tuple[Move, ...]  # at least one
    epochs: Epochs  # passes over the samples, or (rounds a client took part in before) -> passes; None: the run's
    steps: int | None  # so many mini-batches instead, the same for every client
    mode: Literal["train", "eval"]  # of dropout and batch-norm
    of: tuple[float, float]  # of the client's samples, in an order drawn once: (0.8, 1) is the last fifth
    before: str | Callable | None  # (net, me) -> tensors to overwrite by full name, as the phase begins
    after: str | Callable | None  # the same as it ends
    restart_optimizer: bool  # momentum starts at 0 again as the phase begins; False: it goes on within a round

    def __init__(
        self,
        *moves: Move,
        epochs: Epochs = None,
        steps: int | None = None,
        mode: Any = "train",
        of: tuple[float, float] = (0.0, 1.0),
        before: str | Callable | None = None,
        after: str | Callable | None = None,
        restart_optimizer: bool = False,
    ):
        wrong = [move for move in moves if not isinstance(move, Move)]
        if wrong:
            raise ConfigError(f"a Phase is made of moves, Phase(Move('head'), ...), not of {wrong[0]!r}")
        few = (not callable(epochs) and (epochs or 0) < 0) or (steps or 0) < 0
        if not moves or (epochs is not None and steps is not None) or few:
            raise ConfigError("a Phase takes at least one Move, and epochs or steps of at least 0, not both")
        if not 0 <= of[0] < of[1] <= 1:
            raise ConfigError(f"a Phase goes through a share of the samples, of=(0.8, 1), not of={of}")
        own = {
            "moves": moves,
            "epochs": epochs,
            "steps": steps,
            "mode": mode,
            "of": of,
            "before": before,
            "after": after,
            "restart_optimizer": restart_optimizer,
        }
        for name, value in own.items():
            object.__setattr__(self, name, value)

    @property
    def batches(self) -> int:
        return max(move.batches for move in self.moves)


def train(parts: str = "*", loss: str | Callable = "loss") -> Phase:
    """One phase of one move over the run's local epochs: what most methods do."""
    return Phase(Move(parts, loss))


Grouping = Callable[["Server"], Iterable[int]]  # (server) -> the group of every client, 0 .. groups-1


@dataclass(frozen=True)
class Relay:
    """Within a group the model goes from client to client; the groups' results are averaged.

    The share of participants is one of whole groups, of the clients `within` every group, or of all `clients`, who are
    then grouped anew in every round: `groups(server)` is asked with `server.cohort` set.
    """

    groups: Grouping  # (server) -> the group of every client
    sample: Literal["groups", "within", "clients"] = "groups"  # the population that `participation` is a fraction of


@dataclass(frozen=True)
class WithinGroups:
    """The participants are spread over the groups in proportion to their sizes, at least one in each."""

    groups: Grouping  # (server) -> the group of every client, numbered from 0 without gaps
    sample = "within"


@dataclass(frozen=True)
class Stage:
    """A stretch of rounds with one plan."""

    phases: Phase | Iterable[Phase]  # what a client does in a round, one after the other
    share: dict[str, Share]  # selector -> share; the later entry wins
    rounds: int  # how many; those of all stages together are the run's
    cohort: Relay | WithinGroups | None = None  # None: a random sample of all clients
    fresh: str = ""  # parts drawn anew as the stage begins: one draw for each copy that exists
    snapshot: str = ""  # keeps the server's parts under this name as the stage ends: the global model from then on
    restart_lr: bool = False  # the decay of the learning rate starts again
    report: bool = True  # `report` runs after every training, where a method has one; False: only in run("report", ...)
    predict: str | Callable = "predict"  # (net, x, me) -> logits: how clients are tested in this stage


EVERYONE = "everyone"  # all clients that have training samples: `run("report", EVERYONE)`


# ------------------------------------------------------------------------------------------------- the method


@dataclass(kw_only=True)
class Training(Checked):
    """How clients train: the settings of the run, the same for every method.

    A method brings another default only where that is the method itself, not what its paper happened to use.
    """

    rounds: int = option(100, "Rounds of the run.", minimum=1)
    epochs: int = option(1, "Passes over its training data that a client makes in a round.", minimum=1)
    batch: int = option(32, "Samples in a mini-batch.", minimum=1)
    lr: float = option(0.01, "Learning rate of round 0.", minimum=0)
    lr_decay: float = option(1.0, "Factor on the learning rate after every round.", above=0, maximum=1)
    momentum: float = option(0.0, "Momentum of SGD (beta 1 of AdamW is 0.9).", minimum=0, below=1, when="optimizer=sgd")
    weight_decay: float = option(0.0, "L2 penalty added to the gradient (AdamW: decoupled).", minimum=0)
    optimizer: Literal["sgd", "adamw"] = option("sgd", "Local optimiser.")
    clip_norm: float | None = option(None, "Largest norm of a gradient; larger ones are scaled down.", above=0)
    class_weights: Literal["equal", "balanced"] = option(
        "equal", "Weight of a class in cross-entropy; balanced: inverse to a client's samples of it."
    )
    sampling: Literal["shuffled", "balanced"] = option(
        "shuffled", "Mini-batches: every sample once an epoch, or as many draws, every class as likely as the others."
    )
    drop_last: bool = option(False, "Leave out the last, incomplete mini-batch of an epoch.")
    persist_optimizer_state: bool = option(False, "Keep momentum from a client's round to its next one.")
    participation: float = option(
        1.0, "Share of the clients that take part in a round.", above=0, maximum=1, when="not clients_per_round"
    )
    clients_per_round: int | None = option(None, "Number of participants, instead of their share.", minimum=1)
    aggregation: Literal["samples", "uniform"] = option("samples", "Weight of a client in a mean.")
    server_optimizer: Literal["sgd", "adam"] = option("sgd", "The server's step towards that mean.")
    server_learning_rate: float | None = option(
        None, "Learning rate of that step (unset: 1, the mean itself; with adam 0.01).", above=0
    )
    server_momentum: float | None = option(None, "Momentum of that step (unset: 0; with adam 0.9).", minimum=0, below=1)
    init: Literal["common", "per_client"] = option("common", "Parts of a client's own: one common draw, or one each.")
    bn_buffers: Literal["local", "average"] = option("local", "Running values of batch-norm: kept, or averaged.")
    finetune_epochs: int = option(5, "Epochs of fine-tuning, on a copy, before a client is tested.", minimum=1)
    finetune_lr: float | None = option(None, "Learning rate of fine-tuning; unset: that of the last round.", minimum=0)
    finetune_part: str = option("*", "Parts that are fine-tuned: `head`, `body.fc1 head`, `*` (all).")


@dataclass(kw_only=True)
class Method(Training):
    """The four answers. The base class is FedAvg; override what differs. Fields become options of the command line."""

    share = {"*": ALL}
    pooled = False  # all training samples in one place, as if there were no federation: the reference `central`

    def __init_subclass__(cls, **keywords: Any) -> None:
        """A subclass is a dataclass: `pull: float = option(1.0, "A sentence.")` is an option, `lr = 0.1` a default."""
        super().__init_subclass__(**keywords)
        if "__init__" in vars(cls):  # it would take the place of the one that takes the options
            raise ConfigError(
                f"{first_line(cls.__init__)}{cls.__name__}.__init__ is not for a method: its options are fields, and "
                "what follows from them is made in __post_init__, after super().__post_init__()"
            )
        own = inspect.get_annotations(cls)
        for field in dataclasses.fields(cls):  # still those of the base class
            if field.name in cls.__dict__ and field.name not in own:
                cls.__annotations__ = own = {**own, field.name: field.type}
                if not isinstance(cls.__dict__[field.name], dataclasses.Field):
                    plain = dataclasses.field(default=cls.__dict__[field.name], metadata=field.metadata)
                    setattr(cls, field.name, plain)
        dataclasses.dataclass(kw_only=True)(cls)
        resolve(cls)

    def __post_init__(self) -> None:
        check_hooks(type(self), Method)  # type: ignore[arg-type]  # mypy does not see that a class can be hashed
        super().__post_init__()

    @classmethod
    def variant(cls, settings: dict[str, Any]) -> "type[Method]":
        """The class that these settings ask for, where one of them chooses it."""
        return cls

    def check(self, clients: int) -> None:
        """Refuse, with a ConfigError, settings that so many clients cannot carry out; asked before anything begins.

        Here: options that are `up_to_clients` and have an effect.
        """
        groups = [field for field in dataclasses.fields(self) if field.metadata.get("up_to_clients")]
        used = {field.name: getattr(self, field.name) or 0 for field in groups if not obstacle(field, vars(self))}
        over = [f"{name} = {number}" for name, number in used.items() if number > clients]
        if over:
            raise ConfigError(*(f"{each} is more than the {clients} clients" for each in over))

    def build(self, parts: "Parts", task: "Task") -> "Parts":
        """The parts that the method works on: the model's own, and what it cuts, copies or adds."""
        return parts

    def stages(self) -> Iterable[Stage]:
        """The stretches of the run; one, unless the method says otherwise."""
        yield Stage(self.phases(), share=self.share, rounds=self.rounds)

    def prepare(self) -> Phase | Iterable[Phase] | None:
        """Phases between download and training; they also come before every test, then on a throw-away copy."""
        return None

    def phases(self) -> Phase | Iterable[Phase]:
        """What a client does in a round."""
        return train("*")

    def loss(self, net: "Net", b: "Batch", me: "Me") -> "Tensor":
        """A pure function of one client's parts and one mini-batch."""
        return b.ce(net(b.x))

    def predict(self, net: "Net", x: "Tensor", me: "Me") -> "Tensor":
        """Logits of the client's own model."""
        return net(x)

    def predict_global(self, net: "Net", x: "Tensor") -> "Tensor":
        """Logits of the global model on the server's parts; `predict_global = None` where there is none."""
        return net(x)

    def adapt(self) -> Phase | Iterable[Phase] | None:
        """Phases that run on a throw-away copy of what a client holds after download, before it is tested.

        For methods whose paper adapts in a way of its own: fine-tuning that is the same for all needs nothing here.
        """
        return None

    # ---- client hooks: all a client may read is `net`, its batches and `me`

    def keep(self, net: "Net") -> "dict[str, Tensor]":
        """What `me.keep` holds before a client's first round: a flat dict of tensors."""
        return {}

    def start(self, net: "Net", me: "Me") -> "dict[str, Tensor]":
        """Tensors to overwrite right after download."""
        return {}

    def correct(self, grads: "dict[str, Tensor]", net: "Net", me: "Me") -> "dict[str, Tensor]":
        """Return the gradients that the optimiser takes; clipping, weight decay and momentum come after it.

        It acts in local training, not in fine-tuning or in what `adapt` returns.
        """
        return grads

    def finish(self, net: "Net", me: "Me") -> "tuple[dict[str, Tensor], dict[str, Any]]":
        """The new `me.keep`, and extras to upload, after local training."""
        return me.keep, {}

    def report(self, net: "Net", b: "Batch", me: "Me") -> dict[str, Any]:
        """Extras to upload, summed over the batches of the training set, in evaluation mode.

        It runs after every training too, unless the stage says `report=False`.
        """
        return {}

    def describe(self, b: "Batch") -> dict[str, Any]:
        """Extras about the client's training samples, all of them in one batch, for `run("describe", who)`.

        It sees no network, and runs for one client at a time without padding: anything that torch can do goes. `b.raw`
        holds the samples as they are stored, not normalised: pixels from 0 to 255.
        """
        return {}

    # ---- server hooks: `run("train", "report" or "describe", who)` is the only way from here to the clients

    def begin(self, server: "Server", run: Callable) -> None:
        """Before the first round, and before the first stage asks for groups."""

    def admit(self, server: "Server", newcomers: list[int]) -> None:
        """After the last round, clients join that have the numbers behind all others: make room in `server.memory`."""

    def groups(self, server: "Server") -> Iterable[int]:
        """The group of every client, for parts shared as GROUP in a stage whose cohort names no groups."""
        raise ConfigError(f"{type(self).__name__} shares a part as GROUP and must say groups(server)")

    def down(self, server: "Server") -> dict[str, Any]:
        """Extras that clients receive; a `PerClient` has a row for each of `server.receivers`.

        It is asked for every download, those of an evaluation too but not of `run("report", ...)`, and changes nothing.
        """
        return {}

    def round(self, server: "Server", run: Callable) -> None:
        """One round: the cohort trains, the server mixes what comes back."""
        server.mix(run("train", server.cohort))

    def mix(self, server: "Server", updates: "Updates") -> "Tensor | dict[str, Tensor] | None":
        """The mixing matrix of everything uploaded, or one for each selector; what has none gets the mean.

        It is (copies, participants); a row sums to 1, or is empty: that copy stays as it is.
        """
        return None

    def aggregate(self, server: "Server", updates: "Updates") -> None:
        """After the mixing: `server["*"]` is new already. Train or set the server's own parts, fill `server.memory`."""

    def end(self, server: "Server", run: Callable) -> None:
        """After the last round."""
