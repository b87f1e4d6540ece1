"""Reading and writing Sudoku grids as text; a grid is as in :mod:`maskmi.sudoku.grid`."""

import csv
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np

from maskmi.sudoku.solver import COLUMN, MASK, ROW, UNITS, Grids
from maskmi.text import decode_text

BLANKS = ".0_*"
DECORATION = "|-+│─┼┃━╋║═╬┌┐└┘├┤┬┴╔╗╚╝╠╣╦╩"  # and white space


def parse_puzzle(text: str) -> Grids:
    """The cells [81] of one puzzle, given as text.

    Blanks are ``. 0 _ *``. White space, line breaks and the frame ``| - +`` (also in box drawing) are skipped.

    Raises:
        ValueError: for another character, for more or fewer than 81 cells, for givens that contradict each other; it
            says where. Rows and columns are counted from 1.
    """
    cells = []
    for at, character in enumerate(text):
        if character.isspace() or character in DECORATION:
            continue
        if character not in BLANKS and character not in "123456789":
            row, column = divmod(len(cells), 9)
            line = text.count("\n", 0, at) + 1
            where = f"r{row + 1}c{column + 1} (line {line}, character {at - text.rfind(chr(10), 0, at)})"
            allowed = f"a cell is a digit 1 to 9, or one of {BLANKS} if blank"
            raise ValueError(f"cell {len(cells) + 1}, {where}, is {character!r}: {allowed}")
        cells.append(MASK if character in BLANKS else int(character) - 1)
    if len(cells) != 81:
        raise ValueError(f"a puzzle has 81 cells, this one has {len(cells)}: {_misfit(text, len(cells))}")
    puzzle = np.array(cells, np.uint8)
    found = contradictions(puzzle)
    if found:
        more = f", and {len(found) - 3} more" if len(found) > 3 else ""
        raise ValueError(f"the givens contradict each other: {'; '.join(found[:3])}{more}")
    return puzzle


def _misfit(text: str, cells: int) -> str:
    """Where a puzzle with the wrong number of cells goes wrong."""
    counts = [(n, sum(c in BLANKS or c.isdigit() for c in line)) for n, line in enumerate(text.splitlines(), 1)]
    counts = [(n, count) for n, count in counts if count]
    if len(counts) > 1:
        wrong = [f"line {n} has {count}" for n, count in counts if count != 9]
        return f"{len(counts)} lines hold cells, " + (f"and {wrong[0]}, not 9" if wrong else "9 in each")
    if cells > 81:
        return f"{cells - 81} too many after r9c9"
    return f"the last one is r{(cells - 1) // 9 + 1}c{(cells - 1) % 9 + 1}" if cells else "the text is empty"


def contradictions(puzzle: Grids) -> list[str]:
    """Every digit that a unit of the puzzle [81] holds more than once, as ``two 6s in row 4, at r4c2 and r4c7``."""
    numbers = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 7: "seven", 8: "eight", 9: "nine"}
    found = []
    counts = (puzzle[UNITS][:, :, None] == np.arange(9)).sum(1)  # [unit, digit]
    for unit, digit in np.argwhere(counts > 1):
        where = [f"r{ROW[cell] + 1}c{COLUMN[cell] + 1}" for cell in UNITS[unit] if puzzle[cell] == digit]
        name = f"{('row', 'column', 'box')[unit // 9]} {unit % 9 + 1}"
        found.append(f"{numbers[len(where)]} {digit + 1}s in {name}, at {', '.join(where[:-1])} and {where[-1]}")
    return found


class Puzzles(NamedTuple):
    puzzles: Grids  # [n, 81]
    lines: list[int]  # where each one begins in its file, counted from 1
    skipped: list[str]  # a sentence on each puzzle left out


def read_puzzles(source: str | Path | TextIO, *, skip_invalid: bool = False) -> Puzzles:
    """The puzzles of a file, plain or gzip, or an open text stream: one a line, or CSV with a column ``puzzle``.

    Blank lines and lines starting with ``#`` are skipped. Text that is not CSV may hold one puzzle drawn over several
    lines.

    Args:
        skip_invalid: leave out, and list, the puzzles that would be refused.

    Raises:
        ValueError: names the file and the line of a puzzle that is refused by :func:`parse_puzzle`; also where there is
            no puzzle.
        FileNotFoundError: where there is no such file.
    """
    if isinstance(source, str | Path):
        label, text = str(source), decode_text(Path(source).read_bytes(), str(source))
    else:
        label, text = str(getattr(source, "name", "the input")), source.read().removeprefix("\ufeff")
    lines = text.splitlines()
    numbered = [(n, line) for n, line in enumerate(lines, 1) if line.strip() and not line.lstrip().startswith("#")]
    header = [name.strip().lower() for name in next(csv.reader([numbered[0][1]]))] if numbered else []
    if "puzzle" in header:
        column = header.index("puzzle")
        rows = [(n, next(csv.reader([line]))) for n, line in numbered[1:]]
        numbered = [(n, row[column] if column < len(row) else "") for n, row in rows]
    elif numbered and all(sum(c.isdigit() or c in BLANKS for c in line) <= 9 for _, line in numbered):
        numbered = [(numbered[0][0], "\n".join(line for _, line in numbered))]
    if not numbered:
        raise ValueError(f"{label} holds no puzzle")
    puzzles, places, skipped = [], [], []
    for n, text in numbered:
        try:
            puzzles.append(parse_puzzle(text))
            places.append(n)
        except ValueError as error:
            if not skip_invalid:
                raise ValueError(f"{label}, line {n}: {error}") from None
            skipped.append(f"line {n}: {error}")
    return Puzzles(np.stack(puzzles) if puzzles else np.zeros((0, 81), np.uint8), places, skipped)


def format_line(grid: Grids) -> str:
    """A grid [81] as 81 characters, blanks as dots."""
    return "".join("123456789."[cell] for cell in np.asarray(grid))


def format_grid(grid: Grids) -> str:
    """A grid [81] as nine rows with the boxes set apart; :func:`parse_puzzle` reads it back."""
    line = format_line(grid)
    rows = [" | ".join(" ".join(line[9 * r + c : 9 * r + c + 3]) for c in (0, 3, 6)) for r in range(9)]
    rule = "------+-------+------"
    return "\n".join([*rows[:3], rule, *rows[3:6], rule, *rows[6:]])
