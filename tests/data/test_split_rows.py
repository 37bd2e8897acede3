"""Rows that belong together, and rows from a date on: laws of their split, and tables that can be checked by hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

import partwise
from partwise.data import Column, Federation, Source, load, partition
from partwise.errors import ConfigError, DataError
from partwise.federation.protocol.silo import one_client
from partwise.runs.settings import Data
from tests.support.files import refusal
from tests.support.searching import for_any

VISITS = """hospital,patient,visit,year,age,died
Graz,a,2019-05-01,2019,50,0
Graz,a,2020-01-01T08:00,2020,51,0
Graz,b,2019-12-31,2019,62,1
Graz,b,2018-02-03,2018,61,1
Wien,c,2020-06-01,2020,70,1
Wien,c,2021-06-01,2021,71,1
Wien,c,2022-06-01,2022,72,0
Linz,d,2018-01-01,2018,33,0
Linz,e,2019-01-01,2019,34,1
"""


def table(folder: Path, text: str = VISITS) -> str:
    (folder / "visits.csv").write_text(text)
    return str(folder / "visits.csv")


def visits(folder: Path, **reading: Any) -> Source:
    return load(table(folder), label="died", column="hospital", drop=("visit", "patient", "year"), **reading)


def grouped(groups: list[int], clients: list[int]) -> Source:
    """Samples of these groups, and of these clients."""
    size = len(groups)
    columns = {"client": Column(tuple("abcdef"[: max(clients) + 1]), torch.tensor(clients))}
    source = Source("any", torch.zeros(size, 1), torch.zeros(size, dtype=torch.int64), 1, size, (0.0,), (1.0,))
    return replace(source, columns=columns, partition="column:client", groups=torch.tensor(groups))


def divided(source: Source, **settings: Any) -> Federation:
    return partition(source, "auto", None, **{"seed": 0, "min_samples": 0, **settings})


def sets(federation: Federation) -> list[list[Tensor]]:
    return [federation.train, federation.validation, federation.test]


@st.composite
def sources(draw: st.DrawFn) -> Source:
    rows = draw(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 2)), min_size=4, max_size=60))
    names = sorted({client for _, client in rows})
    return grouped([group for group, _ in rows], [names.index(client) for _, client in rows])


SHARES = st.sampled_from((0.1, 0.25, 0.5, 0.8))


@for_any(sources(), SHARES, st.sampled_from((0.0, 0.2, 0.5)), st.booleans(), few=60, many=300)
def test_no_group_is_on_two_sides_of_a_client(source: Source, share: float, validation: float, by_name: bool) -> None:
    settings = {"test_share": share, "validation": validation, "by_name": by_name}
    groups = source.groups
    assert groups is not None
    try:
        federation = divided(source, **settings)
    except ConfigError as error:
        assert "split_by: no client has rows of two different values" in str(error)
        code = source.columns["client"].code
        assert all(len(groups[code == client].unique()) == 1 for client in code.unique())
        return
    for train, held_back, test in zip(*sets(federation), strict=True):
        own = [set(groups[rows].tolist()) for rows in (train, held_back, test)]
        assert len(set.union(*own)) == sum(map(len, own))
        assert train.numel() and bool(len(test)) == (len(set.union(*own)) > 1)
    everything = torch.cat([rows for each in sets(federation) for rows in each])
    assert torch.equal(everything.sort().values, torch.arange(len(source.y)))
    again = divided(source, **settings)
    assert again.fingerprint() == federation.fingerprint()


@for_any(sources(), SHARES, st.integers(0, 9), st.booleans(), few=40, many=200)
def test_different_values_split_rows_as_without_the_column(
    source: Source, share: float, seed: int, by_name: bool
) -> None:
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(source.y)))
    settings = {"test_share": share, "validation": 0.3, "seed": seed, "by_name": by_name, "train_samples": 7}
    try:
        one = divided(replace(source, groups=order), **settings)
    except ConfigError:  # one row a client
        assert max(map(len, divided(replace(source, groups=None), **settings).train)) == 1
        return
    other = divided(replace(source, groups=None), **settings)
    assert one.fingerprint() == other.fingerprint()


def test_whole_groups_come_as_near_to_the_share_as_their_order_allows() -> None:
    sizes = [5, 1, 3, 3, 4, 4]  # 20 rows, of which 5 are wanted
    groups = [group for group, size in enumerate(sizes) for _ in range(size)]
    taken = {len(divided(grouped(groups, [0] * 20), seed=seed).test[0]) for seed in range(30)}
    assert taken <= {3, 4, 5, 6, 7} and len(taken) > 1  # a group more or less would be further from 5


def test_a_client_with_one_person_only_trains_and_where_none_has_two_it_is_refused() -> None:
    federation = divided(grouped([0, 0, 1, 1, 2, 2, 2], [0, 0, 0, 0, 1, 1, 1]))
    assert [len(own) for own in federation.test] == [2, 0]
    assert federation.train[1].tolist() == [4, 5, 6]
    line = refusal(ConfigError, lambda: divided(grouped([0, 0, 2, 2, 2], [0, 0, 1, 1, 1])))
    assert line == "split_by: no client has rows of two different values, so no client could be tested"


def test_people_of_a_table(tmp_path: Path) -> None:
    source = load(table(tmp_path), label="died", column="hospital", drop=("visit", "year"), split_by="patient")
    assert source.groups is not None and source.groups.tolist() == [0, 0, 1, 1, 2, 2, 2, 3, 4]
    assert source.feature_names == ("age",)  # who somebody is says nothing about others
    federation = divided(source)
    assert federation.names == ("Graz", "Linz", "Wien")
    assert [len(own) for own in federation.test] == [2, 1, 0]


@pytest.mark.parametrize("after", ["visit=2020-01-01", "visit=2020-01-01T02:00+02:00", "year=2020", "year=2019.5"])
def test_rows_from_a_date_or_a_number_on_are_for_testing(tmp_path: Path, after: str) -> None:
    federation = divided(visits(tmp_path, test_after=after), validation=0.5)
    tested = {name: own.tolist() for name, own in zip(federation.names, federation.test, strict=True)}
    assert tested == {"Graz": [1], "Linz": [], "Wien": [4, 5, 6]}
    learned = [len(own) + len(held) for own, held in zip(federation.train, federation.validation, strict=True)]
    assert learned == [3, 2, 0] and federation.global_test.tolist() == [1, 4, 5, 6]


def test_a_column_of_dates_is_read_as_texts_of_dates_are(tmp_path: Path) -> None:
    frame = pandas.read_csv(table(tmp_path))
    frame["visit"] = pandas.to_datetime(frame["visit"], format="ISO8601")
    settings = {"data": frame, "label": "died", "drop": "patient,year", "partition": "column:hospital", "rounds": 1}
    result = partwise.run("fedavg", test_after="visit=2020-01-01", min_samples=0, **settings)
    assert result.federation.global_test.tolist() == [1, 4, 5, 6]


@pytest.mark.parametrize(("reading", "line"), [
    ({"split_by": "patent"}, "unknown column 'patent'; did you mean 'patient'?"),
    ({"test_after": "visits=2020-01-01"}, "unknown column 'visits'; did you mean 'visit'?"),
    ({"test_after": "visit=2020"}, "column 'visit': no numbers, which test_after = 'visit=2020' does not fit"),
    ({"test_after": "year=2020-01-01"}, "column 'year': numbers, which test_after = 'year=2020-01-01' does not fit"),
    ({"test_after": "year=2023"}, "column 'year': with test_after = 'year=2023' no row is for testing; "
                                  "its values are 2018.0 to 2022.0"),
    ({"test_after": "visit=2018-01-01"}, "column 'visit': with test_after = 'visit=2018-01-01' every row is for"),
    ({"test_after": "patient=2018-01-01"}, "line 2, column 'patient': 'a' is not a date; write 2020-01-31"),
])  # fmt: skip
def test_columns_that_do_not_fit_are_refused(tmp_path: Path, reading: dict[str, str], line: str) -> None:
    assert line in refusal(DataError, lambda: visits(tmp_path, **reading))


@pytest.mark.parametrize("column", ["patient", "visit"])
def test_an_empty_cell_is_refused(tmp_path: Path, column: str) -> None:
    path = table(tmp_path, VISITS.replace("Linz,d,2018-01-01", "Linz,d," if column == "visit" else "Linz,,2018-01-01"))
    reading = {"split_by": "patient"} if column == "patient" else {"test_after": "visit=2020-01-01"}
    line = refusal(DataError, lambda: load(path, label="died", **reading))
    assert f"line 9, column '{column}': empty" in line


RUN: dict[str, Any] = {"label": "died", "drop": "visit,year", "partition": "column:hospital", "rounds": 1}


@pytest.mark.parametrize(("settings", "line"), [
    ({"test_after": "visit"}, "test_after = 'visit' is not allowed; it must be COLUMN=DATE or COLUMN=NUMBER"),
    ({"test_after": "visit=tomorrow"}, "it must be COLUMN=DATE or COLUMN=NUMBER, such as admitted=2020-01-31"),
    ({"test_after": "year=2020", "split_by": "patient"}, "split_by"),
    ({"test_after": "year=2020", "test_share": 0.5}, "test_share"),
    ({"split": "original", "split_by": "patient"}, "split_by"),
    ({"split": "original", "test_after": "year=2020"}, "test_after"),
    ({"data": "made", "label": "label", "drop": None, "split_by": "patient"}, "split_by: applies only to tables"),
    ({"partition": "file:partition.json", "split_by": "patient"}, "already splits each client's samples; leave out sp"),
])  # fmt: skip
def test_settings_that_contradict_each_other_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    table(tmp_path)
    partwise.data.saved.save(divided(load("visits.csv", label="died", column="hospital")), "partition.json")
    assert line in refusal(ConfigError, lambda: partwise.run("fedavg", **{"data": "visits.csv", **RUN, **settings}))


def test_data_that_were_read_before_are_not_split_by_a_column_that_they_lack(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="split_by names a column, but"):
        partwise.run("fedavg", data=visits(tmp_path), split_by="patient", rounds=1)
    federation = divided(visits(tmp_path))
    with pytest.raises(ConfigError, match="leave out split_by"):
        partwise.run("fedavg", data=federation, split_by="patient", rounds=1)


def test_a_run_says_to_its_models_which_columns_are_no_features(tmp_path: Path) -> None:
    frame = pandas.read_csv(table(tmp_path))
    settings = {**RUN, "data": frame, "split_by": "patient", "min_samples": 0}
    result = partwise.run("fedavg", out=str(tmp_path / "run"), **settings)
    assert result.federation.source.feature_names == ("age",)
    models = partwise.load_model(tmp_path / "run")
    assert len(models.predict(frame)) == len(frame)  # patient, visit and year may be there


def test_a_silo_splits_its_own_rows_as_a_simulation_of_its_name_does(tmp_path: Path) -> None:
    whole = visits(tmp_path, split_by="patient")
    simulated = divided(whole, seed=3, by_name=True, validation=0.4)
    for number, name in enumerate(simulated.names):
        code = whole.columns["hospital"].code == number
        assert whole.groups is not None
        own = replace(whole, x=whole.x[code], y=whole.y[code], groups=whole.groups[code], train=int(code.sum()))
        alone = one_client(own, Data(split_seed=3, validation=0.4, split_by="patient"), name)
        rows = code.nonzero().flatten()
        for here, there in zip(sets(alone), sets(simulated), strict=True):
            assert torch.equal(rows[here[0]], there[number])
