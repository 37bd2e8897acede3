"""Evaluation of clients on other machines: they score themselves, and send scores in place of answers."""

import math
from collections.abc import Collection, Mapping, Sequence

from partwise.rounds.messages import Measured, Request, Updates
from partwise.runs.evaluation import Evaluation
from partwise.runs.metrics import FIELDS, OTHER_SCORES, Score, Scores
from partwise.runs.observers import Seen


class ScoredElsewhere(Evaluation):
    """Asks for scores and notes them. There is no global test set, so that the global model has no row of its own."""

    def evaluate(self, seen: Seen, updates: Sequence[Updates]) -> None:
        if not self.clients:
            return
        request = self.server.request("predict", self.clients, evaluate=True)
        answers = self.engine.run(request)
        seen.note("received", request, answers)
        self.note(seen, "received", answers.scores)
        if self.validated:
            self.note(seen, "validation", answers.scores, "validation")
        self.note(seen, "trained", {"test": {k: own for each in updates for k, own in test_of(each.scores).items()}})

    def adapt(self, seen: Seen, moment: str, request: Request) -> Updates:
        answers = self.engine.run(request)
        seen.note(moment, request, answers)
        self.check_adapted(answers)
        self.note(seen, moment, answers.scores)
        seen.row[moment]["diverged"] = answers.diverged
        return answers

    def note(self, seen: Seen, moment: str, scores: Measured, samples: str = "test") -> None:
        """Note the scores at a moment."""
        tested, held = set(self.clients), getattr(self.federation, samples)
        told = {
            k: own for k, own in sorted(scores.get(samples, {}).items()) if k in tested and own.keys() >= FIELDS.keys()
        }
        each = {k: score_of(own, len(held[k])) for k, own in told.items() if len(held[k])}
        seen.row[moment] = self.history.note(moment, Scores(each, together(each.values())))


def test_of(scores: Measured) -> dict[int, dict[str, float | None]]:
    return scores.get("test", {})


def score_of(numbers: Mapping[str, float | None], samples: int) -> Score:
    """A client's score from the numbers that it sent; how many samples it has is known since the beginning."""
    return Score(samples, **{name: numbers[name] for name in FIELDS})  # type: ignore[arg-type]


def together(scores: Collection[Score]) -> Score | None:
    """Accuracy over the samples of all clients; other metrics of them together would need everybody's answers."""
    samples = sum(score.samples for score in scores)
    if not samples:
        return None
    right = math.fsum(score.samples * score.accuracy for score in scores)
    return Score(samples, right / samples, **dict.fromkeys(OTHER_SCORES))  # type: ignore[arg-type]
