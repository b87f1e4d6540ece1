import json

import pytest
from click.testing import CliRunner

from maskmi.cli.__main__ import main
from maskmi.cli.options import DECODERS

PUZZLE = ".......2.95......73...761.....2........5.47985...97.....5..134..1.3...7.73..5.2.9"
SOLVED = "647815923951432687382976154479283561123564798568197432895721346216349875734658219"
CONTRADICTING = "....................1..6.9...841...7..2.5.6..6...124...2.5..9...................."


def run(*arguments, code=0, **options):
    """Standard output; a failure must be one sentence on the standard error, without a traceback."""
    result = CliRunner().invoke(main, list(arguments), **options)
    assert result.exit_code == code, result.output
    if code:
        assert not result.stdout and "Traceback" not in result.stderr and isinstance(result.exception, SystemExit)
        return result.stderr
    return result.stdout


def rows(output):
    return [json.loads(line) for line in output.splitlines()]


def test_help_and_the_list_of_decoders():
    assert "sudoku" in run("--help") and "Usage: maskmi sudoku decode" in run(
        "sudoku", "decode", "-h", prog_name="maskmi"
    )
    listed = [line.split(":")[0].split()[0] for line in run("decoders").splitlines()[1:]]
    assert listed == list(DECODERS)


@pytest.mark.parametrize("decoder", [*DECODERS, "sequential:random", "naive:7", "mi:0.3"])
def test_puzzles_from_the_standard_input_are_decoded(decoder):
    (row,) = rows(run("sudoku", "decode", "--quiet", "--decoder", decoder, input=PUZZLE))
    assert row["puzzle"] == PUZZLE and row["line"] == 1 and row["solutions"] == "one"
    assert all(given in (".", cell) for given, cell in zip(PUZZLE, row["grid"], strict=True))
    assert row["valid"] == (row["grid"] == SOLVED)
    blanks, sequential = PUZZLE.count("."), decoder.startswith("sequential")
    assert row["passes"] == row["steps"] == blanks if sequential else 0 < row["passes"] < blanks / 2


def test_a_file_of_all_kinds_of_puzzles(tmp_path):
    file = tmp_path / "three.csv"
    file.write_text(f"puzzle\n{'.' * 81}\n{SOLVED}\n{PUZZLE}\n")
    empty, finished, usual = rows(run("sudoku", "decode", str(file), "--quiet"))
    assert [row["line"] for row in (empty, finished, usual)] == [2, 3, 4]
    assert [row["solutions"] for row in (empty, finished, usual)] == ["several", "one", "one"]
    assert finished["grid"] == SOLVED and finished["passes"] == finished["steps"] == 0 and finished["valid"]
    assert "." not in empty["grid"] and usual["grid"] == SOLVED and usual["valid"]
    drawn = run("sudoku", "decode", str(file), "--quiet", "--grid")
    assert "line 3: valid, 0 passes\n6 4 7 | 8 1 5 | 9 2 3\n" in drawn


def test_temperature_and_seed():
    def grid(*arguments):
        return rows(run("sudoku", "decode", "--quiet", "--decoder", "naive:9", *arguments, input="." * 81))[0]["grid"]

    assert grid() == grid("--temperature", "1e-8") == grid("--seed", "5")
    assert grid("--temperature", "1") == grid("--temperature", "1", "--seed", "0")
    assert len({grid("--temperature", "1", "--seed", seed) for seed in "123"}) == 3


def test_a_bad_puzzle_is_refused_or_left_out(tmp_path):
    text = f"{PUZZLE}\n{CONTRADICTING}\n{PUZZLE[:80]}\n{PUZZLE[:80]}x\n"
    said = run("sudoku", "decode", "--quiet", input=text, code=1)
    assert said.startswith("Error: <stdin>, line 2: ") and "contradict each other: two 1s in column 5" in said
    result = CliRunner().invoke(main, ["sudoku", "decode", "--quiet", "--skip-invalid"], input=text)
    assert result.exit_code == 0 and [row["line"] for row in rows(result.stdout)] == [1]
    assert [line.split(":")[1].strip() for line in result.stderr.splitlines()] == ["line 2", "line 3", "line 4"]
    assert "no puzzle is left" in run("sudoku", "decode", "--skip-invalid", input=CONTRADICTING, code=1)
    assert "holds no puzzle" in run("sudoku", "decode", input="", code=1)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--decoder", "naiv:4"], 2, "did you mean 'naive'?"),
        (["--decoder", "naive:x"], 2, "naive:x"),
        (["--decoder", "naive:0"], 2, "k must be"),
        (["--decoder", "mi:-1"], 2, "budget must be 0 or more"),
        (["--temperature", "-1"], 1, "temperature must be"),
        (["--backbone", "weak"], 2, "strong"),
        (["no such file.txt"], 2, "no such file.txt"),
    ],
)
def test_wrong_use_is_told_in_a_sentence(arguments, code, said):
    assert said in run("sudoku", "decode", "--quiet", *arguments, input=PUZZLE, code=code)


def test_the_map_of_a_puzzle(tmp_path):
    puzzle = SOLVED[:78] + "..9"  # two blanks in one row and box, each certain: nothing to tell of the other
    (pair,) = rows(run("sudoku", "map", puzzle, "--probe"))
    assert pair["cells"] == ["r9c7", "r9c8"] and pair["same_unit"] and abs(pair["mi_nats"]) < 0.01
    picture = tmp_path / "map.png"
    by_head = rows(run("sudoku", "map", PUZZLE, "--top", "0", "--plot", str(picture)))
    blanks = PUZZLE.count(".")
    assert len(by_head) == blanks * (blanks - 1) // 2 and picture.stat().st_size > 10_000
    values = [pair["mi_nats"] for pair in by_head]
    assert values == sorted(values, reverse=True) and rows(run("sudoku", "map", input=PUZZLE)) == by_head[:20]
    # Cells of one unit are over-represented among the strongest pairs.
    share = [sum(pair["same_unit"] for pair in part) / len(part) for part in (by_head[:20], by_head)]
    assert share[0] > 2 * share[1]
    assert "a map needs two" in run("sudoku", "map", SOLVED, code=1)
