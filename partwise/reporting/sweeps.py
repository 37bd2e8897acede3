"""What a sweep leaves: every setting that was tried, and a table of the chosen ones with what the seeds say."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partwise.options import as_written
from partwise.records.formats import as_csv
from partwise.records.metrics import FIELDS, RANKING, TITLES
from partwise.records.names import LM, model_at, proper
from partwise.records.rounds import keys_over_clients
from partwise.reporting.latex import to_latex
from partwise.reporting.tables import (
    NOTHING,
    Cells,
    explain_moments,
    held_out,
    megabytes,
    metric_cell,
    percent,
    problem_line,
)
from partwise.studies.leaderboard import Standing, deviation, mean_of_present, standings
from partwise.studies.significance import sentences
from partwise.studies.sweep import PROBLEM, SweepTrial, choose_trials, worded
from partwise.writing import make_folder, write

TRIALS = "trials.csv"


def write_trials(place: Path, trials: Sequence[SweepTrial], varied: Sequence[str]) -> None:
    """Write `trials.csv`: a row for every setting that was tried, with means over its seeds."""
    best = [trial for own in choose_trials(trials).values() for trial in own.values()]
    rows = []
    for trial in trials:
        tests = list(test_values(trial).values())
        row: dict[str, object] = {"method": trial.method, **{name: cell(trial, name) for name in varied}}
        row |= {"seeds": len(trial.summaries), "diverged": len(trial.configs) - len(trial.summaries)}
        row |= {"validation": trial.validation, "test": mean_of_present(tests), "test_std": deviation(tests)}
        row |= {"chosen": "yes" if any(trial is each for each in best) else "no", "folder": folder(trial)}
        rows.append(row)
    make_folder(place)
    write(place / TRIALS, as_csv(rows))


@dataclass(frozen=True)
class SweepSetting:
    """What a sweep says of a setting."""

    chosen: bool = False  # on validation data, of all settings of its method on its problem
    problem: str = ""  # in words; empty where all settings are of one
    sweep: str = ""  # its folder


def read_trials(text: str) -> dict[str, SweepSetting] | None:
    """Return the settings of a `trials.csv` by their folders; None where no sweep wrote the file."""
    rows = csv.DictReader(text.splitlines())
    names = list(rows.fieldnames or ())
    if not {"seeds", "chosen", "folder"} <= set(names):
        return None
    varied, found = names[1 : names.index("seeds")], {}
    for row in rows:
        problem = worded((name, row[name]) for name in varied if name in PROBLEM and row[name])
        found[row["folder"]] = SweepSetting(row["chosen"] == "yes", problem)
    return found


def write_table(place: Path, cells: Cells, trials: Sequence[SweepTrial], varied: Sequence[str]) -> None:
    """Write the table as text, Markdown and LaTeX, and all numbers of the chosen settings as CSV."""
    for ending, text in {"txt": cells.to_text(), "md": cells.to_markdown(), "tex": to_latex(cells)}.items():
        write(place / f"table.{ending}", text.encode())
    rows = []
    for own in filter(None, choose_trials(trials).values()):
        for standing in ranking(own):
            trial = own[standing.method]
            settings = {name: cell(trial, name) for name in varied}
            about = {"tried": times_tried(trial, trials), "validation": trial.validation}
            rows.append({"method": trial.method, **settings, **about, **standing.as_row(), "folder": folder(trial)})
    write(place / "table.csv", as_csv(rows))


def sweep_table(trials: Sequence[SweepTrial], varied: Sequence[str]) -> Cells:
    """Return a row for every method: its chosen setting on test data. Varied problems have a column each."""
    best = {problem: own for problem, own in choose_trials(trials).items() if own}
    seeds, [example, *_] = len(trials[0].configs), [trial for own in best.values() for trial in own.values()]
    summary = example.summaries[0]
    tuned = [name for name in varied if name not in PROBLEM]
    one = example.problem == ()
    cells = one_problem(best[()], tuned, trials) if one else several_problems(best, tuned)
    moment, unit = summary.moment, " in %" * FIELDS[summary.metric].percent
    notes = [
        f"{'test' if one else 'numbers'}: {TITLES[summary.metric]} of {model_at(moment)}{unit} "
        "after the last round, with the setting that is best on validation data"
        + (f"; ±: standard deviation over {seeds} seeds" if seeds > 1 else ""),
        f"{LM}; {explain_moments([moment])}",
    ]
    lost = sum(not trial.finished for trial in trials)
    if lost:
        notes.append(f"{lost} of {len(trials)} settings diverged with a seed and could not be chosen: trials.csv")
    return Cells(cells.title, cells.header, cells.rows, [*cells.notes, *notes], cells.above, cells.ranked)


def one_problem(own: Mapping[str, SweepTrial], tuned: Sequence[str], trials: Sequence[SweepTrial]) -> Cells:
    """Return methods with their chosen settings, the best first."""
    lines, standings = [], ranking(own)
    example = next(iter(own.values())).summaries[0]
    metric, ranks = example.metric, RANKING[example.task]
    mean, std, _ = keys_over_clients(example.task).values()
    rows = [standing.as_row() for standing in standings]
    beside = [name for name in ("joined", "worse") if any(row[name] is not None for row in rows)]
    for standing, row in zip(standings, rows, strict=True):
        trial = own[standing.method]
        settings = [cell(trial, name) or NOTHING for name in tuned]
        cells = [metric_cell(standing.last, metric, standing.last_std), metric_cell(trial.validation, metric)]
        cells += [*settings, str(times_tried(trial, trials)), *(metric_cell(row[name], ranks) for name in (mean, std))]
        cells += [percent(row[name]) if name == "worse" else metric_cell(row[name], metric) for name in beside]
        lines.append([proper(trial.method), *cells, megabytes(standing), f"{standing.seconds:.1f}"])
    notes = sentences({proper(name): test_values(trial) for name, trial in own.items()}, metric)
    worse = "; worse: % of clients that do worse than with Local" if "worse" in beside else ""
    notes.append(
        f"validation: the same on validation data; mean, std: of {TITLES[ranks]} on test data over clients{worse}; "
        "MB: down and up per participant and round; s: seconds per run"
    )
    beside = [model_at(name) if name == "joined" else name for name in beside]
    header = ["method", "test", "validation", *tuned, "tried", "mean", "std", *beside, "MB", "s"]
    notes += [explain_moments(["joined"]), *held_out(example)] if "LM joined" in beside else []
    signs = {"test": FIELDS[metric].sign, "mean": FIELDS[ranks].sign}
    title = f"Sweep: {problem_line(example)}, {model_at(example.moment)}"
    return Cells(title, header, lines, notes, ranked=signs)


def several_problems(best: Mapping[Any, Mapping[str, SweepTrial]], tuned: Sequence[str]) -> Cells:
    """Return methods against problems, the best of the first problem first; notes name the chosen settings."""
    standings = {problem: {own.method: own for own in ranking(trials)} for problem, trials in best.items()}
    metrics = {problem: next(iter(own.values())).metric for problem, own in standings.items()}
    methods = list(dict.fromkeys(method for own in standings.values() for method in own))
    rows, said, settings = [], [], []
    for method in methods:
        found = [own.get(method) for own in standings.values()]
        cells = [metric_cell(own.last, own.metric, own.last_std) if own else NOTHING for own in found]
        rows.append([proper(method), *cells])
    for problem, own in best.items():
        lines = sentences({proper(name): test_values(trial) for name, trial in own.items()}, metrics[problem])
        said += [f"{worded(problem)}: {line}" for line in lines]
        words = {
            name: worded((key, trial.settings[key]) for key in tuned if key in trial.settings)
            for name, trial in own.items()
        }
        some = [f"{proper(name)} {text}" for name, text in words.items() if text]
        settings += [f"{worded(problem)}, chosen: {'; '.join(some)}"] if some else []
    signs = {worded(problem): FIELDS[metric].sign for problem, metric in metrics.items()}
    header = ["method", *signs]
    return Cells("Sweep", header, rows, [*said, *settings], ranked=signs)


def ranking(own: Mapping[str, SweepTrial]) -> list[Standing]:
    """Return the chosen settings of all methods against each other, as a comparison ranks them."""
    return standings([summary for trial in own.values() for summary in trial.summaries])


def test_values(trial: SweepTrial) -> dict[int, float]:
    """Return the test value of every seed, after the last round."""
    return {summary.seed: summary.value for summary in trial.summaries if summary.value is not None}


def times_tried(trial: SweepTrial, trials: Sequence[SweepTrial]) -> int:
    """Return how many settings were tried of its method on its problem."""
    return sum((each.method, each.problem) == (trial.method, trial.problem) for each in trials)


def cell(trial: SweepTrial, name: str) -> str | None:
    """Return a varied setting of a trial; None where its method has no such setting."""
    return as_written(trial.settings[name]) if name in trial.settings else None


def folder(trial: SweepTrial) -> str:
    """Return the folder of a trial inside the sweep's."""
    return f"{trial.method}/{trial.folder}"
