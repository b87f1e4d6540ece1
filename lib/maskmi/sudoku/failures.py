"""How a decoder fills a Sudoku, read off its trace: what its digits follow from, and where a failed grid went wrong."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from maskmi.decoding.loop import Trace
from maskmi.sudoku.grading import after_singles
from maskmi.sudoku.grid import violations
from maskmi.sudoku.solver import BOX, COLUMN, MASK, ROW, UNITS, Grids, checked, count_solutions

#: What a committed digit follows from, in the order of :func:`support`.
SUPPORT = ("naked single", "hidden single", "singles", "nothing", "against singles", "conflict", "broken")
NAKED, HIDDEN, SINGLES, NOTHING, AGAINST, CONFLICT, BROKEN = range(7)
KINDS = ("row", "column", "box")


class Step(NamedTuple):
    """One step of the sequences that took it."""

    step: int
    sequence: NDArray[np.int64]  # [n], rows in the puzzles
    before: Grids  # [n, 81]
    after: Grids  # [n, 81]
    commits: NDArray[np.int64]  # [m], rows in the trace's commits
    owner: NDArray[np.int64]  # [m], the row in `sequence` of each


def replay(puzzles: Grids, trace: Trace) -> Iterator[Step]:
    """The grids before and after every step of a trace, for the ``puzzles [N, 81]`` that were decoded."""
    grids = checked(puzzles).copy()
    commits = {name: trace.commits[name].long().numpy() for name in ("sequence", "step", "position", "value")}
    remasks = {name: trace.remasks[name].long().numpy() for name in ("sequence", "step", "position")}
    for step in range(int(commits["step"].max()) + 1 if len(commits["step"]) else 0):
        rows = np.flatnonzero(commits["step"] == step)
        sequence, owner = np.unique(commits["sequence"][rows], return_inverse=True)
        if (grids[commits["sequence"][rows], commits["position"][rows]] != MASK).any():
            raise ValueError(f"step {step} commits a cell that is not blank: these are not the trace's puzzles")
        before = grids[sequence].copy()
        grids[commits["sequence"][rows], commits["position"][rows]] = commits["value"][rows]
        again = remasks["step"] == step
        grids[remasks["sequence"][again], remasks["position"][again]] = MASK
        yield Step(step, sequence, before, grids[sequence].copy(), rows, owner)


def candidates(grids: Grids) -> NDArray[np.bool_]:
    """The digits [n, 81, 9] that each blank cell of the grids [n, 81] may take: those that none of its units holds."""
    digits = checked(grids)[:, :, None] == np.arange(9)
    held = digits[:, UNITS].any(2)  # [n, 27, 9]
    taken = held[:, ROW] | held[:, 9 + COLUMN] | held[:, 18 + BOX]
    return ~taken & (grids == MASK)[:, :, None]


def is_broken(grids: Grids) -> NDArray[np.bool_]:
    """Whether each unit [n, 27] (rows, columns, boxes) of the grids [n, 81] holds a digit twice."""
    return ((checked(grids)[:, :, None] == np.arange(9))[:, UNITS].sum(2) > 1).any(-1)


def support(puzzles: Grids, trace: Trace) -> NDArray[np.int64]:
    """What each committed digit followed from in the grid before its step: [m], a row a commitment of the trace.

    An index into :data:`SUPPORT`:

    - ``naked single``: the only candidate of its cell; ``hidden single``: its only place in a unit (and not naked);
    - ``singles``: filling singles, again and again, gets to this digit;
    - ``nothing``: these leave the cell blank, so it takes more logic than singles, or a guess;
    - ``against singles``: these get to another digit, or leave others only for the cell;
    - ``conflict``: a unit of the cell holds the digit already;
    - ``broken``: the grid had no solution any more, so nothing follows from it.

    The first three are right wherever the puzzle has one solution, ``against singles`` and ``conflict`` always wrong.
    """
    found = np.full(len(trace.commits["step"]), NOTHING)
    for step in replay(puzzles, trace):
        alive = count_solutions(step.before, 1) > 0
        filled = after_singles(step.before)
        possible, left = candidates(step.before), candidates(filled)
        cell = trace.commits["position"][step.commits].long().numpy()
        digit = trace.commits["value"][step.commits].long().numpy()
        row = step.owner
        places = possible[:, UNITS].sum(2)  # [n, 27, 9]
        units = np.stack([ROW[cell], 9 + COLUMN[cell], 18 + BOX[cell]], axis=1)
        only_place = (places[row[:, None], units, digit[:, None]] == 1).any(1)
        by_singles = filled[row, cell]
        found[step.commits] = np.select(
            [
                ~alive[row],
                ~possible[row, cell, digit],
                possible[row, cell].sum(1) == 1,
                only_place,
                by_singles == digit,
                (by_singles != MASK) | ~left[row, cell, digit],
            ],
            [BROKEN, CONFLICT, NAKED, HIDDEN, SINGLES, AGAINST],
            NOTHING,
        )
    return found


def support_shares(puzzles: Grids, trace: Trace) -> dict[str, float]:
    """The share of commitments of each kind of :func:`support`, by name; NaN where nothing was committed."""
    counts = np.bincount(support(puzzles, trace), minlength=len(SUPPORT))
    shares = counts / counts.sum() if counts.sum() else np.full(len(SUPPORT), np.nan)
    return dict(zip(SUPPORT, shares.tolist(), strict=True))


def failures(puzzles: Grids, trace: Trace) -> pd.DataFrame:
    """Where each failed grid went wrong: one row a sequence that ended in an invalid grid, in order.

    ``sequence``
        row in ``puzzles [N, 81]``;
    ``steps``
        how many it took;
    ``dead_step``
        the step with which the grid lost its last solution for good; -1 where the puzzle had none to begin with;
    ``broken_step``
        the step from which on some unit always held a digit twice, not before ``dead_step``; -1: in the puzzle itself;
    ``unit``, ``kind``, ``number``
        the unit that broke then (0 … 26), the first where several did: ``row``, ``column`` or ``box``, and 1 … 9;
    ``units``
        how many broke in that step;
    ``digit``
        the digit (1 … 9) that it holds twice;
    ``clash``
        what it clashes with: ``given``, or else ``earlier`` (a digit committed before), or else ``same step`` (all were
        committed together, an error of parallel decoding).

    A decoder that never masks again dies and breaks for good the first time. The search for solutions takes
    milliseconds a grid at most.
    """
    puzzles = checked(puzzles)
    steps = list(replay(puzzles, trace))
    last, count = puzzles.copy(), np.zeros(len(puzzles), np.int64)
    for step in steps:
        last[step.sequence], count[step.sequence] = step.after, step.step + 1
    failed = (violations(last) > 0) & (last != MASK).all(1)
    # The last step after which all was well: -1 is the puzzle itself, -2 stands for never.
    alive = np.where(count_solutions(puzzles, 1) > 0, -1, -2)
    whole = np.where(is_broken(puzzles).any(-1), -2, -1)
    for step in steps:
        mine = failed[step.sequence]
        sequence, after = step.sequence[mine], step.after[mine]
        alive[sequence[count_solutions(after, 1) > 0]] = step.step
        whole[sequence[~is_broken(after).any(-1)]] = step.step
    rows = [
        {"sequence": i, "steps": count[i], "dead_step": alive[i] + 1, "broken_step": whole[i] + 1}
        | _clash(puzzles[i], i, steps[whole[i] + 1] if whole[i] > -2 else None, trace)
        for i in np.flatnonzero(failed)
    ]
    names = ["sequence", "steps", "dead_step", "broken_step", "unit", "kind", "number", "units", "digit", "clash"]
    return pd.DataFrame(rows, columns=names)


def _clash(puzzle: Grids, sequence: int, step: Step | None, trace: Trace) -> dict[str, object]:
    """Which unit broke in a step (None: in the puzzle itself), and between what."""
    grid, new = puzzle, np.zeros(81, bool)
    if step is not None:
        row = np.searchsorted(step.sequence, sequence)
        grid = step.after[row]
        new[trace.commits["position"][step.commits[step.owner == row]].long().numpy()] = True
    broken = np.flatnonzero(is_broken(grid[None])[0])
    unit = broken[0]
    cells = UNITS[unit]
    digit = np.flatnonzero((grid[cells][:, None] == np.arange(9)).sum(0) > 1)[0]
    cells = cells[grid[cells] == digit]
    old = cells[~new[cells]]
    clash = "same step" if not len(old) else "given" if (puzzle[old] != MASK).any() else "earlier"
    kind, number = divmod(int(unit), 9)
    return {
        "unit": unit,
        "kind": KINDS[kind],
        "number": number + 1,
        "units": len(broken),
        "digit": digit + 1,
        "clash": clash,
    }
