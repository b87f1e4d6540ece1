import shutil

import numpy as np
import pytest

from maskmi.sudoku import data
from maskmi.sudoku.grading import AMBIGUOUS, grade
from maskmi.sudoku.grid import is_valid_solution
from maskmi.sudoku.solver import MASK, count_solutions, guesses, random_grids
from maskmi.sudoku.symmetry import form_keys, random_symmetry
from maskmi.sudoku.text import read_puzzles


@pytest.fixture(scope="module", params=["unique", "random"])
def committed(request):
    return request.param, data.load_test_set(request.param)


@pytest.fixture
def small(monkeypatch):
    """Sets of 36 puzzles, quickly made, with no published checksum."""
    monkeypatch.setattr(data, "SETS", {"unique": (36, 101), "random": (36, 102)})


def test_committed_sets_are_what_the_readme_says(committed):
    """1000 puzzles each with 50 to 58 blanks, 54 on average; givens kept; grades and counts recomputed."""
    name, puzzles = committed
    assert puzzles.puzzles.shape == puzzles.solutions.shape == (1000, 81)
    blanks = (puzzles.puzzles == MASK).sum(1)
    np.testing.assert_array_equal(blanks, puzzles.blanks)
    assert blanks.min() == 50 and blanks.max() == 58 and blanks.mean() == 54
    assert is_valid_solution(puzzles.solutions, puzzles.puzzles).all()
    np.testing.assert_array_equal(grade(puzzles.puzzles), puzzles.grades)
    np.testing.assert_array_equal(guesses(puzzles.puzzles), puzzles.guesses)
    if name == "unique":
        assert (puzzles.solution_counts == 1).all() and (count_solutions(puzzles.puzzles) == 1).all()
    else:
        np.testing.assert_array_equal(
            count_solutions(puzzles.puzzles[:100], data.SOLUTION_CAP), puzzles.solution_counts[:100]
        )
        assert (puzzles.solution_counts > 1).mean() > 0.9  # removal at random leaves nearly always several


def test_any_first_part_of_a_set_is_like_the_whole(committed):
    """Sorted by blanks, the first 200 would have 50 or 51; 54 is within 5 standard errors (2.58 / sqrt 200) here."""
    assert abs(committed[1].blanks[:200].mean() - 54) < 0.9


def test_no_two_committed_solutions_are_equivalent_nor_one_to_a_training_grid():
    """Against the first 3000 training grids here; python -m maskmi.sudoku.data compares with all 100,000."""
    solutions = np.concatenate([data.load_test_set(name).solutions for name in ("unique", "random")])
    keys = form_keys(solutions)
    assert len(set(keys)) == 2000
    assert not set(keys) & set(form_keys(data.training_grids(3000)))


def test_the_csv_is_readable_as_a_file_of_puzzles(committed):
    name, puzzles = committed
    np.testing.assert_array_equal(read_puzzles(data.FOLDER / f"{name}.csv").puzzles, puzzles.puzzles)


def test_a_changed_or_missing_file_is_refused(tmp_path):
    shutil.copy(data.FOLDER / "unique.csv", tmp_path)
    assert len(data.load_test_set("unique", tmp_path).blanks) == 1000
    text = (tmp_path / "unique.csv").read_text()
    (tmp_path / "unique.csv").write_text(text.replace(",easy,", ",hard,", 1))
    with pytest.raises(ValueError, match=r"unique.csv was changed"):
        data.load_test_set("unique", tmp_path)
    with pytest.raises(FileNotFoundError, match="--write"):
        data.load_test_set("unique-5000", tmp_path)
    with pytest.raises(ValueError, match="no set 'uniqe'; there are unique, random"):
        data.load_test_set("uniqe")


def test_training_grids_are_those_the_sets_were_compared_with():
    np.testing.assert_array_equal(data.training_grids(5), random_grids(50, seed=0)[:5])
    for n, seed in ((100_001, 0), (10, 1)):
        with pytest.raises(ValueError, match="were compared with the first 100000 grids of seed 0 only"):
            data.training_grids(n, seed)


def test_generation_is_deterministic_and_survives_writing(small, tmp_path):
    made = data.make_set("random", set())
    data.write_set(tmp_path / "random.csv", made)
    for again in (data.make_set("random", set()), data.read_set(tmp_path / "random.csv")):
        for a, b in zip(made, again, strict=True):
            np.testing.assert_array_equal(a, b)
    assert np.bincount(made.blanks)[50:].tolist() == [4] * 9
    assert [p.name for p in tmp_path.iterdir()] == ["random.csv"]


def test_grids_equivalent_to_training_grids_are_left_out(small):
    """Were its own grids, disguised, training grids, the set would be made of others."""
    first = data.make_set("unique", set())
    training = set(form_keys(random_symmetry(first.solutions[:10], seed=1)))
    taken = set(training)
    second = data.make_set("unique", taken)
    assert len(second.blanks) == 36 and len(taken) == 46
    assert not training & set(form_keys(second.solutions))
    data.verify("unique", second, training)
    assert len(training) == 46  # later sets are held against this one


def test_verification_finds_each_kind_of_fault(small):
    good = data.make_set("unique", set())
    data.verify("unique", good, set())
    ambiguous, wrong, doubled = good.puzzles.copy(), good.solutions.copy(), good.solutions.copy()
    given = np.flatnonzero(good.puzzles[0] != MASK)
    blank = np.flatnonzero(good.puzzles[0] == MASK)
    ambiguous[0, given[:20]] = MASK
    wrong[0, blank[0]] = (wrong[0, blank[0]] + 1) % 9
    doubled[:] = random_symmetry(good.solutions[:1], 0)
    copies = data.PuzzleSet(*(column.copy() for column in good))
    twin = int(np.flatnonzero(good.blanks == good.blanks[0])[1])
    grids, puzzles = random_symmetry(good.solutions[:1], 5), random_symmetry(good.puzzles[:1], 5)
    copies.solutions[twin], copies.puzzles[twin] = grids[0], puzzles[0]
    copies.grades[twin], copies.guesses[twin] = good.grades[0], guesses(puzzles)[0]
    harder = np.where(good.grades == 0, 1, good.grades)
    faults = [
        (good._replace(puzzles=ambiguous), "number of blanks"),
        (good._replace(solutions=wrong), "not a valid grid"),
        (good._replace(solutions=doubled), "keep the givens"),
        (good._replace(grades=harder), "wrong grade"),
        (good._replace(grades=np.full_like(harder, AMBIGUOUS)), "does not fit"),
        (good._replace(guesses=good.guesses + 1), "wrong number of guesses"),
        (good._replace(solution_counts=good.solution_counts + 1), "wrong number of solutions"),
        (data.PuzzleSet(*(column[:35] for column in good)), "35 puzzles, not 36"),
        (copies, "two solutions are equivalent"),
    ]
    for fault, message in faults:
        with pytest.raises(ValueError, match=message):
            data.verify("unique", fault, set())
    with pytest.raises(ValueError, match="equivalent to a training grid"):
        data.verify("unique", good, set(form_keys(random_symmetry(good.solutions[7:8], 2))))


def test_the_command_writes_and_checks(small, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(data, "TRAINING_GRIDS", 200)
    with pytest.raises(SystemExit) as stop:
        data.main(["--folder", str(tmp_path)])
    assert stop.value.code == 1 and "unique.csv, " in capsys.readouterr().err
    data.main(["--write", "--folder", str(tmp_path)])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["random.csv", "unique.csv"]
    printed = capsys.readouterr().out
    assert "unique: 36 puzzles, 54.00 blanks, 36 with one solution" in printed
    (tmp_path / "unique.csv").write_text((tmp_path / "random.csv").read_text())
    with pytest.raises(ValueError, match="set unique: a puzzle with several solutions"):
        data.main(["--folder", str(tmp_path), "--sets", "unique"])
