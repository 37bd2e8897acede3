"""Check a method's functions on one client before they are used, in float64 on the CPU, whatever the run's device is.

A client's functions are pure: called twice they give the same, they draw no random numbers but the client's own, and
they change nothing that they may only read. Where clients run in padded blocks, padded rows change nothing either, and
two clients side by side get what each gets alone. Equal means to 1e-9: a looser test let wrong losses through. The
client's own tensors are moved away from what it received: where they are equal, a term on their distance is zero.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from partwise.engines.purity_inputs import FAR_FACTORS, REAL_ROWS, PurityInputs, extras_form, mini_batch
from partwise.engines.purity_probes import (
    changed_in_place,
    equal_to_the_bit,
    fingerprint,
    held_on_host,
    largest_difference,
    moved,
    on_host,
    states,
)
from partwise.errors import ConfigError, called, one_line, own_line, short
from partwise.network.view import Tensors
from partwise.privacy.gradients import PrivateGradients
from partwise.rounds.client import MOVE
from partwise.rounds.messages import ADAPTING, Request
from partwise.rounds.plan import ResolvedMove, ResolvedPhase
from partwise.rounds.state import BatchRows, ClientState, Common

if TYPE_CHECKING:
    from partwise.engines.engine import Engine

StepFunction = Callable[[BatchRows], Any]


class Impure(ConfigError):
    """A function that may not be run as it is."""


@dataclass
class CheckedState:
    """The state that a check saw beside the functions; when it has changed, another check is due."""

    version: int  # of the method
    kind: Any  # names, shapes and types of what clients received
    zero: dict[str, Tensor]  # of what a client reads: where it was zero


class PurityCheck:
    """Tries the functions of a run's method when a stage begins, and whenever what they read has changed in kind."""

    def __init__(self, engine: "Engine", side_by_side: Callable[[Callable], Callable] | None = None):
        self.engine = engine
        self.inputs = PurityInputs(engine)
        self.side_by_side = side_by_side  # how a function of one client is run for a padded block; None: it is not
        self.tried: dict[Any, CheckedState] = {}
        self.seconds = 0.0  # that trials took in all

    def __call__(self, request: Request) -> str:
        """Try a request's functions if they are due; returns why that could not be done, or nothing."""
        subject = request.job, request.plan.number
        version, kind, before = self.engine.program.version, extras_form(request), self.tried.get(subject)
        watched = before.zero if before and before.kind == kind else None
        zero = self.inputs.zeros(request, watched)
        if before and watched is not None and before.version == version and not new(watched, zero):
            return ""
        self.tried[subject] = CheckedState(version, kind, {name: where for name, where in zero.items() if where.any()})
        return self.attempt(lambda: self.check_job(request, *self.inputs.subjects(request)))

    def globally(self, tensors: Tensors) -> str:
        """Check the prediction of the global model in the same way."""
        version = self.engine.program.version
        if "global" in self.tried and self.tried["global"].version == version:
            return ""
        self.tried["global"] = CheckedState(version, None, {})
        return self.attempt(lambda: self.check_global(on_host(tensors)))

    def attempt(self, check: Callable[[], None]) -> str:
        """Run a check. Code that cannot run on the CPU may run on the device; return a note that says so."""
        method, begun = self.engine.program.method, time.perf_counter()
        try:
            with torch.no_grad(), held_on_host(method):
                check()
        except Impure:
            raise
        except Exception as error:
            name = type(method).__name__
            return (
                f"{name} could not be checked on the CPU for unseeded randomness, changed inputs and dependence on "
                f"padding: {short(one_line(error))}"
            )
        finally:
            self.seconds += time.perf_counter() - begun
        return ""

    # ---- what is tried

    def check_job(self, request: Request, client: ClientState, both: ClientState, common: Common) -> None:
        """Check every function that a client runs for a request, in turn."""
        program, reads = self.inputs.on_host(), (client, common)
        if program.has("start"):
            self.check("start", partial(without_rows, program.start, client, common), reads)
            self.check_beside("start", program.start, client, both, common, batches=0)
            client = client.overwritten(moved(program.start(client, common), "start"))
        for phase in self.engine.drawing.phases(request):
            for function in (phase.before, phase.after):
                if function:
                    overwrite = partial(program.overwrite, function)
                    self.check(function_name(function), partial(without_rows, overwrite, client, common), reads)
                    self.check_beside(function_name(function), overwrite, client, both, common, batches=0)
            for name, call in self.moves(phase, client, common):
                self.check(name, call, reads, phase.batches)
            if program.private is not None and phase.every_round:
                self.check_one_by_one(phase, client, common)
            self.check_beside("a step", partial(program.step, phase), client, both, common, phase.batches)
        if request.job == "train" and program.has("finish"):
            self.check("finish", partial(without_rows, program.finish, client, common), reads)
            self.check_beside("finish", program.finish, client, both, common, batches=0)
        if self.engine.drawing.reports(request):
            self.check("report", lambda rows: program.report(client, rows, common), reads)
            self.check_beside("report", program.report, client, both, common)
        if request.job in ("predict", *ADAPTING):
            name, how = function_name(request.plan.stage.predict), request.plan.predict
            self.check(name, lambda rows: program.predict(how, client, rows, common)[:REAL_ROWS], reads)
            self.check_beside(name, partial(program.predict, how), client, both, common)

    def check_global(self, tensors: Tensors) -> None:
        """Check the prediction of the global model."""
        x, y = self.inputs.samples(int(np.argmax([len(own) for own in self.engine.train])))

        def predict(rows: BatchRows) -> Tensor:
            return self.inputs.on_host().predict_global(tensors, rows, x, y)[:REAL_ROWS]

        self.check("predict_global", predict, (tensors, (x, y)))

    def moves(self, phase: ResolvedPhase, client: ClientState, common: Common) -> Iterator[tuple[str, StepFunction]]:
        """Yield the functions of a phase's moves by name, as functions of a mini-batch's rows."""
        program = self.inputs.on_host()

        def run(move: ResolvedMove, number: int, what: str, rows: BatchRows) -> Any:
            batches = program.batches(rows, common.x, common.y)
            key = rows.key + MOVE * number
            net, me = program.view(client, common, batches[0].mask, key, phase.training, move.names)
            if what == "after":
                return move.after(net, me) if move.after else {}
            if what == "update":
                return program.updated(move, net, program.drawing(batches, key, client), me)
            grads, value, running = program.gradients(move, net, program.drawing(batches, key, client), me)
            if what == "correct":
                return program.method.correct(grads, net, me)
            return grads, value, running

        for number, move in enumerate(phase.moves):
            if move.move.update:
                yield function_name(move.move.update), partial(run, move, number, "update")
                continue
            yield function_name(move.move.gradient or move.move.loss), partial(run, move, number, "gradients")
            if program.has("correct") and phase.every_round:
                yield "correct", partial(run, move, number, "correct")
            if move.move.after:
                yield function_name(move.move.after), partial(run, move, number, "after")

    # ---- what is asked of a function

    def check(self, name: str, call: StepFunction, reads: Any, batches: int = 1) -> None:
        """Refuse a function that is random, changes its inputs, or depends on padded rows."""
        method, plain = self.engine.program.method, mini_batch(REAL_ROWS, 0, batches)
        generators, held, versions = states(), fingerprint(method), changed_in_place(reads)
        once = call(plain)
        if fingerprint(method) != held:
            raise self.refused(
                name,
                "changes the method itself, which all clients share; to keep something between calls, return it from "
                "finish() and read it as me.keep",
            )
        if changed_in_place(reads) != versions:
            raise self.refused(name, "changes a read-only input in place; clone() it first, or return the new value")
        off = (
            "" if self.side_by_side is None else largest_difference(once, self.padded(call, len(reads[1][1]), batches))
        )
        if states() != generators or ((off or self.side_by_side is None) and not equal_to_the_bit(once, call(plain))):
            raise self.refused(
                name,
                "returns something else when called again with the same input, so it draws unseeded random numbers; "
                "use b.random, b.normal, me.random or me.normal",
            )
        if off:
            raise self.refused(
                name,
                f"depends on padded rows ({off}), so clients cannot run in blocks; take means with b.mean or b.ce, use "
                "b.mask where rows meet, or run with --engine loop",
            )

    def padded(self, call: StepFunction, rows: int, batches: int) -> Any:
        """Return a function's result for the same rows with padding after them, some of it far from the data."""
        try:
            result = call(mini_batch(REAL_ROWS, rows - REAL_ROWS, batches))
            if all(leaf.isfinite().all() for leaf in tree_leaves(result) if isinstance(leaf, Tensor)):
                return result
        except Exception:  # what is so far off may be no sample of these data: a word that is in no dictionary
            pass
        return call(mini_batch(REAL_ROWS, rows - REAL_ROWS - len(FAR_FACTORS), batches))

    def check_one_by_one(self, phase: ResolvedPhase, client: ClientState, common: Common) -> None:
        """Refuse a loss that is not a mean of one number per sample, where DP-SGD needs each sample's gradient."""
        # What else is there to pad with, but for what is far off: then some rows have the same label.
        program, rows = self.inputs.on_host(), mini_batch(len(common.y) - len(FAR_FACTORS), 0, 1)
        for move in phase.moves:
            batches = program.batches(rows, common.x, common.y)
            net, me = program.view(client, common, batches[0].mask, rows.key, False, move.names)  # without dropout
            (b,) = program.drawing(batches, rows.key, client)
            together, _ = net.grad_and_value(move.loss, b, me)
            alone, _ = PrivateGradients(math.inf, 0.0)(move.loss, net, b, me)
            if off := largest_difference(together, alone):
                raise self.refused(
                    function_name(move.move.loss),
                    f"is not a mean of one number per sample ({off}), so DP-SGD cannot clip each sample's gradient; "
                    "change the loss, or unset dp_clip",
                )

    def check_beside(
        self,
        name: str,
        function: Callable,
        client: ClientState,
        both: ClientState,
        common: Common,
        batches: int = 1,
    ) -> None:
        """Refuse a function that cannot run for two clients at once, or gives a client something else then.

        It takes `batches` mini-batches between client and common; 0: it has no such argument.
        """
        if self.side_by_side is None:
            return
        number = len(both.samples)
        plain, padded = ([mini_batch(REAL_ROWS - 1, more, batches)] if batches else [] for more in (0, 2))
        begun = client.overwritten({name: rows[0] for name, rows in both.trained.own.items()})
        alone = function(begun, *plain, common)
        try:
            rows = tree_map(lambda tensor: tensor.expand(number, *tensor.shape), padded)
            every = self.side_by_side(function)(both, *rows, common)
        except Exception as error:
            line = own_line(error.__traceback__)
            raise self.refused(
                f"{name} ({line})" if line else name,
                f"cannot run for several clients at once: {short(one_line(error))}; use operations on tensors, such as "
                "torch.where, or run with --engine loop",
            ) from error
        beside = tree_map(lambda tensor: tensor[0], every)
        if isinstance(beside, Tensor):  # predictions, padded rows among them
            beside = beside[: len(alone)]
        if off := largest_difference(alone, beside):
            raise self.refused(
                name,
                f"returns something else for a client in a padded block with others ({off}); keep rows and clients "
                "apart, or run with --engine loop",
            )

    def refused(self, name: str, why: str) -> Impure:
        """Return the error for a function of the method."""
        method = self.engine.program.method
        return Impure(f"{called(method, name) if hasattr(method, name) else f'{type(method).__name__}: {name}'} {why}")


# ------------------------------------------------------------------------------------------------ small questions


def without_rows(function: Callable, client: ClientState, common: Common, _rows: BatchRows) -> Any:
    """Call a function of a client that takes no mini-batch."""
    return function(client, common)


def function_name(function: str | Callable | None) -> str:
    """Return the name of a function that a phase or a move gives by name or as itself."""
    return function if isinstance(function, str) else getattr(function, "__name__", type(function).__name__)


def new(before: dict[str, Tensor], now: dict[str, Tensor]) -> bool:
    """Return whether something that was zero no longer is."""
    found = [(zero & ~now[name]).any() for name, zero in before.items()]
    return bool(found) and bool(torch.stack(found).any())
