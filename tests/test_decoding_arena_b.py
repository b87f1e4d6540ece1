"""Decoders that mask again, ensembles, diagnostics: hand-worked steps, exact answers, what holds for each of them."""

import math
import re
from dataclasses import dataclass

import pytest
import torch
from scipy import stats

from maskmi.decoding import Decision, MIGuided, Naive, Sequential, View, decode
from maskmi.decoding.corrected import Corrected
from maskmi.decoding.diagnostics import (
    commitment_steps,
    commitments_per_step,
    flip_flop_rate,
    relative_order,
    remasked,
)
from maskmi.decoding.leave_one_out import leave_one_out
from maskmi.decoding.loop import Trace
from maskmi.decoding.p2 import P2
from maskmi.decoding.remdm import ReMDMCap, ReMDMLoop
from maskmi.decoding.saber import Saber
from maskmi.decoding.select import first
from maskmi.decoding.tie import decode_tie
from maskmi.decoding.wino import WINO
from maskmi.model import Output
from maskmi.tabular import TabularModel


class Lookup:
    """Two values, a and b; of each context it knows the probability of a at every position. Other contexts fail."""

    values, hidden_size, device = "ab", 1, torch.device("cpu")

    def __init__(self, entries):
        self.entries = entries

    def __call__(self, tokens, attention=False):
        rows = ["".join("ab_"[t] for t in row) for row in tokens.tolist()]
        p = torch.tensor([self.entries[row] for row in rows], dtype=torch.float64)
        return Output(torch.stack([p, 1 - p], dim=2).log(), torch.zeros(*tokens.shape, 1))


def parse(text):
    return torch.tensor([["ab_".index(c) for c in text]])


def history(entries, decoder, start):
    """Each step as (committed, masked again), written as positions with values, the result and its passes."""
    result = decode(Lookup(entries), parse(start), decoder, keep_trace=True)
    commits, remasks = result.trace.commits, result.trace.remasks
    told = []
    for step in range(int(result.steps)):
        now = commits["step"] == step
        written = zip(commits["position"][now].tolist(), commits["value"][now].tolist(), strict=True)
        again = remasks["position"][remasks["step"] == step].tolist()
        told.append((" ".join(f"{i}{'ab'[v]}" for i, v in written), " ".join(map(str, again))))
    return told, "".join("ab"[t] for t in result.tokens[0].tolist()), int(result.passes)


# WINO ----------------------------------------------------------------------------------------------------------------

# Step 0: c = .9 .7 .7 .5 .5, so 0, 1 and 2 pass .6. Step 1: c = .8 and .9 at 3 and 4, both pass; the values so far are
# checked: with themselves masked they have .85, .3 and .6.
WINO_MODEL = {
    "_____": [0.9, 0.7, 0.3, 0.5, 0.5],
    "aab__": [0.95, 0.9, 0.4, 0.8, 0.1],
    "_ab__": [0.85, 0.5, 0.5, 0.5, 0.5],
    "a_b__": [0.5, 0.3, 0.5, 0.5, 0.5],
    "aa___": [0.5, 0.5, 0.4, 0.5, 0.5],
    "a__ab": [0.5, 0.2, 0.55, 0.5, 0.5],
    "ab_ab": [0.5, 0.5, 0.1, 0.5, 0.5],
    "aa_ab": [0.5, 0.5, 0.7, 0.5, 0.5],
}


@pytest.mark.parametrize("back", [0.8, 0.9])
def test_wino(back):
    # .8: positions 1 (.3) and 2 (.6) fall under it. .9: all three do, as many as step 0 committed, so the two lowest.
    told, result, passes = history(WINO_MODEL, WINO(0.6, back), "_____")
    # Step 2: only c = .8 at 1 passes, so nothing is checked. Passes 1 + (1 + 3) + 1 + 1.
    assert told == [("0a 1a 2b", ""), ("3a 4b", "1 2"), ("1b", ""), ("2b", "")]
    assert (result, passes) == ("abbab", 7)


def test_wino_in_place_asks_with_the_value_in_sight():
    # .95, .9 and 1 - .4 = .6 in the step's own pass: only 2 falls under .8.
    told, result, passes = history(WINO_MODEL, WINO(0.6, 0.8, check="in_place"), "_____")
    assert told == [("0a 1a 2b", ""), ("3a 4b", "2"), ("2a", "")]
    assert (result, passes) == ("aaaab", 3)


def test_wino_without_a_way_back_is_a_threshold():
    told, _, passes = history(WINO_MODEL | {"aabab": [0.5] * 5}, WINO(0.6, 0.0), "_____")
    assert told == [("0a 1a 2b", ""), ("3a 4b", "")] and passes == 2


def test_leave_one_out_is_the_exact_conditional():
    model = TabularModel.random(0, length=4, values=3, concentration=1.0)
    state = torch.tensor([[0, 1, 3, 2], [2, 2, 2, 3]])
    which = torch.tensor([[True, False, False, True], [False, True, True, False]])
    seen = []

    def look(view):
        seen.append(leave_one_out(view, which, state))
        return Decision(view.masked)

    result = decode(model, torch.full((2, 4), 3), look)
    # p(x_0 | x_1, x_3) by sums over the table; position 2 is masked in the first state, 3 in the second.
    p = model.joint
    expected = torch.zeros(2, 4, dtype=torch.float64)
    expected[0, 0] = (p[0, 1, :, 2].sum() / p[:, 1, :, 2].sum()).log()
    expected[0, 3] = (p[0, 1, :, 2].sum() / p[0, 1].sum()).log()
    expected[1, 1] = (p[2, 2, 2].sum() / p[2, :, 2].sum()).log()
    expected[1, 2] = (p[2, 2, 2].sum() / p[2, 2].sum()).log()
    torch.testing.assert_close(seen[0], expected)
    assert result.passes.tolist() == [3, 3]  # one for the step, one for each position asked for


# Saber ---------------------------------------------------------------------------------------------------------------

# Step 0: tau 1, so the two surest, 0 (.9) and 1 (.8). m = min(max(1, 1), 1) = 1; the c before was 0, so 1 rose less: it
# is taken back at once. Step 1: tau = (.9 + .8) / 2 = .85; 1 (.86) and 2 (.9) pass. Rises: 1 by .06, 2 by .3.
SABER_MODEL = {
    "____": [0.9, 0.8, 0.6, 0.5],
    "a___": [0.99, 0.86, 0.9, 0.5],
    "a_a_": [0.99, 0.95, 0.9, 0.9],
    "_aa_": [0.2, 0.9, 0.9, 0.1],
}


def test_saber():
    # In its own sight 0 rose by .09: 1 is taken back again. Step 2: tau = (.9 + .86 + .9) / 3 = .8867, 1 and 3 pass.
    told, result, passes = history(SABER_MODEL, Saber(), "____")
    assert told == [("0a", ""), ("2a", ""), ("1a 3a", "")]
    assert (result, passes) == ("aaaa", 3)


def test_saber_leave_one_out():
    # With 0 masked its value has .9, as before: it rose by 0, less than 1 (.06) and 2, and is masked again. Step 2:
    # only 3 (.9) passes .8867, so the two surest. One check in step 1, none in the last step.
    told, result, passes = history(SABER_MODEL, Saber(check="leave_one_out"), "____")
    assert told == [("0a", ""), ("1a 2a", "0"), ("0b 3b", "")]
    assert (result, passes) == ("baab", 4)


@pytest.mark.parametrize(
    ("n", "kept"),
    [(1, 1), (4, 2), (9, 5), (17, 9), (20, 10)],  # K - min(max(n // 2, ceil(K / 8)), K - 1): n = K in the first step
)
def test_saber_takes_back_a_share(n, kept):
    model = TabularModel.independent([[0.9, 0.1]])
    blank = torch.full((1, 40), 2)

    class Many:
        values, hidden_size, device = "ab", 1, torch.device("cpu")

        def __call__(self, tokens, attention=False):
            return Output(model.joint.log().expand(*tokens.shape, 2), torch.zeros(*tokens.shape, 1))

    trace = decode(Many(), blank, Saber(n), keep_trace=True).trace
    assert int((trace.commits["step"] == 0).sum()) == kept


# P2 ------------------------------------------------------------------------------------------------------------------

# Four positions, three steps: after them 4 * 2 // 3 = 2, 4 * 1 // 3 = 1 and 0 are masked. Step 0: the worst are 2 (.6)
# and 3 (.5).
P2_MODEL = {
    "____a": [0.9, 0.8, 0.6, 0.5, 0.1],
    "aa__a": [0.5, 0.9, 0.8, 0.7, 0.1],
    "_a__a": [0.95, 0.5, 0.5, 0.5, 0.1],
    "a___a": [0.5, 0.85, 0.5, 0.5, 0.1],
    "_aaaa": [0.3, 0.5, 0.5, 0.5, 0.1],
    "aaa_a": [0.5, 0.5, 0.5, 0.6, 0.1],
}


@pytest.mark.parametrize(
    ("settings", "told", "passes"),
    [
        # scores .5 .9 .8 .7: 0 is masked again
        ({}, [("0a 1a", ""), ("2a 3a", "0"), ("0b", "")], 3),
        # visible positions are certain: 3 stays masked
        ({"eta": 0}, [("0a 1a", ""), ("2a", ""), ("3a", "")], 3),
        # with themselves masked 0 and 1 have .95 and .85: 3 stays masked; two checks in step 1, none in the last
        ({"check": "leave_one_out"}, [("0a 1a", ""), ("2a", ""), ("3a", "")], 5),
        # .85 ** 3 = .614 is less than .7
        ({"check": "leave_one_out", "eta": 3}, [("0a 1a", ""), ("2a 3a", "1"), ("1b", "")], 5),
    ],
)
def test_p2(settings, told, passes):
    model = P2_MODEL | {"a_aaa": [0.5, 0.2, 0.5, 0.5, 0.1]}
    assert history(model, P2(3, **settings), "____a")[::2] == (told, passes)


@pytest.mark.parametrize(
    ("own", "told"),
    [
        # 2 * 7 // 8 = 1 stays masked in step 0, and 1 again in step 1. There the visible one (.95) is better than the
        # masked one (.7): nothing to exchange, so the rest is committed.
        (0.95, [("0a", ""), ("1a", "")]),
        (0.3, [("0a", ""), ("1a", "0"), ("0a", "")]),  # .3 is worse than .7: they change places; then .9 is masked
    ],
)
def test_p2_with_more_steps_than_positions(own, told):
    model = {"__": [0.9, 0.6], "a_": [own, 0.7], "_a": [0.9, 0.95]}
    assert history(model, P2(8), "__")[0] == told


def test_p2_breaks_ties_for_what_is_visible():
    # Both masked values are certain in step 1, as is the visible one with eta 0: a masked one stays masked.
    model = {"___": [0.9, 0.6, 0.6], "a__": [0.0, 1.0, 1.0], "aa_": [0.5, 0.5, 1.0], "a_a": [0.5, 1.0, 0.5]}
    assert history(model, P2(3, eta=0), "___")[0] == [("0a", ""), ("2a", ""), ("1a", "")]


# ReMDM ---------------------------------------------------------------------------------------------------------------


def view_at(step, length=400, ids=(0, 1), seed=0):
    """Every third position given, the others by turns masked and visible."""
    turn = (torch.arange(length) % 3).expand(len(ids), -1)
    zero = torch.zeros(len(ids), length)
    return View(
        tokens=torch.where(turn == 0, 2, 0),
        masked=turn == 0,
        given=turn == 1,
        step=torch.full((len(ids),), step),
        log_probs=torch.zeros(len(ids), length, 2),
        entropy=zero,
        confidence=zero,
        margin=zero,
        output=Output(zero, zero),
        ids=torch.tensor(ids),
        seed=seed,
        mask=2,
        memory={},
        evaluate=None,
    )


@pytest.mark.parametrize(
    ("decoder", "step", "commit", "again"),
    [
        # alpha from step / 4 to (step + 1) / 4; commit (alpha_s - (1 - sigma) alpha_t) / (1 - alpha_t)
        (ReMDMCap(4, 0.2), 0, 0.25, 0.2),  # nothing is visible yet in a decoding, so sigma matters nowhere
        (ReMDMCap(4, 0.2), 1, 0.4, 0.2),  # (.5 - .8 * .25) / .75
        (ReMDMCap(4, 0.6), 2, 1.0, 0.5),  # sigma capped at .25 / .5; (.75 - .5 * .5) / .5
        (ReMDMCap(4, 0.6), 3, 1.0, 0.0),
        (ReMDMCap(4, 0.6), 9, 1.0, 0.0),  # ever after
        (ReMDMCap(4, 0.0), 1, 1 / 3, 0.0),  # the plain sampler: .25 / .75
        (ReMDMLoop(20), 0, 0.1, 0.0),  # alpha from 0 to .05 * .9 / .45
        (ReMDMLoop(20), 8, 0.5, 0.0),  # t from .6 to .55, alpha from .8 to .9
        (ReMDMLoop(20), 9, 0.18, 0.02),  # t = .55: .02 * .9 / .1
        (ReMDMLoop(20), 18, 0.18, 0.02),  # t = .1
        (ReMDMLoop(20), 19, 1.0, 0.0),
        (ReMDMLoop(40), 38, 0.5, 0.0),  # t from .05 to .025: alpha from .9 to .95
        (ReMDMLoop(10), 4, 0.5, 0.0),  # t from .6 to .5, where alpha would be 1: it ends at .9
        (ReMDMLoop(10), 9, 1.0, 0.0),  # the last step commits all, though t = .1 is no longer in the last part
        (ReMDMLoop(20, eta=0.5), 9, 1.0, 1 / 9),  # capped at .1 / .9
    ],
)
def test_remdm_probabilities(decoder, step, commit, again):
    view = view_at(step)
    decision = decoder(view)
    noise = view.noise(20, every_step=True)
    assert torch.equal(decision.commit, view.masked & (noise < commit + 1e-9))
    assert torch.equal(decision.remask, ~view.masked & ~view.given & (noise < again + 1e-9 * (again > 0)))
    assert not torch.equal(noise, view_at(step + 1).noise(20, every_step=True))


@pytest.mark.parametrize("eta", [0.0, 0.3])
def test_remdm_keeps_its_share_visible(eta):
    class Uniform:
        values, hidden_size, device = "ab", 1, torch.device("cpu")

        def __call__(self, tokens, attention=False):
            return Output(torch.zeros(*tokens.shape, 2), torch.zeros(*tokens.shape, 1))

    shares = []

    def watch(view):
        shares.append(1 - view.masked.double().mean().item())
        return ReMDMCap(5, eta)(view)

    result = decode(Uniform(), torch.full((10, 1000), 2), watch, keep_trace=True)
    # 10,000 positions: a standard error of .005 at most. The seed is fixed.
    assert shares == pytest.approx([0, 0.2, 0.4, 0.6, 0.8], abs=0.02)
    assert (result.steps == 5).all() and (len(result.trace.remasks["step"]) > 0) == (eta > 0)


# Corrected -----------------------------------------------------------------------------------------------------------

# Step 0: 0 (.9) and 1 (.8) are chosen. Beside each other they have .3 and .2, both under .5. Four were masked, two are
# now, so one may be withdrawn: 1. Step 1: 3 (.9) and 1 (b, .8). Then 0 has .4, 1 has .7, 3 has .8: 0 is masked again
# (three were masked, one is). Step 2: 2 (.8) and 0 (b, .6); all have .7 or more.
CORRECTED_MODEL = {
    "____": [0.9, 0.8, 0.6, 0.6],
    "_a__": [0.3, 0.5, 0.5, 0.5],
    "a___": [0.95, 0.2, 0.7, 0.9],
    "_b_a": [0.4, 0.5, 0.8, 0.5],
    "a__a": [0.5, 0.3, 0.5, 0.5],
    "ab__": [0.5, 0.5, 0.5, 0.8],
    "_baa": [0.3, 0.5, 0.5, 0.5],
    "b_aa": [0.5, 0.1, 0.5, 0.5],
    "bb_a": [0.5, 0.5, 0.9, 0.5],
    "bba_": [0.5, 0.5, 0.5, 0.9],
}


def test_corrected():
    told, result, passes = history(CORRECTED_MODEL, Corrected(Naive(2)), "____")
    assert told == [("0a", ""), ("1b 3a", "0"), ("0b 2a", "")]
    assert (result, passes) == ("bbaa", (1 + 2) + (1 + 3) + (1 + 4))


def test_corrected_every_other_step():
    # Step 0, 0a, is not checked. Step 1, 1b (.7): 0 has .2 and 1 has .7; three were masked at first, one is now, so one
    # may go: 0. Step 2, 0b (.8), is not checked. Step 3, 2a (.9), fills the last: two were masked at the last check, so
    # one may go, and the three are checked: .7 .9 .9.
    model = {
        "___": [0.9, 0.8, 0.6],
        "a__": [0.5, 0.3, 0.6],
        "_b_": [0.2, 0.5, 0.6],
        "bb_": [0.5, 0.5, 0.9],
        "_ba": [0.3, 0.5, 0.5],
        "b_a": [0.5, 0.1, 0.5],
    }
    told, result, passes = history(model, Corrected(Naive(1), every=2), "___")
    assert told == [("0a", ""), ("1b", "0"), ("0b", ""), ("2a", "")]
    assert (result, passes) == ("bba", 1 + (1 + 2) + 1 + (1 + 3))


@dataclass(frozen=True)
class WithMatrix:
    """The k positions of least entropy, with a matrix that only :class:`Corrected` reads."""

    k: int
    entries: dict

    def pairwise(self, model, view):
        full = torch.zeros(view.tokens.shape[1], view.tokens.shape[1])
        for (i, j), value in self.entries.items():
            full[i, j] = full[j, i] = value
        return full * (view.masked[:, :, None] & view.masked[:, None]), torch.zeros_like(view.step)

    def __call__(self, view):
        return Decision(first(view.entropy, view.masked, self.k))


@pytest.mark.parametrize(
    ("entries", "told", "passes"),
    [
        # Nothing depends on anything: no check at all.
        ({(0, 1): -5.0}, [("0a 1a", ""), ("2a 3a", "")], 2),
        # 0 and 3: not of one step. When 3 comes, 0 is checked (.2) and masked again, 3 isn't: it was chosen in sight of
        # 0. Then 0b; one was masked and none is, so nothing may be withdrawn and nothing is checked.
        ({(0, 3): 0.5}, [("0a 1a", ""), ("2a 3a", "0"), ("0b", "")], 1 + (1 + 1) + 1),
        # 2 and 3 in one step: both are checked (.9 and .9), nothing is under .5.
        ({(2, 3): 0.5}, [("0a 1a", ""), ("2a 3a", "")], 1 + (1 + 2)),
        # .06 twice is over .1: 0 is checked for 2 and 3 together; of them each has .06 alone.
        ({(0, 2): 0.06, (0, 3): 0.06}, [("0a 1a", ""), ("2a 3a", "0"), ("0b", "")], 1 + (1 + 1) + 1),
    ],
)
def test_corrected_checks_what_depends_on_what_was_committed(entries, told, passes):
    model = {
        "____": [0.9, 0.8, 0.6, 0.6],
        "aa__": [0.5, 0.5, 0.7, 0.9],
        "_aaa": [0.2, 0.5, 0.5, 0.5],
        "aa_a": [0.5, 0.5, 0.9, 0.5],
        "aaa_": [0.5, 0.5, 0.5, 0.9],
    }
    decoder = Corrected(WithMatrix(2, entries), dependence=0.1)
    assert history(model, decoder, "____")[::2] == (told, passes)


def test_corrected_repairs_what_parallel_decoding_breaks():
    # Copies of one fair bit, all drawn at once: the exact check leaves no sequence that is not one of the two copies.
    p = torch.zeros(2, 2, 2, 2, dtype=torch.float64)
    p[0, 0, 0, 0] = p[1, 1, 1, 1] = 0.5 - 7e-6
    model = TabularModel(torch.where(p > 0, p, 1e-6))
    blank = torch.full((300, 4), 2)
    plain = decode(model, blank, Naive(2), temperature=1.0).tokens
    mended = decode(model, blank, Corrected(Naive(2), 0.1), temperature=1.0).tokens
    assert (plain != plain[:, :1]).any()
    assert (mended == mended[:, :1]).all()


def test_corrected_passes_on_what_the_inner_decoder_needs():
    inner = WithMatrix(1, {})
    assert Corrected(inner).pairwise == inner.pairwise and not Corrected(inner).needs_attention
    assert Corrected(Naive(1)).pairwise is None


# What holds for all of them ------------------------------------------------------------------------------------------


def exact_mi(model, view):
    contexts, which = view.tokens.unique(dim=0, return_inverse=True)
    return torch.stack([model.pairwise_mi(c) for c in contexts])[which], torch.zeros_like(view.step)


def named(decoder):
    """Its text without the address of a function, which no two processes share."""
    return re.sub(r"<function (\w+) at [^>]*>", r"\1", repr(decoder))


DECODERS = [
    WINO(0.5, 0.7),
    WINO(0.3, 0.9, check="in_place"),
    Saber(),
    Saber(3, check="leave_one_out"),
    P2(4),
    P2(9, eta=1.5, check="leave_one_out"),
    P2(4, eta=0.5, score="random"),
    ReMDMCap(6, 0.3),
    ReMDMLoop(20, 0.1, alpha_on=0.5),
    Corrected(Naive(3), 0.6),
    Corrected(Saber(), 0.6, every=2),
    Corrected(MIGuided(1.0, pairwise=exact_mi), 0.6, dependence=0.05),
]


def starts(count=24, length=6, values=3):
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, values, (count, length), generator=draw)
    return tokens.masked_fill(torch.rand(count, length, generator=draw) < 0.8, values)


@pytest.fixture(scope="module")
def table():
    return TabularModel.random(5, length=6, values=3, concentration=0.3)


@pytest.mark.parametrize("decoder", DECODERS, ids=named)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_ends_and_keeps_what_is_given_whatever_the_batch(table, decoder, temperature):
    tokens = starts()
    reference = decode(table, tokens, decoder, temperature=temperature, seed=3)
    assert torch.equal(reference.tokens[tokens < 3], tokens[tokens < 3]) and (reference.tokens < 3).all()
    for size in (1, 5):
        other = decode(table, tokens, decoder, temperature=temperature, seed=3, batch_size=size)
        for name in ("tokens", "passes", "steps"):
            assert torch.equal(getattr(other, name), getattr(reference, name))
    shuffled = torch.randperm(len(tokens), generator=torch.Generator().manual_seed(1))
    other = decode(table, tokens[shuffled], decoder, temperature=temperature, seed=3, sequence_ids=shuffled)
    assert torch.equal(other.tokens, reference.tokens[shuffled])


@pytest.mark.parametrize("decoder", DECODERS, ids=named)
def test_passes_are_the_evaluations_of_the_network(table, decoder):
    calls = []

    class Counting:
        values, hidden_size, device = table.values, table.hidden_size, table.device
        pairwise_mi = table.pairwise_mi

        def __call__(self, tokens, attention=False):
            calls.append(len(tokens))
            return table(tokens)

    result = decode(Counting(), starts(), decoder, temperature=1.0, batch_size=1)  # one sequence a call, then
    assert result.passes.sum() == len(calls)


@pytest.mark.parametrize("decoder", DECODERS, ids=named)
def test_steps_are_bounded_and_checks_cost_what_the_rule_says(table, decoder):
    tokens = starts()
    blanks = (tokens == 3).sum(1)
    result = decode(table, tokens, decoder, temperature=1.0, keep_trace=True, max_steps=10**6)
    most = decoder.steps if hasattr(decoder, "steps") else blanks * getattr(decoder, "every", 1) + 1
    assert (result.steps <= most).all()
    check = getattr(decoder, "check", None)
    if isinstance(decoder, Corrected):
        assert (result.passes > result.steps).any()
    elif check != "leave_one_out":
        assert torch.equal(result.passes, result.steps)
    else:
        assert torch.equal(result.passes, result.steps + expected_checks(decoder, tokens, result))


def expected_checks(decoder, tokens, result):
    """Checked positions of each sequence: those visible and not given, in the steps in which the rule checks."""
    total = torch.zeros_like(result.steps)
    commits, remasks = result.trace.commits, result.trace.remasks
    for row in range(len(tokens)):
        visible, count = 0, int((tokens[row] == 3).sum())
        for step in range(int(result.steps[row])):
            new = int(((commits["sequence"] == row) & (commits["step"] == step)).sum())
            gone = int(((remasks["sequence"] == row) & (remasks["step"] == step)).sum())
            checks = {
                WINO: new > 1,
                Saber: step < int(result.steps[row]) - 1,
                P2: count * (getattr(decoder, "steps", 0) - step - 1) // getattr(decoder, "steps", 1) > 0,
            }[type(decoder)]
            total[row] += visible * checks
            visible += new - gone
    return total


@pytest.mark.parametrize(
    "decoder", [ReMDMCap(6, 0.3), ReMDMLoop(20, 0.2, alpha_on=0.6), P2(5, eta=2.0, score="random"), Corrected(Naive(3))]
)
def test_without_dependence_the_samples_are_exact(decoder):
    # Positions that know nothing of one another, and choices that don't look at the values (the check of the last one
    # never finds anything under .5 where .5 is the least a value has): the samples follow the table.
    marginals = [[0.5, 0.5]] * 3 if isinstance(decoder, Corrected) else [[0.7, 0.3], [0.4, 0.6], [0.1, 0.9]]
    model = TabularModel.independent(marginals)
    tokens = decode(model, torch.full((8000, 3), 2), decoder, temperature=1.0, batch_size=4000).tokens
    counts = (tokens @ torch.tensor([4, 2, 1])).bincount(minlength=8)
    # One failure in 10,000 for a perfect sampler; the seed is fixed.
    assert stats.chisquare(counts.numpy(), (model.joint.flatten() * 8000).numpy()).pvalue > 1e-4


@pytest.mark.parametrize(
    "build",
    [
        lambda: WINO(1.5),
        lambda: WINO(0.5, float("nan")),
        lambda: WINO(check="shadow"),
        lambda: Saber(0),
        lambda: Saber(check="shadow"),
        lambda: P2(0),
        lambda: P2(3, eta=-1),
        lambda: P2(3, eta=float("inf")),
        lambda: P2(3, score="margin"),
        lambda: ReMDMCap(0),
        lambda: ReMDMCap(4, 1.5),
        lambda: ReMDMLoop(4, t_on=0.1, t_off=0.2),
        lambda: ReMDMLoop(4, alpha_on=1.0),
        lambda: Corrected(Naive(2), 0.0),
        lambda: Corrected(Naive(2), every=0),
        lambda: Corrected(Naive(2), dependence=0.1),
        lambda: Corrected(MIGuided(1, pairwise=exact_mi), dependence=-0.1),
    ],
)
def test_bad_settings_are_refused(build):
    with pytest.raises(ValueError, match="must|is a probability|needs a matrix"):
        build()


# TIE -----------------------------------------------------------------------------------------------------------------

# Round 1: A commits 0a (.9), B commits 1b (.8). "a__": A .7 .6, B .6 .8, mean .675; "_b_": A .9 .7, B .6 .8, mean .75.
# So both go on from "_b_": A commits 0a (.9), B commits 2b (.8). "ab_": A .6, B .9; "_bb": A .9, B .7: .75 against .8.
# From "_bb" A fills in a, B fills in b; the models had .9 and .3 for a, .1 and .7 for b.
TIE_A = {
    "___": [0.9, 0.5, 0.6],
    "a__": [0.5, 0.7, 0.6],
    "_b_": [0.9, 0.5, 0.7],
    "ab_": [0.5, 0.5, 0.6],
    "_bb": [0.9, 0.5, 0.5],
    "aa_": [0.5, 0.5, 0.6],
    "a_a": [0.5, 0.7, 0.5],
}
TIE_B = {
    "___": [0.4, 0.2, 0.5],
    "a__": [0.5, 0.4, 0.8],
    "_b_": [0.4, 0.5, 0.2],
    "ab_": [0.5, 0.5, 0.1],
    "_bb": [0.3, 0.5, 0.5],
    "aa_": [0.5, 0.5, 0.6],
    "a_a": [0.5, 0.4, 0.5],
}


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        ("confidence", "abb"),
        ("margin", "abb"),  # of two values it is 2 c - 1
        # B's most probable value at 2 changes from a to b when 1 is b: "a__" is the better one, without any change.
        # Then A commits 1a and B commits 2a, nothing changes, so A's "aa_" goes on, where both say a.
        ("changes", "aaa"),
    ],
)
def test_tie(score, expected):
    result = decode_tie([Lookup(TIE_A), Lookup(TIE_B)], parse("___"), Sequential(), steps=1, score=score)
    assert "".join("ab"[t] for t in result.tokens[0].tolist()) == expected
    # 2 at first, 4 after each of two rounds; the last round uses what these said.
    assert (int(result.passes), int(result.steps), result.batched_calls) == (10, 3, 10)


def test_tie_entropy():
    # "a__": A .6109 .6730, B .6730 .5004, mean .6143; "_b_": A .3251 .6109, B .6730 .5004, mean .5274: as by c.
    result = decode_tie([Lookup(TIE_A), Lookup(TIE_B)], parse("___"), Sequential(), steps=1, score="entropy")
    assert "".join("ab"[t] for t in result.tokens[0].tolist()) == "abb"


def test_tie_prefers_the_first_that_is_filled():
    # In one round A goes by single positions, B takes all: B's is filled first.
    decoders = [Sequential(), Naive(3)]
    result = decode_tie([Lookup(TIE_A), Lookup(TIE_B)], parse("___"), decoders, steps=3)
    assert "".join("ab"[t] for t in result.tokens[0].tolist()) == "bba" and result.passes.tolist() == [2]


@pytest.mark.parametrize("steps", [1, 2, 4, 50])
@pytest.mark.parametrize("decoder", [Sequential(), Naive(2), MIGuided(1.0, pairwise=exact_mi)])
def test_tie_of_twins_is_what_one_of_them_does(table, steps, decoder):
    tokens = starts()
    alone = decode(table, tokens, decoder)
    both = decode_tie([table, table], tokens, decoder, steps=steps, batch_size=7)
    assert torch.equal(both.tokens, alone.tokens) and torch.equal(both.steps, alone.steps)
    relays = (alone.steps - 1).clamp_min(0) // steps  # after every so many steps but the last
    assert torch.equal(both.passes, 2 * (alone.steps - relays) + 4 * relays)


@pytest.mark.parametrize("decoder", [Sequential("random"), WINO(0.4, 0.7), Saber(), Corrected(Naive(2), 0.5)])
def test_tie_does_not_depend_on_the_batch_and_ends(table, decoder):
    other = TabularModel.random(6, length=6, values=3, concentration=0.3)
    tokens = starts()
    reference = decode_tie([table, other], tokens, decoder, steps=2, temperature=1.0)
    assert torch.equal(reference.tokens[tokens < 3], tokens[tokens < 3]) and (reference.tokens < 3).all()
    alone = [
        decode_tie([table, other], t[None], decoder, steps=2, temperature=1.0, sequence_ids=torch.tensor([i]))
        for i, t in enumerate(tokens)
    ]
    assert torch.equal(torch.cat([a.tokens for a in alone]), reference.tokens)
    assert torch.equal(torch.cat([a.passes for a in alone]), reference.passes)


def test_tie_models_draw_values_of_their_own(table):
    # Twins at temperature 1: if they drew the same values, every trajectory would be that of the first.
    tokens = torch.full((40, 6), 3)
    alone = decode(table, tokens, Sequential(), temperature=1.0).tokens
    assert not torch.equal(decode_tie([table, table], tokens, Sequential(), temperature=1.0).tokens, alone)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"models": 1}, "at least 2 models"),
        ({"decoders": [Sequential()]}, "one decoder"),
        ({"steps": 0}, "steps"),
        ({"score": "luck"}, "score must be one of"),
        ({"temperature": -1.0}, "temperature"),
        ({"batch_size": 0}, "batch_size"),
        ({"sequence_ids": torch.arange(3)}, "sequence_ids"),
        ({"tokens": torch.full((6,), 3)}, "tokens must be integers"),
        ({"other": TabularModel.chain(6, 2)}, "the same values"),
    ],
)
def test_tie_refuses_bad_arguments(table, change, message):
    models = [table, change.pop("other", table)][: change.pop("models", 2)]
    arguments = {"tokens": starts(), "decoders": Sequential()} | change
    with pytest.raises(ValueError, match=message):
        decode_tie(models, **arguments)


def test_tie_with_nothing_to_do(table):
    done = torch.zeros(2, 6, dtype=torch.long)
    result = decode_tie([table, table], done, Sequential())
    assert torch.equal(result.tokens, done) and result.passes.tolist() == [0, 0] and result.batched_calls == 0
    assert decode_tie([table, table], done[:0], Sequential()).tokens.shape == (0, 6)


# Diagnostics ---------------------------------------------------------------------------------------------------------


def trace_of(commits, remasks=()):
    """From rows (sequence, step, position, value) and (sequence, step, position)."""
    columns = torch.tensor(commits).reshape(-1, 4).unbind(1)
    again = torch.tensor(remasks, dtype=torch.long).reshape(-1, 3).unbind(1)
    names = ("sequence", "step", "position", "value")
    return Trace(dict(zip(names, columns, strict=True)), dict(zip(names[:3], again, strict=True)), {})


# Position 0 of sequence 0: a, masked again, a, masked again, b. Position 1: b, masked again, b. Sequence 1: 1 is masked
# again and never committed after that; its other positions are committed once.
TRACE = trace_of(
    [(0, 0, 0, 0), (0, 0, 1, 1), (1, 0, 1, 0), (0, 2, 0, 0), (1, 1, 0, 1), (0, 4, 0, 1), (0, 4, 1, 1), (1, 1, 2, 0)],
    [(0, 1, 0), (0, 3, 0), (0, 2, 1), (1, 1, 1)],
)


def test_remasked():
    events = remasked(TRACE)
    assert list(zip(*(column.tolist() for column in events.values()), strict=True)) == [
        # sequence, position, step, before, after, waited
        (0, 0, 1, 0, 0, 1),
        (0, 0, 3, 0, 1, 1),
        (0, 1, 2, 1, 1, 2),
        (1, 1, 1, 0, -1, -1),
    ]


def test_flip_flop_rate():
    assert flip_flop_rate(TRACE) == pytest.approx(2 / 3)  # of three that were committed again, two are as before
    assert math.isnan(flip_flop_rate(trace_of([(0, 0, 0, 0)])))
    trace = decode(Lookup(WINO_MODEL), parse("_____"), WINO(0.6, 0.8), keep_trace=True).trace
    assert flip_flop_rate(trace) == 0.5  # 1 comes back as b instead of a, 2 as b
    empty = decode(Lookup({}), parse("ab"), Sequential(), keep_trace=True).trace
    assert math.isnan(flip_flop_rate(empty)) and len(remasked(empty)["step"]) == 0


def test_a_trace_that_is_not_whole_is_refused():
    with pytest.raises(ValueError, match="position 1 of sequence 0 in step 1"):
        remasked(trace_of([(0, 0, 0, 0)], [(0, 1, 1)]))


def test_order_of_commitment():
    assert commitment_steps(TRACE, 2, 3).tolist() == [[4, 4, -1], [1, 0, 1]]
    assert commitment_steps(TRACE, 2, 3, "first").tolist() == [[0, 0, -1], [1, 0, 1]]
    assert commitments_per_step(TRACE, 2).tolist() == [[2, 0, 1, 0, 2], [1, 2, 0, 0, 0]]
    with pytest.raises(ValueError, match="which must be"):
        commitment_steps(TRACE, 2, 3, "middle")


def test_relative_order():
    order = relative_order(torch.tensor([[0, 2, 2, 5, -1], [3, 3, -1, 3, -1], [-1, 4, -1, -1, -1]]))
    # Ranks 0, 1.5, 1.5, 3 of 3; all three share rank 1 of 2; a single one stands in the middle.
    expected = torch.full((3, 5), torch.nan, dtype=torch.float64)
    expected[0, :4] = torch.tensor([0, 0.5, 0.5, 1])
    expected[1, [0, 1, 3]] = 0.5
    expected[2, 1] = 0.5
    torch.testing.assert_close(order, expected, equal_nan=True)
