"""What the protein studies say of decoders and MI maps: the paper's figures, tables for figures, contact precision."""

import numpy as np
import pytest
import torch

from maskmi.artefacts import Artefacts
from maskmi.head import PairHead
from maskmi.protein import reports
from maskmi.protein.adapter import ByLength
from maskmi.protein.esmc import Layout, new_esmc
from maskmi.protein.relations import relations
from maskmi.protein.structures import Structure
from maskmi.reports import probing_variants
from maskmi.study import Backbone, labels_of, probed
from maskmi.train_head import HeadRecipe

OUTCOME = {
    "passes": torch.tensor([4, 6]),
    "steps": torch.tensor([4, 6]),
    "matrix_passes": torch.zeros(2),
    "batched_calls": torch.tensor(6),
    "seconds": torch.tensor(3.0),
    "joint_error": torch.tensor([0.5, float("inf")]),
}
METRICS = {
    "jsd_2mer": {"value": 0.2, "low": 0.1, "high": 0.3},
    "distance": dict.fromkeys(("value", "low", "high"), 0.8),
}
MI = {"decoder": "mi_guided", "lam": 1.0, "alpha": 1.0, "reading": "cumulative", "order": "entropy"}


def row(settings, test_set="unconditional", paper=True):
    return reports.statistics_row(settings | {"test_set": test_set}, OUTCOME, METRICS, paper)


@pytest.mark.parametrize(
    ("settings", "paper"),
    [
        ({"decoder": "naive", "k": 8}, {"passes": 9.8, "jsd": 0.196}),
        ({"decoder": "naive", "k": 5}, None),
        (MI | {"budget": 2.0, "matrix": "head: mixture", "temperature": 1.0}, {"passes": 15.3, "jsd": 0.136}),
        (MI | {"budget": 2.0, "matrix": "head: mixture", "reading": "threshold"}, None),
        (MI | {"budget": 2.0, "matrix": "head: mixture", "alpha": 0.0}, None),
        ({"decoder": "sequential", "order": "random"}, None),
    ],
)
def test_the_papers_figures_stand_beside_its_own_settings_alone(settings, paper):
    assert row(settings).get("paper") == paper
    assert "paper" not in row(settings, paper=False) and "paper" not in row(settings, "infilling")


def test_a_row_has_means_over_sequences_and_over_finite_joint_errors():
    found = row({"decoder": "naive", "k": 8})
    assert (found["n"], found["passes"], found["seconds_per_sequence"], found["joint_error_nats"]) == (2, 5.0, 1.5, 0.5)
    assert found["metrics"] == METRICS


def test_the_frame_has_the_rows_that_measured_the_metric():
    rows = [row({"decoder": "naive", "k": 8}), row({"decoder": "sequential", "order": "random"})]
    frame = reports.decoding_frame(rows, "jsd_2mer")
    assert frame.label.tolist() == ["naive", "sequential, random"]
    assert frame.setting.tolist() == ["naive k=8", "sequential, random"]
    assert frame[["passes", "value", "low", "high", "variety"]].iloc[0].tolist() == [5.0, 0.2, 0.1, 0.3, 0.8]
    assert not len(reports.decoding_frame(rows, "recovery")) and not len(
        reports.decoding_frame(rows, "jsd_2mer", "infilling")
    )
    assert reports.decoding_frame(rows, "distance", variety="jsd_2mer").variety.tolist() == [0.2, 0.2]


def test_joint_errors_stand_beside_their_budgets():
    results = [({"decoder": "naive", "k": 8}, OUTCOME)]
    results += [({"decoder": "entropy_bounded", "budget": 0.5, "proxy": "entropy"}, OUTCOME)]
    frame = reports.error_frame(results)  # the infinite error is left out, so that 0.5 alone remains
    assert frame.to_dict("records") == [
        {"family": "entropy_bounded", "label": "EB", "budget": 0.5, "error": 0.5, "low": 0.5, "high": 0.5}
    ]


def test_infilling_metrics_are_means_over_sequences():
    outcome = {"recovery": torch.tensor([0.5, 1.0]), "log_pseudo_perplexity": torch.tensor([1.0, 2.0])}
    found = reports.infilling_metrics(outcome)
    assert found["recovery"]["value"] == 0.75 and found["log_pseudo_perplexity"]["value"] == 1.5
    assert 0.5 <= found["recovery"]["low"] <= found["recovery"]["high"] <= 1.0


@pytest.fixture(scope="module")
def backbone():
    torch.manual_seed(0)
    network = new_esmc(Layout(32, 2, 2)).eval().requires_grad_(False)
    for weight in network.parameters():
        weight.add_(torch.randn_like(weight) * 0.2)  # else every prediction is near the same
    return Backbone("small", network, ByLength(network), "0" * 64, {}, relations, 8)


def test_maps_of_a_structure_cover_every_pair_and_are_symmetric(backbone, tmp_path):
    helix = np.stack([2.3 * np.cos(np.arange(24) * 1.745), 2.3 * np.sin(np.arange(24) * 1.745), 1.5 * np.arange(24)], 1)
    structure = Structure("helix", "protein", "", "ACDEFGHIKLMNPQRSTVWYACDE", helix)
    heads = {"mixture": PairHead(32, relations, 8).requires_grad_(False)}
    maps = reports.structure_maps(backbone, Artefacts(tmp_path), heads, structure)
    assert {"distance", "attention", "head: mixture", "probed: mixture", "probed: jacobian"} <= maps.keys()
    for name, matrix in maps.items():
        assert matrix.shape == (24, 24) and matrix.isfinite().all(), name
        assert torch.allclose(matrix, matrix.T, atol=1e-6), name
    table = reports.precision_table({"helix": maps}, [structure])
    assert set(table.cut) == {"L", "L/2", "L/5"} and len(table) == 3 * (len(maps) + 1)  # and chance
    # Along a helix residues 6 and more apart are 9 Å and more: none is in contact.
    assert (table.value == 0).all()
    again = reports.structure_maps(backbone, Artefacts(tmp_path), heads, structure, probe=False)
    assert "probed: jacobian" not in again and torch.equal(again["head: mixture"], maps["head: mixture"])


def test_ways_of_probing_are_compared_at_about_the_same_passes(backbone, tmp_path):
    store, recipe = Artefacts(tmp_path), HeadRecipe(epochs=1)
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, 20, (96, 8), generator=generator)
    tokens[:, :4] = 20  # each with four masked positions: 81 passes for a whole table, 41 for two rows
    probes = probed(backbone, store, tokens[80:], tolerance=0.0, progress=False)
    held_out = (tokens[80:], *labels_of(probes, "mixture"))
    variants = {"whole": (0.0, None), "two rows": (0.0, 2), "one row": (0.0, 1)}
    table = probing_variants(backbone, store, tokens[:80], variants, 2000, held_out, "mixture", recipe)
    # One after the other until 2000 passes are spent: 25 of 81 passes, 49 of 41, and all 80 of 21.
    assert table.variant.tolist() == list(variants)
    assert table.contexts.tolist() == [25, 49, 80] and table.passes.tolist() == [2025, 2009, 1680]
    assert table[["r2", "spearman", "mae_nats"]].notna().all(None)
