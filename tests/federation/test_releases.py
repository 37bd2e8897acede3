"""Faults 64 and 65: a silo's ledger of all that left it, and answers under noise that are given once."""

import json
import secrets
from dataclasses import replace

import pytest
import torch

from partwise.errors import DataError, PartwiseError
from partwise.federation.protocol import repeats
from partwise.federation.protocol.launch import federated
from partwise.federation.protocol.node import Node
from partwise.federation.protocol.releases import RELEASES_FILE, read_ledger, spent_of
from partwise.privacy.accountant import epsilon
from partwise.records.wire import pack_tree, unpack_tree
from partwise.runs.config import make_config
from tests.support.nodes import InProcess, members, silos
from tests.support.runs import awkward_federation

HOSTED = [[0, 2], [1], [3]]
SIZES = (7, 6, 9, 11)
SETTINGS = {"rounds": 2, "lr": 0.05, "batch": 4, "dtype": "float64", "model": "mlp-100", "threads": 1, "eval_every": 9}
NOISE = {"upload_clip": 1.0, "upload_noise": 2.0}


def ready(folder, method="fedavg", name="a-run", settings=(), federation=None, **allow):
    """A run over three nodes that have just been started, ready for round 0."""
    own = silos(federation or awkward_federation(SIZES), folder, HOSTED, **allow)
    config = make_config(method, {**SETTINGS, **dict(settings)})
    link = InProcess({name: Node(silo) for name, silo in own.items()})
    return federated(config, members(link, config, name))


def ledger(folder, node="n1"):
    return json.loads((folder / node / RELEASES_FILE).read_text())["runs"]


def heads(simulation, node="n1"):
    """All that the clients of a node hold."""
    store = simulation.engine.nodes.link.nodes[node].run.simulation.engine.store
    return {
        (*key, k): sheet.values[r] for key, sheet in store.sheets.items() for k, r in enumerate(store.row) if r >= 0
    }


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(value, other[key]) for key, value in one.items())


# ---- the ledger


def test_fault_64_the_ledger_counts_what_left_over_runs_and_restarts(tmp_path):
    """By hand: two rounds of training, evaluated once after the last one; then one round of another run."""
    first = ready(tmp_path, "fedproto", settings=NOISE).run()
    noise = first.config.privacy.upload_noise
    run = ledger(tmp_path)["a-run"]
    kinds = {"prototypes": 2, "losses": 2, "label counts": 2, "scores": 2}
    assert run["left"] == kinds and run["trainings"] == 2 and run["method"] == "fedproto"
    assert run["noise"] == {"uploads": {"2.0": 2}} and noise == 2.0
    ready(tmp_path, "fedavg", "b-run", {**NOISE, "rounds": 1, "histograms": "laplace:0.5", "seed": 5}).run()
    assert list(ledger(tmp_path)) == ["a-run", "b-run"]
    stored = read_ledger(tmp_path / "n1" / RELEASES_FILE)
    assert spent_of(stored, 1e-5) == epsilon("rdp", {(2.0, 1.0): 3}, 1e-5)


def test_fault_64_gradients_and_label_counts_have_noise_of_their_own(tmp_path):
    """Client 1 has 6 samples and batches of 4: two steps in each of its 2 epochs, so a record is used twice a round."""
    settings = {"dp_clip": 1.0, "dp_noise": 1.5, "epochs": 2, "histograms": "laplace:0.5"}
    ready(tmp_path, "fedproto", settings=settings).run()
    noise = ledger(tmp_path)["a-run"]["noise"]
    assert noise == {"gradients": {"1.5": 4}, "label counts": {"0.5": 2}}
    assert (
        spent_of(read_ledger(tmp_path / "n1" / RELEASES_FILE), 1e-5) == epsilon("rdp", {(1.5, 1.0): 4}, 1e-5) + 2 * 0.5
    )


def test_a_damaged_ledger_is_named_and_nothing_runs_without_it(tmp_path):
    ready(tmp_path)
    (tmp_path / "n1" / RELEASES_FILE).write_text("{")
    with pytest.raises(PartwiseError, match=r"^n1 refuses: .*releases.json' is damaged: put it back"):
        ready(tmp_path, name="b-run")


# ---- limits


def test_fault_65_most_epsilon_holds_across_runs_and_restarts(tmp_path):
    """Three uploads at noise 2 are allowed, the fourth is not, whichever run asks for it."""
    most = epsilon("rdp", {(2.0, 1.0): 3}, 1e-6) + 1e-9
    allow = {"most_epsilon": most, "delta": 1e-6}
    ready(tmp_path, settings=NOISE, **allow).run()
    second = ready(tmp_path, name="b-run", settings={**NOISE, "seed": 1, "rounds": 1}, **allow).run()
    assert not second.server.events
    third = ready(tmp_path, name="c-run", settings={**NOISE, "seed": 2}, **allow)
    with pytest.raises(PartwiseError, match=r"has spent epsilon = .* \(most_epsilon\) over 3 runs, and this answer"):
        third.server.step()
    assert spent_of(read_ledger(tmp_path / "n1" / RELEASES_FILE), 1e-6) <= most
    other = ready(tmp_path, name="d-run", settings={**NOISE, "seed": 2, "upload_noise": 3.0}, **allow)
    with pytest.raises(PartwiseError, match="most_epsilon"):  # another noise adds to the same sum
        other.server.step()


@pytest.mark.parametrize(
    "method, settings, line",
    [
        ("fedavg", {}, r"counts epsilon \(most_epsilon\): set upload_noise or dp_noise"),
        ("fedproto", {"dp_clip": 1.0, "dp_noise": 1.0}, "does not cover what fedproto computes of samples beside"),
    ],
)
def test_fault_65_a_run_that_epsilon_does_not_cover_is_refused(method, settings, line, tmp_path):
    with pytest.raises(PartwiseError, match=line):
        ready(tmp_path, method, settings=settings, most_epsilon=1e6)


def test_fault_65_label_counts_without_noise_do_not_leave_where_epsilon_is_counted(tmp_path):
    with pytest.raises(PartwiseError, match="label counts leave without noise: set histograms = laplace:EPSILON"):
        ready(tmp_path / "exact", "fedproto", settings=NOISE, most_epsilon=1e6).run()
    covered = {**NOISE, "histograms": "laplace:1"}
    assert not ready(tmp_path / "laplace", "fedproto", settings=covered, most_epsilon=1e6).run().server.events


def test_fault_65_most_runs_refuses_a_further_run_and_lets_one_go_on(tmp_path):
    for name in ("a-run", "b-run", "a-run"):
        ready(tmp_path, name=name, most_runs=2)
    with pytest.raises(PartwiseError, match=r"takes part in at most 2 runs \(most_runs\), and 2 began"):
        ready(tmp_path, name="c-run", most_runs=2)


def test_fault_65_most_rounds_holds_though_a_server_calls_all_rounds_the_first(tmp_path):
    with pytest.raises(PartwiseError, match="takes part in at most 2 rounds, the run has 3"):
        ready(tmp_path / "more", settings={"rounds": 3}, most_rounds=2)
    simulation = ready(tmp_path / "as-many", most_rounds=2)
    request = simulation.server.request("train", [1])
    for rate in (0.1, 0.2):
        assert simulation.engine.run(replace(request, rate=rate)).clients == [1]
    with pytest.raises(PartwiseError, match=r"trains at most 2 times in a run \(most_rounds\)"):
        simulation.engine.run(replace(request, rate=0.3))


@pytest.mark.parametrize(
    "allow, line",
    [
        ({"least_dp_noise": 1.0}, "n0 wants dp_noise from 1 on, the run has 0"),
        ({"most_dp_clip": 1.0}, "n0 wants dp_clip of at most 1, the run has None"),
        ({"min_batch": 8}, "n0 wants a batch of at least 8, the run has 4"),
    ],
)
def test_a_silo_demands_dp_sgd_and_large_mini_batches(allow, line, tmp_path):
    with pytest.raises(PartwiseError, match=line):
        ready(tmp_path, **allow)


def test_fault_64_a_phase_of_few_samples_is_refused(tmp_path):
    """FedFomo holds back a share of 0.2: of 7 samples 1, of 11 samples 2; the rest is 6, 5, 7 and 9."""
    with pytest.raises(PartwiseError, match="wants at least 3 training samples behind what leaves, and a phase of"):
        ready(tmp_path / "few", "fedfomo", min_train_samples=3)
    ready(tmp_path / "enough", "fedfomo", min_train_samples=1)


# ---- the same question again


def asked_again(simulation, times):
    """The answers to one question, asked in another round and under another number every time."""
    server, engine = simulation.server, simulation.engine
    request = server.request("train", [1])
    return [engine.run(replace(request, round=number % 2, number=number)) for number in range(times)]


def test_fault_64_sixty_answers_to_one_question_are_one_answer(tmp_path):
    simulation = ready(tmp_path, settings=NOISE)
    answers = asked_again(simulation, 60)
    assert all(same(answer.parts, answers[0].parts) for answer in answers)
    assert ledger(tmp_path)["a-run"]["noise"] == {"uploads": {"2.0": 1}}
    again = asked_again(ready(tmp_path, name="b-run", settings={**NOISE, "rounds": 7}), 2)  # other nodes, another run
    assert all(same(answer.parts, answers[0].parts) for answer in again)
    assert ledger(tmp_path)["b-run"]["trainings"] == 0


def test_fault_64_what_a_server_calls_its_copies_makes_no_other_question(tmp_path):
    class Renaming(InProcess):
        def ask(self, messages, timeout):
            contents = {name: unpack_tree(message) for name, message in messages.items()}
            for content in contents.values():
                content["digests"] = {name: secrets.token_hex(32) for name in content["digests"]}
            return super().ask({name: pack_tree(content) for name, content in contents.items()}, timeout)

    simulation = ready(tmp_path, settings=NOISE)
    nodes = simulation.engine.nodes
    nodes.link = Renaming(nodes.link.nodes)
    answers = []
    for number in range(3):
        simulation.engine.known.clear()  # so that all copies are sent again
        request = replace(simulation.server.request("train", [1]), number=number)
        answers.append(simulation.engine.run(request))
    assert all(same(answer.parts, answers[0].parts) for answer in answers)
    assert ledger(tmp_path)["a-run"]["trainings"] == 1


def test_without_noise_a_client_trains_whenever_it_is_asked(tmp_path):
    simulation = ready(tmp_path, "fedper")
    one, two = asked_again(simulation, 2)
    assert not same(one.parts, two.parts)  # for its head has moved
    assert not (tmp_path / "n1" / repeats.FOLDER).exists()


def test_a_client_that_uploads_nothing_trains_in_every_round(tmp_path):
    """Every question to it is the same; noise on gradients is drawn anew, for nothing of it leaves."""
    settings = {"dp_clip": 1.0, "dp_noise": 1.0, "rounds": 3}
    assert not ready(tmp_path, "local", settings=settings).run().server.events
    assert ledger(tmp_path)["a-run"]["trainings"] == 3


def test_fault_64_what_a_client_keeps_stays_as_it_was_when_a_question_comes_again(tmp_path):
    simulation = ready(tmp_path, "fedper", settings=NOISE)
    asked_again(simulation, 1)
    simulation.engine.run(replace(simulation.server.request("train", [1]), rate=0.5, number=1))
    now = {key: value.clone() for key, value in heads(simulation).items()}
    request = simulation.server.request("train", [1])
    simulation.engine.run(replace(request, number=2))
    assert now and same(heads(simulation), now)


def test_fault_64_a_run_that_is_repeated_ends_at_the_same_models_without_training(tmp_path):
    """Personal parts too: clients that are where they were before an answer are brought to where they were after it."""
    one = ready(tmp_path, "fedper", settings=NOISE).run()
    two = ready(tmp_path, "fedper", name="b-run", settings=NOISE).run()
    assert ledger(tmp_path)["b-run"]["trainings"] == 0 and not two.server.events
    for name, copies in one.server.copies.items():
        assert torch.equal(copies.values, two.server.copies[name].values)
    assert all(same(heads(one, node), heads(two, node)) for node in ("n0", "n1", "n2"))


def test_fault_64_a_skipped_round_is_asked_again_with_the_same_copies(tmp_path):
    """Node n1 is away in round 1: with min_clients the round is skipped, and the others answer as they did."""

    class Away(InProcess):
        def ask(self, messages, timeout):
            here = {name: message for name, message in messages.items() if name != "n1" or self.back}
            return super().ask(here, timeout)

    simulation = ready(tmp_path, settings={**NOISE, "min_clients": 4})
    link = Away(simulation.engine.nodes.link.nodes)
    simulation.engine.nodes.link, link.back = link, False
    simulation.server.step()
    link.back = True
    simulation.server.step()
    assert [event.what for event in simulation.server.events] == ["dropped", "skipped"]
    assert [ledger(tmp_path, node)["a-run"]["trainings"] for node in ("n0", "n1", "n2")] == [1, 1, 1]


def test_fault_64_a_question_whose_answer_is_no_longer_kept_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(repeats, "STORED_ANSWER_BYTES", 100)
    simulation = ready(tmp_path, settings=NOISE)
    request = simulation.server.request("train", [1])
    for rate in (1.0, 0.5):
        simulation.engine.run(replace(request, rate=rate))
    sizes = sorted(path.stat().st_size for path in (tmp_path / "n1" / repeats.FOLDER).iterdir())
    assert sizes[0] == 0 < sizes[1]
    with pytest.raises(PartwiseError, match="answered this question before, and the answer is no longer kept"):
        simulation.engine.run(replace(request, round=1))
    assert ledger(tmp_path)["a-run"]["trainings"] == 2


def test_an_answer_that_is_damaged_is_named(tmp_path):
    simulation = ready(tmp_path, settings=NOISE)
    asked_again(simulation, 1)
    [path] = (tmp_path / "n1" / repeats.FOLDER).iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    kept = simulation.engine.nodes.link.nodes["n1"].run.repeats
    with pytest.raises(DataError, match="is damaged: put it back"):
        kept.known(path.name)


def test_fault_64_other_settings_data_or_copies_make_another_question(tmp_path):
    simulation = ready(tmp_path, settings=NOISE)
    request = simulation.server.request("train", [1])
    simulation.engine.run(request)
    for settings in ({"lr": 0.06}, {"upload_noise": 2.5}, {"seed": 1}):
        other = ready(tmp_path, name="b-run" + "".join(settings).replace("_", "-"), settings={**NOISE, **settings})
        other.engine.run(other.server.request("train", [1]))
    federation = awkward_federation(SIZES)
    changed = replace(federation, source=replace(federation.source, x=255 - federation.source.x))
    other = ready(tmp_path, name="c-run", settings=NOISE, federation=changed)
    other.engine.run(other.server.request("train", [1]))
    assert sum(run["trainings"] for run in ledger(tmp_path).values()) == 5
    assert len(list((tmp_path / "n1" / repeats.FOLDER).iterdir())) == 5
