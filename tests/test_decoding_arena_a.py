"""Decoders from other papers: hand-worked steps, agreement with plain Python, and what holds for each of them."""

import dataclasses
import math

import pytest
import torch
from scipy import stats

from maskmi.decoding import AttentionMatrix, Sequential, decode
from maskmi.decoding.agdo import AGDO
from maskmi.decoding.dapd import DAPD
from maskmi.decoding.depcap import DepCap
from maskmi.decoding.dilated import Dilated
from maskmi.decoding.info_gain import InfoGain
from maskmi.decoding.klass import KLASS
from maskmi.decoding.punt import PUNT
from maskmi.decoding.select import independent_set
from maskmi.model import Output
from maskmi.tabular import TabularModel


class ByCount:
    """The same of every context with as many visible tokens: ``tables [n][L][V]``, the last one from then on.

    ``attention [layers][heads][L][L]`` is the same of every context.
    """

    hidden_size, device = 1, torch.device("cpu")

    def __init__(self, *tables, attention=None):
        self.logits = torch.tensor(tables).log()
        self.attention = None if attention is None else torch.tensor(attention)
        self.values = "abcdefghi"[: self.logits.shape[-1]]

    def __call__(self, tokens, attention=False):
        visible = (tokens != len(self.values)).sum(1).clamp_max(len(self.logits) - 1)
        maps = self.attention.expand(len(tokens), -1, -1, -1, -1) if attention and self.attention is not None else None
        return Output(self.logits[visible], torch.zeros(*tokens.shape, 1), maps)


def steps_of(model, decoder, tokens):
    """The positions committed in each step of one sequence, and its passes."""
    result = decode(model, torch.tensor([tokens]), decoder, keep_trace=True)
    commits = result.trace.commits
    return [set(commits["position"][commits["step"] == s].tolist()) for s in range(int(result.steps))], int(
        result.passes
    )


def matrix(entries, length=5):
    """A source of a fixed matrix, with zeros outside masked pairs as sources must have."""
    full = torch.zeros(length, length)
    for (i, j), value in entries.items():
        full[i, j] = full[j, i] = value

    def source(model, view):
        return full * (view.masked[:, :, None] & view.masked[:, None]), torch.zeros_like(view.step)

    return source


# Dilated -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "block", "expected"),
    [
        (8, None, [{0, 4}, {2, 6}, {1, 3, 5, 7}]),  # strides 4, 2, 1
        (8, 4, [{0, 2}, {1, 3}, {4, 6}, {5, 7}]),  # two blocks, strides 2, 1
        (6, 4, [{0, 2}, {1, 3}, {4}, {5}]),  # the last block is cut short
        (5, None, [{0, 2, 4}, {1, 3}]),  # strides 2, 1
        (12, None, [{0, 6}, {3, 9}, {1, 2, 4, 5, 7, 8, 10, 11}]),  # strides 6, 3, 1
        (3, 1, [{0}, {1}, {2}]),
        (2, 100, [{0}, {1}]),  # strides 50, 25, 12, 6, 3: only 0; 1: the other. Empty steps are left out
    ],
)
def test_dilated(length, block, expected):
    model = ByCount([[0.6, 0.4]] * length)
    assert steps_of(model, Dilated(block), [2] * length) == (expected, len(expected))


def test_dilated_counts_what_was_not_given():
    # Blanks 1, 3, 4, 6 are numbers 0 to 3: strides 2, 1.
    assert steps_of(ByCount([[0.6, 0.4]] * 7), Dilated(), [0, 2, 0, 2, 2, 1, 2])[0] == [{1, 4}, {3, 6}]


# KLASS ---------------------------------------------------------------------------------------------------------------

# Probability of the first of two values, by the number of visible tokens
CHANGING = [
    [[p, 1 - p] for p in row]
    for row in (
        [0.90, 0.85, 0.95, 0.60, 0.60],
        [0.90, 0.60, 0.95, 0.96, 0.60],
        [0.90, 0.85, 0.95, 0.96, 0.60],
        [0.90, 0.85, 0.95, 0.96, 0.95],
        [0.90, 0.85, 0.95, 0.96, 0.95],
    )
]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # Steps 0 and 1 have no two comparisons: the most confident, 2 and then 3. Step 2: 0 is stable, 1 came back
        # from .6, 4 isn't confident. Step 3: the last two of 1 are .1489 and 0, 4 has jumped, but is surest. Then 1.
        ({"kl": 0.05}, [{2}, {3}, {0}, {4}, {1}]),
        # One comparison: step 1: 0. Step 2: 3, not 1. Step 3: 1 (.85 twice). Step 4: 4 (.95 twice).
        ({"kl": 0.05, "history": 1}, [{2}, {0}, {3}, {1}, {4}]),
        # KL(.85 ‖ .6) = .85 ln(.85/.6) + .15 ln(.15/.4) = .1489; the other way round it would be .1833. Then 4 has
        # KL(.95 ‖ .6) = .95 ln(.95/.6) + .05 ln(.05/.4) = .3326, and is alone.
        ({"kl": 0.16, "history": 1}, [{2}, {0}, {1, 3}, {4}]),
        # A higher threshold leaves .9 and .85 to the fallback: step 2 takes 0 by it, step 3 the .95 of 4, then 1.
        ({"kl": 0.05, "threshold": 0.9}, [{2}, {3}, {0}, {4}, {1}]),
        # Fallback of three: 2, 0, 1 in step 0; 3 and 4 in step 1.
        ({"fallback": 3}, [{0, 1, 2}, {3, 4}]),
        ({"kl": 0.05, "threshold": 0.5}, [{2}, {3}, {0, 4}, {1}]),  # now 4 is confident in step 2, at .6
    ],
)
def test_klass(settings, expected):
    settings = {"threshold": 0.8, **settings}
    assert steps_of(ByCount(*CHANGING), KLASS(**settings), [2] * 5) == (expected, len(expected))


# AGDO ----------------------------------------------------------------------------------------------------------------


def test_agdo():
    # Last layer, mean of two heads, to position 1 (visible): 0: (.5 + .1)/2 = .3, 2: .2, 3: (.1 + .7)/2 = .4.
    # The first layer would say 2. Then 3 is visible too: 0: .3 + (.1 + .1)/2 = .4, 2: .2 + (.6 + .4)/2 = .7.
    other = [[0.0, 0.0, 0.0, 1.0], [1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 0, 0]]
    one = [[0.4, 0.5, 0.0, 0.1], [1, 0, 0, 0], [0.2, 0.2, 0.0, 0.6], [0.9, 0.1, 0, 0]]
    two = [[0.8, 0.1, 0.0, 0.1], [1, 0, 0, 0], [0.4, 0.2, 0.0, 0.4], [0.3, 0.7, 0, 0]]
    model = ByCount([[0.6, 0.4]] * 4, attention=[[other, other], [one, two]])
    assert steps_of(model, AGDO(), [2, 0, 2, 2]) == ([{3}, {2}, {0}], 3)
    assert steps_of(model, AGDO(2), [2, 0, 2, 2]) == ([{0, 3}, {2}], 2)


def test_agdo_does_not_count_padding_and_starts_with_the_most_confident():
    # 3 is padding, which 0 looks at most; 1 looks at 2 (visible) with .3, 0 with .1.
    maps = [[0.0, 0.0, 0.1, 0.9], [0.4, 0.3, 0.3, 0.0], [1, 0, 0, 0], [1, 0, 0, 0]]
    model = ByCount([[0.9, 0.1], [0.6, 0.4], [0.7, 0.3], [0.5, 0.5]], attention=[[maps]])
    assert steps_of(model, AGDO(), [2, 2, 0, 3])[0] == [{1}, {0}]
    # Nothing is visible: 0 (.9). Then 1 looks at it with .4, 2 with 1.
    assert steps_of(model, AGDO(), [2, 2, 2, 3])[0] == [{0}, {2}, {1}]


def test_agdo_needs_attention():
    with pytest.raises(ValueError, match="no attention maps"):
        decode(ByCount([[0.6, 0.4]] * 3), torch.full((1, 3), 2), AGDO())


# DAPD ----------------------------------------------------------------------------------------------------------------

# position   0   1   2      3   4
# confidence .5  .98 given  .6  .9
TABLE = [[0.5, 0.5, 0.0], [0.98, 0.01, 0.01], [0.2, 0.2, 0.6], [0.6, 0.2, 0.2], [0.9, 0.1, 0.0]]


@pytest.mark.parametrize(
    ("threshold", "expected"),
    [
        # Sums 0: .45, 1: .50, 3: .35, 4: .40; times confidence .225, .49, .21, .36: order 1, 4, 0, 3
        (0.2, {1, 4}),  # edges 0-1, 3-4: 4 isn't joined to 1
        (0.05, {1, 3}),  # and 1-4: of 4 and 0 neither, 3 only touches 4 (0-3 is at .05, not above)
        (0.5, {0, 1, 3, 4}),
    ],
)
def test_dapd(threshold, expected):
    source = matrix({(0, 1): 0.4, (1, 4): 0.1, (3, 4): 0.3, (0, 3): 0.05})
    assert steps_of(ByCount(TABLE), DAPD(threshold, pairwise=source), [3, 3, 0, 3, 3])[0][0] == expected


def test_dapd_weighs_the_sum_by_confidence():
    # Sums 0: .4, 4: .3, 1: .1; times confidence .2, .27, .098: 4 before 0, which it excludes.
    source = matrix({(0, 4): 0.3, (0, 1): 0.1})
    assert steps_of(ByCount(TABLE), DAPD(0.2, pairwise=source), [3, 3, 0, 3, 3])[0][0] == {1, 3, 4}


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        # All joined: one a step while 5, 4, 3 of 5 are masked (half or more); then by confidence above .9
        (0.95, [{0}, {1}, {2}, {3, 4}]),
        (0.5, [{0}, {1}, {2}, {3}, {4}]),
    ],
)
def test_dapd_leaves_the_graph_aside_in_the_second_half(last, expected):
    table = [[p, 1 - p] for p in (0.99, 0.98, 0.97, 0.96, last)]
    source = matrix({(i, j): 0.1 for i in range(5) for j in range(i)})
    # A visible sixth position doesn't count for the half.
    model = ByCount([*table, [0.5, 0.5]])
    full = DAPD(0.05, pairwise=matrix({(i, j): 0.1 for i in range(5) for j in range(i)}, 6))
    assert steps_of(ByCount(table), DAPD(0.05, pairwise=source), [2] * 5) == (expected, len(expected))
    assert steps_of(model, full, [2] * 5 + [0])[0] == expected


def test_dapd_reads_attention_unless_told_otherwise():
    # Between 0 and 1 (.3 + .1)/2 = .2, between 0 and 2 .05, between 1 and 2 .15; sums .25, .35, .2, equal confidence.
    maps = [[0.6, 0.3, 0.1], [0.1, 0.8, 0.1], [0.0, 0.2, 0.8]]
    model = ByCount([[0.6, 0.4]] * 3, attention=[[maps]])
    assert steps_of(model, DAPD(0.1), [2] * 3)[0][0] == {1}
    assert steps_of(model, DAPD(0.17), [2] * 3)[0][0] == {1, 2}
    assert steps_of(model, DAPD(0.2), [2] * 3)[0][0] == {0, 1, 2}  # .2 isn't above .2
    with pytest.raises(ValueError, match="no attention maps"):
        decode(ByCount([[0.6, 0.4]] * 3), torch.full((1, 3), 2), DAPD(0.1))


def test_independent_sets_agree_with_a_plain_loop():
    draw = torch.Generator().manual_seed(0)
    key = torch.rand(50, 9, generator=draw).mul(4).round()  # with ties
    candidates = torch.rand(50, 9, generator=draw) < 0.7
    edges = torch.rand(50, 9, 9, generator=draw) < 0.15
    edges = edges | edges.mT
    taken = independent_set(key, candidates, edges)
    for b in range(50):
        chosen = []
        for i in sorted(range(9), key=lambda i: (-key[b, i], i)):
            if candidates[b, i] and not any(edges[b, i, j] for j in chosen):
                chosen.append(i)
        assert set(taken[b].nonzero().flatten().tolist()) == set(chosen)


# PUNT ----------------------------------------------------------------------------------------------------------------


def outer(*parts):
    """The joint table of independent groups of positions, in order."""
    joint = torch.ones((), dtype=torch.float64)
    for part in parts:
        joint = joint.reshape(*joint.shape, *[1] * part.ndim) * part
    return joint


def bits(*probabilities):
    return torch.tensor(probabilities, dtype=torch.float64)


COPY_95 = bits([0.95, 0.05], [0.05, 0.95])
COPY_9 = bits([0.9, 0.1], [0.1, 0.9])


@pytest.mark.parametrize(
    ("epsilon", "expected", "passes"),
    [
        # By falling confidence: 0 (.9), 1 (.9 * .95 + .1 * .05 = .86), 3 (.7), 2 (.6), so numbers 0, 1, 3, 2.
        # Digit of 2: 0 and 1 filled in change nothing at 2 and 3. Digit of 1: 0 and 3 are filled in, 1 becomes .95:
        # KL(.86 ‖ .95) = .86 ln(.86/.95) + .14 ln(.14/.05) = .0586 (the other way round: .0431).
        (0.05, [{0, 2, 3}, {1}], 3 + 1),
        (0.06, [{0, 1, 2, 3}], 3),
    ],
)
def test_punt(epsilon, expected, passes):
    model = TabularModel(outer(bits(0.9, 0.1)[:, None] * COPY_95, bits(0.6, 0.4), bits(0.7, 0.3)))
    assert steps_of(model, PUNT(epsilon), [2] * 4) == (expected, passes)


def test_punt_tests_halves_first_and_a_dropped_position_influences_nothing():
    # A chain 0 -> 2 -> 3 and a loose 1: confidences .9, .85, .9 * .9 + .1 * .1 = .82, .82 * .9 + .18 * .1 = .756.
    # 0 and 1 filled in: 2 becomes .9, KL(.82 ‖ .9) = .0295, dropped; 3 becomes .82, KL(.756 ‖ .82) = .0128, stays.
    # 0 alone filled in, 2 being out: 3 stays. With the last digit first 0 and 2 would have dropped it: .9, .0858.
    chain = bits(0.9, 0.1)[:, None, None] * COPY_9[:, :, None] * COPY_9
    model = TabularModel(chain[:, None] * bits(0.85, 0.15)[:, None, None])
    assert steps_of(model, PUNT(0.02), [2] * 4) == ([{0, 1, 3}, {2}], 4)


@pytest.mark.parametrize(("blanks", "passes"), [(1, 1), (2, 2), (3, 3), (4, 3), (5, 4), (8, 4), (9, 5)])
def test_punt_takes_a_pass_for_every_binary_digit(blanks, passes):
    # Nothing depends on anything: one step for all.
    model = ByCount([[0.6, 0.4]] * 9)
    assert steps_of(model, PUNT(0.01), [2] * blanks + [0] * (9 - blanks)) == ([set(range(blanks))], passes)


def test_punt_keeps_dependent_positions_apart_when_sampling():
    # A fair bit and its copy, and a loose one. Both bits at once would be wrong half the time.
    model = TabularModel(outer(bits(0.5, 0.5)[:, None] * COPY_9, bits(0.7, 0.3)))
    tokens = decode(model, torch.full((8000, 3), 2), PUNT(0.1), temperature=1.0, batch_size=4000).tokens
    assert fit(tokens, model.joint) > LEVEL


# Info-Gain -----------------------------------------------------------------------------------------------------------


def info_gain_example():
    # Position 0 is loose (.6); 2 copies 1 (.55) with .95, so it is .55 * .95 + .45 * .05 = .545.
    return TabularModel(outer(bits(0.6, 0.4), bits(0.55, 0.45)[:, None] * COPY_95))


@pytest.mark.parametrize(
    ("settings", "expected", "passes"),
    [
        # Many hot candidates: each single position is among them. Entropies .6730, .6881, .6891.
        # 0: -.6730 - (.6881 + .6891)/2 = -1.3616
        # 1: -.6881 - (.6730 + H(.95))/2 = -.6881 - (.6730 + .1985)/2 = -1.1239
        # 2: -.6891 - (.6730 + H(.55 * .95/.545 = .9587))/2 = -.6891 - (.6730 + .1720)/2 = -1.1116, the best
        # Then 1 bypasses at .9587, and 0 is alone: 1 + 3, 1, 1 passes.
        ({}, [{2}, {1}, {0}], 6),
        ({"candidates": 1}, [{0}, {1}, {2}], 3),  # the most confident of all: .6, .55, .95
        ({"bypass": 0.549}, [{0, 1}, {2}], 2),
        # Pairs: 01 -1.3611 - H(.95) = -1.5596; 02 -1.3621 - H(.9587) = -1.5341; 12 -1.3772 - .6730 = -2.0502
        ({"k": 2}, [{0, 2}, {1}], 5),
        ({"k": 3}, [{0, 1, 2}], 1),
    ],
)
def test_info_gain(settings, expected, passes):
    settings = {"candidates": 80, "temperature": 1e6, **settings}
    assert steps_of(info_gain_example(), InfoGain(**settings), [2] * 3) == (expected, passes)


def test_info_gain_counts_the_mean_of_what_is_left():
    # As above with .97 at 0 (entropy .1347): 0 has -.1347 - (.6881 + .6891)/2 = -.8233, 1 -.6881 - .1666 = -.8547,
    # 2 -.6891 - (.1347 + .1720)/2 = -.8425. By sums instead of means 2 would win, -.9958 to -1.5119.
    model = TabularModel(outer(bits(0.97, 0.03), bits(0.55, 0.45)[:, None] * COPY_95))
    decoder = InfoGain(candidates=80, temperature=1e6, bypass=None)
    assert steps_of(model, decoder, [2] * 3)[0][0] == {0}


def test_info_gain_without_bypass_looks_ahead_to_the_last():
    # 1 + 3, 1 + 2 and 1 passes. (In the second step either order costs .6730 + .1720, so rounding may decide.)
    decoder = InfoGain(candidates=80, temperature=1e6, bypass=None)
    steps, passes = steps_of(info_gain_example(), decoder, [2] * 3)
    assert steps[0] == {2} and passes == 8


def test_info_gain_draws_candidates_by_confidence():
    # Of .7 and .6 at temperature .1 the second comes first with 1/(1 + exp(1)) = .2689: then both are looked at.
    model = ByCount([[0.7, 0.3], [0.6, 0.4]])
    passes = decode(model, torch.full((8000, 2), 2), InfoGain(candidates=2), batch_size=4000).passes
    assert set(passes.tolist()) == {2, 4}
    both = int((passes == 4).sum())
    assert stats.binomtest(both, 8000, 1 / (1 + math.e)).pvalue > LEVEL


def test_info_gain_draws_candidates_independently():
    model = ByCount([[0.6, 0.4]] * 10)
    once = decode(model, torch.full((300, 10), 2), InfoGain(candidates=2, temperature=1.0), batch_size=300)
    more = decode(model, torch.full((300, 10), 2), InfoGain(candidates=4, temperature=1.0), batch_size=300)
    # Two of m equal positions differ with (m - 1)/m: 2 passes with this probability, for m from 10 down to 2, are
    # 2 * (9 - (1/10 + … + 1/2)) = 14.142, and 10 of the steps. The standard error is under 2 * sqrt(1.24/300) = .13.
    assert float(once.passes.double().mean()) == pytest.approx(24.142, abs=0.52)
    # Distinct ones of a fixed and three free choices: m (1 - (1 - 1/m)^3) + (1 - 1/m)^3 on average, 1 counts as 0.
    expected = 10 + sum(m * (1 - (1 - 1 / m) ** 3) + (1 - 1 / m) ** 3 - m**-3.0 for m in range(2, 11))
    assert float(more.passes.double().mean()) == pytest.approx(expected, abs=0.6)


def test_info_gain_draws_anew_in_each_step():
    decoder, same = InfoGain(candidates=2, temperature=10.0, bypass=None), []

    def watch(view):
        decision = decoder(view)
        later = decoder(dataclasses.replace(view, step=view.step + 1))
        same.append(torch.equal(decision.commit, later.commit))
        return decision

    decode(Scripted(12), puzzles(20, 12), watch)
    assert not all(same)


# DepCap --------------------------------------------------------------------------------------------------------------

RIVALS = [[0.96, 0.03, 0.01], [0.85, 0.1, 0.05], [0.02, 0.9, 0.08], [0.01, 0.82, 0.17], [0.5, 0.3, 0.2]]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # 0 is above high, 4 is no candidate. Sums of logs: 0-1 ln(.96 * .85) = -.203, 0-2 ln(.03 * .02) = -7.42,
        # 0-3 ln(.03 * .01) = -8.11, 1-2 ln(.1 * .02) = -6.21, 1-3 ln(.1 * .01) = -6.91, 2-3 ln(.9 * .82) = -.304.
        ({"gamma": -4}, {0, 2}),  # 1 is 0's rival, 3 is 2's
        ({"gamma": -7.5}, {0, 3}),  # 2 is 0's rival too; 3 isn't, and 2 is out
        ({"gamma": -9}, {0}),
        ({"gamma": -0.25}, {0, 2, 3}),
        ({"gamma": 0}, {0, 1, 2, 3}),
        ({}, {0}),  # the published -16
        ({"gamma": -4, "high": 0.84}, {0, 1, 2}),  # 0 and 1 are both above high: rivals all the same
        ({"gamma": -4, "high": 0.99}, {0, 2}),  # none is above high: 0 first, then 2
        ({"gamma": -4, "low": 0.97, "high": 0.99}, {0}),  # no candidates: the most confident
        ({"gamma": 0, "low": 0.4, "high": 0.4}, {0, 1, 2, 3, 4}),
        ({"gamma": 0, "shortest": 2, "low": 0.4}, {0, 1}),  # the first block
    ],
)
def test_depcap_within_a_block(settings, expected):
    assert steps_of(ByCount(RIVALS), DepCap(**settings), [3] * 5)[0][0] == expected


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # Everything is .8/.2 but positions 1 and 2 while nothing is visible: I = a, a, 0, 0, 0 over the window 1 … 5,
        # smoothed 2a/3, 2a/3, a/3, 0, 0, normalised .5, .5, 0, -.5, -.5. H = h, smoothed 2h/3, h, h, h, 2h/3,
        # normalised -1, 0, 0, 0, -1. I - H = 1.5, .5, 0, -.5, .5: three blanks.
        # Then I = 0 over 4, 5, 6; H smoothed 2h/3, h, 2h/3 has no spread: 0, huge, 0, so one blank. Then 5, 6: no more.
        ({"shortest": 1}, [{0}, {1, 2, 3}, {4}, {5, 6}]),
        ({"shortest": 1, "lam": 0}, [{0}, {1, 2, 3}, {4, 5, 6}]),
        # 0 and 1 first; I = a, 0, 0, 0, 0 over 2 … 6, smoothed a/3, a/3, 0, 0, 0, normalised 1, 1, 0, 0, 0: all five.
        ({"shortest": 2}, [{0, 1}, {2, 3, 4, 5, 6}]),
        # Over 2, 3, 4 I = a/3, a/3, 0 becomes 0, 0, -1 and H 0, huge, 0: one, but at least two. Again, then the rest.
        ({"shortest": 2, "longest": 3}, [{0, 1}, {2, 3}, {4, 5}, {6}]),
        ({"shortest": 5}, [{0, 1, 2, 3, 4}, {5, 6}]),
        ({"shortest": 50, "longest": 60}, [{0, 1, 2, 3, 4, 5, 6}]),
    ],
)
def test_depcap_blocks(settings, expected):
    surprised = [[0.8, 0.2], [0.2, 0.8], [0.2, 0.8]] + [[0.8, 0.2]] * 4
    model = ByCount(surprised, [[0.8, 0.2]] * 7)
    decoder = DepCap(**{"longest": 5, "low": 0.7, "high": 0.75, **settings})
    assert steps_of(model, decoder, [2] * 7) == (expected, len(expected))
    # Given positions between the blanks change nothing: with three of them there are always three tokens more.
    spread = [0, 2, 3, 5, 6, 8, 9]
    rows = [[0.5, 0.5]] * 10, [[0.5, 0.5]] * 10
    rows = [
        [t[spread.index(i)] if i in spread else [0.5, 0.5] for i in range(10)] for t in (surprised, [[0.8, 0.2]] * 7)
    ]
    model = ByCount(*[rows[0]] * 4, rows[1])
    steps, _ = steps_of(model, decoder, [2 if i in spread else 0 for i in range(10)])
    assert steps == [{spread[i] for i in step} for step in expected]


def plain_depcap(decoder, memory, view, b):
    """One step of one sequence in plain Python; ``memory`` holds the block's end and the distributions at its start."""
    blanks = [i for i in range(view.tokens.shape[1]) if not view.given[b, i]]
    masked = [i for i in blanks if view.masked[b, i]]
    p = view.log_probs[b].tolist()

    def normalised(x):
        padded = [0.0, *x, 0.0]
        smooth = [sum(padded[i : i + 3]) / 3 for i in range(len(x))]
        q1, median, q3 = (sorted(smooth)[int(q * (len(x) - 1))] for q in (0.25, 0.5, 0.75))
        return [(s - median) / max(q3 - q1, 1e-15) for s in smooth]

    if not [i for i in blanks[: memory.get("end", 0)] if i in masked]:
        length = decoder.shortest
        if "start" in memory:
            window = masked[: decoder.longest]
            kl = [sum(math.exp(a) * (a - c) for a, c in zip(p[i], memory["start"][i], strict=True)) for i in window]
            entropy = [-sum(math.exp(a) * a for a in p[i]) for i in window]
            scores = [i - decoder.lam * h for i, h in zip(normalised(kl), normalised(entropy), strict=True)]
            length = next((n for n, s in enumerate(scores) if s < 0), len(scores))
            length = min(max(length, decoder.shortest), decoder.longest)
        memory["end"] = min(memory.get("end", 0) + length, len(blanks))
        memory["start"] = p
    block = [i for i in blanks[: memory["end"]] if i in masked]
    c, x = view.confidence[b].tolist(), view.proposal[b].tolist()

    def conflict(i, j):
        return p[i][x[j]] + p[j][x[i]] > decoder.gamma

    by_confidence = sorted(block, key=lambda i: (-c[i], i))
    chosen = [i for i in by_confidence if c[i] >= decoder.high]
    for i in by_confidence:
        if decoder.low <= c[i] < decoder.high and not any(conflict(i, j) for j in chosen):
            chosen.append(i)
    return set(chosen) | {by_confidence[0]}


@pytest.mark.parametrize("lam", [0.0, 1.0])
def test_depcap_agrees_with_a_plain_loop(lam):
    decoder = DepCap(2, 9, lam=lam, low=0.3, high=0.6, gamma=-3.0)
    memories, lengths = {}, set()

    def watch(view):
        decision = decoder(view)
        for b, name in enumerate(view.ids.tolist()):
            memory = memories.setdefault(name, {})
            before = memory.get("end", 0)
            expected = plain_depcap(decoder, memory, view, b)
            assert set(decision.commit[b].nonzero().flatten().tolist()) == expected
            lengths.add(memory["end"] - before)
        return decision

    decode(Scripted(24), puzzles(60, 24), watch, batch_size=16)
    assert {2, 3, 4} <= lengths


# All of them ---------------------------------------------------------------------------------------------------------

LEVEL = 1e-4  # a chi-square may fail with this probability for a perfect sampler; the seeds are fixed


def fit(tokens, p):
    """p-value of the sampled tokens ``[N, L]`` under the joint table ``p``."""
    code = (tokens * p.shape[0] ** torch.arange(tokens.shape[1]).flip(0)).sum(1)
    return stats.chisquare(code.bincount(minlength=p.numel()).numpy(), (p.flatten() * len(tokens)).numpy()).pvalue


class Scripted:
    """Logits over nine values and attention maps that depend on position and visible tokens, never on padding."""

    values, hidden_size, device = "123456789", 2, torch.device("cpu")

    def __init__(self, length):
        draw = torch.Generator().manual_seed(0)
        self.base = torch.randn(length, 9, generator=draw, dtype=torch.float64)
        self.effect = torch.randn(11, length, 9, generator=draw, dtype=torch.float64)
        self.effect[9:] = 0
        self.look = torch.randn(3, 2, length, length, 11, generator=draw, dtype=torch.float64)

    def __call__(self, tokens, attention=False):
        length = tokens.shape[1]
        position = torch.arange(length)
        # What a token says depends on how far away it stands.
        far = (position[:, None] - position).abs()
        logits = self.base[:length] + self.effect[tokens[:, None], far].sum(2)
        maps = None
        if attention:
            seen = self.look[:, :, position[:, None], position, tokens[:, None]].permute(2, 0, 1, 3, 4)
            maps = seen.masked_fill((tokens == 10)[:, None, None, None], -torch.inf).softmax(-1)
        return Output(logits, torch.zeros(len(tokens), length, 2), maps)


def puzzles(count, length):
    draw = torch.Generator().manual_seed(5)
    tokens = torch.randint(0, 9, (count, length), generator=draw)
    return tokens.masked_fill(torch.rand(count, length, generator=draw) < 0.7, 9)


DECODERS = [
    Dilated(),
    Dilated(4),
    KLASS(0.5, 0.3, 1),
    KLASS(0.4, 0.5, 2, fallback=2),
    AGDO(2),
    DAPD(0.05),
    DAPD(0.1, confidence=0.5),
    PUNT(0.3),
    InfoGain(bypass=None),
    InfoGain(2, 4, temperature=0.5, bypass=0.7),
    DepCap(2, 6, low=0.3, high=0.6, gamma=-4.0),
]
one_each = pytest.mark.parametrize("decoder", DECODERS, ids=lambda d: type(d).__name__)


@one_each
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_a_result_does_not_depend_on_batch_or_order(decoder, temperature):
    tokens, model = puzzles(20, 12), Scripted(12)
    reference = decode(model, tokens, decoder, seed=3, temperature=temperature)
    assert (reference.tokens < 9).all()
    assert torch.equal(reference.tokens[tokens < 9], tokens[tokens < 9])
    for size in (1, 7):
        other = decode(model, tokens, decoder, seed=3, temperature=temperature, batch_size=size)
        for name in ("tokens", "passes", "steps"):
            assert torch.equal(getattr(other, name), getattr(reference, name))
    order = torch.randperm(20, generator=torch.Generator().manual_seed(1))
    other = decode(model, tokens[order], decoder, seed=3, temperature=temperature, sequence_ids=order, batch_size=7)
    assert torch.equal(other.tokens, reference.tokens[order])
    assert torch.equal(other.passes, reference.passes[order])


@one_each
def test_padding_changes_nothing(decoder):
    model, tokens = Scripted(12), puzzles(10, 9)
    alone = decode(model, tokens, decoder, temperature=1.0)
    padded = decode(model, torch.nn.functional.pad(tokens, (0, 3), value=10), decoder, temperature=1.0)
    assert torch.equal(padded.tokens[:, :9], alone.tokens)
    assert (padded.tokens[:, 9:] == 10).all()
    assert torch.equal(padded.passes, alone.passes)


@one_each
def test_passes_are_counted(decoder):
    tokens = puzzles(20, 12)
    result = decode(Scripted(12), tokens, decoder, keep_trace=True)
    commits = result.trace.commits
    extra = torch.zeros(20, dtype=torch.long)  # beyond one for each step; for Info-Gain the most that it may be
    for row in range(20):
        left = int((tokens[row] == 9).sum())
        for step in range(int(result.steps[row])):
            if isinstance(decoder, PUNT):
                extra[row] += math.ceil(math.log2(left))
            if isinstance(decoder, InfoGain) and left > decoder.k:
                extra[row] += min(decoder.candidates, math.comb(left, decoder.k))
            left -= int(((commits["sequence"] == row) & (commits["step"] == step)).sum())
    more = result.passes - result.steps
    if isinstance(decoder, InfoGain):  # how many candidates differ is up to the noise; exact counts are above
        assert (more <= extra).all() and more.sum() > 0
    else:
        assert torch.equal(more, extra)
    assert int(result.matrix_passes.sum()) == 0


@pytest.mark.parametrize(
    "decoder", [d for d in DECODERS if not isinstance(d, AGDO | DAPD)], ids=lambda d: type(d).__name__
)
def test_without_dependence_sampling_is_exact(decoder):
    model = TabularModel.independent([[0.7, 0.2, 0.1], [0.4, 0.3, 0.3], [0.1, 0.1, 0.8]])
    tokens = decode(model, torch.full((6000, 3), 3), decoder, temperature=1.0, batch_size=6000).tokens
    assert fit(tokens, model.joint) > LEVEL


@one_each
def test_nothing_masked_and_one_blank(decoder):
    model = Scripted(12)
    finished = torch.zeros(1, 12, dtype=torch.long)
    assert int(decode(model, finished, decoder).passes) == 0
    blank = finished.clone()
    blank[0, 4] = 9
    result = decode(model, blank, decoder)
    assert result.passes.tolist() == [1] and int(result.tokens[0, 4]) == int(model(blank).logits[0, 4].argmax())


@pytest.mark.parametrize(
    "build",
    [
        lambda: Dilated(0),
        lambda: KLASS(1.1),
        lambda: KLASS(kl=float("nan")),
        lambda: KLASS(history=0),
        lambda: KLASS(fallback=0),
        lambda: AGDO(0),
        lambda: DAPD(-0.1),
        lambda: DAPD(float("nan")),
        lambda: DAPD(0.1, confidence=2),
        lambda: DAPD(0.1, pairwise=None),
        lambda: PUNT(-1),
        lambda: PUNT(float("nan")),
        lambda: InfoGain(0),
        lambda: InfoGain(candidates=0),
        lambda: InfoGain(temperature=0),
        lambda: InfoGain(temperature=float("nan")),
        lambda: InfoGain(bypass=1.5),
        lambda: DepCap(0),
        lambda: DepCap(9, 8),
        lambda: DepCap(lam=-1),
        lambda: DepCap(lam=float("inf")),
        lambda: DepCap(low=0.9, high=0.8),
        lambda: DepCap(high=1.5),
        lambda: DepCap(gamma=float("nan")),
    ],
)
def test_bad_settings_are_refused(build):
    with pytest.raises(ValueError, match="must|is a probability|needs a matrix"):
        build()


def test_other_matrices_serve_the_graph():
    assert DAPD(0.1) == DAPD(0.1, pairwise=AttentionMatrix())
    with_attention = decode(Scripted(12), puzzles(5, 12), DAPD(0.05), keep_trace=True).trace
    one_a_step = decode(Scripted(12), puzzles(5, 12), Sequential(), keep_trace=True).trace
    assert len(with_attention.steps["step"]) < len(one_a_step.steps["step"])
