"""Outliers: norms recorded in clean runs raise no alarm, planted ones do, and the log names a client once."""

import pytest
import torch

from partwise.rounds.acceptance import Outliers
from partwise.rounds.messages import Request, Updates
from partwise.rounds.mixing import Copies
from tests.support.attacks import attacking, ten_times_backwards
from tests.support.runs import network, simulate

# Update norms of 20 clients on digits in clean runs, of the round in which the longest was farthest from the median:
# the settings of `make demo`, and dir:0.05, where FedRep and SCAFFOLD passed seven times the median.
CLEAN = {
    "fedavg": [  # dir:0.1, round 1
        0.822,
        0.888,
        0.0921,
        0.194,
        0.109,
        0.106,
        0.663,
        0.262,
        0.0636,
        0.139,
        0.685,
        0.173,
        0.188,
        0.235,
        0.0791,
        0.196,
        0.709,
        0.229,
        0.515,
        0.761,
    ],
    "fedper": [  # dir:0.1, round 20
        0.112,
        0.0792,
        0.137,
        0.138,
        0.517,
        0.219,
        0.149,
        0.308,
        0.0647,
        0.427,
        0.257,
        0.0307,
        0.389,
        0.116,
        0.0237,
        0.287,
        0.116,
        1.05,
        0.874,
        0.118,
    ],
    "fed3p2p": [  # dir:0.1, round 37
        0.0255,
        0.0296,
        0.0615,
        0.0415,
        0.17,
        0.0595,
        0.145,
        0.0878,
        0.0453,
        0.26,
        0.234,
        0.00717,
        0.106,
        0.0614,
        0.0089,
        0.0696,
        0.028,
        0.0687,
        0.04,
        0.0736,
    ],
    "fedtc": [  # dir:0.1, round 1
        0.806,
        0.842,
        0.0922,
        0.193,
        0.109,
        0.106,
        0.604,
        0.258,
        0.0636,
        0.139,
        0.627,
        0.172,
        0.188,
        0.232,
        0.0791,
        0.193,
        0.61,
        0.226,
        0.474,
        0.766,
    ],
    "dualfed": [  # dir:0.1, round 33
        0.181,
        0.0746,
        0.192,
        0.71,
        0.174,
        0.213,
        0.133,
        0.272,
        0.131,
        0.47,
        0.104,
        0.202,
        0.747,
        0.161,
        0.166,
        0.37,
        0.0373,
        0.464,
        0.284,
        0.484,
    ],
    "vanilla": [  # dir:0.1, round 6
        0.0586,
        0.0507,
        0.0102,
        0.024,
        0.00874,
        0.00866,
        0.0334,
        0.0263,
        0.00579,
        0.0132,
        0.0554,
        0.0111,
        0.0108,
        0.0145,
        0.00645,
        0.016,
        0.0418,
        0.0162,
        0.0367,
        0.0609,
    ],
    "anti": [  # dir:0.1, round 14
        0.76,
        0.853,
        0.0912,
        0.28,
        0.113,
        0.142,
        0.628,
        0.297,
        0.0664,
        0.186,
        0.633,
        0.196,
        0.198,
        0.302,
        0.0885,
        0.237,
        0.628,
        0.261,
        0.523,
        0.737,
    ],
    "fedrep": [  # dir:0.05, round 7
        0.324,
        0.0199,
        0.031,
        0.0648,
        0.241,
        0.138,
        0.0593,
        0.241,
        0.0567,
        0.0467,
        0.0442,
        0.0568,
        0.137,
        0.241,
        0.111,
        0.184,
        0.587,
        0.0643,
        0.0456,
        0.0364,
    ],
    "scaffold": [  # dir:0.05, round 6
        0.265,
        0.239,
        0.0508,
        0.0494,
        0.566,
        0.158,
        0.0595,
        0.16,
        0.0269,
        0.167,
        0.037,
        0.0395,
        0.245,
        0.499,
        0.0648,
        0.0981,
        0.985,
        0.0571,
        0.0892,
        0.0178,
    ],
}
ALIKE = [  # FedAvg, iid, round 4
    0.11,
    0.126,
    0.134,
    0.217,
    0.143,
    0.151,
    0.101,
    0.117,
    0.164,
    0.103,
    0.169,
    0.122,
    0.163,
    0.104,
    0.114,
    0.132,
    0.116,
    0.125,
    0.125,
    0.12,
]


def judged(norms, **settings):
    """The updates of these norms that are left, and the clients that are outliers."""
    values = torch.tensor(norms, dtype=torch.float64)[:, None]
    every = list(range(len(norms)))
    nothing = torch.zeros(len(norms))
    request = Request("train", None, 18, every, {"w": Copies(torch.zeros(1, 1, dtype=torch.float64))})
    left, events = Outliers(**settings).judge(Updates(every, 18, nothing, nothing, nothing, {"w": values}, {}), request)
    return left, [event.client for event in events]


@pytest.mark.parametrize("method", CLEAN)
def test_a_clean_run_raises_no_alarm(method):
    assert judged(CLEAN[method])[1] == []


@pytest.mark.parametrize("action", ["log", "leave-out", "clip"])
def test_fault_39_an_update_ten_times_as_long_raises_an_alarm(action):
    for client in range(20):
        planted = [norm * (10 if number == client else 1) for number, norm in enumerate(ALIKE)]
        left, alarms = judged(planted, action=action)
        assert alarms == [client]
        assert (client in left.clients) == (action != "leave-out")


def test_the_limit_by_hand():
    """Log norms 0, 1, 2, 3, 4: the median is 2, the median distance from it 1, three deviations 3 x 1.4826 = 4.448."""
    norms = torch.arange(5, dtype=torch.float64).exp()
    assert Outliers().times_median(norms) == pytest.approx(85.43, abs=0.01)  # e ** 4.448
    assert Outliers().times_median(torch.cat([norms, torch.zeros(3)])) == pytest.approx(85.43, abs=0.01)
    assert Outliers().times_median(torch.ones(5, dtype=torch.float64)) == 7
    assert Outliers(factor=9).times_median(torch.ones(5, dtype=torch.float64)) == 9


def test_norms_that_cannot_be_compared_raise_no_alarm():
    assert judged([0, 0, 0, 1])[1] == []
    assert judged([1, 1, 99])[1] == []
    assert judged([1, 1, 1, 8])[1] == [3]
    assert judged([1, 1, 1, float("inf")])[1] == [3]


def test_the_log_warns_of_a_client_once(monkeypatch, caplog):
    attacking(monkeypatch, [5], ten_times_backwards)
    with caplog.at_level("INFO"):
        run = simulate("fedavg", network("mlp"), rounds=3)
    assert [event.client for event in run.server.events] == [5] * 3
    lines = [record for record in caplog.records if record.name == "partwise.rounds.events"]
    assert [record.levelname for record in lines] == ["WARNING", "INFO", "INFO"]
    assert (
        lines[0]
        .getMessage()
        .startswith("round 1: 1 outlier (client 5): update norm 1.29, 10.4 times the round's median")
    )
