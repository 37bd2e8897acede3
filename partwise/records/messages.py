"""Messages between the server and the nodes of a federation, and a node's replies.

On the wire a message is the dict of its fields and its `kind`; a reply has no kind: it follows from the message.
Server and nodes of other protocols read `Join` and `Refusal` in that form: these two may not change.
"""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from partwise.network.view import Tensors
from partwise.records.record import Json, Record
from partwise.rounds.messages import Entered, Job, Measured
from partwise.rounds.mixing import Copies

PROTOCOL = 7

Trees = dict[str, Any]  # by name: trees of plain values and tensors
Hop = dict[int, tuple[int, int]]  # by client: after whom it goes on, and the rounds in which it took part before
NetworkSums = dict[str, list[float]]  # by tensor: its size, sum and norm


# ---- before the first round


@dataclass(frozen=True)
class Join(Record):
    """The description of a run, with which the server asks a node to join."""

    run: str
    protocol: int
    software: dict[str, str]  # versions, and the SHA-256 of methods' code and of a network file
    method: str
    file: str | None  # the SHA-256 of a method file
    settings: Json
    silos: int = 1


@dataclass(frozen=True)
class Described(Record):
    """The description of data that others may know."""

    names: list[str]  # of the clients
    sizes: list[list[int]]  # of each: training, test and validation samples
    shape: list[int]  # of a sample
    task: str  # what a label is: classes, labels, numbers or places
    places: list[int]  # the shape of a sample's places; empty for other tasks
    classes: int  # how many classes, labels or numbers
    class_names: list[str]  # of the classes; of labels and numbers, their columns
    columns: list[str]
    features: list[str]
    whole: bool  # samples are whole numbers, as the bytes of images
    standardise: bool
    centre: list[float]
    scale: list[float]
    white: float
    data: str  # what the data are called
    model: str  # the network that belongs to them
    tokens: int = field(default=0, kw_only=True)  # how many different ones samples hold; 0: they are no texts
    text: str = field(default="", kw_only=True)  # the SHA-256 of how texts become tokens


@dataclass(frozen=True)
class Joined(Described):
    """The answer to `Join`: the description of a node's data."""

    min_clients: int  # silos behind every mean


@dataclass(frozen=True)
class Agreed(Described):
    """The description of all data, once all nodes have joined; the clients are in the order of their numbers."""

    hosts: list[str]  # the node of each client
    label_centre: list[float] = field(default_factory=list)  # of each number, where labels are standardised
    label_scale: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Sums(Record):
    """The question for the moments of the agreed features, and of labels that are numbers."""

    run: str
    agreed: Agreed


@dataclass(frozen=True)
class Moments(Record):
    """The answer to `Sums`."""

    moments: (
        Tensor  # (3, features) count, mean, and squared distances from the mean; of what is not standardised (3, 0)
    )
    labels: Tensor  # (3, numbers) likewise; of other tasks (3, 0)


@dataclass(frozen=True)
class Begin(Record):
    """The request to prepare the run, once all is agreed on."""

    run: str
    agreed: Agreed
    min_clients: int  # silos behind every mean, to which the server keeps


@dataclass(frozen=True)
class Begun(Record):
    """The answer to `Begin`: the network as the node drew it from the run's seed."""

    network: NetworkSums


# ---- rounds


@dataclass(frozen=True)
class AskedRequest(Record):
    """A request, without its copies and next hops."""

    job: Job
    round: int
    clients: list[int]
    rate: float
    evaluate: bool
    before: bool
    number: int
    extras: Trees
    averaged: bool
    stage: int  # the number of its plan
    times: dict[int, int]


@dataclass(frozen=True)
class Errand(Record):
    """A request to a node, with everything that the node needs to carry it out and does not have."""

    run: str
    request: AskedRequest
    onward: list[Hop]  # a relay's hops to come that stay on the node
    digests: dict[str, str]  # of every tensor's copies
    copies: dict[str, Copies]  # those that the node has not got yet
    begun: int  # stages that the server believes to have begun on the node
    stages: list[Entered]  # those that follow
    method: Trees  # what the method holds otherwise than before the run
    gone: list[str]  # what it holds no more


@dataclass(frozen=True)
class Ask(Errand):
    """A request to be answered."""


@dataclass(frozen=True)
class Export(Errand):
    """The request to write clients' models into the node's own folder, after the run."""


@dataclass(frozen=True)
class Sent(Record):
    """Updates as they are sent, without logits and models; `Updates` documents the fields."""

    clients: list[int]
    round: int
    samples: Tensor
    steps: Tensor
    loss: Tensor
    finite: Tensor | None
    withheld: Tensor | None
    mean: Tensor | None
    parts: Tensors
    extras: Trees
    sent: dict[str, int] | None
    scores: Measured


@dataclass(frozen=True)
class Answer(Record):
    """The answer to `Ask`."""

    updates: Sent
    number: int  # of the request
    lost: list[int]  # clients whose personal state the node has lost
    ahead: dict[str, Tensor] = field(default_factory=dict)  # bytes of answers to questions that will follow, by these


@dataclass(frozen=True)
class Exported(Record):
    """The answer to `Export`."""

    written: int  # models


@dataclass(frozen=True)
class Lacks(Record):
    """The reply of a node that lacks stages which the server believes it has."""

    lacks: int  # the stages that have begun on it


@dataclass(frozen=True)
class Refusal(Record):
    """The reply of a node that refuses a message."""

    refuses: str  # why, in a line
    forgot: bool = False  # it knows nothing of the run, and must join again


Message = Join | Sums | Begin | Ask | Export
Reply = Joined | Moments | Begun | Answer | Exported | Lacks | Refusal
MESSAGE_KINDS: dict[str, type[Message]] = {
    "join": Join,
    "moments": Sums,
    "begin": Begin,
    "request": Ask,
    "models": Export,
}
KIND_OF: dict[type, str] = {kind: name for name, kind in MESSAGE_KINDS.items()}
