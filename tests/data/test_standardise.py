"""Centre and scale from sums that clients share: what a central scaler finds, whoever holds which sample."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from partwise.data import Federation, Source
from partwise.data.standardise import centre_and_scale, client_moments, column_moments, merged, standardised
from partwise.data.transforms import TableTransform
from partwise.errors import DataError
from partwise.runs.config import make_config
from partwise.runs.prepare import prepare

RANDOM = np.random.default_rng(0)
# Ordinary numbers, tiny ones, large ones, a large offset with small noise, and one that never changes.
ROWS = torch.from_numpy(
    RANDOM.normal([0, 3, -5e4, 1e9, 0.1], [1, 1e-6, 4e3, 300, 0], (200, 5)).astype(np.float32)
)  # fmt: skip


def table(x: Tensor, standardise: bool = True) -> Source:
    y = torch.arange(len(x)) % 2
    names = tuple(f"f{feature}" for feature in range(x.shape[1]))
    return Source(
        "table", x, y, 2, len(x), (0.0,), (1.0,), "tabular", table=TableTransform(names, names), standardise=standardise
    )


def divided(x: Tensor, train: list[Tensor], test: Tensor | None = None) -> Federation:
    test = torch.arange(0) if test is None else test
    return Federation(table(x), train, [test] + [test[:0]] * (len(train) - 1), test)


def test_moments_by_hand() -> None:
    x = torch.tensor([[1.0, float("nan")], [4.0, 2.0], [float("inf"), 3.0]])
    assert column_moments(x).tolist() == [[2, 2], [2.5, 2.5], [4.5, 0.5]]
    # 1 and 4 of one client, 7 of another: the mean is 4, and the squares are 9 + 0 + 9.
    one, other = (torch.tensor([[count], [mean], [squares]]) for count, mean, squares in ((2.0, 2.5, 4.5), (1, 7.0, 0)))
    nobody = torch.zeros(3, 1)
    for order in ([one, other], [other, one], [nobody, one, nobody, other]):
        assert merged(order).flatten().tolist() == pytest.approx([3, 4, 18])
    centre, scale = centre_and_scale(torch.tensor([[2.0], [2.5], [4.5]]))
    assert (centre.item(), scale.item()) == (2.5, 1.5)  # 1 and 4: the mean, and how far both are from it


def test_nothing_is_told_of_a_column_with_few_filled_cells() -> None:
    nan = float("nan")
    x = torch.tensor([[1.0, nan], [2.0, 5.0], [3.0, nan]])
    assert client_moments(x, table(x), few=2, rare=1).tolist() == [[3, 0], [2, 0], [2, 0]]
    federation = divided(torch.cat([x, x + 1, torch.tensor([[1.0, 8.0], [1.0, 10.0]])]), list(torch.arange(8).split(3)))
    few = standardised(federation, few=2).source  # f1: 8 and 10 of the last client, nothing of the others
    assert few.centre[1] == 9 and few.scale[1] == 1
    with pytest.raises(DataError, match="no client has 3 filled training cells of 'f1'; --drop it"):
        standardised(federation, few=3)


def test_nothing_is_told_of_a_text_that_few_have_or_all_but_few() -> None:
    x = torch.zeros(10, 4)
    x[:3, 0], x[3:, 1], x[:1, 2] = 1, 1, 1  # 3 women, 7 men; one patient with a rare illness, and one that nobody has
    source = replace(
        table(x),
        table=TableTransform(("sex=f", "sex=m", "ill=x", "ill=y"), ("sex", "sex", "ill", "ill")),
    )
    assert client_moments(x, source, few=1, rare=1)[0].tolist() == [10, 10, 10, 10]
    assert client_moments(x, source, few=1, rare=3)[0].tolist() == [10, 10, 0, 0]
    assert client_moments(x, source, few=1, rare=4)[0].tolist() == [0, 0, 0, 0]
    assert client_moments(x, source, few=2, rare=1)[0].tolist() == [10, 10, 0, 0]  # one filled cell in `ill`
    federation = Federation(source, [torch.arange(10)], [torch.arange(0)], torch.arange(0))
    assert standardised(federation, rare=4).source.centre == (0, 0, 0, 0)  # a mark goes without


def test_equals_a_central_scaler_on_all_training_samples() -> None:
    federation = standardised(divided(ROWS, list(torch.arange(200).split([1, 150, 0, 49]))))
    reference = StandardScaler().fit(ROWS.double().numpy())
    assert federation.source.centre == pytest.approx(reference.mean_, rel=1e-9)
    assert federation.source.scale == pytest.approx(reference.scale_, rel=1e-9)
    assert federation.source.scale[4] == 1  # a constant
    assert torch.equal(federation.source.x, ROWS)  # the network subtracts and divides, not this


@given(st.lists(st.integers(0, 6), min_size=200, max_size=200), st.permutations(range(7)))
@settings(max_examples=25, deadline=None)
def test_does_not_depend_on_who_holds_which_sample(owners: list[int], order: list[int]) -> None:
    train = [torch.tensor([at for at, owner in enumerate(owners) if owner == client]).long() for client in order]
    one, many = (standardised(divided(ROWS, own)).source for own in ([torch.arange(200)], train))
    assert many.centre == pytest.approx(one.centre, rel=1e-12)
    assert many.scale == pytest.approx(one.scale, rel=1e-9)


def test_test_and_validation_samples_change_nothing() -> None:
    train, test, validation = torch.arange(200).split([100, 60, 40])
    federation = replace(divided(ROWS, [train], test), validation=[validation])
    other = ROWS.clone()
    other[100:] = torch.tensor([7.0, float("nan"), float("inf"), -1e30, 5.0])
    before, after = standardised(federation), standardised(replace(federation, source=table(other)))
    assert (before.source.centre, before.source.scale) == (after.source.centre, after.source.scale)


def test_noise_far_from_zero_is_not_lost() -> None:
    x = torch.tensor([[1e9 - 64], [1e9], [1e9 + 64]] * 50)  # neighbours as float32
    source = standardised(divided(x, [torch.arange(150)])).source
    assert source.centre == (1e9,)
    assert source.scale[0] == pytest.approx(64 * np.sqrt(2 / 3), rel=1e-12)


@given(
    st.floats(width=32, allow_nan=False, allow_infinity=False), st.lists(st.integers(0, 300), min_size=1, max_size=5)
)
@settings(max_examples=50, deadline=None)
def test_what_never_changes_has_scale_1(value: float, sizes: list[int]) -> None:
    x = torch.full((sum(sizes) + 1, 1), value)
    source = standardised(divided(x, list(torch.arange(len(x)).split([*sizes, 1])))).source
    assert (source.centre, source.scale) == ((x[0].item(),), (1.0,))


def test_images_are_standardised_by_channel() -> None:
    x = torch.arange(24.0).view(2, 3, 2, 2)
    source = standardised(divided(x, [torch.arange(2)])).source
    assert source.centre == (7.5, 11.5, 15.5)
    assert source.scale == pytest.approx([x[:, channel].std(correction=0).item() for channel in range(3)])


def test_empty_cells_become_the_mean_of_the_training_samples_where_that_is_asked_for() -> None:
    nan = float("nan")
    x = torch.tensor([[1.0, 10.0], [nan, 20.0], [5.0, nan], [100.0, nan]])
    federation = divided(x, [torch.tensor([0]), torch.tensor([1, 2])], test=torch.tensor([3]))
    filled = standardised(federation, fill=True)
    assert filled.source.x.tolist() == [[1, 10], [3, 20], [5, 15], [100, 15]]
    assert filled.source.centre == (3, 15)
    kept = standardised(federation)
    assert kept.source.centre == (3, 15)
    assert kept.source.x.isnan().sum() == 3
    assert x.isnan().sum() == 3  # what was handed in stays as it is


def test_a_column_without_any_value_cannot_be_filled() -> None:
    x = torch.tensor([[1.0, float("nan")], [2.0, float("nan")], [3.0, 4.0]])
    federation = divided(x, [torch.tensor([0, 1])], test=torch.tensor([2]))
    with pytest.raises(DataError, match="data set 'table': no training sample has a value of 'f1'; --drop it"):
        standardised(federation, fill=True)
    assert standardised(federation).source.scale == (0.5, 1)


def test_other_sources_are_left_alone() -> None:
    federation = divided(ROWS, [torch.arange(200)])
    federation = replace(federation, source=table(ROWS, standardise=False))
    assert standardised(federation, fill=True) is federation


def test_a_seed_does_not_take_labels_standardised_by_another() -> None:
    """Seeds that run side by side share what was read, but each has other training samples."""
    random = np.random.default_rng(1)
    data = (random.normal(size=(60, 3)), random.normal(size=60))
    configs = [make_config("fedavg", {"seed": seed, "clients": 3, "partition": "iid"}) for seed in (0, 1)]
    first = prepare(configs[0], data)
    beside, alone = prepare(configs[1], data, beside=first), prepare(configs[1], data)
    assert beside.federation.source.task == alone.federation.source.task != first.federation.source.task
    assert torch.equal(beside.federation.source.y, alone.federation.source.y)
