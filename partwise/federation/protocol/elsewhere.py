"""Evaluation of clients on other machines: they score themselves and send the scores."""

import math
from collections.abc import Mapping, Sequence, Sized

from partwise.records.metrics import FIELDS, METRICS_OF, RANKING, WEIGHT, Score
from partwise.rounds.messages import Updates
from partwise.runs.evaluation import Evaluation
from partwise.runs.metrics import Scores
from partwise.runs.observers import Seen

SentScore = Mapping[str, float | None]  # of a client, by metric


class ScoredElsewhere(Evaluation):
    """Asks for scores and notes them. There is no global test set, so that the global model has no row of its own."""

    def evaluate(self, seen: Seen, updates: Sequence[Updates]) -> None:
        """Ask the nodes for the scores of their clients."""
        if not self.clients:
            return
        request = self.server.request("predict", self.clients, evaluate=True)
        answers = self.engine.run(request)
        seen.note("received", request, answers)
        self.note_scores(seen, "received", self.scores_at("received", answers))
        trained = {client: own for each in updates for client, own in each.scores.get("test", {}).items()}
        self.note_scores(seen, "trained", [self.scores_from(trained, self.federation.test)])

    def scores_at(self, moment: str, answers: Updates) -> list[Scores]:
        """Return the scores at a moment: on test samples, and on validation samples if there are any."""
        scores = [self.scores_from(answers.scores.get("test", {}), self.federation.test)]
        if self.validated and moment == "received":
            scores.append(self.scores_from(answers.scores.get("validation", {}), self.federation.validation))
        return scores

    def scores_from(self, numbers: Mapping[int, SentScore], held: Sequence[Sized]) -> Scores:
        """Return the scores that evaluated clients sent for their own samples."""
        task, labels = self.program.task.kind, self.federation.source.y[0].numel()
        names = METRICS_OF[task]
        tested = [k for k in self.clients if k in numbers and len(held[k]) and numbers[k].keys() >= set(names)]
        each = {k: Score(len(held[k]), task=task, **{name: numbers[k][name] for name in names}) for k in sorted(tested)}
        known = [min(numbers[k].get(WEIGHT) or len(held[k]), len(held[k]) * labels) for k in each]
        return Scores(each, together(list(each.values()), task, known))


def together(scores: Sequence[Score], task: str, known: Sequence[float] | None = None) -> Score | None:
    """Return what ranks over the samples of all clients; other pooled metrics would need all predictions.

    A mean of what each client sent, weighted by its `known` labels or places, unset by its samples: exact for
    accuracy, and by its square for the RMSE of one number. Mean AUROC is a mean over clients. A client without the
    metric does not count.
    """
    samples = [score.samples or 0 for score in scores]
    if not sum(samples):
        return None
    name, power = RANKING[task], FIELDS[RANKING[task]].power
    weights = samples if known is None else known
    valued = [
        (weight, score.ranking) for weight, score in zip(weights, scores, strict=True) if score.ranking is not None
    ]
    total = math.fsum(weight * value**power for weight, value in valued)
    behind = math.fsum(weight for weight, _ in valued)
    return Score(sum(samples), task=task, **{name: (total / behind) ** (1 / power) if behind else None})
