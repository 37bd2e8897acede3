"""The base class of methods: who shares each part, what trains when, on which loss, and how a client predicts.

A method is a subclass of `Method` in its own file, written for one client. It overrides what differs from FedAvg:

    class FedPer(Method):
        share = {"body": ALL, "head": LOCAL}

Everything else - many clients at once, graphs, seeds, bytes, metrics - is done outside the method.
"""

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from partwise.errors import ConfigError, first_line
from partwise.hooks import check_hooks
from partwise.options import check_option_types, obstacle
from partwise.training import Training

if TYPE_CHECKING:  # settings are read without torch
    from torch import Tensor

    from partwise.network.parts import Parts, Sizes
    from partwise.network.view import Batch, Extras, Me, Net, PerClient, Tree
    from partwise.rounds.messages import Updates
    from partwise.rounds.server import Server
    from partwise.trees import Samples

# --------------------------------------------------------------------------------------- who shares each part?


@dataclass(frozen=True)
class Share:
    """How a part is shared: what its next copy is made of, whether clients adopt the copy, and whether they upload."""

    name: str  # as users write it
    copy: Literal["all", "group", "mix", "server"] | None  # what the next copy is made of; None: it is never sent
    adopt: bool  # the received copy replaces the client's own part
    upload: bool  # the client sends its own part to the server

    def __repr__(self) -> str:
        return self.name

    @property
    def sent(self) -> bool:
        """Return whether clients download the server's copy every round."""
        return self.copy is not None


ALL = Share("ALL", "all", adopt=True, upload=True)  # the mean of all participants
GUIDE = Share("GUIDE", "all", adopt=False, upload=True)  # the same mean, received beside the client's own part
GROUP = Share("GROUP", "group", adopt=True, upload=True)  # the mean of the participants of the client's group
MIXED_GUIDE = Share("MIXED_GUIDE", "mix", adopt=False, upload=True)  # a mix for one client, beside its own part
SERVER = Share("SERVER", "server", adopt=True, upload=False)  # trained on the server
SERVER_GUIDE = Share("SERVER_GUIDE", "server", adopt=False, upload=False)  # the same, beside the client's own part
LOCAL = Share("LOCAL", None, adopt=False, upload=False)  # the client's own, never sent
UPLOAD = Share("UPLOAD", None, adopt=False, upload=True)  # the client's own, and the server receives it
FROZEN = Share("FROZEN", None, adopt=True, upload=False)  # one common copy, never trained or sent


# -------------------------------------------------------------------------------------------- what trains when?

Epochs = float | Callable[[int], float] | None  # or (rounds in which a client took part before this one) -> epochs
PerPart = float | dict[str, float | None] | None  # one number, or one for each selector; None is the run's own value


@dataclass(frozen=True)
class Move:
    """One gradient step on some parts, for every mini-batch of its phase."""

    parts: str = "*"  # selectors, separated by spaces
    loss: str | Callable = "loss"  # (net, b, me) -> a number: the name of one of the class's methods, or a function
    gradient: str | Callable | None = None  # (net, b, me) -> gradients by full name, in place of the loss's own
    update: str | Callable | None = None  # (net, b, me) -> tensors to overwrite by full name, in place of a step
    lr: PerPart = None  # one rate, or `{"body": 0.001}` for some selectors; None: the run's own, as in those below
    momentum: PerPart = None  # the same of momentum
    weight_decay: PerPart = None  # the same of weight decay
    clip: float | None = None  # the largest norm of the gradient of all its parts together; None: the run's clip_norm
    repeat: int = 1  # this many gradient steps on the same mini-batch
    batches: int = 1  # this many disjoint mini-batches a step: `b` is then a tuple
    after: str | Callable | None = None  # (net, me) -> tensors to overwrite after each step by full name: a projection
    decay: bool = True  # a rate given here follows the run's schedule, as the run's own rate does


@dataclass(frozen=True, init=False)
class Phase:
    """Some epochs (or steps) of local training: for each mini-batch, every move makes its step in turn."""

    moves: tuple[Move, ...]  # at least one
    epochs: Epochs  # passes over the samples, or (rounds a client took part in before) -> passes; None: the run's
    steps: int | None  # number of mini-batches, in place of epochs; the same for every client
    mode: Literal["train", "eval"]  # of dropout and batch-norm
    sample_range: tuple[float, float]  # part of a client's samples, in an order drawn once: (0.8, 1) is the last fifth
    before: str | Callable | None  # (net, me) -> tensors to overwrite by full name, as the phase begins
    after: str | Callable | None  # the same as it ends
    restart_optimizer: bool  # momentum starts at 0 again as the phase begins; False: it goes on within a round

    def __init__(
        self,
        *moves: Move,
        epochs: Epochs = None,
        steps: int | None = None,
        mode: Any = "train",
        sample_range: tuple[float, float] = (0.0, 1.0),
        before: str | Callable | None = None,
        after: str | Callable | None = None,
        restart_optimizer: bool = False,
    ):
        wrong = [move for move in moves if not isinstance(move, Move)]
        if wrong:
            raise ConfigError(f"a Phase takes moves, as in Phase(Move('head')), not {wrong[0]!r}")
        few = (not callable(epochs) and (epochs or 0) < 0) or (steps or 0) < 0
        if not moves or (epochs is not None and steps is not None) or few:
            raise ConfigError("a Phase takes at least one Move, and either epochs or steps of at least 0, not both")
        if not 0 <= sample_range[0] < sample_range[1] <= 1:
            raise ConfigError(
                f"sample_range={sample_range} is no range of samples; give two fractions, as in sample_range=(0.8, 1)"
            )
        own = {
            "moves": moves,
            "epochs": epochs,
            "steps": steps,
            "mode": mode,
            "sample_range": sample_range,
            "before": before,
            "after": after,
            "restart_optimizer": restart_optimizer,
        }
        for name, value in own.items():
            object.__setattr__(self, name, value)

    @property
    def batches(self) -> int:
        """Return the number of mini-batches that a step needs."""
        return max(move.batches for move in self.moves)


def train(parts: str = "*", loss: str | Callable = "loss") -> Phase:
    """Return one phase with one move over the run's local epochs, as most methods need."""
    return Phase(Move(parts, loss))


Grouping = Callable[["Server"], Iterable[int]]  # (server) -> the group of every client, 0 .. groups-1


@dataclass(frozen=True)
class Relay:
    """A relay: within a group, clients train the model one after the other; the groups' results are averaged.

    `participation` samples whole groups, clients `within` every group, or from all `clients`, which are then regrouped
    every round: `groups(server)` is called with `server.cohort` set.
    """

    groups: Grouping  # (server) -> the group of every client
    sample: Literal["groups", "within", "clients"] = "groups"  # the population that `participation` is a fraction of


@dataclass(frozen=True)
class WithinGroups:
    """Participants sampled from every group in proportion to its size, at least one each."""

    groups: Grouping  # (server) -> the group of every client, numbered from 0 without gaps
    sample = "within"


@dataclass(frozen=True)
class Stage:
    """Consecutive rounds with the same phases and shares."""

    phases: Phase | Iterable[Phase]  # a client's local training in a round, in order
    share: dict[str, Share]  # selector -> share; the later entry wins
    rounds: int  # number of rounds; those of all stages add up to the run's
    cohort: Relay | WithinGroups | None = None  # None: a random sample of all clients
    fresh: str = ""  # parts to reinitialise as the stage begins, one draw for each copy
    snapshot: str = ""  # name under which the server's parts are kept as the stage ends: the global model from then on
    restart_lr: bool = False  # restart the learning-rate schedule
    report: bool = True  # `report` runs after every training, where a method has one; False: only in run("report", ...)
    predict: str | Callable = "predict"  # (net, x, me) -> logits: how clients are tested in this stage


EVERYONE = "everyone"  # all clients that have training samples: `run("report", EVERYONE)`


# ------------------------------------------------------------------------------------------------- the method


@dataclass(kw_only=True)
class Method(Training):
    """The base class of methods, which is FedAvg; override what differs. Fields become options of the command line."""

    share = {"*": ALL}
    pooled = False  # pool all training samples in one place, without a federation: the baseline `central`
    needs_classes = False  # it takes one class a sample alone: no numbers, no labels and no places

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Make a subclass a dataclass: `pull: float = option(1.0, "Help.")` adds an option, `lr = 0.1` a default."""
        super().__init_subclass__(**keywords)
        if "__init__" in vars(cls):  # it would replace the generated one, which takes the options
            raise ConfigError(
                f"{first_line(cls.__init__)}{cls.__name__} must not define __init__: declare options as fields, and "
                "compute what follows from them in __post_init__, after super().__post_init__()"
            )
        own = inspect.get_annotations(cls)
        for field in dataclasses.fields(cls):  # still those of the base class
            if field.name in cls.__dict__ and field.name not in own:
                cls.__annotations__ = own = {**own, field.name: field.type}
                if not isinstance(cls.__dict__[field.name], dataclasses.Field):
                    plain = dataclasses.field(default=cls.__dict__[field.name], metadata=field.metadata)
                    setattr(cls, field.name, plain)
        dataclasses.dataclass(kw_only=True)(cls)
        check_option_types(cls)

    def __post_init__(self) -> None:
        check_hooks(type(self), Method)  # type: ignore[arg-type]  # mypy does not see that a class can be hashed
        super().__post_init__()

    @classmethod
    def variant(cls, settings: Mapping[str, object]) -> "type[Method]":
        """Return the class to use with these settings, where a setting chooses between classes."""
        return cls

    def check(self, clients: int) -> None:
        """Raise a ConfigError for settings that do not fit this number of clients; called before anything else.

        The base class checks options declared with `up_to_clients`, where they have an effect.
        """
        groups = [field for field in dataclasses.fields(self) if field.metadata.get("up_to_clients")]
        used = {field.name: getattr(self, field.name) or 0 for field in groups if not obstacle(field, vars(self))}
        over = [f"{name} = {number}" for name, number in used.items() if number > clients]
        if over:
            raise ConfigError(*(f"{each} is more than the {clients} clients" for each in over))

    def build(self, parts: "Parts", sizes: "Sizes") -> "Parts":
        """Return the parts that the method works on: the model's own, and what the method cuts, copies or adds."""
        return parts

    def stages(self) -> Iterable[Stage]:
        """Return the stages of the run; by default one."""
        yield Stage(self.phases(), share=self.share, rounds=self.rounds)

    def prepare(self) -> Phase | Iterable[Phase] | None:
        """Return phases to run after download, before training; before every test they run on a temporary copy."""
        return None

    def phases(self) -> Phase | Iterable[Phase]:
        """Return the phases of a client's local training in a round."""
        return train("*")

    def loss(self, net: "Net", b: "Batch", me: "Me") -> "Tensor":
        """Return the loss, a pure function of one client's parts and one mini-batch."""
        return b.loss(net(b.x))

    def predict(self, net: "Net", x: "Samples", me: "Me") -> "Tensor":
        """Return the output of the client's own model: logits of classes, or what the task wants."""
        return net(x)

    def predict_global(self, net: "Net", x: "Samples") -> "Tensor":
        """Return the logits of the global model on the server's parts; `predict_global = None` if there is none."""
        return net(x)

    def adapt(self) -> Phase | Iterable[Phase] | None:
        """Return phases that adapt a temporary copy of what a client has after download, before it is tested.

        Only for methods whose paper defines its own adaptation; the common fine-tuning needs nothing here.
        """
        return None

    # ---- client hooks: a client may read `net`, its batches and `me`, and nothing else

    def keep(self, net: "Net") -> "dict[str, Tensor]":
        """Return the contents of `me.keep` before a client's first round: a flat dict of tensors."""
        return {}

    def start(self, net: "Net", me: "Me") -> "dict[str, Tensor]":
        """Return tensors to overwrite right after download."""
        return {}

    def correct(self, grads: "dict[str, Tensor]", net: "Net", me: "Me") -> "dict[str, Tensor]":
        """Return the gradients for the optimiser; clipping, weight decay and momentum follow.

        It is called in local training, but not in fine-tuning or in phases of `adapt`.
        """
        return grads

    def finish(self, net: "Net", me: "Me") -> "tuple[dict[str, Tensor], Extras]":
        """Return the new `me.keep`, and extras to upload, after local training."""
        return me.keep, {}

    def report(self, net: "Net", b: "Batch", me: "Me") -> "Extras":
        """Return extras to upload, summed over the batches of the training set, in evaluation mode.

        It also runs after every training, unless the stage sets `report=False`.
        """
        return {}

    def describe(self, b: "Batch") -> "Extras":
        """Return extras about the client's training samples, all in one batch, for `run("describe", who)`.

        It sees no network, and runs for one client at a time without padding, so any torch code works. `b.raw`
        holds the samples as they are stored, not normalised: pixels from 0 to 255.
        """
        return {}

    # ---- server hooks: `run("train", "report" or "describe", who)` is the only way from here to the clients

    def begin(self, server: "Server", run: Callable) -> None:
        """Run code before the first round, and before the first stage needs groups."""

    def admit(self, server: "Server", newcomers: list[int]) -> None:
        """Make room in `server.memory` for clients that join after the last round; their numbers follow all others."""

    def groups(self, server: "Server") -> Iterable[int]:
        """Return the group of every client, for parts shared as GROUP in a stage whose cohort names no groups."""
        raise ConfigError(f"{type(self).__name__} shares a part as GROUP and must define groups(self, server)")

    def down(self, server: "Server") -> "dict[str, Tree | PerClient]":
        """Return extras that clients receive; a `PerClient` has a row for each of `server.receivers`.

        It is called for every download, also for evaluations but not for `run("report", ...)`; it must change nothing.
        """
        return {}

    def round(self, server: "Server", run: Callable) -> None:
        """Run one round: train the cohort, and mix its updates."""
        server.mix(run("train", server.cohort))

    def mix(self, server: "Server", updates: "Updates") -> "Tensor | dict[str, Tensor] | None":
        """Return the mixing matrix of all uploads, or one for each selector; parts without a matrix get the mean.

        It is (copies, participants); each row sums to 1, or is all zeros, which leaves that copy unchanged.
        """
        return None

    def aggregate(self, server: "Server", updates: "Updates") -> None:
        """Train or set the server's own parts and fill `server.memory`, after mixing has updated `server["*"]`."""

    def end(self, server: "Server", run: Callable) -> None:
        """Run code after the last round."""
