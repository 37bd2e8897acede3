"""What a result shows of itself: in a notebook, as a DataFrame, in one line."""

import sys
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import torch

import partwise
from partwise import Comparison, ConfigError, PartwiseError, Result, Source
from partwise.data import partition
from partwise.runs.evaluation import Evaluation


@pytest.fixture(scope="module")
def result() -> Result:
    """FedBABU on two classes, at three clients with names that a page must not take for its own."""
    x = torch.randn(120, 4, generator=torch.Generator().manual_seed(0))
    source = Source(
        "<script>alert('data')</script>",
        x,
        (x[:, 0] > 0).long(),
        classes=2,
        train=120,
        centre=(0.0,),
        scale=(1.0,),
        class_names=("well", "<b>ill</b>"),
    )
    federation = replace(partition(source, "iid", 3, 0), names=("Ulm", "<i>Bonn</i>", "Kiel"))
    return partwise.run("fedbabu", data=federation, model="mlp-100", rounds=3, lr=0.1, batch=16, eval_at=(3,))


class Page(HTMLParser):
    """Which tags a page opens and closes, their attributes, and its text."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.cells: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.cells.append(data)


def test_a_notebook_shows_the_table_with_every_name_escaped(result):
    page = Page(result._repr_html_())
    assert page.open == [] and set(page.tags) <= {"div", "strong", "table", "tr", "th", "td", "small", "br"}
    assert page.attributes == {"style"}  # nothing is fetched, nothing is run
    assert page.cells[0] == "FedBABU: <script>alert('data')</script>, 3 clients, iid, 3 rounds, seed 0"
    assert {"last", "best", "F1", "AUROC", "ECE", "LM received", "LM trained", "LM method_adapted"} <= set(page.cells)
    assert f"{100 * result.summary.last('method_adapted').value('auroc'):.2f}" in page.cells
    assert any("F1, AUROC: of class '<b>ill</b>'" in text for text in page.cells)


def test_a_result_and_its_models_are_one_line(result):
    received = 100 * result.summary.last("received").accuracy
    assert repr(result).startswith(f"<Result of fedbabu: 3 rounds, last received {received:.2f} %, trained ")
    assert repr(result.models) == "<Models of 3 clients, as method_adapted, by their numbers: 0, 1, 2>"
    many = partwise.run("local", data="made", model="mlp-100", clients=5, rounds=1)
    assert repr(many.models) == "<Models of 5 clients, as received, by their numbers: 0, 1, 2, ...>"


def test_a_result_without_an_evaluation_says_its_rounds(result, monkeypatch):
    monkeypatch.setattr(Evaluation, "clients", [])
    untested = partwise.run("local", data=result.federation, rounds=2)
    assert repr(untested) == "<Result of local: 2 rounds>"
    assert untested.judged == [None] * 3 and Page(untested._repr_html_()).open == []
    with pytest.raises(PartwiseError, match="no client was tested in both runs"):
        untested.worse_off(result)


def test_a_frame_has_a_row_for_every_round(result):
    frame = result.to_pandas()
    assert list(frame["round"]) == [1, 2, 3] and list(frame["participants"]) == [[0, 1, 2]] * 3
    assert list(frame.columns) == list(result.table[0])
    assert list(frame["received.auroc"]) == [row["received"]["auroc"] for row in result.metrics]
    assert list(frame["method_adapted.acc_pooled"].isna()) == [True, True, False]  # only the last round is adapted


def test_a_frame_has_a_row_for_every_client(result):
    frame = result.to_pandas("clients")
    assert list(frame["name"]) == ["Ulm", "<i>Bonn</i>", "Kiel"] and list(frame["client"]) == [0, 1, 2]
    for name in ("", "_balanced", "_f1", "_auroc", "_ece"):
        assert frame[f"method_adapted{name}"].between(0, 1).all()


def test_an_unknown_frame_and_a_missing_pandas_are_refused_in_a_line(result, monkeypatch):
    with pytest.raises(ConfigError, match=r"^unknown table 'client'; did you mean 'clients'\? known: rounds, clients$"):
        result.to_pandas("client")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(PartwiseError, match=r"^pandas is needed, but not installed: pip install 'partwise\[tables\]'$"):
        result.to_pandas()


def test_a_result_draws_its_curve(result):
    axes = result.plot()
    [line] = axes.get_lines()
    assert list(line.get_xdata()) == [1, 2, 3] and axes.get_ylabel() == "accuracy in %, LM received"
    assert list(line.get_ydata()) == [100 * row["received"]["acc_pooled"] for row in result.metrics]
    assert result.plot("method_adapted", axes) is axes
    assert list(axes.get_lines()[1].get_xdata()) == [3] and axes.get_lines()[1].get_marker() == "o"
    with pytest.raises(ConfigError, match=r"^unknown moment 'recieved'; did you mean 'received'\?"):
        result.plot("recieved")


@pytest.fixture(scope="module")
def comparison(result) -> Comparison:
    settings = {"rounds": 2, "lr": 0.1, "batch": 16, "proximal_weight": 0.5}
    return partwise.compare(["fedprox", "local"], seeds=[0, 1], data=result.federation, model="mlp-100", **settings)


def test_a_comparison_ranks_methods_and_draws_them(comparison):
    assert [each.config.run.seed for each in comparison.results] == [0, 1, 0, 1]
    assert comparison.results[0].config.method.proximal_weight == 0.5  # which local has not
    names = [row["method"] for row in comparison.standings]
    assert sorted(names) == ["fedprox", "local"] and list(comparison.to_pandas()["method"]) == names
    assert repr(comparison) == f"<Comparison of {', '.join(names)}: 4 runs>"
    title, *lines = str(comparison).splitlines()
    assert title == "Leaderboard: <script>alert('data')</script>, 3 clients, iid, 2 rounds, LM received"
    assert [name for line in lines for name in ("FedProx", "Local") if line.startswith(f" {name} ")] == [
        {"fedprox": "FedProx", "local": "Local"}[name] for name in names
    ]
    axes = comparison.plot("trained")
    assert [line.get_label() for line in axes.get_lines()] == names and len(axes.collections) == 2  # a band each
    mine = [run for run in comparison.results if run.config.name == names[0]]
    first = [100 * run.metrics[0]["trained"]["acc_pooled"] for run in mine]
    assert axes.get_lines()[0].get_ydata()[0] == pytest.approx(sum(first) / 2)


def test_a_notebook_shows_the_leaderboard_with_every_name_escaped(comparison):
    page = Page(comparison._repr_html_())
    assert page.open == [] and page.attributes == {"style"}
    assert page.cells[0] == "Leaderboard: <script>alert('data')</script>, 3 clients, iid, 2 rounds, LM received"
    assert {"FedProx", "Local", "seeds", "worse"} <= set(page.cells)


def test_results_that_cannot_be_compared_are_refused(result, comparison):
    with pytest.raises(ConfigError, match="a comparison needs at least one result"):
        Comparison([])
    with pytest.raises(ConfigError, match="two results have the method 'fedbabu' and seed 0"):
        Comparison([result, result])
    other = partwise.run("local", data="made", model="mlp-100", clients=3, rounds=1)
    with pytest.raises(ConfigError, match=r"results of data = <script>.* and made cannot be compared"):
        Comparison([result, other])
    with pytest.raises(ConfigError, match="unknown setting 'lrr'"):
        partwise.compare(["local"], lrr=1)
