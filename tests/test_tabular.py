import itertools
import math

import pytest
import torch

from maskmi.tabular import TabularModel

M2, M3 = 2, 3  # MASK for two and three values


def entropy_sum(p):
    return -sum(x * math.log(x) for x in p if x > 0)


def test_conditionals_by_hand():
    # P(x, y): x=0 → (.1, .3), x=1 → (.4, .2)
    model = TabularModel(torch.tensor([[0.1, 0.3], [0.4, 0.2]], dtype=torch.float64))
    tokens = torch.tensor([[M2, M2], [0, M2], [M2, 1], [1, 0]])
    expected = [[[0.4, 0.6], [0.5, 0.5]], [[1, 0], [0.25, 0.75]], [[0.6, 0.4], [0, 1]], [[0, 1], [1, 0]]]
    torch.testing.assert_close(model(tokens).logits.exp(), torch.tensor(expected, dtype=torch.float64))
    mi = entropy_sum([0.4, 0.6]) + math.log(2) - entropy_sum([0.1, 0.3, 0.4, 0.2])
    got = model.pairwise_mi(tokens[0])
    torch.testing.assert_close(got, torch.tensor([[0, mi], [mi, 0]], dtype=torch.float64))
    assert model.pairwise_mi(tokens[1]).abs().max() == 0  # a visible position has no information to give
    assert model.values == "12"


def test_against_direct_enumeration():
    model = TabularModel.random(3, 4, 3)
    context = torch.tensor([M3, 1, M3, M3])
    p = {}
    for state in itertools.product(range(3), repeat=4):
        if state[1] == 1:
            p[state] = model.joint[state].item()
    total = sum(p.values())
    for i in (0, 2, 3):
        for v in range(3):
            direct = sum(x for s, x in p.items() if s[i] == v) / total
            assert model.conditional(context)[i, v].item() == pytest.approx(direct, abs=1e-14)
    pair = [sum(x for s, x in p.items() if (s[0], s[3]) == (a, b)) / total for a in range(3) for b in range(3)]
    single = [entropy_sum(model.conditional(context)[i].tolist()) for i in (0, 3)]
    assert model.pairwise_mi(context)[0, 3].item() == pytest.approx(sum(single) - entropy_sum(pair), abs=1e-12)
    assert model.joint_of(context).shape == (3, 3, 3)
    assert model.joint_of(context)[2, 0, 1].item() == pytest.approx(p[2, 1, 0, 1] / total)
    assert model.joint_of(context, [0, 3]).flatten().tolist() == pytest.approx(pair)


def test_hidden_states():
    model = TabularModel.chain(3, 2, copy=1.0)
    output = model(torch.tensor([[M2, 0, M2], [M2, M2, M2]]))
    assert output.hidden.shape == (2, 3, model.hidden_size) and output.hidden.dtype == torch.float32
    assert torch.isfinite(output.hidden).all()
    assert output.hidden[0, :, :3].tolist() == torch.eye(3).tolist()
    assert output.hidden[1, 0, 3].item() == pytest.approx(-math.log(2))


def test_constructors():
    assert TabularModel.independent([[0.2, 0.8], [0.7, 0.3]]).joint[1, 0].item() == pytest.approx(0.56)
    assert TabularModel.independent([[0.2, 0.8], [0.7, 0.3]]).pairwise_mi(torch.tensor([M2, M2])).max() < 1e-15
    chain = TabularModel.chain(3, 3, copy=0.8)
    assert chain.joint[0, 0, 2].item() == pytest.approx(0.8 * 0.1 / 3)
    parity = TabularModel.parity(3)
    assert parity.probability(torch.tensor([[0, 1, 1], [0, 1, 0]])).tolist() == [0.25, 0]
    assert parity.pairwise_mi(torch.tensor([M2, M2, M2])).max() == pytest.approx(0, abs=1e-15)
    assert parity.pairwise_mi(torch.tensor([M2, 1, M2]))[0, 2].item() == pytest.approx(math.log(2))
    assert torch.equal(TabularModel.random(1, 3, 2).joint, TabularModel.random(1, 3, 2).joint)
    assert not torch.equal(TabularModel.random(1, 3, 2).joint, TabularModel.random(2, 3, 2).joint)


def test_joint_error_is_the_chain_rule_in_any_order():
    model = TabularModel.random(5, 4, 3)
    context = torch.tensor([M3, M3, 2, M3])
    values = {0: 1, 1: 0, 3: 2}
    for order in itertools.permutations(values):
        filled, error = context.clone(), 0.0
        for j in order:
            alone, after = model.conditional(context)[j, values[j]], model.conditional(filled)[j, values[j]]
            error += (alone.log() - after.log()).item()
            filled[j] = values[j]
        assert model.joint_error(context, list(order), [values[j] for j in order]) == pytest.approx(error, abs=1e-12)


def test_total_correlation():
    model = TabularModel.random(6, 3, 3)
    context = torch.tensor([M3, M3, M3])
    pairs = itertools.product(range(3), repeat=3)
    mean = sum(model.joint[s].item() * model.joint_error(context, [0, 1, 2], s) for s in pairs)
    assert model.total_correlation(context, [0, 1, 2]) == pytest.approx(-mean, abs=1e-12)
    assert model.total_correlation(context, [0, 2]) == pytest.approx(model.pairwise_mi(context)[0, 2].item())
    assert model.total_correlation(context, [1]) == pytest.approx(0, abs=1e-15)


def test_impossible_commitments():
    model, context = TabularModel.parity(3), torch.tensor([M2, M2, M2])
    assert model.joint_error(context, [0, 1, 2], [0, 0, 1]) == math.inf  # each is possible, not all three
    with pytest.raises(ValueError, match="impossible"):
        model.joint_error(torch.tensor([0, 0, M2]), [2], [1])


@pytest.mark.parametrize(
    ("tokens", "message"),
    [([0, 0, 1], "probability zero"), ([0, 0, 3], "padding"), ([0, -1, 2], "padding"), ([2, 2], "B, 3")],
)
def test_bad_contexts_are_refused(tokens, message):
    with pytest.raises(ValueError, match=message):
        TabularModel.parity(3)(torch.tensor([tokens]))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (torch.full((2, 2), 0.3, dtype=torch.float64), "sums to 1.2"),
        (torch.tensor([1.5, -0.5], dtype=torch.float64), "negative"),
        (torch.tensor([math.nan, 1.0], dtype=torch.float64), "NaN"),
        (torch.full((2, 2), 0.25), "float64"),
        (torch.full((2, 3), 1 / 6, dtype=torch.float64), "same"),
    ],
)
def test_bad_tables_are_refused(table, message):
    with pytest.raises(ValueError, match=message):
        TabularModel(table)
