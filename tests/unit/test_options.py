"""Settings: what is accepted and as what, what is refused, and the one line that says so."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import partwise
from partwise.errors import MOST_LISTED, ConfigError, nearest, unknown
from partwise.method import Method
from partwise.methods import find, names
from partwise.options import Checked, allowed, check_conditions, convert, option
from partwise.reporting.methods import option_help
from partwise.runs.config import make_config
from partwise.runs.settings import SECTIONS


def refuse_odd(value):
    if value % 2:
        raise ConfigError(f"{value} is odd")


@dataclass(kw_only=True)
class Sample(Checked):
    """One field of every kind."""

    whole: int = option(1, "A whole number.", minimum=0)
    share: float = option(0.5, "A share.", above=0, maximum=1)
    factor: float = option(0.5, "A factor.", minimum=0, below=1)
    any_number: float = option(0.0, "Any number.")
    switch: bool = option(False, "A switch.")
    text: str = option("a", "A text.")
    choice: Literal["one", "two"] = option("one", "A choice.")
    rounds: tuple[int, ...] | None = option(None, "Some rounds.", minimum=1)
    maybe: float | None = option(None, "A number or none.", above=0)
    plain: int = 7  # not described, but checked all the same
    odd: int = option(0, "An even number.", check=refuse_odd)


FIELDS = {field.name: field for field in dataclasses.fields(Sample)}

ACCEPTED = [
    ("whole", 3, 3),
    ("whole", 0, 0),
    ("whole", "12", 12),
    ("whole", 5.0, 5),
    ("share", 1, 1.0),
    ("share", "0.25", 0.25),
    ("share", "1e-3", 0.001),
    ("factor", 0, 0.0),
    ("any_number", -1e300, -1e300),
    ("switch", True, True),
    ("switch", False, False),
    ("switch", "true", True),
    ("switch", "True", True),
    ("switch", "False", False),
    ("switch", "FALSE", False),
    ("text", "", ""),
    ("text", "True", "True"),
    ("choice", "two", "two"),
    ("rounds", "1,5,9", (1, 5, 9)),
    ("rounds", [1, 5], (1, 5)),
    ("rounds", (2,), (2,)),
    ("rounds", 4, (4,)),
    ("rounds", "4", (4,)),
    ("rounds", None, None),
    ("maybe", None, None),
    ("maybe", "2", 2.0),
    ("rounds", [2.0, "3"], (2, 3)),
    ("plain", "-12", -12),
    ("odd", "4", 4),
]
REFUSED = [
    ("whole", -1),
    ("whole", 1.5),
    ("whole", "1.5"),
    ("whole", "three"),
    ("whole", ""),
    ("whole", None),
    ("whole", True),
    ("whole", False),
    ("whole", math.nan),
    ("whole", math.inf),
    ("whole", [1]),
    ("share", 0),
    ("share", 1.0000001),
    ("share", -0.1),
    ("share", math.nan),
    ("share", "nan"),
    ("share", True),
    ("share", None),
    ("share", {}),
    ("factor", 1),
    ("factor", -1e-9),
    ("any_number", math.inf),
    ("any_number", -math.inf),
    ("any_number", math.nan),
    ("any_number", "inf"),
    ("any_number", False),
    ("switch", 1),
    ("switch", 0),
    ("switch", "yes"),
    ("switch", ""),
    ("switch", None),
    ("text", 3),
    ("text", None),
    ("text", True),
    ("choice", None),
    ("choice", 1),
    ("choice", ["one"]),
    ("rounds", "1,x"),
    ("rounds", "1,,2"),
    ("rounds", [0]),
    ("rounds", [1, -1]),
    ("rounds", []),
    ("rounds", ""),
    ("rounds", [None]),
    ("rounds", {}),
    ("rounds", math.nan),
    ("rounds", math.inf),
    ("rounds", 1.9),
    ("rounds", [2, 2.5]),
    ("rounds", True),
    ("rounds", [True]),
    ("maybe", 0),
    ("maybe", True),
    ("maybe", "none"),
    ("plain", "seven"),
    ("plain", True),
    ("odd", 1.5),
]
RANGES = {
    "whole": "a whole number at least 0",
    "share": "a number above 0 and at most 1",
    "factor": "a number at least 0 and below 1",
    "any_number": "a number",
    "switch": "true or false",
    "text": "a text",
    "choice": "one of one, two",
    "rounds": "whole numbers separated by commas at least 1 (or unset)",
    "maybe": "a number above 0 (or unset)",
    "plain": "a whole number",
    "odd": "a whole number",
}


@pytest.mark.parametrize(("name", "value", "expected"), ACCEPTED)
def test_accepted_as(name, value, expected):
    result = getattr(Sample(**{name: value}), name)
    assert result == expected and type(result) is type(expected)


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_refused_in_one_line_that_names_the_field_the_value_and_the_range(name, value):
    with pytest.raises(ConfigError) as refusal:
        Sample(**{name: value})
    assert str(refusal.value) == f"{name} = {value!r} is not allowed: {name} takes {RANGES[name]}"
    assert refusal.value.exit_code == 2


@pytest.mark.parametrize(
    ("value", "near"), [("tow", "; did you mean 'two'?"), ("One", "; did you mean 'one'?"), ("3", ";")]
)
def test_a_choice_is_refused_with_the_nearest_one(value, near):
    with pytest.raises(ConfigError) as refusal:
        Sample(choice=value)
    assert str(refusal.value) == f"unknown choice '{value}'{near} known: one, two"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("--lrr", "--lr"), ("--ruonds", "--rounds"), ("--batch-size", "--batch"), ("--save", "--save-models")],
)
def test_a_near_name_is_suggested(typed, meant):
    known = ["--lr", "--rounds", "--batch", "--batch-norm", "--save-models", "--cap", "--split"]
    assert nearest(typed, known) == meant


@pytest.mark.parametrize("typed", ["--cpu", "--plot", "--head-epochs", "--beta", "--outdir", "--gpu", "--learning"])
def test_a_far_name_is_not_suggested(typed):
    known = ["--cap", "--split", "--epochs", "--delta", "--outliers", "--server-learning-rate", "--rounds"]
    assert unknown("option", typed, known) == f"unknown option '{typed}'; known: {', '.join(known)}"
    many = [*known, *(f"--other{number}" for number in range(MOST_LISTED))]
    assert unknown("option", typed, many) == f"unknown option '{typed}'; --help lists the options"


def test_all_that_is_wrong_is_told_at_once():
    with pytest.raises(ConfigError) as refusal:
        Sample(whole=-1, share=2, choice="tow", text="fine", odd=3)
    assert refusal.value.problems == [
        "whole = -1 is not allowed: whole takes a whole number at least 0",
        "share = 2 is not allowed: share takes a number above 0 and at most 1",
        "unknown choice 'tow'; did you mean 'two'? known: one, two",
        "3 is odd",
    ]
    assert str(refusal.value) == "\n".join(refusal.value.problems)


def test_python_hears_of_five_mistakes_in_one_error():
    with pytest.raises(ConfigError) as refusal:
        partwise.run("fedavg", lrr=0.1, lr=-1, batch="many", partition="dri:1", clients=4, clients_per_round=5)
    assert [problem[:40] for problem in refusal.value.problems] == [
        "unknown setting 'lrr'; did you mean 'lr'",
        "lr = -1 is not allowed: lr takes a numbe",
        "batch = 'many' is not allowed: batch tak",
        "unknown partition 'dri'; did you mean 'd",
        "clients_per_round = 5 is more than the 4",
    ]
    with pytest.raises(ConfigError) as refusal:
        partwise.run("fedpox", lr=-1, proximal_weight=1)
    assert [problem.split(";")[0] for problem in refusal.value.problems] == [
        "unknown method 'fedpox'",
        "lr = -1 is not allowed: lr takes a number at least 0",
    ]


def test_a_long_value_is_cut_short():
    with pytest.raises(ConfigError) as refusal:
        Sample(whole="9" * 10_000, any_number="x" * 10_000, share=10**5000, text="\ud800")
    assert all(len(problem) < 200 for problem in refusal.value.problems)
    assert refusal.value.problems[1].startswith("share = a number of too many digits is not allowed")
    assert refusal.value.problems[3] == r"text = '\ud800' is not allowed: text takes a text"


@pytest.mark.parametrize("name", RANGES)
def test_what_a_field_takes_in_words(name):
    assert allowed(FIELDS[name]) == RANGES[name]


def test_every_kind_of_field_is_in_both_tables():
    assert {name for name, *_ in ACCEPTED} == {name for name, _ in REFUSED} == set(RANGES) == set(FIELDS)


@settings(max_examples=100, deadline=None)
@given(st.floats() | st.integers(-10, 10))
def test_a_number_is_accepted_exactly_within_its_limits(value):
    for name, fits in (
        ("share", 0 < value <= 1),
        ("factor", 0 <= value < 1),
        ("any_number", math.isfinite(value)),
        ("whole", math.isfinite(value) and value >= 0 and value == int(value)),
    ):
        if fits:
            assert convert(FIELDS[name], value) == value
            assert convert(FIELDS[name], repr(value) if name != "whole" else str(int(value))) == value
        else:
            with pytest.raises(ConfigError):
                convert(FIELDS[name], value)


garbage = st.none() | st.booleans() | st.floats() | st.text(max_size=5) | st.integers(-(2**80), 2**80)


@settings(max_examples=150, deadline=None)
@given(name=st.sampled_from(sorted(RANGES)), value=garbage | st.lists(st.text(max_size=3), max_size=3))
def test_anything_is_either_of_the_fields_type_or_refused(name, value):
    try:
        result = convert(FIELDS[name], value)
    except ConfigError as refusal:
        assert len(str(refusal).splitlines()) == 1
        return
    kinds = {
        "whole": int,
        "plain": int,
        "odd": int,
        "switch": bool,
        "text": str,
        "choice": str,
        "rounds": (tuple, type(None)),
    }
    assert isinstance(result, kinds.get(name, (float, type(None)))) and convert(FIELDS[name], result) == result


def test_a_methods_own_option_is_checked_like_every_other():
    class Pulled(Method):
        pull: float = option(1.0, "Strength of the pull.", minimum=0)

    assert Pulled(pull="2").pull == 2.0 and Pulled().pull == 1.0
    with pytest.raises(ConfigError, match=r"^pull = -1 is not allowed: pull takes a number at least 0$"):
        Pulled(pull=-1)
    assert make_config(Pulled, {"pull": 3}).method.pull == 3.0


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("lr", -1, "a number at least 0"),
        ("lr", math.nan, "a number at least 0"),
        ("rounds", 0, "a whole number at least 1"),
        ("batch", 0, "a whole number at least 1"),
        ("participation", 1.5, "a number above 0 and at most 1"),
        ("participation", 0, "a number above 0 and at most 1"),
        ("clients", 0, "a whole number at least 1 (or unset)"),
        ("momentum", 1, "a number at least 0 and below 1"),
        ("lr_decay", 0, "a number above 0 and at most 1"),
        ("clip_norm", 0, "a number above 0 (or unset)"),
        ("optimizer", 1, "one of sgd, adamw"),
        ("bn_buffers", None, "one of local, average"),
        ("seed", -1, "a whole number at least 0"),
        ("eval_every", 0, "a whole number at least 1"),
        ("drop_last", "no", "true or false"),
    ],
)
def test_settings_of_a_run_are_refused_with_their_range(name, value, words):
    with pytest.raises(ConfigError) as refusal:
        make_config("fedavg", {name: value})
    assert str(refusal.value) == f"{name} = {value!r} is not allowed: {name} takes {words}"


def test_a_method_may_bring_other_defaults_which_are_checked_too():
    class Faster(Method):
        lr = 0.5
        momentum = "0.9"

    assert (Faster().lr, Faster().momentum, Faster(lr=0.1).lr, Method().lr) == (0.5, 0.9, 0.1, 0.01)

    class Backwards(Method):
        lr = -1

    with pytest.raises(ConfigError, match=r"^lr = -1 is not allowed: lr takes a number at least 0$"):
        Backwards()


def test_an_option_of_a_type_that_no_command_line_can_give_is_refused():
    with pytest.raises(ConfigError, match=r"^Listed\.names cannot be an option: its type is <class 'list'>, not int, "):

        class Listed(Method):
            names: list = option(None, "Some names.")


class Switched(Method):
    switch: bool = option(True, "A switch.")
    other: bool = option(False, "Another.")
    kind: Literal["flat", "deep", "deeper"] = option("flat", "A kind.")
    depth: int = option(1, "A number.", minimum=1)
    weight: float = option(1.0, "A weight.", when="switch")
    without: float | None = option(None, "A number.", when="not switch")
    hidden: int = option(8, "A size.", when="kind=deep|deeper")
    several: int = option(0, "A number.", when="not depth=1 and switch")
    either: bool = option(False, "A third.", when="switch or other")


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"weight": 2, "switch": False}, "weight = 2 has no effect with switch = no"),
        ({"without": 0.5}, "without = 0.5 has no effect with switch = yes"),
        ({"hidden": 9}, "hidden = 9 has no effect with kind = flat"),
        ({"several": 1}, "several = 1 has no effect with depth = 1"),
        ({"several": 1, "switch": False}, "several = 1 has no effect with depth = 1 and switch = no"),
        ({"either": True, "switch": False}, "either = yes has no effect with switch = no and other = no"),
    ],
)
def test_an_option_that_has_no_effect_is_refused(settings, line):
    with pytest.raises(ConfigError) as refusal:
        make_config(Switched, settings)
    assert str(refusal.value) == line


@pytest.mark.parametrize("settings", [
    {"weight": 2},
    {"weight": 1.0, "switch": False},  # nobody can tell that a default was given
    {"without": 0.5, "switch": False},
    {"hidden": 9, "kind": "deeper"},
    {"several": 1, "depth": "2"},
    {"either": True, "switch": False, "other": True},
])  # fmt: skip
def test_an_option_that_has_an_effect_is_taken(settings):
    make_config(Switched, settings)


def test_what_an_option_needs_stands_in_its_help():
    fields = {field.name: option_help(field) for field in dataclasses.fields(Switched)}
    assert fields["weight"] == "A weight. (with switch) [a number; default: 1.0]"
    assert fields["without"] == "A number. (without switch) [a number; default: unset]"
    assert fields["hidden"] == "A size. (with kind = deep or deeper) [a whole number; default: 8]"
    assert fields["several"] == "A number. (unless depth = 1 and with switch) [a whole number; default: 0]"
    assert fields["either"] == "A third. (with switch or with other) [default: no]"


@pytest.mark.parametrize(
    ("when", "line"),
    [
        ("swich", "Wrong.mine, when: unknown setting 'swich'; did you mean 'switch'?"),
        ("kind=deap", "unknown kind 'deap'; did you mean 'deep'? known: flat, deep, deeper"),
        ("depth=two", "depth = 'two' is not allowed: depth takes a whole number at least 1"),
    ],
)
def test_a_condition_on_what_there_is_not_is_refused_with_the_class(when, line):
    with pytest.raises(ConfigError) as refusal:

        class Wrong(Switched):
            mine: int = option(0, "Mine.", when=when)

    assert str(refusal.value).startswith(line)


def test_conditions_of_every_table_and_method_name_what_there_is():
    for cls in (*SECTIONS.values(), *map(find, names())):
        check_conditions(cls)


@pytest.mark.parametrize(
    ("method", "settings", "line"),
    [
        ("fed3p2p", {"two_phase": False, "coordinators_a": 3}, "coordinators_a = 3 has no effect with two_phase = no"),
        (
            "fed3p2p",
            {"two_phase": False, "participation_mode": "regroup"},
            "participation_mode = regroup has no effect",
        ),
        ("fed3p2p", {"two_phase": False, "rounds_1": 3}, "rounds_1 = 3 has no effect with two_phase = no"),
        ("fed3p2p", {"detach_p_head": False}, "detach_p_head = no has no effect with two_phase = yes"),
        ("fed3p2p", {"type_a": False, "group_a": "random"}, "group_a = random has no effect with type_a = no"),
        ("fed3p2p", {"filter_mode": "local", "coordinators_b": 3}, "coordinators_b = 3 has no effect with filter_mode"),
        ("fedfcd", {"align": False, "align_weight": 2}, "align_weight = 2 has no effect with align = no"),
        (
            "fedfcd",
            {"align": False, "align_reduction": "sum_dim"},
            "align_reduction = sum_dim has no effect with align",
        ),
        ("fedfcd", {"fusion": False, "server_lr": 0.1}, "server_lr = 0.1 has no effect with fusion = no"),
        (
            "dualfed",
            {"strategy": "simultaneous", "stage2_bn": "eval"},
            "stage2_bn = eval has no effect with strategy =",
        ),
        (
            "dualfed",
            {"projector_depth": 1, "projector_hidden": 64},
            "projector_hidden = 64 has no effect with projector",
        ),
        (
            "fedtc",
            {"share_classifier": False, "guide": "local", "reset_local_classifier": True},
            "reset_local_classifie",
        ),
        ("fedavg", {"optimizer": "adamw", "momentum": 0.9}, "momentum = 0.9 has no effect with optimizer = adamw"),
        (
            "fedavg",
            {"clients_per_round": 2, "participation": 0.5},
            "participation = 0.5 has no effect with clients_per",
        ),
        ("fedavg", {"split": "original", "test_share": 0.5}, "test_share = 0.5 has no effect with split = original"),
        ("fedavg", {"engine": "loop", "block": 4}, "block = 4 has no effect with engine = loop"),
        ("fedavg", {"engine": "vector", "workers": 2}, "workers = 2 has no effect with engine = vector"),
    ],
)
def test_nothing_is_ignored(method, settings, line):
    with pytest.raises(ConfigError) as refusal:
        make_config(method, settings)
    assert str(refusal.value).startswith(line) and len(refusal.value.problems) == 1


class Spelled(Method):
    rate: float = option(1e-5, "A rate.")
    on: bool = option(True, "A switch.")
    by_number: float = option(1.0, "Beside a number.", when="rate=0.00001")
    by_switch: float = option(1.0, "Beside a switch.", when="on=true")


def test_a_condition_means_a_value_and_not_its_spelling():
    Spelled(by_number=2.0, by_switch=2.0)
    with pytest.raises(ConfigError, match="by_switch = 2 has no effect with on = no"):
        Spelled(by_switch=2.0, on=False)


def test_an_unknown_setting_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match=r"^unknown setting 'lrr'; did you mean 'lr'\?$"):
        make_config("fedavg", {"lrr": 0.1})
    with pytest.raises(ConfigError, match=r"^fedavg has no option proximal_weight; ditto, fedprox and pfedme have$"):
        make_config("fedavg", {"proximal_weight": 0.1})
    assert make_config("fedprox", {"proximal_weight": 0.1}).method.proximal_weight == 0.1


def test_an_option_must_not_take_the_name_of_a_setting_of_every_run():
    class Greedy(Method):
        seed: int = option(1, "Not mine to take.")

    with pytest.raises(ConfigError, match=r"^Greedy\.seed: every run has a setting of this name; rename yours$"):
        make_config(Greedy, {})


def test_settings_that_contradict_each_other_are_refused():
    with pytest.raises(ConfigError, match=r"^clients_per_round = 30 is more than the 20 clients$"):
        make_config("fedavg", {"clients_per_round": 30, "clients": 20})
    with pytest.raises(ConfigError, match=r"^eval_clients = 21 is more than the 20 clients$"):
        make_config("fedavg", {"eval_clients": 21, "clients": 20})
    with pytest.raises(ConfigError, match=r"^eval_at = 6 is after the last round, 5$"):
        partwise.run("fedavg", data="made", eval_at="2,6", rounds=5)
    make_config("fedavg", {"clients_per_round": 20, "eval_clients": 20, "clients": 20, "eval_at": "5", "rounds": 5})
