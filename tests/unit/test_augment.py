"""Augmentation: exact where it can be, the client's own draw, and nothing where nothing is asked for."""

import numpy as np
import pytest
import torch

from partwise.errors import ConfigError
from partwise.rounds.augment import UNCHANGED, Augmentation, augmented, check_shape, parse_augmentation
from partwise.rounds.batches import Recipe, shuffled


def images(height=4, width=5, rows=3, channels=2):
    return torch.arange(rows * channels * height * width, dtype=torch.uint8).view(rows, channels, height, width)


def change(mirror=1.0, angle=0.0, down=0.0, right=0.0, rows=3):
    values = [mirror, np.cos(np.radians(angle)), np.sin(np.radians(angle)), down, right]
    return torch.tensor(values, dtype=torch.float64).expand(rows, 5)


def test_no_change_changes_nothing():
    assert torch.equal(augmented(images(), torch.tensor(UNCHANGED, dtype=torch.float64).expand(3, 5)), images())


def test_a_mirror_is_a_flip_of_the_columns():
    for width in (4, 5):
        assert torch.equal(augmented(images(width=width), change(mirror=-1.0)), images(width=width).flip(3))


def test_a_move_shifts_the_image_and_leaves_black_behind():
    moved = augmented(images(), change(down=1.0, right=-2.0))
    assert torch.equal(moved[:, :, 1:, :3], images()[:, :, :-1, 2:])
    assert not moved[:, :, 0].any() and not moved[:, :, :, 3:].any()


@pytest.mark.parametrize("side", [4, 5])
def test_quarter_turns_are_torchs_own(side):
    square = images(side, side)
    for quarters in (1, 2, 3):
        assert torch.equal(augmented(square, change(angle=90.0 * quarters)), square.rot90(-quarters, (2, 3)))


def test_turning_there_and_back_keeps_the_middle():
    disc = images(31, 31, rows=1, channels=1)
    back = augmented(augmented(disc.float(), change(angle=0.5, rows=1)), change(angle=-0.5, rows=1))
    assert torch.equal(back[:, :, 12:19, 12:19], disc.float()[:, :, 12:19, 12:19])


def test_every_image_has_its_own_change():
    both = torch.stack([change()[0], change(mirror=-1.0)[0], change(down=2.0)[0]])
    result = augmented(images(), both)
    assert torch.equal(result[0], images()[0]) and torch.equal(result[1], images()[1].flip(2))
    assert torch.equal(result[2, :, 2:], images()[2, :, :-2])


def test_under_vmap_a_block_of_clients_is_the_same_as_one_by_one():
    draws = torch.from_numpy(Augmentation(True, 30.0, 2).draw(np.random.default_rng(0), 12)).view(4, 3, 5)
    x = torch.stack([images(), images().flip(0), images().flip(3), 255 - images()])
    together = torch.func.vmap(augmented)(x, draws)
    assert torch.equal(together, torch.stack([augmented(one, draw) for one, draw in zip(x, draws, strict=True)]))


def test_draws_stay_in_their_ranges_and_use_them():
    mirror, cosine, sine, down, right = Augmentation(True, 30.0, 4).draw(np.random.default_rng(0), 4000).T
    assert set(mirror) == {-1.0, 1.0} and abs(mirror.mean()) < 0.1
    assert np.allclose(cosine**2 + sine**2, 1) and cosine.min() >= np.cos(np.radians(30))
    assert abs(sine).max() <= np.sin(np.radians(30)) and abs(sine).max() > 0.45 and abs(sine.mean()) < 0.02
    assert set(down) == set(right) == set(range(-4, 5))
    still = Augmentation().draw(np.random.default_rng(0), 7)
    assert np.array_equal(still, np.tile(UNCHANGED, (7, 1)))


def table(client=0, round=0, samples=9, **recipe):
    options = {"size": 4, "epochs": 2, "augmentation": Augmentation(True, 10.0, 1), **recipe}
    return shuffled(np.arange(samples) + 100, Recipe(**options), 0, client, round, "train", 0)


def test_changes_are_drawn_for_every_epoch_and_client_and_round():
    one = table()
    assert one.change.shape == (6, 1, 4, 5)
    assert np.array_equal(one.change, table().change)
    assert not np.array_equal(one.change[:3], one.change[3:])
    for other in (table(client=1), table(round=1)):
        assert not np.array_equal(one.change, other.change)
    assert np.array_equal(one.change[2, 0, 1:], np.tile(UNCHANGED, (3, 1))), "padding is left as it is"


def test_augmenting_moves_no_sample():
    assert np.array_equal(table().samples, table(augmentation=None).samples)
    assert not table(augmentation=None).change.size


def test_words_of_an_augmentation():
    assert parse_augmentation("flip") == Augmentation(flip=True)
    assert parse_augmentation("flip, rotate:30,crop:4") == Augmentation(True, 30.0, 4)
    for text, problem in {
        "flop": "did you mean 'flip'?",
        "rotate": "rotate:DEGREES (above 0, at most 180)",
        "rotate:nan": "is not allowed",
        "crop:0": "crop:PIXELS (at least 1)",
        "crop:1.5": "is not allowed",
        "flip:2": "is not allowed",
        "flip,flip": "it names flip twice",
        "": "unknown augmentation ''",
    }.items():
        with pytest.raises(ConfigError) as caught:
            parse_augmentation(text)
        assert problem in str(caught.value), text


def test_what_cannot_be_augmented_is_refused():
    with pytest.raises(ConfigError, match="augment applies to images only"):
        check_shape((12,), Augmentation(flip=True))
    with pytest.raises(ConfigError, match="crop:8 is too large for images of 8x8 pixels"):
        check_shape((1, 8, 8), Augmentation(pixels=8))
    check_shape((12,), None)
