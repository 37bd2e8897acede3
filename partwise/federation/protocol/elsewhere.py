"""Evaluation of clients on other machines: they score themselves and send the scores."""

import math
from collections.abc import Collection, Mapping, Sequence, Sized

from partwise.records.metrics import FIELDS, METRICS_OF, RANKING, Score
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
        task = self.program.task.kind
        names = METRICS_OF[task]
        tested = [k for k in self.clients if k in numbers and len(held[k]) and numbers[k].keys() >= set(names)]
        each = {k: Score(len(held[k]), task=task, **{name: numbers[k][name] for name in names}) for k in sorted(tested)}
        return Scores(each, together(each.values(), task))


def together(scores: Collection[Score], task: str) -> Score | None:
    """Return what ranks over the samples of all clients; other pooled metrics would need all predictions.

    A mean over samples of what each client sent: exact for accuracy, for RMSE of its square. Mean AUROC is that of the
    clients, weighted by samples.
    """
    samples = sum(score.samples or 0 for score in scores)
    if not samples:
        return None
    name, power = RANKING[task], FIELDS[RANKING[task]].power
    total = math.fsum((score.samples or 0) * (score.ranking or 0.0) ** power for score in scores)
    return Score(samples, task=task, **{name: (total / samples) ** (1 / power)})
