"""The settings of a run, in tables of typed fields: names, defaults, bounds and help texts."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from partwise.code_files import network_file_of, split_network
from partwise.data import parse_rule
from partwise.data.rules import parse_test_after
from partwise.data.tokens import check_tokens
from partwise.errors import ConfigError, unknown
from partwise.options import Checked, as_written, option
from partwise.records.metrics import ChoosingMetric
from partwise.training import Training

Settings = dict[str, Any]  # by name, as Python, a file or a command line gives them; `convert` checks them
DEVICES = ("auto", "cpu", "cuda")


def check_partition(rule: str) -> None:
    """Refuse a partition's rule that is malformed or unknown."""
    if rule != "auto":
        parse_rule(rule)


def check_model(name: str) -> None:
    """Refuse a network in a file that is not there, or without its name in that file."""
    if named := split_network(name):
        file, called = named
        if not called:
            raise ConfigError(f"model = {name} does not say which network of the file; write {file}:NAME")
        if network_file_of(name) is None:
            raise ConfigError(f"there is no network file '{file}'")


def check_edges(edges: tuple[float, ...] | None) -> None:
    """Refuse edges of bins that do not rise."""
    if any(low >= high for low, high in pairwise(edges or ())):
        raise ConfigError(f"bins = {as_written(edges)} must rise from edge to edge")


def check_augmentation(text: str) -> None:
    """Refuse an augmentation that is malformed or unknown."""
    from partwise.rounds.augment import parse_augmentation  # needs torch; the help of a run does not

    parse_augmentation(text)


def check_robust(text: str) -> None:
    """Refuse a robust mean that is malformed or unknown."""
    from partwise.rounds.robust import parse_robust  # needs torch; the help of a run does not

    parse_robust(text)


def check_histograms(text: str) -> None:
    """Refuse a form of histograms that is malformed or unknown."""
    if text != "exact":
        from partwise.privacy.histograms import parse_histograms  # needs torch, as above

        parse_histograms(text)


def check_device(name: str) -> None:
    """Refuse a name that is no device; whether this machine has it is checked when the run is prepared."""
    device, colon, number = name.partition(":")
    if device not in DEVICES or (colon and (device != "cuda" or not number.isdecimal())):
        raise ConfigError(unknown("device", name, [*DEVICES, "cuda:NUMBER"]))


@dataclass(kw_only=True)
class Data(Checked):
    """The data set, and its partition among clients."""

    data: str = option("digits", "Data set: a name from `partwise data`, or a file or folder of your own.")
    data_root: str | None = option(None, "Folder to search for the data set before the usual places.")
    download: bool = option(False, "Download the data set if it is missing and its publisher offers a download.")
    label: str = option("label", "Tables: column to predict, or several, separated by commas.")
    task: Literal["auto", "classes", "labels", "numbers", "places"] = option(
        "auto",
        "Kind of label. classes: one of several; labels: several of 0 and 1; numbers: real numbers; places: a class at "
        "every pixel, token or time step; auto: by the labels.",
    )
    positive: str | None = option(
        None, "Two classes: name of the one that F1, AUROC and average precision are about; unset: the second."
    )
    bins: tuple[float, ...] | None = option(
        None,
        "Numbers as labels: edges, separated by commas, of the bins that they count as where data are divided or "
        "clients grouped; unset: ten bins of equally many samples, over nodes none.",
        check=check_edges,
    )
    drop: str | None = option(None, "Tables: columns not to use as features, separated by commas.")
    missing: Literal["refuse", "mean"] = option(
        "refuse", "Tables: how to treat empty cells; mean fills in the mean of the column."
    )
    categories: Literal["columns", "codes"] = option(
        "columns",
        "Tables: what texts become. columns: a feature for each text; codes: numbers that model tabular-embedding "
        "looks up.",
    )
    text: str | None = option(
        None, "Tables: column of texts, which become tokens; other columns stand beside them unless they are dropped."
    )
    text_length: int | None = option(
        None, "Texts: tokens of a sample; unset: as many as the longest text has, at most 256.", minimum=1
    )
    tokens: str = option(
        "words",
        "Texts: divide them into words, characters, or ascii (characters of a fixed alphabet); or FILE.json, a "
        "tokenizer of the package tokenizers.",
        check=check_tokens,
    )
    vocabulary: int = option(
        10_000, "Texts: largest vocabulary of words or characters; tokens of many clients come first.", minimum=1
    )
    min_token_count: int = option(
        2, "Texts: words and characters in fewer training samples than this are unknown.", minimum=1
    )
    image_size: int | None = option(
        None,
        "Images: resize to squares with sides of this many pixels; unset: the data set's usual size.",
        minimum=1,
    )
    normalise: Literal["half", "unit", "imagenet"] | None = option(
        None,
        "Images: scale pixels to -1..1 (half) or 0..1 (unit), or by ImageNet's mean and standard deviation; unset: as "
        "in the data set's papers.",
    )
    augment: str | None = option(
        None,
        "Images: random changes to training images, separated by commas: flip, rotate:DEGREES, crop:PIXELS; unset: "
        "none.",
        check=check_augmentation,
    )
    allow_nonfinite_data: bool = option(False, "Accept NaN and infinity in the data.")
    clients: int | None = option(
        None, "Number of clients; unset: 20, or one for each value of the partition's column.", minimum=1
    )
    partition: str = option(
        "auto",
        "How to divide samples among clients: dir:ALPHA, hsu:ALPHA, pat:CLASSES, quantity:ALPHA, iid, domain, "
        "column:NAME or file:PATH; auto: by the domains or clients that the data name, otherwise dir:0.1.",
        check=check_partition,
    )
    split: Literal["auto", "merged", "original"] = option(
        "auto",
        "Source of test samples. merged: divide each client's samples into train and test; original: the data set's "
        "own test set; auto: merged, unless the data set's papers do otherwise.",
    )
    test_share: float | None = option(
        None,
        "Fraction of each client's samples to test on; unset: 0.25, or 0.2 for data with domains.",
        above=0,
        below=1,
        when="split=auto|merged and not test_after",
    )
    split_by: str | None = option(
        None,
        "Tables: column whose equal values, such as the visits of one patient, stay on one side of every split into "
        "training, test and validation rows; unset: rows are split one by one, unless the data set says otherwise.",
        when="split=auto|merged and not test_after",
    )
    test_after: str | None = option(
        None,
        "Tables: test on the rows from a date or number on, as COLUMN=2020-01-31 or COLUMN=2015, and train on earlier "
        "ones; unset: draw test rows.",
        check=parse_test_after,
        when="split=auto|merged",
    )
    split_seed: int | None = option(
        None,
        "Seed that divides samples among clients and into training, test and validation sets, each client's own by its "
        "name, as on a node; unset: the run's seed, and by the client's number.",
        minimum=0,
    )
    train_samples: int | None = option(
        None, "Largest number of training samples per client, the rest are not used; unset: no limit.", minimum=1
    )
    validation: float = option(
        0.0, "Fraction of each client's training samples to set aside for validation.", minimum=0, below=1
    )
    min_samples: int | None = option(
        None,
        "Smallest number of samples per client; the partition is redrawn until every client has them. Unset: 10 for "
        "dir and quantity, otherwise 1.",
        minimum=0,
    )
    cap: bool = option(False, "dir: give no further samples to clients that already have an equal share.")
    balance: bool = option(False, "pat: give a client the same number of samples of each of its classes.")


@dataclass(kw_only=True)
class Model(Checked):
    """The network."""

    model: str = option(
        "auto",
        "Network: the name of a built-in one, timm:NAME, or FILE.py:NAME, a class or function of your own; auto: the "
        "data set's usual one.",
        check=check_model,
    )
    batch_norm: bool = option(
        False, "Add batch-norm after every convolution or hidden layer; small built-in networks only."
    )
    dropout: float = option(0.0, "Probability of dropout before the head.", minimum=0, below=1)
    projector: bool = option(False, "Add a projector as the last layer of the body.")
    weights: str | None = option(
        None, "File of initial weights: .safetensors, or .pth with nothing but tensors; unset: draw them from the seed."
    )


@dataclass(kw_only=True)
class Run(Checked):
    """The execution and evaluation of the run."""

    seed: int = option(0, "Seed of everything random in the run.", minimum=0)
    engine: Literal["auto", "loop", "workers", "vector"] = option(
        "auto",
        "How to compute clients. loop: one after another; workers: the same in several processes; vector: many at once "
        "on one device; auto: the likely fastest that can run the method.",
    )
    workers: int | None = option(
        None,
        "Number of processes of the workers engine; unset: one per CPU core.",
        minimum=1,
        when="engine=auto|workers",
    )
    device: str = option("auto", "Device: cpu, cuda, cuda:NUMBER or auto.", check=check_device)
    dtype: Literal["float32", "float64", "bfloat16"] = option(
        "float32", "Floating-point type; bfloat16 applies to the forward pass, parameters stay float32."
    )
    block: int | None = option(
        None,
        "Largest number of clients that the vector engine computes at once; unset: all of a round.",
        minimum=1,
        when="engine=auto|vector",
    )
    compile: Literal["auto", "yes", "no"] = option(
        "auto",
        "Compile the training steps of the vector engine; auto: those of phases long enough to save time.",
        when="engine=auto|vector",
    )
    threads: int | None = option(
        None,
        "Number of torch's CPU threads; unset: 1 for small training steps, otherwise torch's own choice.",
        minimum=1,
    )
    deterministic: bool = option(False, "Use deterministic algorithms only, also on a GPU.")
    eval_every: int = option(1, "Evaluate every this many rounds, and after the last one.", minimum=1)
    eval_at: tuple[int, ...] | None = option(
        None, "Rounds after which to evaluate copies that are adapted or fine-tuned; unset: the last.", minimum=1
    )
    eval_clients: int | None = option(None, "Evaluate a fixed sample of this many clients; unset: all.", minimum=1)
    moment: Literal["received", "trained", "adapted"] = option(
        "received",
        "Moment in a round whose scores compare methods. received: after download; trained: after local training "
        "(all clients must take part); adapted: after --finetune-epochs of cross-entropy on a copy, the same for all "
        "methods.",
    )
    metric: ChoosingMetric = option(  # noqa: RUF009 - a type that follows from the table
        "accuracy",
        "Metric that chooses the best round, ranks methods and decides early stopping. For labels, numbers and places "
        "accuracy stands for their own: mean_auroc, rmse, place_accuracy.",
    )
    hold_out: float = option(
        0.0, "Fraction of clients to keep out of training; they join after the last round.", minimum=0, below=1
    )
    join_rounds: int = option(10, "Rounds in which a joining client trains its personal parts.", minimum=0)
    patience: int | None = option(
        None, "Stop after this many evaluations without improvement on validation data; unset: never.", minimum=1
    )
    check: bool = option(
        False,
        "Retrain one client per round with the loop engine, compare the results, and report how fast a perturbed copy "
        "diverges.",
    )
    checkpoint_every: float = option(
        60.0, "Seconds between checkpoints in the run's folder; 0: one after every round.", minimum=0
    )
    save_models: bool = option(True, "Write every client's model into the run's folder.")


@dataclass(kw_only=True)
class Robust(Checked):
    """The server's protection against wrong updates."""

    robust: str | None = option(
        None,
        "Aggregate by a robust mean: median, trimmed[:SHARE], krum[:ATTACKERS] or clip[:NORM]; unset: the plain mean.",
        check=check_robust,
    )
    outliers: Literal["log", "leave-out", "clip"] = option(
        "log",
        "Treatment of updates far longer than the round's others: log them only, or also leave them out or clip them.",
    )
    outlier_factor: float = option(
        7.0,
        "Updates longer than this multiple of the round's median norm are outliers, if they also lie far beyond the "
        "round's own spread.",
        minimum=1,
    )


@dataclass(kw_only=True)
class Privacy(Checked):
    """Filters of updates, histograms and gradients before anything leaves a client."""

    upload_clip: float | None = option(
        None, "Clip each upload, as its difference from the download, to this L2 norm; unset: no clipping.", above=0
    )
    upload_noise: float = option(
        0.0,
        "Add Gaussian noise to every upload; standard deviation as a multiple of upload_clip.",
        minimum=0,
        when="upload_clip",
    )
    upload_top: float = option(
        1.0,
        "Fraction of update entries to upload, largest first; the rest carries over to the client's next update (error "
        "feedback).",
        above=0,
        maximum=1,
        when="upload_noise=0",
    )
    upload_bits: int | None = option(
        None,
        "Round uploaded numbers to this many bits, up or down at random; unset: no rounding.",
        minimum=1,
        maximum=16,
    )
    histograms: str = option(
        "exact",
        "Form in which clients upload label counts: exact, presence, bits:NUMBER or laplace:EPSILON.",
        check=check_histograms,
    )
    min_class_count: int = option(
        1, "Leave classes with fewer samples on a client out of what it uploads by class.", minimum=1
    )
    dp_clip: float | None = option(
        None, "DP-SGD: clip the gradient of each sample to this L2 norm; unset: no DP-SGD.", above=0
    )
    min_train_samples: int = option(
        1, "Tables: standardise a column by the clients with at least this many filled training cells.", minimum=1
    )
    dp_noise: float = option(
        0.0,
        "DP-SGD: add Gaussian noise to the sum of clipped gradients; standard deviation as a multiple of dp_clip.",
        minimum=0,
        when="dp_clip",
    )
    delta: float = option(
        1e-5, "Delta for which to report epsilon.", above=0, below=1, when="not upload_noise=0 or not dp_noise=0"
    )
    accountant: Literal["rdp", "prv"] = option(
        "rdp",
        "Opacus accountant that computes epsilon; prv is tighter and slower.",
        when="not upload_noise=0 or not dp_noise=0",
    )


@dataclass(kw_only=True)
class Failures(Checked):
    """Simulated failures of clients."""

    client_dropout: float = option(
        0.0,
        "Probability that a participant drops out of a round; its update never arrives.",
        minimum=0,
        maximum=1,
    )
    stragglers: float = option(
        0.0,
        "Probability that a participant's update arrives too late; it has trained, but its update is discarded.",
        minimum=0,
        maximum=1,
    )
    failure_trace: str | None = option(
        None,
        "CSV file of failures, instead of probabilities; columns round, client and what (drop, late or back).",
        when="not client_dropout and not stragglers",
    )
    min_clients: int = option(
        1,
        "Smallest number of usable updates of a round, and of each group in it; with fewer, models stay as they are.",
        minimum=1,
    )

    @property
    def played(self) -> bool:
        """Return whether any client can fail."""
        return bool(self.client_dropout or self.stragglers or self.failure_trace)


SECTIONS: dict[str, type] = {
    "data": Data,
    "model": Model,
    "train": Training,
    "robust": Robust,
    "privacy": Privacy,
    "failures": Failures,
    "run": Run,
}
TABLES = {name: table for name, table in SECTIONS.items() if table is not Training}  # a method has those as fields
RESULT_NEUTRAL_SETTINGS = ("workers", "checkpoint_every", "save_models")  # settings on which no result depends
