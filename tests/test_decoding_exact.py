"""Sampling distributions and joint errors against exact answers from an explicit joint table."""

import math

import pytest
import torch
from scipy import stats

from maskmi.decoding import (
    ConfidenceThreshold,
    Decision,
    EntropyBounded,
    Margin,
    MIGuided,
    Naive,
    Sequential,
    decode,
    joint_error,
)
from maskmi.decoding.select import first
from maskmi.tabular import TabularModel

LEVEL = 1e-4  # each chi-square below may fail with this probability for a perfect sampler; the seeds are fixed


def masks(count, model):
    return torch.full((count, model.length), model.value_count)


def fit(tokens, p):
    """p-value of the sampled tokens ``[N, L]`` under the joint table ``p``."""
    code = torch.zeros(len(tokens), dtype=torch.long)
    for column in tokens.unbind(1):
        code = code * p.shape[0] + column
    observed = code.bincount(minlength=p.numel())
    possible = p.flatten() > 0
    assert not observed[~possible].any()
    return stats.chisquare(observed[possible].numpy(), (p.flatten()[possible] * len(tokens)).numpy()).pvalue


@pytest.mark.parametrize("order", ["random", "entropy"])
def test_sequential_sampling_reproduces_the_joint(order):
    model = TabularModel.random(0, length=3, values=3, concentration=1.0)
    tokens = decode(model, masks(20000, model), Sequential(order), temperature=1.0, batch_size=5000).tokens
    assert fit(tokens, model.joint) > LEVEL


def test_sequential_sampling_with_a_given_token_reproduces_the_conditional():
    model = TabularModel.random(1, length=3, values=3, concentration=1.0)
    start = masks(20000, model)
    start[:, 1] = 2
    tokens = decode(model, start, Sequential("random"), temperature=1.0, batch_size=5000).tokens
    assert (tokens[:, 1] == 2).all()
    assert fit(tokens[:, [0, 2]], model.joint[:, 2] / model.joint[:, 2].sum()) > LEVEL


def test_temperature_tempers_the_values():
    p = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    model = TabularModel(p)
    tokens = decode(model, masks(20000, model), Sequential(), temperature=0.5, batch_size=5000).tokens
    assert fit(tokens, p**2 / (p**2).sum()) > LEVEL


def test_random_order_is_uniform():
    model = TabularModel.independent([[0.9, 0.1], [0.6, 0.4], [0.5, 0.5]])
    trace = decode(model, masks(12000, model), Sequential("random"), batch_size=5000, keep_trace=True).trace
    by_sequence = trace.commits["sequence"].sort(stable=True).indices
    orders = trace.commits["position"][by_sequence].reshape(-1, 3)
    counts = (orders @ torch.tensor([9, 3, 1])).unique(return_counts=True)[1]
    assert len(counts) == 6 and stats.chisquare(counts.numpy()).pvalue > LEVEL


def exact_mi(model, view):
    contexts, which = view.tokens.unique(dim=0, return_inverse=True)
    return torch.stack([model.pairwise_mi(c) for c in contexts])[which], torch.zeros_like(view.step)


@pytest.mark.parametrize("decoder", [Naive(3), Margin(2), ConfidenceThreshold(0.5), EntropyBounded(0.7)])
def test_without_dependence_parallel_decoding_is_exact(decoder):
    model = TabularModel.independent([[0.7, 0.2, 0.1], [0.4, 0.3, 0.3], [0.1, 0.1, 0.8]])
    result = decode(model, masks(20000, model), decoder, temperature=1.0, batch_size=5000, keep_trace=True)
    assert (result.steps < 3).all()
    assert fit(result.tokens, model.joint) > LEVEL
    measured = joint_error(model, masks(20000, model), result.trace, batch_size=5000)
    assert measured.error.abs().max() < 1e-9


def test_dependence_makes_parallel_decoding_inexact_and_the_test_sees_it():
    model = TabularModel.chain(3, 2, copy=0.9)
    tokens = decode(model, masks(5000, model), Naive(3), temperature=1.0, batch_size=5000).tokens
    assert fit(tokens, model.joint) < LEVEL


def test_mi_guided_takes_independent_positions_together_and_dependent_ones_apart():
    # Positions 0 and 1 copy each other, 2 knows nothing of them: an exact matrix keeps 0 and 1 apart.
    pair = torch.tensor([[0.5, 0.0], [0.0, 0.5]], dtype=torch.float64)
    model = TabularModel(pair[:, :, None] * torch.tensor([0.5, 0.5], dtype=torch.float64))
    decoder = MIGuided(0.1, alpha=0, pairwise=exact_mi, order="least_cost")
    result = decode(model, masks(4000, model), decoder, temperature=1.0, keep_trace=True)
    assert (result.steps == 2).all()
    assert fit(result.tokens, model.joint) > LEVEL


def test_the_pivot_of_a_star_leaves_its_rays_independent():
    # Four rays copy the hub, right nine times in ten: with the hub known they are independent, before it they are not.
    hub, ray = torch.eye(2, dtype=torch.float64), torch.tensor([[0.9, 0.1], [0.1, 0.9]], dtype=torch.float64)
    model = TabularModel(torch.einsum("hi,hj,hk,hl,hm->ijklm", ray, ray, hub, ray, ray) / 2)
    start = masks(4000, model)
    steps = {}
    for order in ("least_cost", "pivot"):
        result = decode(model, start, MIGuided(0.05, alpha=0, pairwise=exact_mi, order=order), temperature=1.0)
        assert fit(result.tokens, model.joint) > LEVEL
        steps[order] = result.steps
    assert (steps["pivot"] == 2).all() and (steps["least_cost"] > 2).all()


@pytest.mark.parametrize(("values", "expected"), [((0, 0), math.log(0.5 / 0.9)), ((0, 1), math.log(0.5 / 0.1))])
def test_joint_error_by_hand(values, expected):
    # A fair bit and a copy that is right nine times in ten: log .5 + log .5 - log .5 - log .9 (or .1).
    model = TabularModel.chain(2, 2, copy=0.9)

    def write(view):
        return Decision(view.masked, torch.tensor(values).expand_as(view.tokens))

    trace = decode(model, masks(1, model), write, keep_trace=True).trace
    measured = joint_error(model, masks(1, model), trace)
    assert measured.error.tolist() == pytest.approx([expected])
    assert measured.members.tolist() == measured.left.tolist() == [2] and measured.passes == 1
    assert measured.spent.isnan().all()


@pytest.mark.parametrize("decoder", [Naive(2), Naive(3), EntropyBounded(1.5)])
def test_joint_error_agrees_with_the_table(decoder):
    model = TabularModel.random(3, length=5, values=3, concentration=0.5)
    start = masks(40, model)
    start[10:, 2] = 1  # different contexts
    result = decode(model, start, decoder, temperature=1.0, seed=2, keep_trace=True, batch_size=16)
    measured = joint_error(model, start, result.trace, batch_size=7)
    commits = result.trace.commits
    assert len(measured.error) > 20
    assert measured.passes == int((measured.members - 1).sum())
    for sequence, step, members, error in zip(
        measured.sequence.tolist(), measured.step.tolist(), measured.members.tolist(), measured.error, strict=True
    ):
        own = commits["sequence"] == sequence
        before, now = own & (commits["step"] < step), own & (commits["step"] == step)
        context = start[sequence].clone()
        context[commits["position"][before]] = commits["value"][before]
        positions, values = commits["position"][now].tolist(), commits["value"][now].tolist()
        assert members == len(positions)
        assert float(error) == pytest.approx(model.joint_error(context, positions, values), abs=1e-9)


def test_joint_error_replays_masking_again_and_reports_what_was_spent():
    model = TabularModel.random(4, length=4, values=2, concentration=1.0)

    def restless(view):
        """Two at a time; in step 1 whatever was committed in step 0 is masked again."""
        again = (view.step == 1)[:, None] & ~view.masked & ~view.given
        commit = first(view.entropy, view.masked, 2)
        return Decision(commit, remask=again, spent=view.step * 10 + view.ids.double())

    result = decode(model, masks(6, model), restless, temperature=1.0, keep_trace=True)
    measured = joint_error(model, masks(6, model), result.trace)
    assert measured.step.tolist() == [0] * 6 + [1] * 6 + [2] * 6
    assert measured.spent.tolist() == [10.0 * s + i for s in range(3) for i in range(6)]
    assert torch.equal(result.trace.remasks["step"], torch.ones(12, dtype=torch.long))
    commits = result.trace.commits
    for row in range(6):
        one, two = ((commits["sequence"] == row) & (commits["step"] == s) for s in (1, 2))
        context = masks(1, model)[0]
        context[commits["position"][one]] = commits["value"][one]
        expected = model.joint_error(context, commits["position"][two].tolist(), commits["value"][two].tolist())
        error = measured.error[(measured.step == 2) & (measured.sequence == row)]
        assert float(error) == pytest.approx(expected, abs=1e-9)


def test_mean_joint_error_of_independent_draws_is_a_divergence():
    # Both bits drawn fair and apart: KL(uniform ‖ chain) = log .25 - (log .45 + log .05) / 2 = .5108 nats.
    model = TabularModel.chain(2, 2, copy=0.9)
    result = decode(model, masks(4000, model), Naive(2), temperature=1.0, keep_trace=True)
    error = joint_error(model, masks(4000, model), result.trace).error
    # Its standard deviation is (log .45 - log .05) / 2 = 1.0986, so .07 is four standard errors.
    assert float(error.mean()) == pytest.approx(0.5108, abs=0.07)


def test_nothing_parallel_nothing_measured():
    model = TabularModel.chain(3, 2)
    for start in (masks(2, model), torch.zeros(2, 3, dtype=torch.long)):
        result = decode(model, start, Sequential(), keep_trace=True)
        measured = joint_error(model, start, result.trace)
        assert len(measured.error) == len(measured.spent) == measured.passes == 0
