"""Laws of mini-batches: an epoch is one pass, a remainder is kept, and a client's draws are its own."""

import math
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partwise.rounds.batches import PhaseBatches, Recipe, ordered, shuffled

law = settings(max_examples=80, deadline=None)
sizes = st.integers(1, 9)


def client(number: int) -> np.ndarray:
    """The samples of a client: any numbers, none of them 0, none twice, in no order."""
    return np.random.default_rng(number).permutation(np.arange(3, 3 + 2 * number, 2))


def visited(table: PhaseBatches) -> list[list[int]]:
    """The samples of every step, over all of its mini-batches."""
    pairs = zip(table.samples, table.real, strict=True)
    return [index[:, :count].reshape(-1).tolist() for index, count in pairs]


def flat(steps: list[list[int]]) -> list[int]:
    return list(chain.from_iterable(steps))


def draw(
    samples: np.ndarray, recipe: Recipe, seed: int = 0, owner: int = 0, round: int = 0, phase: int = 0
) -> PhaseBatches:
    return shuffled(samples, recipe, seed, owner, round, "train", phase)


# ------------------------------------------------------------------------------------------------- one pass


@law
@given(number=st.integers(1, 60), size=sizes, epochs=st.integers(1, 3))
def test_an_epoch_visits_every_sample_exactly_once_and_keeps_the_remainder(number, size, epochs):
    samples = client(number)
    table = draw(samples, Recipe(size, epochs))
    steps = math.ceil(number / size)
    assert table.steps == epochs * steps
    assert table.samples.shape == (epochs * steps, 1, size) and table.samples.dtype == np.int64
    remainder = number - (steps - 1) * size
    assert table.real.tolist() == ([size] * (steps - 1) + [remainder]) * epochs
    for epoch in range(epochs):
        seen = flat(visited(table)[epoch * steps : (epoch + 1) * steps])
        assert sorted(seen) == sorted(samples)


@law
@given(number=st.integers(0, 60), size=st.integers(2, 9), epochs=st.integers(1, 2))
def test_with_batch_norm_exactly_the_mini_batch_of_one_is_skipped(number, size, epochs):
    samples = client(number)
    table = draw(samples, Recipe(size, epochs, smallest=2))
    plain = draw(samples, Recipe(size, epochs))
    assert visited(table) == [step for step in visited(plain) if len(step) > 1]
    assert plain.steps - table.steps == epochs * (number % size == 1)


def test_a_client_of_one_sample_takes_no_step_with_batch_norm_and_one_without():
    assert draw(client(1), Recipe(8, 3, smallest=2)).steps == 0
    assert draw(client(1), Recipe(8, 3)).steps == 3


@law
@given(number=st.integers(0, 60), size=sizes)
def test_drop_last_leaves_out_the_incomplete_mini_batch_but_never_all_of_a_client(number, size):
    samples = client(number)
    table, plain = draw(samples, Recipe(size, 1, drop_last=True)), visited(draw(samples, Recipe(size, 1)))
    if number < size:
        assert visited(table) == plain  # fewer samples than a mini-batch: still trained on
    else:
        assert visited(table) == [step for step in plain if len(step) == size]
        assert table.steps == number // size


def test_a_client_without_samples_takes_no_step():
    empty = np.array([], dtype=np.int64)
    for recipe in (Recipe(4, 2), Recipe(4, 2, steps=5), Recipe(4, 2, batches=2, smallest=2)):
        table = draw(empty, recipe)
        assert table.steps == 0 and table.samples.shape == (0, recipe.batches, 4)


# ------------------------------------------------------------------------------------------- two disjoint halves


@law
@given(number=st.integers(0, 60), size=st.integers(2, 9), smallest=st.sampled_from([1, 2]))
def test_two_mini_batches_a_step_take_twice_the_samples_and_halve_the_remainder(number, size, smallest):
    samples = client(number)
    table = draw(samples, Recipe(size, 1, batches=2, smallest=smallest))
    full, rest = divmod(number, 2 * size)
    half = rest // 2
    assert table.real.tolist() == [size] * full + [half] * (half >= smallest)
    assert table.samples.shape[1:] == (2, size)
    seen = flat(visited(table))
    assert len(seen) == len(set(seen)) and set(seen) <= set(samples)
    # the same shuffle as ever: a step is the next samples of the order, first half first
    order = flat(visited(draw(samples, Recipe(size, 1))))
    place = 0
    for step, count in zip(table.samples, table.real, strict=True):
        assert step[0, :count].tolist() == order[place : place + count]
        assert step[1, :count].tolist() == order[place + count : place + 2 * count]
        place += 2 * count


@pytest.mark.parametrize(
    ("number", "smallest", "counts"),
    [
        (16, 1, [4, 4]),  # two full steps of 2 x 4
        (11, 1, [4, 1]),  # a remainder of 3: halves of 1
        (11, 2, [4]),  # too small with batch-norm
        (12, 2, [4, 2]),
        (9, 1, [4]),  # a remainder of 1 has no halves
        (3, 2, []),
        (1, 1, []),
    ],
)
def test_halves_by_hand(number, smallest, counts):
    assert draw(client(number), Recipe(4, 1, batches=2, smallest=smallest)).real.tolist() == counts


# ------------------------------------------------------------------------------------------- epochs and steps


@pytest.mark.parametrize(
    ("epochs", "steps"), [(0.5, 3), (0.2, 1), (0.25, 2), (1.0, 5), (1.2, 6), (1.5, 8), (2, 10), (0.01, 1)]
)
def test_a_fraction_of_an_epoch_is_rounded_up_to_whole_steps(epochs, steps):
    table = draw(client(18), Recipe(4, epochs))  # 5 steps an epoch
    assert table.steps == steps
    whole = draw(client(18), Recipe(4, math.ceil(epochs)))
    assert np.array_equal(table.samples, whole.samples[:steps]) and np.array_equal(table.real, whole.real[:steps])


@law
@given(number=st.integers(1, 40), size=sizes, steps=st.integers(1, 30))
def test_a_number_of_steps_goes_round_the_samples_epoch_after_epoch(number, size, steps):
    table = draw(client(number), Recipe(size, epochs=99, steps=steps))
    an_epoch = math.ceil(number / size)
    whole = draw(client(number), Recipe(size, epochs=math.ceil(steps / an_epoch)))
    assert table.steps == steps
    assert np.array_equal(table.samples, whole.samples[:steps]) and np.array_equal(table.real, whole.real[:steps])


# ------------------------------------------------------------------------------------------------ whose draws?


@law
@given(number=st.integers(1, 40), size=sizes, seed=st.integers(0, 2**40))
def test_the_same_names_draw_the_same_table(number, size, seed):
    one, two = (draw(client(number), Recipe(size, 2), seed, 3, 5) for _ in range(2))
    for field in ("samples", "real", "key"):
        assert np.array_equal(getattr(one, field), getattr(two, field))


def test_seed_client_round_job_phase_and_epoch_each_change_the_order_and_the_keys():
    samples, recipe = np.arange(100), Recipe(100, 1)
    names = [(0, 0, 0, "train", 0), (1, 0, 0, "train", 0), (0, 1, 0, "train", 0), (0, 0, 1, "train", 0)]
    names += [(0, 0, 0, "adapt", 0), (0, 0, 0, "train", 1)]
    tables = [shuffled(samples, recipe, seed, *rest) for seed, *rest in names]
    assert len({table.samples.tobytes() for table in tables}) == len(names)
    assert len({int(table.key[0]) for table in tables}) == len(names)
    two_epochs = shuffled(samples, Recipe(100, 2), *names[0])
    assert np.array_equal(two_epochs.samples[0], tables[0].samples[0])
    assert not np.array_equal(two_epochs.samples[1], two_epochs.samples[0])


def test_a_clients_draws_depend_neither_on_the_others_nor_on_the_order_in_which_they_are_drawn():
    recipe = Recipe(4, 2)
    clients = {number: client(10 + number) for number in range(5)}
    alone = draw(clients[2], recipe, owner=2)
    forwards = {number: draw(samples, recipe, owner=number) for number, samples in clients.items()}
    backwards = {number: draw(clients[number], recipe, owner=number) for number in reversed(clients)}
    for tables in (forwards, backwards):
        assert np.array_equal(tables[2].samples, alone.samples) and np.array_equal(tables[2].key, alone.key)


def test_the_order_is_uniform():
    """Each of the 6 orders of 3 samples about as often as the others: chi-square of 600 draws, 5 degrees of freedom."""
    orders = [draw(np.arange(3), Recipe(3, 1), round=round).samples.tobytes() for round in range(600)]
    counts = np.unique(orders, return_counts=True)[1]
    assert len(counts) == 6
    assert ((counts - 100) ** 2 / 100).sum() < 25.7  # the 0.9999 quantile


# ------------------------------------------------------------------------------------------ padding and keys


@law
@given(number=st.integers(1, 40), size=sizes, batches=st.sampled_from([1, 2]))
def test_padding_repeats_the_clients_own_first_sample(number, size, batches):
    samples = client(number)
    table = draw(samples, Recipe(size, 1, batches=batches))
    for index, count in zip(table.samples, table.real, strict=True):
        assert (index[:, count:] == samples[0]).all()


@law
@given(steps=st.integers(2, 400), seed=st.integers(0, 2**40))
def test_the_keys_of_dropout_differ_between_steps_and_fit_32_bits(steps, seed):
    table = draw(client(5), Recipe(3, 1, steps=steps), seed)
    assert len(set(table.key.tolist())) == steps
    assert table.key.dtype == np.int64 and (table.key >= 0).all() and (table.key < 2**32).all()


# -------------------------------------------------------------------------------------------- reports, predictions


@law
@given(number=st.integers(0, 60), size=sizes)
def test_reports_and_predictions_take_every_sample_once_and_in_order(number, size):
    samples = client(number)
    table = ordered(samples, size)
    assert flat(visited(table)) == samples.tolist()
    assert table.steps == math.ceil(number / size)
    assert all(count == size for count in table.real[:-1])
    for index, count in zip(table.samples, table.real, strict=True):
        assert (index[:, count:] == samples[0]).all()
