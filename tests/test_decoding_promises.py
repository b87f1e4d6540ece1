"""What every decoder promises, over a million decoded positions.

Nothing visible is changed, only values are written, nothing stays masked, and it ends in a bounded number of steps.
"""

import pytest
import torch

from maskmi.decoding import Naive, decode
from maskmi.head import PairHead
from maskmi.model import Output
from maskmi.sudoku.arena import short_arena

LENGTH, VALUES = 16, 5
MASK, PAD, SPECIAL = VALUES, VALUES + 1, VALUES + 2  # SPECIAL stands for an ambiguous letter: context, never generated
ROWS = 4_500


class Arbitrary:
    """Logits, hidden states and attention that depend on every visible token, with ties and impossible values."""

    values, hidden_size, device = "abcde", 8, torch.device("cpu")

    def __init__(self):
        draw = torch.Generator().manual_seed(0)
        self.table = 0.7 * torch.randn(SPECIAL + 1, LENGTH, self.hidden_size, generator=draw)
        self.mixing = torch.randn(LENGTH, LENGTH, generator=draw)
        self.out = torch.randn(self.hidden_size, VALUES, generator=draw)

    def __call__(self, tokens, attention=False):
        seen = self.table[tokens, torch.arange(LENGTH)]
        hidden = (self.mixing @ seen).tanh()
        logits = (4 * (hidden @ self.out)).round()  # halves of them equal
        logits[..., 1:] = logits[..., 1:].masked_fill(logits[..., 1:] < -9, -torch.inf)
        maps = torch.softmax(hidden @ hidden.mT, -1)[:, None, None] if attention else None
        return Output(logits, hidden, maps)


def sequences():
    draw = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, VALUES, (ROWS, LENGTH), generator=draw)
    share = torch.rand(ROWS, 1, generator=draw)
    tokens = tokens.masked_fill(torch.rand(ROWS, LENGTH, generator=draw) < share, MASK)
    tokens = tokens.masked_fill(torch.rand(ROWS, LENGTH, generator=draw) < 0.05, SPECIAL)
    length = torch.randint(1, LENGTH + 1, (ROWS, 1), generator=draw)
    tokens = tokens.masked_fill(torch.arange(LENGTH) >= length.clamp_min(LENGTH // 2), PAD)
    tokens[:2], tokens[2:4] = MASK, 0  # nothing given, and nothing to do
    return tokens


torch.manual_seed(2)
HEADS = {label: PairHead(Arbitrary.hidden_size, torch.eye(LENGTH)[..., None]) for label in ("entropy_drop", "tv")}
SETTINGS = short_arena(HEADS)
TOKENS = sequences()


def test_there_are_a_million_positions():
    assert len({described["decoder"] for described, _ in SETTINGS}) >= 18
    assert int((TOKENS == MASK).sum()) * len(SETTINGS) * 2 >= 1_000_000


@pytest.mark.parametrize("place", range(len(SETTINGS)))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_givens_stay_only_values_are_written_and_it_ends(place, temperature):
    tokens, masked = TOKENS, TOKENS == MASK
    found = decode(Arbitrary(), tokens, SETTINGS[place][1], temperature=temperature, seed=3, batch_size=1024)
    assert torch.equal(found.tokens[~masked], tokens[~masked])
    assert ((found.tokens[masked] >= 0) & (found.tokens[masked] < VALUES)).all()
    assert (found.steps <= 5 * LENGTH).all()
    idle = ~masked.any(1)
    assert (found.passes[idle] == 0).all() and (found.passes[~idle] >= 1).all()


def test_a_value_that_the_model_excludes_is_never_drawn():
    model = Arbitrary()
    found = decode(model, TOKENS, Naive(1), temperature=1.0, keep_trace=True, batch_size=1024)
    assert torch.isfinite(found.trace.commits["log_prob"]).all()
    assert torch.isinf(model(TOKENS).logits).any()
