"""The declarations of the commands for real federations: keys, serve, node and launch."""

from typing import Any

import click

from partwise.commands.options import Command, complete_file, debug_option
from partwise.errors import ConfigError

KEYS_EXAMPLES = """\b
Examples:
  partwise keys . --own Graz
  partwise keys federation --server fl.example.org --public Graz=Graz.pub --silo Linz
  partwise keys federation --handed-over Linz"""

SERVE_EXAMPLES = """\b
Examples:
  partwise serve federation --address 0.0.0.0:9443
  partwise serve trial --plain"""

NODE_EXAMPLES = """\b
Examples:
  partwise node graz.toml --check
  partwise node graz.toml --check --task numbers
  partwise node graz.toml --server fl.example.org:9443 --ca ca.pem --key Graz.key
  partwise node trial.toml --server 127.0.0.1:9443 --plain"""

LAUNCH_EXAMPLES = """\b
Examples:
  partwise launch run.toml --folder federation --out runs/first
  partwise launch run.toml --folder federation --out runs/first --resume
  partwise launch spread.toml --folder federation --out runs/spread --hosts left=1000 --hosts right=1000"""

insecure_option = click.option("--insecure", is_flag=True, help="With --plain: beyond this machine too.")
flower_debug_option = click.option(
    "--debug", is_flag=True, help="Show the traceback of an error. Flower's own log too."
)
plain_option = click.option(
    "--plain", is_flag=True, help="No TLS and no keys, to try things out; on this machine alone."
)


@click.command("keys", cls=Command, epilog=KEYS_EXAMPLES)
@click.argument("folder", metavar="DIR")
@click.option("--server", multiple=True, metavar="HOST", help="A name or address by which silos reach the server.")
@click.option("--public", multiple=True, metavar="NAME=FILE", help="A silo, and the public key that it has made.")
@click.option("--silo", multiple=True, metavar="NAME", help="A silo for which a pair of keys is made here.")
@click.option("--own", metavar="NAME", help="On a silo: make its own pair of keys in DIR, and nothing else.")
@click.option(
    "--handed-over", multiple=True, metavar="NAME", help="Remove a silo's private key from DIR: the silo has it."
)
@debug_option
def keys_command(**given: Any) -> None:
    """Make the keys of a federation.

    Best, each silo makes its own pair with --own and sends NAME.pub: its private key never leaves it. On the server,
    DIR gets an authority's certificate (ca.pem), the server's certificate and key, and every silo's public key. With
    --silo the pair is made on the server: send the silo its silos/NAME.key, then remove that with --handed-over. Each
    silo needs ca.pem and its own private key. What is there is never overwritten, so that silos can be added later.
    """
    from partwise.commands.federating import make_keys

    make_keys(**given)


@click.command("serve", cls=Command, epilog=SERVE_EXAMPLES)
@click.argument("folder", metavar="DIR")
@click.option(
    "--address", default="127.0.0.1:9443", metavar="HOST:PORT", help="Where silos reach it; unset: 127.0.0.1:9443."
)
@plain_option
@insecure_option
@flower_debug_option
def serve_command(**given: Any) -> None:
    """Serve a federation: Flower's SuperLink behind a gate.

    DIR holds its keys (partwise keys). Silos with a key of DIR come in, and nobody else; the way to start runs is not
    open to the network at all: `partwise launch` runs on this machine.
    """
    from partwise.commands.federating import serve

    serve(**given)


@click.command("node", cls=Command, epilog=NODE_EXAMPLES)
@click.argument("silo", metavar="SILO.toml", shell_complete=complete_file)
@click.option("--check", is_flag=True, help="Read the data, show what would leave, and connect to nobody.")
@click.option(
    "--task",
    type=click.Choice(["classes", "labels", "numbers", "places"]),
    help="With --check: the task of the runs that are expected; unset: by the labels.",
)
@click.option("--server", metavar="HOST:PORT", help="The server's address; needed without --check.")
@click.option("--ca", metavar="FILE", help="The federation's ca.pem.", shell_complete=complete_file)
@click.option("--key", metavar="FILE", help="This silo's own key.", shell_complete=complete_file)
@plain_option
@insecure_option
@flower_debug_option
def node_command(check: bool, task: str | None, debug: bool, **given: Any) -> None:
    """Take part in a federation with a silo's data.

    SILO.toml says what the data are and what is allowed with them; see docs/federation.md. Nothing that arrives from
    the server is executed as code. Try --check first: it names every problem of the file and the data, writes nothing,
    and tells what would leave: once, each round, and in all.
    """
    from partwise.commands.federating import check_node, run_node

    if check:
        check_node(task=task, **given)
    elif task is not None:
        raise ConfigError("--task goes with --check: otherwise the run names the task")
    else:
        run_node(debug=debug, **given)


@click.command("launch", cls=Command, epilog=LAUNCH_EXAMPLES)
@click.argument("file", metavar="RUN.toml", shell_complete=complete_file)
@click.option("--folder", required=True, metavar="DIR", help="The one that `partwise serve` serves.")
@click.option("--out", required=True, metavar="DIR", help="Folder for the results.", shell_complete=complete_file)
@click.option("--silos", metavar="NAMES", help="Those that take part, separated by commas; unset: all with a key.")
@click.option(
    "--hosts", multiple=True, metavar="NAME=N", help="Let this node host up to N clients; others are one client each."
)
@click.option(
    "--most-samples", type=click.IntRange(min=1), metavar="N", help="A silo counts as N samples at most in a mean."
)
@click.option("--wait", default=300.0, metavar="SECONDS", help="How long to wait for them to be online; unset: 300.")
@click.option("--timeout", default=600.0, metavar="SECONDS", help="How long to wait for an answer; unset: 600.")
@click.option(
    "--grace",
    default=60.0,
    metavar="SECONDS",
    help="How long a silo that went offline may take to come back, once for each absence; unset: 60.",
)
@click.option("--overwrite", is_flag=True, help="Replace what an earlier run left in DIR.")
@click.option("--resume", is_flag=True, help="Go on with the run in --out, or begin it.")
@click.option("--quiet", is_flag=True, help="Show results alone, no progress.")
@flower_debug_option
def launch_command(**given: Any) -> None:
    """Run a method over the silos of a federation.

    RUN.toml holds the settings of a run, as `partwise run --config` reads them; data are the silos' own. To be called
    on the server's machine.

    A node is one client, named by its key. One that claims more clients, or another silo's name, is left out by its
    name, and the launch ends where too few silos remain. The server keeps to the largest min_clients that a silo
    demands. It does not tell silos of --most-samples; say it again with --resume.
    """
    from partwise.commands.federating import launch

    launch(**given)
