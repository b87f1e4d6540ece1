"""Matrices over pairs of positions: from a head, from probing, from attention maps."""

import pytest
import torch

from maskmi.decoding import AttentionMatrix, HeadMatrix, MIGuided, ProbedMatrix, decode
from maskmi.model import Output
from maskmi.tabular import TabularModel


class Attending:
    """Ten layers of attention maps, given only when asked for; layer l holds ``l`` everywhere and more at (0, 1)."""

    values, hidden_size, device = "abc", 2, torch.device("cpu")

    def __init__(self, has_maps=True):
        self.has_maps, self.asked = has_maps, []

    def __call__(self, tokens, attention=False):
        self.asked.append(attention)
        batch, length = tokens.shape
        maps = torch.arange(10.0)[None, :, None, None].repeat(batch, 1, length, length)
        maps[:, :, 0, 1] += 2
        maps = torch.stack([maps - 1, maps + 1], 2)  # two heads, of that mean
        hidden = torch.arange(float(length))[None, :, None].expand(batch, -1, 2)
        logits = torch.zeros(batch, length, 3)
        return Output(logits, hidden, maps if attention and self.has_maps else None)


def matrices(model, decoder, tokens):
    return decode(model, tokens, decoder, keep_trace=True, keep_matrix=True)


def test_head_reads_hidden_states_and_mask():
    def head(hidden, masked):
        pairs = (hidden[:, :, None, 0] - hidden[:, None, :, 0]).abs()
        return pairs * (masked[:, :, None] & masked[:, None, :])

    model = Attending()
    result = matrices(model, MIGuided(100.0, pairwise=HeadMatrix(head)), torch.tensor([[3, 0, 3, 3]]))
    expected = torch.tensor([[0, 0, 2, 3], [0, 0, 0, 0], [2, 0, 0, 1], [3, 0, 1, 0]]).float()
    assert torch.equal(result.trace.steps["matrix"][0], expected)
    assert result.matrix_passes.tolist() == [0] and not any(model.asked)


def test_attention_of_the_last_layers_is_asked_for_and_symmetrised():
    model = Attending()
    result = matrices(model, MIGuided(1e9, pairwise=AttentionMatrix()), torch.tensor([[3, 3, 0, 3]]))
    # The last 3 of 10 layers hold 7, 8, 9: mean 8, and (10 + 8) / 2 = 9 for the pair (0, 1).
    expected = torch.tensor([[0, 9, 0, 8], [9, 0, 0, 8], [0, 0, 0, 0], [8, 8, 0, 0]]).float()
    assert torch.equal(result.trace.steps["matrix"][0], expected)
    assert all(model.asked)


def test_attention_of_a_tenth_is_at_least_one_layer():
    result = matrices(Attending(), MIGuided(1e9, pairwise=AttentionMatrix(0.01)), torch.tensor([[3, 3, 0, 3]]))
    assert result.trace.steps["matrix"][0, 0, 3] == 9


def test_missing_attention_is_refused():
    with pytest.raises(ValueError, match="no attention maps"):
        decode(Attending(has_maps=False), torch.tensor([[3, 3]]), MIGuided(1.0, pairwise=AttentionMatrix()))


@pytest.mark.parametrize("kind", ["entropy_drop", "mixture"])
def test_probing_a_consistent_model_gives_its_mutual_information(kind):
    model = TabularModel.random(0, length=4, values=3)
    tokens = torch.tensor([[3, 3, 1, 3], [3, 0, 3, 3]])
    result = matrices(model, MIGuided(0.5, pairwise=ProbedMatrix(kind)), tokens)
    for row in range(2):
        first = (result.trace.steps["sequence"] == row) & (result.trace.steps["step"] == 0)
        matrix = result.trace.steps["matrix"][first][0]
        assert torch.allclose(matrix.double(), model.pairwise_mi(tokens[row]), atol=1e-5)
    assert torch.equal(result.passes, result.steps)
    assert (result.matrix_passes >= 1 + 3 * 3).all()  # the first step alone probes three positions with three values


@pytest.mark.parametrize("kind", ["tv", "jacobian"])
def test_other_probed_matrices_are_symmetric_and_on_masked_pairs(kind):
    model = TabularModel.random(0, length=4, values=3)
    tokens = torch.tensor([[3, 3, 1, 3]])
    matrix = matrices(model, MIGuided(0.5, pairwise=ProbedMatrix(kind)), tokens).trace.steps["matrix"][0]
    assert torch.allclose(matrix, matrix.T) and torch.isfinite(matrix).all()
    assert not matrix.diagonal().any() and not matrix[2].any()
    assert matrix[0, 1] != 0


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="kind must be"):
        ProbedMatrix("mi")
    with pytest.raises(ValueError, match="leave tolerance"):
        ProbedMatrix("jacobian", tolerance=0.1)
    for fraction in (0, 1.5):
        with pytest.raises(ValueError, match="last_fraction"):
            AttentionMatrix(fraction)
