"""How hard a puzzle is, as people who solve Sudoku by logic grade it: by the hardest technique it cannot do without.

===========  ==========================================================================================================
easy         naked and hidden singles
medium       also locked candidates (pointing and claiming), naked and hidden pairs
hard         also naked and hidden triples, X-wings, swordfish, XY-wings
guessing     none of these is enough: a solver has to try a digit (people use longer chains of logic here)
ambiguous    more than one solution, which no logic can tell apart
===========  ==========================================================================================================

Every technique only removes candidates, and what it removes stays removable as others are applied. So the candidates
left by all techniques up to a grade, and with them the grade, do not depend on the order of steps nor on symmetries.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from maskmi.sudoku.solver import ALL, BOX, MASK, POPCOUNT, UNITS, Grids, checked, count_solutions

#: Names of the grades 0 to 4.
GRADES = ("easy", "medium", "hard", "guessing", "ambiguous")
EASY, MEDIUM, HARD, GUESSING, AMBIGUOUS = range(5)
FULL = 1 << 9  # set on the candidates of a cell whose digit is placed and removed from its peers


def grade(puzzles: Grids) -> NDArray[np.int64]:
    """The grade [n] of each puzzle [n, 81], an index into :data:`GRADES`.

    Raises:
        ValueError: for a puzzle without a solution.
    """
    puzzles = checked(puzzles)
    solutions = count_solutions(puzzles)
    if (solutions == 0).any():
        raise ValueError(f"puzzle {int(np.flatnonzero(solutions == 0)[0])} (counted from 0) has no solution to grade")
    return np.where(solutions == 1, _grade(puzzles), AMBIGUOUS)


def grade_names(puzzles: Grids) -> list[str]:
    """The grade of each puzzle [n, 81] by name."""
    return [GRADES[k] for k in grade(puzzles)]


def after_singles(puzzles: Grids) -> Grids:
    """The puzzles [n, 81] with every cell filled that naked and hidden singles give, until there are none left."""
    return _after_singles(checked(puzzles))


def _boxes_and_lines():
    """For each box crossing a row or column: the three shared cells, the rest of the box, the rest of the line."""
    crossings = [(box, line) for box in UNITS[18:] for line in UNITS[:18] if len(np.intersect1d(box, line)) == 3]
    shared = np.array([np.intersect1d(box, line) for box, line in crossings])
    box_rest = np.array([np.setdiff1d(box, line) for box, line in crossings])
    line_rest = np.array([np.setdiff1d(line, box) for box, line in crossings])
    return shared, box_rest, line_rest


SHARED, BOX_REST, LINE_REST = _boxes_and_lines()
_cells = np.arange(81)
#: The 20 cells that share a unit with each cell [81, 20].
PEERS = np.array(
    [
        np.flatnonzero(((_cells // 9 == k // 9) | (_cells % 9 == k % 9) | (BOX[k] == BOX)) & (_cells != k))
        for k in range(81)
    ]
)


@njit(cache=True, nogil=True)
def _grade(puzzles):
    grades = np.empty(len(puzzles), np.int64)
    candidates, masks = np.empty(81, np.int64), np.empty(9, np.int64)
    for i in range(len(puzzles)):
        for cell in range(81):
            candidates[cell] = ALL if puzzles[i, cell] == MASK else 1 << puzzles[i, cell]
        needed = 0
        while True:
            _singles(candidates)
            if (candidates & FULL != 0).all():
                break
            # The easiest step that gets further, then singles again.
            if _locked(candidates) or _subsets(candidates, 2, masks):
                needed = max(needed, 1)
            elif (
                _subsets(candidates, 3, masks)
                or _fish(candidates, 2, masks)
                or _fish(candidates, 3, masks)
                or _xy_wings(candidates)
            ):
                needed = 2
            else:
                needed = 3
                break
        grades[i] = needed
    return grades


@njit(cache=True, nogil=True)
def _after_singles(puzzles):
    filled = puzzles.copy()
    candidates = np.empty(81, np.int64)
    for i in range(len(puzzles)):
        for cell in range(81):
            candidates[cell] = ALL if puzzles[i, cell] == MASK else 1 << puzzles[i, cell]
        _singles(candidates)
        for cell in range(81):
            if candidates[cell] & FULL:
                for digit in range(9):
                    if candidates[cell] >> digit & 1:
                        filled[i, cell] = digit
    return filled


@njit(cache=True, nogil=True)
def _singles(candidates):
    """Naked and hidden singles, until there are none."""
    changed = True
    while changed:
        changed = False
        for cell in range(81):
            bit = candidates[cell]
            if bit != 0 and bit & (bit - 1) == 0 and bit != FULL:
                candidates[cell] |= FULL
                changed = True
                for peer in PEERS[cell]:
                    candidates[peer] &= ~bit
        if changed:
            continue
        for unit in range(27):
            once, twice = 0, 0
            for cell in UNITS[unit]:
                twice |= once & candidates[cell]
                once |= candidates[cell]
            single = once & ~twice & ALL
            for cell in UNITS[unit]:
                only = candidates[cell] & single
                if only and not candidates[cell] & FULL:
                    candidates[cell] = only if only & (only - 1) == 0 else 0  # two digits have this cell alone
                    changed = True


@njit(cache=True, nogil=True)
def _locked(candidates):
    """Locked candidates, of a box and a row or column that cross.

    A digit that one of the two has only where they cross cannot stand in the rest of the other.
    """
    changed = False
    for k in range(len(SHARED)):
        shared, box, line = 0, 0, 0
        for c in range(3):
            shared |= candidates[SHARED[k, c]]
        for c in range(6):
            box |= candidates[BOX_REST[k, c]]
            line |= candidates[LINE_REST[k, c]]
        pointing, claiming = shared & ~box & line & ALL, shared & ~line & box & ALL
        if pointing or claiming:
            changed = True
            for c in range(6):
                candidates[LINE_REST[k, c]] &= ~pointing
                candidates[BOX_REST[k, c]] &= ~claiming
    return changed


@njit(cache=True, nogil=True)
def _subsets(candidates, size, masks):
    """Naked and hidden pairs (size 2) or triples (3) in every unit."""
    changed = False
    for unit in range(27):
        # Naked: cells against the digits they can take. Hidden: digits against the cells they can stand in.
        for c in range(9):
            masks[c] = candidates[UNITS[unit, c]] & ALL
        if _exclude(masks, size):
            changed = True
            for c in range(9):
                candidates[UNITS[unit, c]] &= masks[c] | FULL
        for digit in range(9):
            masks[digit] = 0
            for c in range(9):
                masks[digit] |= (candidates[UNITS[unit, c]] >> digit & 1) << c
        if _exclude(masks, size):
            changed = True
            for digit in range(9):
                for c in range(9):
                    if not masks[digit] >> c & 1:
                        candidates[UNITS[unit, c]] &= ~(1 << digit)
    return changed


@njit(cache=True, nogil=True)
def _fish(candidates, size, masks):
    """X-wings (size 2) and swordfish (3), by row and by column.

    Where the places of a digit in two rows lie in two columns, the other rows lose it there; so with three.
    """
    changed = False
    for digit in range(9):
        for by_column in range(2):
            for a in range(9):
                masks[a] = 0
                for b in range(9):
                    cell = 9 * b + a if by_column else 9 * a + b
                    masks[a] |= (candidates[cell] >> digit & 1) << b
            if _exclude(masks, size):
                changed = True
                for a in range(9):
                    for b in range(9):
                        if not masks[a] >> b & 1:
                            candidates[9 * b + a if by_column else 9 * a + b] &= ~(1 << digit)
    return changed


@njit(cache=True, nogil=True)
def _xy_wings(candidates):
    """A cell xy sees a cell xz and a cell yz: one of these two is z, so what sees both loses z."""
    changed = False
    for pivot in range(81):
        if POPCOUNT[candidates[pivot] & ALL] != 2:
            continue
        for one in PEERS[pivot]:
            z = candidates[one] & ~candidates[pivot] & ALL
            if POPCOUNT[candidates[one] & ALL] != 2 or POPCOUNT[z] != 1:
                continue
            for other in PEERS[pivot]:
                if candidates[other] != candidates[pivot] ^ candidates[one]:
                    continue
                for cell in PEERS[one]:
                    if candidates[cell] & z and (PEERS[other] == cell).any():
                        candidates[cell] &= ~z
                        changed = True
    return changed


@njit(cache=True, nogil=True)
def _exclude(masks, size):
    """The rule behind naked and hidden subsets and fish alike, on nine sets [9] of nine things each.

    Where ``size`` sets (2 or 3) have only ``size`` things between them, the other sets lose these things.
    """
    changed = False
    for a in range(9):
        if POPCOUNT[masks[a]] < 2 or POPCOUNT[masks[a]] > size:
            continue
        for b in range(a + 1, 9):
            two = masks[a] | masks[b]
            if POPCOUNT[masks[b]] < 2 or POPCOUNT[two] > size:
                continue
            for c in range(b + 1, 9) if size == 3 else range(b, b + 1):
                union = two | masks[c]
                if POPCOUNT[masks[c]] < 2 or POPCOUNT[union] != size:
                    continue
                for d in range(9):
                    if d not in (a, b, c) and masks[d] & union:
                        masks[d] &= ~union
                        changed = True
    return changed
