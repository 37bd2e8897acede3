"""Partitions as laws, for any (samples, classes, clients, rule), and small cases that can be checked by hand."""

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from partwise.data import Federation, Source, load, parse_rule, partition, partitions, rule_counts
from partwise.data.rules import Rule
from partwise.data.source import Column
from partwise.errors import ConfigError
from partwise.streams import stream
from tests.support.searching import for_any

alphas = st.floats(-3, 3).map(lambda exponent: 10**exponent) | st.floats(5e-324, 1e308)


@dataclass(frozen=True)
class Case:
    """A source and how it is to be divided."""

    source: Source
    clients: int
    settings: dict[str, Any]

    def divide(self, seed: int = 0, **changes: Any) -> Federation:
        with patch.object(rule_counts, "MOST_DRAWS", 100):  # what cannot be reached is not waited for
            return partition(self.source, clients=self.clients, seed=seed, **{**self.settings, **changes})


def labelled(train: list[int], test: list[int], order: np.random.Generator) -> Source:
    """A source with so many samples of each class, in random order."""
    labels = [order.permutation(np.repeat(np.arange(len(part)), part)) for part in (train, test)]
    y = torch.from_numpy(np.concatenate(labels))
    return Source("any", torch.zeros(len(y), 1, 1, 1, dtype=torch.uint8), y, len(train), sum(train), (0.0,), (1.0,))


@st.composite
def cases(draw: st.DrawFn, kinds: tuple[str, ...] = ("dir", "hsu", "pat", "quantity", "iid")) -> Case:
    classes = draw(st.integers(1, 6))
    train = draw(st.lists(st.integers(1, 60), min_size=classes, max_size=classes))
    test = draw(st.lists(st.integers(1, 30), min_size=classes, max_size=classes))
    source = labelled(train, test, np.random.default_rng(draw(st.integers(0, 99))))
    kind = draw(st.sampled_from(kinds))
    value = {"pat": st.integers(1, classes), "iid": st.none()}.get(kind, alphas)
    chosen: dict[str, Any] = {
        "rule": kind if kind == "iid" else f"{kind}:{draw(value)}",
        "split": draw(st.sampled_from(("merged", "original"))),
        "min_samples": draw(st.none() | st.integers(0, 8)),
        "validation": draw(st.sampled_from((0.0, 0.1, 0.29, 0.5))),
        "test_share": draw(st.sampled_from((0.1, 0.25, 0.8))),
        "cap": kind == "dir" and draw(st.booleans()),
        "balance": kind == "pat" and draw(st.booleans()),
    }
    return Case(source, draw(st.integers(1, 12)), chosen)


def divided(case: Case, **changes: Any) -> Federation:
    """The case's partition; cases that are refused are left out."""
    try:
        return case.divide(**changes)
    except ConfigError:
        assume(False)
        raise


def table(source: Source, parts: list[Tensor]) -> np.ndarray:
    """(classes, clients): how many samples of each class every client has."""
    return np.stack([source.y[part].bincount(minlength=source.classes).numpy() for part in parts], axis=1)


def concatenated(*parts: list[Tensor]) -> list[Tensor]:
    return [torch.cat(own) for own in zip(*parts, strict=True)]


def equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@for_any(cases(), few=60, many=300)
def test_every_sample_goes_to_exactly_one_client_and_one_use(case: Case) -> None:
    federation, source = divided(case), case.source
    assert federation.clients == len(federation.test) == len(federation.validation) == case.clients
    trained = torch.cat(concatenated(federation.train, federation.validation)).sort().values
    tested = torch.cat(federation.test).sort().values
    everything = torch.arange(len(source.y))
    if case.settings["split"] == "merged":
        assert torch.equal(torch.cat([trained, tested]).sort().values, everything)
    else:
        assert torch.equal(trained, everything[: source.train])
        assert torch.equal(tested, everything[source.train :])
    assert torch.equal(federation.global_test, tested)
    assert all(own.dtype == torch.int64 for own in (*federation.train, *federation.test, *federation.validation))


@for_any(cases(), few=50, many=200)
def test_sizes_are_as_asked_for(case: Case) -> None:
    federation, asked = divided(case), case.settings
    for train, validation, test in zip(federation.train, federation.validation, federation.test, strict=True):
        own = len(train) + len(validation)
        assert len(validation) == int(Fraction(str(asked["validation"])) * own)
        if asked["split"] == "merged":
            own += len(test)
            wanted = max(Fraction(str(asked["test_share"])) * own, Fraction(1))  # one for testing, if that leaves one
            assert abs(len(test) - min(wanted, Fraction(max(own - 1, 0)))) <= Fraction(1, 2)
        default = 10 if asked["rule"].startswith(("dir", "quantity")) else 1
        assert own >= (default if asked["min_samples"] is None else asked["min_samples"])


@for_any(cases(), st.integers(0, 2**32), few=30, many=120)
def test_the_same_seed_gives_the_same_partition(case: Case, seed: int) -> None:
    one, other = divided(case, seed=seed), case.divide(seed=seed)
    assert equal(one.train, other.train)
    assert equal(one.test, other.test)
    assert equal(one.validation, other.validation)


@pytest.mark.parametrize("rule", ["dir:0.5", "dir:100", "hsu:1", "pat:2", "quantity:5", "iid"])
@pytest.mark.parametrize("split", ["merged", "original"])
def test_another_seed_gives_another_partition(rule: str, split: str) -> None:
    one, other = (partition(load("made"), rule, 20, seed, split=split, validation=0.2) for seed in (0, 1))
    for mine, yours in ((one.train, other.train), (one.test, other.test), (one.validation, other.validation)):
        assert not any(torch.equal(a, b) for a, b in zip(mine, yours, strict=True))


def test_the_seed_reaches_every_kind_of_draw() -> None:
    made = load("made")
    for rule in ("dir:0.5", "hsu:1", "pat:2", "quantity:5", "iid"):  # how many samples of each class
        tables = [partition(made, rule, 20, seed, split="original").class_counts() for seed in (0, 1)]
        assert not torch.equal(*tables)
    one, other = (partition(made, "dir:1e308", 10, seed, split="original").train for seed in (0, 1))
    assert np.array_equal(table(made, one), table(made, other))  # which samples of a class, where all get as many
    assert not equal(one, other)
    one, other = (partition(made, "iid", 1, seed).test for seed in (0, 1))  # which of the client's own are for testing
    assert not equal(one, other)


def test_clients_draw_their_test_samples_independently() -> None:
    federation = partition(load("made"), "iid", 2, seed=0)
    own = [part.sort().values for part in concatenated(federation.train, federation.test)]
    one, other = (torch.searchsorted(*pair) for pair in zip(own, federation.test, strict=True))
    assert len(one) == len(other)
    assert not torch.equal(one, other)


def test_validation_is_rounded_down_exactly() -> None:
    source = labelled([50, 50], [1, 1], np.random.default_rng(0))
    federation = partition(source, "iid", 1, seed=0, split="original", validation=0.29)
    assert len(federation.validation[0]) == 29  # though 0.29 * 100 is 28.999999999999996


@for_any(cases(), st.sampled_from((0.0, 0.2, 0.6)), st.sampled_from((0.1, 0.5)), few=30, many=120)
def test_shares_for_validation_and_testing_move_no_sample_between_clients(
    case: Case, validation: float, test_share: float
) -> None:
    one, other = divided(case), case.divide(validation=validation)
    assert equal(one.test, other.test)
    other = case.divide(validation=validation, test_share=test_share)
    whole = [concatenated(part.train, part.validation, part.test) for part in (one, other)]
    assert equal(*([own.sort().values for own in parts] for parts in whole))


@for_any(cases(kinds=("hsu", "pat", "quantity", "iid")), few=40, many=150)
def test_matched_tests_follow_the_clients_shares_by_largest_remainder(case: Case) -> None:
    federation = divided(case, split="original")
    held = table(case.source, concatenated(federation.train, federation.validation))
    tests = table(case.source, federation.test)
    for row, test in zip(held, tests, strict=True):
        wanted = [Fraction(int(n), int(row.sum())) * int(test.sum()) for n in row]
        assert all(abs(n - exact) < 1 for n, exact in zip(test.tolist(), wanted, strict=True))
        up = [exact % 1 for n, exact in zip(test.tolist(), wanted, strict=True) if n > exact]
        down = [exact % 1 for n, exact in zip(test.tolist(), wanted, strict=True) if n <= exact]
        assert min(up, default=1) >= max(down) - 1e-9


@for_any(cases(kinds=("dir",)), few=40, many=150)
def test_matched_tests_of_dir_follow_the_same_draw_as_training(case: Case) -> None:
    with patch.object(partitions, "largest_remainder", side_effect=partitions.largest_remainder) as rounded:
        federation = divided(case, split="original")
    shares = np.stack([call.args[0] for call in rounded.call_args_list])
    train = table(case.source, concatenated(federation.train, federation.validation))
    test = table(case.source, federation.test)
    assert np.abs(shares.sum(axis=1) - 1).max() < 1e-12
    assert np.abs(test - shares * test.sum(axis=1, keepdims=True)).max() < 1  # rounded to a neighbour
    cuts = shares.cumsum(axis=1) * train.sum(axis=1, keepdims=True)
    assert (train.cumsum(axis=1) <= cuts + 1e-9).all()  # cut at the cumulative shares, rounded down
    assert (train.cumsum(axis=1) > cuts - 1 - 1e-9).all()


def test_largest_remainder_by_hand() -> None:
    assert partitions.largest_remainder(np.array([0.5, 0.3, 0.2]), 7).tolist() == [4, 2, 1]  # 3.5, 2.1, 1.4
    assert partitions.largest_remainder(np.array([0.1, 0.45, 0.45]), 4).tolist() == [0, 2, 2]  # 0.4, 1.8, 1.8
    assert partitions.largest_remainder(np.array([0.25] * 4), 6).tolist() == [2, 2, 1, 1]  # equal: the first
    assert partitions.largest_remainder(np.array([1.0, 0.0]), 0).tolist() == [0, 0]


@pytest.mark.parametrize("alpha", [0.02, 0.3, 1.0, 40.0])
def test_shares_are_dirichlet(alpha: float) -> None:
    clients = 5
    sizes = np.full(3000, 10**15)  # so large that the counts are the shares
    counts, shares = next(rule_counts.dirichlet(stream(3, "law"), sizes, clients, alpha, cap=False))
    assert np.allclose(counts / 10**15, shares, atol=1e-14)
    for client in range(clients):
        assert stats.kstest(shares[:, client], stats.beta(alpha, (clients - 1) * alpha).cdf).pvalue > 0.001
    wanted = -1 / (clients**2 * (clients * alpha + 1))
    assert np.cov(shares.T)[0, 1] == pytest.approx(wanted, rel=0.2)


@for_any(cases(kinds=("dir",)), few=40, many=150)
def test_cap_gives_no_further_class_to_a_client_with_an_even_share(case: Case) -> None:
    federation = divided(case, cap=True)
    parts = [federation.train, federation.validation] + [federation.test] * (case.settings["split"] == "merged")
    held = table(case.source, concatenated(*parts))
    before = held.cumsum(axis=0) - held
    assert (before[held > 0] < held.sum() / case.clients).all()


def test_a_client_without_a_share_gets_nothing() -> None:
    shares = np.array([[0.1] * 7 + [1 - 0.1 * 7, 0.0]])  # adds up to a little less than 1
    assert shares.cumsum()[-1] < 1
    counts = rule_counts.cut_classes(shares, np.array([1000]))
    assert (counts[0, -1], counts.sum()) == (0, 1000)


def test_without_cap_a_client_may_exceed_its_share() -> None:
    sizes = [max(map(len, partition(load("digits"), "dir:0.1", 10, seed=0, cap=cap).train)) for cap in (False, True)]
    assert sizes[0] > sizes[1]


@for_any(cases(kinds=("pat",)), few=40, many=150)
def test_pat_gives_each_client_its_number_of_classes_and_each_class_its_number_of_holders(case: Case) -> None:
    federation, least = divided(case, split="merged"), case.settings["min_samples"]
    held = table(case.source, concatenated(federation.train, federation.validation, federation.test))
    classes = parse_rule(case.settings["rule"]).classes
    assert ((held > 0).sum(axis=0) == classes).all()
    holders = (held > 0).sum(axis=1)
    assert holders.max() - holders.min() <= 1
    for row in held:
        sizes = np.sort(row[row > 0])
        average = row.sum() // len(sizes)
        if case.settings["balance"]:
            assert sizes[-1] - sizes[0] <= 1
        else:
            lowest = max(average / 10, (1 if least is None else least) / len(held))
            assert ((min(lowest, average) <= sizes[:-1]) & (sizes[:-1] <= average)).all()


def test_pat_draws_unequal_sizes_unless_balanced() -> None:
    sizes = table(load("made"), partition(load("made"), "pat:5", 20, seed=0).train)
    assert len(set(sizes[0][sizes[0] > 0].tolist())) > 5


def test_pat_pairs_classes_at_random() -> None:
    held = table(load("made"), partition(load("made"), "pat:2", 100, seed=0).train) > 0
    pairs = {tuple(np.flatnonzero(column)) for column in held.T}
    assert len(pairs) > 30  # of 45; 100 random pairs show about 40
    assert held[:, :5].sum(axis=1).max() > 1  # five clients in a row are no round of the ten classes


def test_pat_gives_the_rest_of_a_class_to_any_of_its_holders() -> None:
    counts = table(load("made"), partition(load("made"), "pat:10", 20, seed=0, split="original").train)
    assert len(set(counts.argmax(axis=1).tolist())) > 5


@for_any(cases(kinds=("iid",)), few=30, many=80)
def test_iid_sizes_differ_by_one_at_most(case: Case) -> None:
    federation = divided(case, split="original")
    sizes = [len(own) for own in concatenated(federation.train, federation.validation)]
    assert max(sizes) - min(sizes) <= 1


def test_iid_mixes_the_classes() -> None:
    counts = partition(load("made"), "iid", 5, seed=0, split="original").class_counts()
    assert stats.chi2_contingency(counts.numpy()).pvalue > 0.001
    assert len(counts.unique()) > 5  # by lot, not by quota


def test_samples_are_shuffled_before_they_are_dealt_out() -> None:
    federation = partition(load("made"), "iid", 2, seed=0)
    own = concatenated(federation.train, federation.test)[0]
    assert 1150 < own.float().mean() < 1350  # of 0..2499: neither the first nor the last ones
    assert 1100 < federation.test[0].float().mean() < 1400


@for_any(cases(kinds=("hsu",)), few=20, many=60)
def test_hsu_sizes_differ_by_one_at_most(case: Case) -> None:
    federation = divided(case, split="original")
    sizes = [len(own) for own in concatenated(federation.train, federation.validation)]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("alpha", [0.2, 3.0, 50.0])
def test_mixes_of_hsu_are_dirichlet_around_the_shares_of_the_classes(alpha: float) -> None:
    sizes, clients = np.array([1, 2, 5]) * 10**12, 10_000  # so large that the counts are the mixes
    counts = rule_counts.hsu(stream(3, "law"), sizes, clients, alpha)
    first = counts[:, stream(3, "law").permutation(clients)[:4000]]  # who drew while there was something of everything
    assert (first.sum(axis=1) < sizes).all()
    mixes, prior = first / first.sum(axis=0), sizes / sizes.sum()
    assert mixes.mean(axis=1) == pytest.approx(prior, abs=0.03)
    assert mixes.var(axis=1) == pytest.approx(prior * (1 - prior) / (alpha + 1), rel=0.2)
    if alpha > 1:
        assert stats.kstest(mixes[0], stats.beta(alpha / 8, alpha * 7 / 8).cdf).pvalue > 0.001


def test_hsu_leaves_out_a_class_that_is_used_up() -> None:
    counts = rule_counts.hsu(stream(0, "law"), np.array([6, 0, 2]), 2, alpha=1e-300)  # a client wants one class alone
    assert sorted(counts.T.tolist()) == [[2, 0, 2], [4, 0, 0]]  # whichever class the first one wants
    counts = rule_counts.hsu(stream(0, "law"), np.array([3, 1]), 4, alpha=1.0)
    assert counts.sum(axis=0).tolist() == [1, 1, 1, 1]
    assert counts.sum(axis=1).tolist() == [3, 1]


@for_any(cases(kinds=("quantity",)), few=30, many=80)
def test_quantity_gives_all_clients_the_class_mix_of_the_data_set(case: Case) -> None:
    federation = divided(case, split="merged")
    held = table(case.source, concatenated(federation.train, federation.validation, federation.test))
    even = np.outer(held.sum(axis=1), held.sum(axis=0)) / held.sum()
    assert np.abs(held - even).max() <= 1


@pytest.mark.parametrize("alpha", [0.5, 5.0])
def test_sizes_of_quantity_are_dirichlet(alpha: float) -> None:
    sizes = []
    for seed in range(100):
        counts, _ = rule_counts.counts_by_rule(
            Rule("quantity", alpha), np.array([10**6, 10**6]), 5, seed, 0, False, False, ""
        )
        sizes.append(counts.sum(axis=0) / 2e6)
    assert stats.kstest(np.concatenate(sizes), stats.beta(alpha, 4 * alpha).cdf).pvalue > 0.001


@pytest.mark.parametrize("kind", ["dir", "hsu"])
def test_a_large_alpha_is_nearly_iid_and_a_small_one_gives_few_classes(kind: str) -> None:
    alike, apart = (
        partition(load("made"), f"{kind}:{alpha}", 10, seed=0, min_samples=0, split="original").class_counts()
        for alpha in (1e6, 1e-3)
    )
    assert stats.chi2_contingency(alike.numpy()).pvalue > 0.001
    assert (apart > 0).sum(dim=1).float().mean() < 3


def test_a_large_alpha_of_quantity_gives_equal_sizes_and_a_small_one_all_to_one_client() -> None:
    alike, apart = (
        [len(own) for own in partition(load("made"), f"quantity:{alpha}", 10, 0, min_samples=0, split="original").train]
        for alpha in (1e12, 1e-3)
    )
    assert max(alike) - min(alike) <= 2  # cut at cumulative shares, rounded down
    assert max(apart) > 0.9 * 2000


@for_any(cases(), st.integers(1, 30), st.integers(1, 30), few=20, many=60)
def test_train_samples_is_a_limit_for_training_alone(case: Case, most: int, more: int) -> None:
    whole = divided(case, validation=0.0)
    limited, wider = (case.divide(validation=0.0, train_samples=number) for number in (most, most + more))
    assert equal(limited.test, whole.test)
    assert torch.equal(limited.global_test, whole.global_test)
    for few, some, all_of_them in zip(limited.train, wider.train, whole.train, strict=True):
        assert len(few) == min(most, len(all_of_them))
        assert set(few.tolist()) <= set(some.tolist()) <= set(all_of_them.tolist())  # the first ones of one shuffle
    checked = case.divide(validation=0.5, train_samples=most)
    assert equal([own.sort().values for own in concatenated(checked.train, checked.validation)], limited.train)


@st.composite
def columns(draw: st.DrawFn) -> Source:
    """A source with a column `hospital`, and the same again as `domain`."""
    source = draw(cases(kinds=("iid",))).source
    names = draw(st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=5, unique=True))
    code = np.random.default_rng(draw(st.integers(0, 99))).integers(0, len(names), len(source.y))
    column = Column(tuple(names), torch.from_numpy(code))
    return replace(source, columns={"hospital": column, "domain": column})


@settings(max_examples=50, deadline=None)
@given(columns(), st.sampled_from(("merged", "original")), st.sampled_from((0.0, 0.3)))
def test_column_gives_every_value_its_own_samples(source: Source, split: str, validation: float) -> None:
    federation = partition(source, "column:hospital", None, 0, split=split, validation=validation, min_samples=0)
    column = source.columns["hospital"]
    assert federation.names == column.names
    for client, own in enumerate(concatenated(federation.train, federation.validation, federation.test)):
        assert torch.equal(own.sort().values, (column.code == client).nonzero().flatten())
    if split == "original":
        assert all((own < source.train).all() for own in concatenated(federation.train, federation.validation))
        assert all((own >= source.train).all() for own in federation.test)
        assert torch.equal(federation.global_test, torch.arange(source.train, len(source.y)))


@settings(max_examples=20, deadline=None)
@given(columns(), st.integers(0, 9))
def test_domain_is_short_for_the_column_of_that_name(source: Source, seed: int) -> None:
    short, long, other = (
        partition(source, rule, None, seed, min_samples=0, test_share=0.2, validation=0.1)
        for rule in ("domain", "column:domain", "column:hospital")
    )
    for one in (long, other):
        assert equal(short.train, one.train)
        assert equal(short.test, one.test)
        assert equal(short.validation, one.validation)
    assert parse_rule("domain") == parse_rule("column:domain")


def hospitals(**sizes: int) -> Source:
    """A source of one class with so many samples of each hospital, all of them for training."""
    code = torch.arange(len(sizes)).repeat_interleave(torch.tensor(list(sizes.values())))
    samples = len(code)
    images = torch.zeros(samples, 1, 1, 1, dtype=torch.uint8)
    return Source("ours", images, torch.zeros(samples, dtype=torch.int64), 1, samples, (0.0,), (1.0,),
                  columns={"hospital": Column(tuple(sizes), code)})  # fmt: skip


def test_domains_are_divided_as_dualfed_does() -> None:
    source = hospitals(art=2427, photo=1000)
    federation = partition(source, "column:hospital", None, 0, test_share=0.2)
    assert [len(own) for own in federation.train] == [1942, 800]  # 80 % of 2,427
    federation = partition(source, "column:hospital", None, 0, test_share=0.2, train_samples=1000)
    assert [len(own) for own in federation.train] == [1000, 800]
    assert [len(own) for own in federation.test] == [485, 200]


@pytest.mark.parametrize(("settings", "problem"), [
    ({"rule": "column:hopsital"}, "unknown column 'hopsital'; did you mean 'hospital'? known: hospital"),
    ({"clients": 3}, "clients = 3, but column 'hospital' has 2 values, a client for each"),
    ({"min_samples": 6}, "column:hospital': every client needs at least 6 samples (min_samples), but 'south' has 5"),
    ({"split": "original"}, "data set 'ours' has no test set of its own; use split merged"),
    ({"cap": True}, "cap applies to partition 'dir' only, not to 'column'"),
    ({"train_samples": 0}, "train_samples must be at least 1, got 0"),
    ({"source": labelled([5], [5], np.random.default_rng(0))}, "data set 'any' has neither"),
])  # fmt: skip
def test_what_a_column_cannot_give_is_refused(settings: dict[str, Any], problem: str) -> None:
    usual = {"source": hospitals(north=9, south=5), "rule": "column:hospital", "clients": None, "seed": 0}
    with pytest.raises(ConfigError) as caught:
        partition(**{**usual, **settings})
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_auto_is_what_the_source_says() -> None:
    source = replace(hospitals(north=9, south=5), partition="column:hospital", test_share=0.4)
    federation = partition(source, "auto", None, seed=0)
    assert (federation.rule, federation.names) == ("column:hospital", ("north", "south"))
    assert [len(own) for own in federation.test] == [4, 2]
    assert partition(load("made"), "iid", None, seed=0).clients == 20


def test_rules_are_read() -> None:
    assert parse_rule("dir:0.1") == Rule("dir", alpha=0.1)
    assert parse_rule("hsu:1") == Rule("hsu", alpha=1.0)
    assert parse_rule("quantity:0.5") == Rule("quantity", alpha=0.5)
    assert parse_rule("pat:2") == Rule("pat", classes=2)
    assert parse_rule("iid") == Rule("iid")
    assert parse_rule("column:a:b") == Rule("column", column="a:b")
    assert parse_rule("file:C:/a.json") == Rule("file", path="C:/a.json")


@pytest.mark.parametrize(("text", "allowed"), [
    ("hsu:0", "hsu:ALPHA with a finite ALPHA > 0"),
    ("quantity", "quantity:ALPHA with a finite ALPHA > 0"),
    ("column:", "column:NAME with the name of a column"),
    ("domain:photo", "domain, with nothing after it"),
    ("file", "file:PATH with the path of a saved partition"),
])  # fmt: skip
def test_rules_that_say_nothing_are_refused(text: str, allowed: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"partition '{text}' is not allowed; it must be {allowed}")):
        parse_rule(text)
