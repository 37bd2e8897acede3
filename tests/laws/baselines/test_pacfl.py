"""PACFL: principal angles by hand, and clusters that were planted."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from partwise import Federation, Source
from partwise.errors import ConfigError
from partwise.methods import find
from partwise.network.view import Batch, ClassRows
from partwise.tasks import Classes
from tests.support.runs import awkward_federation, network, simulate

PACFL = find("pacfl")


def test_angles_between_planes_by_hand():
    """Between a line and itself turned by 30 degrees; between the planes xy and xz: 0 and 90 degrees."""
    line, turned = np.array([[1.0], [0.0], [0.0]]), np.array([[np.sqrt(3) / 2], [0.5], [0.0]])
    assert PACFL().angles([line, turned]) == pytest.approx(np.array([[0, 30], [30, 0]]))
    planes = [np.eye(3)[:, [0, 1]], np.eye(3)[:, [0, 2]]]
    assert PACFL().angles(planes)[0, 1] == pytest.approx(0, abs=1e-6)
    assert PACFL(angle="sum").angles(planes)[0, 1] == pytest.approx(90)


def test_directions_are_the_leading_ones_of_each_class():
    """Class 0 lies along x, longest, and y; class 2 has one sample; class 1 none."""
    x = torch.tensor([[5.0, 0, 0], [0, 1, 0], [4, 0, 0], [0, 0, 2]], dtype=torch.float64)
    b = Batch(x - 3, torch.tensor([0, 0, 0, 2]), torch.ones(4, dtype=torch.bool), Classes.numbered(3), raw=x)
    rows = PACFL(directions=2).describe(b)["directions"]
    assert rows.counts.tolist() == [1, 0, 1]
    directions = rows.sums.reshape(3, 2, 3).abs()
    expected = torch.zeros(3, 2, 3, dtype=torch.float64)
    expected[0, 0, 0] = expected[0, 1, 1] = expected[2, 0, 2] = 1
    assert torch.allclose(directions, expected, atol=1e-12)


def test_who_has_no_samples_joins_the_largest_cluster():
    """Four clients of two classes: one along y, one without samples, one along x, one along x turned by 30 degrees."""
    sums = torch.zeros(3, 2, 3, dtype=torch.float64)
    sums[0, 0, 1] = sums[1, 0, 0] = 1
    sums[2, 1, 0], sums[2, 1, 1] = 0.75**0.5, 0.5
    rows = ClassRows(sums, sums.any(2).double())
    updates = SimpleNamespace(clients=[0, 2, 3], extras={"directions": rows})
    server = SimpleNamespace(clients=4, memory={}, tell_once=lambda line: None)
    method = PACFL(directions=1)
    method.begin(server, lambda job, who: updates)
    expected = torch.tensor([[0, 90, 60], [90, 0, 30], [60, 30, 0]], dtype=torch.float64)
    assert torch.allclose(server.memory["angles"], expected, rtol=0, atol=1e-9) and PACFL.predict_global is None
    assert method.groups(server).tolist() == [0, 1, 1, 1]  # 30 is less than half of 75, at which the last two meet


def test_single_vectors_by_hand():
    """At 45 and 30 degrees to the axes: the nearest two vectors; the plane of the axes holds all three."""
    axes = np.eye(3)[:, :2]
    diagonal, turned = np.array([[1.0], [-1.0], [0.0]]) / np.sqrt(2), np.array([[-np.sqrt(3) / 2], [0.5], [0.0]])
    angles = PACFL(angle="vectors").angles([axes, diagonal, turned])
    assert angles == pytest.approx(np.array([[0, 45, 30], [45, 0, 15], [30, 15, 0]]))
    assert PACFL().angles([axes, diagonal, turned])[0] == pytest.approx(0, abs=1e-6)


def planted():
    """Six clients whose images vary in the upper or in the lower half: 0, 2, 5 and 1, 3, 4."""
    random, kinds = np.random.default_rng(3), [0, 1, 0, 1, 1, 0]
    x, y, train, test = [], [], [], []
    for kind in kinds:
        images = np.zeros((24, 1, 8, 8))
        images[:, :, 4 * kind : 4 * kind + 4] = random.normal(0, 60, (1, 1, 4, 8)) * 0 + random.normal(
            0, 60, (24, 1, 4, 8)
        )
        x.append(np.clip(images + 127.5, 0, 255).astype(np.uint8))
        y.append(random.integers(0, 4, 24))
    for client in range(6):
        mine = torch.arange(24) + 24 * client
        train.append(mine[:18])
        test.append(mine[18:])
    samples, labels = torch.from_numpy(np.concatenate(x)), torch.from_numpy(np.concatenate(y))
    source = Source("planted", samples, labels, 4, len(labels), (127.5,), (127.5,), "cnn-digits")
    return Federation(source, train, test, torch.cat(test))


@pytest.mark.parametrize("settings", [{"clusters": 2}, {"angle": "sum", "clusters": 2}])
def test_planted_clusters_are_found(settings):
    run = simulate("pacfl", network("mlp"), planted(), rounds=1, **settings)
    assert run.server.groups.tolist() == [0, 1, 0, 1, 1, 0]
    angles = run.server.memory["angles"]
    assert torch.equal(angles, angles.T) and not angles.diagonal().any()
    kinds = torch.tensor([0, 1, 0, 1, 1, 0])
    same = (kinds[:, None] == kinds) & ~torch.eye(6, dtype=torch.bool)
    assert angles[same].max() < angles[kinds[:, None] != kinds].min()


def test_each_cluster_is_fedavg_among_its_members():
    federation = planted()
    run = simulate("pacfl", network("mlp"), federation, rounds=2, clusters=2)
    members = [0, 2, 5]
    fewer = Federation(
        federation.source,
        [own if client in members else own[:0] for client, own in enumerate(federation.train)],
        federation.test,
        federation.global_test,
    )
    alone = simulate("fedavg", network("mlp"), fewer, rounds=2)
    for name, copies in run.server.copies.items():
        assert torch.allclose(copies.of([0])[0], alone.server.copies[name].values[0], rtol=0, atol=1e-12)


def test_a_threshold_of_nothing_leaves_everybody_alone_and_a_large_one_joins_all():
    alone, joined = (simulate("pacfl", network("mlp"), planted(), rounds=1, threshold=t) for t in (1e-3, 180.0))
    assert len(set(alone.server.groups.tolist())) == 6 and set(joined.server.groups.tolist()) == {0}


def test_directions_travel_once_for_the_classes_that_a_client_has():
    run = simulate("pacfl", network("mlp"), planted(), rounds=1, directions=2, clusters=2)
    federation = planted()
    classes = sum(len(federation.source.y[own].unique()) for own in federation.train)
    once = run.server.ledger.as_dict()["once"]
    assert once["up"] == {"directions": classes * (2 * 64 * 8 + 2 * 4)} and not once["down"]


def test_more_clusters_than_clients_are_refused():
    with pytest.raises(ConfigError, match="clusters = 9 is more than the 8 clients"):
        simulate("pacfl", network("mlp"), awkward_federation(), rounds=1, clusters=9)


def with_a_common_mean(kind):
    """Eight clients whose classes vary little about one mean. Even ones and odd ones differ in classes, or in images.

    `labels`: classes 0 and 1, or 2 and 3. `domains`: all four, about other images.
    """
    random = np.random.default_rng(0)
    common = random.uniform(90, 160, (8, 8))
    classes = common + random.normal(0, 12, (2, 4, 8, 8))  # of either domain
    y, odd = random.integers(0, 2 if kind == "labels" else 4, (8, 34)), np.arange(8)[:, None] % 2
    if kind == "labels":
        y, images = y + 2 * odd, classes[0][y + 2 * odd]
    else:
        images = classes[odd, y]
    x = np.clip(images + random.normal(0, 10, images.shape), 0, 255).astype(np.uint8)
    place = torch.arange(y.size).view(8, 34)
    samples, labels = torch.from_numpy(x.reshape(-1, 1, 8, 8)), torch.from_numpy(y.reshape(-1))
    source = Source("common", samples, labels, 4, len(labels), (127.5,), (127.5,), "cnn-digits")
    return Federation(source, list(place[:, :30]), list(place[:, 30:]), place[:, 30:].reshape(-1))


@pytest.mark.parametrize("angle", ["smallest", "vectors"])
@pytest.mark.parametrize("kind", ["labels", "domains"])
def test_with_the_defaults_two_groups_of_images_with_a_large_common_mean_are_separated(kind, angle, caplog):
    run = simulate("pacfl", network("mlp"), with_a_common_mean(kind), rounds=1, angle=angle)
    assert run.server.groups.tolist() == [0, 1] * 4 and "cluster:" not in caplog.text
    assert run.server.memory["angles"].max() < 10  # all spans hold the common mean: a fixed 10 degrees joins everybody


def test_how_the_network_sees_samples_makes_no_difference():
    """Directions are those of the samples as they are stored."""
    federation = with_a_common_mean("labels")
    other = replace(federation, source=replace(federation.source, centre=(0.0,), scale=(17.0,)))
    one, two = (simulate("pacfl", network("mlp"), each, rounds=1) for each in (federation, other))
    assert torch.equal(one.server.memory["angles"], two.server.memory["angles"])
