"""The commands as they are declared: arguments, options and help. What one does is imported when it is called."""

from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import get_completion_class

from partwise.commands.options import (
    Asked,
    Command,
    DataCommand,
    MethodCommand,
    SweepCommand,
    complete,
    complete_file,
    complete_method,
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
    help="TOML file with settings; options win over it.",
    shell_complete=complete_file,
)
json_option = click.option("--json", "as_json", is_flag=True, help="For programs.")


Decorator = Callable[[Callable], Callable]

quiet_option = click.option("--quiet", is_flag=True, help="Show results alone, no progress.")
overwrite_option = click.option("--overwrite", is_flag=True, help="Replace what an earlier run left in DIR.")
seeds_option = click.option(
    "--seeds", metavar="NUMBERS", help="Seeds, separated by commas; a run for each. Unset: --seed alone."
)
tensorboard_option = click.option(
    "--tensorboard", is_flag=True, help="Write every run's curves into its folder for TensorBoard too."
)
settings_options = (
    config_option,
    click.option(
        "--trust",
        is_flag=True,
        expose_value=False,
        help="Execute the method file that --config names without a word, and with --dry-run and --help too.",
    ),
    click.option(
        "--preset",
        metavar="PAPER/TABLE",
        expose_value=False,
        help="The settings of a paper's table (partwise reproduce lists them), of the column that fits the options "
        "given, --data say, and of the method's row; options win over it. PAPER/TABLE:COLUMN,ROW names them.",
        shell_complete=complete(papers()),
    ),
    click.pass_obj,
)


def decorated(*options: Decorator) -> Decorator:
    """Several options in one: the help shows the last one first."""

    def decorate(function: Callable) -> Callable:
        for option in options:
            function = option(function)
        return function

    return decorate


# What `run` and `compare` have beside the settings.
run_options = decorated(
    debug_option,
    quiet_option,
    click.option("--dry-run", is_flag=True, help="Show network, bytes, FLOPs and memory; train and write nothing."),
    tensorboard_option,
    click.option(
        "--despite-changes", is_flag=True, help="--resume although settings, data, torch or device are others."
    ),
    click.option("--resume", is_flag=True, help="Go on with what is in DIR: show a finished run, end another."),
    overwrite_option,
    click.option(
        "--out",
        metavar="DIR",
        help="Folder for the results; without it they are only shown.",
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
        help="Let optuna draw so many settings for each method, in place of every combination.",
    ),
    seeds_option,
    click.option("--share", type=(int, int), hidden=True),  # of a process on one of several GPUs: its number, of all
    *settings_options,
)


@click.command("run", cls=MethodCommand, epilog=RUN_EXAMPLES)
@click.argument("methods", metavar="METHOD", nargs=-1, expose_value=False, shell_complete=complete_method)
@run_options
def run_command(asked: Asked, **given: Any) -> None:
    """Run one method.

    METHOD is a name from `partwise methods` or a Python file of your own. It has options of its own, which
    `partwise run METHOD --help` shows too; --config FILE may name it instead.
    """
    from partwise.commands.running import run

    run(asked, **given)


@click.command("compare", cls=MethodCommand, epilog=COMPARE_EXAMPLES)
@seeds_option
@click.argument("methods", metavar="METHOD...", nargs=-1, expose_value=False, shell_complete=complete_method)
@run_options
def compare_command(asked: Asked, **given: Any) -> None:
    """Run several methods and rank them.

    Every METHOD, a name from `partwise methods` or a Python file of your own, runs with every seed. An option that
    only some of them have goes to those. Seeds of a method run side by side where they can share the blocks of the
    vector engine; results are those of separate runs.
    """
    from partwise.commands.running import compare

    compare(asked, **given)


@click.command("sweep", cls=SweepCommand, epilog=SWEEP_EXAMPLES)
@click.argument("methods", metavar="METHOD...", nargs=-1, expose_value=False, shell_complete=complete_method)
@sweep_options
def sweep_command(asked: Asked, **given: Any) -> None:
    """Try settings, choose each method's on validation data, and rank the methods on test data.

    Every setting takes several values: --lr 0.01,0.05. Options that are lists themselves (--eval-at, --unfreeze,
    --augment, --drop) are repeated instead, and so are switches: --batch-norm --no-batch-norm. An option that only some
    methods have is varied for those. Values of the data and of failures are problems: each has a column, and settings
    are chosen for each.

    With --search NUMBER optuna draws as many settings for each method; numbers may then be ranges, --lr 0.001..0.1,
    drawn on a logarithmic scale where the ends lie a factor of ten or more apart. The same command goes on where it was
    stopped. Models are only kept with --save-models.
    """
    from partwise.commands.sweeping import sweep

    sweep(asked, **given)


@click.command("audit", cls=MethodCommand, epilog=AUDIT_EXAMPLES)
@click.argument("methods", metavar="METHOD", nargs=-1, expose_value=False, shell_complete=complete_method)
@click.option(
    "--picture",
    metavar="FILE",
    help="Try to rebuild one mini-batch of images from its upload, and draw it: .png, .svg or .pdf.",
    shell_complete=complete_file,
)
@config_option
@debug_option
@click.pass_obj
def audit_command(asked: Asked, **given: Any) -> None:
    """Show what leaves a client, and what is learned from it.

    METHOD runs for a round (one of each of its stages; --rounds says otherwise), once without filters and once with
    those of the options --upload-clip, --histograms and so on; where none is given, with a clip, noise and presence
    bits. An eavesdropper on the uploads tries to rebuild clients' label histograms.
    """
    from partwise.commands.auditing import audit_method

    audit_method(asked, **given)


@click.command("reproduce", cls=Command, epilog=REPRODUCE_EXAMPLES)
@click.argument("name", metavar="[PAPER/TABLE]", required=False, shell_complete=complete(papers()))
@click.option(
    "--scale",
    default="full",
    metavar="NAME",
    help="full: the paper's setting (the default); small: a tenth of its rounds; smoke: a trial on made images.",
    shell_complete=complete(SCALES),
)
@click.option("--seeds", metavar="NUMBERS", help="Seeds, separated by commas; unset: the paper's, or 0 below full.")
@click.option(
    "--rows",
    metavar="NAMES",
    help="Only these rows, by name or method, separated by commas: the table has no others.",
)
@click.option("--columns", metavar="NAMES", help="Only these columns, separated by commas.")
@click.option("--out", metavar="DIR", help=f"Folder for the runs; unset: {OUT}.", shell_complete=complete_file)
@click.option(
    "--recorded", is_flag=True, help="Run nothing: show runs at full scale that partwise brings along, by settings."
)
@click.option("--overwrite", is_flag=True, help="Run finished runs again; without it they are kept.")
@click.option("--quiet", is_flag=True, help="Show results alone, no progress.")
@debug_option
def reproduce_command(name: str | None, scale: str, out: str | None, recorded: bool, **given: Any) -> None:
    """Run a table or figure of a paper again, or list them all.

    Each cell shows the published number, ours, and the difference. Runs that an earlier call finished are kept; a cell
    whose method or data are not here says so. Seeds of a cell run side by side where they can, as those of `compare`.
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

        reproduce_table(name, scale, out=OUT if out is None else out, **given)


@click.command("methods", cls=Command, epilog=METHODS_EXAMPLES)
@click.argument("name", metavar="[METHOD]", required=False, shell_complete=complete_method)
@json_option
@debug_option
def methods_command(**given: Any) -> None:
    """List the methods, or describe one: a name or a Python file of your own."""
    from partwise.commands.showing import show_methods

    show_methods(**given)


@click.command("data", cls=Command, epilog=DATA_EXAMPLES)
@click.argument("name", metavar="[NAME|PATH]", required=False, shell_complete=complete(data_names, files=True))
@click.option("--download", is_flag=True, help="Fetch the data set NAME where it is missing and its makers offer it.")
@click.option("--data-root", metavar="DIR", help="First folder to look in.", shell_complete=complete_file)
@json_option
@debug_option
def data_command(**given: Any) -> None:
    """List the data sets, or describe one: a name, or a file or folder of your own.

    Of a name it says where it was looked for and how to get it; of your own files what they hold: samples, classes,
    empty cells, and which columns could be labels or clients.
    """
    from partwise.commands.showing import show_data

    show_data(**given)


@click.command("partition", cls=DataCommand, epilog=PARTITION_EXAMPLES)
@click.option("--config", metavar="FILE", help="TOML file of a run; options win over it.", shell_complete=complete_file)
@click.option("--plot", metavar="FILE", help="Draw it: .png, .svg or .pdf.", shell_complete=complete_file)
@click.option(
    "--save", metavar="FILE", help="Write it down; --partition file:FILE reads it.", shell_complete=complete_file
)
@json_option
@debug_option
def partition_command(**given: Any) -> None:
    """Divide a data set among clients, and show who gets what."""
    from partwise.commands.dividing import divide_data

    divide_data(**given)


@click.command("completion", cls=Command, epilog=COMPLETION_EXAMPLES)
@click.argument("shell", metavar="|".join(SHELLS), shell_complete=complete(SHELLS))
@debug_option
@click.pass_context
def completion_command(context: click.Context, shell: str) -> None:
    """Print the script that completes commands, methods, options and their values in a shell."""
    found = get_completion_class(shell) if shell in SHELLS else None
    if found is None:
        raise ConfigError(unknown("shell", shell, SHELLS))
    click.echo(found(context.find_root().command, {}, "partwise", "_PARTWISE_COMPLETE").source())
