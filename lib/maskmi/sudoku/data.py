"""The data of the Sudoku study: training grids, and test and validation sets that share no grid with them.

Six sets of puzzles with 50 to 58 blanks, equally many of each number (one in nine), 54 on average:

- *unique*: exactly one solution. *random*: cells removed at random, which usually leaves several solutions.
- ``unique`` and ``random`` (1000 each) are for reporting, ``unique-5000`` and ``random-5000`` for claims
  that one decoder is better than another, ``unique-validation`` and ``random-validation`` (1000 each) for choosing
  settings.

Puzzles are chosen by their number of blanks only, never by difficulty. No solution in any set is equivalent, under the
symmetries of Sudoku, to one of the training grids or to another solution in these sets.

``python -m maskmi.sudoku.data`` checks the sets; with ``--write`` it generates them first.
"""

import argparse
import csv
import hashlib
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from maskmi.sudoku.grading import AMBIGUOUS, GRADES, grade
from maskmi.sudoku.grid import is_valid_solution, violations
from maskmi.sudoku.solver import (
    MASK,
    Grids,
    count_solutions,
    guesses,
    random_grids,
    random_removal,
    shuffle,
    stream,
    unique_puzzles,
)
from maskmi.sudoku.symmetry import form_keys
from maskmi.sudoku.text import format_line, parse_puzzle

FOLDER = Path(__file__).resolve().parents[3] / "data"
TRAINING_GRIDS, TRAINING_SEED = 100_000, 0
MIN_BLANKS, MAX_BLANKS = 50, 58
SOLUTION_CAP = 1000  # solutions of an ambiguous puzzle are counted up to here
COLUMNS = ("puzzle", "solution", "blanks", "grade", "guesses", "solutions")

#: Size and seed of each set, in the order in which they are made: a set avoids the grids of those before it.
SETS = {
    "unique": (1000, 101),
    "random": (1000, 102),
    "unique-validation": (1000, 103),
    "random-validation": (1000, 104),
    "unique-5000": (5000, 105),
    "random-5000": (5000, 106),
}
#: Of the files as published.
SHA256 = {
    "unique": "d104fb09e07b5bd2fc3f7f1931179488bca2ff4a9e7de10e8575ba49aa1deeee",
    "random": "332ea67552b7e1c54fdd6c87105e85d0c7ae225da37fee876b645b69aaa2f7d9",
    "unique-validation": "4d4db8d63780f180a1b8e6b5cb94c031cb9bc631c1a3da61ee998790061be433",
    "random-validation": "93141f36aeac25275b07d3f3c99bd8e712319de779b1e248b8c7c606be5356aa",
    "unique-5000": "44a849d3c0c7509d5e7039ccdaea3c073f4e7751ded465fb4d03638119d5dada",
    "random-5000": "0e77aff2c12cf107a14618d90c0b31edc7345b90e23d9b03cdb915f1e15a21ef",
}


class PuzzleSet(NamedTuple):
    """``n`` puzzles. The solution of a puzzle with several is the grid that the puzzle was made from."""

    puzzles: Grids  # [n, 81]
    solutions: Grids  # [n, 81]
    blanks: NDArray[np.int64]  # [n]
    grades: NDArray[np.int64]  # [n], index into maskmi.sudoku.grading.GRADES
    guesses: NDArray[np.int64]  # [n], see maskmi.sudoku.solver.guesses
    solution_counts: NDArray[np.int64]  # [n], up to SOLUTION_CAP


def training_grids(n: int = TRAINING_GRIDS, seed: int = TRAINING_SEED) -> Grids:
    """The first ``n`` training grids [n, 81].

    Raises:
        ValueError: for grids that the test sets were not compared with.
    """
    if seed != TRAINING_SEED or not 0 <= n <= TRAINING_GRIDS:
        raise ValueError(
            f"the test sets were compared with the first {TRAINING_GRIDS} grids of seed {TRAINING_SEED} only, not with "
            f"{n} of seed {seed}: take random_grids(n, seed), and drop what equivalent(grids, test solutions) finds"
        )
    return random_grids(n, seed)


def load_test_set(name: str = "unique", folder: str | Path = FOLDER) -> PuzzleSet:
    """One of :data:`SETS`, from its file. The file must be the one that was checked, byte for byte.

    Raises:
        ValueError: for an unknown name, or a file that is not the one published.
        FileNotFoundError: where the file is missing; says which command makes it.
    """
    if name not in SETS:
        raise ValueError(f"there is no set {name!r}; there are {', '.join(SETS)}")
    path = Path(folder) / f"{name}.csv"
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: run python -m maskmi.sudoku.data --write")
    if hashlib.sha256(path.read_bytes()).hexdigest() != SHA256[name]:
        raise ValueError(f"{path} was changed (SHA-256 differs): restore it with python -m maskmi.sudoku.data --write")
    return read_set(path)


def read_set(path: Path) -> PuzzleSet:
    """A set from a CSV file with the columns :data:`COLUMNS`."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    grids = [np.stack([parse_puzzle(row[column]) for row in rows]) for column in COLUMNS[:2]]
    numbers = {column: np.array([int(row[column]) for row in rows]) for column in ("blanks", "guesses", "solutions")}
    grades = np.array([GRADES.index(row["grade"]) for row in rows])
    return PuzzleSet(*grids, numbers["blanks"], grades, numbers["guesses"], numbers["solutions"])


def write_set(path: Path, puzzles: PuzzleSet) -> None:
    """Write the CSV file; all at once, so that an interruption leaves none or the old one."""
    lines = [",".join(COLUMNS)]
    for puzzle, solution, blanks, level, branchings, solutions in zip(*puzzles, strict=True):
        line = (format_line(puzzle), format_line(solution), blanks, GRADES[level], branchings, solutions)
        lines.append(",".join(map(str, line)))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text("\n".join(lines) + "\n", newline="\n")
    os.replace(temporary, path)


def make_set(name: str, taken: set[bytes]) -> PuzzleSet:
    """Generate a set whose solutions have no canonical form in ``taken``; theirs are added to it."""
    size, seed = SETS[name]
    # Equally many puzzles of each number of blanks; those left over have the mean number, which keeps the mean at 54.
    wanted = np.full(MAX_BLANKS + 1, size // (MAX_BLANKS - MIN_BLANKS + 1))
    wanted[(MIN_BLANKS + MAX_BLANKS) // 2] += size - wanted[MIN_BLANKS:].sum()
    # One unique puzzle in 45 gets to 58 blanks, so six times as many are made as are wanted.
    grids = random_grids(6 * size, seed)
    remove = unique_puzzles if name.startswith("unique") else random_removal
    puzzles = remove(grids, seed, MIN_BLANKS, MAX_BLANKS)
    blanks = (puzzles == MASK).sum(1)
    chosen = []
    for i in range(len(grids)):
        if blanks[i] < MIN_BLANKS or not wanted[blanks[i]]:
            continue
        (key,) = form_keys(grids[i : i + 1])
        if key not in taken:
            taken.add(key)
            wanted[blanks[i]] -= 1
            chosen.append(i)
    if len(chosen) < size:
        raise RuntimeError(f"too few candidates for {name}: only {len(chosen)} of {size} found")
    # Puzzles with many blanks are rare and come late: shuffled, the first n of a set are a sample of the whole.
    order = np.array(chosen)
    shuffle(order, stream(seed, 0, 5))
    puzzles, grids, blanks = puzzles[order], grids[order], blanks[order]
    counts = count_solutions(puzzles, SOLUTION_CAP)
    return PuzzleSet(puzzles, grids, blanks, grade(puzzles), guesses(puzzles), counts)


def verify(name: str, puzzles: PuzzleSet, taken: set[bytes]) -> None:
    """Check a set against all that this module says of it; ``taken`` as in :func:`make_set`.

    Raises:
        ValueError: says what is wrong.
    """

    def require(holds, what):
        if not np.all(holds):
            raise ValueError(f"set {name}: {what}")

    size, _ = SETS[name]
    blanks = (puzzles.puzzles == MASK).sum(1)
    require(len(blanks) == size, f"{len(blanks)} puzzles, not {size}")
    require(violations(puzzles.solutions) == 0, "a solution is not a valid grid")
    require(is_valid_solution(puzzles.solutions, puzzles.puzzles), "a solution does not keep the givens")
    require((blanks >= MIN_BLANKS) & (blanks <= MAX_BLANKS) & (blanks == puzzles.blanks), "a wrong number of blanks")
    require(blanks.mean() == (MIN_BLANKS + MAX_BLANKS) / 2, f"{blanks.mean()} blanks on average")
    counts = count_solutions(puzzles.puzzles, SOLUTION_CAP)
    require(counts == puzzles.solution_counts, "a wrong number of solutions")
    if name.startswith("unique"):
        require(counts == 1, "a puzzle with several solutions")
    require((counts > 1) == (puzzles.grades == AMBIGUOUS), "a grade that does not fit the number of solutions")
    require(grade(puzzles.puzzles) == puzzles.grades, "a wrong grade")
    require(guesses(puzzles.puzzles) == puzzles.guesses, "a wrong number of guesses")
    keys = form_keys(puzzles.solutions)
    require(len(set(keys)) == size, "two solutions are equivalent")
    require(not taken.intersection(keys), "a solution is equivalent to a training grid or to one of another set")
    taken.update(keys)


def summary(name: str, puzzles: PuzzleSet) -> str:
    """A line on a set: blanks, solutions, grades."""
    grades = ", ".join(f"{count} {GRADES[k]}" for k, count in enumerate(np.bincount(puzzles.grades)) if count)
    unique = int((puzzles.solution_counts == 1).sum())
    size = f"{len(puzzles.blanks)} puzzles, {puzzles.blanks.mean():.2f} blanks, {unique} with one solution"
    return f"{name}: {size}; {grades}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m maskmi.sudoku.data",
        description="Check the puzzle sets: validity, number of solutions, grades, and that no solution is equivalent "
        "to a training grid or to another solution. Takes a few minutes.",
    )
    parser.add_argument("--write", action="store_true", help="generate the sets first, replacing their files")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS), help="only these sets (default: all)")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the CSV files are (default: %(default)s)")
    options = parser.parse_args(arguments)
    paths = {name: options.folder / f"{name}.csv" for name in options.sets}
    missing = [str(path) for path in paths.values() if not path.exists()]
    if missing and not options.write:
        parser.exit(1, f"missing: {', '.join(missing)}; generate them with --write, or name the sets to check\n")
    print(f"canonical forms of {TRAINING_GRIDS} training grids", flush=True)
    training = set(form_keys(training_grids(TRAINING_GRIDS)))
    if options.write:
        taken = set(training)
        for name in SETS:  # all, since each avoids the grids of those before it
            made = make_set(name, taken)
            if name in paths:
                write_set(paths[name], made)
    taken = set(training)
    for name, path in paths.items():
        puzzles = read_set(path)
        verify(name, puzzles, taken)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        published = "as published" if digest == SHA256.get(name) else "not as published"
        print(f"{summary(name, puzzles)}\n  SHA-256 {digest}, {published}", flush=True)


if __name__ == "__main__":
    main()
