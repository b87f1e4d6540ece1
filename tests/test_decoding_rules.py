"""One hand-worked step for each decoder, through the loop."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maskmi.decoding import (
    ConfidenceFactor,
    ConfidenceThreshold,
    EntropyBounded,
    Margin,
    MIGuided,
    Naive,
    Sequential,
    decode,
)
from maskmi.model import Output

MASK = 3


class FixedModel:
    """Says the same of every context: ``probabilities [L, 3]``."""

    values, hidden_size, device = "abc", 1, torch.device("cpu")

    def __init__(self, probabilities):
        self.logits = torch.tensor(probabilities).log()

    def __call__(self, tokens, attention=False):
        return Output(self.logits.expand(len(tokens), -1, -1), torch.zeros(*tokens.shape, 1))


# position  probabilities        entropy  confidence  margin
# 0         .5  .5  0            .6931    .5          0
# 1         .98 .01 .01          .1119    .98         .97
# 2         given
# 3         .6  .2  .2           .9503    .6          .4
# 4         .9  .1  0            .3251    .9          .8
TABLE = [[0.5, 0.5, 0.0], [0.98, 0.01, 0.01], [0.2, 0.2, 0.6], [0.6, 0.2, 0.2], [0.9, 0.1, 0.0]]


def first_step(decoder, table=TABLE, tokens=(MASK, MASK, 0, MASK, MASK)):
    trace = decode(FixedModel(table), torch.tensor([tokens]), decoder, keep_trace=True).trace
    first = trace.commits["step"] == 0
    return set(trace.commits["position"][first].tolist()), float(trace.steps["spent"][0])


def test_sequential_takes_the_least_entropy():
    assert first_step(Sequential())[0] == {1}


@pytest.mark.parametrize(("k", "expected"), [(1, {1}), (2, {1, 4}), (3, {0, 1, 4}), (9, {0, 1, 3, 4})])
def test_naive(k, expected):
    assert first_step(Naive(k))[0] == expected


@pytest.mark.parametrize(("k", "expected"), [(1, {1}), (3, {1, 3, 4}), (9, {0, 1, 3, 4})])
def test_margin(k, expected):
    assert first_step(Margin(k))[0] == expected


@pytest.mark.parametrize(("threshold", "expected"), [(0.99, {1}), (0.85, {1, 4}), (0.55, {1, 3, 4}), (0, {0, 1, 3, 4})])
def test_confidence_threshold(threshold, expected):
    assert first_step(ConfidenceThreshold(threshold))[0] == expected


@pytest.mark.parametrize(
    ("factor", "expected"),
    [
        (0, {1}),  # .98 < 1: the first is taken all the same
        (0.2, {1}),  # .90 < 1 - .2/3 = .933
        (0.5, {1, 4}),  # .90 >= 1 - .5/3 = .833; .6 < 1 - .5/4 = .875
        (1.7, {1, 3, 4}),  # .60 >= 1 - 1.7/4 = .575; .5 < 1 - 1.7/5 = .66
        (2.6, {0, 1, 3, 4}),  # .50 >= 1 - 2.6/5 = .48
    ],
)
def test_confidence_factor(factor, expected):
    assert first_step(ConfidenceFactor(factor))[0] == expected


def test_confidence_factor_stops_at_the_first_that_fails():
    # By falling c: .95 .6 .6 .6; factor 1.5 asks .25, .5, .625, .7. A count of those that fit would jump the third.
    table = [[0.95, 0.05, 0.0], [0.6, 0.4, 0.0], [0.6, 0.4, 0.0], [0.6, 0.4, 0.0]]
    assert first_step(ConfidenceFactor(1.5), table, (MASK,) * 4)[0] == {0, 1}


@pytest.mark.parametrize(
    ("budget", "expected", "spent"),
    [  # sum - max of the prefixes 1; 1 4; 1 4 0; 1 4 0 3: 0, .1119, .4370, 1.1301
        (0, {1}, 0),
        (0.11, {1}, 0),
        (0.12, {1, 4}, 0.1119),
        (0.5, {0, 1, 4}, 0.4370),
        (1.2, {0, 1, 3, 4}, 1.1301),
    ],
)
def test_entropy_bounded(budget, expected, spent):
    positions, used = first_step(EntropyBounded(budget))
    assert positions == expected
    assert used == pytest.approx(spent, abs=1e-4)


@pytest.mark.parametrize(
    ("proxy", "two", "three"),
    [  # prefixes of two: sum - max = .1119 for each proxy, of three: .1119 + .6474 = .7593
        ("entropy", {0, 1}, {0, 1, 2}),
        ("confidence", {0, 1}, {0, 1, 3}),
        ("margin", {0, 3}, {0, 1, 3}),
    ],
)
def test_entropy_bounded_proxies(proxy, two, three):
    #        entropy  confidence  margin
    table = [
        [0.98, 0.01, 0.01],  # .1119    .98         .97
        [0.65, 0.35, 0.0],  # .6474    .65         .30
        [0.5, 0.5, 0.0],  # .6931    .5          0
        [0.6, 0.2, 0.2],  # .9503    .6          .4
    ]
    assert first_step(EntropyBounded(0.12, proxy), table, (MASK,) * 4)[0] == two
    assert first_step(EntropyBounded(0.76, proxy), table, (MASK,) * 4)[0] == three


def matrix(entries):
    full = torch.zeros(5, 5)
    for (i, j), value in entries.items():
        full[i, j] = full[j, i] = value
    return lambda model, view: (full.expand(len(view.tokens), -1, -1), torch.zeros_like(view.step))


DEPENDENT = matrix({(1, 4): 0.5, (0, 1): 0.02, (1, 3): 0.1, (0, 3): -0.3})


@pytest.mark.parametrize(
    ("settings", "expected", "spent"),
    [
        # 1 first (.1119); 4: .3251 + .5 = .8251 too much; 0: .6931 + .02 = .7131 fits; 3: .9503 + .1 = 1.0503 no
        ({"budget": 0.75}, {0, 1}, 0.8250),
        # 4 fits now; 3 would at .7503 if the negative entry counted
        ({"budget": 1.0}, {0, 1, 4}, 1.6501),
        ({"budget": 1.06}, {0, 1, 3, 4}, 2.7004),
        # lam 2: 4 costs 1.3251, 0 costs .7331, 3 costs 1.1503
        ({"budget": 1.06, "lam": 2}, {0, 1}, 0.8450),
        # .9 - .1119 = .7881 left: 4 (.8251) no, 0 (.7131) yes, .0750 left
        ({"budget": 0.9, "reading": "cumulative"}, {0, 1}, 0.8250),
        # .8 - .1119 = .6881 left: nothing fits
        ({"budget": 0.8, "reading": "cumulative"}, {1}, 0.1119),
        ({"budget": 1.7, "reading": "cumulative"}, {0, 1, 4}, 1.6501),
        # the first is taken though it does not fit, and charged
        ({"budget": 0.05, "reading": "cumulative"}, {1}, 0.1119),
        ({"budget": 0.05}, {1}, 0.1119),
        # the entropy-only ablation: .1119 + .3251 = .4370
        ({"budget": 0.5, "lam": 0, "reading": "cumulative"}, {1, 4}, 0.4370),
        ({"budget": 0.7, "lam": 0}, {0, 1, 4}, 1.1301),
        # alpha 0: all cost nothing at first, entropy decides; then 0 (.02), 3 (.1), 4 (.5)
        ({"budget": 0.13, "alpha": 0, "reading": "cumulative", "order": "least_cost"}, {0, 1, 3}, 0.12),
        ({"budget": 0.05, "alpha": 0, "order": "least_cost"}, {0, 1}, 0.02),
        ({"budget": 0.5, "alpha": 0, "order": "least_cost"}, {0, 1, 3, 4}, 0.62),
        # alpha 1: after 1 the costs are .8251 (4), .7131 (0), 1.0503 (3)
        ({"budget": 0.9, "reading": "cumulative", "order": "least_cost"}, {0, 1}, 0.8250),
        # alpha .1: 1 (.0112), 0 (.0893), 3 (.1950), 4 (.5325)
        ({"budget": 0.3, "alpha": 0.1, "reading": "cumulative", "order": "least_cost"}, {0, 1, 3}, 0.2955),
    ],
)
def test_mi_guided(settings, expected, spent):
    positions, used = first_step(MIGuided(pairwise=DEPENDENT, **settings))
    assert positions == expected
    assert used == pytest.approx(spent, abs=2e-4)


def test_mi_guided_orders_differ():
    # By entropy, 4 uses up the budget (.12 of .13); by least cost 0 (.02) and 3 (.1) come before it.
    source = matrix({(1, 4): 0.12, (0, 1): 0.02, (1, 3): 0.1})
    settings = {"budget": 0.13, "alpha": 0, "reading": "cumulative", "pairwise": source}
    assert first_step(MIGuided(order="entropy", **settings))[0] == {1, 4}
    assert first_step(MIGuided(order="least_cost", **settings))[0] == {0, 1, 3}


def test_mi_guided_pivot():
    # Sums of dependence: 3 (.4 + .3), then 0 (.4), 4 (.3 + .05), 1 (.05). After 3 the costs are 0 (1), .3 (4), .4 (0),
    # and with 1 taken .35 (4), .4 (0).
    source = matrix({(0, 3): 0.4, (3, 4): 0.3, (1, 4): 0.05, (0, 1): -0.2})
    settings = {"alpha": 0, "order": "pivot", "pairwise": source}
    for budget, reading, expected, spent in (
        (0.34, "threshold", {1, 3}, 0.0),
        (0.36, "threshold", {1, 3, 4}, 0.35),
        (0.4, "threshold", {0, 1, 3, 4}, 0.75),
        (0.4, "cumulative", {1, 3, 4}, 0.35),
    ):
        positions, used = first_step(MIGuided(budget, reading=reading, **settings))
        assert positions == expected
        assert used == pytest.approx(spent, abs=1e-6)
    with pytest.raises(ValueError, match="order 'pivot' needs a matrix"):
        MIGuided(0.3, lam=0, order="pivot")


def plain_mi_guided(entropy, masked, pairwise, budget, lam, alpha, reading, order):
    """The rule of one sequence in plain Python."""
    left = sorted((i for i in range(len(entropy)) if masked[i]), key=lambda i: (entropy[i], i))
    taken, spent = [], 0.0

    def cost(i):
        return alpha * entropy[i] + lam * sum(max(pairwise[i][j], 0.0) for j in taken)

    def dependence(i):
        return sum(max(entry, 0.0) for entry in pairwise[i])

    while left:
        i = left[0] if order == "entropy" else min(left, key=cost)  # min takes the first of equals
        if order == "pivot" and not taken:
            i = max(left, key=dependence)
        left.remove(i)
        fits = cost(i) <= (budget - spent if reading == "cumulative" else budget)
        if fits or not taken:
            spent += cost(i)
            taken.append(i)
        elif order != "entropy":
            break
    return set(taken)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    budget=st.floats(0, 3),
    lam=st.sampled_from([0.0, 0.5, 2.0]),
    alpha=st.sampled_from([0.0, 0.3, 1.0]),
    reading=st.sampled_from(["threshold", "cumulative"]),
    order=st.sampled_from(["entropy", "least_cost", "pivot"]),
)
def test_mi_guided_agrees_with_a_plain_loop(seed, budget, lam, alpha, reading, order):
    draw = torch.Generator().manual_seed(seed)
    batch, length = 4, 7
    logits = torch.randn(batch, length, 3, generator=draw, dtype=torch.float64) * 2
    pairwise = torch.randn(batch, length, length, generator=draw, dtype=torch.float64) * 0.3
    pairwise = pairwise + pairwise.mT
    tokens = torch.where(torch.rand(batch, length, generator=draw) < 0.7, MASK, 0)
    tokens[:, 0] = MASK
    masked = tokens == MASK
    pairwise *= masked[:, :, None] & masked[:, None] & ~torch.eye(length, dtype=torch.bool)  # as sources have it

    class Model(FixedModel):
        def __init__(self):
            pass

        def __call__(self, tokens, attention=False):
            return Output(logits[: len(tokens)], torch.zeros(*tokens.shape, 1))

    def source(model, view):
        return pairwise[view.ids], torch.zeros_like(view.step)

    decoder = MIGuided(budget, lam=lam, alpha=alpha, reading=reading, order=order, pairwise=source)
    views = []

    def look(view):
        views.append(view)
        return Sequential()(view)

    look.pairwise = source
    decode(Model(), tokens, look)
    view = views[0]
    decision = decoder(view)
    for b in range(batch):
        expected = plain_mi_guided(
            view.entropy[b].tolist(), view.masked[b].tolist(), pairwise[b].tolist(), budget, lam, alpha, reading, order
        )
        assert set(decision.commit[b].nonzero().flatten().tolist()) == expected


@pytest.mark.parametrize(
    "build",
    [
        lambda: Sequential("left-to-right"),
        lambda: Naive(0),
        lambda: Margin(0),
        lambda: ConfidenceThreshold(1.5),
        lambda: ConfidenceThreshold(float("nan")),
        lambda: ConfidenceFactor(-1),
        lambda: EntropyBounded(-0.1),
        lambda: EntropyBounded(float("nan")),
        lambda: EntropyBounded(1, "variance"),
        lambda: MIGuided(-1, lam=0),
        lambda: MIGuided(1, lam=-1),
        lambda: MIGuided(1, lam=0, alpha=float("nan")),
        lambda: MIGuided(1, lam=0, reading="mean"),
        lambda: MIGuided(1, lam=0, order="random"),
        lambda: MIGuided(1),
    ],
)
def test_bad_settings_are_refused(build):
    with pytest.raises(ValueError, match="must|is a probability|needs a matrix"):
        build()
