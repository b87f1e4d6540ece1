"""The sweeps: each setting once and told apart by its name, and the paper's figures beside the right ones."""

import json
from collections import Counter

import pytest
import torch

from maskmi import settings as names
from maskmi.decoding import MIGuided
from maskmi.head import PairHead
from maskmi.sudoku import sweep
from maskmi.sudoku.grid import relations
from maskmi.sudoku.mdm import WIDTH

HEADS = {name: PairHead(WIDTH, torch.as_tensor(relations())) for name in ("entropy_drop", "mixture", "tv")}
SWEEPS = {
    "short": list(sweep.short_sweep(HEADS)),
    "whole": list(sweep.whole_sweep(HEADS)),
    "oracle": list(sweep.oracle_sweep(0.01)),
    "jacobian": list(sweep.jacobian_sweep()),
    "paired": list(sweep.paired_sweep(HEADS, "sudoku")),
}
MI = {"decoder": "mi_guided", "budget": 0.3, "lam": 1.0, "alpha": 1.0}
MI |= {"reading": "cumulative", "order": "entropy", "matrix": "head"}


@pytest.mark.parametrize("name", SWEEPS)
def test_each_setting_of_a_sweep_comes_once_under_a_name_of_its_own(name):
    settings = [settings for settings, _ in SWEEPS[name]]
    assert Counter(json.dumps(s, sort_keys=True) for s in settings).most_common(1)[0][1] == 1
    assert Counter(map(names.label_of, settings)).most_common(1)[0][1] == 1


@pytest.mark.parametrize("name", SWEEPS)
def test_settings_are_json_and_say_what_their_decoder_is(name):
    for settings, decoder in SWEEPS[name]:
        assert json.loads(json.dumps(settings)) == settings
        for key in settings.keys() - {"decoder", "matrix"}:
            if hasattr(decoder, key):
                assert getattr(decoder, key) == settings[key], (settings, key)
        described = settings["decoder"].replace("_", "")
        assert type(decoder).__name__.lower() == described


def test_the_whole_sweep_begins_with_the_short_one():
    short, whole = ([settings for settings, _ in SWEEPS[name]] for name in ("short", "whole"))
    assert whole[: len(short)] == short and len(whole) > 40


def test_heads_that_are_not_there_are_left_out_of_the_whole_sweep():
    only = list(sweep.whole_sweep({"entropy_drop": HEADS["entropy_drop"]}))
    missing = [settings for settings, _ in SWEEPS["whole"] if settings.get("matrix") in ("head: mixture", "head: tv")]
    assert len(missing) == 6 and len(only) == len(SWEEPS["whole"]) - 6


def test_decoders_read_the_head_that_their_settings_name():
    for settings, decoder in SWEEPS["whole"]:
        matrix = settings.get("matrix", "")
        if isinstance(decoder, MIGuided) and matrix.startswith("head") and settings["lam"]:
            label = matrix.removeprefix("head").removeprefix(": ") or "entropy_drop"
            assert decoder.pairwise.head is HEADS[label]
    for settings, decoder in SWEEPS["oracle"] + SWEEPS["jacobian"]:
        assert decoder.pairwise.kind == {"probed": "entropy_drop"}.get(
            settings["matrix"], settings["matrix"].removeprefix("probed: ")
        )


def test_every_figure_of_the_papers_table_stands_beside_one_setting():
    rows = [sweep.paper_row(settings) for settings, _ in SWEEPS["short"]]
    found = [(row["passes"], row["solved"]) for row in rows if row]
    assert sorted(found) == sorted((passes, solved) for _, _, passes, solved in sweep.PAPER)
    assert len(found) == 7 and rows[-1] is None  # the confidence threshold is not in the paper
    whole = [sweep.paper_row(settings) for settings, _ in SWEEPS["whole"]]
    assert sum(row is not None for row in whole) == 7


@pytest.mark.parametrize(
    "change",
    [
        {"reading": "threshold"},
        {"order": "least_cost"},
        {"matrix": "probed"},
        {"matrix": "head: mixture"},
        {"alpha": 0.1},
        {"lam": 2.0},
        {"budget": 0.1},
        {"temperature": 1.0},
    ],
)
def test_the_paper_has_no_figure_for_other_forms_of_mi_guided_decoding(change):
    assert sweep.paper_row(MI) == {"passes": 15.2, "solved": 0.636}
    assert sweep.paper_row(MI | change) is None


def test_the_paper_orders_by_entropy_only():
    bounded = {"decoder": "entropy_bounded", "budget": 0.2, "proxy": "entropy", "test_set": "random"}
    assert sweep.paper_row(bounded) == {"passes": 15.3, "solved": 0.610}
    assert sweep.paper_row(bounded | {"proxy": "margin"}) is None


@pytest.mark.parametrize(
    ("settings", "curve", "label"),
    [
        ({"decoder": "sequential", "order": "entropy"}, "sequential", "sequential"),
        ({"decoder": "naive", "k": 4}, "naive", "naive k=4"),
        ({"decoder": "confidence_threshold", "threshold": 0.95}, "confidence threshold", "confidence threshold τ=0.95"),
        ({"decoder": "confidence_factor", "factor": 0.1}, "confidence factor", "confidence factor f=0.1"),
        ({"decoder": "entropy_bounded", "budget": 0.2, "proxy": "entropy"}, "EB", "EB γ=0.2"),
        ({"decoder": "entropy_bounded", "budget": 1.0, "proxy": "margin"}, "EB by margin", "EB by margin γ=1"),
        (MI, "MI (head)", "MI (head) γ=0.3"),
        (MI | {"lam": 0.0}, "entropy only (λ=0)", "entropy only (λ=0) γ=0.3"),
        (MI | {"lam": 2.0}, "MI (head) λ=2", "MI (head) λ=2 γ=0.3"),
        (MI | {"alpha": 0.0, "order": "pivot"}, "MI (head) α=0 pivot", "MI (head) α=0 pivot γ=0.3"),
        (
            MI | {"alpha": 0.0, "order": "least_cost", "reading": "threshold"},
            "MI (head) α=0 least cost threshold",
            "MI (head) α=0 least cost threshold γ=0.3",
        ),
    ],
)
def test_curves_and_labels(settings, curve, label):
    assert names.curve_of(settings) == curve
    assert names.label_of(settings) == label


@pytest.mark.parametrize(
    ("matrix", "family"),
    [
        ("head", "mi_guided"),
        ("none", "mi_guided"),
        ("head: mixture", "mi_guided"),
        ("head: tv", "tv_guided"),
        ("probed", "mi_oracle"),
        ("probed: mixture", "mi_oracle"),
        ("probed: tv", "tv_guided"),
        ("probed: jacobian", "jacobian_guided"),
        ("attention", "attention_guided"),
    ],
)
def test_the_family_of_mi_guided_decoding_is_its_matrix(matrix, family):
    assert names.family_of(MI | {"matrix": matrix}) == family
    assert names.family_of({"decoder": "naive", "k": 4}) == "naive"
