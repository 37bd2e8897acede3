"""Filters around the upload: laws that hold for any client, and runs in which they act."""

import math

import pytest
import torch

from partwise.errors import ConfigError, Diverged
from partwise.network.view import ClassCounts, ClassRows
from partwise.privacy.filters import Filters
from partwise.privacy.histograms import parse_histograms
from partwise.runs.observers import Observer
from tests.support.runs import CLASSES, awkward_federation, network, simulate
from tests.support.states import apart, distance, state

SAMPLES = torch.tensor([[9, 0, 3, 1], [2, 7, 0, 8]])
CLIENTS = [0, 1]


class Kept:
    """A store that remembers residuals alone."""

    def __init__(self):
        self.held = {}

    def read(self, key, clients, start):
        return torch.stack([self.held.get((client, key), row) for client, row in zip(clients, start, strict=True)])

    def save(self, clients, brought, steps):
        self.held |= {(c, key): value[row] for key, value in brought.items() for row, c in enumerate(clients)}


def filters(histograms="exact", fewest=1, **settings):
    return Filters(0, SAMPLES, Kept(), histograms=parse_histograms(histograms, fewest), **settings)


def upload(made, parts, extras=None, received=None, when=0):
    received = received or {name: torch.zeros_like(value) for name, value in parts.items()}
    return made(parts, extras or {}, received, CLIENTS, when)


def tensors(number, dtype=torch.float64):
    """A weight of twelve numbers and a bias of four, for two clients; eighths, so that sums are exact."""
    random = torch.Generator().manual_seed(number)
    shapes = {"head.weight": (2, 4, 3), "head.bias": (2, 4)}
    return {n: torch.randint(-64, 64, shape, generator=random).to(dtype) / 8 for n, shape in shapes.items()}


def norms(parts):
    return torch.cat([value.flatten(1) for value in parts.values()], 1).norm(dim=1)


def test_what_nothing_happens_to_stays_as_it_is():
    parts = tensors(0, torch.float32)
    rows = ClassRows(torch.rand(2, 4, 3), SAMPLES.float())
    sent = upload(filters(), parts, {"rows": rows})
    assert all(torch.equal(sent.parts[name], value) for name, value in parts.items())
    assert all(map(torch.equal, sent.extras["rows"], rows))
    # 16 numbers of 4 bytes a client; of the rows with a count 3 numbers, a label and the count
    assert sent.sent == {"head": 2 * 16 * 4, "rows": 6 * (3 * 4 + 4 + 4)}


def test_a_wide_clip_is_no_clip():
    parts, received = tensors(0, torch.float32), tensors(1, torch.float32)
    sent = upload(filters(clip=1e9), parts, received=received)
    assert all(torch.equal(sent.parts[name], value) for name, value in parts.items())


def test_the_difference_from_what_was_received_is_clipped():
    parts, received = tensors(0), tensors(1)
    sent = upload(filters(clip=1.5), parts, received=received).parts
    change = {name: sent[name] - received[name] for name in sent}
    assert norms(change).tolist() == pytest.approx([1.5, 1.5])
    whole = {name: parts[name] - received[name] for name in parts}
    factor = 1.5 / norms(whole)
    assert torch.allclose(change["head.bias"], whole["head.bias"] * factor[:, None])


def test_parts_extras_and_class_rows_have_one_norm():
    parts = tensors(0)
    extras = {"more": torch.ones(2, 5).double(), "rows": ClassRows(torch.rand(2, 4, 3).double(), SAMPLES.double())}
    sent = upload(filters(clip=0.5), parts, extras)
    vector = {**sent.parts, "more": sent.extras["more"], "rows": sent.extras["rows"].mean}
    assert norms(vector).tolist() == pytest.approx([0.5, 0.5])
    assert torch.equal(sent.extras["rows"].counts, SAMPLES.double())


def test_noise_is_of_its_client_and_its_round_alone():
    def noise(clients, when):
        parts = {"head.weight": torch.zeros(len(clients), 20_000, dtype=torch.float64)}
        made = Filters(0, SAMPLES, Kept(), clip=0.5, noise=3.0)
        return made(parts, {}, parts, clients, when).parts["head.weight"]

    both = noise([0, 1], 0)
    assert torch.equal(noise([1], 0)[0], both[1])
    assert not torch.equal(both[0], both[1]) and not torch.equal(noise([0], 1)[0], both[0])
    assert abs(float(both.std()) / 1.5 - 1) < 4 / (2 * 40_000) ** 0.5  # sigma = 3 x 0.5


@pytest.mark.parametrize("settings", [{}, {"bits": 3}])
def test_what_was_sent_and_what_waits_is_all_that_was_computed(settings):
    made, total, sent = filters(top=0.25, **settings), 0.0, 0.0
    for number in range(5):
        parts = tensors(number)
        out = upload(made, parts, when=number).parts
        total = {name: value + (total[name] if number else 0) for name, value in parts.items()}
        sent = {name: value + (sent[name] if number else 0) for name, value in out.items()}
        kept = sum(int((value[0] != 0).sum()) for value in out.values())
        assert kept <= 4  # a quarter of 16
    for name, value in total.items():
        waits = torch.stack([made.residuals.held[client, ("residual", name)] for client in CLIENTS])
        assert waits.any()
        assert torch.equal(sent[name] + waits, value) if not settings else torch.allclose(sent[name] + waits, value)


def test_what_is_not_finite_is_sent_for_the_gate_to_see_and_nothing_waits_of_it():
    made, parts = filters(top=0.5, clip=1.0, bits=2), tensors(0)
    parts["head.bias"][1, 0] = math.nan
    out = upload(made, parts).parts
    assert not torch.cat([value[1].flatten() for value in out.values()]).isfinite().all()
    assert all(value[0].isfinite().all() for value in out.values())
    assert {client for client, _ in made.residuals.held} == {0}


def test_bytes_to_the_digit():
    """A weight of 12 and a bias of 4 numbers of 4 bytes; 5 bits a number are 8 and 3 bytes, the ends of a range 8."""
    parts = tensors(0, torch.float32)

    def sent(**settings):
        return upload(filters(**settings), parts).sent["head"] / 2

    assert sent(clip=1.0) == 16 * 4
    assert sent(bits=5) == (8 + 8) + (3 + 8)
    assert sent(top=0.25) == 4 * (4 + 4)  # four numbers with their places


def test_bytes_of_the_largest_of_few_bits():
    parts = {"head.bias": torch.tensor([[1.0, 0, 0, 0], [0, 2.0, 0, 0]])}
    assert upload(filters(top=0.5, bits=8), parts).sent == {"head": 2 * (2 + 8 + 2 * 4)}


def test_counts_and_rows_of_rare_classes_are_left_out():
    rows = ClassRows(torch.rand(2, 4, 3) * SAMPLES[..., None], SAMPLES.float())
    sent = upload(filters(fewest=5), {}, {"rows": rows, "labels": ClassCounts(SAMPLES)})
    often = SAMPLES >= 5
    assert sent.extras["labels"].counts.tolist() == [[9, 0, 0, 0], [0, 7, 0, 8]]
    assert torch.equal(sent.extras["rows"].counts > 0, often)
    assert torch.equal(sent.extras["rows"].sums, torch.where(often[..., None], rows.sums, 0.0))
    assert sent.sent == {"rows": 3 * (3 * 4 + 4 + 4), "labels": 2 * 4 * 4}


def test_presence_bits_tell_the_classes_and_leave_the_means():
    rows = ClassRows(torch.rand(2, 4, 3) * SAMPLES[..., None], SAMPLES.float())
    sent = upload(filters("presence"), {}, {"rows": rows, "labels": ClassCounts(SAMPLES)})
    assert sent.extras["labels"].counts.tolist() == [[1, 0, 1, 1], [1, 1, 0, 1]]
    assert torch.equal(sent.extras["rows"].counts, (SAMPLES > 0).float())
    assert torch.allclose(sent.extras["rows"].mean, rows.mean)
    assert sent.sent == {"rows": 6 * (3 * 4 + 4), "labels": 2 * 1}  # a label says that it is there


# ---------------------------------------------------------------------------------------------------- in a run

ALL_OF_THEM = {"upload_clip": 2.0, "upload_bits": 6, "upload_top": 0.3, "histograms": "bits:3", "min_class_count": 2}
NOISY = {"upload_clip": 2.0, "upload_noise": 0.05, "histograms": "laplace:2"}


class Norms(Observer):
    """Keeps the norm of every client's difference in every answer."""

    def __init__(self):
        self.seen = []

    def round(self, seen):
        for exchange in seen.exchanges:
            for client in exchange.updates.clients if exchange.job == "train" else ():
                received = exchange.received(client)
                change = [value - received[name] for name, value in exchange.uploaded(client).items()]
                rows = [leaf.mean for leaf in exchange.uploaded_extras(client).values() if isinstance(leaf, ClassRows)]
                vector = torch.cat([each.flatten() for each in [*change, *rows]])
                self.seen.append(float(vector.norm()))


@pytest.mark.parametrize("method", ["fedavg", "fedper", "fedfcd", "fed3p2p"])
def test_no_upload_of_a_run_is_longer_than_the_clip(method):
    """In relays too, where every hop is an upload."""
    norms, net = Norms(), "mlp of two layers" if method == "fed3p2p" else "mlp"
    settings = {"coordinators_a": 3, "coordinators_b": 3} if method == "fed3p2p" else {}
    simulate(method, network(net), rounds=2, observers=[norms], upload_clip=0.02, **settings)
    assert len(norms.seen) == 2 * 8 and max(norms.seen) == pytest.approx(0.02)


@pytest.mark.parametrize("method", ["fedavg", "fedfcd"])
def test_a_run_with_a_wide_clip_is_the_plain_run(method):
    parts = network("mlp")
    assert distance(simulate(method, parts, rounds=2), simulate(method, parts, rounds=2, upload_clip=1e9)) < 1e-12


@pytest.mark.parametrize("settings", [ALL_OF_THEM, NOISY], ids=["few bits", "noise"])
@pytest.mark.parametrize("method", ["fedavg", "fedpac", "fed3p2p"])
def test_filters_do_the_same_in_every_engine(method, settings):
    net = network("mlp of two layers" if method == "fed3p2p" else "mlp")
    settings = {"rounds": 2, "participation": 0.5, **settings}
    if method == "fed3p2p":
        settings |= {"coordinators_a": 3, "coordinators_b": 3}
    loop = simulate(method, net, **settings)
    vector = simulate(method, net, engine="vector", block=3, **settings)
    assert apart(state(loop), state(vector)) < 1e-10


def test_a_client_that_diverged_is_refused_as_without_filters():
    with pytest.raises(Diverged, match="not finite"):
        simulate("fedavg", network("mlp"), lr=1e200, rounds=4, **ALL_OF_THEM)


def test_the_ledger_of_a_run_counts_what_is_sent():
    """A body of 64 x 100 + 100 and a head of 100 x 4 + 4 numbers of 8 bytes; 3 bits each, and the ends of 4 ranges."""
    run = simulate("fedavg", network("mlp"), rounds=1, upload_bits=3)
    up = run.server.ledger.rounds[0].up
    body = math.ceil(6400 * 3 / 8) + math.ceil(100 * 3 / 8) + 2 * 16
    head = math.ceil(400 * 3 / 8) + math.ceil(CLASSES * 3 / 8) + 2 * 16
    assert up == {"body": 8 * body, "head": 8 * head}


def test_no_prototype_of_few_samples_leaves_a_client():
    counts = awkward_federation().class_counts()

    class Rare(Observer):
        def round(self, seen):
            for exchange in seen.exchanges:
                for client in exchange.updates.clients:
                    sent = exchange.uploaded_extras(client)["prototypes"].counts
                    assert torch.equal(sent, torch.where(counts[client] >= 4, counts[client], 0).to(sent))

    simulate("fedproto", network("mlp"), rounds=2, observers=[Rare()], min_class_count=4)


@pytest.mark.parametrize(
    ("method", "settings", "line"),
    [
        ("local", {"upload_clip": 1.0}, "local uploads nothing"),
        ("central", {"upload_bits": 4}, "central uploads nothing"),
        ("fedavg", {"upload_noise": 1.0}, "upload_noise = 1 has no effect with upload_clip = unset"),
        ("fedavg", {"upload_clip": 1.0, "upload_noise": 1.0, "upload_top": 0.5}, "upload_top = 0.5 has no effect"),
        ("fedavg", {"histograms": "laplace"}, "histograms = 'laplace' is not allowed: it takes exact"),
        ("fedavg", {"delta": 0.1}, "delta = 0.1 has no effect"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(method, settings, line):
    with pytest.raises(ConfigError, match=line):
        simulate(method, network("mlp"), **settings)


def test_running_variances_are_not_filtered():
    with pytest.raises(ConfigError, match="bn_buffers = average"):
        simulate("fedavg", network("cnn+bn"), bn_buffers="average", upload_clip=1.0)
