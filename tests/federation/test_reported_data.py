"""Fault 62 and 69: what a silo tells about its data before round 1, however often and by whatever run it is asked."""

from dataclasses import asdict, replace

import numpy as np
import pandas as pd
import pytest
import torch

from partwise.data import Federation
from partwise.errors import PartwiseError
from partwise.federation.protocol.handshake import agree
from partwise.federation.protocol.launch import federated
from partwise.federation.protocol.node import Node
from partwise.federation.protocol.policy import Allowed
from partwise.federation.protocol.releases import ReleaseLedger
from partwise.federation.protocol.reported_data import RECORD_FILE, noisy
from partwise.federation.protocol.silo import Silo, read_silo
from partwise.federation.protocol.software import software
from partwise.records.messages import PROTOCOL, Joined
from partwise.records.record import read_record
from partwise.records.wire import pack_tree, unpack_tree
from partwise.runs.config import make_config
from partwise.runs.prepare import prepare
from tests.support.nodes import OPEN, InProcess, members
from tests.support.silo_tables import ALLOW, NOISY, OWN, RANGES, SETTINGS, run, silo, table, three


def asked(node, kind, run="a-run", **content):
    return unpack_tree(node.handle(pack_tree({"kind": kind, "run": run, **content})))


def join(node, run="a-run", silos=1, **settings):
    own = {"protocol": PROTOCOL, "software": software(["fedavg"]), "method": "fedavg", "file": None}
    return asked(node, "join", run, **own, silos=silos, settings={**SETTINGS, **settings})


def described(answer):
    return read_record(Joined, answer, "its answer")


def told(node, run="a-run", **settings):
    """All that a server gets of a silo before round 1, by feature."""
    agreed = agree({"n": described(join(node, run, **settings))})
    answer = asked(node, "moments", run, agreed=asdict(agreed))["moments"]
    return dict(zip(agreed.features, answer.T.tolist(), strict=True))


# ---- 62: subsets that the server chooses


def test_fault_62_the_server_chooses_neither_samples_nor_their_division(tmp_path):
    node = Node(silo(tmp_path, table(60)))
    before = join(node), told(node)
    for name, wish in enumerate([{"train_samples": 30}, {"train_samples": 29}, {"validation": 0.5}, {"seed": 7}]):
        assert (join(node, f"{name}", **wish), told(node, f"{name}", **wish)) == before
    for name, wish in enumerate([{"test_share": 0.6}, {"split_seed": 3}, {"split": "merged"}]):
        (tmp_path / "Graz" / RECORD_FILE).unlink()  # not only because the answer was stored
        assert (join(node, f"again-{name}", **wish), told(node, f"again-{name}", **wish)) == before
    assert before[0]["sizes"] == [[48, 12, 0]]


def test_fault_62_a_silos_own_division_is_that_of_a_simulation_of_the_same_silos(tmp_path):
    frames = {"Graz": table(60, 0), "Linz": table(50, 1), "Wien": table(40, 2)}
    own = {"train_samples": 30, "validation": 0.1, "split_seed": 4}
    nodes = {name: Node(silo(tmp_path, frame, name, own)) for name, frame in frames.items()}
    config = make_config("fedavg", {**SETTINGS, **OWN, **own, "data": str(tmp_path / "tables")})
    federation = prepare(config).federation
    assert federation.names == tuple(frames)
    for client, (name, node) in enumerate(nodes.items()):
        here = node.silo.federation(node.silo.config(config))
        for sets in ("train", "test", "validation"):
            [mine], there = getattr(here, sets), getattr(federation, sets)[client]
            assert torch.equal(here.source.x[mine], federation.source.x[there]), (name, sets)
        assert [len(here.train[0]), len(here.validation[0])] == [27, 3]


def test_a_split_seed_divides_alike_whatever_the_seed_of_the_run(tmp_path):
    settings = {**SETTINGS, "data": "digits", "clients": 4, "partition": "dir:0.5"}
    by_seed, by_split = (
        [prepare(make_config("fedavg", {**settings, **more, "seed": seed})).federation for seed in (0, 1)]
        for more in ({}, {"split_seed": 0})
    )
    assert not torch.equal(by_seed[0].train[0], by_seed[1].train[0])
    assert all(torch.equal(one, two) for one, two in zip(by_split[0].train, by_split[1].train, strict=True))


# ---- 62: nothing leaves before the whole policy is checked


@pytest.mark.parametrize(
    ("allow", "line"),
    [
        ({"least_noise": 0.5}, "Graz demands noise, and its file states no range of column 'age'"),
        ({"most_clip": 1.0}, "Graz wants upload_clip of at most 1"),
        ({"parts": ("body",)}, "Graz lets body leave, and fedavg uploads head"),
        ({"min_clients": 3}, "Graz wants 3 silos at least, the run has 2"),
        ({"min_train_samples": 100}, "Graz has fewer than 100 training samples, its own min_train_samples"),
    ],
)
def test_fault_62_nothing_is_told_before_the_whole_policy_is_checked(allow, line, tmp_path):
    own = {"Graz": silo(tmp_path, table(60), **allow), "Linz": silo(tmp_path, table(60, 1), "Linz")}
    link = InProcess({name: Node(each) for name, each in own.items()})
    config = make_config("fedavg", SETTINGS)
    with pytest.raises(PartwiseError, match=line):
        federated(config, members(link, config))
    [answer] = [unpack_tree(answer) for name, _, answer in link.sent if name == "Graz"]
    assert set(answer) == {"refuses", "forgot"} and line in answer["refuses"]


@pytest.mark.parametrize("silos", [0, 10**9, "many", 2.5])
def test_no_memory_grows_with_the_silos_or_clients_that_a_server_states(silos, tmp_path):
    node = Node(silo(tmp_path, table(60)))
    line = join(node, silos=silos)["refuses"]
    assert "a run is one of 1 to 100,000 silos" in line or "join.silos is not a whole number" in line
    assert "clients_per_round = 1000000000 is more than" in join(node, clients_per_round=10**9)["refuses"]


def test_simulated_clients_are_counted_one_by_one(tmp_path):
    settings = {"data": "digits", "clients": 4, "partition": "iid", "split_seed": 0}
    for allow, line in (({"min_train_samples": 400}, "client 0 of left has fewer than 400 training samples"), ({}, "")):
        node = Node(Silo("left", tmp_path, hosts=(0, 1), allow=Allowed(**{**ALLOW, **allow})))
        assert join(node, **settings).get("refuses", "").startswith(line)


# ---- 62: the answer is given once


def test_fault_62_one_more_patient_is_not_read_from_two_answers(tmp_path):
    frame = table(60)
    first = told(Node(silo(tmp_path, frame)))
    more = pd.concat([frame, frame[:1].assign(age=117.0, size=211.0)])
    assert told(Node(silo(tmp_path, more)), "another-run") == first
    assert told(Node(silo(tmp_path, frame[1:])), "a-third") == first
    (tmp_path / "Graz" / RECORD_FILE).unlink()  # without it they would differ
    assert told(Node(silo(tmp_path, more)), "a-fourth") != first


def training(folder, frame, **allow):
    """A node with a table that trains on all rows but the last ten."""
    own = silo(folder, frame, **allow)
    source = own.federation(own.config(make_config("fedavg", SETTINGS))).source
    train, test = torch.arange(len(source.y)).split([len(source.y) - 10, 10])
    return Node(replace(own, held=Federation(source, [train], [test], test, names=("Graz",))))


def answers(folder, frame, **allow):
    """What is told of the columns of such a table."""
    return told(training(folder, frame, **allow), f"run-{len(frame)}")


def test_fault_62_a_new_answer_leaves_only_after_many_rows_were_added_and_none_removed(tmp_path, caplog):
    frame, more = table(60), table(60, 1)
    first = answers(tmp_path, frame)
    assert answers(tmp_path, pd.concat([more[:19], frame])) == first
    assert "what is told of these stays as before" in caplog.text and "age, size" in caplog.text
    assert answers(tmp_path, pd.concat([more[:40], frame[1:]])) == first  # one was removed
    second = answers(tmp_path, pd.concat([more[:20], frame]))
    x = torch.tensor(pd.concat([more[:20], frame])["age"].to_numpy(np.float32)[:-10]).double()
    assert second["age"] == pytest.approx([70, x.mean().item(), (x - x.mean()).square().sum().item()], rel=1e-12)
    assert answers(tmp_path, pd.concat([more[:39], frame])) == second


def test_fault_62_each_column_counts_its_own_cells(tmp_path):
    """Twenty patients came, one of whom has a value in a column: the difference of two answers would be that value."""
    ca = np.where(np.arange(60) % 2 == 0, 1.0 * np.arange(60), np.nan)
    frame, more = table(60, ca=ca), table(20, 1, ca=[np.nan] * 19 + [7.0])
    first, second = answers(tmp_path, frame), answers(tmp_path, pd.concat([more, frame]))
    assert second["ca"] == first["ca"] and second["age"][0] == 70
    other = answers(tmp_path, pd.concat([more, frame]).assign(weight=80.0))  # a new column is told of, the others stay
    assert other.pop("weight") == [70, 80, 0] and other == second


def test_fault_62_a_text_that_one_of_the_new_patients_has_is_not_told_of(tmp_path):
    frame, more = table(60, sex=["f", "m"] * 30), table(20, 1, sex=["f"] * 19 + ["m"])
    first, second = answers(tmp_path, frame), answers(tmp_path, pd.concat([more, frame]))
    assert second["sex=m"] == first["sex=m"] == [50, 0.5, 12.5] and second["age"][0] == 70


def test_fault_62_a_value_is_not_named_as_one_more_patient_makes_it_common(tmp_path):
    """Who knows that one patient came would know what that patient has."""
    frame = table(60, cp=["c"] * 4 + ["a"] * 56).assign(sick=["Huber"] * 4 + ["no", "yes"] * 28)
    one = frame[:1].assign(ca=5.0)
    frame = frame.assign(ca=[1.0] * 19 + [np.nan] * 41)
    first = join(training(tmp_path, frame), "first")
    second = join(training(tmp_path, pd.concat([one, frame])), "second")
    assert first["features"] == ["age", "size", "cp=a"] and first["class_names"] == ["no", "yes"]
    assert first.pop("sizes") == [[50, 10, 0]] and second.pop("sizes") == [[51, 10, 0]]
    assert first == second
    new = frame[:6].assign(cp="new", sick="Moser")  # six came, and all of them have what nobody had before
    again = join(training(tmp_path, pd.concat([new, frame])), "again")
    assert {**again, "sizes": 0} == {**first, "sizes": 0}
    many = pd.concat([one] * 5 + [one.assign(cp="a", sick="no", ca=2.0)] * 15 + [frame])
    third = join(training(tmp_path, many), "third")
    assert third["features"] == ["age", "size", "cp=a", "cp=c", "ca"] and third["class_names"] == ["Huber", "no", "yes"]


def test_fault_62_an_owner_who_lowers_a_minimum_tells_more_and_never_by_one_sample(tmp_path):
    frame = table(60, ca=[1.0] * 12 + [np.nan] * 48)
    assert "ca" not in join(training(tmp_path, frame), "first")["features"]
    lower = answers(tmp_path, frame, min_train_samples=10)
    assert lower["ca"] == [12, 1, 0]
    assert answers(tmp_path, frame, min_train_samples=30) == {**lower, "ca": [0, 0, 0]}


def test_fault_62_a_column_with_few_filled_cells_is_not_told_of(tmp_path):
    ca = [1.0, 3.0] + [np.nan] * 58
    own = {"Graz": silo(tmp_path, table(60, ca=ca)), "Linz": silo(tmp_path, table(60, 1, ca=2.0), "Linz")}
    simulation = run(make_config("fedavg", SETTINGS), own)
    joined, _ = [unpack_tree(a) for name, m, a in simulation.engine.nodes.link.sent if unpack_tree(m)["kind"] == "join"]
    assert joined["columns"] == ["age", "size", "ca"] and joined["features"] == ["age", "size"]
    place = simulation.federation.source.feature_names.index("ca")
    assert simulation.federation.source.centre[place] == 2.0  # Linz' own
    part = simulation.engine.nodes.link.nodes["Graz"].run.simulation.federation.source.x
    assert sorted(part[:, place].unique().tolist()) == [1.0, 2.0, 3.0]  # its empty cells are filled with it
    with pytest.raises(PartwiseError, match="no silo tells anything of column 'ca'; all silos must drop it"):
        run(make_config("fedavg", SETTINGS), {"Graz": silo(tmp_path, table(60, ca=ca))})


def test_fault_62_whatever_the_server_calls_a_column_it_learns_of_no_rare_text(tmp_path):
    frame = table(60, name=["Maria Huber", *["other"] * 30, *["another"] * 29])
    node = Node(silo(tmp_path, frame))
    agreed = agree({"n": described(join(node))})
    guessed = replace(agreed, features=["name=Maria Huber", "name=Franz Moser", "age"], shape=[3])
    answer = asked(node, "moments", agreed=asdict(guessed))["moments"]
    assert not answer[:, :2].any() and answer[0, 2] == 48


def test_fault_62_an_answer_is_written_whole_before_it_leaves(tmp_path, monkeypatch):
    node = Node(silo(tmp_path, table(60)))
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", lambda file: (_ for _ in ()).throw(OSError(28, "no space left")))
        assert "disk full" in join(node)["refuses"]
    assert not (tmp_path / "Graz" / RECORD_FILE).exists()
    first = told(node)
    path = tmp_path / "Graz" / RECORD_FILE
    (path.parent / f"{RECORD_FILE}.part").write_bytes(b"half")  # another was killed as it wrote
    assert told(Node(node.silo)) == first
    path.write_bytes(path.read_bytes()[:-1])
    assert "cannot be used" in join(Node(node.silo))["refuses"]


# ---- 62: under noise


def test_under_noise_moments_have_noise_within_stated_ranges_once(tmp_path):
    quiet = told(Node(silo(tmp_path, table(60))))
    own = silo(tmp_path, table(60), ranges=RANGES, least_noise=0.5)
    first = told(Node(own), **NOISY)  # the exact answer is not repeated where noise is demanded
    assert all(first[name] != quiet[name] for name in RANGES)
    assert told(Node(own), "another", **NOISY, seed=5) == first
    (tmp_path / "Graz" / RECORD_FILE).unlink()
    assert told(Node(own), "a-third", **NOISY) != first
    known = [told(Node(replace(own, known_noise=True, folder=tmp_path / name)), **NOISY) for name in "ab"]
    assert known[0] == known[1]


def test_the_noise_covers_one_record_by_hand():
    x = torch.tensor([[0.0, 150.0], [100.0, 300.0], [50.0, float("nan")]])
    ranges = torch.tensor([[0.0, 100.0], [100.0, 200.0]])
    count, mean, squares = noisy(x, ranges, 0.0, np.random.default_rng(0))
    assert count.tolist() == [3, 2] and mean.tolist() == [50, 175]  # 300 counts as 200
    assert squares.tolist() == [5000, 1250]

    class Recorded:
        def normal(self, mean, deviation, shape):
            self.asked = mean, deviation, shape
            return np.zeros(shape)

    random = Recorded()
    noisy(x, ranges, 2.0, random)
    assert random.asked == (0, 2 * 6**0.5, (3, 2))  # two columns: a record adds (1, u, u^2) of each
    wild = noisy(x[:1], ranges, 100.0, np.random.default_rng(1))
    assert (wild[0] >= 1).all() and (wild[2] >= 0).all()
    assert ((wild[1] >= ranges[:, 0]) & (wild[1] <= ranges[:, 1])).all()


@pytest.mark.parametrize("limits", ["[1]", "[2, 1]", '["a", "b"]', "5", "[0, inf]"])
def test_a_range_that_is_none_is_refused_in_a_line(limits, tmp_path):
    (tmp_path / "silo.toml").write_text(f'name = "x"\n[data]\ndata = "a.csv"\nranges = {{age = {limits}}}\n')
    with pytest.raises(PartwiseError, match=r"\[data\]: ranges of 'age' are .*; write \[LOWEST, HIGHEST\]"):
        read_silo(tmp_path / "silo.toml")


# ---- 69: cells, rare classes and rare texts


def spoiled(frame, how):
    """A table with something in it that names a patient."""
    if how == "an unreadable cell":
        return frame.assign(age=["Maria Huber", *frame["age"][1:]])
    if how == "no label":
        return frame.drop(columns="sick").assign(MariaHuber=1)
    if how == "an empty label":
        return frame.assign(sick=[None, *frame["sick"][1:]])
    return frame.assign(age=[np.inf, *frame["age"][1:]])


@pytest.mark.parametrize("how", ["an unreadable cell", "no label", "an empty label", "an infinite cell"])
def test_fault_69_what_is_wrong_with_a_cell_stays_in_the_nodes_own_log(how, tmp_path, caplog):
    node = Node(silo(tmp_path, spoiled(table(60), how)))
    assert join(node)["refuses"] == "the data of Graz cannot be used; the node's own log says why"
    assert f"{tmp_path}" in caplog.text
    assert "column" in caplog.text or "lacks" in caplog.text


@pytest.mark.parametrize("where", ["load", "fitted", "prepare", "moments"])
def test_fault_69_nothing_of_an_error_that_nobody_expects_leaves(where, tmp_path, monkeypatch, caplog):
    def fail(*arguments, **keywords):
        raise RuntimeError("Maria Huber, 1954")

    places = {
        "load": "federation.protocol.silo.load",
        "fitted": "data.schema.fit_to_schema",
        "prepare": "federation.protocol.node.prepare",
        "moments": "federation.protocol.reported_data.column_moments",
    }
    node = Node(silo(tmp_path, table(60)))
    monkeypatch.setattr(f"partwise.{places[where]}", fail)
    answer = join(node)
    if where not in ("load", "moments"):
        answer = asked(node, "begin", agreed=asdict(agree({"n": described(answer)})), min_clients=1)
    assert answer["refuses"] == "the data of Graz cannot be used; the node's own log says why"
    assert "Maria Huber, 1954" in caplog.text and "Traceback" in caplog.text


def test_fault_69_rare_texts_and_classes_are_not_told_unless_they_are_public(tmp_path):
    frame = table(60, cp=["a"] * 20 + ["b"] * 36 + ["c"] * 4).assign(sick=["no"] * 30 + ["yes"] * 28 + ["Huber"] * 2)
    answer = join(Node(silo(tmp_path, frame)))
    assert answer["features"] == ["age", "size", "cp=a", "cp=b"] and answer["class_names"] == ["no", "yes"]
    assert answer["classes"] == 2 and answer["shape"] == [4]
    fewer = table(60, cp=["a"] * 20 + ["b"] * 40).assign(sick=["no"] * 30 + ["yes"] * 30)
    plain = join(Node(silo(tmp_path, fewer, "Linz")))
    assert {**plain, "names": 0, "data": 0} == {**answer, "names": 0, "data": 0}  # nor how many rare ones there are
    public = join(Node(silo(tmp_path, frame, names=("c", "Huber"))))
    assert public["features"][-1] == "cp=c" and public["class_names"] == ["Huber", "no", "yes"]


def test_fault_69_a_rare_text_is_used_where_others_told_of_it_and_is_nothing_where_nobody_did(tmp_path):
    graz = table(60, cp=["a"] * 20 + ["b"] * 38 + ["c"] + ["d"])
    own = {"Graz": silo(tmp_path, graz), "Linz": silo(tmp_path, table(60, 1, cp=["a", "b", "c"] * 20), "Linz")}
    simulation = run(make_config("fedavg", SETTINGS), own)
    names = simulation.federation.source.feature_names
    assert names == ("age", "size", "cp=a", "cp=b", "cp=c")
    part = simulation.engine.nodes.link.nodes["Graz"].run.simulation.federation.source.x
    assert part[58:, 2:].tolist() == [[0, 0, 1], [0, 0, 0]]
    assert not any(b"cp=d" in answer for _, _, answer in simulation.engine.nodes.link.sent)


def test_fault_69_a_rare_class_is_used_where_others_told_of_it_and_ends_the_run_where_nobody_did(tmp_path, caplog):
    graz, linz = table(60).assign(sick=["no"] * 30 + ["yes"] * 28 + ["Huber"] * 2), table(60, 1)
    own = {"Graz": silo(tmp_path, graz), "Linz": silo(tmp_path, linz, "Linz")}
    with pytest.raises(PartwiseError) as error:
        run(make_config("fedavg", SETTINGS), own)
    line = "the data of Graz have classes that may not be told; the node's own log says which"
    assert str(error.value) == f"Graz refuses: {line}"
    assert "have the class 'Huber', and no silo may name it: correct a misspelling, remove" in caplog.text
    own["Wien"] = silo(tmp_path, linz.assign(sick=["no", "yes", "Huber"] * 20), "Wien")
    again = run(make_config("fedavg", SETTINGS), own, "another-run").run()
    assert again.federation.source.class_names == ("Huber", "no", "yes")


# ---- nodes and simulation agree


@pytest.mark.parametrize("fewest", [(20, 5), (1, 1)], ids=["by default", "open"])
@pytest.mark.parametrize("method", ["fedavg", "fedper"])
def test_nodes_equal_the_simulation_of_their_tables(method, fewest, tmp_path):
    few, rare = fewest
    allow = {**OPEN, "min_train_samples": few, "min_class_count": rare}
    split = {"train_samples": 40, "validation": 0.1, "split_seed": 3}
    own = {name: silo(tmp_path, frame, name, split, **allow) for name, frame in three().items()}
    there = run(make_config(method, SETTINGS), own)
    asks = {"data": str(tmp_path / "tables"), **OWN, **split, "min_train_samples": few, "min_class_count": rare}
    here = prepare(make_config(method, {**SETTINGS, **asks}))
    one, two = here.federation.source, there.federation.source
    assert one.feature_names == two.feature_names and one.class_names == two.class_names
    assert one.centre == pytest.approx(two.centre, abs=1e-12) and one.scale == pytest.approx(two.scale, abs=1e-12)
    here.run(), there.run()
    for name, copies in here.server.copies.items():
        assert torch.allclose(copies.values, there.server.copies[name].values, rtol=0, atol=1e-10), name


def test_simulated_clients_on_nodes_equal_one_machine_also_with_few_cells(tmp_path):
    for name, frame in three().items():
        silo(tmp_path, frame, name)
    asks = {"data": str(tmp_path / "tables"), **OWN, "min_train_samples": 20, "min_class_count": 5}
    config = make_config("fedavg", {**SETTINGS, **asks})
    allowed = Allowed(**ALLOW, data=(str(tmp_path / "tables"),))
    own = {
        name: Silo(name, tmp_path / name, hosts=span, allow=allowed)
        for name, span in {"l": (0, 1), "r": (2, 2)}.items()
    }
    here, there = prepare(config), run(config, own)
    assert here.federation.source.centre == pytest.approx(there.federation.source.centre, abs=1e-12)
    assert here.federation.source.scale == pytest.approx(there.federation.source.scale, abs=1e-12)


def test_a_node_names_the_settings_of_its_file_and_separates_problems(tmp_path, caplog):
    """The options of the command line do not exist on a node."""
    frame = table(40, weight=[*map(str, range(38)), "n/k", "?"], height=[None, *range(39)])
    node = Node(silo(tmp_path, frame, data={"missing": "refuse"}))
    assert "own log says why" in join(node)["refuses"]
    line = next(record.getMessage() for record in caplog.records if "cannot be used" in record.getMessage())
    assert 'leave the column out: drop = "weight" in [data] (also line 41); ' in line
    assert 'missing = "mean" in [data]' in line and "allow_nonfinite_data = true in [data]" in line and "--" not in line


def test_fault_64_statistics_that_left_are_in_the_ledger_though_the_run_never_began(tmp_path):
    """A launch may end between the moments and round 1."""
    own = silo(tmp_path, table(40))
    told(Node(own), "ended-early")
    left = {name: run.left for name, run in ReleaseLedger(own.folder, own.allow, own.name).runs.items()}
    assert left == {"ended-early": {"feature statistics": 1}}
