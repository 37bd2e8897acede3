"""What seeds say about two methods, against numbers worked out by hand."""

import math
import sys

import pytest

from partwise.errors import DataError
from partwise.studies.significance import holm, paired, sentences


def by_seed(*values):
    return dict(enumerate(values))


def test_a_paired_t_test_by_hand():
    """Differences 1, 2, 3: mean 2, deviation 1, t = 2 * sqrt(3); of three seeds p = 1 - t / sqrt(2 + t^2)."""
    found = paired([3.0, 5.0, 4.0], [2.0, 3.0, 1.0])
    t = 2 * math.sqrt(3)
    assert (found.difference, found.seeds, found.wilcoxon) == (2.0, 3, None)
    assert found.t == pytest.approx(1 - t / math.sqrt(2 + t * t))


def test_wilcoxons_test_by_hand():
    """Six seeds that all agree: 2 of the 64 ways to sign six ranks are as far out."""
    found = paired([1.1, 2.2, 3.3, 4.4, 5.5, 6.6], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert found.wilcoxon == pytest.approx(2 / 64)
    assert paired([1.1, 2.2, 3.3, 4.4, 5.5], [1.0, 2.0, 3.0, 4.0, 5.0]).wilcoxon is None  # 2 / 32 is never enough


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])  # 3 * 0.01, 2 * 0.03, and never less again
    assert holm([0.9, 0.8]) == [1.0, 1.0] and holm([]) == []


def test_a_method_is_only_called_better_where_seeds_tell_it():
    values = {"b": by_seed(0.5, 0.6, 0.7), "a": by_seed(0.61, 0.7, 0.81), "c": by_seed(0.9, 0.3, 0.85)}
    unclear, better, corrected = sentences(values)
    assert (
        unclear == "a is 2.33 points above c, which is not significant over the seeds (paired t over 3 seeds, p = 0.92)"
    )
    assert better == "a is better than b by 10.67 points (paired t over 3 seeds, p = 0.002)"  # t = 32
    assert corrected == "p: corrected by Holm for 2 comparisons"


def test_too_few_seeds_say_nothing():
    [line] = sentences({"a": by_seed(0.7, 0.9), "b": by_seed(0.5, 0.6)})
    assert line == "a is 25.00 points above b: too few seeds to say (2, at least 3 are needed)"
    [line] = sentences({"a": by_seed(0.75, 0.75, 0.75), "b": by_seed(0.5, 0.5, 0.5)})
    assert line == "a is 25.00 points above b, the same in all 3 seeds: there is no spread to test"
    assert sentences({"a": by_seed(0.5)}) == [] and sentences({"a": by_seed(0.5), "b": {}}) == []


def test_where_lower_is_better_the_lower_is_called_better():
    values = {"b": by_seed(2.5, 2.6, 2.7), "a": by_seed(1.0, 1.0, 1.3)}  # differences 1.5, 1.6, 1.4: t = 26
    [line] = sentences(values, "rmse")
    assert line == "a is better than b by 1.5 in RMSE (paired t over 3 seeds, p = 0.0015)"
    [line] = sentences({"b": by_seed(2.0), "a": by_seed(1.0)}, "rmse")
    assert line == "a is 1 below b in RMSE: too few seeds to say (1, at least 3 are needed)"
    [line] = sentences({"b": by_seed(0.25), "a": by_seed(0.5)}, "r2")  # no share, but higher is better
    assert line == "a is 0.25 above b in R2: too few seeds to say (1, at least 3 are needed)"


def test_only_seeds_that_both_have_are_compared():
    [line] = sentences({"a": {0: 0.5, 1: 0.9}, "b": {1: 0.6, 2: 0.0}})
    assert line == "a is 30.00 points above b: too few seeds to say (1, at least 3 are needed)"


def test_without_scipy_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    with pytest.raises(DataError, match=r"^scipy is needed, but not installed: pip install 'partwise\[data\]'$"):
        paired([1.0, 2.0, 4.0], [0.0, 0.0, 0.0])
