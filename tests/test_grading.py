import numpy as np
import pytest

from maskmi.sudoku import grading
from maskmi.sudoku.solver import ALL, MASK, UNITS, guesses, random_grids, solve, unique_puzzles
from maskmi.sudoku.symmetry import random_symmetry
from maskmi.sudoku.text import parse_puzzle

# Project Euler 96, grid 01, and Inkala's puzzle of 2012, which needs far more than the techniques graded here.
EASY = "003020600900305001001806400008102900700000008006708200002609500800203009005010300"
HARDEST = "800000000003600000070090200050007000000045700000100030001000068008500010090000400"


def digits(*values):
    """The mask of these digits, as people count them (1 to 9)."""
    return sum(1 << (v - 1) for v in values)


def open_grid(**cells):
    """Candidates [81] of an empty grid, but for the cells named ``r1c2``."""
    candidates = np.full(81, ALL, np.int64)
    for name, mask in cells.items():
        candidates[at(name)] = mask
    return candidates


def at(*names):
    cells = [9 * (int(name[1]) - 1) + int(name[3]) - 1 for name in names]
    return cells if len(cells) > 1 else cells[0]


def lost(before, after, *values):
    """The cells that lost one of the digits, and a check that nothing else was lost."""
    assert not (before & ~after & ~digits(*values)).any()
    return set(np.flatnonzero(before & ~after).tolist())


masks = np.empty(9, np.int64)


def test_naked_and_hidden_singles():
    """r1c1 can only be 5: its 20 peers lose it. With 7 barred from the rest of box 9, it is placed in r9c9."""
    rest = [cell for cell in UNITS[26] if cell != 80]
    candidates = open_grid(r1c1=digits(5))
    candidates[rest] &= ~digits(7)
    grading._singles(candidates)
    assert candidates[0] == digits(5) | grading.FULL and candidates[80] == digits(7) | grading.FULL
    assert (candidates & digits(5) == 0).sum() == 21  # the 20 peers of r1c1, and r9c9
    assert ((candidates & grading.FULL) != 0).sum() == 2


def test_locked_candidates_pointing_and_claiming():
    """A 1 that box 1 has in row 1 only leaves the rest of row 1; a 2 that row 9 has in box 7 only leaves that box."""
    candidates = open_grid()
    candidates[at("r2c1", "r2c2", "r2c3", "r3c1", "r3c2", "r3c3")] &= ~digits(1)
    candidates[at("r9c4", "r9c5", "r9c6", "r9c7", "r9c8", "r9c9")] &= ~digits(2)
    before = candidates.copy()
    assert grading._locked(candidates)
    pointed = at("r1c4", "r1c5", "r1c6", "r1c7", "r1c8", "r1c9")
    claimed = at("r7c1", "r7c2", "r7c3", "r8c1", "r8c2", "r8c3")
    assert lost(before, candidates, 1, 2) == {*pointed, *claimed}
    assert not grading._locked(candidates)


def test_naked_pair_and_triple():
    """r5c1 and r5c9 with 3, 4 clear row 5 of both; 1 2, 2 3, 1 3 down column 1 clear it of all three."""
    before = open_grid(r5c1=digits(3, 4), r5c9=digits(3, 4))
    pair = before.copy()
    assert not grading._subsets(open_grid(r5c1=digits(3, 4), r5c9=digits(3, 5)), 2, masks)
    assert grading._subsets(pair, 2, masks)
    assert lost(before, pair, 3, 4) == set(at(*(f"r5c{c}" for c in range(2, 9))))
    before = open_grid(r1c1=digits(1, 2), r4c1=digits(2, 3), r8c1=digits(1, 3))
    triple = before.copy()
    assert not grading._subsets(triple.copy(), 2, masks)
    assert grading._subsets(triple, 3, masks)
    assert lost(before, triple, 1, 2, 3) == set(at(*(f"r{r}c1" for r in (2, 3, 5, 6, 7, 9))))


@pytest.mark.parametrize(("values", "places"), [((6, 7), ("r1c1", "r3c3")), ((5, 6, 7), ("r1c1", "r2c2", "r3c3"))])
def test_hidden_pair_and_triple(values, places):
    """Digits that box 1 has in as many cells only take these: the cells lose all other digits."""
    before = open_grid()
    before[[cell for cell in UNITS[18] if cell not in at(*places)]] &= ~digits(*values)
    after = before.copy()
    assert grading._subsets(after, len(values), masks)
    assert (after[at(*places)] == digits(*values)).all()
    assert lost(before, after, *(set(range(1, 10)) - set(values))) == set(at(*places))


def test_x_wing_and_swordfish():
    """A 9 that rows 2 and 6 have only in columns 3 and 8 leaves both columns elsewhere; and with three rows."""
    before = open_grid()
    for row in (2, 6):
        before[[cell for cell in UNITS[row - 1] if cell % 9 + 1 not in (3, 8)]] &= ~digits(9)
    after = before.copy()
    assert grading._fish(after, 2, masks)
    assert lost(before, after, 9) == set(at(*(f"r{r}c{c}" for r in (1, 3, 4, 5, 7, 8, 9) for c in (3, 8))))
    before = open_grid()
    for row, columns in ((1, (1, 4)), (5, (4, 7)), (9, (1, 7))):
        before[[cell for cell in UNITS[row - 1] if cell % 9 + 1 not in columns]] &= ~digits(2)
    turned = before.reshape(9, 9).T.copy().ravel()
    after = before.copy()
    assert not grading._fish(after.copy(), 2, masks)
    assert grading._fish(after, 3, masks)
    assert lost(before, after, 2) == set(at(*(f"r{r}c{c}" for r in (2, 3, 4, 6, 7, 8) for c in (1, 4, 7))))
    assert grading._fish(turned, 3, masks)  # by column alike
    np.testing.assert_array_equal(turned.reshape(9, 9).T.ravel(), after)


def test_xy_wing():
    """The pivot r1c1 (1 2) sees r1c7 (1 3) and r6c1 (2 3): one of them is 3, and r6c7 sees both."""
    before = open_grid(r1c1=digits(1, 2), r1c7=digits(1, 3), r6c1=digits(2, 3))
    after = before.copy()
    assert grading._xy_wings(after)
    assert lost(before, after, 3) == {at("r6c7")}


def test_no_technique_ever_removes_the_digit_of_the_solution():
    grids = random_grids(400, seed=11)
    for grid, puzzle in zip(grids, unique_puzzles(grids, 11, 50, 58), strict=True):
        candidates = np.where(puzzle == MASK, ALL, 1 << puzzle.astype(np.int64))
        progress = True
        while progress:
            grading._singles(candidates)
            progress = (
                grading._locked(candidates)
                | grading._subsets(candidates, 2, masks)
                | grading._subsets(candidates, 3, masks)
                | grading._fish(candidates, 2, masks)
                | grading._fish(candidates, 3, masks)
                | grading._xy_wings(candidates)
            )
        assert (candidates >> grid & 1 == 1).all()


def test_grades_of_published_puzzles():
    several = "." * 80 + "1"
    puzzles = np.stack([parse_puzzle(text) for text in (EASY, HARDEST, several)])
    assert grading.grade_names(puzzles) == ["easy", "guessing", "ambiguous"]


def test_grades_ignore_symmetries_and_easy_means_no_guesses():
    puzzles = unique_puzzles(random_grids(600, seed=2), 2, 50, 58)
    grades = grading.grade(puzzles)
    assert set(grades.tolist()) == {0, 1, 2, 3}  # the sample has all four
    np.testing.assert_array_equal(grading.grade(random_symmetry(puzzles, 3)), grades)
    np.testing.assert_array_equal(grades == grading.EASY, guesses(puzzles) == 0)


def test_a_puzzle_without_solution_is_refused():
    stuck = parse_puzzle("12345678........." + "9" + "." * 63)  # r1c9 can only be 9, which column 9 has
    with pytest.raises(ValueError, match="puzzle 1 .*no solution"):
        grading.grade(np.stack([parse_puzzle(EASY), stuck]))


def test_after_singles_fills_what_logic_gives_and_nothing_else():
    easy, hardest = parse_puzzle(EASY), parse_puzzle(HARDEST)
    filled = grading.after_singles(np.stack([easy, hardest]))
    assert (filled[0] == solve(easy[None])[0]).all()
    assert (filled[1] == hardest).all()
    puzzles = unique_puzzles(random_grids(50, 3), 4, 50, 58)
    filled, solved = grading.after_singles(puzzles), solve(puzzles)
    assert ((filled == MASK) | (filled == solved)).all()
    assert (((filled == MASK).sum(1) == 0) == (grading.grade(puzzles) == grading.EASY)).all()
    assert (grading.after_singles(filled) == filled).all()


def test_a_cell_that_two_digits_have_for_themselves_ends_the_search():
    """1 and 2 are barred from all of row 1 but r1c1, which no solution can satisfy: the grid is left as it is."""
    rows = "......... ...1..2.. ...2..1.. ......... ..2...... .1....... .2....... ..1...... ........."
    puzzle = parse_puzzle(rows.replace(" ", ""))
    filled = grading.after_singles(puzzle[None])[0]
    assert (filled[puzzle != MASK] == puzzle[puzzle != MASK]).all() and filled[0] == MASK
