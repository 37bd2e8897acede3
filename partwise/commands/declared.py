"""The commands: arguments, options and help. The code of a command is imported when it is called."""

from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import get_completion_class

from partwise.commands.options import (
    Command,
    CommandLine,
    DataCommand,
    MethodCommand,
    SweepCommand,
    complete_file,
    complete_method,
    complete_names,
    debug_option,
)
from partwise.data.readers.catalogue import data_names
from partwise.errors import ConfigError, unknown
from partwise.papers.tables import SCALES, papers

OUT = "runs/reproduce"
SHELLS = ("bash", "zsh", "fish")

RUN_EXAMPLES = """\b
Examples:
  partwise run fedper --data digits --clients 20 --partition dir:0.1 --rounds 100 --out runs/fedper
  partwise run --config runs/fedper/config.toml --lr 0.05 --out runs/faster
  partwise run fed3p2p --preset fed3p2p/table1 --data cifar10 --dry-run"""

COMPARE_EXAMPLES = """\b
Examples:
  partwise compare local fedavg fedper fedbabu --seeds 0,1,2 --rounds 50 --out runs/four
  partwise compare fedavg fedprox --proximal-weight 0.1 --clients-per-round 5
  partwise compare local fedavg fedrep --data mnist5k --partition pat:2 --dry-run"""

SWEEP_EXAMPLES = """\b
Examples:
  partwise sweep local fedavg fedper --lr 0.01,0.05,0.1 --seeds 0,1,2 --rounds 50 --out runs/sweep
  partwise sweep fedavg fedprox --lr 0.01,0.1 --proximal-weight 0.01,1 --partition dir:0.1,dir:1 --out runs/grid
  partwise sweep fedper fedrep --search 20 --lr 0.001..0.3 --epochs 1..5 --seeds 0,1,2 --out runs/search"""

AUDIT_EXAMPLES = """\b
Examples:
  partwise audit fedavg
  partwise audit fedproto --histograms laplace:1 --min-class-count 5
  partwise audit fedper --upload-clip 1 --upload-noise 0.5 --picture fedper.png"""

REPRODUCE_EXAMPLES = """\b
Examples:
  partwise reproduce
  partwise reproduce scheduling/table2 --columns CIFAR-10 --recorded
  partwise reproduce fedtc/table2 --scale small --rows fedper,fedtc --seeds 0 --out runs/fedtc"""

METHODS_EXAMPLES = """\b
Examples:
  partwise methods
  partwise methods fedbabu
  partwise methods fedrep --json"""

DATA_EXAMPLES = """\b
Examples:
  partwise data
  partwise data cifar10
  partwise data fashion-mnist --download --data-root data"""

PARTITION_EXAMPLES = """\b
Examples:
  partwise partition --data digits --partition dir:0.1 --clients 20
  partwise partition --data mnist5k --partition pat:2 --seed 1 --plot partition.png
  partwise partition --data digits --partition iid --save partition.json"""

COMPLETION_EXAMPLES = """\b
Examples:
  eval "$(partwise completion bash)"            # here and now; in ~/.bashrc: always
  partwise completion zsh >> ~/.zshrc
  partwise completion fish > ~/.config/fish/completions/partwise.fish"""

config_option = click.option(
    "--config",
    metavar="FILE",
    expose_value=False,
    help="Read settings from this TOML file; options on the command line override them.",
    shell_complete=complete_file,
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


Decorator = Callable[[Callable], Callable]

quiet_option = click.option("--quiet", is_flag=True, help="Print results only, no progress and no notes.")
overwrite_option = click.option("--overwrite", is_flag=True, help="Replace the results of an earlier run in DIR.")
seeds_option = click.option(
    "--seeds", metavar="NUMBERS", help="Repeat every run with each of these seeds, separated by commas; unset: --seed."
)
tensorboard_option = click.option(
    "--tensorboard", is_flag=True, help="Also write every run's curves into its folder, for TensorBoard."
)
settings_options = (
    config_option,
    click.option(
        "--trust",
        is_flag=True,
        expose_value=False,
        help="Execute the method and network files that --config names, without a warning, and also for --dry-run and "
        "--help. They are code: read them first.",
    ),
    click.option(
        "--preset",
        metavar="PAPER/TABLE",
        expose_value=False,
        help="Use the settings of a paper's table; `partwise reproduce` lists the tables. The column follows from "
        "options such as --data, the row from the method; PAPER/TABLE:COLUMN,ROW names both. Options override these "
        "settings.",
        shell_complete=complete_names(papers()),
    ),
    click.pass_obj,
)


def decorated(*options: Decorator) -> Decorator:
    """Return one decorator for several options; the help shows the last one first."""

    def decorate(function: Callable) -> Callable:
        for option in options:
            function = option(function)
        return function

    return decorate


# Options of `run` and `compare` that are not settings.
run_options = decorated(
    debug_option,
    quiet_option,
    click.option(
        "--dry-run", is_flag=True, help="Show the network, bytes, FLOPs and memory; do not train, and write nothing."
    ),
    tensorboard_option,
    click.option(
        "--force",
        is_flag=True,
        help="Let --resume continue although settings, data, torch or the device have changed.",
    ),
    click.option(
        "--resume",
        is_flag=True,
        help="Continue the run in DIR from its last checkpoint; if it has finished, show its results.",
    ),
    overwrite_option,
    click.option(
        "--out",
        metavar="DIR",
        help="Folder for the results; unset: print them, and write nothing.",
        shell_complete=complete_file,
    ),
    *settings_options,
)
sweep_options = decorated(
    debug_option,
    quiet_option,
    tensorboard_option,
    overwrite_option,
    click.option(
        "--out", metavar="DIR", required=True, help="Folder for the runs and the tables.", shell_complete=complete_file
    ),
    click.option(
        "--search",
        type=click.IntRange(min=1),
        metavar="NUMBER",
        help="Let optuna choose this many combinations of settings per method; unset: try every combination.",
    ),
    seeds_option,
    click.option("--share", type=(int, int), hidden=True),  # on several GPUs: number of this process, and of all
    *settings_options,
)


@click.command("run", cls=MethodCommand, epilog=RUN_EXAMPLES)
@click.argument("methods", metavar="METHOD", nargs=-1, expose_value=False, shell_complete=complete_method)
@run_options
def run_command(asked: CommandLine, **given: Any) -> None:
    """Run one method.

    METHOD is a name from `partwise methods` or your own Python file; --config FILE may name it instead. Each method has
    further options: `partwise run METHOD --help` lists them.
    """
    from partwise.commands.running import run

    run(asked, **given)


@click.command("compare", cls=MethodCommand, epilog=COMPARE_EXAMPLES)
@seeds_option
@click.argument("methods", metavar="METHOD...", nargs=-1, expose_value=False, shell_complete=complete_method)
@run_options
def compare_command(asked: CommandLine, **given: Any) -> None:
    """Run several methods and rank them.

    Every METHOD, a name from `partwise methods` or your own Python file, runs with every seed. An option that only some
    methods have applies to those. Where the vector engine allows, a method's seeds are computed together, with the same
    results as separate runs.
    """
    from partwise.commands.running import compare

    compare(asked, **given)


@click.command("sweep", cls=SweepCommand, epilog=SWEEP_EXAMPLES)
@click.argument("methods", metavar="METHOD...", nargs=-1, expose_value=False, shell_complete=complete_method)
@sweep_options
def sweep_command(asked: CommandLine, **given: Any) -> None:
    """Tune the settings of several methods on validation data, and rank the methods on test data.

    Give a setting several values with commas: --lr 0.01,0.05. Repeat options that are lists themselves (--eval-at,
    --unfreeze, --augment, --drop, --label) and switches: --batch-norm --no-batch-norm. An option that only some
    methods have is varied for those. Settings of the data and of failures are not tuned: each of their values
    becomes a column, for which the other settings are tuned separately.

    With --search NUMBER, optuna chooses the combinations, and numbers may be ranges: --lr 0.001..0.1. A range whose
    ends differ by a factor of ten or more is searched on a logarithmic scale. Run the same command again to continue an
    interrupted sweep. Models are kept only with --save-models.
    """
    from partwise.commands.sweeping import sweep

    sweep(asked, **given)


@click.command("audit", cls=MethodCommand, epilog=AUDIT_EXAMPLES)
@click.argument("methods", metavar="METHOD", nargs=-1, expose_value=False, shell_complete=complete_method)
@click.option(
    "--picture",
    metavar="FILE",
    help="Reconstruct one mini-batch of images from its upload, and draw it into this file: .png, .svg or .pdf.",
    shell_complete=complete_file,
)
@config_option
@debug_option
@click.pass_obj
def audit_command(asked: CommandLine, /, **given: Any) -> None:
    """Show what leaves a client, and how much an eavesdropper learns from it.

    METHOD runs for one round per stage, or for --rounds, twice: without privacy filters, and with those that you give
    (--upload-clip, --histograms, ...) or else with clipping, noise and presence bits. From the uploads, an attack
    reconstructs the clients' label histograms.
    """
    from partwise.commands.auditing import audit_method

    audit_method(asked, **given)


@click.command("reproduce", cls=Command, epilog=REPRODUCE_EXAMPLES)
@click.argument("name", metavar="[PAPER/TABLE]", required=False, shell_complete=complete_names(papers()))
@click.option(
    "--scale",
    default="full",
    metavar="NAME",
    help="Size of the runs. full: the paper's setting (the default); small: a tenth of its rounds; smoke: a quick "
    "trial on generated images.",
    shell_complete=complete_names(SCALES),
)
@click.option(
    "--seeds",
    metavar="NUMBERS",
    help="Seeds, separated by commas; unset: the paper's at full scale, 0 at the other scales.",
)
@click.option(
    "--rows",
    metavar="NAMES",
    help="Run and show only these rows, by name or method, separated by commas; unset: all.",
)
@click.option("--columns", metavar="NAMES", help="Run and show only these columns, separated by commas; unset: all.")
@click.option("--out", metavar="DIR", help=f"Folder for the runs; unset: {OUT}.", shell_complete=complete_file)
@click.option(
    "--recorded", is_flag=True, help="Run nothing; show the results of full-scale runs that come with partwise."
)
@click.option("--overwrite", is_flag=True, help="Repeat finished runs; otherwise their results are kept.")
@quiet_option
@debug_option
def reproduce_command(name: str | None, scale: str, out: str | None, recorded: bool, quiet: bool, **given: Any) -> None:
    """Reproduce a table or figure of a paper, or list all of them.

    Each cell shows the published number, ours, and the difference. Runs that an earlier call finished are not repeated.
    A cell whose method or data are missing says so.
    """
    if scale not in SCALES:
        raise ConfigError(unknown("scale", scale, SCALES))
    if recorded:
        from partwise.commands.reproducing import show_recorded

        show_recorded(name, scale, out, **given)
    elif name is None:
        from partwise.commands.showing import show_papers

        show_papers()
    else:
        from partwise.commands.reproducing import reproduce_table

        reproduce_table(name, scale, out=OUT if out is None else out, quiet=quiet, **given)


@click.command("methods", cls=Command, epilog=METHODS_EXAMPLES)
@click.argument("name", metavar="[METHOD]", required=False, shell_complete=complete_method)
@json_option
@debug_option
def methods_command(**given: Any) -> None:
    """List the methods, or describe one: a name, or your own Python file."""
    from partwise.commands.showing import show_methods

    show_methods(**given)


@click.command("data", cls=Command, epilog=DATA_EXAMPLES)
@click.argument("name", metavar="[NAME|PATH]", required=False, shell_complete=complete_names(data_names, files=True))
@click.option(
    "--download", is_flag=True, help="Download the data set NAME if it is missing and its publisher offers it."
)
@click.option(
    "--data-root", metavar="DIR", help="Folder to search before the usual places.", shell_complete=complete_file
)
@json_option
@debug_option
def data_command(**given: Any) -> None:
    """List the data sets, or describe one: a name, or your own file or folder.

    For a name, show where the data set was searched for and how to get it. For your own files, show samples, classes,
    empty cells, and the columns that could be labels or clients.
    """
    from partwise.commands.showing import show_data

    show_data(**given)


@click.command("partition", cls=DataCommand, epilog=PARTITION_EXAMPLES)
@click.option(
    "--config",
    metavar="FILE",
    help="Read the data settings from the TOML file of a run; options on the command line override them.",
    shell_complete=complete_file,
)
@click.option(
    "--plot",
    metavar="FILE",
    help="Draw the partition into this file: .png, .svg or .pdf.",
    shell_complete=complete_file,
)
@click.option(
    "--save",
    metavar="FILE",
    help="Save the partition to this file; --partition file:FILE reads it again.",
    shell_complete=complete_file,
)
@json_option
@debug_option
def partition_command(**given: Any) -> None:
    """Divide a data set among clients, and show each client's samples and classes."""
    from partwise.commands.partitioning import partition_data

    partition_data(**given)


@click.command("completion", cls=Command, epilog=COMPLETION_EXAMPLES)
@click.argument("shell", metavar="|".join(SHELLS), shell_complete=complete_names(SHELLS))
@debug_option
@click.pass_context
def completion_command(context: click.Context, shell: str) -> None:
    """Print a script that completes commands, methods, options and their values in a shell."""
    found = get_completion_class(shell) if shell in SHELLS else None
    if found is None:
        raise ConfigError(unknown("shell", shell, SHELLS))
    click.echo(found(context.find_root().command, {}, "partwise", "_PARTWISE_COMPLETE").source())
