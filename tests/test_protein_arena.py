"""The proteins' arena: scores of whole sets by hand, its sweeps and runs, diagnoses of traces."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from maskmi import arena, arena_figures, arena_runs
from maskmi.artefacts import Artefacts
from maskmi.decoding import Naive, decode
from maskmi.decoding.loop import Trace
from maskmi.head import PairHead
from maskmi.metrics import Interval
from maskmi.protein import arena as sweeps
from maskmi.protein import arena_runs as runs
from maskmi.protein import study
from maskmi.protein.adapter import MASK, PADDING, encode
from maskmi.protein.diagnosis import diagnose
from maskmi.protein.divergence import divergence, divergence_difference, kmer_counts
from maskmi.protein.kmer_score import KmerScore, varieties, with_validity
from maskmi.protein.pretrain import Recipe, train
from maskmi.protein.relations import relations
from maskmi.settings import contender_of, label_of
from maskmi.study import decoding_row


def samples(*sequences, passes=4):
    """As study.generated gives it."""
    n = len(sequences)
    return {
        "tokens": encode(list(sequences)),
        "passes": torch.full((n,), passes),
        "steps": torch.full((n,), passes),
        "matrix_passes": torch.zeros(n, dtype=torch.int64),
        "batched_calls": torch.tensor(passes),
        "seconds": torch.tensor(0.5, dtype=torch.float64),
        "joint_error": torch.empty(0, dtype=torch.float64),
    }


# Scores of whole sets

# AA against AC: p = (1, 0), q = (1/2, 1/2), their mean (3/4, 1/4) has entropy log 4 - 3/4 log 3 = 0.562335; minus half
# of log 2.
AA_FROM_AC = 0.215762


def test_nearness_is_the_negative_divergence_and_its_bounds_change_places():
    score = KmerScore.of(encode(["AC", "CA"]), 1)
    assert score.interval(samples("AC")) == (0, 0, 0)
    assert score.interval(samples("AA")) == pytest.approx((-AA_FROM_AC,) * 3, abs=1e-6)
    mixed = samples("AA", "AC", "CC", "AD")
    found, mirror = score.interval(mixed), divergence(kmer_counts(mixed["tokens"], 1), score.reference, 0, 400)
    assert found == (-mirror.value, -mirror.high, -mirror.low) and found.low < found.value < found.high


def test_a_difference_is_of_the_sequences_that_both_sets_have():
    score = KmerScore.of(encode(["AC", "CA"]), 1)
    near, far = samples("AC", "CA"), samples("AA", "AA", "CC", "CC")  # all four would not diverge at all
    assert score.difference(near, far) == pytest.approx((AA_FROM_AC,) * 3, abs=1e-6)
    assert score.difference(far, near).value == pytest.approx(-AA_FROM_AC, abs=1e-6)
    assert score.difference(far, far) == (0, 0, 0)


def test_sets_with_noise_in_common_are_told_apart_better_than_sets_without():
    generator = torch.Generator().manual_seed(0)
    first = torch.randint(0, 20, (60, 30), generator=generator)
    second = first.clone()
    second[:, ::6] = 0  # every sixth residue A
    other = torch.randint(0, 20, (200, 30), generator=generator)
    one, two, reference = (kmer_counts(tokens, 1) for tokens in (first, second, other))
    paired = divergence_difference(two, one, reference)
    shuffled = divergence_difference(two[torch.randperm(60, generator=generator).numpy()], one, reference)
    assert paired.value == shuffled.value == divergence(two, reference).value - divergence(one, reference).value > 0
    assert 0 < paired.low < paired.value < paired.high
    assert paired.high - paired.low < shuffled.high - shuffled.low


def test_sets_of_other_sizes_or_features_are_not_paired():
    two, three = kmer_counts(encode(["AC", "CA"]), 1), kmer_counts(encode(["AC", "CA", "AA"]), 1)
    with pytest.raises(ValueError, match="2 sequences can't be paired with 3"):
        divergence_difference(two, three, three)
    with pytest.raises(ValueError, match="20 and 400 features"):
        divergence_difference(two, two, kmer_counts(encode(["AC"]), 2))


def test_sets_are_compared_under_their_caps_like_sequences():
    score = KmerScore.of(encode(["AC", "CA"]), 1)
    naive = lambda k: {"decoder": "naive", "k": k}  # noqa: E731
    results = [
        (naive(8), samples("AA", "AA", passes=8)),
        ({"decoder": "margin", "k": 8}, samples("AC", "CA", passes=9)),
    ]
    table = arena.sweep_table(results, score)
    assert table.value.tolist() == pytest.approx([-AA_FROM_AC, 0], abs=1e-6) and table.n.tolist() == [2, 2]
    compared = arena.against(arena.choose(table, [10]), results, "naive", score)
    assert compared.difference.tolist() == pytest.approx([0, AA_FROM_AC], abs=1e-6) and "p_value" not in compared
    shown = arena.negated(compared)
    assert shown.value.tolist() == pytest.approx([AA_FROM_AC, 0], abs=1e-6)
    assert shown.difference.tolist() == pytest.approx([0, -AA_FROM_AC], abs=1e-6)
    arena.chosen_rows(shown)


def test_negated_bounds_change_places():
    table = pd.DataFrame({"value": [-0.2], "low": [-0.3], "high": [-0.15], "n": [4]})
    assert arena.negated(table).to_dict("records") == [{"value": 0.2, "low": 0.15, "high": 0.3, "n": 4}]
    assert table.value[0] == -0.2
    table = table.assign(difference=0.1, difference_low=-0.05, difference_high=0.2)
    assert arena.negated(table).iloc[0][["difference", "difference_low", "difference_high"]].tolist() == [
        -0.1,
        -0.2,
        0.05,
    ]


def test_results_become_rows_of_the_statistics_file_with_metrics_of_tables():
    results = [({"decoder": "naive", "k": 8, "test_set": "unconditional"}, samples("AC", "CA"))]
    table = pd.DataFrame([Interval(0.5, 0.25, 0.75)])
    (row,) = arena.decoding_rows(results, {"jsd_1mer": table})
    assert row["metrics"] == {"jsd_1mer": {"value": 0.5, "low": 0.25, "high": 0.75}}
    assert row == decoding_row(results[0][1], results[0][0], row["metrics"])


def test_variety_and_validity_of_samples():
    chain = "".join(
        [
            "EVQLVESGGGLVQPGGSLRLSCAASGFTFSSYAMSWVRQAPGKGLEWVSAISGSGGSTYYADSVKGRFTISRDNSKNTLYLQMNSLRAEDTAVYYCAK",
            "DRLSITIRPRYYGLDVWGQGTTVTVSS",
        ]
    )  # VH3-23, with a made-up third loop
    results = [({"decoder": "naive", "k": 8}, samples(chain, "A" * len(chain), chain))]
    ((settings, outcome),) = with_validity(results)
    assert outcome["valid"].tolist() == [True, False, True] and settings == {"decoder": "naive", "k": 8}
    assert "valid" not in results[0][1]
    # Of three pairs one is of equals; poly-alanine shares with the chain its alanines alone.
    alanines = chain.count("A") / len(chain)
    assert varieties(results) == pytest.approx([2 / 3 * (1 - alanines)])


# Sweeps and names


def test_random_order_is_a_contender_of_its_own():
    orders = {order: {"decoder": "sequential", "order": order} for order in ("entropy", "random")}
    assert [contender_of(s) for s in orders.values()] == ["sequential", "sequential, random"]
    assert label_of(orders["random"]) == "sequential, random"


def test_the_sweep_has_the_published_rule_and_those_that_count_dependence(heads):
    short = [settings for settings, _ in sweeps.short_arena(heads)]
    guided = [s for s in short if s["decoder"] == "mi_guided"]
    rules = {(s["alpha"], s["order"], s["budget"]) for s in guided}
    assert {(0.0, "least_cost", budget) for budget in (0.03, 0.1, 0.3)} | {(0.1, "least_cost", 1.0)} <= rules
    assert sweeps.REFERENCE in {contender_of(s) for s in guided if s["alpha"] == 1 and s["order"] == "entropy"}
    assert all(contender_of(s).startswith(sweeps.OURS) for s in guided)
    only = {"mixture": heads["mixture"]}
    dropped = {s["matrix"] for s, _ in sweeps.whole_arena(heads) if "matrix" in s}
    dropped -= {s["matrix"] for s, _ in sweeps.whole_arena(only) if "matrix" in s}
    assert dropped == {"head: entropy_drop", "head: tv"}


def test_a_contender_makes_one_number_of_samples(heads):
    """Divergences of fewer samples are larger, so the best of one contender's settings must be chosen at one size."""
    dear = {}
    for settings, _ in sweeps.whole_arena(heads):
        dear.setdefault(contender_of(settings), set()).add(arena_runs.is_dear(settings))
    assert all(len(kinds) == 1 for kinds in dear.values())
    assert {name for name, kinds in dear.items() if kinds == {True}} == {
        f"{name}, leave-one-out" for name in ("Saber", "WINO", "P2")
    }


@pytest.fixture(scope="module")
def heads():
    return {name: PairHead(8, relations, 4) for name in ("entropy_drop", "mixture", "tv")}


# Running


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A backbone of one layer."""
    folder = tmp_path_factory.mktemp("tiny")
    recipe = Recipe(width=32, heads=1, layers=1, steps=1, micro_tokens=64, micro_batches=1, warmup_steps=1)
    train(recipe, ["ACDEFGHIKL"] * 3, ["ACDEFGHIKL"], folder / "pretrained")
    return study.load_backbone("esmc_small", checkpoint="trained", artefacts=folder)


def short_sweep():
    """A dear setting, an ensemble and two others."""
    dear = sweeps.setting_of("wino", sweeps.WINO, threshold=0.2, threshold_back=0.05, check="leave_one_out")
    return [dear, sweeps.tie_arena("short")[0], *sweeps.grid("naive", Naive, k=(8, 16))]


def test_samples_come_in_the_order_of_the_sweep_with_noise_in_common(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(study, "starting_lengths", lambda name, count, seed: study.random_lengths(count, seed, 8, 12))
    store, sweep = Artefacts(tmp_path), short_sweep()
    found = runs.generate(tiny, store, sweep, 3, 2, second=tiny, seed=5, name="part", n_joint_error=0)
    assert [label_of(settings) for settings, _ in found] == [label_of(settings) for settings, _ in sweep]
    assert {settings["test_set"] for settings, _ in found} == {"part"}
    assert [len(outcome["tokens"]) for _, outcome in found] == [2, 3, 3, 3]
    length = study.random_lengths(3, 5, 8, 12)
    for _, outcome in found:
        assert (outcome["tokens"] != PADDING).sum(1).tolist() == length[: len(outcome["tokens"])].tolist()
    # 8 to 12 masks are all written in one step of 16.
    assert found[3][1]["passes"].tolist() == [1, 1, 1]
    other = runs.generate(tiny, store, sweep[3:], 3, 2, seed=6, name="part", n_joint_error=0)
    assert not other[0][1]["tokens"].equal(found[3][1]["tokens"])


def test_gaps_are_filled_by_all_and_dear_ones_on_the_first_sequences(tiny, tmp_path):
    truth = encode(["ACDEFGHIKL", "MNPQRSTVWY", "ACDEFGHI"])
    found = runs.infill(tiny, Artefacts(tmp_path), short_sweep(), truth, 2, second=tiny, name="part", n_joint_error=0)
    assert [len(outcome["recovery"]) for _, outcome in found] == [2, 3, 3, 3]
    for _, outcome in found:  # fifths of five masked residues, and quarters of four
        share = outcome["recovery"] * torch.tensor([5, 5, 4])[: len(outcome["recovery"])]
        assert share.equal(share.round()) and outcome["log_pseudo_perplexity"].isnan().all()


@pytest.mark.parametrize("run", ["generate", "infill"])
def test_ensembles_without_a_second_model_are_refused_before_anything_runs(run):
    with pytest.raises(ValueError, match="need a second model"):
        getattr(runs, run)(None, None, short_sweep(), None, 2)


def test_a_second_model_is_a_checkpoint_of_the_same_study():
    assert runs.second_backbone("esmc_small", "none") is None
    with pytest.raises(ValueError, match="AntiBERTy has one checkpoint"):
        runs.second_backbone("antiberty", "other.safetensors")
    with pytest.raises(FileNotFoundError, match="other.safetensors"):
        runs.second_backbone("esmc_small", "other.safetensors")


def test_settings_are_chosen_on_other_natural_sequences_than_those_reported():
    test, validation = runs.parts_of_natural("esmc_small", 7, 5)
    known = study.natural("esmc_small", "reference")
    assert test.equal(known[:7]) and validation.equal(known[-5:])
    rest = len(known) - 7
    assert runs.parts_of_natural("esmc_small", 7, rest)[1].equal(known[7:])
    with pytest.raises(ValueError, match=f"there are {len(known)} natural sequences, not 7 and {rest + 1} others"):
        runs.parts_of_natural("esmc_small", 7, rest + 1)


# How decoders work


def test_a_diagnosis_by_hand():
    masked = torch.tensor([[True, True, True, False], [True, True, False, False]])
    commits = [(0, 0, 0, 5), (0, 0, 2, 6), (0, 1, 1, 7), (0, 2, 0, 5), (1, 0, 1, 3), (1, 1, 0, 3)]
    named = ("sequence", "step", "position", "value")
    columns = dict(zip(named, torch.tensor(commits).unbind(1), strict=True))
    again = {"sequence": torch.tensor([0]), "step": torch.tensor([1]), "position": torch.tensor([0])}
    steps = {"sequence": torch.tensor([0, 0, 0, 1, 1]), "step": torch.tensor([0, 1, 2, 0, 1])}
    found = diagnose(masked, Trace(columns, again, steps))
    # Six residues in five steps; one of five masked positions was masked again, and 5 came back.
    assert found["n"] == 2 and found["committed"] == 6 / 5 and found["remasked"] == 1 / 5 and found["flip_flop"] == 1
    # Last writings: steps 2, 1, 0 of the first, so all three pairs from the C terminus; 1, 0 of the second: also.
    assert found["from_n_end"] == 0


@pytest.mark.parametrize(("steps", "share"), [((0, 1, 2), 1), ((0, 0, 1), 1), ((0, 2, 1), 2 / 3), ((1, 0, 0), 0)])
def test_the_order_along_the_chain_leaves_out_pairs_of_one_step(steps, share):
    columns = {"sequence": torch.zeros(3).long(), "position": torch.arange(3), "value": torch.arange(3)}
    columns["step"] = torch.tensor(steps)
    none = {name: torch.empty(0, dtype=torch.int64) for name in ("sequence", "step", "position")}
    found = diagnose(torch.ones(1, 3, dtype=torch.bool), Trace(columns, none, {"step": torch.arange(max(steps) + 1)}))
    assert found["from_n_end"] == pytest.approx(share) and "flip_flop" not in found


def test_what_is_written_at_once_has_no_order():
    columns = {name: torch.zeros(2).long() for name in ("sequence", "step", "value")} | {"position": torch.arange(2)}
    none = {name: torch.empty(0, dtype=torch.int64) for name in ("sequence", "step", "position")}
    found = diagnose(torch.ones(1, 2, dtype=torch.bool), Trace(columns, none, {"step": torch.zeros(1)}))
    assert found == {"n": 1, "remasked": 0, "committed": 2}
    table = runs.diagnosis_table([found | {"label": "at once", "contender": "naive"}])
    assert table.decoder[0] == "at once" and math.isnan(table.from_n_end[0]) and table.committed[0] == 2


def test_a_setting_is_diagnosed_on_its_own_trace(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(study, "starting_lengths", lambda name, count, seed: study.random_lengths(count, seed, 8, 12))
    (setting,) = sweeps.grid("naive", Naive, k=(4,))
    found = runs.diagnosed(tiny, Artefacts(tmp_path), setting, 3, seed=5)
    states = study.starting_states("esmc_small", 3, 5)
    trace = decode(tiny.model, states, Naive(4), seed=5, temperature=1.0, keep_trace=True).trace
    assert found == {"contender": "naive", "label": "naive k=4", **diagnose(states == MASK, trace)}
    assert runs.diagnosis_table([found]).from_n_end[0] == 100 * found["from_n_end"]


# Figures


def figure_table():
    rows = [("MI (head)", 5, 0.3, -0.2), ("MI (head)", 9, 0.5, -0.1), ("naive", 4, 0.4, -0.4), ("margin", 9, 0.6, -0.3)]
    table = pd.DataFrame(rows, columns=["contender", "passes", "variety", "value"])
    return table.assign(low=table.value - 0.05, high=table.value + 0.05, n=8)


def test_quality_and_variety_are_drawn_with_passes_and_the_natural_ones():
    figure = arena_figures.quality_against_variety(figure_table(), "MI (head)", "x", "y", (0.7, -0.05), negated=True)
    (axes,) = figure.axes
    lines = [container.lines[0].get_xydata().tolist() for container in axes.containers]
    assert lines == [[[0.3, -0.2], [0.5, -0.1]], [[0.4, -0.4]], [[0.6, -0.3]]]
    assert [text.get_text() for text in axes.texts] == ["5", "9", "4"]  # margin is not on the frontier
    assert axes.yaxis.get_major_formatter()(-0.25) == "0.25" and axes.yaxis.get_major_formatter()(0) == "0"
    assert [0.7, -0.05] in [list(line.get_xydata()[0]) for line in axes.lines]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["natural", "MI (head)", "naive", "", "margin"]
    with pytest.raises(ValueError, match="lacks variety"):
        arena_figures.quality_against_variety(figure_table().drop(columns="variety"), "MI (head)", "x", "y")


def test_a_divergence_is_shown_positive_with_less_above():
    table = figure_table()
    figure = arena_figures.quality_against_costs(table, "MI (head)", ["passes"], "y", scale=1, negated=True)
    large = figure.axes[0]
    assert not large.yaxis_inverted() and large.yaxis.get_major_formatter()(-0.1) == "0.1"
    (stairs,) = [line for line in large.lines if line.get_gid() == "frontier"]
    assert np.array_equal(stairs.get_xydata(), [[4, -0.4], [5, -0.2], [9, -0.1], [9, -0.1]])
