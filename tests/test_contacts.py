import itertools

import numpy as np
import pytest
import torch

from maskmi.model import Output, log_probabilities
from maskmi.probing import average_product_correction, probe
from maskmi.protein import contacts
from maskmi.tabular import TabularModel


def hairpin():
    """12 residues on two strands 5 Å apart, steps of 4 Å: residue k faces 11 - k.

    |i - j| >= 6 leaves 21 pairs. Of these, facing ones are 5 Å apart (0-11, 1-10, 2-9; 3-8 is only 5 apart in the
    chain), those off by one step are sqrt(41) = 6.4 Å apart (0-10, 1-9, 2-8, 1-11, 2-10, 3-9), those off by two
    sqrt(89) = 9.4 Å: 9 contacts.
    """
    k = np.arange(12)
    return np.stack([4.0 * np.minimum(k, 11 - k), 5.0 * (k > 5), np.zeros(12)], axis=1)


def scores_for(pairs, length=12):
    scores = torch.zeros(length, length)
    for value, (i, j) in zip(range(len(pairs), 0, -1), pairs, strict=True):
        scores[i, j] = scores[j, i] = value
    return scores


def test_contact_map_by_hand():
    close, known = contacts.contact_map(hairpin())
    assert known.all() and close.diagonal().all()
    assert {(i, j) for i, j in close.triu(6).nonzero().tolist()} == {
        *((0, 11), (1, 10), (2, 9), (0, 10), (1, 9), (2, 8), (1, 11), (2, 10), (3, 9))
    }
    assert contacts.contact_map(hairpin(), cutoff=6)[0].triu(6).sum() == 3


def test_precision_by_hand():
    # Top 2 (L/5): both contacts. Top 6 (L/2): 4 contacts. The other 15 pairs are tied at zero and hold 9 - 4 = 5
    # contacts, so the top 12 expects 4 + 6 · 5/15 = 6.
    ranked = [(0, 11), (1, 10), (0, 6), (2, 9), (1, 8), (3, 9)]
    precision = contacts.contact_precision(scores_for(ranked), hairpin())
    assert precision == pytest.approx({"chance": 9 / 21, "L": 6 / 12, "L/2": 4 / 6, "L/5": 1.0})


def test_near_pairs_and_the_diagonal_count_for_nothing():
    ranked = [(0, 11), (1, 10), (0, 6), (2, 9), (1, 8), (3, 9)]
    scores = scores_for(ranked)
    near = scores + 99 * (contacts.distance_scores(12) > -6)
    assert contacts.contact_precision(near, hairpin()) == contacts.contact_precision(scores, hairpin())


def test_distance_only_baseline_by_hand():
    # All 6 pairs of distance 6 are tied, and 2-8 and 3-9 are contacts: 1/3 for the top 2 and the top 6. The top 12 adds
    # the 5 pairs of distance 7 (2-9 is a contact) and 1 of the 4 of distance 8 (1-9 and 2-10 are): 2 + 1 + 2/4.
    precision = contacts.contact_precision(contacts.distance_scores(12), hairpin())
    assert precision == pytest.approx({"chance": 9 / 21, "L": 3.5 / 12, "L/2": 1 / 3, "L/5": 1 / 3})


def test_unresolved_residues_leave_their_pairs_out():
    places = hairpin()
    places[11] = np.nan  # takes 6 pairs along, of which 0-11 and 1-11 were contacts
    ranked = [(1, 10), (2, 9)]
    scores = scores_for(ranked)
    scores[11] = scores[:, 11] = torch.nan
    assert contacts.contact_precision(scores, places) == pytest.approx(
        {"chance": 7 / 15, "L": (2 + 10 * 5 / 13) / 12, "L/2": (2 + 4 * 5 / 13) / 6, "L/5": 1.0}
    )


def test_bad_scores_are_refused():
    good = contacts.distance_scores(12)
    with pytest.raises(ValueError, match=r"\[11, 11\] don't fit a structure of 12"):
        contacts.contact_precision(good[:11, :11], hairpin())
    with pytest.raises(ValueError, match="not symmetric"):
        contacts.contact_precision(good.triu(), hairpin())
    bad = good.clone()
    bad[0, 8] = bad[8, 0] = torch.nan
    with pytest.raises(ValueError, match="1 of 21 pairs have no finite score"):
        contacts.contact_precision(bad, hairpin())
    with pytest.raises(ValueError, match="fewer than L = 11"):
        contacts.contact_precision(good[:11, :11], hairpin()[:11], separation=7)
    with pytest.raises(ValueError, match=r"must be \[L, 3\]"):
        contacts.contact_map(hairpin().T)


def test_intervals_are_over_structures():
    each = [{"chance": 0.1, "L": x, "L/2": x, "L/5": 1.0} for x in (0.2, 0.4, 0.6)]
    intervals = contacts.precision_intervals(each)
    assert intervals["L"].value == pytest.approx(0.4) and intervals["L/5"] == (1.0, 1.0, 1.0)
    assert 0.2 <= intervals["L"].low < 0.4 < intervals["L"].high <= 0.6


def test_average_product_correction_by_hand():
    # Row sums 3, 4, 5, total 12: 1 - 3·4/12 = 0, 2 - 3·5/12 = 0.75, 3 - 4·5/12 = 4/3
    scores = torch.tensor([[9.0, 1, 2], [1, 9, 3], [2, 3, 9]])
    expected = torch.tensor([[0, 0, 0.75], [0, 0, 4 / 3], [0.75, 4 / 3, 0]])
    torch.testing.assert_close(average_product_correction(scores), expected)
    assert not average_product_correction(torch.zeros(3, 3)).any()


def test_the_categorical_jacobian_by_its_definition():
    model = TabularModel.random(seed=4, length=4, values=3)
    context = torch.tensor([3, 3, 1, 3])
    places = [0, 1, 3]
    base = log_probabilities(model(context[None]).logits[0])
    change = torch.zeros(3, 3, 3, 3, dtype=torch.float64)  # i, v, j, w
    for (a, i), v in itertools.product(enumerate(places), range(3)):
        filled = context.clone()
        filled[i] = v
        difference = (log_probabilities(model(filled[None]).logits[0]) - base)[places]
        difference[a] = 0
        change[a, v] = difference
    for axis in range(4):
        change = change - change.mean(axis, keepdim=True)
    norm = change.square().sum((1, 3)).sqrt()
    expected = average_product_correction(norm)
    found = probe(model, context[None], jacobian=True).jacobian[0][places][:, places]
    torch.testing.assert_close((expected + expected.T) / 2, found)


class Attentive:
    """A stub of two layers and heads; the last layer attends one place back, weighted by the first token."""

    values, hidden_size, device = "ABC", 1, torch.device("cpu")

    def __call__(self, tokens, attention=False):
        count, length = tokens.shape
        back = torch.diag(torch.ones(length - 1), -1)
        last = tokens[:, :1, None] * back
        layers = torch.stack([torch.full_like(last, 7), last], 1)[:, :, None].expand(-1, -1, 2, -1, -1)
        return Output(torch.zeros(count, length, 3), torch.zeros(count, length, 1), layers if attention else None)


def test_attention_is_the_last_layers_mean_over_contexts_symmetrised_and_corrected():
    tokens = torch.tensor([[1, 0, 0, 0], [2, 0, 0, 0], [0, 0, 0, 0]])
    back = torch.diag(torch.ones(3, dtype=torch.float64), -1)
    expected = average_product_correction((back + back.T) / 2)  # mean weight of the contexts: 1
    for batch_size in (1, 2, 8):
        torch.testing.assert_close(contacts.attention_scores(Attentive(), tokens, batch_size), expected)


@pytest.mark.parametrize(("share", "blocks"), [(1.0, 2), (0.5, 4), (0.3, 7)])
def test_contexts_cover_every_pair(share, blocks):
    sequence = torch.arange(30) % 20
    found = contacts.covering_contexts(sequence, 20, share=share, rounds=3, seed=1)
    assert len(found) == 3 * blocks * (blocks - 1) / 2
    masked = (found == 20).double()
    assert ((found == sequence) | (found == 20)).all()
    assert abs(masked.mean().item() - 2 / blocks) < 0.01
    together = (masked.T @ masked).fill_diagonal_(3)
    assert together.min() == 3  # as often as there are rounds
    assert torch.equal(contacts.covering_contexts(sequence, 20, share=share, rounds=3, seed=1), found)
    if blocks > 2:
        assert not torch.equal(contacts.covering_contexts(sequence, 20, share=share, rounds=3, seed=2), found)


def test_contexts_refuse_what_can_not_be_covered():
    with pytest.raises(ValueError, match="without MASK"):
        contacts.covering_contexts(torch.tensor([1, 20, 3]), 20)
    with pytest.raises(ValueError, match="into 20 blocks"):
        contacts.covering_contexts(torch.arange(10), 20, share=0.1)
    with pytest.raises(ValueError, match="share"):
        contacts.covering_contexts(torch.arange(10), 20, share=0)


def test_mean_map_by_hand():
    matrices = torch.tensor(
        [[[0, 1, 5], [1, 0, 9], [5, 9, 0]], [[0, 3, 8], [3, 0, 8], [8, 8, 0]], [[0, 7, 7], [7, 0, 7], [7, 7, 0.0]]]
    )
    masked = torch.tensor([[True, True, False], [True, True, False], [True, False, False]])
    mean, counts = contacts.mean_map(matrices, masked)
    nan = torch.nan
    expected = torch.tensor([[0, 2, nan], [2, 0, nan], [nan, nan, 0]], dtype=torch.float64)
    torch.testing.assert_close(mean, expected, equal_nan=True)
    assert counts.tolist() == [[3, 2, 0], [2, 2, 0], [0, 0, 0]]
    matrices[0, 0, 1] = matrices[0, 1, 0] = nan  # not measured: the other context alone
    mean, counts = contacts.mean_map(matrices, masked)
    assert mean[0, 1] == 3 and counts[0, 1] == 1
    with pytest.raises(ValueError, match=r"not \[3, 2\]"):
        contacts.mean_map(matrices, masked[:, :2])
    matrices[1, 0, 1] = torch.inf
    with pytest.raises(ValueError, match="infinite"):
        contacts.mean_map(matrices, masked)


def test_probed_maps_of_a_table_are_its_mean_exact_mi():
    model = TabularModel.random(seed=2, length=5, values=2)
    sequence = torch.tensor([0, 1, 1, 0, 1])
    contexts = contacts.covering_contexts(sequence, 2, share=0.5, rounds=2)
    maps, passes = contacts.probed_maps(model, contexts)
    exact = torch.stack([model.pairwise_mi(context) for context in contexts])
    masked = contexts == 2
    both = masked[:, :, None] & masked[:, None]
    expected = ((exact * both).sum(0) / both.sum(0)).fill_diagonal_(0)
    torch.testing.assert_close(maps["entropy_drop"], expected)
    torch.testing.assert_close(maps["mixture"], expected)
    assert passes == sum(1 + 2 * int(row.sum()) for row in masked if row.sum() > 1) + int((masked.sum(1) == 1).sum())
    torch.testing.assert_close(maps["jacobian"], maps["jacobian"].T)
    with pytest.raises(ValueError, match="masked positions"):
        contacts.probed_maps(model, sequence[None])
