import math
from dataclasses import fields

import pytest
import torch

from maskmi.model import Output, entropy_of, kl_divergence
from maskmi.probing import Probes, inconsistency_report, probe, probe_naively, symmetrise
from maskmi.tabular import TabularModel

INF = math.inf


class TinyModel:
    """An inconsistent network that honours padding: masked attention over token and position embeddings."""

    def __init__(self, values=5, seed=0, sharpness=2.0, dtype=torch.float32, width=16):
        g = torch.Generator().manual_seed(seed)
        self.values, self.hidden_size, self.device = "ABCDEFGHI"[:values], width, torch.device("cpu")
        self.token, self.place = torch.randn(values + 2, width, generator=g), torch.randn(64, width, generator=g)
        self.query, self.read = torch.randn(2, width, width, generator=g) / width**0.5
        self.out = torch.randn(width, values, generator=g) * sharpness / width**0.5
        self.dtype, self.widths, self.rows = dtype, [], 0

    def __call__(self, tokens, attention=False):
        self.rows += len(tokens)
        self.widths.append(tuple(tokens.shape))
        x = self.token[tokens] + self.place[: tokens.shape[1]]
        score = (x @ self.query @ x.mT).masked_fill((tokens == len(self.values) + 1)[:, None], -INF)
        x = torch.tanh(x + score.softmax(-1) @ x @ self.read)
        return Output((x @ self.out).to(self.dtype), x)


class Patched:
    """A model whose logits are edited: ``edit(tokens, logits) -> logits``."""

    def __init__(self, model, edit):
        self.model, self.edit = model, edit
        self.values, self.hidden_size, self.device = model.values, model.hidden_size, model.device

    def __call__(self, tokens, attention=False):
        output = self.model(tokens)
        return output._replace(logits=self.edit(tokens, output.logits.clone()))


def random_tokens(model, count, length, seed=0, ratio=0.5):
    g = torch.Generator().manual_seed(seed)
    tokens = torch.randint(len(model.values), (count, length), generator=g)
    return tokens.masked_fill(torch.rand(count, length, generator=g) < ratio, len(model.values))


def assert_same(a, b, atol, names=None):
    for name in names or [field.name for field in fields(Probes)]:
        left, right = getattr(a, name), getattr(b, name)
        if left is not None and right is not None:
            torch.testing.assert_close(left, right, atol=atol, rtol=0, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize(("seed", "length", "values"), [(0, 4, 3), (1, 5, 2), (2, 3, 4)])
def test_both_estimators_are_the_exact_mi_of_a_consistent_model(seed, length, values):
    model = TabularModel.random(seed, length, values)
    tokens = torch.cat([torch.full((1, length), values), random_tokens(model, 12, length, seed)])
    probes = probe(model, tokens, batch_size=7)
    exact = torch.stack([model.pairwise_mi(context) for context in tokens])
    assert exact.max() > 0.05 and probes.entropy_drop.dtype == torch.float64
    torch.testing.assert_close(probes.entropy_drop, exact, atol=1e-9, rtol=0)
    torch.testing.assert_close(probes.mixture, exact, atol=1e-9, rtol=0)
    assert probes.inconsistency.abs().max() < 1e-9
    assert probes.passes.tolist() == [expected_passes(row, values) for row in tokens]


def expected_passes(row, values):
    masked = int((row == values).sum())
    return 0 if masked == 0 else 1 if masked == 1 else 1 + masked * values


def test_impossible_values_in_the_joint_table_cost_no_pass():
    model = TabularModel.parity(3)  # the third bit is the sum of the others
    probes = probe(model, torch.tensor([[2, 1, 2], [2, 2, 2]]))
    torch.testing.assert_close(probes.entropy_drop[0, 0, 2].item(), math.log(2))
    assert probes.entropy_drop[1].abs().max() < 1e-15
    copies = torch.zeros(3, 3, dtype=torch.float64)
    copies[0, 0] = copies[1, 1] = 0.5  # the third value never occurs
    probes = probe(TabularModel(copies), torch.tensor([[3, 3]]))
    assert probes.passes.item() == 1 + 2 * 2
    torch.testing.assert_close(probes.mixture[0, 0, 1].item(), math.log(2))
    # TV of a point mass and a fair coin is 1/2
    torch.testing.assert_close(probes.tv[0, 0, 1].item(), 0.5)


def test_against_the_plain_loop():
    model = TinyModel()
    tokens = random_tokens(model, 6, 9)
    probes, reference = probe(model, tokens), probe_naively(model, tokens)
    assert reference.entropy_drop.max() > 0.01 and reference.inconsistency.max() > 1e-3
    assert (reference.entropy_drop < -1e-3).any()  # the model contradicts itself, so negative drops must survive
    assert_same(probes, reference, atol=2e-6)


def test_passes_are_the_rows_the_network_saw():
    model = TinyModel()
    tokens = random_tokens(model, 6, 9)
    probes = probe(model, tokens, batch_size=50)
    assert model.rows == probes.passes.sum()
    assert max(count for count, _ in model.widths) == 50
    assert probes.passes.tolist() == [expected_passes(row, 5) for row in tokens]
    seen = model.rows
    assert probe_naively(model, tokens).passes.sum() == model.rows - seen


@pytest.mark.parametrize("batch_size", [1, 3, 64, 10_000])
def test_batch_size_changes_nothing(batch_size):
    model = TabularModel.random(3, 4, 3)
    tokens = random_tokens(model, 5, 4, ratio=0.8)
    assert_same(probe(model, tokens, batch_size=batch_size, jacobian=True), probe(model, tokens, jacobian=True), 1e-13)


def test_groups_change_nothing(monkeypatch):
    model = TinyModel()
    tokens = random_tokens(model, 9, 8)
    whole = probe(model, tokens, jacobian=True)
    monkeypatch.setattr("maskmi.probing.GROUP_BYTES", 1)  # one context a group
    assert_same(probe(model, tokens, jacobian=True), whole, 2e-6)


def test_subset_of_rows():
    model = TinyModel()
    tokens = random_tokens(model, 6, 9)
    rows = torch.rand(6, 9, generator=torch.Generator().manual_seed(3)) < 0.4
    whole, part = probe(model, tokens), probe(model, tokens, rows=rows)
    masked = tokens == 5
    assert torch.equal(part.probed, rows & masked) and 0 < part.probed.sum() < masked.sum()
    for name in ("entropy_drop", "mixture", "tv", "inconsistency"):
        expected = getattr(whole, name) * part.probed[:, :, None]
        torch.testing.assert_close(getattr(part, name), expected, atol=2e-6, rtol=0)
    torch.testing.assert_close(part.entropy, whole.entropy)
    assert part.passes.tolist() == (masked.any(1) + 5 * part.probed.sum(1) * (masked.sum(1) > 1)).tolist()


def test_symmetrise_by_hand():
    directed = torch.tensor([[[0.0, 1.0, 2.0], [3.0, 0.0, 4.0], [0.0, 0.0, 0.0]]])
    matrix, known = symmetrise(directed, torch.tensor([[True, True, False]]))
    assert matrix.tolist() == [[[0, 2, 2], [2, 0, 4], [2, 4, 0]]]
    assert known.tolist() == [[[False, True, True], [True, False, True], [True, True, False]]]
    matrix, known = symmetrise(directed, torch.tensor([[True, False, False]]), torch.tensor([[True, True, False]]))
    assert matrix.tolist() == [[[0, 1, 0], [1, 0, 0], [0, 0, 0]]]
    assert known.sum() == 2


def binary_entropy(p):
    return entropy_of(torch.stack([p, 1 - p], -1))


@pytest.mark.parametrize("tolerance", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("seed", range(3))
def test_pruning_stays_within_its_bound(tolerance, seed):
    model = TinyModel(seed=seed, sharpness=6.0)
    tokens = random_tokens(model, 8, 10, seed)
    exact, pruned = probe(model, tokens), probe(model, tokens, tolerance=tolerance)
    assert pruned.passes.sum() < exact.passes.sum()
    torch.testing.assert_close(pruned.error_bound, pruned.skipped_mass * math.log(5))
    assert 0 < pruned.error_bound.max() <= tolerance + 1e-6
    bound = pruned.error_bound[:, :, None] + 1e-6
    error = (pruned.entropy_drop - exact.entropy_drop).abs()
    assert (error <= bound).all() and error.max() > 1e-4
    mixture_bound = bound + binary_entropy(pruned.skipped_mass)[:, :, None]
    assert ((pruned.mixture - exact.mixture).abs() <= mixture_bound).all()
    lost = exact.tv - pruned.tv
    assert (lost >= -1e-6).all() and (lost <= pruned.skipped_mass[:, :, None] + 1e-6).all()
    assert (pruned.mixture >= 0).all()


def test_pruning_skips_the_least_probable_first_and_no_more_than_allowed():
    # p of the first position is (.6, .25, .1, .05); δ log 4 ≤ .25 allows .15 (.208 nats) but not .4 (.55 nats)
    joint = torch.tensor([0.6, 0.25, 0.1, 0.05], dtype=torch.float64)[:, None] * torch.full((4,), 0.25).double()
    probes = probe(TabularModel(joint), torch.tensor([[4, 4]]), tolerance=0.25)
    assert probes.skipped_mass[0].tolist() == pytest.approx([0.15, 0.0])
    assert probes.passes.item() == 1 + 2 + 4


def test_mixture_needs_its_wider_bound():
    # Two values: the rare one (δ = .01) at the first position flips the second, which the pruned table can't know.
    delta = 0.01
    joint = torch.tensor([[1 - delta, 0.0], [0.0, delta]], dtype=torch.float64)
    deterministic = TabularModel(joint)
    blind = Patched(deterministic, lambda tokens, logits: where_all_masked(tokens, logits, delta))
    exact = probe(blind, torch.tensor([[2, 2]])).mixture[0, 0, 1]
    pruned = probe(blind, torch.tensor([[2, 2]]), tolerance=0.02)
    error = (exact - pruned.mixture[0, 0, 1]).abs()
    assert error > pruned.error_bound[0, 0]
    assert error <= pruned.error_bound[0, 0] + binary_entropy(pruned.skipped_mass)[0, 0]


def where_all_masked(tokens, logits, delta):
    logits[(tokens == 2).all(1), 1] = torch.tensor([0.0, -INF], dtype=torch.float64)  # says: never 1 at the second
    return logits


def slow_jacobian(model, row):
    """The definition, one entry at a time."""
    mask = len(model.values)
    positions = (row == mask).nonzero().flatten().tolist()
    n, values = len(positions), len(model.values)
    base = torch.log_softmax(model(row[None]).logits[0].double(), -1)
    table = torch.zeros(n, values, n, values, dtype=torch.float64)
    for a, i in enumerate(positions):
        for v in range(values):
            filled = row.clone()
            filled[i] = v
            logits = torch.log_softmax(model(filled[None]).logits[0].double(), -1)
            for b, j in enumerate(positions):
                if i != j:
                    table[a, v, b] = logits[j] - base[j]
    for axis in range(4):
        table = table - table.mean(axis, keepdim=True)
    norm = table.square().sum((1, 3)).sqrt().fill_diagonal_(0)
    corrected = norm - norm.sum(0, keepdim=True) * norm.sum(1, keepdim=True) / norm.sum()
    symmetric = ((corrected + corrected.T) / 2).fill_diagonal_(0)
    whole = torch.zeros(len(row), len(row), dtype=torch.float64)
    whole[torch.tensor(positions)[:, None], torch.tensor(positions)] = symmetric
    return whole


def test_jacobian_against_a_direct_implementation():
    model = TinyModel()
    tokens = random_tokens(model, 4, 7, ratio=0.7)
    got = probe(model, tokens, jacobian=True).jacobian
    expected = torch.stack([slow_jacobian(model, row) for row in tokens])
    assert expected.abs().max() > 0.1
    torch.testing.assert_close(got.double(), expected, atol=1e-4, rtol=0)
    shifted = Patched(model, lambda tokens, logits: logits + tokens.sum(1)[:, None, None])
    torch.testing.assert_close(probe(shifted, tokens, jacobian=True).jacobian, got, atol=1e-4, rtol=0)


@pytest.mark.parametrize("options", [{"tolerance": 0.1}, {"rows": torch.ones(1, 4, dtype=torch.bool)}])
def test_jacobian_needs_the_exact_table(options):
    with pytest.raises(ValueError, match="exact table"):
        probe(TinyModel(), torch.full((1, 4), 5), jacobian=True, **options)


def forbid_values(tokens, logits):
    logits[:, ::2, 1] = -INF
    logits[:, 1::2, 3] = -INF
    return logits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sharpness", [1.0, 300.0])
def test_infinite_and_low_precision_logits(dtype, sharpness):
    model = Patched(TinyModel(dtype=dtype, sharpness=sharpness), forbid_values)
    tokens = random_tokens(model, 5, 8)
    probes = probe(model, tokens, jacobian=True)
    assert_same(probes, probe_naively(model, tokens), atol=1e-5, names=["entropy_drop", "mixture", "tv", "entropy"])
    for name in ("entropy_drop", "mixture", "tv", "entropy", "jacobian"):
        assert torch.isfinite(getattr(probes, name)).all(), name
        assert getattr(probes, name).dtype == torch.float32
    assert (probes.mixture >= 0).all() and (probes.entropy >= 0).all() and (probes.inconsistency >= 0).all()
    if sharpness == 1.0:  # 4 of 5 values are possible everywhere
        rows_without_jacobian = probe(model, tokens).passes
        assert rows_without_jacobian.tolist() == [expected_passes_of(row, 4) for row in tokens]


def expected_passes_of(row, possible):
    masked = int((row == 5).sum())
    return int(masked > 0) + masked * possible * (masked > 1)


def test_two_equal_rows_in_bfloat16():
    model = TinyModel(dtype=torch.bfloat16)
    row = random_tokens(model, 1, 8, ratio=0.8)
    probes = probe(model, row.repeat(2, 1))
    for name in ("entropy_drop", "mixture", "tv", "entropy"):
        torch.testing.assert_close(getattr(probes, name)[0], getattr(probes, name)[1], atol=1e-4, rtol=0)


def junk_where_visible(tokens, logits):
    logits[tokens != 5] = math.nan
    return logits


def test_what_a_model_says_at_visible_positions_does_not_matter():
    model = TinyModel()
    tokens = random_tokens(model, 5, 8)
    assert_same(
        probe(Patched(model, junk_where_visible), tokens, jacobian=True), probe(model, tokens, jacobian=True), 0
    )


def test_nan_at_a_masked_position_is_refused():
    model = Patched(TinyModel(), lambda tokens, logits: logits.fill_(math.nan))
    with pytest.raises(ValueError, match="not a distribution"):
        probe(model, torch.full((1, 4), 5))


def test_finished_single_and_fully_masked_contexts():
    model = TinyModel()
    tokens = torch.tensor([[0, 1, 2, 3], [0, 5, 2, 3], [5, 5, 5, 5]])
    probes = probe(model, tokens)
    assert probes.passes.tolist() == [0, 1, 1 + 4 * 5]
    assert probes.entropy_drop[:2].abs().max() == 0 and probes.entropy[0].max() == 0
    assert probes.entropy[1, 1] > 0 and (probes.entropy[1, [0, 2, 3]] == 0).all()
    # In float64: the least of them is so small that some processors round it to zero in float32.
    assert (probe(TinyModel(dtype=torch.float64), tokens).mixture[2] > 0).sum() == 12
    assert_same(probes, probe_naively(model, tokens), 2e-6)
    model.rows = 0
    nothing = probe(model, tokens[:1])
    assert model.rows == 0 and nothing.passes.item() == 0
    assert probe(model, tokens[:0]).entropy_drop.shape == (0, 4, 4)


def test_alone_in_a_batch_and_beside_a_longer_sequence():
    model = TinyModel()
    short, long = random_tokens(model, 1, 8, ratio=0.6), random_tokens(model, 1, 40, ratio=0.3, seed=1)
    others = random_tokens(model, 3, 8, seed=2)
    alone = probe(model, short, jacobian=True)
    in_four = probe(model, torch.cat([others[:2], short, others[2:]]), jacobian=True)
    padded = torch.cat([short, torch.full((1, 32), 6)], 1)
    beside = probe(model, torch.cat([long, padded]), jacobian=True)
    for name in ("entropy_drop", "mixture", "tv", "inconsistency", "jacobian"):
        torch.testing.assert_close(getattr(in_four, name)[2], getattr(alone, name)[0], atol=1e-5, rtol=0)
        torch.testing.assert_close(getattr(beside, name)[1, :8, :8], getattr(alone, name)[0], atol=1e-5, rtol=0)
        assert getattr(beside, name)[1, 8:].abs().max() == 0 and getattr(beside, name)[1, :, 8:].abs().max() == 0
    assert beside.passes[1] == alone.passes[0] and not beside.masked[1, 8:].any()


def test_groups_are_cut_to_their_longest_sequence(monkeypatch):
    monkeypatch.setattr("maskmi.probing.GROUP_BYTES", 1)
    model = TinyModel()
    padded = torch.cat([random_tokens(model, 1, 8), torch.full((1, 32), 6)], 1)
    probe(model, torch.cat([random_tokens(model, 1, 40), padded]))
    assert {width for _, width in model.widths} == {8, 40}


def test_inconsistency_report_by_hand():
    drop = torch.tensor([[[0.0, 0.3, 0.5], [-0.1, 0.0, 0.4], [0.0, 0.0, 0.0]]])
    mixture = torch.tensor([[[0.0, 0.4, 0.4], [0.1, 0.0, 0.4], [0.0, 0.0, 0.0]]])
    three, two = torch.tensor([[True, True, True]]), torch.tensor([[True, True, False]])
    none = torch.zeros(1, 3)
    probes = Probes(drop, mixture, mixture, mixture, two, three, none, torch.tensor([7]), none, none)
    report = inconsistency_report(probes)
    assert report["pairs"] == 4
    assert report["mean_mi"] == pytest.approx(1.1 / 4) and report["mean_mixture"] == pytest.approx(1.3 / 4)
    assert report["mean_asymmetry"] == pytest.approx(0.4)  # of 0 and 1 alone: 2 wasn't probed
    assert report["negative_share"] == 0.25 and report["mean_negative_size"] == pytest.approx(0.1)
    assert report["mean_kl"] == pytest.approx(1.3 / 4)
    centred = [(0.3 - 0.275, 0.4 - 0.325), (0.5 - 0.275, 0.075), (-0.375, -0.225), (0.125, 0.075)]
    numerator = sum(a * b for a, b in centred)
    expected = numerator / math.sqrt(sum(a * a for a, _ in centred) * sum(b * b for _, b in centred))
    assert report["correlation"] == pytest.approx(expected, abs=1e-6)


def test_inconsistency_report_of_nothing():
    report = inconsistency_report(probe(TinyModel(), torch.tensor([[0, 1, 2]])))
    assert report["pairs"] == 0 and report["mean_mi"] is None and report["correlation"] is None


def test_inconsistency_is_the_kl_of_the_mixture():
    model = TinyModel(sharpness=6.0, seed=1)
    row = torch.tensor([[5, 5, 0, 1]])
    p = model(row).logits[0].softmax(-1)
    mixed = torch.zeros(5)
    for v in range(5):
        filled = row.clone()
        filled[0, 0] = v
        mixed += p[0, v] * model(filled).logits[0, 1].softmax(-1)
    expected = kl_divergence(mixed.log(), p[1].log()).item()
    assert expected > 0.1
    assert probe(model, row).inconsistency[0, 0, 1].item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("tokens", "options", "message"),
    [
        (torch.tensor([5, 5]), {}, "B, L"),
        (torch.tensor([[5.0, 5.0]]), {}, "integers"),
        (torch.tensor([[6, 5]]), {}, "padding stands before"),
        (torch.tensor([[-1, 5]]), {}, "negative"),
        (torch.tensor([[5, 5]]), {"tolerance": -0.1}, "tolerance"),
        (torch.tensor([[5, 5]]), {"tolerance": math.nan}, "tolerance"),
        (torch.tensor([[5, 5]]), {"batch_size": 0}, "batch_size"),
        (torch.tensor([[5, 5]]), {"rows": torch.tensor([[True]])}, "rows"),
    ],
)
def test_bad_input_is_refused(tokens, options, message):
    with pytest.raises(ValueError, match=message):
        probe(TinyModel(), tokens, **options)


def test_logits_over_special_tokens_are_refused():
    model = Patched(TinyModel(), lambda tokens, logits: torch.cat([logits, logits[..., :1]], -1))
    with pytest.raises(ValueError, match="values only"):
        probe(model, torch.full((1, 4), 5))
