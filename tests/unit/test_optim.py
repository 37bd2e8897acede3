"""The optimisers are torch's, in float64 to 1e-12 over five steps."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import vmap

from partwise.rounds import optim

SHAPES = [(3, 4), (5,), ()]
NUMBERS = [(0.0, 0.0), (0.9, 0.0), (0.0, 0.01), (0.9, 0.01), (0.5, 1.0)]  # momentum, weight decay


def tensors(seed: int) -> list[Tensor]:
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=random, dtype=torch.float64) for shape in SHAPES]


def before_the_first_step(optimizer: str, momentum: float, tensor: Tensor) -> dict[str, Tensor]:
    """What the optimiser remembers about a tensor of one client."""
    return {name: value[0] for name, value in optim.initial_state(optimizer, momentum, tensor[None]).items()}


def ours(optimizer: str, rates: list[float], momentum: float, weight_decay: float) -> list[list[Tensor]]:
    """The tensors after each step, with the gradients of seeds 1, 2, ..."""
    values = tensors(0)
    slots = [before_the_first_step(optimizer, momentum, value) for value in values]
    history = []
    for number, rate in enumerate(rates):
        steps = [
            optim.step(optimizer, value, grad, slot, torch.tensor(rate, dtype=torch.float64), momentum, weight_decay)
            for value, grad, slot in zip(values, tensors(1 + number), slots, strict=True)
        ]
        values, slots = [step[0] for step in steps], [step[1] for step in steps]
        history.append(values)
    return history


def torchs(kind: type, rates: list[float], **options) -> list[list[Tensor]]:
    values = [value.requires_grad_() for value in tensors(0)]
    optimiser = kind(values, lr=rates[0], **options)
    history = []
    for number, rate in enumerate(rates):
        for value, grad in zip(values, tensors(1 + number), strict=True):
            value.grad = grad
        optimiser.param_groups[0]["lr"] = rate
        optimiser.step()
        history.append([value.detach().clone() for value in values])
    return history


def assert_close(one: list[list[Tensor]], two: list[list[Tensor]]) -> None:
    for step, (first, second) in enumerate(zip(one, two, strict=True)):
        for mine, theirs in zip(first, second, strict=True):
            assert mine.shape == theirs.shape and mine.dtype == theirs.dtype
            assert float((mine - theirs).abs().max()) < 1e-12, step


CONSTANT, DECAYING = [0.1] * 5, [0.1 * 0.7**step for step in range(5)]


@pytest.mark.parametrize(("momentum", "weight_decay"), NUMBERS)
@pytest.mark.parametrize("rates", [CONSTANT, DECAYING], ids=["constant", "decaying"])
def test_sgd_is_torchs(rates, momentum, weight_decay):
    options = {"momentum": momentum, "weight_decay": weight_decay}
    assert_close(ours("sgd", rates, **options), torchs(torch.optim.SGD, rates, **options))


@pytest.mark.parametrize("weight_decay", [0.0, 0.01, 0.5])
@pytest.mark.parametrize("rates", [CONSTANT, DECAYING], ids=["constant", "decaying"])
def test_adamw_is_torchs(rates, weight_decay):
    mine = ours("adamw", rates, momentum=0.0, weight_decay=weight_decay)
    assert_close(mine, torchs(torch.optim.AdamW, rates, weight_decay=weight_decay))


def test_plain_sgd_remembers_nothing_momentum_one_tensor_and_adamw_two_and_a_number_for_each_client():
    tensors = torch.ones(4, 3)
    assert optim.initial_state("sgd", 0.0, tensors) == {}
    momentum, adamw = optim.initial_state("sgd", 0.9, tensors), optim.initial_state("adamw", 0.0, tensors)
    assert {name: value.shape for name, value in momentum.items()} == {"momentum": (4, 3)}
    assert {name: value.shape for name, value in adamw.items()} == {"first": (4, 3), "second": (4, 3), "steps": (4,)}
    assert not any(value.any() for value in (*momentum.values(), *adamw.values()))
    assert len({value.data_ptr() for value in adamw.values()}) == 3


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_step_changes_none_of_its_inputs(optimizer):
    tensor, grad = tensors(0)[0], tensors(1)[0]
    slot = before_the_first_step(optimizer, 0.9, tensor)
    before = [value.clone() for value in (tensor, grad, *slot.values())]
    optim.step(optimizer, tensor, grad, slot, 0.1, 0.9, 0.01)
    assert all(torch.equal(one, two) for one, two in zip(before, (tensor, grad, *slot.values()), strict=True))


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_step_under_vmap_is_that_of_each_client(optimizer):
    tensor, grad = tensors(0)[0], tensors(1)[0]
    slot = optim.initial_state(optimizer, 0.9, tensor)

    def step(tensor, grad, slot):
        return optim.step(optimizer, tensor, grad, slot, 0.1, 0.9, 0.01)

    together, memory = vmap(step)(tensor, grad, slot)
    for client in range(len(tensor)):
        alone, remembered = step(tensor[client], grad[client], {name: value[client] for name, value in slot.items()})
        assert float((together[client] - alone).abs().max()) < 1e-15
        assert all(float((memory[name][client] - remembered[name]).abs().max()) < 1e-15 for name in remembered)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**31), scale=st.floats(1e-3, 1e3), largest=st.floats(1e-2, 1e2))
def test_clipping_is_torchs(seed, scale, largest):
    grads = {str(number): scale * grad for number, grad in enumerate(tensors(seed))}
    parameters = [torch.zeros_like(grad, requires_grad=True) for grad in grads.values()]
    for parameter, grad in zip(parameters, grads.values(), strict=True):
        parameter.grad = grad.clone()
    norm = torch.nn.utils.clip_grad_norm_(parameters, largest)
    clipped = optim.clip_gradients(grads, largest)
    for mine, parameter in zip(clipped.values(), parameters, strict=True):
        assert float((mine - parameter.grad).abs().max()) <= 1e-12 * max(1.0, scale)
    after = torch.stack([grad.square().sum() for grad in clipped.values()]).sum().sqrt()
    assert float(after) <= largest
    if norm < largest - 1e-5:
        assert all(torch.equal(clipped[name], grads[name]) for name in grads)


def test_clipping_looks_at_all_parts_together():
    """Two gradients of norm 3 and 4 have norm 5 together: at 2.5 both are halved."""
    clipped = optim.clip_gradients(
        {"body": torch.tensor([3.0]).double(), "head": torch.tensor([0.0, 4.0]).double()}, 2.5
    )
    assert clipped["body"].tolist() == pytest.approx([1.5], rel=1e-6)
    assert clipped["head"].tolist() == pytest.approx([0.0, 2.0], rel=1e-6)
