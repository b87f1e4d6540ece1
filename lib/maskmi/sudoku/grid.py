"""Sudoku grids: which cells share a unit, and whether a grid is valid.

Grids are uint8 arrays of 81 cells, row by row: digits 1 to 9 are stored as 0 to 8, a blank as ``MASK`` (9).
"""

import numpy as np
from numpy.typing import NDArray

from maskmi.sudoku.solver import BOX, COLUMN, MASK, ROW, UNITS, Grids, checked


def relations() -> NDArray[np.bool_]:
    """Which pairs of different cells share a row, a column, a box: [81, 81, 3], symmetric, with a False diagonal."""
    same = np.stack([of[:, None] == of[None, :] for of in (ROW, COLUMN, BOX)], axis=-1)
    return same & ~np.eye(81, dtype=bool)[:, :, None]


def violations(grids: Grids) -> NDArray[np.int64]:
    """The digits missing from the 27 units, added up, for each grid [n, 81]: 0 for a valid grid, at most 243.

    A digit that a unit holds twice takes the place of one that is missing, so each repetition in a full grid counts
    once for each unit it is in. Blanks count as missing digits.
    """
    bits = np.left_shift(1, checked(grids).astype(np.int64)) & 0x1FF
    present = np.bitwise_or.reduce(bits[:, UNITS], axis=-1)
    return 9 * len(UNITS) - np.bitwise_count(present).sum(-1, dtype=np.int64)


def is_valid_solution(grids: Grids, puzzles: Grids) -> NDArray[np.bool_]:
    """Whether each grid [n, 81] is full, valid, and keeps the givens of its puzzle [n, 81]."""
    grids, puzzles = checked(grids), checked(puzzles)
    if len(grids) != len(puzzles):
        raise ValueError(f"there must be one puzzle for each grid, not {len(puzzles)} for {len(grids)}")
    return (violations(grids) == 0) & ((puzzles == MASK) | (puzzles == grids)).all(-1)
