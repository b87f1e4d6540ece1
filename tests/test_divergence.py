import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from scipy.spatial.distance import jensenshannon

from maskmi.model import Output
from maskmi.protein import divergence as d
from maskmi.protein import variety as v
from maskmi.protein.adapter import AMINO_ACIDS
from maskmi.protein.perplexity import pseudo_perplexity
from maskmi.tabular import TabularModel


def tokens_of(*sequences):
    letters = AMINO_ACIDS + "*" + "-" + "XBZ"  # as MASK is 20, padding 21, and ambiguous letters come after
    width = max(map(len, sequences))
    return torch.tensor([[letters.index(letter) for letter in s.ljust(width, "-")] for s in sequences])


def random_tokens(seed, number, length=30, skew=0.0):
    p = np.exp(skew * np.linspace(0, 1, 20))
    return torch.as_tensor(np.random.default_rng(seed).choice(20, (number, length), p=p / p.sum()))


# Features.


def test_kmers_by_hand_never_cross_an_end_or_an_ambiguous_letter():
    counts = d.kmer_counts(tokens_of("ACAC", "YY", "CXA"), 2)
    assert counts.shape == (3, 400)
    found = {(int(i), int(j)): int(counts[i, j]) for i, j in zip(*counts.nonzero(), strict=True)}
    assert found == {(0, 1): 2, (0, 20): 1, (1, 399): 1}  # AC twice, CA once; YY; none
    assert d.kmer_counts(tokens_of("ACAC", "YY"), 1).sum(0).tolist() == [[2, 2] + [0] * 17 + [2]]
    assert d.kmer_counts(tokens_of("ACD"), 3).indices.tolist() == [1 * 20 + 2]
    with pytest.raises(ValueError, match="MASK"):
        d.kmer_counts(tokens_of("A*C"), 1)
    with pytest.raises(ValueError, match="padding before"):
        d.kmer_counts(tokens_of("A-C"), 1)
    with pytest.raises(ValueError, match="no 4-mers"):
        d.kmer_counts(tokens_of("ACD"), 4)


class Stub:
    """Hidden states (token, 1); log-odds of A over C depend on the left neighbour and on the number of residues."""

    values, hidden_size, device = "AC", 2, torch.device("cpu")

    def __init__(self):
        self.rows = 0

    def __call__(self, tokens, attention=False):
        self.rows += len(tokens)
        real = tokens != 3
        left = torch.nn.functional.pad(tokens, (1, 0))[:, :-1].double()
        odds = 0.7 * left + 0.1 * real.sum(1, keepdim=True) + 0.3 * (tokens == 0).sum(1, keepdim=True)
        logits = torch.stack([odds, torch.zeros_like(odds)], -1).masked_fill(~real[:, :, None], torch.nan)
        hidden = torch.stack([tokens.float(), torch.ones(tokens.shape)], -1)
        return Output(logits, hidden)


@pytest.mark.parametrize("batch_size", [1, 2, 9])
def test_mean_hidden_leaves_padding_out(batch_size):
    tokens = torch.tensor([[0, 1, 1, 1], [1, 0, 3, 3], [1, 3, 3, 3]])
    means = d.mean_hidden(Stub(), tokens, batch_size)
    np.testing.assert_allclose(means, [[0.75, 1], [0.5, 1], [1, 1]])


def test_histogram_is_fitted_on_the_reference_alone():
    # Spread along -x, then along y: the first component is +x, the second +y; the medians are at the origin.
    x, y = np.meshgrid([-30.0, -10, 10, 30], [-2.0, -1, 1, 2])
    reference = np.stack([x.ravel(), y.ravel(), np.zeros(16)], 1)
    histogram = d.HiddenHistogram.fit(reference, bins=2)
    np.testing.assert_allclose(histogram.components.components_, np.eye(3)[:2], atol=1e-12)
    np.testing.assert_allclose(histogram.edges, 0, atol=1e-12)
    assert histogram.counts(reference).sum(0).tolist() == [[4, 4, 4, 4]]
    samples = np.array([[-1e9, -1e9, 5], [-1, 1, 5], [1, 1, -5], [1, 1e9, 0.0]])
    assert histogram.counts(samples).indices.tolist() == [0, 1, 3, 3]
    mirrored = d.HiddenHistogram.fit(-reference, bins=2)
    np.testing.assert_array_equal(mirrored.counts(samples).toarray(), histogram.counts(samples).toarray())
    assert d.divergence(histogram.counts(reference), histogram.counts(reference)).value == 0


# Divergences.


def test_divergence_by_hand():
    # AA against AC: p = (1, 0), q = (1/2, 1/2), their mean (3/4, 1/4) has entropy log 4 - 3/4 log 3 = 0.562335;
    # minus half of log 2: 0.215762. The 2-mers AA and AC have nothing in common: log 2.
    first, second = tokens_of("AA"), tokens_of("AC")
    one = d.divergence(d.kmer_counts(first, 1), d.kmer_counts(second, 1))
    assert one.value == pytest.approx(0.215762, abs=1e-6)
    two = d.divergence(d.kmer_counts(first, 2), d.kmer_counts(second, 2))
    assert two == pytest.approx((np.log(2),) * 3)


def test_divergence_weights_by_residues_not_by_sequences():
    # A, CCC pool to (1, 3)/4; AC to (1, 1)/2; mean (3, 5)/8
    h = lambda *p: -sum(x * np.log(x) for x in p)  # noqa: E731
    found = d.divergence(d.kmer_counts(tokens_of("A", "CCC"), 1), d.kmer_counts(tokens_of("AC"), 1)).value
    assert found == pytest.approx(h(3 / 8, 5 / 8) - (h(1 / 4, 3 / 4) + np.log(2)) / 2)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_divergence_equals_scipy(k):
    first, second = d.kmer_counts(random_tokens(0, 40), k), d.kmer_counts(random_tokens(1, 60, skew=1), k)
    value = d.divergence(first, second, n_resamples=5).value
    pooled = [np.asarray(x.sum(0)).ravel() for x in (first, second)]
    assert value == pytest.approx(jensenshannon(*pooled) ** 2)
    assert value / np.log(2) == pytest.approx(jensenshannon(*pooled, base=2) ** 2)


def test_identical_sets_do_not_diverge():
    counts = d.kmer_counts(random_tokens(0, 30), 2)
    assert d.divergence(counts, counts, n_resamples=50).value == 0
    same = d.kmer_counts(random_tokens(0, 1).expand(30, -1), 2)
    assert d.natural_floor(same, 10, 20) == (0, 0, 0)
    assert d.divergence(same[:10], same) == (0, 0, 0)


@pytest.mark.parametrize(("k", "widest"), [(1, 1.25), (2, 1.5), (3, 2.5)])
def test_interval_is_as_wide_as_values_scatter(k, widest):
    def draw(seed):
        samples, reference = random_tokens(seed, 150, 40, skew=1), random_tokens(seed + 10_000, 400, 40)
        return d.kmer_counts(samples, k), d.kmer_counts(reference, k)

    values = [d.divergence(*draw(seed), n_resamples=1).value for seed in range(80)]
    intervals = [d.divergence(*draw(seed), n_resamples=200) for seed in range(5)]
    assert all(x.low < x.value < x.high for x in intervals)
    width = np.mean([x.high - x.low for x in intervals])
    assert 0.8 < width / (2 * 1.96 * np.std(values)) < widest  # too wide where most features are rare


def test_interval_repeats_and_needs_like_features():
    first, second = d.kmer_counts(random_tokens(0, 20), 1), d.kmer_counts(random_tokens(1, 20), 1)
    assert d.divergence(first, second, seed=3) == d.divergence(first, second, seed=3) != d.divergence(first, second)
    with pytest.raises(ValueError, match="20 and 400 features"):
        d.divergence(first, d.kmer_counts(random_tokens(1, 20), 2))
    with pytest.raises(ValueError, match="empty"):
        d.divergence(first, csr_matrix((3, 20)))


def test_floor_is_what_finite_samples_of_one_source_have():
    # Of n and m independent residues of 20 kinds the expected divergence is near 19/8 (1/n + 1/m).
    counts = d.kmer_counts(random_tokens(5, 400), 1)
    for n, m in ((50, 50), (200, 200), (50, 350)):
        expected = 19 / 8 * (1 / (30 * n) + 1 / (30 * m))
        floor = d.natural_floor(counts, n, m)
        assert floor.value == pytest.approx(expected, rel=0.15) and floor.low < floor.value < floor.high
    assert d.natural_floor(counts, 50, 50, seed=1) == d.natural_floor(counts, 50, 50, seed=1)
    with pytest.raises(ValueError, match="400 natural sequences"):
        d.natural_floor(counts, 300, 200)


# Diversity, novelty, low complexity.


def test_nearest_identity_by_hand():
    samples = tokens_of("ACDEFGHIKL", "ACDEFGHIK", "WWWW", "MXM")
    training = tokens_of("YYYY", "ACDEFGHIKM", "ACDEFGHIKLMN", "ACDEFGHIKM", "MXM")
    # 1 substitution of 10 beats 2 insertions of 12; 1 insertion of 10; nothing alike; the very same
    identity, index = v.nearest_identity(samples, training)
    np.testing.assert_allclose(identity, [0.9, 0.9, 0, 1], atol=1e-6)
    assert index.tolist() == [1, 1, 0, 4]


def test_diversity_by_hand():
    found = v.diversity(tokens_of("AAAA", "AAAC", "CCCC", "AAAA"), prefix=3)
    # distances 1/4, 1, 0, 3/4, 1/4, 1 of the six pairs
    assert found == {"mean_distance": pytest.approx(3.25 / 6), "distinct": 3, "prefix_share": 0.75}
    assert v.diversity(tokens_of("AC", "ACD"))["mean_distance"] == pytest.approx(1 / 3)
    with pytest.raises(ValueError, match="two"):
        v.diversity(tokens_of("AC"))


def test_clusters_are_greedy_from_the_first_members():
    tokens = tokens_of("AAAAA", "AAACC", "CCCCC", "AACCC", "A", "AAAAC")
    # With AAAAA AAACC shares 3 of 5, CCCCC none, AACCC 2 (but 3 with CCCCC), A 1 and AAAAC 4.
    assert v.clusters(tokens).tolist() == [0, 0, 1, 1, 2, 0]
    assert v.clusters(tokens, identity=0.8).tolist() == [0, 1, 2, 1, 3, 0]
    assert v.clusters(tokens_of("ACD")).tolist() == [0]


def test_longest_runs_by_hand():
    tokens = tokens_of("AAC", "ACCCCCA", "A", "ACACAAA", "CCCCCCC")
    assert v.longest_runs(tokens).tolist() == [2, 5, 1, 3, 7]
    assert v.low_complexity(tokens).value == 0.4 and v.low_complexity(tokens, run=6).value == 0.2


# Pseudo-perplexity.


def test_pseudo_perplexity_of_a_table_is_exact():
    model = TabularModel.random(seed=1, length=4, values=3)
    sequences = torch.cartesian_prod(*[torch.arange(3)] * 4)
    log_p = torch.zeros(len(sequences), dtype=torch.float64)
    for i in range(4):  # P(x_i | rest) = P(x) / sum over x_i
        log_p += (model.joint / model.joint.sum(i, keepdim=True))[sequences.unbind(1)].log()
    found = pseudo_perplexity(model, sequences)
    torch.testing.assert_close(found.value, (-log_p / 4).exp())
    assert found.passes.tolist() == [4] * 81


def test_pseudo_perplexity_of_a_chain_by_hand():
    # Two values that repeat with .9: the ends are .9 or .1 likely, the middle of 000 is .81/.82, that of 010 .01/.82.
    model = TabularModel.chain(3, 2)
    found = pseudo_perplexity(model, torch.tensor([[0, 0, 0], [0, 1, 0]])).value
    expected = [(0.9 * 0.9 * 0.81 / 0.82) ** (-1 / 3), (0.1 * 0.1 * 0.01 / 0.82) ** (-1 / 3)]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


def test_pseudo_perplexity_of_chosen_positions_alone():
    # As above: the end of 000 is .9 likely, the middle .81/.82.
    model, tokens = TabularModel.chain(3, 2), torch.tensor([[0, 0, 0], [0, 0, 0]])
    where = torch.tensor([[True, False, False], [True, True, False]])
    found = pseudo_perplexity(model, tokens, where=where)
    expected = [1 / 0.9, (0.9 * 0.81 / 0.82) ** (-1 / 2)]
    torch.testing.assert_close(found.value, torch.tensor(expected, dtype=torch.float64))
    assert found.passes.tolist() == [1, 2]
    with pytest.raises(ValueError, match="sequence 1 has no residue"):
        pseudo_perplexity(model, tokens, where=where & torch.tensor([[True], [False]]))


def test_pseudo_perplexity_does_not_depend_on_the_batch():
    tokens = torch.tensor([[0, 1, 1, 0, 1], [1, 3, 3, 3, 3], [0, 4, 1, 3, 3], [1, 1, 0, 3, 3]])  # 4: context only
    model = Stub()
    whole = pseudo_perplexity(model, tokens, batch_size=4)
    assert whole.passes.tolist() == [5, 1, 2, 3] and model.rows == 11
    for batch_size in (1, 3, 50):
        torch.testing.assert_close(pseudo_perplexity(Stub(), tokens, batch_size).value, whole.value)
    for row, width in zip(range(4), (5, 1, 3, 3), strict=True):
        alone = pseudo_perplexity(Stub(), tokens[row : row + 1, :width]).value
        torch.testing.assert_close(alone, whole.value[row : row + 1])
    with pytest.raises(ValueError, match="sequence 1 has no residue"):
        pseudo_perplexity(Stub(), torch.tensor([[0, 1], [4, 3]]))
    with pytest.raises(ValueError, match="MASK"):
        pseudo_perplexity(Stub(), torch.tensor([[0, 2]]))
