"""What committed digits follow from, and where failed grids went wrong, on grids worked by hand."""

import numpy as np
import pytest
import torch

from maskmi.decoding.loop import Trace
from maskmi.sudoku.failures import (
    AGAINST,
    BROKEN,
    CONFLICT,
    HIDDEN,
    NAKED,
    NOTHING,
    SINGLES,
    candidates,
    failures,
    is_broken,
    replay,
    support,
    support_shares,
)
from maskmi.sudoku.grading import after_singles
from maskmi.sudoku.solver import MASK, random_grids, solve, unique_puzzles

# Row r holds 3 (r mod 3) + r div 3, and counts up from there: the digits 1 … 9 of row 0 are stored as 0 … 8.
FULL = np.array([[(3 * (r % 3) + r // 3 + c) % 9 for c in range(9)] for r in range(9)], np.uint8).reshape(81)


def cell(row, column):
    return 9 * row + column


def grid(entries, start=None):
    made = np.full(81, MASK, np.uint8) if start is None else start.copy()
    for place, digit in entries.items():
        made[cell(*place)] = digit
    return made


def trace_of(commits, remasks=()):
    """From rows (sequence, step, cell, digit) and (sequence, step, cell)."""
    names = ("sequence", "step", "position", "value")
    columns = torch.tensor(commits, dtype=torch.long).reshape(-1, 4).unbind(1)
    again = torch.tensor(remasks, dtype=torch.long).reshape(-1, 3).unbind(1)
    return Trace(dict(zip(names, columns, strict=True)), dict(zip(names[:3], again, strict=True)), {})


# The digit 0 stands in rows 1, 2 and columns 1, 2: box 0 has one place for it, r0c0, which could hold others too.
CROSSED = grid({(1, 4): 0, (2, 7): 0, (4, 1): 0, (7, 2): 0})
# Row 0 lacks 0, 7, 8. Column 0 holds 7 and 8, so r0c0 is 0. Column 4 holds 8, so r0c4 is 0 or 7; 8 is left to r0c8.
CHAIN = grid({(0, 1): 1, (0, 2): 2, (0, 3): 3, (0, 5): 4, (0, 6): 5, (0, 7): 6, (3, 0): 7, (4, 0): 8, (5, 4): 8})


@pytest.mark.parametrize(
    ("puzzle", "place", "digit", "expected"),
    [
        (grid({(4, 4): MASK}, FULL), (4, 4), FULL[cell(4, 4)], NAKED),
        (CROSSED, (0, 0), 0, HIDDEN),
        (CROSSED, (0, 0), 5, AGAINST),
        (CROSSED, (1, 0), 0, CONFLICT),
        (CROSSED, (8, 8), 3, NOTHING),
        (CHAIN, (0, 0), 0, NAKED),
        (CHAIN, (0, 8), 8, HIDDEN),
        (CHAIN, (0, 4), 7, SINGLES),  # once r0c0 is 0
        (CHAIN, (0, 4), 0, AGAINST),
        # free in its units, until r0c0 is 0
        (CHAIN, (8, 0), 0, AGAINST),
        (grid({(8, 0): 1}, CHAIN), (8, 8), 3, NOTHING),
        (grid({(5, 0): 0}, CHAIN), (8, 8), 3, BROKEN),  # nothing is left for r0c0
        (grid({(1, 1): 1}, CHAIN), (8, 8), 3, BROKEN),  # two in column 1
    ],
)
def test_support(puzzle, place, digit, expected):
    trace = trace_of([(0, 0, cell(*place), int(digit))])
    assert support(puzzle[None], trace).tolist() == [expected]


def test_support_looks_at_the_grid_before_the_step():
    # Both cells of CHAIN at once: r0c4 follows after r0c0 only, which does not count as filled yet. In the next step it
    # does: then 7 is the only candidate.
    at_once = trace_of([(0, 0, cell(0, 0), 0), (0, 0, cell(0, 4), 7)])
    in_turn = trace_of([(0, 0, cell(0, 0), 0), (0, 1, cell(0, 4), 7)])
    assert support(CHAIN[None], at_once).tolist() == [NAKED, SINGLES]
    assert support(CHAIN[None], in_turn).tolist() == [NAKED, NAKED]


def test_support_keeps_sequences_and_the_order_of_the_trace():
    trace = trace_of([(1, 0, cell(0, 0), 0), (0, 0, cell(0, 8), 8), (1, 0, cell(8, 8), 3), (0, 0, cell(0, 0), 0)])
    assert support(np.stack([CHAIN, CROSSED]), trace).tolist() == [HIDDEN, HIDDEN, NOTHING, NAKED]
    shares = support_shares(np.stack([CHAIN, CROSSED]), trace)
    assert shares["hidden single"] == 0.5 and shares["nothing"] == shares["naked single"] == 0.25
    assert sum(shares.values()) == 1


def test_right_digits_of_a_puzzle_follow_or_need_more_than_singles():
    puzzles = unique_puzzles(random_grids(20, 0), 0, 50, 58)
    solutions, filled = solve(puzzles), after_singles(puzzles)
    order = np.random.default_rng(0).permutation(81)
    rows = [(i, 0, c, int(solutions[i, c])) for c in order for i in range(20) if puzzles[i, c] == MASK]
    kinds = support(puzzles, trace_of(rows))
    # All in one step, so a digit follows from singles exactly if filling singles gets there.
    follows = np.array([filled[i, c] != MASK for i, _, c, _ in rows])
    assert np.array_equal(kinds <= SINGLES, follows) and (kinds <= NOTHING).all()
    assert {NAKED, HIDDEN, SINGLES, NOTHING} <= set(kinds.tolist())
    one_by_one = trace_of([(i, step, c, v) for step, (i, _, c, v) in enumerate(rows)])
    assert (support(puzzles, one_by_one) <= NOTHING).all()


def test_candidates_and_broken():
    assert np.flatnonzero(candidates(CHAIN[None])[0, cell(0, 4)]).tolist() == [0, 7]
    assert not candidates(CHAIN[None])[0, cell(0, 1)].any()  # filled
    two = grid({(1, 1): 1}, CHAIN)  # another 1 in column 1 and box 0
    assert np.flatnonzero(is_broken(two[None])[0]).tolist() == [9 + 1, 18]
    assert not is_broken(np.stack([CHAIN, FULL])).any()


TWO = grid({(0, 0): MASK, (0, 1): MASK}, FULL)  # 0 and 1 are right


def test_replay():
    trace = trace_of([(1, 0, 0, 0), (0, 0, 0, 5), (0, 1, 1, 1), (0, 2, 0, 0)], [(0, 1, 0)])
    steps = list(replay(np.stack([TWO, TWO]), trace))
    assert [s.sequence.tolist() for s in steps] == [[0, 1], [0], [0]]
    assert [s.owner.tolist() for s in steps] == [[1, 0], [0], [0]]
    assert [s.before[0, :2].tolist() for s in steps] == [[MASK, MASK], [5, MASK], [MASK, 1]]
    assert [s.after[0, :2].tolist() for s in steps] == [[5, MASK], [MASK, 1], [0, 1]]
    with pytest.raises(ValueError, match="step 1 commits a cell that is not blank"):
        list(replay(TWO[None], trace_of([(0, 0, 0, 5), (0, 1, 0, 5)])))


@pytest.mark.parametrize(
    ("commits", "remasks", "expected"),
    [
        # steps, dead_step, broken_step, unit, kind, number, units, digit (1 … 9), clash
        # 1 twice in row 0 (both new), in column 0 (with a given) and in box 0
        ([(0, 0, 0, 1), (0, 0, 1, 1)], [], (1, 0, 0, 0, "row", 1, 3, 2, "same step")),
        # the same in two steps, the right one first
        ([(0, 0, 1, 1), (0, 1, 0, 1)], [], (2, 1, 1, 0, "row", 1, 3, 2, "earlier")),
        # 5 stands in row 0, column 0 and box 0 already
        ([(0, 0, 0, 5), (0, 1, 1, 1)], [], (2, 0, 0, 0, "row", 1, 3, 6, "given")),
        # the same repaired in step 1, then wrong for good in step 2
        ([(0, 0, 0, 5), (0, 1, 1, 1), (0, 2, 0, 1)], [(0, 1, 0)], (3, 2, 2, 0, "row", 1, 3, 2, "earlier")),
    ],
)
def test_failures(commits, remasks, expected):
    found = failures(TWO[None], trace_of(commits, remasks))
    assert tuple(found.iloc[0])[1:] == expected and len(found) == 1


def test_only_failed_grids_are_listed():
    good = [(0, 0, 0, 0), (0, 0, 1, 1)]
    repaired = [(2, 0, 0, 5), (2, 1, 1, 1), (2, 2, 0, 0)]
    bad = [(1, 0, 0, 1), (1, 1, 1, 0)]
    puzzles = np.stack([TWO] * 4)  # the last one is not decoded
    found = failures(puzzles, trace_of(good + repaired + bad, [(2, 1, 0)]))
    assert found["sequence"].tolist() == [1] and found["steps"].tolist() == [2]
    none = failures(puzzles, trace_of(good))
    assert len(none) == 0 and list(none) == list(found)


def test_a_grid_dies_before_it_breaks():
    puzzle = unique_puzzles(random_grids(1, 3), 0, 50, 58)[0]
    solution = solve(puzzle[None])[0]
    # A wrong digit that no unit holds yet: the grid has no solution from then on, but no unit shows it.
    c, wrong = next((c, d) for c, d in np.argwhere(candidates(puzzle[None])[0]) if d != solution[c])
    rest = [(0, 1, k, int(solution[k])) for k in np.flatnonzero(puzzle == MASK) if k != c]
    row = failures(puzzle[None], trace_of([(0, 0, int(c), int(wrong)), *rest])).iloc[0]
    # Its row, column and box have their right one too; the first is the row.
    assert (row.dead_step, row.broken_step, row.kind, row.digit) == (0, 1, "row", wrong + 1)
    assert row.number == c // 9 + 1 and row.clash == "earlier" and row.units in (2, 3)


def test_a_puzzle_that_contradicts_itself():
    puzzle = grid({(0, 1): 5}, TWO)
    row = failures(puzzle[None], trace_of([(0, 0, 0, 0)])).iloc[0]
    assert (row.dead_step, row.broken_step, row.kind, row.digit, row.clash) == (-1, -1, "row", 6, "given")
