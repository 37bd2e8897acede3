"""The commands for finished runs: arguments, options and help for models, newcomers and the report."""

from typing import Any

import click

from partwise.commands.options import Command, complete_file, complete_names, debug_option
from partwise.errors import ConfigError, unknown

PAGE, FIGURES = "report.html", "figures"
FORMATS = ("svg", "pdf", "png")

PREDICT_EXAMPLES = """\b
Examples:
  partwise predict runs/fedper --client Graz new-patients.csv
  partwise predict runs/fedper --client 3 photos --out predictions.csv
  partwise predict runs/fedavg --global photos/one.png"""

EXPORT_EXAMPLES = """\b
Examples:
  partwise export runs/fedper --client Graz --to graz
  partwise export runs/fedper --client 3 --format onnx --to client-3
  partwise export runs/fedper --all --to models"""

JOIN_EXAMPLES = """\b
Examples:
  partwise join runs/fedper --data graz.csv
  partwise join runs/fedper --data photos --name Linz --join-rounds 20 --out linz
  partwise join runs/fedper --data wards.csv --partition column:ward"""

REPORT_EXAMPLES = """\b
Examples:
  partwise report runs/comparison --out report.html
  partwise report runs/fedper runs/fedrep runs/local
  partwise report runs/comparison --live"""

PLOT_EXAMPLES = """\b
Examples:
  partwise plot runs/comparison --out figures --format pdf
  partwise plot runs/fedper runs/local --out figures"""

client_option = click.option("--client", metavar="CLIENT", help="Take the model of this client, by number or name.")
global_option = click.option("--global", "of_all", is_flag=True, help="Take the global model, if the method has one.")
trust_option = click.option(
    "--trust",
    is_flag=True,
    help="Execute code that the model needs: the method and network files in RUN, or the module of its network. Read "
    "it first.",
)


@click.command("predict", cls=Command, epilog=PREDICT_EXAMPLES)
@click.argument("run", metavar="RUN", shell_complete=complete_file)
@click.argument("samples", metavar="FILE|FOLDER", shell_complete=complete_file)
@client_option
@global_option
@click.option(
    "--out", metavar="FILE", help="CSV file for the predictions; unset: print them.", shell_complete=complete_file
)
@trust_option
@debug_option
def predict_command(**given: Any) -> None:
    """Predict with a model of a run.

    RUN is a run's folder, or one that `partwise export` wrote. FILE is an image, or a table with the columns of the
    run's data in any order; FOLDER (or a .zip) holds images. The result is a table with the class and the probabilities
    of every row or image.
    """
    from partwise.commands.serving import predict

    predict(**given)


@click.command("export", cls=Command, epilog=EXPORT_EXAMPLES)
@click.argument("run", metavar="RUN", shell_complete=complete_file)
@client_option
@global_option
@click.option("--all", "every", is_flag=True, help="Export every model, each into its own folder in DIR.")
@click.option("--to", required=True, metavar="DIR", help="Folder to write into.", shell_complete=complete_file)
@click.option(
    "--format",
    "formats",
    default="safetensors,pt2,onnx",
    metavar="NAMES",
    help="Formats, separated by commas: safetensors (for load_model), pt2 (torch.export), onnx; unset: all three.",
)
@click.option("--overwrite", is_flag=True, help="Replace a model in DIR.")
@trust_option
@debug_option
def export_command(**given: Any) -> None:
    """Export a model of a run, with a model card.

    The pt2 and onnx files take raw samples (pixels or feature values) and return logits and probabilities: they include
    standardisation and the method's prediction. Each is checked against the model before it is written.
    """
    from partwise.commands.serving import export_models

    export_models(**given)


@click.command("join", cls=Command, epilog=JOIN_EXAMPLES)
@click.argument("run", metavar="RUN", shell_complete=complete_file)
@click.option("--data", required=True, metavar="DATA", help="Data of the newcomer.", shell_complete=complete_file)
@click.option(
    "--data-root",
    metavar="DIR",
    help="Folder to search for the data before the usual places.",
    shell_complete=complete_file,
)
@click.option("--name", metavar="NAME", help="Name of the newcomer; unset: that of its data.")
@click.option(
    "--partition", metavar="RULE", help="Make a newcomer of each value of a column, column:NAME; unset: one newcomer."
)
@click.option(
    "--test-share", type=float, metavar="NUMBER", help="Fraction of the samples to test on; unset: the run's."
)
@click.option(
    "--join-rounds", type=int, metavar="NUMBER", help="Rounds of training the personal parts; unset: the run's."
)
@click.option(
    "--out", metavar="DIR", help="Folder for the model; unset: RUN/joined/NAME.", shell_complete=complete_file
)
@trust_option
@debug_option
def join_command(**given: Any) -> None:
    """Let a new client join a finished run.

    The newcomer receives the shared parts, trains its personal parts, and gets a model that `partwise predict` and
    `export` can use. DATA is any file or folder that `run --data` takes, with the run's columns and classes. The result
    compares its accuracy with a model trained alone and with the run's global model.
    """
    from partwise.commands.serving import join_run

    join_run(**given)


@click.command("report", cls=Command, epilog=REPORT_EXAMPLES)
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, shell_complete=complete_file)
@click.option(
    "--out", default=PAGE, metavar="FILE", help=f"File for the page; unset: {PAGE}.", shell_complete=complete_file
)
@click.option("--live", is_flag=True, help="Update the page until all runs have finished.")
@debug_option
def report_command(**given: Any) -> None:
    """Write a report on runs: one page for a browser.

    RUN is the folder of a run, or one that contains runs, such as a comparison. The page is a single file that opens
    offline, with a leaderboard and charts of the metric, clients, bytes and what else the runs recorded.
    """
    from partwise.commands.reporting import report

    report(**given)


@click.command("plot", cls=Command, epilog=PLOT_EXAMPLES)
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, shell_complete=complete_file)
@click.option("--out", default=FIGURES, metavar="DIR", help=f"Folder for the figures; unset: {FIGURES}.")
@click.option(
    "--format",
    "ending",
    default="svg",
    metavar="NAME",
    help="File format: svg (the default), pdf or png.",
    shell_complete=complete_names(FORMATS),
)
@debug_option
def plot_command(ending: str, **given: Any) -> None:
    """Draw the charts of `partwise report` as files for a paper, one per chart."""
    if ending not in FORMATS:
        raise ConfigError(unknown("format", ending, FORMATS))
    from partwise.commands.reporting import plot_charts

    plot_charts(ending=ending, **given)
