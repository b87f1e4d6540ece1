from itertools import permutations, product

import numpy as np
import pytest

from maskmi.sudoku import symmetry
from maskmi.sudoku.grid import violations
from maskmi.sudoku.solver import MASK, count_solutions, random_grids, solve, unique_puzzles
from maskmi.sudoku.text import parse_puzzle

SYMMETRIC = "123456789456789123789123456231564897564897231897231564312645978645978312978312645"
LINES = [
    [3 * b + k for b, order in zip(bands, orders, strict=True) for k in order]
    for bands in permutations(range(3))
    for orders in product(permutations(range(3)), repeat=3)
]


def equivalent_by_search(grid, other):
    """Decide equivalence with no canonical form: every transposition, column order and choice of the first row.

    These fix the labelling (the first rows must agree), and then the rows must be the same up to an order that keeps
    bands together.
    """
    other = other.reshape(9, 9)
    bands = {frozenset(map(bytes, other[3 * b : 3 * b + 3])) for b in range(3)}
    for turned in (grid.reshape(9, 9), grid.reshape(9, 9).T):
        for order in LINES:
            moved = turned[:, order]
            for first in range(9):
                label = np.empty(9, np.uint8)
                label[moved[first]] = other[0]
                named = label[moved]
                if bytes(named[first // 3 * 3 + (first + 1) % 3]) not in set(map(bytes, other)):
                    continue
                if {frozenset(map(bytes, named[3 * b : 3 * b + 3])) for b in range(3)} == bands:
                    return True
    return False


def test_symmetries_keep_grids_valid_and_blanks_blank():
    grids = random_grids(400, seed=0)
    moved = symmetry.random_symmetry(grids, seed=1)
    assert (violations(moved) == 0).all()
    assert not (moved == grids).all(axis=1).any()
    puzzles = unique_puzzles(grids, 0, 50, 58)
    solutions, moved_puzzles = symmetry.random_symmetry_pairs(grids, puzzles, seed=1)
    np.testing.assert_array_equal(solutions, moved)
    assert ((moved_puzzles == MASK).sum(1) == (puzzles == MASK).sum(1)).all()
    assert (count_solutions(moved_puzzles) == 1).all()
    np.testing.assert_array_equal(solve(moved_puzzles), solutions)


def test_a_symmetry_depends_on_seed_and_index_only():
    grids = random_grids(50, seed=0)
    moved = symmetry.random_symmetry(grids, seed=2)
    np.testing.assert_array_equal(symmetry.random_symmetry(grids[:7], seed=2), moved[:7])
    assert not (symmetry.random_symmetry(grids, seed=3) == moved).all(axis=1).any()


def test_every_kind_of_symmetry_is_drawn_equally_often():
    """Where the marked cell goes, which digit it gets, and whether its row becomes a column: uniform, within 5 sd."""
    n = 20000
    corner = np.full((n, 81), MASK, np.uint8)
    corner[:, 0] = 0
    row = corner.copy()
    row[:, 1] = 1  # the same symmetries move r1c1 and its neighbour in the row
    moved = symmetry.random_symmetry(corner, seed=0)
    place = (moved != MASK).argmax(1)
    cells = (symmetry.random_symmetry(row, seed=0) != MASK).nonzero()[1].reshape(n, 2)
    assert (cells == place[:, None]).any(1).all()

    def uniform(kinds, values):
        return abs(np.bincount(values, minlength=kinds) - n / kinds).max() < 5 * np.sqrt(n / kinds)

    assert uniform(81, place)
    assert uniform(9, moved[np.arange(n), place])
    assert uniform(2, cells[:, 0] // 9 == cells[:, 1] // 9)


def test_canonical_form_is_the_same_for_all_symmetric_grids():
    grids = random_grids(60, seed=3)
    forms = symmetry.canonical_form(grids)
    for seed in range(5):
        np.testing.assert_array_equal(symmetry.canonical_form(symmetry.random_symmetry(grids, seed)), forms)
    for turned in (np.rot90(grids.reshape(-1, 9, 9), axes=(1, 2)), grids.reshape(-1, 9, 9)[:, ::-1]):
        np.testing.assert_array_equal(symmetry.canonical_form(turned.reshape(-1, 81)), forms)
    np.testing.assert_array_equal(symmetry.canonical_form(forms), forms)
    assert len(np.unique(forms, axis=0)) == 60


def test_canonical_form_is_least_and_equivalent_to_the_grid():
    """Being equivalent to its grid, it differs for inequivalent grids. No random symmetry finds a lesser grid."""
    grids = random_grids(3, seed=4)
    forms = symmetry.canonical_form(grids)
    for grid, form in zip(grids, forms, strict=True):
        assert equivalent_by_search(grid, form)
        others = symmetry.random_symmetry(np.repeat(grid[None], 3000, axis=0), seed=5)
        labels = np.argsort(others[:, :9], axis=1).astype(np.uint8)  # relabelled so that the first row is 123456789
        others = np.take_along_axis(labels, others.astype(np.int64), axis=1)
        assert min(map(bytes, others)) >= bytes(form)
    assert not equivalent_by_search(grids[0], forms[1])


def test_the_most_symmetric_grid_is_its_own_form():
    """Published as the least form of the class with 648 automorphisms: ties between many minima must not matter."""
    grid = parse_puzzle(SYMMETRIC)[None]
    moved = symmetry.random_symmetry(np.repeat(grid, 20, axis=0), seed=0)
    np.testing.assert_array_equal(symmetry.canonical_form(moved), np.repeat(grid, 20, axis=0))


def test_a_grid_that_differs_by_one_swap_is_told_apart():
    """Four cells a, b / b, a swapped make another valid grid, which the search finds inequivalent."""
    grid = random_grids(1, seed=8)[0].reshape(9, 9)
    r, q, c, d = next(
        (r, q, c, d)
        for r, q, c, d in product(range(9), repeat=4)
        if r < q
        and c < d
        and grid[r, c] == grid[q, d]
        and grid[r, d] == grid[q, c]
        and (r // 3 == q // 3) != (c // 3 == d // 3)
    )
    swapped = grid.copy()
    swapped[[r, r, q, q], [c, d, c, d]] = grid[[r, r, q, q], [d, c, d, c]]
    pair = np.stack([grid, swapped]).reshape(2, 81)
    assert (violations(pair) == 0).all()
    forms = symmetry.canonical_form(pair)
    assert (forms[0] == forms[1]).all() == equivalent_by_search(*pair) == False  # noqa: E712


def test_equivalent_finds_a_disguised_grid_among_others():
    grids = random_grids(200, seed=6)
    disguised = symmetry.random_symmetry(grids[120:121], seed=7)
    new = random_grids(3, seed=9)
    assert symmetry.equivalent(np.concatenate([new, disguised]), grids).tolist() == [False, False, False, True]


def test_invalid_or_open_grids_have_no_form():
    grid = random_grids(1, seed=0)
    invalid, unfinished = grid.copy(), grid.copy()
    invalid[0, :2] = grid[0, 1::-1]
    unfinished[0, 5] = MASK
    with pytest.raises(ValueError, match="valid full grids"):
        symmetry.canonical_form(invalid)
    with pytest.raises(ValueError, match="blanks"):
        symmetry.canonical_form(unfinished)
