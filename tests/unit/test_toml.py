"""Settings in files: what is written is read back exactly, in whichever of TOML's forms, and each line is known."""

import string

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from partwise.errors import Problems
from partwise.runs.config import make_config
from partwise.runs.toml import read_settings

quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
values = st.fixed_dictionaries(
    {},
    optional={
        "data": texts,
        "label": texts | st.sampled_from(["\x7f", "a\nb", '"', "'\\", "\u2028", "\x00"]),
        "clients": st.integers(1, 2**62) | st.none(),
        "partition": st.floats(1e-300, 1e300).map(lambda alpha: f"dir:{alpha}"),
        "cap": st.booleans(),
        "lr": st.floats(0, 1e300) | st.integers(0, 10**300),
        "clip_norm": st.floats(1e-300, 1e300) | st.none(),
        "optimizer": st.sampled_from(["sgd", "adamw"]),
        "eval_at": st.lists(st.integers(1, 10**12), min_size=1, max_size=3).map(tuple) | st.none(),
        "head_epochs": st.integers(1, 9),
    },
)


def read_back(path):
    problems = Problems()
    with problems.collect():
        written = read_settings(path, problems)
        return make_config(written.method or "fedavg", written.settings, written.places), problems
    return None, problems


@quick
@given(values)
def test_p6_a_configuration_is_read_back_exactly(tmp_path, chosen):
    config, path = make_config("fedrep", chosen), tmp_path / "config.toml"
    path.write_bytes(config.to_toml().encode())
    again, problems = read_back(path)
    assert not problems and again == config and again.to_toml() == config.to_toml()


EXAMPLE = make_config("fedbabu", {"eval_at": "1,2", "label": "it's", "drop": '"quoted"'}).to_toml().encode()
position = st.integers(0, len(EXAMPLE))


def mutated(cuts):
    """The example with pieces taken out, doubled and put in elsewhere."""
    text = EXAMPLE
    for start, length, target, new in cuts:
        piece = text[start : start + length]
        text = text[:target] + piece + new + text[target:]
    return text


pieces = st.binary(max_size=4) | st.text(string.printable, max_size=6).map(str.encode)
cuts = st.lists(st.tuples(position, st.integers(0, 40), position, pieces), min_size=1, max_size=4)


@settings(quick, max_examples=200)
@given(st.binary(max_size=60) | st.text("[]{}=\"#.,\n \\'ax1", max_size=60).map(str.encode) | cuts.map(mutated))
def test_p6_garbage_is_refused_in_lines(tmp_path, content):
    path = tmp_path / "config.toml"
    path.write_bytes(content)
    config, problems = read_back(path)
    assert config is not None or problems
    for problem in problems:
        assert len(problem.splitlines()) == 1 and len(problem) < 1500


def test_every_form_of_a_key_has_its_line(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text(
        "# lr = 1\n"
        '"seed" = 3 # [train]\n'
        "train.lr = 1\n"
        "train . 'momentum' = 0.5\n"
        'data = {label = """\n[run]\nblock = 1\n""", drop = "a#b"}\n'
        "eval_at = [ # rounds = 2\n"
        "  1, # ]\n"
        "  2,\n"
        "]\n"
        "[ run ] # the run\n"
        "\r\n"
        "  block=2\r\n"
        "[method]\n"
        "\"name\" = 'local'\n"
    )
    problems = Problems()
    written = read_settings(path, problems)
    assert not problems and written.method == "local"
    lines = {name: int(place.rpartition(" ")[2]) for name, place in written.places.items()}
    assert lines == {"seed": 2, "lr": 3, "momentum": 4, "label": 5, "drop": 5, "eval_at": 9, "block": 15}
    assert written.settings["label"] == "[run]\nblock = 1\n" and written.settings["eval_at"] == [1, 2]
