"""How a decoder works on Sudoku, measured on traces: what its digits follow from, masking again, where grids break."""

from typing import Any

import numpy as np

from maskmi.decoding.diagnostics import flip_flop_rate
from maskmi.decoding.loop import Trace
from maskmi.sudoku.failures import KINDS, failures, support_shares
from maskmi.sudoku.solver import Grids

CLASHES = ("given", "earlier", "same step")
FOLLOWS = ("naked single", "hidden single", "singles")  # what propagating singles gets to, of failures.SUPPORT


def diagnose(puzzles: Grids, trace: Trace) -> dict[str, Any]:
    """Measures of a trace on the ``puzzles [N, 81]`` that were decoded; what has no value is left out.

    ``n``; ``committed``, mean number of digits a step commits; ``follows_singles``, the share of commitments to which
    propagating singles leads from the grid before the step, and ``support``, the shares of all kinds
    (:data:`maskmi.sudoku.failures.SUPPORT`); ``remasked``, masked again a puzzle; ``flip_flop``, the share of these
    that came back to the same digit; ``failed``, the share of puzzles that end in an invalid grid; of these, ``kinds``
    and ``clashes``, the share whose first broken constraint is a row, column or box, and what the digit that broke it
    clashes with; ``dead`` and ``broken``, how far decoding was when the grid lost its last solution and when a digit
    stood twice, from 0 (before the first step) to 1 (after the last).
    """
    steps = len(trace.steps["step"])
    shares = support_shares(puzzles, trace)
    again = len(trace.remasks["step"])
    found: dict[str, Any] = {"n": len(puzzles), "remasked": again / len(puzzles)}
    if steps:
        found |= {"committed": len(trace.commits["step"]) / steps, "support": shares}
        found["follows_singles"] = sum(shares[name] for name in FOLLOWS)
    if again and np.isfinite(rate := flip_flop_rate(trace)):
        found["flip_flop"] = rate
    bad = failures(puzzles, trace)
    found["failed"] = len(bad) / len(puzzles)
    if len(bad):
        found["kinds"] = {kind: float((bad.kind == kind).mean()) for kind in KINDS}
        found["clashes"] = {clash: float((bad.clash == clash).mean()) for clash in CLASHES}
        # A step is over when it has done its harm; what was wrong from the start (-1) is at 0.
        for name in ("dead", "broken"):
            found[name] = float(((bad[f"{name}_step"] + 1) / bad.steps).mean())
    return found
