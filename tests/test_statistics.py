import copy
import fcntl
import json
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from maskmi import ROOT, metrics, provenance, statistics


def made(profile="quick"):
    return {**provenance.provenance(seed=3, dtype="bfloat16"), "profile": profile}


def results(solved=8):
    interval = metrics.wilson_interval(solved, 10)
    return {
        "backbone": {"name": "sudoku-strong", "parameters": 4158346, "sha256": "ab"},
        "head": {"parameters": 99969, "sha256": "cd", "r2": np.float32(0.75), "mae_nats": 0.01},
        "decoding": [
            {
                "decoder": "mi_guided",
                "settings": {"budget": 0.3, "lam": 1.0, "reading": "cumulative"},
                "n": np.int64(10),
                "passes": 15.24,
                "seconds_per_sequence": 0.0123,
                "paper": {"passes": 15.2, "solved": 0.636},
                "headline": True,
                "metrics": {"solved": interval},
            },
            {"decoder": "naive", "settings": {"k": 4}, "n": 10, "passes": 14, "metrics": {"solved": interval}},
        ],
    }


def test_provenance_names_no_host_and_no_path():
    fields = made()
    assert set(fields) == statistics.PROVENANCE
    assert fields["seed"] == 3 and fields["versions"]["torch"] and fields["threads"] >= 1
    text = json.dumps(fields)
    assert str(ROOT) not in text and "/" not in text
    assert not fields["code_revision"].startswith("-")


def test_revision_is_unknown_outside_git_and_dirty_with_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    assert provenance.code_revision() == "unknown"
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "a.py").write_text("1")
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for arguments in [("init", "-q"), ("add", "."), (*who, "commit", "-q", "-m", "a")]:
        assert provenance._git(*arguments) is not None
    clean = provenance.code_revision()
    assert len(clean) == 12
    (tmp_path / "figures.txt").write_text("a product")
    assert provenance.code_revision() == clean
    (tmp_path / "lib" / "a.py").write_text("2")
    assert provenance.code_revision() == f"{clean}-dirty"


def test_studies_are_written_and_merged(tmp_path):
    statistics.write_study(tmp_path, "sudoku", results(), made())
    statistics.merge(tmp_path, ["sudoku"])
    statistics.write_study(tmp_path, "sudoku_paper_strength", results(5), made())
    merged = statistics.load(statistics.merge(tmp_path, ["sudoku_paper_strength"]))
    assert list(merged["studies"]) == ["sudoku", "sudoku_paper_strength"]
    row = merged["studies"]["sudoku"]["decoding"][0]
    assert row["metrics"]["solved"] == pytest.approx(metrics.wilson_interval(8, 10)._asdict())
    assert row["n"] == 10 and "joint_error_nats" not in row
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "statistics.json",
        "statistics.sudoku.json",
        "statistics.sudoku_paper_strength.json",
    ]


def test_studies_that_end_together_are_merged_one_after_the_other(tmp_path):
    statistics.write_study(tmp_path, "sudoku", results(), made())
    folder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)  # as another run's merge holds it
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(statistics.merge, tmp_path, ["sudoku"])
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.3)
        assert not (tmp_path / "statistics.json").exists()
        os.close(folder)
        assert waiting.result(timeout=60).exists()


def test_profiles_are_not_mixed_but_a_study_may_be_replaced(tmp_path):
    statistics.write_study(tmp_path, "sudoku", results(), made("full"))
    statistics.merge(tmp_path, ["sudoku"])
    statistics.write_study(tmp_path, "sudoku_paper_strength", results(), made("quick"))
    with pytest.raises(ValueError, match="profile full"):
        statistics.merge(tmp_path, ["sudoku_paper_strength"])
    statistics.write_study(tmp_path, "sudoku", results(2), made("quick"))
    assert statistics.load(statistics.merge(tmp_path, ["sudoku"]))["provenance"]["profile"] == "quick"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s["head"].update(r2=float("nan")), "head.r2 is nan"),
        (lambda s: s["head"].update(r2=None), "head.r2 is null"),
        (lambda s: s["head"].pop("sha256"), "head lacks sha256"),
        (lambda s: s["decoding"][1].pop("passes"), r"decoding\[1\] lacks passes"),
        (lambda s: s["decoding"][0].update(n=0), "positive"),
        (lambda s: s["decoding"][0]["metrics"].clear(), "metrics is empty"),
        (lambda s: s["decoding"][0]["metrics"].update(valid=0.5), "metrics.valid must be an object"),
        (lambda s: s["decoding"][0]["metrics"].update(solved={"value": 1, "low": 0, "high": 0.5}), "outside"),
        (lambda s: s.pop("decoding"), "lacks decoding"),
        (lambda s: s.update(decodings=[]), "unknown section 'decodings'"),
    ],
)
def test_faulty_results_are_refused_and_nothing_is_written(tmp_path, change, message):
    faulty = results()
    change(faulty)
    with pytest.raises(ValueError, match=message):
        statistics.write_study(tmp_path, "sudoku", faulty, made())
    assert not list(tmp_path.iterdir())


def test_schema_and_provenance_are_held(tmp_path):
    good = json.loads(statistics.write_study(tmp_path, "sudoku", results(), made()).read_text())
    statistics.validate(good)
    for change, message in [({"schema": 2}, "schema 2"), ({"provenance": {}}, "provenance lacks")]:
        with pytest.raises(ValueError, match=message):
            statistics.validate({**copy.deepcopy(good), **change})
    (tmp_path / "cut.json").write_text('{"schema": 1,')
    with pytest.raises(ValueError, match="cut.json is not JSON"):
        statistics.load(tmp_path / "cut.json")


def test_table_shows_headline_rows_with_the_paper_beside(tmp_path):
    file = statistics.load(statistics.write_study(tmp_path, "sudoku", results(), made()))
    lines = statistics.results_table(file).splitlines()
    assert (
        "| mi_guided | budget 0.3, lam 1, reading cumulative | 10 | 15.2 | 80.0 [49.0, 94.3] | 0.0123 "
        "| 15.2 passes, 63.6 % solved |" in lines
    )
    assert not any("naive" in line for line in lines)
    assert "R² 0.750, mean absolute error (nats) 0.010" in " ".join(lines)
    del file["studies"]["sudoku"]["decoding"][0]["headline"]
    assert any(line.startswith("| naive | k 4 | 10 | 14.0 |") for line in statistics.results_table(file).splitlines())


def test_table_leaves_out_what_is_detail_and_shows_shares_in_per_cent(tmp_path):
    half = {"value": 0.5, "low": 0.25, "high": 0.75}
    own = results()
    exact = {
        name: dict.fromkeys(("value", "low", "high"), value) for name, value in (("distance", 0.5), ("clusters", 7))
    }
    shown = {"jsd_2mer": half, "jsd_2mer_random": half, "valid": half, **exact}
    own["decoding"] = [own["decoding"][1] | {"metrics": shown}]
    file = statistics.load(statistics.write_study(tmp_path, "antiberty", own, made()))
    header, _, row = (line for line in statistics.results_table(file).splitlines() if line.startswith("|"))
    assert header == "| decoder | settings | n | passes | jsd_2mer | valid % | distance | clusters |"
    assert row == "| naive | k 4 | 10 | 14.0 | 0.500 [0.250, 0.750] | 50.0 [25.0, 75.0] | 0.500 | 7 |"


def test_table_tells_a_study_that_other_code_made(tmp_path):
    file = statistics.load(statistics.write_study(tmp_path, "sudoku", results(), made()))
    assert "Made by code" not in statistics.results_table(file)
    file["studies"]["sudoku"]["provenance"] = file["provenance"] | {"code_revision": "0ld"}
    assert "Made by code 0ld." in statistics.results_table(file)
    file["studies"]["sudoku"]["provenance"]["dtype"] = "float16"
    assert "Made by code 0ld in float16." in statistics.results_table(file)


def test_table_names_the_test_set_where_there_are_several(tmp_path):
    own = results()
    own["decoding"][0]["test_set"] = "unique"
    file = statistics.load(statistics.write_study(tmp_path, "sudoku", own, made()))
    header, rule, row = (line for line in statistics.results_table(file).splitlines() if line.startswith("|"))
    assert header.startswith("| set | decoder | settings |") and rule.startswith("| --- | --- | --- | ---: |")
    assert row.startswith("| unique | mi_guided |")


def test_block_is_replaced_between_markers_only():
    text = f"a\n{statistics.BEGIN}\nold\n{statistics.END}\nb\n"
    replaced = statistics.replace_block(text, "new")
    assert replaced == f"a\n{statistics.BEGIN}\n\nnew\n\n{statistics.END}\nb\n"
    assert statistics.replace_block(replaced, "new") == replaced
    with pytest.raises(ValueError, match="once each"):
        statistics.replace_block("a", "new")


@pytest.mark.skipif(not (ROOT / "figures" / "statistics.json").exists(), reason="figures/ holds no full results yet")
def test_readme_holds_the_committed_statistics():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    file = statistics.load(ROOT / "figures" / "statistics.json")
    assert file["provenance"]["profile"] == "full"
    assert text == statistics.replace_block(text, statistics.results_table(file)), (
        "run python -m maskmi.statistics README.md"
    )
