"""The defaults of every method's own options: what its authors use, and where they are silent the plain choice."""

import pytest

from partwise.methods import find, names
from partwise.reporting.methods import own_fields

SCHEDULED = {"unfreeze": None, "layers": None, "host": "fedbabu"}
DEFAULTS = {
    "anti": SCHEDULED,
    "apfl": {"mixing_weight": 0.5, "learn_mixing": True},
    "central": {},
    "cfl": {
        "aggregation": "uniform",
        "mean_norm": 0.4,
        "max_norm": 1.6,
        "first_split_round": 20,
        "linkage": "complete",
    },
    "ditto": {"proximal_weight": 1.0, "personal_epochs": None},
    "dualfed": {
        "aggregation": "uniform",
        "contrast_weight": 1.0,
        "temperature": 0.2,
        "strategy": "stagewise",
        "classifier_position": "dualfed",
        "projector_depth": 2,
        "projector_hidden": 256,
        "projector_norm": True,
        "stage2_bn": "train",
        "ensemble": "logits",
    },
    "fed3p2p": {
        "coordinators_a": 5,
        "coordinators_b": 5,
        "filter_from": None,
        "rounds_1": None,
        "rounds_2": None,
        "participation_mode": "whole_group",
        "group_a": "local_search",
        "group_b": "local_search",
        "type_a": True,
        "two_phase": True,
        "filter_mode": "group_shared",
        "detach_p_head": True,
        "reset_lr": True,
    },
    "fedala": {"last_layers": 1, "learning_share": 0.8, "blend_rate": 1.0, "settled": 0.1, "most_epochs": 20},
    "fedamp": {
        "penalty": 1.0,
        "similarity": "distance",
        "scale": None,
        "step": None,
        "self_weight": None,
        "start_from": "own",
    },
    "fedavg": {},
    "fedbabu": {},
    "fedbn": {},
    "fedclust": {"clusters": None, "threshold": None, "cluster_epochs": 1},
    "feddyn": {"aggregation": "uniform", "dynamic_weight": 0.01},
    "fedetf": {
        "personal_rounds": 20,
        "personal_epochs": 3,
        "personal_head_lr": 0.1,
        "personal_projector_lr": 0.05,
    },
    "fedfcd": {
        "align_weight": 1.0,
        "server_lr": None,
        "server_batch": 1,
        "server_epochs": 1,
        "extractor_loss_head": "fused",
        "alternation": "epoch",
        "align": True,
        "fusion": True,
        "align_reduction": "mean_dim",
        "lfr_cache": False,
    },
    "fedfomo": {"models": 5, "explore": 0.3, "validation_share": 0.2},
    "fedgh": {"server_lr": None},
    "fedpac": {"align_weight": 1.0, "head_epochs": 1},
    "fedper": {},
    "fedproto": {"prototype_weight": 1.0, "prototype_mean": "uniform", "inference": "prototype"},
    "fedprox": {"proximal_weight": 0.01},
    "fedrep": {"head_epochs": None, "body_epochs": 1},
    "fedrod": {"balance_strength": 1.0, "hypernetwork": False, "hypernetwork_hidden": 16},
    "fedtc": {"lr_classifier": None, "reset_local_classifier": False, "guide": "global", "share_classifier": True},
    "gpfl": {"magnitude_weight": 0.01, "guidance_decay": 0.1},
    "lg_fedavg": {"warmup_rounds": 0},
    "local": {},
    "moon": {"contrast_weight": 1.0, "temperature": 0.5},
    "pacfl": {"directions": 3, "angle": "smallest", "threshold": 10.0, "clusters": None},
    "per_fedavg": {"order": "first", "inner_lr": None, "difference": 0.001, "adaptation": "step"},
    "pfedme": {"proximal_weight": 15.0, "inner_steps": 5, "personal_lr": None},
    "scaffold": {"aggregation": "uniform"},
    "spherefed": {"calibration": False, "calibration_ridge": 1.0},
    "vanilla": SCHEDULED,
}


@pytest.mark.parametrize("method", names())
def test_defaults(method):
    assert {field.name: field.default for field in own_fields(find(method))} == DEFAULTS[method]
