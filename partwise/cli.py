"""The command line: `partwise run`, `compare`, `sweep`, `report`, and so on; federations with `serve` and `node`."""

import errno
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from typing import Any

import click

from partwise.commands.declared import (
    audit_command,
    compare_command,
    completion_command,
    data_command,
    methods_command,
    partition_command,
    reproduce_command,
    run_command,
    sweep_command,
)
from partwise.commands.declared_nodes import (
    keys_command,
    launch_command,
    node_command,
    serve_command,
)
from partwise.commands.declared_results import (
    export_command,
    join_command,
    plot_command,
    predict_command,
    report_command,
)
from partwise.errors import ConfigError, DiskFull, Interrupted, MethodError, PartwiseError, one_line, own_line, unknown
from partwise.version import __version__

INTERRUPTED = 130  # the exit code for Ctrl-C
CLEARED_AWAY = 3  # seconds in which a command that was interrupted should have ended
EXAMPLES = """\b
Examples:
  partwise run fedper --data digits --clients 20 --partition dir:0.1 --rounds 100 --out runs/fedper
  partwise compare local fedavg fedper fedbabu --seeds 0,1,2 --out runs/four
  partwise run fedper --help"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code; every problem is one line on the standard error."""
    whole_program = arguments is None  # Python ends with it
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a docstring may hold a letter that the locale lacks
    silence_torch()
    try:
        with interruptible(whole_program):
            code = program.main(arguments, "partwise", standalone_mode=False) or 0
            if sys.stdout is not None:  # `>&-` closed it
                sys.stdout.flush()
            return code
    except BrokenPipeError:  # `| head` has seen enough
        write_no_more()
        return 1
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        if isinstance(error, SystemExit) and not own_line(error.__traceback__):
            raise  # click completes a word so
        if whole_program and isinstance(error, click.Abort | KeyboardInterrupt | Interrupted):
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # now Python shall end in peace
        if "--debug" in arguments:
            traceback.print_exc()
        lines, code = refusal(error)
        for line in lines:
            click.echo(f"error: {one_line(line)}", err=True)
        if isinstance(error, OSError):
            write_no_more()
        return code


def write_no_more() -> None:
    """Discard what is left for the standard output, so that Python does not write it again at its end."""
    with suppress(AttributeError, OSError):  # closed, or no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def interruptible(whole_program: bool) -> Iterator[None]:
    """Let Ctrl-C end a command once; ignore further ones while it cleans up, unless that takes too long."""
    begun: list[float] = []

    def interrupt(*_: Any) -> None:
        begun.append(time.monotonic())
        if len(begun) == 1:
            raise KeyboardInterrupt
        if begun[-1] - begun[0] > CLEARED_AWAY:
            os._exit(INTERRUPTED)

    here = threading.current_thread() is threading.main_thread()  # others neither get signals nor may ask for them
    if not here or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        if not begun or not whole_program:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def silence_torch() -> None:
    """Keep torch's hints and deprecations, meant for programmers, from people who run a program.

    Warnings of partwise and of a user's own files still show, and so do all that are asked for, of Python by -W or of
    torch by TORCH_LOGS.
    """
    if not sys.warnoptions:
        warnings.filterwarnings("ignore", module=r"torch(\.|$)")
    os.environ.setdefault("TORCH_LOGS", "-all")  # errors alone; read as torch is imported, by engines' processes too


def refusal(error: BaseException) -> tuple[list[str], int]:
    """Return the lines for an error, and the exit code."""
    if isinstance(error, click.Abort | KeyboardInterrupt):  # the former is what click makes of Ctrl-C
        return ["interrupted"], INTERRUPTED
    if isinstance(error, SystemExit):
        return [f"{own_line(error.__traceback__)}: SystemExit: {error.code}"], MethodError.exit_code
    if isinstance(error, click.NoSuchOption) and error.ctx:
        known = [option for each in error.ctx.command.get_params(error.ctx) for option in each.opts]
        return [unknown("option", error.option_name, known)], 2
    if isinstance(error, click.ClickException):
        line = error.format_message()
        return [line[:1].lower() + line[1:].rstrip(".")], 2  # in one voice with the others
    if isinstance(error, PartwiseError):
        return error.problems, error.exit_code
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:  # on the standard output, or in a library
        return [f"disk full: {error.strerror}"], DiskFull.exit_code
    return [f"{type(error).__name__}: {error} (--debug shows where)"], 1


class Program(click.Group):
    """The commands, in the order in which they are added."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, in the order of their use."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command by its name; refuse an unknown one with the nearest name."""
        if args[0] not in self.commands and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise ConfigError(unknown("command", args[0], self.commands))
        return super().resolve_command(ctx, args)


@click.group(cls=Program, invoke_without_command=True, epilog=EXAMPLES, context_settings={"max_content_width": 120})
@click.version_option(__version__, message="partwise %(version)s")
@click.pass_context
def program(context: click.Context) -> None:
    """Personalised federated learning, part by part."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


for each in (
    run_command,
    compare_command,
    sweep_command,
    report_command,
    plot_command,
    reproduce_command,
    audit_command,
    predict_command,
    export_command,
    join_command,
    methods_command,
    data_command,
    partition_command,
    keys_command,
    serve_command,
    node_command,
    launch_command,
    completion_command,
):
    program.add_command(each)
