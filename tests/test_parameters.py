import subprocess
import sys
import warnings

import pytest

from maskmi import ROOT
from maskmi.parameters import check_parameters

CHECK = (
    "from maskmi.parameters import check_parameters\n"
    "p = check_parameters(globals(), study=['sudoku', 'proteins'], n_puzzles=(int, 1, None), label=str)"
)


def test_values_come_back_and_integers_become_floats():
    given = {"seed": 3, "rate": 1, "budgets": [1, 0.5], "limit": None, "name": "0030", "_hidden": 1}
    p = check_parameters(given, seed=int, rate=(float, 0, 1), budgets=list[float], limit=float | None, name=str)
    assert vars(p) == {"seed": 3, "rate": 1.0, "budgets": [1.0, 0.5], "limit": None, "name": "0030"}
    assert isinstance(p.rate, float) and isinstance(p.budgets[0], float)


def test_a_notebook_of_another_copy_is_told_whose_library_it_uses(tmp_path, monkeypatch):
    (tmp_path / "lib" / "maskmi").mkdir(parents=True)
    (tmp_path / "lib" / "maskmi" / "__init__.py").touch()
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    with pytest.warns(UserWarning, match="reads and writes there: activate"):
        check_parameters({"seed": 1}, seed=int)
    for elsewhere in (ROOT / "notebooks", tmp_path.parent):
        monkeypatch.chdir(elsewhere)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check_parameters({"seed": 1}, seed=int)


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        (True, int, "must be int, not True"),
        (1.0, int, "must be int"),
        (30, str, "quote it in a YAML file"),
        (float("nan"), float, "NAN"),
        (float("nan"), str, "NAN"),
        ("[1, 2]", list, "YAML"),
        ([1, "2"], list[int], r"must be list\[int\]"),
        (0, (int, 1, None), "at least 1, not 0"),
        (2.5, (float, 0, 1), "from 0 to 1, not 2.5"),
        ([0.5, 3], (list[float], None, 1), "at most 1, not 3"),
        ("sudoko", ["sudoku", "proteins"], "did you mean 'sudoku'"),
        (True, [1, 2], r"choose one of \[1, 2\]"),
    ],
)
def test_refuses(value, kind, message):
    with pytest.raises(ValueError, match=message):
        check_parameters({"x": value}, x=kind)


def test_unknown_and_missing_names():
    with pytest.raises(ValueError, match="unknown parameter 'n_puzzels'; did you mean 'n_puzzles'?"):
        check_parameters({"n_puzzles": 1, "n_puzzels": 5}, n_puzzles=int)
    with pytest.raises(ValueError, match="'seed' is not set"):
        check_parameters({}, seed=int)


def in_notebook(*cells: str) -> dict:
    """The namespace of an IPython session that has executed the cells and is now in one that checks."""
    namespace = {"In": ["", *cells, "check_parameters(...)"]}
    for cell in cells:
        exec(cell, namespace)
    return namespace


def test_a_cell_run_again_does_not_take_later_variables_for_parameters():
    cells = ["import math\nfrom math import pi", "n = 1", "check", "puzzles = 3\nwidth = 4", "m = n + 1\nprint()"]
    namespace = in_notebook(cells[0], cells[1], *cells[3:])
    assert check_parameters(namespace, n=int).n == 1
    # the parameters cell edited and run again
    with pytest.raises(ValueError, match="'nn'"):
        check_parameters(in_notebook(*cells[:2], *cells[3:], "n = 1\nnn = 2"), n=int)
    # and mended
    assert check_parameters(in_notebook(cells[1], "n = 1\nnn = 2", "n = 4"), n=int).n == 4


def test_an_injected_cell_counts_until_the_parameters_cell_is_run_again():
    injected = "# Parameters\nnn = 5\n"
    with pytest.raises(ValueError, match="'nn'"):
        check_parameters(in_notebook("n = 1", injected, "later = 2"), n=int)
    assert check_parameters(in_notebook("n = 1", injected, "n = 2"), n=int).n == 2


def papermill(notebook, *arguments):
    command = [sys.executable, "-m", "papermill", "-k", "python3", "--no-progress-bar"]
    return subprocess.run(
        [*command, notebook.name, "executed.ipynb", *arguments], cwd=notebook.parent, capture_output=True, text=True
    )


def test_papermill_command_line_refuses_an_unknown_parameter(tmp_path, make_notebook):
    notebook = make_notebook(tmp_path / "n.ipynb", "study = 'sudoku'\nn_puzzles = 2\nlabel = 'a'", CHECK)
    done = papermill(notebook, "-p", "n_puzzels", "5")
    assert done.returncode != 0
    assert "unknown parameter 'n_puzzels'; did you mean 'n_puzzles'?" in done.stderr


def test_papermill_command_line_accepts_known_ones_and_a_check_run_again(tmp_path, make_notebook):
    again = "In.append('n_puzzles = 9\\nlabel = \"0030\"')\nIn.append('')\n" + CHECK.splitlines()[1]
    notebook = make_notebook(
        tmp_path / "n.ipynb",
        "study = 'sudoku'\nn_puzzles = 2  # how many\nlabel = 'a'",
        "import math\nfrom math import pi\nrows = 9",
        CHECK,
        "found = p.n_puzzles\nother = 1",
        CHECK.splitlines()[1],
        again,
        "assert (found, p.label) == (5, '0030'), p",
    )
    done = papermill(notebook, "-p", "n_puzzles", "5", "-r", "label", "0030")
    assert done.returncode == 0, done.stderr
