"""Laws of parts (P3): every tensor gets exactly one answer, nothing is lost or changed by taking a network apart."""

import re
from collections import OrderedDict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import partwise
from partwise.errors import ConfigError
from partwise.method import ALL, FROZEN, GROUP, GUIDE, LOCAL, MIXED_GUIDE, SERVER, SERVER_GUIDE, Method, Stage, train
from partwise.network import models
from partwise.network.layers import LayerScope
from partwise.network.parts import Parts
from partwise.network.view import Net
from partwise.rounds.plan import plans, share_by_tensor
from tests.support.runs import network, simulate

law = settings(max_examples=60, deadline=None)


def digits(seed: int = 0, norm: bool = True) -> Parts:
    return models.build("cnn-digits", (1, 8, 8), 10, norm=norm).initialise(seed)


# A cut body, a second head and a second whole network beside the chain: 5 parts, 34 tensors.
PARTS = digits().cut("body", filter="fc1").like("head", name="p_head").copy("*", "mine")
NAMES = list(PARTS.tensors())
SELECTORS = [
    *("*", "@norm", "body", "filter", "head", "p_head", "mine"),
    *("body.conv1", "body.conv1.0", "body.conv1.1", "body.conv2", "filter.fc1", "filter.fc1.1"),
    *("mine.body", "mine.filter", "mine.head", "mine.body.conv2", "mine.body.conv2.1"),
]
SHARES = [ALL, GUIDE, GROUP, MIXED_GUIDE, SERVER, SERVER_GUIDE, LOCAL, FROZEN]
selectors = st.sampled_from(SELECTORS)
several = st.lists(selectors, min_size=1, max_size=3).map(" ".join)


def meant(selector: str) -> set[str]:
    """What a selector stands for, from the names alone: batch-norm is the layer `.1` of a convolution here."""
    if selector == "*":
        return set(NAMES)
    if selector == "@norm":
        return {name for name in NAMES if re.search(r"conv\d\.1\.", name)}
    return {name for name in NAMES if name.startswith(selector + ".")}


def values(parts: Parts) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in parts.tensors().items()}


def equal(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


# ---------------------------------------------------------------------------------------- selectors and answers


def test_the_parts_of_this_file_have_as_many_tensors_as_they_should():
    assert len(NAMES) == 16 + 2 + 16 and len(PARTS.buffers) == 8
    assert PARTS.chain == ("body", "filter", "head")


@law
@given(several)
def test_a_selector_stands_for_the_tensors_below_it_in_the_order_of_the_network(selector):
    wanted = set().union(*(meant(single) for single in selector.split()))
    assert PARTS.select(selector) == [name for name in NAMES if name in wanted]


def test_no_selector_stands_for_nothing():
    assert PARTS.select("") == []


@law
@given(st.dictionaries(several, st.integers(), max_size=6))
def test_every_tensor_gets_the_answer_of_the_last_selector_that_names_it(answers):
    covering = {"*": -1, **answers}  # a "*" among the answers replaces this one and keeps its place
    expected = {}
    for selector, answer in covering.items():
        for single in selector.split():
            expected.update(dict.fromkeys(meant(single), answer))
    result = PARTS.assign(covering)
    assert list(result) == NAMES
    assert result == expected


@law
@given(st.dictionaries(selectors.filter(lambda selector: selector != "*"), st.integers(), max_size=6))
def test_answers_that_leave_a_tensor_out_are_refused_naming_it(answers):
    left = [name for name in NAMES if not any(name in meant(selector) for selector in answers)]
    if not left:
        assert set(PARTS.assign(answers)) == set(NAMES)
    else:
        with pytest.raises(
            ConfigError, match=f"^nothing is given for '{re.escape(left[0])}', which none of the selectors "
        ):
            PARTS.assign(answers)


@law
@given(st.sets(selectors), st.sampled_from(["local", "average"]))
def test_shared_and_personal_tensors_are_disjoint_cover_all_and_join_to_what_they_were(shared, buffers):
    method = Method(bn_buffers=buffers)
    stage = Stage(train(), {"*": LOCAL, **dict.fromkeys(sorted(shared), ALL)}, rounds=1)
    answers = share_by_tensor(method, PARTS, stage)
    before = values(PARTS)
    split = {answer: {name: before[name] for name in answers if answers[name] is answer} for answer in (ALL, LOCAL)}
    wanted = set().union(*(meant(selector) for selector in shared))
    wanted -= PARTS.buffers if buffers == "local" else set()
    assert set(split[ALL]) == wanted
    assert not set(split[ALL]) & set(split[LOCAL])
    assert equal({name: {**split[ALL], **split[LOCAL]}[name] for name in NAMES}, before)


@law
@given(st.dictionaries(selectors, st.sampled_from(SHARES), max_size=5))
def test_a_plan_gives_every_tensor_one_place(answers):
    """Held by the client, downloaded each round, or frozen: exactly one of them. Only what is shared is uploaded."""

    class Any(Method):
        share = {"*": ALL, **answers}

    (plan,) = plans(Any(), PARTS)
    adopted = plan.names(lambda share: share.adopt and share.sent)
    assert sorted([*plan.own, *adopted, *plan.names(lambda share: share == FROZEN)]) == sorted(NAMES)
    assert set(plan.up) == {name for name in NAMES if plan.share[name] in (ALL, GUIDE, GROUP, MIXED_GUIDE)}
    assert set(plan.up) <= set(plan.down)
    assert PARTS.buffers <= set(plan.own)  # bn_buffers = local


@pytest.mark.parametrize(
    ("selector", "nearest"),
    [
        ("hed", "head"),
        ("bodi", "body"),
        ("body.cnv1", "body.conv1"),
        ("head body.fc2", "body.fc1"),
        ("@nrom", "@norm"),
    ],
)
def test_an_unknown_selector_is_refused_with_the_nearest_name(selector, nearest):
    wrong = selector.split()[-1]
    with pytest.raises(ConfigError) as refusal:
        digits().select(selector)
    known = "body, head, body.conv1, body.conv2, body.fc1, @norm, *"
    assert str(refusal.value) == f"unknown part '{wrong}'; did you mean '{nearest}'? known: {known}"


def test_a_selector_that_is_only_the_beginning_of_a_name_is_unknown():
    for selector in ("bod", "body.con", "body.conv", "mine.bod"):
        with pytest.raises(ConfigError, match=r"^unknown part"):
            PARTS.select(selector)


def test_normalisation_layers_are_refused_where_there_are_none():
    with pytest.raises(ConfigError) as refusal:
        digits(norm=False).assign({"*": ALL, "@norm": LOCAL})
    assert str(refusal.value) == (
        "selector '@norm' matches nothing: the model has no normalisation layers; "
        "parts: body (conv1 > conv2 > fc1), head"
    )


@pytest.mark.parametrize(
    "norm", [nn.LayerNorm(3), nn.GroupNorm(1, 3), nn.BatchNorm1d(3), nn.InstanceNorm1d(3, affine=True)]
)
def test_normalisation_layers_are_found_by_their_type_wherever_they_are(norm):
    body = nn.Sequential(OrderedDict(first=nn.Linear(2, 3), inner=nn.Sequential(norm)))
    parts = Parts(nn.Sequential(OrderedDict(body=body, norm=nn.LayerNorm(3), head=nn.Linear(3, 2))))
    found = [name for name in parts.select("@norm") if name not in parts.buffers]
    assert found == ["body.inner.0.weight", "body.inner.0.bias", "norm.weight", "norm.bias"]


# ------------------------------------------------------------------------------------- cut, copy, like, add, replace


@pytest.mark.parametrize(("layer", "first", "second"), [("conv2", 1, 2), ("fc1", 2, 1)])
def test_a_cut_keeps_every_value_and_the_function(layer, first, second):
    whole = digits()
    cut = whole.cut("body", filter=layer)
    assert cut.chain == ("body", "filter", "head")
    assert (len(cut.layers("body")), len(cut.layers("filter"))) == (first, second)
    before, after = values(whole), values(cut)
    renamed = {name.replace("filter.", "body.") if name.startswith("filter") else name: v for name, v in after.items()}
    assert equal({name: renamed[name] for name in before}, before)
    x = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    scope = LayerScope()
    outputs = [Net(parts.prepared(scope), scope, parts.tensors())(x) for parts in (whole, cut)]
    assert torch.equal(*outputs)
    assert whole.chain == ("body", "head") and whole.layers("body") == ["conv1", "conv2", "fc1"]


def test_a_cut_part_can_be_cut_again():
    thrice = digits().cut("body", filter="conv2").cut("filter", last="fc1")
    assert thrice.chain == ("body", "filter", "last", "head")
    assert equal(
        {re.sub("^(filter|last)", "body", name): value for name, value in values(thrice).items()}, values(digits())
    )


def test_a_part_cannot_be_cut_before_its_first_layer():
    with pytest.raises(ConfigError) as refusal:
        digits().cut("body", filter="conv1")
    assert str(refusal.value) == (
        "part 'body' cannot be cut before 'conv1', its first layer; its layers: ['conv1', 'conv2', 'fc1']"
    )


def test_a_cut_before_an_unknown_layer_or_of_an_unknown_part_is_refused():
    with pytest.raises(ConfigError, match=r"^part 'body': unknown layer 'fc2'; known: conv1, conv2, fc1$"):
        digits().cut("body", filter="fc2")
    for part, layers in (
        ("bodi", {"filter": "fc1"}),
        ("mine", {"filter": "fc1"}),
        ("body", {"a": "conv2", "b": "fc1"}),
    ):
        with pytest.raises(ConfigError, match=r"^cut takes a part of the chain \('body', 'head'\) and one new name: "):
            digits().copy("body", "mine").cut(part, **layers)


def test_a_copy_has_the_values_of_the_part_and_is_apart_from_it():
    parts = digits(3)
    copied = parts.copy("head", "second")
    assert copied.chain == parts.chain and list(copied.modules) == ["body", "head", "second"]
    assert equal({k.replace("second", "head"): copied.tensors()[k] for k in copied.select("second")},
                 {k: parts.tensors()[k] for k in parts.select("head")})  # fmt: skip
    with torch.no_grad():
        copied.modules["second"].weight.zero_()
    assert all(held.modules["head"].weight.any() for held in (copied, parts)) and "second" not in parts.modules


def test_a_copy_of_everything_lines_up_by_name_and_runs():
    parts = digits(1).copy("*", "mine")
    scope = LayerScope()
    prepared = parts.prepared(scope)
    net = Net(prepared, scope, prepared.tensors())
    mine, everything = net["mine"], net["*"]
    assert set(mine) == {name for name in everything if not name.startswith("mine.")}
    assert all(torch.equal(mine[name], everything[name]) for name in mine)
    assert not any("running" in name for name in everything)
    x = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(net(x), net.mine(x))
    # running values are its own
    training = Net(prepared, scope, prepared.tensors(), training=True, mask=torch.ones(3, dtype=torch.bool))
    training.mine(x)
    changed = {name for name, value in training.tensors.items() if not torch.equal(value, prepared.tensors()[name])}
    assert changed == {name for name in prepared.buffers if name.startswith("mine.")} and len(changed) == 4


def test_a_part_like_another_has_its_shapes_and_a_draw_of_its_own_name():
    parts = digits(7)
    like = parts.like("head", name="p_head")
    assert {k.removeprefix("p_head."): v.shape for k, v in like.tensors().items() if k.startswith("p_head.")} == {
        "weight": (10, 64),
        "bias": (10,),
    }
    assert not torch.equal(like.modules["p_head"].weight, like.modules["head"].weight)
    assert equal({name: like.tensors()[name] for name in parts.tensors()}, values(parts))
    # the same as if the network had had it from the start
    begun = Parts(nn.ModuleDict({"p_head": nn.Linear(64, 10)})).initialise(7)
    assert torch.equal(like.modules["p_head"].weight, begun.modules["p_head"].weight)
    other_name, other_seed = parts.like("head", name="q_head"), digits(8).like("head", name="p_head")
    assert not torch.equal(like.modules["p_head"].weight, other_name.modules["q_head"].weight)
    assert not torch.equal(like.modules["p_head"].weight, other_seed.modules["p_head"].weight)


def test_a_module_is_added_beside_the_chain_or_put_in_a_parts_place_as_it_is():
    parts, module = digits(), nn.Linear(64, 5)
    added, replaced = parts.add("projector", module, drawn=False), parts.replace("head", module)
    assert added.chain == replaced.chain == ("body", "head")
    assert torch.equal(added.modules["projector"].weight, module.weight)
    assert torch.equal(replaced.modules["head"].weight, module.weight)
    assert list(replaced.modules) == ["body", "head"] and "projector" not in parts.modules
    assert parts.modules["head"].out_features == 10
    assert equal({name: added.tensors()[name] for name in parts.tensors()}, values(parts))


def test_a_name_that_is_taken_or_unknown_is_refused():
    for change in (
        lambda: digits().add("head", nn.Linear(2, 2)),
        lambda: digits().copy("body", "head"),
        lambda: digits().like("head", name="head"),
    ):
        with pytest.raises(ConfigError, match=r"^there is a part 'head' already; the parts: body, head$"):
            change()
    for change in (
        lambda: digits().replace("hed", nn.Linear(2, 2)),
        lambda: digits().copy("hed", "p_head"),
        lambda: digits().like("hed", "p_head"),
        lambda: digits().layers("hed"),
    ):
        with pytest.raises(ConfigError, match=r"^unknown part 'hed'; did you mean 'head'\? known: body, head$"):
            change()


def test_what_was_selected_before_a_change_is_not_selected_after_it():
    parts = digits()
    before = parts.select("*"), parts.select("body"), parts.buffers, parts.members
    cut = parts.cut("body", filter="fc1").add("extra", nn.BatchNorm1d(2))
    assert len(cut.select("*")) == len(parts.select("*")) + 4
    assert cut.select("body") == [name for name in parts.select("body") if ".fc1." not in name]
    assert cut.buffers - parts.buffers == {"extra.running_mean", "extra.running_var"}
    assert set(cut.members) == {"body", "filter", "head", "extra"}
    assert before == (parts.select("*"), parts.select("body"), parts.buffers, parts.members)


def test_some_tensors_are_drawn_anew_from_the_stream_of_their_part():
    parts = digits()
    one = parts.draw(["head.weight"], 0, "fresh", 1)
    both = parts.draw([*parts.select("body.fc1"), "head.weight"], 0, "fresh", 1)
    other = parts.draw(["head.weight"], 0, "fresh", 2)
    assert list(one) == ["head.weight"] and list(both) == [*parts.select("body.fc1"), "head.weight"]
    assert torch.equal(one["head.weight"], both["head.weight"])
    assert not torch.equal(one["head.weight"], other["head.weight"])
    assert not torch.equal(one["head.weight"], parts.tensors()["head.weight"])


def test_a_layer_that_cannot_be_drawn_is_refused():
    class Frame(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

    parts = digits().add("frame", Frame(), drawn=False)
    for draw in (lambda: parts.like("frame", name="second"), lambda: digits().add("frame", Frame())):
        with pytest.raises(ConfigError, match=r"\(Frame\) cannot be reinitialised: it has no reset_parameters\(\)"):
            draw()


def test_an_added_module_is_drawn_from_the_stream_of_its_name_whatever_torch_drew_before():
    drawn = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        drawn.append(digits().add("projector", nn.Linear(64, 5)).modules["projector"].weight)
    assert torch.equal(*drawn)
    other = digits().add("second", nn.Linear(64, 5)).modules["second"].weight
    assert not torch.equal(drawn[0], other)


# ------------------------------------------------------------------------------------------ a user's own module


class Own(nn.Module):
    """Not a chain of children: parts have other names, and the backbone has a forward of its own."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.Module()
        self.backbone.first, self.backbone.second = nn.Linear(4, 6), nn.Linear(6, 5)
        self.fc = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(run_backbone(self.backbone, x))


def run_backbone(module: nn.Module, x: Tensor) -> Tensor:
    hidden = torch.tanh(module.first(x))
    return module.second(hidden).relu() + x.sum(1, keepdim=True)


def test_a_users_module_is_named_and_run_as_the_user_says():
    own = Own()
    parts = Parts(own, body="backbone", head="fc", forward={"body": run_backbone})
    assert parts.chain == ("body", "head")
    assert list(parts.tensors()) == [
        *(f"body.{layer}.{kind}" for layer in ("first", "second") for kind in ("weight", "bias")),
        *("head.weight", "head.bias"),
    ]
    scope = LayerScope()
    x = torch.randn(7, 4, generator=torch.Generator().manual_seed(0))
    expected = own(x)
    for taken in (parts, parts.like("head", name="p_head"), parts.copy("body", "second"), parts.copy("*", "mine")):
        prepared = taken.prepared(scope)
        net = Net(prepared, scope, prepared.tensors())
        assert torch.equal(net(x), expected)
    assert torch.equal(net.mine(x), expected)
    doubled = net.with_tensors({name: 2 * value for name, value in net.tensors.items() if name.startswith("mine.")})
    assert torch.equal(doubled(x), expected) and not torch.equal(doubled.mine(x), expected)


def test_the_users_module_stays_as_it_is():
    own = Own()
    before = {name: value.detach().clone() for name, value in own.state_dict().items()}
    parts = Parts(own, body="backbone", head="fc", forward={"body": run_backbone})
    parts.initialise(0)
    with torch.no_grad():
        for value in parts.tensors().values():
            value.zero_()
    assert equal(dict(own.state_dict()), before)
    assert "forward" not in vars(own.backbone)


# ------------------------------------------------------------------------------- where the parts of a network are

SETTINGS = {"data": "made", "clients": 3, "rounds": 1}


def outputs(parts: Parts, x: Tensor) -> Tensor:
    scope = LayerScope()
    return Net(parts.prepared(scope), scope, parts.tensors())(x)


def plain_network() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))


class Residual(nn.Module):
    """As everybody writes it: the names of torchvision, and a forward that flattens between pooling and the head."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1, self.relu = nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True)
        self.layer1 = nn.Sequential(nn.Conv2d(4, 6, 3), nn.ReLU())
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(6, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer1(self.relu(self.bn1(self.conv1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


ROW = "conv1 bn1 relu layer1 avgpool"
WAYS = {
    "nothing is said": lambda net: Parts(net),
    "the head": lambda net: Parts(net, head="fc"),
    "the head itself": lambda net: Parts(net, head=net.fc),
    "a forward": lambda net: Parts(net, body=ROW, head="fc", forward={"body": lambda body, x: body(x).flatten(1)}),
    "a list": lambda net: Parts(net, body=[*ROW.split(), nn.Flatten()], head="fc"),
    "modules": lambda net: Parts(net, body=[*list(net.children())[:-1], nn.Flatten()], head=net.fc),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_residual_network_as_everybody_writes_it(way):
    net = Residual().eval()
    parts = WAYS[way](net)
    assert parts.chain == ("body", "head")
    usual = {name for name in net.state_dict() if "tracked" not in name}
    assert {re.sub("^body.", "", name).replace("head.", "fc.") for name in parts.tensors()} == usual
    assert parts.select("body.layer1") == ["body.layer1.0.weight", "body.layer1.0.bias"]
    x = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(outputs(parts, x), net(x))
    result = partwise.run("fedper", model=parts, **SETTINGS)
    assert set(result.ledger["rounds"][0]["up"]) == {"body"}
    assert list(net.state_dict()) == list(Residual().state_dict())  # it was not taken apart


def test_submodules_in_a_row_can_be_cut_and_a_part_with_a_forward_of_its_own_cannot():
    net = Residual()
    parts = WAYS["a list"](net)
    assert parts.layers("body") == [*ROW.split(), "flatten"]
    assert parts.cut("body", filter="layer1").layers("filter") == ["layer1", "avgpool", "flatten"]
    with pytest.raises(ConfigError, match="part 'body' has a forward of its own and cannot be cut"):
        WAYS["a forward"](net).cut("body", filter="layer1")


def test_what_is_forgotten_between_submodules_is_refused():
    with pytest.raises(ConfigError, match=r"the network does not take samples of shape|are not the network"):
        partwise.run("fedper", model=Parts(Residual(), body=ROW, head="fc"), **SETTINGS)


def test_a_submodule_that_stands_twice_gets_a_number():
    net = nn.Module()
    net.a, net.re_lu, net.relu_2, net.inner = nn.Linear(4, 4), nn.ReLU(), nn.ReLU(), nn.Module()
    net.inner.a = nn.Linear(4, 2)
    assert Parts(net, body="a re_lu re_lu inner.a").layers("body") == ["a", "re_lu", "re_lu_2", "a_2"]
    parts = Parts(net, body=["a", "relu_2", nn.ReLU(), nn.ReLU()], head="inner.a")
    assert parts.layers("body") == ["a", "relu_2", "relu", "relu_3"]


def test_a_plain_sequence_that_ends_in_a_linear_layer_has_that_as_its_head():
    net = plain_network()
    parts = Parts(net)
    assert repr(parts) == "parts: body (0 > 1 > 2), head"
    assert parts.select("head") == ["head.weight", "head.bias"]
    assert parts.cut("body", filter="1").layers("filter") == ["1", "2"]
    x = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(outputs(parts, x), net(x))
    named = nn.Sequential(OrderedDict(conv1=nn.Conv2d(1, 2, 3), flat=nn.Flatten(), fc=nn.Linear(72, 10)))
    assert repr(Parts(named)) == "parts: body (conv1 > flat), head"
    backbone = nn.Sequential(plain_network(), nn.Linear(10, 3))
    assert repr(Parts(backbone)) == "parts: body (0 > 1 > 2 > 3), head"  # what stands alone before it is the body
    assert repr(Parts(nn.Linear(3, 2))) == "parts: head"


def test_a_sequence_with_a_body_or_a_head_is_taken_by_its_children():
    layers = OrderedDict(encoder=nn.Linear(4, 3), middle=nn.Linear(3, 3), head=nn.Linear(3, 2))
    assert Parts(nn.Sequential(layers)).chain == ("encoder", "middle", "head")


def test_where_no_head_is_obvious_all_is_trained_together_and_a_head_that_is_asked_for_is_refused():
    sequence = nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten())
    assert Parts(sequence).chain == ("0", "1")

    class Convolutional(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(1, 10, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x).flatten(1)

    assert Parts(Convolutional()).chain == ("body",)
    for net, known in ((sequence, "0, 1"), (Convolutional(), "body")):
        assert partwise.run("fedavg", model=net, **SETTINGS).metrics[-1]["received"]["clients"] == 3
        with pytest.raises(ConfigError, match=rf"^unknown part '(body|head)'; .*known: {known}"):
            partwise.run("fedper", model=net, **SETTINGS)


def test_the_linear_layers_inside_attention_are_no_heads():
    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 10)
            self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.encoder(x.flatten(1, 2)).mean(1))

    parts = Parts(Tokens())
    assert parts.select("head") == ["head.weight", "head.bias"] and len(parts.select("body")) == 12
    assert partwise.run("fedper", model=parts, engine="loop", **SETTINGS).metrics


def test_a_linear_layer_that_is_last_by_definition_alone_is_refused():
    class Backwards(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.first = nn.Linear(8, 10), nn.Linear(64, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(torch.relu(self.first(x.flatten(1))))

    with pytest.raises(ConfigError, match=r"body > head in sequence differ from the network|does not take samples"):
        partwise.run("fedper", model=Backwards(), **SETTINGS)
    assert partwise.run("fedper", model=Parts(Backwards(), head="fc"), **SETTINGS).metrics


def test_what_the_forward_does_after_the_head_is_not_lost_where_all_is_zero_at_zero():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.fc = nn.Linear(64, 8, bias=False), nn.Linear(8, 10, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(torch.relu(self.first(x.flatten(1)))).sigmoid() - 0.5

    with pytest.raises(ConfigError, match="body > head in sequence differ from the network"):
        partwise.run("fedper", model=Scaled(), **SETTINGS)


def test_a_sequence_with_a_forward_of_its_own_is_no_sequence():
    class Doubled(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    net = Doubled(*plain_network())
    x = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ConfigError, match="body > head in sequence differ from the network"):
        partwise.run("fedper", model=net, **SETTINGS)
    whole = Parts(nn.Sequential(OrderedDict(body=net, head=nn.Linear(10, 10))))
    assert torch.equal(whole.modules["body"](x), net(x))
    with pytest.raises(ConfigError, match="has a forward of its own and cannot be cut"):
        whole.cut("body", filter="1")


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"body": "conv1 bn"}, "Residual: unknown submodule 'bn'; did you mean 'bn1'? known: conv1, bn1, "),
        ({"head": "fcc"}, "Residual: unknown submodule 'fcc'; did you mean 'fc'? known: conv1, bn1, "),
        ({"body": "layer1.3"}, "Residual: unknown submodule 'layer1.3'; did you mean 'layer1.1'? known: layer1.0, "),
        ({"body": "conv1 layer1", "head": "fc"}, "Residual has parameters outside its parts ['body', 'head']: bn1."),
        ({"body": ROW, "head": "layer1 fc"}, "Residual has parameters in more than one of its parts ['body', 'head']"),
        ({"body": [], "head": "fc"}, "part 'body' of Residual needs at least one submodule"),
    ],
)
def test_what_parts_cannot_be_is_refused_with_the_real_names(where, message):
    with pytest.raises(ConfigError) as refusal:
        Parts(Residual(), **where)
    assert str(refusal.value).startswith(message)


# ------------------------------------------------------------------------------------- the server keeps its hands off


def test_personal_parts_are_bit_unchanged_by_the_server():
    """After three rounds of FedPer a client that never took part has the initial head, and so has the server."""
    parts = network("mlp")
    initial = values(parts)
    run = simulate("fedper", parts, rounds=3, clients_per_round=2)
    took_part = {client for row in run.history.rows for client in row["participants"]}
    assert 2 <= len(took_part) < 8
    for client in range(8):
        own = run.engine.store.own(client, ["head.weight", "head.bias"])
        assert equal(own, {name: initial[name] for name in own}) == (client not in took_part)
    for name in ("head.weight", "head.bias"):
        assert torch.equal(run.server.copies[name].values[0], initial[name])
    assert not torch.equal(run.server.copies["body.fc1.1.weight"].values[0], initial["body.fc1.1.weight"])
