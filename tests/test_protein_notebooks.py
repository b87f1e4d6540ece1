"""The protein notebooks and the tutorial on proteins, executed at smoke sizes."""

import json
import math
import re

import pytest
from conftest import ROOT
from notebooks import blank_figures, cells, smoke_run

from maskmi import run, statistics


@pytest.fixture(scope="module")
def protein_smoke(tmp_path_factory):
    """The six protein notebooks on a tiny ESM-C, which the first of them trains."""
    return smoke_run(tmp_path_factory.mktemp("protein smoke"), "esmc_small")


def test_protein_smoke_run_draws_every_figure(protein_smoke):
    drawn = {path.name for path in protein_smoke.glob("*.png")}
    expected = {
        *("training", "mi_map_probed", "estimators", "calibration", "mi_map", "learning_curve", "writing_steps"),
        *("jsd_2mer_against_passes", "jsd_3mer_against_passes", "log_pseudo_perplexity_against_passes", "variety"),
        *("error_against_budget", "infilling_recovery", "infilling_log_pseudo_perplexity"),
        *("contact_precision", "contact_maps"),
        *(f"arena_{task}{what}" for task in ("jsd_2mer", "jsd_3mer", "infilling") for what in ("", "_differences")),
        *("arena_generation_sweep", "arena_infilling_sweep", "arena_jsd_2mer_variety", "arena_jsd_3mer_variety"),
    }
    assert drawn == {f"esmc_small_{name}.png" for name in expected}
    assert (protein_smoke / "esmc_small_decodings.html").stat().st_size < 1_500_000
    assert not blank_figures(protein_smoke)


def test_protein_smoke_statistics_are_whole_and_say_what_was_run(protein_smoke):
    found = statistics.load(protein_smoke / "statistics.json")
    study = found["studies"]["esmc_small"]
    assert found["provenance"]["profile"] == "smoke"
    assert study["backbone"]["training"]["recipe"]["width"] == 32
    assert study["head"]["contexts"] == 12 and study["head"]["passes"] > 12
    assert set(study["head"]["labels"]) == {"entropy_drop", "mixture", "tv"}
    precision = {(row["method"], row["cut"]): row["value"] for row in study["structure"]["contact_precision"]}
    methods = {"distance", "attention", "head: mixture", "probed: mixture", "probed: jacobian", "chance"}
    assert {(method, cut) for method in methods for cut in ("L", "L/2", "L/5")} <= set(precision)
    assert all(0 <= value <= 1 for value in precision.values())
    by_set = {
        name: [row for row in study["decoding"] if row["test_set"] == name] for name in ("unconditional", "infilling")
    }
    assert len(by_set["unconditional"]) == len(by_set["infilling"]) == len(study["decoding"]) / 2
    for row in by_set["unconditional"]:
        assert row["n"] == 8 and 0 < row["passes"] <= 100
        assert {"jsd_2mer", "jsd_3mer_random", "jsd_2mer_entropy", "distance", "clusters"} <= set(row["metrics"])
        assert 0 < row["metrics"]["jsd_2mer"]["value"] < 0.7  # at most log 2
    assert {name for name in study["structure"]["natural"]} >= {
        "jsd_2mer",
        "jsd_3mer",
        "log_pseudo_perplexity",
        "clusters",
    }
    sequential = [row for row in by_set["unconditional"] if row["decoder"] == "sequential"]
    assert all(50 <= row["passes"] == row["steps"] <= 100 for row in sequential)
    assert all(0 <= row["metrics"]["recovery"]["value"] <= 1 for row in by_set["infilling"])


def test_protein_smoke_arena_holds_every_decoder_chosen_and_tested_at_both_tasks(protein_smoke):
    arena = statistics.load(protein_smoke / "statistics.json")["studies"]["esmc_small"]["arena"]
    sets = {"unconditional-validation", "unconditional", "infilling-validation", "infilling"}
    assert {row["test_set"] for row in arena["decoding"]} == sets
    expected = {"MI (head: mixture)", "MI (head: mixture), corrected", "sequential, random", "KLASS", "Saber", "P2"}
    for metric in ("jsd_2mer", "jsd_3mer", "recovery"):
        chosen = {row["contender"]: row for row in arena["chosen"] if row["metric"] == metric}
        assert expected < set(chosen)
        for row in chosen.values():
            assert row["n"] == (2 if metric == "recovery" else 4)
            assert 0 <= row["score"]["value"] <= 1 and row["passes"] <= row.get("cap", math.inf) + 5
    assert {one["contender"] for one in arena["diagnostics"]} == set(chosen)
    assert all(one["n"] == 2 and one["committed"] > 0 for one in arena["diagnostics"])
    for row in arena["decoding"]:
        assert set(row["metrics"]) <= {"jsd_2mer", "jsd_3mer", "distance", "recovery"} and row["metrics"]


def test_the_tutorial_runs_and_says_what_it_found(tmp_path):
    sizes = {"n_probed": 4, "n_unseen": 2, "n_rows": 1, "n_epochs": 2, "n_decoded": 2, "hidden_share": 0.1}
    sizes |= {"probe_tolerance": 0.5, "budgets": [2.0]}
    sizes |= {"output": str(tmp_path), "artefacts": str(tmp_path / "artefacts")}
    run.execute(ROOT / "notebooks" / "6_your_own_model.ipynb", tmp_path / "out.ipynb", sizes, limit=600)
    assert (tmp_path / "own_model_mi_map.png").stat().st_size
    shown = json.dumps([cell.outputs for cell in cells(tmp_path / "out.ipynb")])
    assert "a sequence gives other numbers when padded" in shown  # of the network with a fault
    assert "turn dropout off" in shown
    sentence = re.search(r"On 2 antibodies, sequential decoding recovers ([\d.]+) % .* in ([\d.]+) passes", shown)
    # A tenth of some 120 residues, each hidden by its own draw: 12 passes, give or take four deviations of 3.3.
    assert 0 < float(sentence[1]) <= 100 and 2 <= float(sentence[2]) <= 26
