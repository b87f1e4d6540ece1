import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from maskmi import ROOT
from maskmi.cli.__main__ import main
from maskmi.cli.options import DECODERS
from maskmi.study import CHECKPOINTS
from maskmi.sudoku.grid import relations

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
    _, *table, empty, heads = run("decoders").splitlines()
    assert [line.split(":")[0].split()[0] for line in table] == list(DECODERS)
    assert not empty and heads.startswith("mi and pivot need a pair head") and "paper_strength" in heads


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
    assert "# line 3: valid, 0 passes\n6 4 7 | 8 1 5 | 9 2 3\n" in drawn
    one = run("sudoku", "decode", "--quiet", "--grid", input=PUZZLE)
    assert rows(run("sudoku", "decode", "--quiet", input=one))[0]["puzzle"] == SOLVED


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
        (["--decoder", "naive:x"], 2, "'naive:x': 'x' is not a whole number (k)"),
        (["--decoder", "naive:1.5"], 2, "'1.5' is not a whole number (k)"),
        (["--decoder", "mi:abc"], 2, "'abc' is not a number (budget in nats)"),
        (["--decoder", "mi:"], 2, "nothing after the colon"),
        (["--decoder", "naive", "--alpha", "0.3"], 2, "are for the decoder mi, naive has no use for them"),
        (["--decoder", "naive:0"], 2, "k must be"),
        (["--decoder", "mi:-1"], 2, "budget must be 0 or more"),
        (["--decoder", "pivot:-1"], 2, "budget must be 0 or more"),
        (["--decoder", "pivot", "--alpha", "0.3"], 2, "pivot has no use for them"),
        (["--decoder", "eb:inf"], 2, "'inf' is not a number (budget in nats)"),
        (["--temperature", "-1"], 2, "-1.0 is not in the range x>=0"),
        (["--temperature", "nan"], 2, "is not a finite number"),
        (["--seed", "-1"], 2, "-1 is not in the range x>=0"),
        (["--backbone", "weak"], 2, "strong"),
        (["no such file.txt"], 2, "no such file.txt"),
    ],
)
def test_wrong_use_is_told_in_a_sentence(arguments, code, said):
    assert said in run("sudoku", "decode", "--quiet", *arguments, input=PUZZLE, code=code)


def test_the_map_of_a_puzzle(tmp_path):
    puzzle = SOLVED[:78] + "..9"  # two blanks in one row and box, each certain: nothing to tell of the other
    (pair,) = rows(run("sudoku", "map", "--probe", input=puzzle))
    assert pair["pair"] == ["r9c7", "r9c8"] and abs(pair["mi_nats"]) < 0.01
    picture = tmp_path / "map.png"
    file = tmp_path / "puzzle.txt"
    file.write_text(PUZZLE)
    by_head = rows(run("sudoku", "map", str(file), "--top", "0", "--plot", str(picture)))
    blanks = PUZZLE.count(".")
    assert len(by_head) == blanks * (blanks - 1) // 2 and picture.stat().st_size > 10_000
    values = [pair["mi_nats"] for pair in by_head]
    assert values == sorted(values, reverse=True) and rows(run("sudoku", "map", input=PUZZLE)) == by_head[:20]
    # Cells of one unit are over-represented among the strongest pairs.
    same = {(f"r{i // 9 + 1}c{i % 9 + 1}", f"r{j // 9 + 1}c{j % 9 + 1}") for i, j in np.argwhere(relations().any(-1))}
    share = [sum(tuple(pair["pair"]) in same for pair in part) / len(part) for part in (by_head[:20], by_head)]
    assert share[0] > 2 * share[1]
    assert "a map needs two" in run("sudoku", "map", input=SOLVED, code=1)
    assert "one puzzle, not of 2" in run("sudoku", "map", input=f"{PUZZLE}\n{PUZZLE}", code=1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--top", "-3"], "-3 is not in the range"),
        (["--plot", "no folder/map.png"], "there is no folder no folder: make it first"),
        (["--plot", "map.txt"], "must end in .png, .svg or .pdf"),
    ],
)
def test_a_map_that_can_not_be_shown_is_refused_before_the_work(arguments, said):
    assert said in run("sudoku", "map", *arguments, input=PUZZLE, code=2)


HEAVY = (
    "EVQLVESGGGLVQPGGSLRLSCAASGFTF____MSWVRQAPGKGLEWVSAISGSGGSTYYADSVKGRFTISRDNSKNTLYLQMNSLRAEDTAVYYCAKDYWGQGTLVTVSS"
)
ANTIBERTY = ("--model", "antiberty")


def records(fasta):
    parts = [part.partition("\n") for part in fasta.split(">")[1:]]
    return {header: sequence.replace("\n", "") for header, _, sequence in parts}


def test_masked_residues_are_filled_in_and_the_others_kept():
    fasta = f">one heavy chain\n{HEAVY.lower().replace('____', '_<mask>__')}\n>two\n{HEAVY.replace('_', 'S')}\n"
    done = records(run("protein", "infill", *ANTIBERTY, "--quiet", input=fasta))
    assert list(done) == ["one heavy chain passes=4", "two passes=0"]
    filled, finished = done.values()
    assert finished == HEAVY.replace("_", "S") and set(filled) <= set("ACDEFGHIKLMNPQRSTVWY")
    assert all(before in ("_", after) for before, after in zip(HEAVY, filled, strict=True))
    again = run("protein", "infill", *ANTIBERTY, "--quiet", "--decoder", "naive:4", input=fasta)
    assert list(records(again)) == ["one heavy chain passes=1", "two passes=0"]


def test_sequences_are_generated_alike_for_one_seed():
    options = ("protein", "generate", *ANTIBERTY, "--quiet", "--decoder", "naive:20")
    two, more = records(run(*options, "-n", "2")), records(run(*options, "-n", "3"))
    assert list(two) == [header for header in more if "sample3" not in header]
    assert list(two.values()) == list(more.values())[:2] and all(s.endswith("TVSS") for s in two.values())
    (short,) = records(run(*options, "-n", "1", "--length", "30", "--seed", "4")).values()
    assert len(short) == 30


def test_what_masked_residues_tell_of_one_another(tmp_path):
    picture = tmp_path / "map.svg"
    fasta = f">one\n{HEAVY}\n"
    pairs = rows(run("protein", "map", *ANTIBERTY, "--probe", "--plot", str(picture), input=fasta))
    assert len(pairs) == 6 and {i for pair in pairs for i in pair["pair"]} == {30, 31, 32, 33}
    assert picture.stat().st_size > 1000
    options = ("protein", "probe", *ANTIBERTY, "--quiet", "--tolerance", "0")
    (probed,) = rows(run(*options, input=fasta))
    assert probed["name"] == "one" and probed["sequence"] == HEAVY and probed["masked"] == [30, 31, 32, 33]
    assert probed["passes"] <= 81  # one, and at most 20 residues at 4 places
    matrix = np.array(probed["mi_nats"])
    assert (matrix == matrix.T).all() and matrix[0, 1] == {tuple(p["pair"]): p["mi_nats"] for p in pairs}[30, 31]
    (drawn,) = rows(run(*options, "--mask-ratio", "0.1", input=f">two\n{HEAVY.replace('_', 'S')}\n"))
    assert 4 <= len(drawn["masked"]) == drawn["sequence"].count("_") <= 20


@pytest.mark.parametrize(
    ("command", "fasta", "said"),
    [
        ("infill", ">a\nMKX\n", "record 'a' has 'X' at position 3"),
        ("infill", ">a\n\n", "record 'a' is empty"),
        ("infill", "MK_\n", "holds text before the first header"),
        ("probe", ">a\nM_\n>a\nM_\n", "record 'a' occurs twice"),
        ("map", ">a\nMK_\n", "a map needs two"),
        ("map", ">a\n__\n>b\n__\n", "not of 2"),
        ("map", ">a\n____\n", "head"),  # none is shipped for this model
    ],
)
def test_bad_records_are_told_in_a_sentence(command, fasta, said):
    assert said in run("protein", command, *ANTIBERTY, input=fasta, code=1)


def test_bad_records_are_left_out_where_that_is_asked_for():
    text = f">a\nMKX\n>b\n{HEAVY}\n"
    result = CliRunner().invoke(main, ["protein", "infill", *ANTIBERTY, "--quiet", "--skip-invalid"], input=text)
    assert result.exit_code == 0 and list(records(result.stdout)) == ["b passes=4"]
    assert "left out: record 'a' has 'X' at position 3" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--weights", "nowhere/esmc.safetensors"], 2, "nowhere/esmc.safetensors"),
        (["--weights", str(CHECKPOINTS / "strong.safetensors")], 1, "holds no weights of esmc_small"),
        (["--weights", str(CHECKPOINTS)], 1, "is a folder"),
        (["--weights", str(CHECKPOINTS), *ANTIBERTY], 2, "antiberty comes with its package"),
    ],
)
def test_wrong_weights_are_told_at_once(arguments, code, said):
    told = run("protein", "generate", *arguments, code=code)
    assert said in " ".join(told.split())


def test_weights_are_found_from_the_current_folder(tmp_path, monkeypatch):
    shutil.copy(CHECKPOINTS / "esmc_small.safetensors", tmp_path / "mine.safetensors")
    monkeypatch.chdir(tmp_path)
    arguments = ("protein", "generate", "--quiet", "-n", "1", "--decoder", "naive:50")
    assert run(*arguments, "--weights", "mine.safetensors") == run(*arguments)


def test_input_is_read_compressed_too_and_named_where_it_is_bad(tmp_path):
    file = tmp_path / "puzzle.gz"
    file.write_bytes(gzip.compress(PUZZLE.encode()))
    assert rows(run("sudoku", "decode", "--quiet", str(file))) == rows(run("sudoku", "decode", "--quiet", input=PUZZLE))
    fasta = gzip.compress(f">one\n{HEAVY}\n".encode())
    assert list(records(run("protein", "infill", *ANTIBERTY, "--quiet", input=fasta))) == ["one passes=4"]
    assert "<stdin> is damaged or was cut" in run("protein", "infill", *ANTIBERTY, input=fasta[:-9], code=1)
    file.write_bytes(b">one\nMK\xff\n")
    assert f"{file}: record 'one' has '\ufffd' at position 3" in run("protein", "infill", str(file), code=1)


def test_removed_gaps_are_told_without_the_place_in_the_code():
    text = f">a\n{HEAVY[:30]}--{HEAVY[30:]}\n"
    result = CliRunner().invoke(main, ["protein", "infill", *ANTIBERTY, "--quiet"], input=text)
    assert result.stderr == "<stdin>: removed 2 gap characters, from record 'a'\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("arguments", [["sudoku", "decode"], ["protein", "generate", *ANTIBERTY]])
def test_a_full_disk_and_no_input_are_told_in_a_sentence(arguments):
    command = [sys.executable, "-m", "maskmi.cli", *arguments, "--quiet", "--decoder", "naive:81"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, input=PUZZLE, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT / "lib")
    assert done.returncode == 1 and done.stderr == "Error: the output could not be written: No space left on device\n"
    if "decode" in arguments:
        done = subprocess.run(
            ["sh", "-c", '"$@" <&-', "sh", *command], capture_output=True, text=True, cwd=ROOT / "lib"
        )
        assert done.returncode == 1 and done.stderr == "Error: there is no standard input: name a file\n"
