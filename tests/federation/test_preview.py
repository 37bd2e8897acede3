"""`partwise node SILO.toml --check`: what it says would leave is what then leaves, and it writes nothing."""

import pytest

from partwise.errors import ConfigError, PartwiseError
from partwise.federation.protocol.handshake import agree
from partwise.federation.protocol.preview import check_here, preview
from partwise.federation.protocol.releases import ReleaseLedger, spent_of
from partwise.federation.protocol.silo import read_silo
from partwise.records.messages import Joined
from partwise.records.record import read_record
from partwise.records.wire import unpack_tree
from partwise.runs.config import make_config
from tests.support.commands import refusals, succeed
from tests.support.silo_tables import NOISY, RANGES, SETTINGS, run, silo, table, three

ONCE = "Once, before the first round, and the same in every run while the data stay:"
STAYS = "Stays here, named on this terminal alone:"


def section(lines, title):
    """The lines below a title, up to the next empty one."""
    begin = lines.index(title) + 1
    return lines[begin : lines.index("", begin) if "" in lines[begin:] else len(lines)]


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def secretive():
    """Three silos; in Graz texts, a column and a class are rare."""
    frames = three()
    graz = frames["Graz"]
    graz.loc[1:3, "cp"] = "Maria Huber"
    frames["Graz"] = graz
    for name, frame in frames.items():
        frame.loc[:1, "sick"] = "rare"
        if name == "Linz":
            frame.loc[:20, "sick"] = "rare"
    return frames


def test_all_that_a_silo_tells_is_said_before_and_what_stays_is_in_no_answer(tmp_path):
    own = {name: silo(tmp_path, frame, name) for name, frame in secretive().items()}
    said = {name: preview(each) for name, each in own.items()}
    link = run(make_config("fedavg", SETTINGS), own).engine.nodes.link
    answers = {(name, unpack_tree(m)["kind"]): unpack_tree(a) for name, m, a in link.sent}
    for name, lines in said.items():
        once = "\n".join(lines[lines.index("") : lines.index("In each round:")]).split(STAYS)[0]
        joined, told = answers[name, "join"], answers[name, "moments"]["moments"]
        [(train, test, validation)] = joined["sizes"]
        assert f"training ({train}), testing ({test}) and validation ({validation})" in once
        assert f"- the names {name} and {joined['data']}; " in once
        assert f"- the shape of a sample ({len(joined['features'])}); min_clients = {joined['min_clients']}" in once
        assert f"- {len(joined['columns'])} columns by name: {', '.join(joined['columns'])}" in once
        assert f"- the classes {', '.join(joined['class_names'])}" in once
        texts = [feature.removeprefix("cp=") for feature in joined["features"] if feature.startswith("cp=")]
        assert f"- of cp the texts {', '.join(texts)}" in once
        agreed = agree({each: read_record(Joined, answers[each, "join"], each) for each in own}).features
        count = {feature: number for feature, number in zip(agreed, told[0].tolist(), strict=True) if number}
        numbers = [f"{feature} ({n:g})" for feature, n in count.items() if "=" not in feature]
        assert f"mean of the training cells: {', '.join(numbers)}\n" in once
        shares = [feature for feature in count if "=" in feature]
        assert (f"- the share of training samples with {', '.join(shares)}" in once) == bool(shares)
    assert section(said["Graz"], STAYS) == [
        "- the classes rare: a run is refused where no other silo names them",
        "- of cp the texts Maria Huber (min_class_count = 5, min_train_samples = 20)",
        "- all of ca but its name: 2 training cells (min_train_samples = 20)",
    ]
    assert not any(b"Maria Huber" in answer for _, _, answer in link.sent)
    assert "rare" not in answers["Graz", "join"]["class_names"]


def test_what_left_so_far_is_that_of_the_ledger(tmp_path):
    own = {
        name: silo(tmp_path, table(60, seed), name, ranges=RANGES, least_noise=1.0)
        for seed, name in enumerate(("Graz", "Linz"))
    }
    assert preview(own["Graz"])[-1] == "- so far: nothing"
    run(make_config("fedavg", {**SETTINGS, **NOISY}), own).run()
    before = files(tmp_path)
    lines = preview(own["Graz"])
    runs = ReleaseLedger(own["Graz"].folder, own["Graz"].allow, "Graz").runs
    left = runs["a-run"].left
    assert left == {"feature statistics": 1, "body": 2, "head": 2}
    assert lines[-2:] == [
        "- so far: 1 runs, answers with feature statistics (1), body (2), head (2)",
        f"- epsilon so far: {spent_of(runs, 1e-5):.4g}, of answers under noise",
    ]
    assert "- epsilon: no bound (most_epsilon); noise that a run must have: least_noise = 1" in lines
    assert files(tmp_path) == before


def test_moments_under_noise_are_named_without_numbers_and_nothing_is_drawn_for_good(tmp_path):
    lines = preview(silo(tmp_path, table(60), ranges=RANGES, least_noise=0.5))
    assert any(line.endswith("with noise 0.5 times as large as what one sample adds: age, size") for line in lines)
    assert not (tmp_path / "Graz").exists()


def test_after_a_few_more_patients_the_stored_answer_is_what_would_leave(tmp_path):
    frames = {name: table(60, seed) for seed, name in enumerate(("Graz", "Linz"))}
    own = {name: silo(tmp_path, frame, name) for name, frame in frames.items()}
    run(make_config("fedavg", SETTINGS), own)
    before = section(preview(own["Graz"]), ONCE)
    more = table(65)
    more.loc[:59] = frames["Graz"]
    after = section(preview(silo(tmp_path, more)), ONCE)
    assert "training (52)" in after[0] and before[1:] == after[1:] and "age (48), size (48)" in after[-1]


@pytest.mark.parametrize(
    ("allow", "privacy_lines"),
    [
        ({}, ["training losses: none (loss)", "scores: rounded to 3 digits, none in runs with noise (scores)"]),
        ({"loss": "exact", "scores": "exact"}, ["training losses: exact (loss)", "scores: exact (scores)"]),
        ({"most_epsilon": 1.0}, ["training losses: none (loss)", "scores: none (scores)"]),
    ],
)
def test_losses_and_scores_are_said_as_the_file_lets_them_go(allow, privacy_lines, tmp_path):
    text = "\n".join(preview(silo(tmp_path, table(60), **allow)))
    assert all(line in text for line in privacy_lines)
    assert "over 12 test samples (min_test_samples = 1)" in text


def test_no_score_of_few_test_samples_is_announced(tmp_path):
    lines = preview(silo(tmp_path, table(60), min_test_samples=13))
    assert any(line.endswith("over no samples (min_test_samples = 13)") for line in lines)


# ---- the command


def written(folder, data, allow="", **columns):
    """A silo's file, and its table beside it."""
    table(60, **columns).to_csv(folder / "patients.csv", index=False)
    path = folder / "graz.toml"
    path.write_text(f'name = "Graz"\n[data]\ndata = "patients.csv"\nlabel = "sick"\n{data}[allow]\n{allow}')
    return path


def test_the_command_needs_no_server_and_writes_nothing(tmp_path, capsys):
    path = written(tmp_path, "test_share = 0.2\n")
    before = files(tmp_path)
    out = succeed(capsys, "node", path, "--check")
    assert out.splitlines() == preview(read_silo(path))
    assert out.startswith("Graz can take part: 'patients.csv' has 60 samples.\n")
    assert files(tmp_path) == before and not (tmp_path / "Graz-state").exists()
    assert refusals(capsys, "node", path, "--check", "--plain", "--server", "a:1") == [
        "error: --check connects to nobody: leave out --plain, --server"
    ]
    assert refusals(capsys, "node", path)[0].startswith("error: --server is missing")


def test_all_problems_of_the_data_are_named_with_line_and_column(tmp_path, capsys):
    age = [*["1.5"] * 3, "Maria Huber", *["1.5"] * 56]
    path = written(tmp_path, "", 'methods = ["fedprr"]\nfiles = ["mine.py"]\n', age=age, height=[*["2"] * 59, "tall"])
    unknown, file, first, second = refusals(capsys, "node", path, "--check", code=3)
    assert "[allow] unknown method 'fedprr'; did you mean 'fedper'?" in unknown and "mine.py" in file
    assert "line 5, column 'age'" in first and "Maria Huber" in first
    assert "line 61, column 'height'" in second and "tall" in second


def test_all_problems_of_a_file_are_named_at_once(tmp_path, capsys):
    path = written(tmp_path, "test_share = 2\nshade = 1\nranges = {age = [5]}\n", "min_clients = 0\nloss = 5\n")
    lines = refusals(capsys, "node", path, "--check")
    for part in ("'shade'", "ranges of 'age'", "test_share = 2", "min_clients = 0", "loss = 5"):
        assert sum(part in line for line in lines) == 1, part
    assert len(lines) == 5


def test_columns_without_a_range_are_all_named_where_noise_is_demanded(tmp_path, capsys):
    path = written(tmp_path, "", "least_noise = 0.5\n")
    age, size = refusals(capsys, "node", path, "--check")
    assert "states no range of column 'age'" in age and "states no range of column 'size'" in size
    path = written(tmp_path, "", "least_noise = 0.5\nmin_train_samples = 100\n")
    few, *ranges, classes = refusals(capsys, "node", path, "--check", code=3)
    assert "Graz has fewer than 100 training samples" in few and ranges == [age, size]
    assert "every class has too few training samples" in classes


def test_a_silo_that_took_part_in_all_its_runs_cannot_take_part(tmp_path):
    own = {name: silo(tmp_path, table(60, seed), name, most_runs=1) for seed, name in enumerate(("Graz", "Linz"))}
    run(make_config("fedavg", SETTINGS), own)
    with pytest.raises(PartwiseError, match="Graz takes part in at most 1 runs"):
        preview(own["Graz"])


def test_a_node_with_simulated_clients_says_what_it_hosts(tmp_path, capsys):
    path = tmp_path / "left.toml"
    path.write_text('name = "left"\nhosts = "0-99"\n[allow]\ndata = ["table.csv"]\n')
    out = succeed(capsys, "node", path, "--check")
    assert out.startswith("left can take part: it hosts the simulated clients 0 to 99 of the run's own data.\n")
    assert f"of its own files it reads {tmp_path / 'table.csv'}," in out and "training losses: exact" in out


def test_a_number_in_quotes_is_refused_and_every_line_names_its_table(tmp_path):
    path = written(
        tmp_path, 'test_share = "0.2"\n', 'min_clients = "3"\nrelay = "true"\nloss = "rounde"\nparts = [1]\n'
    )
    path.write_text(f"most_bytes = 1.5\nfolder = 7\n{path.read_text()}")
    with pytest.raises(ConfigError) as refused:
        read_silo(path)
    folder, most, *settings = refused.value.problems
    assert "folder is a text" in folder and "most_bytes = 1.5 is not a whole number" in most
    assert [line.removeprefix(f"'{path}' ").split("; known")[0] for line in settings] == [
        "[data]: test_share = '0.2' is a text, not a number above 0 and below 1 (or unset): write it without quotes",
        "[allow]: min_clients = '3' is a text, not a whole number at least 1: write it without quotes",
        "[allow]: relay = 'true' is a text, not true or false: write it without quotes",
        "[allow]: unknown loss 'rounde'; did you mean 'rounded'? known: no, rounded, exact",
        '[allow]: parts is a list of names, as ["fedper"]',
    ]


def test_a_node_refuses_unknown_methods_and_missing_data_before_it_connects(tmp_path):
    path = written(tmp_path, "", 'methods = ["fedprr"]\n')
    path.write_text(path.read_text().replace("patients.csv", "pateints.csv"))
    with pytest.raises(ConfigError) as refused:
        check_here(read_silo(path))
    method, data = refused.value.problems
    assert "[allow] unknown method 'fedprr'; did you mean 'fedper'?" in method
    assert "unknown data set 'pateints.csv'" in data
    (tmp_path / "pateints.csv").write_text("")
    path.write_text(path.read_text().replace("fedprr", "fedper"))
    check_here(read_silo(path))
