import math

import numpy as np
import pytest
import torch

from maskmi.decoding import Sequential, decode, joint_error
from maskmi.model import Output
from maskmi.sudoku.evaluation import likelihood_bound, solved_by_grade
from maskmi.sudoku.grading import EASY, GUESSING
from maskmi.sudoku.mdm import SudokuMDM


class Skewed:
    """Gives digit 1 the probability 1/2 and each other digit 1/16, whatever it sees."""

    values, hidden_size, device = "123456789", 1, torch.device("cpu")

    def __call__(self, tokens, attention=False):
        logits = torch.tensor([0.5] + [1 / 16] * 8).log().expand(*tokens.shape, 9)
        return Output(logits, torch.zeros(*tokens.shape, 1))


def test_bound_is_the_likelihood_of_independent_cells():
    grids = np.stack([np.zeros(81), np.repeat([0, 3], [40, 41])]).astype(np.uint8)
    # Every mask size costs the mean surprise of its hidden cells; all cells of the first grid cost log 2.
    first, second = likelihood_bound(Skewed(), grids, seed=0)
    assert first == pytest.approx(81 * math.log(2), rel=1e-6)
    assert second == pytest.approx(40 * math.log(2) + 41 * math.log(16), rel=0.2)  # one random order of 81 cells
    assert likelihood_bound(Skewed(), grids[:1], seed=0)[0] == first


def test_solved_by_grade():
    table = solved_by_grade(torch.tensor([True, False, True, False]), np.array([EASY, EASY, EASY, GUESSING]))
    assert table["grade"].tolist() == ["easy", "guessing"] and table["n"].tolist() == [3, 1]
    assert table["value"].tolist() == pytest.approx([200 / 3, 0])
    assert (table["low"] <= table["value"]).all() and (table["high"] > table["value"]).all()


def test_sequential_decoding_has_no_joint_error_to_measure():
    tokens = torch.zeros(2, 81, dtype=torch.long)
    tokens[:, :2] = 9
    model = SudokuMDM().eval()
    with torch.no_grad():
        trace = decode(model, tokens, Sequential(), seed=0, keep_trace=True).trace
        assert len(joint_error(model, tokens, trace).error) == 0
