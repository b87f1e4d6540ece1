import io
from pathlib import Path

import numpy as np
import pytest

from maskmi.sudoku import grid
from maskmi.sudoku.solver import MASK, random_grids
from maskmi.sudoku.text import format_grid, format_line, parse_puzzle, read_puzzles

PUZZLE = "003020600900305001001806400008102900700000008006708200002609500800203009005010300"
SOLUTION = "483921657967345821251876493548132976729564138136798245372689514814253769695417382"
CONTRADICTING = "....................1..6.9...841...7..2.5.6..6...124...2.5..9...................."


def test_cells_are_stored_as_the_digit_less_one_and_blanks_as_mask():
    cells = parse_puzzle(PUZZLE)
    assert cells.dtype == np.uint8 and cells.shape == (81,)
    assert cells[:9].tolist() == [MASK, MASK, 2, MASK, 1, MASK, 5, MASK, MASK]


ROWS = [PUZZLE[9 * r : 9 * r + 9] for r in range(9)]
DRAWN = "\n".join(
    ("+---+---+---+\n" if r % 3 == 0 else "") + "|" + "|".join(row[c : c + 3] for c in (0, 3, 6)) + "|"
    for r, row in enumerate(ROWS)
)


@pytest.mark.parametrize(
    "text",
    [
        PUZZLE.replace("0", "."),
        PUZZLE.replace("0", "_"),
        PUZZLE.replace("0", "*"),
        f"  {PUZZLE}\r\n",
        "\n".join(ROWS),
        "\r\n".join(" ".join(row) for row in ROWS),
        DRAWN,
        DRAWN.replace("|", "│").replace("-", "─").replace("+", "┼"),
    ],
)
def test_the_same_puzzle_is_read_alike_however_it_is_written(text):
    np.testing.assert_array_equal(parse_puzzle(text), parse_puzzle(PUZZLE))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PUZZLE[:80], r"81 cells, this one has 80: the last one is r9c8"),
        (PUZZLE + ".", r"81 cells, this one has 82: 1 too many after r9c9"),
        ("\n".join([*ROWS[:4], ROWS[4][:-1], *ROWS[5:]]), r"has 80: .*line 5 has 8"),
        ("", "empty"),
        (PUZZLE[:10] + "x" + PUZZLE[11:], r"cell 11, r2c2 \(line 1, character 11\), is 'x'"),
        ("\n".join([*ROWS[:8], "00501A300"]), r"r9c6 \(line 9, character 6\), is 'A'"),
        (PUZZLE[:-1] + "²", "r9c9 .* is '²'"),
        ("10" + "," + "0" * 79, "r1c3 .* is ','"),
    ],
)
def test_what_is_not_a_puzzle_is_refused_with_its_place(text, message):
    with pytest.raises(ValueError, match=message):
        parse_puzzle(text)


def test_contradicting_givens_are_refused_with_cells_and_units():
    """In this puzzle the only conflict is a 1 in r4c5 and in r6c5, which share column 5 and box 5."""
    with pytest.raises(ValueError) as refusal:
        parse_puzzle(CONTRADICTING)
    assert str(refusal.value) == (
        "the givens contradict each other: two 1s in column 5, at r4c5 and r6c5; two 1s in box 5, at r4c5 and r6c5"
    )


def test_a_row_of_equal_givens_is_one_conflict_and_long_lists_are_cut():
    with pytest.raises(ValueError, match=r"three 7s in row 2, at r2c1, r2c5 and r2c9$"):
        parse_puzzle("." * 9 + "7...7...7" + "." * 63)
    with pytest.raises(ValueError, match=r"; .*; .*, and 24 more$"):  # nine 5s in each of the 27 units
        parse_puzzle("5" * 81)


def test_formatting_is_read_back_and_sets_boxes_apart():
    cells = parse_puzzle(PUZZLE)
    drawn = format_grid(cells).splitlines()
    assert drawn[:4] == [
        ". . 3 | . 2 . | 6 . .",
        "9 . . | 3 . 5 | . . 1",
        ". . 1 | 8 . 6 | 4 . .",
        "------+-------+------",
    ]
    np.testing.assert_array_equal(parse_puzzle("\n".join(drawn)), cells)
    assert format_line(cells) == PUZZLE.replace("0", ".")


def test_violations_count_missing_digits_per_unit():
    """By hand: a swap within a row leaves rows alone and costs two digits in each of two columns, and of two boxes."""
    solved = parse_puzzle(SOLUTION)
    one_box, two_boxes, blank = solved.copy(), solved.copy(), solved.copy()
    one_box[[0, 1]] = solved[[1, 0]]  # each column misses one digit; the box is whole
    two_boxes[[0, 8]] = solved[[8, 0]]  # each column and each box misses one
    blank[40] = MASK  # its row, column and box miss one
    equal = np.zeros(81, np.uint8)  # every unit misses eight
    counts = grid.violations(np.stack([solved, one_box, two_boxes, blank, equal, np.full(81, MASK)]))
    assert counts.tolist() == [0, 2, 4, 3, 27 * 8, 243]


def test_a_solution_is_full_valid_and_keeps_the_givens():
    puzzle, solved = parse_puzzle(PUZZLE), parse_puzzle(SOLUTION)
    other = random_grids(1, seed=0)[0]  # valid, but of another puzzle
    swapped = solved.copy()
    swapped[[0, 1]] = solved[[1, 0]]  # keeps the givens, breaks columns
    grids = np.stack([solved, other, swapped, puzzle])
    assert grid.is_valid_solution(grids, np.repeat(puzzle[None], 4, axis=0)).tolist() == [True, False, False, False]
    with pytest.raises(ValueError, match="one puzzle for each"):
        grid.is_valid_solution(grids, puzzle[None])


def test_relations_hold_eight_partners_per_cell_and_kind():
    related = grid.relations()
    assert related.shape == (81, 81, 3) and not related[np.arange(81), np.arange(81)].any()
    assert (related.sum(1) == 8).all() and (related == related.transpose(1, 0, 2)).all()
    assert (related.any(-1).sum(1) == 20).all()  # each cell sees 20 others
    assert related[0, 8].tolist() == [True, False, False]  # r1c1, r1c9
    assert related[0, 72].tolist() == [False, True, False]  # r1c1, r9c1
    assert related[40, 48].tolist() == [False, False, True]  # r5c5, r6c4
    assert related[40, 41].tolist() == [True, False, True]  # r5c5, r5c6


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (f"{PUZZLE}\n\n# a comment\n{SOLUTION}\n", [1, 4]),
        (f"id,Puzzle,rating\r\n1,{PUZZLE},2\r\n2,{SOLUTION},3\r\n", [2, 3]),
        (f"\ufeffpuzzle,solution\n{PUZZLE},{SOLUTION}\n{SOLUTION},{SOLUTION}\n", [2, 3]),
    ],
)
def test_files_of_puzzles_plain_and_csv(tmp_path: Path, text, lines):
    path = tmp_path / "puzzles"
    path.write_bytes(text.encode())
    found = read_puzzles(path)
    np.testing.assert_array_equal(found.puzzles, [parse_puzzle(t) for t in (PUZZLE, SOLUTION)])
    assert found.lines == lines and found.skipped == []


def test_a_file_with_one_drawn_puzzle(tmp_path: Path):
    path = tmp_path / "one.txt"
    path.write_text(DRAWN)
    np.testing.assert_array_equal(read_puzzles(path).puzzles, [parse_puzzle(PUZZLE)])


def test_a_bad_line_is_refused_with_file_and_line(tmp_path: Path):
    path = tmp_path / "bad.csv"
    path.write_text(f"puzzle\n{PUZZLE}\n{CONTRADICTING}\n")
    with pytest.raises(ValueError, match=r"bad.csv, line 3: .*two 1s in column 5"):
        read_puzzles(path)
    found = read_puzzles(io.StringIO(path.read_text()), skip_invalid=True)
    assert found.lines == [2] and len(found.puzzles) == 1
    (skipped,) = found.skipped
    assert "line 3: " in skipped and "two 1s in column 5" in skipped
    path.write_text("puzzle\n")
    with pytest.raises(ValueError, match="no puzzle"):
        read_puzzles(path)
