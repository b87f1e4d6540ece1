import pytest
import torch

from maskmi.contexts import random_contexts, row_subset, visited_states

MASK, PAD = 9, 10
SEQUENCES = torch.arange(81).remainder(9).repeat(300, 1)


def test_same_result_in_any_part_of_the_set():
    tokens, ratio = random_contexts(SEQUENCES, MASK, seed=4)
    part, part_ratio = random_contexts(SEQUENCES[100:103], MASK, seed=4, first_index=100)
    assert torch.equal(part, tokens[100:103]) and torch.equal(part_ratio, ratio[100:103])
    assert not torch.equal(random_contexts(SEQUENCES, MASK, seed=5)[0], tokens)
    assert not torch.equal(random_contexts(SEQUENCES[:3], MASK, seed=4, first_index=1)[0], tokens[:3])


def test_visible_tokens_stay_and_ratios_are_uniform():
    tokens, ratio = random_contexts(SEQUENCES.repeat(10, 1), MASK, seed=0)
    masked = tokens == MASK
    assert torch.equal(tokens[~masked], SEQUENCES.repeat(10, 1)[~masked])
    assert masked.sum(1).min() >= 2
    assert ((ratio > 0) & (ratio < 1)).all()
    quartiles = ratio.quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64))
    assert quartiles.tolist() == pytest.approx([0.25, 0.5, 0.75], abs=0.03)
    # Given t each position is masked with probability t, independently: binomial mean and variance, no favourite cell.
    number = masked.double().sum(1)
    z = (number - 81 * ratio) / (81 * ratio * (1 - ratio)).sqrt()
    z = z[(ratio > 0.1) & (ratio < 0.9)]
    assert z.mean().item() == pytest.approx(0, abs=0.08) and z.std().item() == pytest.approx(1, abs=0.08)
    assert masked.double().mean(0).sub(0.5).abs().max() < 0.05


@pytest.mark.parametrize("least", [0, 1, 2, 7])
def test_topped_up_to_the_least_number(least):
    tokens, ratio = random_contexts(SEQUENCES, MASK, seed=1, min_masked=least)
    number = (tokens == MASK).sum(1)
    without = (random_contexts(SEQUENCES, MASK, seed=1, min_masked=0)[0] == MASK).sum(1)
    assert torch.equal(number, without.clamp_min(least))
    assert (without < 2).any()  # some needed it


def test_padding_is_kept_and_changes_nothing():
    padded = torch.full((5, 30), PAD)
    lengths = [6, 30, 2, 12, 9]
    for row, length in zip(padded, lengths, strict=True):
        row[:length] = 3
    tokens, _ = random_contexts(padded, MASK, seed=2, pad=PAD)
    assert torch.equal(tokens == PAD, padded == PAD)
    assert (tokens[2, :2] == MASK).all()
    for n, length in enumerate(lengths):
        alone, _ = random_contexts(padded[n : n + 1, :length], MASK, seed=2, first_index=n, pad=PAD)
        assert torch.equal(alone[0], tokens[n, :length])


def test_refusals():
    with pytest.raises(ValueError, match="MASK"):
        random_contexts(torch.tensor([[1, MASK]]), MASK, seed=0)
    with pytest.raises(ValueError, match="sequence 1 has fewer"):
        random_contexts(torch.tensor([[1, 2], [1, PAD]]), MASK, seed=0, pad=PAD)


def commits_of(*rows):
    return dict(zip(("sequence", "step", "position", "value"), map(torch.tensor, zip(*rows, strict=True)), strict=True))


def test_visited_states_are_the_states_before_a_step_each_as_often():
    # Four masked cells of six: step 0 fills two, step 1 one, step 2 the last, before which one alone is masked.
    start = torch.tensor([[7, MASK, MASK, MASK, MASK, PAD]])
    commits = commits_of((0, 0, 3, 5), (0, 0, 1, 6), (0, 1, 4, 2), (0, 2, 2, 8))
    states = [visited_states(start, commits, MASK, seed)[0].tolist() for seed in range(400)]
    before = {0: start[0].tolist(), 1: [7, 6, MASK, 5, MASK, PAD]}
    counts = [states.count(state) for state in before.values()]
    assert sum(counts) == 400 and abs(counts[0] - 200) < 50  # five standard deviations
    assert visited_states(start, commits, MASK, 1, min_masked=1)[0].tolist() in [
        *before.values(),
        [7, 6, MASK, 5, 2, PAD],
    ]


def test_a_visited_state_depends_on_its_own_sequence_alone():
    start = torch.full((5, 8), MASK)
    rows = [(n, step, (3 * step + n) % 8, step) for n in range(5) for step in range(8)]
    states = visited_states(start, commits_of(*rows), MASK, 3)
    assert visited_states(start[:2], commits_of(*rows[:16]), MASK, 3).equal(states[:2])
    left = (states == MASK).sum(1)
    assert ((left >= 2) & (left <= 8)).all() and len(set(left.tolist())) > 1
    with pytest.raises(ValueError, match="sequence 1 began with fewer than 2 masked"):
        visited_states(torch.tensor([[MASK, MASK], [1, MASK]]), commits_of(*rows), MASK, 3)


def test_a_row_subset_holds_masked_positions_each_as_often():
    tokens = torch.tensor([[MASK, 1, MASK, MASK, MASK, PAD]]).expand(4000, -1)
    rows = row_subset(tokens, MASK, 2, seed=1)
    assert (rows.sum(1) == 2).all() and not rows[:, [1, 5]].any()
    # Each of four positions is drawn with probability 1/2: 2000 of 4000, standard deviation 32.
    assert rows[:, [0, 2, 3, 4]].sum(0).tolist() == pytest.approx([2000] * 4, abs=160)
    assert row_subset(tokens[:3], MASK, 9, seed=1).equal(tokens[:3] == MASK)
    wider = torch.nn.functional.pad(tokens[:9], (0, 3), value=PAD)
    assert row_subset(wider, MASK, 2, seed=1)[:, :6].equal(rows[:9])
