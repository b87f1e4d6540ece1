"""The arena: choosing, pairing and the frontier by hand, names of sweeps, diagnoses of traces, figures, statistics."""

import hashlib
import json
import math
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.colors import to_hex

from maskmi import arena, arena_figures, decoding, provenance, statistics
from maskmi import settings as names
from maskmi.arena_runs import is_dear
from maskmi.artefacts import Artefacts
from maskmi.decoding import HeadMatrix, Naive
from maskmi.decoding.loop import Trace
from maskmi.ensembles import ensembled, run_ensembles
from maskmi.head import PairHead
from maskmi.metrics import wilson_interval
from maskmi.parallel import InThreads
from maskmi.protein import arena as protein_arena
from maskmi.protein.relations import relations as protein_relations
from maskmi.settings import mi_setting
from maskmi.study import Backbone, modules_of
from maskmi.sudoku import arena as sudoku_arena
from maskmi.sudoku.decoding_reports import diagnosis_table
from maskmi.sudoku.diagnosis import diagnose
from maskmi.sudoku.grid import relations
from maskmi.sudoku.mdm import MASK, WIDTH, SudokuMDM
from maskmi.sudoku.solver import random_grids

HEADS = {name: PairHead(WIDTH, torch.as_tensor(relations())) for name in ("entropy_drop", "mixture", "tv")}
SHORT, WHOLE = sudoku_arena.short_arena(HEADS), sudoku_arena.whole_arena(HEADS)
TIES = sudoku_arena.tie_arena("short"), sudoku_arena.tie_arena("whole")
PROTEIN_HEADS = {name: PairHead(8, protein_relations, 4) for name in HEADS}
PROTEINS = protein_arena.short_arena(PROTEIN_HEADS), protein_arena.whole_arena(PROTEIN_HEADS)
EVERY = [SHORT, WHOLE, *TIES, *PROTEINS, protein_arena.tie_arena("short"), protein_arena.tie_arena("whole")]
NAMES = ["short", "whole", "short ties", "whole ties"]
NAMES += [f"proteins: {name}" for name in NAMES]


def outcome(solved, passes):
    """As study.decoded gives it, for as many sequences as there are in ``solved``; each takes ``passes``."""
    n = len(solved)
    return {
        "solved": torch.tensor(solved),
        "passes": torch.as_tensor(passes).expand(n),
        "steps": torch.as_tensor(passes).expand(n),
        "batched_calls": torch.tensor(7),
        "seconds": torch.tensor(0.5, dtype=torch.float64),
    }


def naive(k):
    return {"decoder": "naive", "k": k}


def margin(k):
    return {"decoder": "margin", "k": k}


# Choosing


def test_a_sweep_becomes_a_table_of_means():
    found = outcome([True, True, False, False], torch.tensor([2, 4, 6, 8]))
    (row,) = arena.sweep_table([(naive(4), found)], "solved").to_dict("records")
    assert (row["contender"], row["family"], row["label"], row["n"]) == ("naive", "naive", "naive k=4", 4)
    assert (row["passes"], row["steps"], row["calls"], row["seconds"]) == (5, 5, 7, 0.125)
    assert (row["value"], row["low"], row["high"]) == wilson_interval(2, 4)


def test_a_score_may_be_a_function_and_its_interval_is_then_of_its_mean():
    found = outcome([True, False], torch.tensor([2, 4]))
    table = arena.sweep_table([(naive(4), found)], lambda o: -o["passes"])
    (row,) = table.to_dict("records")
    assert row["value"] == -3 and -4 <= row["low"] <= -3 <= row["high"] <= -2


def test_a_score_that_is_not_there_or_not_finite_is_refused():
    with pytest.raises(ValueError, match="no score 'valid'; it has .*solved"):
        arena.scores_of(outcome([True], 3), "valid")
    with pytest.raises(ValueError, match="one finite number a sequence"):
        arena.scores_of(outcome([math.nan], 3), "solved")
    with pytest.raises(ValueError, match="one finite number a sequence"):
        arena.scores_of(outcome([True], 3), lambda o: o["seconds"])


def test_the_frontier_keeps_what_nothing_beats():
    cost = [1, 2, 3, 3, 4, 5, 5]
    value = [1, 3, 2, 4, 4, 5, 5]
    # (3, 2) is worse than (2, 3); (4, 4) costs more than (3, 4) for the same; the last two are equal.
    assert arena.frontier(cost, value).tolist() == [True, True, False, True, False, True, True]
    with pytest.raises(ValueError, match="all finite"):
        arena.frontier([1, math.nan], [1, 2])
    with pytest.raises(ValueError, match="as many costs as values"):
        arena.frontier([1, 2], [1])


def test_settings_on_few_sequences_are_not_on_the_frontier():
    table = pd.DataFrame({"n": [8, 8, 8, 2], "passes": [9.0, 5.0, 12.0, 20.0], "value": [0.6, 0.4, 0.5, 1.0]})
    assert list(arena.best_rows(table).index) == [1, 0]  # 12 passes for 0.5 are beaten by 9 for 0.6
    assert list(arena.best_rows(table[table.n == 2]).index) == [3]


def test_each_contender_has_its_best_setting_within_each_cap():
    results = [
        (naive(10), outcome([True, False, False, False], 5)),
        (naive(7), outcome([True, True, False, False], 8)),
        (naive(6), outcome([True, True, False, False], 7)),  # as good, and cheaper
        (naive(4), outcome([True, False, False, False], 14)),  # worse, and dearer
        (margin(2), outcome([True, True, True, False], 27)),  # keeps no cap
        (margin(1), outcome([True, True, True, False], 54)),
    ]
    chosen = arena.choose(arena.sweep_table(results, "solved"), [5, 10, 15])
    assert chosen.to_dict("records") == [
        {"contender": "naive", "cap": 5, "row": 0},
        {"contender": "naive", "cap": 10, "row": 2},
        {"contender": "naive", "cap": 15, "row": 2},
        {"contender": "margin", "cap": arena.NO_CAP, "row": 4},
    ]


# Pairing


def test_choices_are_paired_under_their_cap_over_the_sequences_that_both_decoded():
    sweep = [
        (naive(10), outcome([True, False, False, False], 4)),
        (naive(7), outcome([True, True, False, True], 8)),
        (margin(7), outcome([False, True, True, False], 9)),
        (margin(1), outcome([True, True], 54)),
    ]
    rows = [("naive", 5, 0), ("naive", 10, 1), ("margin", 10, 2), ("margin", arena.NO_CAP, 3)]
    chosen = pd.DataFrame(rows, columns=["contender", "cap", "row"])
    table = arena.against(chosen, sweep, "naive", "solved")
    assert table.label.tolist() == ["naive k=10", "naive k=7", "margin k=7", "margin k=1"]
    assert table.reference.tolist() == ["naive k=10", "naive k=7", "naive k=7", "naive k=7"]
    # Margin less naive: -1, 0, 1, -1 of four; 0, 0 of the first two.
    assert table.difference.tolist() == [0, 0, -0.25, 0]
    # It alone solves one, naive alone two: of three flips at most one goes its way with (1 + 3) / 8, twice.
    assert table.p_value.tolist() == [1, 1, 1, 1]
    assert table.n.tolist() == [4, 4, 4, 2] and table.reference_passes.tolist() == [4, 8, 8, 8]
    third = table.iloc[2]
    assert third.difference_low < -0.25 < third.difference_high and third.value == 0.5


def test_a_contender_that_keeps_a_cap_alone_has_no_difference():
    sweep = [(naive(7), outcome([True, False], 8)), (margin(20), outcome([True, False], 3))]
    chosen = pd.DataFrame({"contender": ["naive", "margin"], "cap": [10, 5], "row": [0, 1]})
    table = arena.against(chosen, sweep, "naive", "solved")
    assert math.isnan(table.difference[1]) and table.value[1] == 0.5
    of_naive, of_margin = arena.chosen_rows(table)
    assert of_naive["difference"] == {"value": 0, "low": 0, "high": 0} and of_naive["cap"] == 10
    assert of_margin.keys() == {"contender", "label", "n", "passes", "cap", "score"}


def test_scores_that_are_no_rates_have_no_mcnemar():
    sweep = [(naive(7), outcome([0.5, 0.2], 8)), (margin(7), outcome([0.7, 0.3], 9))]
    chosen = pd.DataFrame({"contender": ["naive", "margin"], "cap": [10, arena.NO_CAP], "row": [0, 1]})
    table = arena.against(chosen, sweep, "naive", "solved")
    assert table.difference[1] == pytest.approx(0.15) and "p_value" not in table
    first, second = arena.chosen_rows(table)
    assert "cap" not in second and "p_value" not in first


def test_a_rival_is_compared_with_the_reference_interpolated_at_its_passes():
    reference = [  # in no order, and one that takes as many passes as another
        (naive(4), outcome([True, True, False, False], 20)),
        (naive(4), outcome([True, False, False, False], 10)),
        (naive(4), outcome([False, False, True, True], 20)),
    ]
    table = arena.paired_comparison(reference, [(margin(4), outcome([True, True, True, False], 14))])
    (row,) = table.to_dict("records")
    # At 14 passes, 0.4 of the way: the reference solves 1, 0.4, 0, 0; the rival is ahead by 0, 0.6, 1, 0.
    assert row["decoder"] == "margin k=4" and row["passes"] == 14 and row["n"] == 4
    assert row["solved"] == 0.75 and row["reference"] == pytest.approx(0.35) and row["difference"] == pytest.approx(0.4)
    assert 0 <= row["low"] < 0.4 < row["high"] <= 1


@pytest.mark.parametrize(("passes", "reference", "met"), [(10, 0.25, 10), (20, 0.5, 20), (20.5, 0.5, 20)])
def test_a_rival_with_more_passes_than_the_reference_ever_takes_meets_its_dearest_setting(passes, reference, met):
    curve = [(naive(4), outcome([True, False, False, False], 10)), (naive(4), outcome([True, True, False, False], 20))]
    (row,) = arena.paired_comparison(curve, [(margin(4), outcome([True] * 4, passes))]).to_dict("records")
    assert row["reference"] == pytest.approx(reference)
    assert (row["passes"], row["reference_passes"]) == (passes, met)


def test_a_rival_with_fewer_passes_than_the_reference_ever_takes_is_left_out():
    curve = [(naive(4), outcome([True, False], 10)), (naive(4), outcome([True, True], 20))]
    assert arena.paired_comparison(curve, [(margin(4), outcome([True, True], 9.5))]).empty


def test_dearer_contenders_meet_the_curve_on_the_sequences_they_decoded():
    curve = [(naive(7), outcome([True, False, True, True], 8)), (naive(4), outcome([True, True, True, True], 14))]
    (row,) = arena.paired_comparison(curve, [(margin(4), outcome([False, True], 14))]).to_dict("records")
    assert (row["n"], row["solved"], row["reference"], row["difference"]) == (2, 0.5, 1.0, -0.5)


def test_a_clear_lead_is_an_interval_above_zero():
    table = pd.DataFrame({"difference": [0.1, 0.2, 0.3], "difference_low": [0.01, 0.02, -0.1]})
    assert arena.clear_leads(table).difference.tolist() == [0.2, 0.1]


# Names and sweeps


@pytest.mark.parametrize("sweep", EVERY, ids=NAMES)
def test_each_setting_comes_once_under_a_name_of_its_own_and_says_what_its_decoder_is(sweep):
    assert Counter(map(names.label_of, (s for s, _ in sweep))).most_common(1)[0][1] == 1
    for settings, decoder in sweep:
        assert json.loads(json.dumps(settings)) == settings
        described = settings.get("inner", settings["decoder"]).replace("_", "")
        assert type(decoder).__name__.lower() == described
        inner = getattr(decoder, "inner", decoder)
        for key in settings.keys() - {"decoder", "inner", "matrix", "steps", "score"}:
            assert settings[key] == (getattr(decoder, key) if hasattr(decoder, key) else getattr(inner, key))


@pytest.mark.parametrize(("short", "whole"), [(SHORT, WHOLE), PROTEINS], ids=["Sudoku", "proteins"])
def test_both_sweeps_hold_every_decoder_and_the_whole_one_begins_with_the_short_one(short, whole):
    kinds = {type(decoder).__name__ for _, decoder in short}
    others = {"decode", "decode_tie", "joint_error", "Decision", "View", "Decoded", "Trace", "JointError"}
    assert kinds == {name for name in decoding.__all__ if not name.endswith("Matrix")} - others
    assert [settings for settings, _ in whole[: len(short)]] == [settings for settings, _ in short]
    assert {names.contender_of(s) for s, _ in whole} > {names.contender_of(s) for s, _ in short}


@pytest.mark.parametrize(
    ("sweep", "count", "digest"),
    [
        (SHORT, 30, "0f15e3a0c0111707"),
        (WHOLE, 150, "3ee17e52d7f1a9a2"),
        (TIES[0], 2, "dac1436a90d8a067"),
        (TIES[1], 16, "99a2c7d604e3a491"),
    ],
    ids=NAMES[:4],
)
def test_the_sweeps_are_those_that_results_are_stored_for(sweep, count, digest):
    """Setting for setting, in order: a change is meant, and asks for new results and for a new digest here."""
    described = json.dumps([settings for settings, _ in sweep]).encode()
    assert (len(sweep), hashlib.sha256(described).hexdigest()[:16]) == (count, digest)


def test_a_grid_varies_its_last_choice_first():
    found = [
        settings for settings, _ in names.grid("klass", decoding.KLASS, threshold=(0.5, 0.9), kl=1.0, history=(1, 2))
    ]
    assert found == [
        {"decoder": "klass", "threshold": threshold, "kl": 1.0, "history": history}
        for threshold, history in [(0.5, 1), (0.5, 2), (0.9, 1), (0.9, 2)]
    ]


def test_a_head_that_is_not_there_is_left_out():
    only = sudoku_arena.whole_arena({"entropy_drop": HEADS["entropy_drop"]})
    assert {s["matrix"] for s, _ in WHOLE if "matrix" in s} - {s["matrix"] for s, _ in only if "matrix" in s} == {
        "head: tv"
    }


@pytest.mark.parametrize(
    ("settings", "contender", "label"),
    [
        ({"decoder": "klass", "threshold": 0.9, "kl": 0.1, "history": 1}, "KLASS", "KLASS τ=0.9 ε=0.1 history=1"),
        ({"decoder": "saber", "n": 4, "check": "in_place"}, "Saber", "Saber n=4"),
        ({"decoder": "saber", "n": 4, "check": "leave_one_out"}, "Saber, leave-one-out", "Saber, leave-one-out n=4"),
        ({"decoder": "dilated"}, "dilated", "dilated"),
        ({"decoder": "tie", "inner": "naive", "k": 7, "steps": 2}, "TIE (naive)", "TIE (naive) k=7 T=2"),
        (
            {"decoder": "entropy_bounded", "budget": 0.1, "proxy": "margin"},
            "EB",
            "EB by margin γ=0.1",
        ),
    ],
)
def test_contenders_and_labels(settings, contender, label):
    assert names.contender_of(settings) == contender and names.label_of(settings) == label


def test_a_corrected_decoder_is_known_by_what_it_corrects():
    settings, decoder = names.corrected_setting(mi_setting(0.6, HEADS["tv"], "head: tv"), 0.1, dependence=2.0, every=3)
    assert names.label_of(settings) == "MI (head: tv), corrected γ=0.6 τ=0.1 δ=2 every 3"
    assert decoder.inner.budget == 0.6 and decoder.threshold == 0.1
    other = mi_setting(0.3, HEADS["tv"], "head: tv", reading="threshold")
    assert names.contender_of(names.corrected_setting(other, 0.5)[0]) == "MI (head: tv), corrected"
    assert {"maskmi.decoding.corrected", "maskmi.decoding.mi_guided"} < set(modules_of(decoder))


def test_dear_are_the_checks_of_all_cells():
    dear = [settings for settings, _ in WHOLE if is_dear(settings)]
    assert {settings["decoder"] for settings in dear} == {"saber", "wino", "p2", "corrected"}
    assert not any("dependence" in settings or settings.get("check") == "in_place" for settings in dear)


# Running


@pytest.fixture
def recorded(monkeypatch):
    """``run`` without models: each part of a sweep gives its own name, its place and the number of puzzles."""

    def fake(backbone, store, sweep, test_set, n, **options):
        return [(settings, (test_set, n)) for settings, _ in sweep]

    monkeypatch.setattr(sudoku_arena, "run_sweep", fake)
    ensembles = lambda both, store, sweep, states, name, **o: [(s, (name, len(states))) for s, _ in sweep]  # noqa: E731
    monkeypatch.setattr(sudoku_arena, "run_ensembles", ensembles)


def test_results_come_in_the_order_of_the_sweep_and_dear_ones_on_fewer_puzzles(recorded):
    sweep = [*TIES[0], *WHOLE]
    found = sudoku_arena.run(None, None, sweep, "unique-validation", 9, 2, second="other")
    assert [settings for settings, _ in found] == [settings for settings, _ in sweep]
    for settings, (name, n) in found:
        assert (name, n) == ("unique-validation", 2 if is_dear(settings) else 9)


def test_ensembles_without_a_second_model_are_refused(recorded):
    with pytest.raises(ValueError, match="need a second model"):
        sudoku_arena.run(None, None, TIES[0], "unique-validation", 9, 2)


def backbone_of(seed):
    torch.manual_seed(seed)
    network = SudokuMDM(2).eval().requires_grad_(False)
    return Backbone(f"random {seed}", network, InThreads(network), f"sha {seed}", {}, torch.as_tensor(relations()))


def test_an_ensemble_is_judged_like_a_decoder_and_made_once(tmp_path):
    both, store = (backbone_of(0), backbone_of(1)), Artefacts(tmp_path)
    states = torch.from_numpy(random_grids(3, 7).astype(np.int64))
    states[:, :4] = MASK
    settings = {"decoder": "tie", "inner": "naive", "k": 2, "steps": 2, "score": "confidence"}
    judge = {"judge": lambda tokens: {"solved": (tokens != MASK).all(1)}}
    ((named, found),) = run_ensembles(both, store, [(settings, Naive(2))], states, name="four", **judge)
    assert named == settings | {"test_set": "four"} and found["solved"].all()
    # Four blanks at two a step: two steps of two models each.
    assert found["passes"].tolist() == [4, 4, 4] and found["steps"].tolist() == [2, 2, 2]
    assert not found["joint_error"].numel()
    again = ensembled(both, store, states, Naive(2), named, judge=lambda tokens: 1 / 0)
    assert again["passes"].equal(found["passes"])
    with pytest.raises(ZeroDivisionError):  # the other way round is another ensemble
        ensembled(both[::-1], store, states, Naive(2), named, judge=lambda tokens: 1 / 0)
    decoder = mi_setting(0.3, HeadMatrix(HEADS["tv"]), "head: tv")[1]
    with pytest.raises(ValueError, match="head belongs to one backbone"):
        ensembled(both, store, states, decoder, named, **judge)


# How decoders work

# Row r holds 3 (r mod 3) + r div 3, and counts up from there.
FULL = np.array([[(3 * (r % 3) + r // 3 + c) % 9 for c in range(9)] for r in range(9)], np.uint8).reshape(81)


def trace_of(commits, remasks=()):
    """From rows (sequence, step, cell, digit) and (sequence, step, cell)."""
    named = ("sequence", "step", "position", "value")
    columns = torch.tensor(commits, dtype=torch.long).reshape(-1, 4).unbind(1)
    again = torch.tensor(remasks, dtype=torch.long).reshape(-1, 3).unbind(1)
    took = torch.tensor(sorted({(row[0], row[1]) for row in commits}), dtype=torch.long).reshape(-1, 2).unbind(1)
    steps = dict(zip(named, took, strict=False))
    return Trace(dict(zip(named, columns, strict=True)), dict(zip(named[:3], again, strict=True)), steps)


def test_a_diagnosis_by_hand():
    puzzles = np.stack([FULL, FULL])
    puzzles[:, 0] = puzzles[:, 1] = MASK
    # Cells 0 and 1 of row 0 hold 0 and 1. The first puzzle is filled right, digit by digit, the first of them twice;
    # in the second, 1 is put where 0 belongs, beside a given 1 in column 0 and in the box, and then 1 again beside it.
    trace = trace_of(
        [(0, 0, 0, 0), (0, 1, 1, 1), (0, 2, 0, 0), (1, 0, 0, 1), (1, 1, 1, 1)],
        remasks=[(0, 1, 0)],
    )
    found = diagnose(puzzles, trace)
    assert found["n"] == 2 and found["remasked"] == 0.5 and found["flip_flop"] == 1.0
    assert found["committed"] == 1.0  # five digits in five steps
    # Naked singles but the two digits of the second puzzle: one clashes, and then the grid is broken.
    assert found["follows_singles"] == found["support"]["naked single"] == pytest.approx(3 / 5)
    assert found["support"]["conflict"] == found["support"]["broken"] == pytest.approx(1 / 5)
    assert found["failed"] == 0.5
    # Row 0 keeps its place for 1, so a column breaks first, with its given, in the first of two steps.
    assert found["kinds"] == {"row": 0, "column": 1, "box": 0}
    assert found["clashes"] == {"given": 1, "earlier": 0, "same step": 0}
    assert found["dead"] == found["broken"] == 0.5
    table = diagnosis_table([found | {"label": "by hand"}])
    assert table.loc[0, "follows_singles"] == pytest.approx(60) and table.loc[0, "clash: given"] == 100


def test_what_did_not_happen_is_left_out_of_a_diagnosis():
    puzzle = FULL.copy()
    puzzle[0] = MASK
    found = diagnose(puzzle[None], trace_of([(0, 0, 0, 0)]))
    assert found["failed"] == found["remasked"] == 0 and found["follows_singles"] == 1
    assert not {"flip_flop", "kinds", "clashes", "dead", "broken"} & set(found)
    assert np.isnan(diagnosis_table([found | {"label": "one"}]).loc[0, "flip_flop"])


# Figures


def figure_table():
    rows = [("MI (head)", 5, 0.8), ("MI (head)", 9, 0.9), ("MI (head)", 10, 0.7), ("EB", 5, 0.7), ("EB", 8, 0.95)]
    rows += [("naive", 14, 0.5)]
    table = pd.DataFrame(rows, columns=["contender", "passes", "value"])
    return table.assign(low=table.value - 0.1, high=table.value + 0.04, calls=10, steps=table.passes, seconds=0.1, n=8)


def test_the_arenas_figure_joins_what_a_contender_does_best_and_marks_the_frontier():
    figure = arena_figures.quality_against_costs(figure_table(), "MI (head)", ["passes", "steps"])
    passes, _, steps = figure.axes  # the large panel, and a small one for each cost
    lines = {c.lines[0].get_color(): c.lines[0].get_xydata().tolist() for c in passes.containers}
    assert lines[arena_figures.OURS] == [[5, 80], [9, pytest.approx(90)]]  # (10, 70) is a faint dot
    (stairs,) = [line for line in passes.lines if line.get_gid() == "frontier"]
    assert stairs.get_xydata().tolist() == [[5, 80], [8, 95], [14, 95]]
    (legend,) = figure.legends
    labels = [text.get_text() for text in legend.get_texts()]
    assert labels == ["Pareto frontier", "MI (head)", "EB", "", "naive"]  # naive is not on the frontier
    assert (passes.get_xlabel(), steps.get_xlabel()) == ("passes per sequence", "steps per sequence")
    with pytest.raises(ValueError, match="lacks calls"):
        arena_figures.quality_against_costs(figure_table().drop(columns="calls"), "MI (head)")


def test_differences_are_coloured_by_what_their_interval_says():
    table = pd.DataFrame(
        {
            "contender": ["MI (head)", "EB", "naive", "KLASS", "margin", "EB", "sequential"],
            "cap": [10, 10, 10, 10, 10, 5, arena.NO_CAP],
            "difference": [0, 0.05, -0.2, 0.0, 0.01, math.nan, 0.3],
            "difference_low": [0, 0.01, -0.3, 0.0, -0.02, math.nan, 0.2],
            "difference_high": [0, 0.09, -0.1, 0.0, 0.04, math.nan, 0.4],
        }
    )
    figure = arena_figures.paired_differences(table, "MI (head)", "points")
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["naive", "KLASS", "margin", "EB"]
    drawn = {to_hex(c.lines[0].get_color()): c.lines[0].get_xydata().tolist() for c in axes.containers}
    assert drawn == {"#999999": [[0, 1], [1, 2]], "#009e73": [[5, 3]], "#882255": [[-20, 0]]}
    uncapped = arena_figures.paired_differences(table[np.isinf(table.cap)], "MI (head)", "points")
    assert [axes.get_title() for axes in uncapped.axes] == ["any passes"]
    with pytest.raises(ValueError, match="no difference to draw"):
        arena_figures.paired_differences(table[table.contender == "MI (head)"], "MI (head)", "points")


def test_shares_are_stacked():
    parts = {"a": pd.DataFrame({"x": [30.0, 50.0], "y": [70.0, 50.0]}, index=["one", "two"])}
    (axes,) = arena_figures.shares(parts, {"a": "share (%)"}).axes
    bars = [(bar.get_x(), bar.get_width()) for bar in axes.patches]
    assert bars == [(0, 30), (0, 50), (30, 70), (50, 50)]
    with pytest.raises(ValueError, match="rows for each panel"):
        arena_figures.shares({"a": pd.DataFrame()}, {"a": "share (%)"})


# Statistics

BACKBONE = {"name": "strong", "parameters": 1, "sha256": "ab"}
SECTION = {
    "reference": "MI (head)",
    "caps": [5],
    "decoding": [],
    "chosen": [{"contender": "EB", "label": "EB γ=1", "n": 4, "passes": 4.5, "score": wilson_interval(1, 4)}],
}


def made(profile="quick"):
    return {**provenance.provenance(seed=3), "profile": profile}


def test_the_arena_joins_its_study_and_replaces_its_own_earlier_section(tmp_path):
    row = {
        "decoder": "naive",
        "settings": {"k": 4},
        "n": 4,
        "passes": 14.0,
        "metrics": {"solved": wilson_interval(1, 4)},
    }
    statistics.write_study(tmp_path, "sudoku", {"backbone": BACKBONE, "decoding": [row]}, made())
    for caps in ([5], [10]):
        path = statistics.write_arena(tmp_path, "sudoku", SECTION | {"caps": caps}, BACKBONE, made())
    study = statistics.load(path)["studies"]["sudoku"]
    assert study["arena"]["caps"] == [10] and study["arena"]["chosen"][0]["score"]["value"] == 0.25
    assert len(study["decoding"]) == 1 and study["arena"]["provenance"]["seed"] == 3
    statistics.merge(tmp_path, ["sudoku"])
    assert statistics.load(tmp_path / "statistics.json")["studies"]["sudoku"] == study


def test_the_arena_alone_begins_a_file(tmp_path):
    path = statistics.write_arena(tmp_path, "sudoku", SECTION, BACKBONE, made())
    study = statistics.load(path)["studies"]["sudoku"]
    assert study["decoding"] == [] and study["backbone"] == BACKBONE and "arena" in study
    assert "Backbone `strong`" in statistics.results_table(statistics.load(path))


@pytest.mark.parametrize(
    ("change", "backbone", "profile", "message"),
    [
        ({}, BACKBONE, "full", "is of profile quick, not full"),
        ({}, BACKBONE | {"sha256": "cd"}, "quick", "is of backbone ab, not cd"),
        ({"chosen": [{"contender": "EB"}]}, BACKBONE, "quick", "chosen.0. lacks label, n, passes, score"),
        ({"decoding": [{"decoder": "naive"}]}, BACKBONE, "quick", "arena.decoding.0. lacks metrics"),
        ({"caps": [math.inf]}, BACKBONE, "quick", "caps.0. is inf"),
    ],
)
def test_an_arena_that_does_not_fit_is_refused(tmp_path, change, backbone, profile, message):
    path = statistics.write_arena(tmp_path, "sudoku", SECTION, BACKBONE, made())
    before = path.read_bytes()
    with pytest.raises(ValueError, match=message):
        statistics.write_arena(tmp_path, "sudoku", SECTION | change, backbone, made(profile))
    assert path.read_bytes() == before
