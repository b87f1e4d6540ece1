"""The notebooks: their form, and the whole study executed at smoke sizes, with its figures and statistics checked."""

import ast
import json
import os
import random
import re
import signal
import subprocess
import sys

import nbformat
import pytest
from conftest import ROOT
from notebooks import blank_figures, cells, smoke_run

from maskmi import run, statistics

FOLDERS = list(dict.fromkeys(run.STUDIES.values()))
NOTEBOOKS = [path for folder in FOLDERS for path in run.find_notebooks(ROOT / folder)]
TUTORIALS = [ROOT / "notebooks" / f"{name}.ipynb" for name in sorted(run.TUTORIALS)]
SHARED_DEFAULTS: dict[tuple, object] = {}  # by folder and name


def parameters(path) -> dict[str, object]:
    (cell,) = [cell for cell in cells(path) if "parameters" in cell.metadata.get("tags", [])]
    return {node.targets[0].id: ast.literal_eval(node.value) for node in ast.parse(cell.source).body}


def test_the_notebooks_of_each_kind_of_study_are_there():
    steps = ["0_pretrain", "1_probe", "2_train", "3_decode", "4_analyze", "5_arena"]
    found = {folder: [path.stem for path in run.find_notebooks(ROOT / folder)] for folder in FOLDERS}
    assert found == dict.fromkeys(["notebooks", "notebooks/protein"], steps)


@pytest.mark.parametrize("path", NOTEBOOKS + TUTORIALS, ids=lambda path: f"{path.parent.name}/{path.stem}")
class TestForm:
    def test_committed_without_outputs_and_with_the_stored_kernel_python3(self, path):
        notebook = nbformat.read(path, as_version=4)
        assert all(not cell.outputs and cell.execution_count is None for cell in cells(path))
        assert notebook.metadata.kernelspec.name == "python3"

    def test_parameters_are_commented_and_the_next_cell_checks_them_all(self, path):
        code = cells(path)
        assert "parameters" in code[0].metadata.tags
        lines = code[0].source.splitlines()
        uncommented = [line.split(" =")[0] for line in lines if "#" not in line]
        assert set(uncommented) <= {"seed", "head_epochs"}
        call = re.search(r"check_parameters\((.*)\)", code[1].source, flags=re.DOTALL).group(1)
        assert set(re.findall(r"^\s*(\w+)=", call, flags=re.MULTILINE)) == set(parameters(path))

    def test_every_parameter_is_read(self, path):
        later = "\n".join(cell.source for cell in cells(path)[2:])
        unread = [name for name in parameters(path) if not re.search(rf"\bp\.{name}\b", later)]
        assert not unread

    def test_a_parameter_has_one_default_in_all_notebooks(self, path):
        for name, value in parameters(path).items():
            assert SHARED_DEFAULTS.setdefault((path.parent, name), value) == value, name

    def test_it_reads_as_a_text(self, path):
        text = cells(path, "markdown")
        assert text[0].source.startswith("# ") and len(text) >= 5
        assert any("Conclusion" in cell.source for cell in text)
        assert max(len(cell.source.splitlines()) for cell in cells(path)[2:]) <= 45


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """The whole study by the command line's own entry, into a folder with a space in its name."""
    return smoke_run(tmp_path_factory.mktemp("smoke run"), "sudoku")


def test_smoke_run_draws_every_figure(smoke):
    drawn = {path.name for path in smoke.glob("*.png")}
    expected = {
        "training",
        "mi_map",
        "mi_by_relation",
        "calibration",
        "learning_curve",
        "decoding_steps",
        "quality_against_passes",
        "error_against_budget",
        "grades",
        "estimators",
        "arena_sweep",
        "arena_differences",
        "arena_test",
        "arena_diagnosis",
    }
    assert {f"sudoku_{name}.png" for name in expected} <= drawn
    assert 500_000 < (smoke / "sudoku_decodings.html").stat().st_size < 1_500_000
    assert not blank_figures(smoke)


def test_smoke_statistics_are_whole_and_say_what_was_run(smoke):
    found = statistics.load(smoke / "statistics.json")
    study = found["studies"]["sudoku"]
    assert found["provenance"]["profile"] == "smoke"
    assert study["backbone"]["parameters"] == 4_158_346 and study["head"]["parameters"] == 99_969
    assert len(study["backbone"]["sha256"]) == len(study["head"]["sha256"]) == 64
    assert study["head"]["contexts"] == 12 and study["head"]["passes"] > 12
    assert {"zero", "attention_regression", "categorical_jacobian"} <= set(study["head"]["baselines"])
    rows = {(row["decoder"], json.dumps(row["settings"])): row for row in study["decoding"]}
    decoders = {row["decoder"] for row in study["decoding"]}
    assert decoders == {"sequential", "naive", "entropy_bounded", "mi_guided", "confidence_threshold"}
    for row in rows.values():
        assert row["n"] == 12 and 0 < row["passes"] <= 58 and 0 <= row["metrics"]["solved"]["value"] <= 1
    sequential = next(row for row in study["decoding"] if row["decoder"] == "sequential")
    assert 50 <= sequential["passes"] <= 58 and sequential["passes"] == sequential["steps"]
    assert all(row["passes"] < sequential["passes"] for row in rows.values() if row["decoder"] != "sequential")


def test_smoke_arena_holds_every_decoder_chosen_and_tested(smoke):
    arena = statistics.load(smoke / "statistics.json")["studies"]["sudoku"]["arena"]
    assert {row["test_set"] for row in arena["decoding"]} == {"unique-validation", "unique"}
    chosen = {row["contender"]: row for row in arena["chosen"]}
    assert {"MI (head)", "MI (head), corrected", "sequential", "KLASS", "Saber", "WINO", "DepCap"} < set(chosen)
    for row in chosen.values():
        assert row["n"] == 8 and (row["passes"] <= 30 or row["contender"] == "sequential")
    assert {one["contender"] for one in arena["diagnostics"]} == set(chosen)
    assert all(one["n"] == 4 and 0 <= one["follows_singles"] <= 1 for one in arena["diagnostics"])


def test_a_second_run_gives_the_same_statistics_from_what_is_stored(smoke, tmp_path):
    """What an interrupted run, started again, relies on: stored results are read, and the rest comes out the same."""
    assert run.main(["--profile", "smoke", "--output", str(tmp_path)]) == 0
    first, second = (statistics.load(folder / "statistics.json")["studies"]["sudoku"] for folder in (smoke, tmp_path))
    assert without(first, "provenance") == without(second, "provenance")


def without(part, *names: str):
    """Part of a statistics file without the entries of these names, wherever they stand."""
    if isinstance(part, list):
        return [without(item, *names) for item in part]
    if isinstance(part, dict):
        return {key: without(value, *names) for key, value in part.items() if key not in names}
    return part


def test_a_run_killed_in_the_middle_goes_on_and_gives_the_same_statistics(smoke, tmp_path):
    command = [sys.executable, "-m", "maskmi.run", "--profile", "smoke", "--output", str(tmp_path)]
    with subprocess.Popen([*command, "--fresh"], stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        for line in process.stdout:
            if "2_train" in line and "cell 5" in line:  # probes are being stored, nothing else is yet
                os.killpg(process.pid, signal.SIGKILL)
                break
    assert process.returncode == -signal.SIGKILL
    assert run.main(command[3:]) == 0
    first, second = (statistics.load(folder / "statistics.json")["studies"]["sudoku"] for folder in (smoke, tmp_path))
    differ = ("provenance", "seconds_per_sequence")  # no two runs share wall times
    assert without(first, *differ) == without(second, *differ)


@pytest.mark.slow
def test_twenty_kills_at_random_moments_change_nothing(smoke, tmp_path):
    """What is killed is a whole run, wherever it is; one that ends before its moment begins anew."""
    moments = random.Random(0)
    command = [sys.executable, "-m", "maskmi.run", "--profile", "smoke", "--output", str(tmp_path)]
    kills, options = 0, ["--fresh"]
    while kills < 20:
        with subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL, start_new_session=True) as process:
            try:
                assert process.wait(moments.uniform(1, 25)) == 0
                options = ["--fresh"]
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                kills, options = kills + 1, []
    assert run.main([*command[3:], *options]) == 0
    first, second = (statistics.load(folder / "statistics.json")["studies"]["sudoku"] for folder in (smoke, tmp_path))
    differ = ("provenance", "seconds_per_sequence")
    assert without(first, *differ) == without(second, *differ)


def test_a_mistyped_parameter_is_refused_with_the_nearest_name(tmp_path):
    command = [
        sys.executable,
        "-m",
        "papermill",
        str(ROOT / "notebooks" / "3_decode.ipynb"),
        str(tmp_path / "out.ipynb"),
    ]
    done = subprocess.run(
        [*command, "-k", "python3", "-p", "n_puzzels", "5"], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode != 0
    assert "unknown parameter 'n_puzzels'; did you mean 'n_puzzles'?" in done.stderr
