"""The Sudoku transformer: its size, what confined heads see, and that its two ways of computing agree."""

import pytest
import torch

from maskmi.sudoku.grid import relations
from maskmi.sudoku.mdm import CELLS, HEADS, LAYERS, MASK, WIDTH, SudokuMDM


def noisy(confined_heads, seed=0):
    """A model with weights that make all its parts matter: as initialised, each layer is the identity."""
    torch.manual_seed(seed)
    model = SudokuMDM(confined_heads)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.05)
    return model


@pytest.fixture(scope="module", params=[0, 1, 2])
def model(request):
    return noisy(request.param)


@pytest.fixture(scope="module")
def tokens():
    return torch.randint(0, MASK + 1, (3, CELLS), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("confined_heads", [0, 2])
def test_it_has_as_many_parameters_as_the_papers_model(confined_heads):
    assert sum(p.numel() for p in SudokuMDM(confined_heads).parameters()) == 4_158_346


def test_a_checkpoint_of_one_form_has_the_same_tensors_as_one_of_the_other():
    plain, confined = SudokuMDM(0).state_dict(), SudokuMDM(2).state_dict()
    assert {k: v.shape for k, v in plain.items()} == {k: v.shape for k, v in confined.items()}


def test_it_returns_logits_of_nine_digits_and_the_last_hidden_states(model, tokens):
    output = model(tokens)
    assert output.logits.shape == (3, CELLS, 9) and output.hidden.shape == (3, CELLS, WIDTH)
    assert output.attention is None
    assert output.logits.isfinite().all() and output.logits.dtype == torch.float32


def test_attention_is_a_distribution_over_cells_for_each_layer_and_head(model, tokens):
    attention = model(tokens, attention=True).attention
    assert attention.shape == (3, LAYERS, HEADS, CELLS, CELLS)
    assert torch.allclose(attention.sum(-1), torch.ones(()), atol=1e-5)


@pytest.mark.parametrize("confined_heads", [1, 2])
def test_a_confined_head_sees_its_own_unit_and_the_others_see_all(confined_heads, tokens):
    attention = noisy(confined_heads)(tokens, attention=True).attention
    sees = (attention > 0).all(dim=(0, 1))  # [heads, from, to]
    assert sees.equal((attention > 0).any(1).any(0))
    same = torch.as_tensor(relations()) | torch.eye(CELLS, dtype=torch.bool)[..., None]
    for head in range(HEADS):
        kind = head // confined_heads
        expected = same[..., kind] if kind < 3 else torch.ones(CELLS, CELLS, dtype=torch.bool)
        assert sees[head].equal(expected), head
    # By hand: cell 40, the centre, and the nine cells of its row, column and box.
    assert sees[0, 40].nonzero().flatten().tolist() == list(range(36, 45))
    assert sees[confined_heads, 40].nonzero().flatten().tolist() == list(range(4, 81, 9))
    assert sees[2 * confined_heads, 40].nonzero().flatten().tolist() == [30, 31, 32, 39, 40, 41, 48, 49, 50]


def test_a_plain_head_sees_every_cell(tokens):
    assert (noisy(0)(tokens, attention=True).attention > 0).all()


def test_inference_computes_what_training_does(model, tokens):
    trained = model(tokens)
    with torch.no_grad():
        fused, kept = model(tokens), model(tokens, attention=True)
    for other in (fused, kept):
        assert torch.allclose(trained.logits, other.logits, atol=1e-4)
        assert torch.allclose(trained.hidden, other.hidden, atol=1e-4)


def test_a_grid_is_read_alike_alone_and_among_others(model, tokens):
    with torch.no_grad():
        together = model(tokens).logits
        alone = torch.cat([model(one).logits for one in tokens.split(1)])
        reordered = model(tokens.flip(0)).logits.flip(0)
    assert torch.allclose(together, alone, atol=1e-4) and torch.allclose(together, reordered, atol=1e-4)


def test_every_cell_of_the_grid_matters_to_every_other(model, tokens):
    """Confined heads too reach all cells, over several layers."""
    changed = tokens[:1].clone()
    changed[0, 80] = (changed[0, 80] + 1) % 9
    with torch.no_grad():
        moved = (model(changed).logits - model(tokens[:1]).logits).abs().amax(-1)[0]
    assert (moved > 0).all()


def test_cells_are_told_apart_by_their_place():
    with torch.no_grad():
        logits = noisy(0)(torch.full((1, CELLS), MASK)).logits[0]
    assert len(logits.unique(dim=0)) == CELLS


def test_bfloat16_gives_nearly_the_same_logits(model, tokens):
    with torch.no_grad():
        exact = model(tokens).logits
        rounded = SudokuMDM(model.confined_heads).to(torch.bfloat16)
        rounded.load_state_dict(model.state_dict())
        output = rounded(tokens)
    assert output.hidden.dtype == torch.bfloat16 and output.logits.dtype == torch.float32
    assert (output.logits - exact).abs().mean() < 0.05 * exact.std()


@pytest.mark.parametrize("shape", [(CELLS,), (2, 80), (1, 9, 9)])
def test_other_shapes_are_refused(shape):
    with pytest.raises(ValueError, match="a Sudoku has 81 cells"):
        SudokuMDM()(torch.zeros(shape, dtype=torch.int64))


@pytest.mark.parametrize("confined_heads", [-1, 3])
def test_there_are_not_more_heads_to_confine(confined_heads):
    with pytest.raises(ValueError, match="confined_heads must lie in"):
        SudokuMDM(confined_heads)
