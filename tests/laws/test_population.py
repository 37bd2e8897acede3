"""A round depends on its cohort, not on how many clients there are."""

import pytest

from partwise import ALL, Method, Relay, Stage, WithinGroups, option
from partwise.data.source import Federation
from tests.support.runs import awkward_federation, network, simulate


def population(clients: int) -> Federation:
    """Many clients with the same samples; those with number 0 and 7 have nothing to learn from."""
    given = awkward_federation()
    train = [given.train[3][:0] if client in (0, 7) else given.train[3] for client in range(clients)]
    return Federation(given.source, train, [given.test[3]] * clients, given.global_test)


class Sampled(Method):
    how: str = option("clients", "Who is drawn.")

    def stages(self):
        def groups(server):
            return [client % 3 for client in range(server.clients)]

        cohort = {"clients": None, "within": WithinGroups(groups), "groups": Relay(groups)}[self.how]
        yield Stage(self.phases(), {"*": ALL}, self.rounds, cohort)


@pytest.mark.parametrize(
    ("how", "clients", "settings", "cohorts"),
    [
        (
            "clients",
            30,
            {"clients_per_round": 5},
            [[2, 5, 11, 17, 24], [1, 18, 20, 26, 28], [1, 5, 19, 21, 22]],
        ),
        (
            "clients",
            20_000,  # numpy draws few of many in another way
            {"clients_per_round": 5},
            [
                [1632, 3417, 7036, 11143, 18218],
                [668, 12455, 13243, 15259, 17708],
                [238, 3488, 13842, 14115, 15959],
            ],
        ),
        (
            "within",
            30,
            {"participation": 0.2},
            [[3, 4, 8, 16, 17, 27], [11, 16, 18, 21, 23, 25], [3, 4, 8, 17, 21, 22]],
        ),
        ("groups", 12, {"participation": 0.4}, [[3, 6, 9], [2, 5, 8, 11], [3, 6, 9]]),
    ],
)
def test_cohorts_are_those_that_this_seed_has_always_drawn(how, clients, settings, cohorts):
    run = simulate(
        Sampled,
        network("mlp"),
        population(clients),
        "vector",
        rounds=3,
        how=how,
        eval_clients=2,
        eval_every=3,
        **settings,
    )
    assert [row["participants"] for row in run.history.rows] == cohorts


@pytest.mark.parametrize("engine", ["loop", "vector"])
def test_only_participants_have_rows(engine):
    run = simulate(
        "fedper",
        network("mlp"),
        population(10_000),
        engine,
        rounds=3,
        clients_per_round=5,
        eval_clients=20,
        eval_every=3,
    )
    store, seen = run.engine.store, {client for row in run.history.rows for client in row["participants"]}
    assert store.rows == len(seen) == 15
    assert {client for client in range(10_000) if store.row[client] >= 0} == seen
    assert [len(sheet.values) for sheet in store.sheets.values()] == [16, 16]  # weight and bias of the head
