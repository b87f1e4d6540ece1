import numpy as np
import pytest

from maskmi.sudoku import solver
from maskmi.sudoku.solver import MASK

# Published puzzles with their solutions: Project Euler 96, grid 01, and Inkala's "hardest" of 2012.
EASY = "003020600900305001001806400008102900700000008006708200002609500800203009005010300"
EASY_SOLUTION = "483921657967345821251876493548132976729564138136798245372689514814253769695417382"
HARD = "800000000003600000070090200050007000000045700000100030001000068008500010090000400"
HARD_SOLUTION = "812753649943682175675491283154237896369845721287169534521974368438526917796318452"


def cells(*texts):
    return np.array([[(int(c) - 1) % 10 for c in text] for text in texts], np.uint8)


def brute_force(puzzle, limit):
    """Count solutions with no cleverness: the first blank, every digit, sets for the constraints."""
    blanks = [k for k in range(81) if puzzle[k] == MASK]
    if not blanks:
        return 1
    r, c = divmod(blanks[0], 9)
    grid = puzzle.reshape(9, 9)
    b, s = r // 3 * 3, c // 3 * 3
    seen = set(grid[r]) | set(grid[:, c]) | set(grid[b : b + 3, s : s + 3].ravel())
    found = 0
    for digit in set(range(9)) - seen:
        puzzle[blanks[0]] = digit
        found += brute_force(puzzle, limit - found)
        puzzle[blanks[0]] = MASK
        if found >= limit:
            break
    return found


def test_published_puzzles_are_solved_and_have_one_solution():
    puzzles = cells(EASY, HARD)
    np.testing.assert_array_equal(solver.solve(puzzles), cells(EASY_SOLUTION, HARD_SOLUTION))
    assert solver.count_solutions(puzzles).tolist() == [1, 1]
    easy, hard = solver.guesses(puzzles)
    assert easy == 0 and hard > 3  # the first needs singles only, the second is known for its many guesses


def test_counts_agree_with_brute_force_where_there_are_several_solutions():
    puzzles = solver.random_removal(solver.random_grids(24, seed=5), 5, 40, 47)
    expected = [brute_force(p.copy(), 30) for p in puzzles]
    assert len(set(expected)) > 5  # the sample distinguishes counts
    assert solver.count_solutions(puzzles, limit=30).tolist() == expected


def test_a_deadly_rectangle_has_two_solutions():
    """Four cells in two rows, two columns and two boxes that hold a, b / b, a can be swapped: exactly two solutions."""
    grid = cells(EASY_SOLUTION)[0].reshape(9, 9)
    places = [(r, q, c, d) for r in range(9) for q in range(r + 1, 9) for c in range(9) for d in range(c + 1, 9)]
    r, q, c, d = next(
        (r, q, c, d)
        for r, q, c, d in places
        if grid[r, c] == grid[q, d] and grid[r, d] == grid[q, c] and (r // 3 == q // 3) != (c // 3 == d // 3)
    )
    grid[[r, r, q, q], [c, d, c, d]] = MASK
    assert solver.count_solutions(grid.reshape(1, 81), limit=10).tolist() == [2]


def test_contradictions_and_extremes():
    """No solution is counted as none and refused by solve; an empty grid reaches any limit; a full grid is its own."""
    twice = cells("55" + "0" * 79)
    stuck = cells("123456780" + "0" * 8 + "9" + "0" * 63)  # r1c9 can only be 9, which column 9 has
    empty = np.full((1, 81), MASK, np.uint8)
    full = cells(EASY_SOLUTION)
    counts = solver.count_solutions(np.concatenate([twice, stuck, empty, full]), limit=7)
    assert counts.tolist() == [0, 0, 7, 1]
    np.testing.assert_array_equal(solver.solve(full), full)
    with pytest.raises(ValueError, match="puzzle 1 .* no solution"):
        solver.solve(np.concatenate([full, stuck]))


def test_random_grids_are_valid_and_depend_on_seed_and_index_only():
    grids = solver.random_grids(300, seed=7)
    for unit in solver.UNITS:
        assert (np.sort(grids[:, unit], axis=1) == np.arange(9)).all()
    assert len(np.unique(grids, axis=0)) == 300
    np.testing.assert_array_equal(solver.random_grids(5, seed=7), grids[:5])
    assert not (solver.random_grids(300, seed=8) == grids).all(axis=1).any()


def test_random_grids_favour_no_digit_in_any_cell():
    """Each of the 81 x 9 counts is binomial(4000, 1/9), sd 19.9; six of those is exceeded once in 700,000 tries."""
    grids = solver.random_grids(4000, seed=3)
    counts = np.stack([(grids == digit).sum(0) for digit in range(9)])
    assert abs(counts - 4000 / 9).max() < 6 * 19.9


def test_unique_puzzles_keep_their_givens_and_one_solution():
    grids = solver.random_grids(200, seed=1)
    puzzles = solver.unique_puzzles(grids, 1, 50, 55)
    blank = puzzles == MASK
    np.testing.assert_array_equal(puzzles[~blank], grids[~blank])
    assert (solver.count_solutions(puzzles) == 1).all()
    blanks = blank.sum(1)
    assert set(range(50, 56)) >= set(blanks.tolist()) and len(set(blanks.tolist())) == 6
    np.testing.assert_array_equal(solver.unique_puzzles(grids[:9], 1, 50, 55), puzzles[:9])


def test_puzzles_that_fall_short_of_their_target_are_minimal():
    """Where 64 blanks are asked for, one pass ends in a puzzle in which no given can be spared."""
    puzzle = solver.unique_puzzles(solver.random_grids(1, seed=2), 2, 64, 64)[0]
    givens = np.flatnonzero(puzzle != MASK)
    fewer = np.repeat(puzzle[None], len(givens), axis=0)
    fewer[np.arange(len(givens)), givens] = MASK
    assert (solver.count_solutions(fewer) == 2).all()


def test_random_removal_blanks_as_many_cells_as_asked():
    grids = solver.random_grids(300, seed=4)
    puzzles = solver.random_removal(grids, 4, 50, 58)
    blank = puzzles == MASK
    assert set(blank.sum(1).tolist()) == set(range(50, 59))
    np.testing.assert_array_equal(puzzles[~blank], grids[~blank])
    assert (blank.sum(0) > 100).all()  # every cell is blanked in about two thirds of the grids


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda g: solver.solve(g[:, :80]), "shape"),
        (lambda g: solver.count_solutions(g[0]), "shape"),
        (lambda g: solver.count_solutions(g + 5), "blank"),
        (lambda g: solver.count_solutions(g, limit=0), "limit"),
        (lambda g: solver.unique_puzzles(g, 0, 58, 50), "min <= max"),
        (lambda g: solver.unique_puzzles(np.full_like(g, MASK), 0, 50, 58), "full grids"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(solver.random_grids(3, seed=0))
