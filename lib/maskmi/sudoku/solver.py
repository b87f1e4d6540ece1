"""A fast Sudoku solver and generators of full grids and of puzzles with one solution.

Grids are uint8 arrays of 81 cells, row by row: digits 1 to 9 are stored as 0 to 8, a blank as ``MASK`` (9).

The solver keeps one bit mask of used digits per row, column and box. It fills naked singles (a cell with one candidate)
and hidden singles (a digit with one place in a unit) until none is left, then branches on a cell with the fewest
candidates. Everything random is drawn from (seed, index) alone: grid ``i`` is the same whatever is generated beside it.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

Grids = NDArray[np.uint8]

MASK = 9
ALL = 0x1FF  # the bit mask of all nine digits

ROW = np.repeat(np.arange(9), 9)
COLUMN = np.tile(np.arange(9), 9)
BOX = ROW // 3 * 3 + COLUMN // 3
#: The cells of the 27 units [27, 9]: nine rows, nine columns, nine boxes.
UNITS = np.array([np.flatnonzero(of == k) for of in (ROW, COLUMN, BOX) for k in range(9)])
POPCOUNT = np.array([bin(m).count("1") for m in range(512)])
DIGIT = np.array([max(m.bit_length() - 1, 0) for m in range(512)])  # the digit of a mask with one bit


def random_grids(n: int, seed: int) -> Grids:
    """``n`` random full grids [n, 81] by randomised backtracking; grid ``i`` depends on ``(seed, i)`` only.

    Ties between cells and the order of digits are random, so all 3,359,232 symmetries of a grid times the 9! labellings
    are equally likely. Grids that are not equivalent are not: backtracking is close to uniform, but not uniform.
    """
    return _random_grids(n, seed)


def count_solutions(puzzles: Grids, limit: int = 2) -> NDArray[np.int64]:
    """The number of solutions [n] of each puzzle [n, 81], counted up to ``limit``. Contradicting givens have none."""
    if limit < 1:
        raise ValueError(f"limit must be at least 1, not {limit}")
    return _count(checked(puzzles), limit)[0]


def guesses(puzzles: Grids) -> NDArray[np.int64]:
    """How often the solver branches [n] until it has shown that a puzzle has one solution, or found a second.

    Zero means that naked and hidden singles solve the puzzle. The whole search is counted, not the way to the first
    solution: that would depend on the luck of which digit is tried first.
    """
    return _count(checked(puzzles), 2)[1]


def solve(puzzles: Grids) -> Grids:
    """A solution [n, 81] of each puzzle [n, 81]: the first one found where there are several.

    Raises:
        ValueError: where a puzzle has no solution.
    """
    solved, found = _solve(checked(puzzles))
    if not found.all():
        raise ValueError(f"puzzle {int(np.flatnonzero(~found)[0])} (counted from 0) has no solution")
    return solved


def unique_puzzles(grids: Grids, seed: int, min_blanks: int, max_blanks: int) -> Grids:
    """Puzzles [n, 81] with exactly one solution, the given full grids [n, 81].

    Cells are blanked in random order, each if the solution stays unique, until a target drawn uniformly from
    ``min_blanks … max_blanks`` is reached or every cell was tried once: few orders get past 57 blanks, and so a puzzle
    may have fewer than its target, even than ``min_blanks``. Puzzle ``i`` depends on ``(seed, i)`` and its grid only.
    """
    if not 0 <= min_blanks <= max_blanks <= 81:
        raise ValueError(f"blanks must satisfy 0 <= min <= max <= 81, not {min_blanks} and {max_blanks}")
    return _unique_puzzles(full(grids), seed, min_blanks, max_blanks)


def random_removal(grids: Grids, seed: int, min_blanks: int, max_blanks: int) -> Grids:
    """Puzzles [n, 81] made by blanking cells at random, a number uniform in ``min_blanks … max_blanks``.

    Nothing keeps the solution unique. Puzzle ``i`` depends on ``(seed, i)`` and its grid only.
    """
    if not 0 <= min_blanks <= max_blanks <= 81:
        raise ValueError(f"blanks must satisfy 0 <= min <= max <= 81, not {min_blanks} and {max_blanks}")
    return _random_removal(full(grids), seed, min_blanks, max_blanks)


def checked(puzzles: Grids) -> Grids:
    """The same array as contiguous uint8 [n, 81]; refuses other shapes and values above ``MASK``."""
    puzzles = np.asarray(puzzles)
    if puzzles.ndim != 2 or puzzles.shape[1] != 81:
        raise ValueError(f"grids must have shape [n, 81], not {list(puzzles.shape)}")
    if puzzles.size and (puzzles.min() < 0 or puzzles.max() > MASK):
        raise ValueError("cells must be 0 to 8 for the digits 1 to 9, or 9 for a blank")
    return np.ascontiguousarray(puzzles, dtype=np.uint8)


def full(grids: Grids) -> Grids:
    """The same as :func:`checked`, and refuses grids with blanks."""
    grids = checked(grids)
    if (grids == MASK).any():
        raise ValueError("full grids are needed here: these have blanks")
    return grids


@njit(cache=True, nogil=True)
def stream(seed, index, purpose):
    """The start [1] of a random stream that depends on these three numbers only."""
    state = np.empty(1, np.uint64)
    state[0] = np.uint64(seed)
    for number in (index, purpose):
        draw(state, 2)
        state[0] = _mixed(state[0]) ^ np.uint64(number)
    draw(state, 2)
    state[0] = _mixed(state[0])
    return state


@njit(cache=True, nogil=True)
def draw(state, n):
    """A random integer below ``n``, by SplitMix64 (Steele, Lea and Flood 2014), whose state is advanced in place."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    # The high 32 bits scaled to n: the bias is below n / 2**32.
    return np.int64(((_mixed(state[0]) >> np.uint64(32)) * np.uint64(n)) >> np.uint64(32))


@njit(cache=True, nogil=True)
def _mixed(z):
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@njit(cache=True, nogil=True)
def shuffle(items, state):
    """Fisher-Yates, in place."""
    for i in range(len(items) - 1, 0, -1):
        j = draw(state, i + 1)
        items[i], items[j] = items[j], items[i]


@njit(cache=True, nogil=True)
def _place(grid, used, cell, bit):
    grid[cell] = DIGIT[bit]
    used[0, ROW[cell]] |= bit
    used[1, COLUMN[cell]] |= bit
    used[2, BOX[cell]] |= bit


@njit(cache=True, nogil=True)
def _remove(grid, used, cell):
    bit = 1 << grid[cell]
    grid[cell] = MASK
    used[0, ROW[cell]] ^= bit
    used[1, COLUMN[cell]] ^= bit
    used[2, BOX[cell]] ^= bit


@njit(cache=True, nogil=True)
def _start(grid, used):
    """Fill the masks of used digits [3, 9]; False where two givens contradict each other."""
    used[:] = 0
    for cell in range(81):
        if grid[cell] != MASK:
            bit = 1 << grid[cell]
            if (used[0, ROW[cell]] | used[1, COLUMN[cell]] | used[2, BOX[cell]]) & bit:
                return False
            _place(grid, used, cell, bit)
    return True


@njit(cache=True, nogil=True)
def _propagate(grid, used, trail, depth, candidates):
    """Fill singles until none is left. Returns (consistent, new trail length).

    It is inconsistent where a cell has no digit or a digit no place left. Otherwise ``candidates`` [81] then holds the
    digits each blank can take (0 for filled cells).
    """
    while True:
        changed = False
        for cell in range(81):
            candidates[cell] = 0
            if grid[cell] == MASK:
                free = ALL & ~(used[0, ROW[cell]] | used[1, COLUMN[cell]] | used[2, BOX[cell]])
                if free == 0:
                    return False, depth
                if free & (free - 1) == 0:
                    _place(grid, used, cell, free)
                    trail[depth] = cell
                    depth += 1
                    changed = True
                else:
                    candidates[cell] = free
        if changed:
            continue
        for unit in range(27):
            once, twice = 0, 0
            for k in range(9):
                free = candidates[UNITS[unit, k]]
                twice |= once & free
                once |= free
            if once | used[unit // 9, unit % 9] != ALL:
                return False, depth
            single = once & ~twice
            if single:
                for k in range(9):
                    cell = UNITS[unit, k]
                    bit = candidates[cell] & single
                    if bit:
                        if bit & (bit - 1):  # two digits have this cell as their only place
                            return False, depth
                        _place(grid, used, cell, bit)
                        trail[depth] = cell
                        depth += 1
                changed = True
                break  # the candidates are out of date now
        if not changed:
            return True, depth


@njit(cache=True, nogil=True)
def _search(grid, used, limit, state, randomised):
    """Depth-first search: (solutions found up to ``limit``, branchings). At the limit it stops with grid solved."""
    trail = np.empty(81, np.int64)
    candidates = np.zeros(81, np.int64)
    cells, untried, starts = np.empty(81, np.int64), np.empty(81, np.int64), np.empty(81, np.int64)
    level, depth, found, branchings = 0, 0, 0, 0
    while True:
        consistent, depth = _propagate(grid, used, trail, depth, candidates)
        if consistent:
            best, choices, ties = -1, 10, 0
            for cell in range(81):
                if candidates[cell]:
                    n = POPCOUNT[candidates[cell]]
                    if n < choices:
                        best, choices, ties = cell, n, 1
                    elif n == choices and randomised:
                        ties += 1
                        if draw(state, ties) == 0:
                            best = cell
            if best >= 0:
                branchings += 1
                cells[level], untried[level], starts[level] = best, candidates[best], depth
                level += 1
            else:
                found += 1
                if found == limit:
                    return found, branchings
        # Take the next untried digit of the deepest choice that has one; after a choice just made that is its first.
        while level > 0 and untried[level - 1] == 0:
            level -= 1
        if level == 0:
            return found, branchings
        while depth > starts[level - 1]:
            depth -= 1
            _remove(grid, used, trail[depth])
        rest = untried[level - 1]
        bit = rest & -rest
        if randomised:
            for _ in range(draw(state, POPCOUNT[rest])):
                rest &= rest - 1
            bit = rest & -rest
        untried[level - 1] ^= bit
        _place(grid, used, cells[level - 1], bit)
        trail[depth] = cells[level - 1]
        depth += 1


@njit(cache=True, nogil=True)
def _random_grids(n, seed):
    grids = np.full((n, 81), MASK, np.uint8)
    used = np.zeros((3, 9), np.int64)
    for i in range(n):
        used[:] = 0
        _search(grids[i], used, 1, stream(seed, i, 1), True)
    return grids


@njit(cache=True, nogil=True)
def _count(puzzles, limit):
    n = len(puzzles)
    solutions, branchings = np.zeros(n, np.int64), np.zeros(n, np.int64)
    used, state = np.zeros((3, 9), np.int64), np.zeros(1, np.uint64)
    for i in range(n):
        grid = puzzles[i].copy()
        if _start(grid, used):
            solutions[i], branchings[i] = _search(grid, used, limit, state, False)
    return solutions, branchings


@njit(cache=True, nogil=True)
def _solve(puzzles):
    grids, found = puzzles.copy(), np.zeros(len(puzzles), np.bool_)
    used, state = np.zeros((3, 9), np.int64), np.zeros(1, np.uint64)
    for i in range(len(puzzles)):
        found[i] = _start(grids[i], used) and _search(grids[i], used, 1, state, False)[0] == 1
    return grids, found


@njit(cache=True, nogil=True)
def _unique_puzzles(grids, seed, min_blanks, max_blanks):
    puzzles = grids.copy()
    trial, used, order = np.empty(81, np.uint8), np.zeros((3, 9), np.int64), np.arange(81)
    for i in range(len(grids)):
        state = stream(seed, i, 2)
        wanted = min_blanks + draw(state, max_blanks - min_blanks + 1)
        order[:] = np.arange(81)
        shuffle(order, state)
        puzzle, blanks = puzzles[i], 0
        for cell in order:
            if blanks == wanted:
                break
            # The puzzle had one solution with this digit, so a second one has another digit here.
            own = 1 << puzzle[cell]
            puzzle[cell] = MASK
            _start(puzzle, used)
            others = ALL & ~(used[0, ROW[cell]] | used[1, COLUMN[cell]] | used[2, BOX[cell]] | own)
            blanks += 1
            while others:
                bit = others & -others
                others ^= bit
                trial[:] = puzzle
                _start(trial, used)
                _place(trial, used, cell, bit)
                if _search(trial, used, 1, state, False)[0]:
                    puzzle[cell] = DIGIT[own]
                    blanks -= 1
                    break
    return puzzles


@njit(cache=True, nogil=True)
def _random_removal(grids, seed, min_blanks, max_blanks):
    puzzles, order = grids.copy(), np.arange(81)
    for i in range(len(grids)):
        state = stream(seed, i, 3)
        wanted = min_blanks + draw(state, max_blanks - min_blanks + 1)
        order[:] = np.arange(81)
        shuffle(order, state)
        for cell in order[:wanted]:
            puzzles[i, cell] = MASK
    return puzzles
