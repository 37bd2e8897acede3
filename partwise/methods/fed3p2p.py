"""Fed3+2p: three parts, two phases, two kinds of coordinators.

Phase 1 trains extractor, filter and global head in relays through groups whose labels are mixed like all clients'
(Type-A coordinators). In phase 2 every group of clients with similar labels (Type-B) trains its own filter, and every
client its own head.

References:
    Fed3+2p: Training Different Parts of Neural Network with Two-Phase Strategy.
"""

from typing import Any, Literal

import torch

from partwise.errors import ConfigError
from partwise.grouping import group_balanced, group_similar, number_of_groups
from partwise.method import ALL, EVERYONE, FROZEN, GROUP, LOCAL, Method, Relay, Stage, WithinGroups, train
from partwise.network.view import ClassCounts
from partwise.options import option

PARTICIPATION_MODES: dict[str, Any] = {"whole_group": "groups", "within_group": "within", "regroup": "clients"}
TWO = "two_phase"
A, B = "two_phase and type_a", "two_phase and filter_mode=group_shared"  # where there are coordinators of this type


class Fed3p2p(Method):
    """Extractor `body`, `filter`, global `head`, personal `p_head`; phases are stages here."""

    coordinators_a: int = option(5, "Number of Type-A coordinators (C).", minimum=1, up_to_clients=True, when=A)
    coordinators_b: int = option(
        5,
        "Number of Type-B coordinators (M); 0: the number with the largest silhouette.",
        minimum=0,
        up_to_clients=True,
        when=B,
    )
    filter_from: str | None = option(None, "First layer of the filter, within the body; unset: its last layer.")
    rounds_1: int | None = option(
        None, "Rounds of phase 1; unset: what phase 2 leaves, or the larger half.", minimum=1, when=TWO
    )
    rounds_2: int | None = option(None, "Rounds of phase 2; unset: what phase 1 leaves.", minimum=1, when=TWO)
    participation_mode: Literal["whole_group", "within_group", "regroup"] = option(
        "whole_group", "Participants of phase 1: whole groups, some of every group, or any, regrouped.", when=A
    )
    group_a: Literal["local_search", "equal_sizes", "greedy", "random"] = option(
        "local_search", "Algorithm for Type-A groups (Eq. 5); all but local_search give equal sizes.", when=A
    )
    group_b: Literal["local_search", "agglomerative", "random"] = option(
        "local_search", "Algorithm for Type-B groups (Eq. 10).", when=B
    )
    type_a: bool = option(True, "Use Type-A coordinators; otherwise phase 1 is FedAvg.", when=TWO)
    two_phase: bool = option(True, "Train in two phases; otherwise both heads learn at once.")
    filter_mode: Literal["group_shared", "local", "frozen_global"] = option(
        "group_shared", "Filter in phase 2; group_shared: one per Type-B coordinator.", when=TWO
    )
    detach_p_head: bool = option(
        True, "Stop the personal head's gradient before the filter and body.", when="not two_phase"
    )
    reset_lr: bool = option(True, "Restart the learning-rate schedule in phase 2.", when=TWO)

    def __post_init__(self):
        super().__post_init__()
        if self.rounds_1 and self.rounds_2:
            self.rounds = self.rounds_1 + self.rounds_2
        first, second = self.phase_rounds
        if self.two_phase and min(first, second) < 1:
            raise ConfigError(
                f"rounds = {self.rounds} divides into {first} and {second} for the phases; each needs at least 1"
            )

    @property
    def phase_rounds(self):
        """Return the rounds of both phases, together `rounds`."""
        first = self.rounds_1 or self.rounds - (self.rounds_2 or self.rounds // 2)
        return first, self.rounds - first

    def build(self, parts, sizes):
        layers = parts.trained_layers("body")
        if len(layers) < 2:
            raise ConfigError(f"fed3p2p cuts the body before its last layer, but it has only {layers}; {parts}")
        return parts.cut("body", filter=self.filter_from or layers[-1]).like("head", name="p_head")

    def stages(self):
        everyone = {"body": ALL, "filter": ALL, "head": ALL, "p_head": LOCAL}
        if not self.two_phase:
            yield Stage(train("*", "both"), everyone, self.rounds)
            return
        rounds_1, rounds_2 = self.phase_rounds
        relay = Relay(self.coordinate_a, PARTICIPATION_MODES[self.participation_mode]) if self.type_a else None
        # Sec. 4.1, Eq. 4-9
        yield Stage(train("body filter head"), everyone, rounds_1, relay, "p_head", "global", predict=super().predict)

        mine = {"group_shared": GROUP, "local": LOCAL, "frozen_global": FROZEN}[self.filter_mode]
        share = {"body": FROZEN, "filter": mine, "head": FROZEN, "p_head": LOCAL}
        groups = WithinGroups(self.coordinate_b) if mine is GROUP else None
        fresh = "p_head" if mine is FROZEN else "filter p_head"
        # Sec. 4.2, Eq. 10-13
        yield Stage(train("filter p_head", "personal"), share, rounds_2, groups, fresh, restart_lr=self.reset_lr)

    def personal(self, net, b, me):
        return b.loss(self.predict(net, b.x, me))

    def both(self, net, b, me):
        features = net.filter(net.body(b.x))
        return b.loss(net.head(features)) + b.loss(net.p_head(features.detach() if self.detach_p_head else features))

    def predict(self, net, x, me):
        return net.p_head(net.filter(net.body(x)))

    def describe(self, b):
        return {"labels": ClassCounts(b.bins().sum(0))}

    def begin(self, server, run):
        if self.two_phase and (self.type_a or self.filter_mode == "group_shared"):
            updates = run("describe", EVERYONE)
            labels = updates.extras["labels"].counts.cpu()
            server.memory["labels"] = labels.new_zeros(server.clients, labels.shape[1])
            server.memory["labels"][updates.clients] = labels

    def coordinate_a(self, server):
        """Return the Type-A group of every client (Eq. 5); `regroup` makes groups of a round's participants."""
        labels, anew = server.memory["labels"], self.participation_mode == "regroup"
        who = server.cohort if anew else torch.arange(server.clients)
        random = server.stream("type-a", server.round) if anew else server.stream("type-a")
        groups = torch.zeros(server.clients, dtype=torch.long)
        groups[who] = group_balanced(labels[who], min(self.coordinators_a, len(who)), self.group_a, random)
        return groups

    def coordinate_b(self, server):
        """Return the Type-B group of every client (Eq. 10)."""
        labels, random = server.memory["labels"], server.stream("type-b")
        number = self.coordinators_b or number_of_groups(labels, self.group_b, random)
        return group_similar(labels, number, self.group_b, random)
