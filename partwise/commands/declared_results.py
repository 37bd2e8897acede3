"""The commands for what finished runs left, as they are declared: models, newcomers, the report."""

from typing import Any

import click

from partwise.commands.options import Command, complete, complete_file, debug_option
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

client_option = click.option("--client", metavar="CLIENT", help="Whose model: the number or the name of a client.")
global_option = click.option("--global", "of_all", is_flag=True, help="The global model, where the method has one.")
trust_option = click.option(
    "--trust", is_flag=True, help="Execute the code that the model needs: a method file in RUN, or a class of its own."
)


@click.command("predict", cls=Command, epilog=PREDICT_EXAMPLES)
@click.argument("run", metavar="RUN", shell_complete=complete_file)
@click.argument("samples", metavar="FILE|FOLDER", shell_complete=complete_file)
@client_option
@global_option
@click.option(
    "--out", metavar="FILE", help="CSV file to write; without it the table is shown.", shell_complete=complete_file
)
@trust_option
@debug_option
def predict_command(**given: Any) -> None:
    """Predict with a model of a run.

    RUN is a run's folder, or one that `partwise export` wrote. FILE is a table with the columns of the run's data, in
    any order, or an image; FOLDER (or a .zip) holds images. The table that comes out has the class and the
    probabilities of every row or image.
    """
    from partwise.commands.serving import predict

    predict(**given)


@click.command("export", cls=Command, epilog=EXPORT_EXAMPLES)
@click.argument("run", metavar="RUN", shell_complete=complete_file)
@client_option
@global_option
@click.option("--all", "every", is_flag=True, help="Every model, each into a folder of its own in DIR.")
@click.option("--to", required=True, metavar="DIR", help="Folder to write into.", shell_complete=complete_file)
@click.option(
    "--format",
    "formats",
    default="safetensors,pt2,onnx",
    metavar="NAMES",
    help="safetensors (for load_model), pt2 (torch.export) and onnx, separated by commas; unset: all three.",
)
@click.option("--overwrite", is_flag=True, help="Replace another model in DIR.")
@trust_option
@debug_option
def export_command(**given: Any) -> None:
    """Export a model of a run, with a card.

    pt2 and onnx take raw samples - pixels or feature values - and give logits and probabilities: standardisation and
    the method's way to predict are inside. Each is compared with the model before it is written.
    """
    from partwise.commands.serving import export_models

    export_models(**given)


@click.command("join", cls=Command, epilog=JOIN_EXAMPLES)
@click.argument("run", metavar="RUN", shell_complete=complete_file)
@click.option("--data", required=True, metavar="DATA", help="What the newcomer has.", shell_complete=complete_file)
@click.option("--data-root", metavar="DIR", help="First folder to look for the data in.", shell_complete=complete_file)
@click.option("--name", metavar="NAME", help="What the newcomer is called; unset: as its data.")
@click.option("--partition", metavar="RULE", help="column:NAME is a newcomer for each value; unset: all is one's.")
@click.option("--test-share", type=float, metavar="NUMBER", help="Share of the samples that are test samples.")
@click.option("--join-rounds", type=int, metavar="NUMBER", help="Rounds of training what is its own; unset: the run's.")
@click.option("--out", metavar="DIR", help="For the model; unset: RUN/joined/NAME.", shell_complete=complete_file)
@trust_option
@debug_option
def join_command(**given: Any) -> None:
    """Let a client join a finished run that it was not in.

    It gets what all clients get, trains what is its own, and has a model like theirs, which `partwise predict` and
    `export` take. DATA is any file or folder that `run --data` takes, with the run's columns and classes. Its accuracy
    stands beside that of a model trained alone and of the run's global model.
    """
    from partwise.commands.serving import join_run

    join_run(**given)


@click.command("report", cls=Command, epilog=REPORT_EXAMPLES)
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, shell_complete=complete_file)
@click.option("--out", default=PAGE, metavar="FILE", help=f"The page; unset: {PAGE}.", shell_complete=complete_file)
@click.option("--live", is_flag=True, help="Rewrite the page while the runs go on, until they are finished.")
@debug_option
def report_command(**given: Any) -> None:
    """Show runs in one page for a browser.

    RUN is the folder of a run, or one with runs in it: that of a comparison, say. The page is one file that opens
    offline: a leaderboard, and charts of accuracy, clients, bytes and whatever else the runs left behind.
    """
    from partwise.commands.reporting import report

    report(**given)


@click.command("plot", cls=Command, epilog=PLOT_EXAMPLES)
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, shell_complete=complete_file)
@click.option("--out", default=FIGURES, metavar="DIR", help=f"Folder for the pictures; unset: {FIGURES}.")
@click.option(
    "--format",
    "ending",
    default="svg",
    metavar="NAME",
    help="svg (the default), pdf or png.",
    shell_complete=complete(FORMATS),
)
@debug_option
def plot_command(**given: Any) -> None:
    """Draw the charts of `partwise report` for a paper, a file each."""
    if given["ending"] not in FORMATS:
        raise ConfigError(unknown("format", given["ending"], FORMATS))
    from partwise.commands.reporting import plot

    plot(**given)
