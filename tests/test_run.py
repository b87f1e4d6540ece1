import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from maskmi import ROOT, run

PROFILE = """
studies: [sudoku]
sudoku: &sudoku {{time_limit_minutes: {minutes}, common: {{seed: 3}}, 0_write: {{n: 2}}}}
sudoku_paper_strength: *sudoku
esmc_small: *sudoku
antiberty: *sudoku
"""
# What an analyse notebook does, at its smallest.
WRITE = """
import sys
from pathlib import Path
from maskmi.parameters import check_parameters
from maskmi.provenance import provenance
from maskmi.statistics import write_study
p = check_parameters(globals(), study=str, output=str, seed=int, n=int)
print("drawing", p.n, sys.prefix)
(Path(p.output) / "a.png").write_bytes(b"a figure")
row = {"decoder": "d", "settings": {}, "n": p.n, "passes": 1, "metrics": {"solved": {"value": 1, "low": 0, "high": 1}}}
backbone = {"name": "b", "parameters": 1, "sha256": "a"}
write_study(p.output, p.study, {"backbone": backbone, "decoding": [row]}, provenance(p.seed))
"""
DEFAULTS = "study = 'sudoku'\noutput = '.'\nseed = 0\nn = 1"


@pytest.fixture
def checkout(tmp_path, make_notebook):
    """A copy of the project at a path with a space, with one small notebook in place of the study's."""
    root = tmp_path / "a copy"
    shutil.copytree(ROOT / "lib", root / "lib", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ["run_all.sh", "requirements.lock", "requirements-no-deps.lock", "pyproject.toml"]:
        shutil.copy(ROOT / name, root)
    for folder in set(run.STUDIES.values()):
        make_notebook(root / folder / "0_write.ipynb", DEFAULTS, "# A heading", WRITE)
    (root / "profiles").mkdir()
    (root / "profiles" / "quick.yaml").write_text(PROFILE.format(minutes=2))
    return root


def run_all(root, environment, *arguments, cwd=None):
    return subprocess.run(
        [str(root / "run_all.sh"), *arguments], cwd=cwd or root, env=environment, capture_output=True, text=True
    )


def test_run_from_another_folder_and_a_path_with_a_space(checkout, tmp_path, own_environment):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = run_all(checkout, own_environment, "--threads", "1", cwd=elsewhere)
    assert done.returncode == 0, done.stderr + done.stdout
    assert f"environment: {sys.prefix} (active)" in done.stdout
    assert "[sudoku 1/1] 0_write  0:0" in done.stdout and "A heading" in done.stdout
    assert f"drawing 2 {sys.prefix}" in done.stdout
    assert not list(elsewhere.iterdir())
    statistics = json.loads((checkout / "runs" / "quick" / "figures" / "statistics.json").read_text())
    assert statistics["provenance"]["profile"] == "quick" and statistics["provenance"]["seed"] == 3
    assert statistics["provenance"]["threads"] == 1
    assert statistics["studies"]["sudoku"]["decoding"][0]["n"] == 2
    executed = nbformat.read(checkout / "runs" / "quick" / "executed" / "sudoku" / "0_write.ipynb", as_version=4)
    assert executed.cells[-1].outputs
    source = nbformat.read(checkout / "notebooks" / "0_write.ipynb", as_version=4)
    assert not source.cells[-1].outputs and not (checkout / "figures").exists()


@pytest.fixture
def main_in(checkout, monkeypatch):
    """``run.main`` for the copy, in this process."""
    monkeypatch.setattr(run, "ROOT", checkout)
    monkeypatch.setattr(run, "PROFILES", {"quick": checkout / "profiles" / "quick.yaml"})
    for name in ["MASKMI_PROFILE", "PYTHONPATH"]:
        monkeypatch.setenv(name, os.environ.get(name, ""))  # which main sets
    return run.main


def test_profile_with_an_unknown_parameter_is_refused_before_anything_runs(main_in, checkout, capsys):
    (checkout / "profiles" / "quick.yaml").write_text("sudoku: {0_write: {n: 2, sed: 1}}\n")
    assert main_in([]) == 2
    assert "quick.yaml: sudoku: 0_write sets an unknown parameter 'sed'; did you mean 'seed'" in capsys.readouterr().err
    assert not (checkout / "runs").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sudoku: {common: {sede: 1}}", "unknown parameter 'sede'; did you mean 'seed'"),
        ("sudoku: {common: {output: here}}", "which the run sets itself"),
        ("sudoku: {0_wirte: {n: 1}}", "unknown entry '0_wirte'; did you mean '0_write'"),
        ("studies: [sudoko]", "unknown study 'sudoko'; did you mean 'sudoku'"),
        ("sudoko: {common: {seed: 1}}", "unknown entry 'sudoko'; did you mean 'sudoku'"),
        ("sudoku: {time_limit_minutes: 0}", "positive number"),
        ("sudoku: {time_limit_minutes: {0_writ: 5}}", "unknown notebook '0_writ'"),
    ],
)
def test_profile_faults(tmp_path, make_notebook, text, message):
    notebook = make_notebook(tmp_path / "0_write.ipynb", DEFAULTS)
    (tmp_path / "p.yaml").write_text(text)
    with pytest.raises(ValueError, match=message):
        run.load_profile(tmp_path / "p.yaml", {"sudoku": [notebook]})


def test_profile_gives_each_notebook_what_it_has(tmp_path, make_notebook):
    notebooks = [
        make_notebook(tmp_path / "10_last.ipynb", "n = 1\nm = [\n    1,\n    2,\n]"),
        make_notebook(tmp_path / "2_first.ipynb", DEFAULTS),
    ]
    assert run.find_notebooks(tmp_path) == notebooks[::-1]
    (tmp_path / "p.yaml").write_text(
        "first: {common: {n: 5, seed: 2}, 10_last: {n: 7, m: [3]}, time_limit_minutes: {2_first: 2}}"
    )
    profile = run.load_profile(tmp_path / "p.yaml", {"first": notebooks[::-1], "second": notebooks[:1]})
    assert profile["studies"] == ["first", "second"]
    assert profile["first"]["parameters"] == {"2_first": {"n": 5, "seed": 2}, "10_last": {"n": 7, "m": [3]}}
    assert profile["first"]["limits"] == {"2_first": 120, "10_last": 3600}
    assert profile["second"]["parameters"] == {"10_last": {}}


@pytest.mark.parametrize("name", sorted(run.PROFILES))
def test_shipped_profiles_fit_the_notebooks(name):
    notebooks = {study: run.find_notebooks(ROOT / folder) for study, folder in run.STUDIES.items()}
    assert set(run.load_profile(run.PROFILES[name], notebooks)["studies"]) <= set(run.STUDIES)


@pytest.mark.parametrize(
    ("cell", "limit", "message"),
    [
        ("before = 1\nraise KeyError('lost')", 60, "0_bad failed in cell 3 of .*A part.*KeyError: 'lost'"),
        ("import os\nos._exit(3)", 60, "0_bad: the kernel died in cell 3"),
        ("import time\ntime.sleep(60)", 4, "0_bad passed its limit of .* minutes in cell 3"),
    ],
)
def test_failing_notebooks_say_where(tmp_path, make_notebook, cell, limit, message):
    notebook = make_notebook(tmp_path / "0_bad.ipynb", "n = 1", "## A part", cell)
    with pytest.raises(run.StudyFailed, match=message) as failure:
        run.execute(notebook, tmp_path / "runs" / "0_bad.ipynb", {}, limit)
    assert (tmp_path / "runs" / "0_bad.ipynb").exists()
    if "KeyError" in message:
        assert "raise KeyError('lost')" in str(failure.value)


def test_a_failed_study_ends_the_run_with_an_error_and_the_next_is_run(main_in, checkout, make_notebook, capsys):
    first_fails = "assert study != 'sudoku', 'too bad'\n" + WRITE
    make_notebook(checkout / "notebooks" / "0_write.ipynb", DEFAULTS, first_fails)
    kept = checkout / "runs" / "quick" / "artefacts" / "sudoku" / "kept"
    kept.parent.mkdir(parents=True)
    kept.touch()
    assert main_in(["--study", "all", "--fresh"]) == 1
    printed = capsys.readouterr()
    assert "FAILED [sudoku] 0_write failed in cell" in printed.err
    assert "sudoku: failed: 0_write failed in cell" in printed.out and "AssertionError: too bad" in printed.out
    assert "sudoku_paper_strength: results in runs/quick/figures" in printed.out
    assert "esmc_300m" not in printed.out  # its weights are to be brought, so it runs where it is named
    statistics = json.loads((checkout / "runs" / "quick" / "figures" / "statistics.json").read_text())
    assert list(statistics["studies"]) == ["sudoku_paper_strength", "esmc_small", "antiberty"]
    assert not kept.exists()  # --fresh


def test_a_second_run_of_a_study_is_refused_while_one_goes_on(main_in, checkout, capsys):
    kept = checkout / "runs" / "quick" / "artefacts" / "sudoku" / "kept"
    kept.parent.mkdir(parents=True)
    kept.touch()
    with run._alone("sudoku", checkout / "runs" / "quick"):
        assert main_in(["--fresh"]) == 1
    assert "another run of sudoku is under way in runs/quick: wait for it" in capsys.readouterr().err
    assert kept.exists()  # the first one's artefacts
    assert main_in(["--fresh"]) == 0 and not kept.exists()


def test_notebooks_that_leave_no_results_are_a_failure(tmp_path, make_notebook):
    notebook = make_notebook(tmp_path / "0_idle.ipynb", "output = '.'")
    profile = {"parameters": {"0_idle": {}}, "limits": {"0_idle": 60}, "accepted": {"0_idle": {"output"}}}
    stale = tmp_path / "out" / "statistics.sudoku.json"
    stale.parent.mkdir()
    stale.write_text("{}")
    os.utime(stale, (1, 1))
    with pytest.raises(run.StudyFailed, match="none wrote statistics.sudoku.json"):
        run.run_study("sudoku", [notebook], profile, tmp_path / "runs", tmp_path / "out")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--profil", "full"], "unknown option '--profil'; did you mean '--profile'"),
        (["--thread=2"], "unknown option '--thread=2'; did you mean '--threads'"),
        (["tset"], "unknown option 'tset'; did you mean 'test'"),
        (["--profile", "ful"], "--profile cannot be 'ful'; did you mean 'full'"),
        (["--study", "sudoko"], "--study cannot be 'sudoko'; did you mean 'sudoku'"),
        (["--threads", "0"], "--threads must be at least 1"),
        (["--threads", "two"], "invalid int value: 'two'"),
        (["--output", str(ROOT / "figures")], "holds the full results"),
        (["--output", str(ROOT / "README.md")], "README.md is a file, not a folder"),
    ],
)
def test_options_refused(arguments, message):
    with pytest.raises(SystemExit) as refusal:
        run.parse_options(arguments)
    assert message in str(refusal.value)


def test_only_the_full_profile_writes_into_figures():
    assert run.parse_options(["--profile", "full"]).output == ROOT / "figures"
    assert run.parse_options([]).output == ROOT / "runs" / "quick" / "figures"


def test_help_names_every_option(own_environment):
    done = run_all(ROOT, own_environment, "--help", cwd=Path("/"))
    assert done.returncode == 0
    for option in ["--profile", "--study", "--output", "--fresh", "--threads", "test"]:
        assert option in done.stdout


def test_options_are_refused_before_an_environment_is_made(checkout, own_environment):
    environment = {**own_environment, "VIRTUAL_ENV": ""}
    done = run_all(checkout, environment, "--freh")
    assert done.returncode != 0 and "did you mean '--fresh'" in done.stderr
    assert not (checkout / ".venv").exists()


def test_an_unsuitable_environment_is_passed_over_and_an_interrupted_one_made_again(
    checkout, own_environment, tmp_path
):
    """With a lock that cannot be installed: nothing is downloaded, yet each step up to the installer is taken."""
    (checkout / "requirements.lock").write_text("no-such-package-of-maskmi==1\n")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", checkout / ".venv"], check=True)
    (checkout / ".venv" / "half-installed").touch()
    environment = {**own_environment, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    done = run_all(checkout, environment)
    assert done.returncode != 0
    assert "is not used: no-such-package-of-maskmi is missing" in done.stderr
    assert "environment: making" in done.stdout and "could not install requirements.lock" in done.stderr
    assert not (checkout / ".venv" / "half-installed").exists()
    assert not (checkout / ".venv" / ".maskmi-lock").exists()
