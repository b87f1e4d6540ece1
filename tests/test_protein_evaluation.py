"""Metrics of samples: nothing separates a set from itself, everything separates it from its opposite."""

import pytest
import torch

from maskmi.protein.adapter import PADDING, ByLength, encode
from maskmi.protein.esmc import Layout, new_esmc
from maskmi.protein.evaluation import (
    divergences,
    floors,
    judged,
    natural_metrics,
    recovered,
    reference_of,
    sample_metrics,
)
from maskmi.protein.perplexity import pseudo_perplexity

JSD = ["jsd_1mer", "jsd_2mer", "jsd_3mer", "jsd_hidden"]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    network = new_esmc(Layout(32, 2, 2)).eval().requires_grad_(False)
    for weight in network.parameters():
        weight.add_(torch.randn_like(weight) * 0.1)
    return ByLength(network)


@pytest.fixture(scope="module")
def natural():
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 10, (60, 14), generator=generator)  # of ten amino acids only
    tokens[::2, 12:] = PADDING
    return tokens


def test_a_set_does_not_diverge_from_itself(model, natural):
    found = divergences(judged(model, natural, 0), reference_of(model, natural))
    assert list(found) == JSD
    assert [found[name]["value"] for name in JSD] == pytest.approx([0] * 4, abs=1e-12)


def test_sets_without_a_common_letter_are_log_2_apart(model, natural):
    other = torch.where(natural < 10, natural + 10, natural)
    found = divergences(judged(model, other, 0), reference_of(model, natural))
    assert [found[f"jsd_{k}mer"]["value"] for k in (1, 2, 3)] == pytest.approx([torch.tensor(2.0).log().item()] * 3)
    assert found["jsd_hidden"]["value"] > 0.1


def test_the_floor_is_what_halves_of_one_set_differ_by(model, natural):
    reference = reference_of(model, natural)
    floor, same = floors(reference, 30), divergences(judged(model, natural[:30], 0), reference_of(model, natural[30:]))
    assert list(floor) == JSD
    assert all(0 < floor[name]["low"] <= floor[name]["value"] <= floor[name]["high"] for name in JSD)
    for name in JSD[:3]:
        assert floor[name]["low"] * 0.7 < same[name]["value"] < floor[name]["high"] * 1.4


def test_metrics_of_samples_that_are_known(model, natural):
    samples = natural[:20]
    found = sample_metrics(judged(model, samples, 5), reference_of(model, natural), natural)
    assert all(row["low"] <= row["value"] <= row["high"] for row in found.values())
    assert found["identity"]["value"] == 1.0
    assert 0 < found["distance"]["value"] < 1 and found["log_pseudo_perplexity"]["value"] > 1
    runs = encode(["AAAAAAAAAAAAAA", "ACDEFGHIKLACDE"])
    again = sample_metrics(judged(model, runs, 0), reference_of(model, natural), natural)
    assert "log_pseudo_perplexity" not in again
    assert again["low_complexity"]["value"] == 0.5 and again["identity"]["value"] < 0.6


def test_samples_are_compared_with_slower_decoders_and_antibodies_are_numbered(model, natural):
    heavy = (
        "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTI"
        "SADTSKNTAYLQMNSLRAEDTAVYYCSRWGGDGFYAMDYWGQGTLVTVSS"  # trastuzumab
    )
    samples, known = encode([heavy, heavy[::-1]]), encode([heavy[5:], "ACDEFGHIKL"])
    outcome = judged(model, samples, 0)
    found = sample_metrics(
        outcome, reference_of(model, natural), known, slow={"random": samples}, genes=["IGHV3-66", "IGHV1-2"]
    )
    assert [found[f"jsd_{k}mer_random"]["value"] for k in (2, 3)] == pytest.approx([0, 0], abs=1e-12)
    assert found["valid"]["value"] == 0.5  # read backwards it is none
    assert found["v_genes"]["value"] == 1 and found["clusters"]["value"] == 2
    assert "valid" not in sample_metrics(outcome, reference_of(model, natural), known)


def test_natural_sequences_are_measured_like_samples(model, natural):
    found = natural_metrics(model, reference_of(model, natural), 20, n_scored=3)
    assert set(found) == {*JSD, "log_pseudo_perplexity", "distance", "clusters"}
    samples = sample_metrics(judged(model, natural[:20], 3), reference_of(model, natural), natural)
    for name in ("distance", "clusters", "log_pseudo_perplexity"):
        assert found[name] == samples[name], name


def test_recovery_counts_masked_positions_alone(model):
    truth = encode(["ACDEF", "GHIK"])
    states = truth.clone()
    states[0, [0, 1, 2, 3]] = 20  # the mask
    states[1, [1, 2]] = 20
    filled = truth.clone()
    filled[0, 1], filled[1, [1, 2]] = 9, 9
    found = recovered(model, filled, states, truth)
    assert found["recovery"].tolist() == [0.75, 0.0]
    alone = recovered(model, filled[1:, :4], states[1:, :4], truth[1:, :4])
    assert found["log_pseudo_perplexity"][1].item() == pytest.approx(alone["log_pseudo_perplexity"].item(), abs=1e-5)
    of_filled = pseudo_perplexity(model, filled, where=states == 20).value.log()
    assert found["log_pseudo_perplexity"].tolist() == pytest.approx(of_filled.tolist())
