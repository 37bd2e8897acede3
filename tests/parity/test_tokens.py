"""Networks for tokens by name: all engines end equal, padding counts nowhere, and no step sees a later one."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from partwise import ConfigError, Federation
from partwise.data.standardise import standardised
from partwise.network import models
from partwise.tasks import Labels, Numbers, Places, Task
from tests.support.runs import awkward_federation, simulate
from tests.support.states import distance

NAMES = ("gru", "transformer")
SETTINGS = {"rounds": 2, "epochs": 2, "lr": 0.05, "participation": 0.5, "momentum": 0.5, "dropout": 0.2}
STEPS, VOCABULARY = 8, 9


def tokens() -> tuple[Federation, Tensor]:
    """Lines of the usual images as tokens 1..8, the last ones of a line cut off, some lines to nothing."""
    federation = awkward_federation(validated=2)
    x = federation.source.x[:, 0, 0].long() // 32 + 1
    real = torch.arange(STEPS) < (torch.arange(len(x)) % (STEPS + 1))[:, None]
    return federation, torch.where(real, x, 0)


def texts(task: str) -> Federation:
    federation, x = tokens()
    source = replace(federation.source, x=x)
    own: Task | None = None
    y, classes = source.y, source.classes
    if task == "numbers":
        y = (x.double() @ torch.arange(STEPS).double())[:, None]
        own = Numbers.of(y, ("sum",))
    elif task == "labels":
        y = torch.stack([(x == 3).any(1), (x == 4).any(1)], 1).double()
        y[::5, 0] = torch.nan
        own = Labels.of(y, ("three", "four"))
    elif task == "places":
        y = x.roll(-1, 1) - 1  # padding has no class
        own, classes = Places(tuple(map(str, range(VOCABULARY - 1)))), VOCABULARY - 1
    return standardised(replace(federation, source=replace(source, y=y, own_task=own, classes=classes)))


CASES = [
    ("classes", "fedproto"),
    ("classes", "fedper"),
    ("numbers", "fedper"),
    ("labels", "fedrep"),
    ("places", "ditto"),
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("task", "method"), CASES)
def test_vector_equals_loop(name: str, task: str, method: str) -> None:
    settings = {**SETTINGS, "model": name}
    loop, vector = (simulate(method, None, texts(task), engine=engine, **settings) for engine in ("loop", "vector"))
    assert vector.notes[0] == "engine: vector on cpu"
    assert distance(loop, vector) < 1e-10


@pytest.mark.parametrize("name", NAMES)
def test_workers_are_the_loop(name: str) -> None:
    settings = {**SETTINGS, "model": name}
    loop, workers = (
        simulate("fedper", None, texts("places"), engine=engine, **settings) for engine in ("loop", "workers")
    )
    assert distance(loop, workers) == 0


def network(name: str, each_step: bool = False) -> nn.Module:
    parts = models.build(name, (STEPS,), 5, vocabulary=VOCABULARY, each_step=each_step).initialise(0)
    return nn.Sequential(*(parts.modules[part] for part in parts.chain)).double().eval()


@pytest.mark.parametrize("name", NAMES)
def test_padding_changes_no_output(name: str) -> None:
    net, (_, x) = network(name), tokens()
    x = x[(x[:, 0] > 0) & (x[:, 5:] == 0).all(1)]  # one token to five
    before = net(x)
    nn.init.constant_(net[0].embed.weight.data[0], 7.0)
    assert torch.equal(net(x), before)
    shorter = models.build(name, (5,), 5, vocabulary=VOCABULARY)
    own = nn.Sequential(*(shorter.modules[part] for part in shorter.chain)).double().eval()
    own.load_state_dict({key: value[:5] if "positions" in key else value for key, value in net.state_dict().items()})
    assert torch.allclose(own(x[:, :5]), before, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_text_has_a_finite_output(name: str) -> None:
    net = network(name)
    out = net(torch.zeros(2, STEPS, dtype=torch.int64))
    assert out.isfinite().all()
    out.sum().backward()
    assert all(value.grad.isfinite().all() for value in net.parameters() if value.grad is not None)


@pytest.mark.parametrize("name", NAMES)
def test_a_prediction_at_each_step_sees_no_later_token(name: str) -> None:
    net = network(name, each_step=True)
    x = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8]])
    once = net(x)
    assert once.shape == (1, 5, STEPS)
    for step in range(1, STEPS):
        other = x.clone()
        other[:, step:] = 9 - x[:, step:]
        changed = (net(other) - once).abs().amax((0, 1)) > 1e-9
        assert not changed[:step].any() and changed[step]


def test_sizes_follow_the_vocabulary() -> None:
    """A token has 32 features; all else is as large as for series of 32, but for the transformer's first layer."""
    for name in NAMES:
        tokens_of, series = (models.build(name, shape, 5, vocabulary=VOCABULARY) for shape in ((20,), (20, 32)))
        sizes = [sum(value.numel() for value in parts.tensors().values()) for parts in (tokens_of, series)]
        assert sizes[0] - sizes[1] == VOCABULARY * 32 - (0 if name == "gru" else 32 * 32 + 32)


def test_whole_numbers_that_are_no_tokens_are_refused() -> None:
    federation = texts("classes")
    below = replace(federation, source=replace(federation.source, x=federation.source.x - 1))
    with pytest.raises(
        ConfigError, match=r"model 'gru' takes series, .* or tokens, samples of whole numbers from 0 on"
    ):
        simulate("fedavg", None, below, model="gru", rounds=1)
