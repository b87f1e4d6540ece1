"""Counter-based noise: golden values, uniformity, independence."""

import pytest
import torch
from scipy import stats

from maskmi.noise import gumbel, random_bits, uniform

LEVEL = 1e-4  # each test below may fail with this probability for a perfect generator; the seeds are fixed


def test_golden_values():
    # Worked with Python's unbounded integers: mix(mix(mix(7) ^ i) ^ j), mix being one splitmix64 step.
    bits = random_bits(7, torch.arange(2)[:, None], torch.arange(3))
    assert bits.tolist() == [
        [-7205399239080518280, -676041394083133728, 5398316625919644772],
        [8075172986249684972, -3871846616170350970, 1650069959653123811],
    ]


def test_the_finaliser_is_splitmix64():
    def mix(x):  # the reference algorithm in unsigned 64-bit arithmetic
        x = (x + 0x9E3779B97F4A7C15) % 2**64
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        return x ^ (x >> 31)

    assert mix(0) == 0xE220A8397B1DCDAF  # the first output of splitmix64 from seed 0
    for seed, counter in ((0, 0), (2**63 - 1, 5), (3, -1), (3, 2**62)):
        expected = mix(mix(seed) ^ (counter % 2**64))
        assert int(random_bits(seed, torch.tensor(counter))) % 2**64 == expected


def test_uniform_is_uniform_in_the_open_interval():
    u = uniform(1, torch.arange(200)[:, None], torch.arange(500)).flatten()
    assert u.dtype == torch.float64 and u.min() > 0 and u.max() < 1
    assert stats.kstest(u.numpy(), "uniform").pvalue > LEVEL


def test_extreme_bits_stay_inside_the_interval(monkeypatch):
    for word in (0, -1):  # all bits clear, all bits set
        monkeypatch.setattr("maskmi.noise.random_bits", lambda seed, *c, word=word: torch.tensor(word))
        assert 0 < float(uniform(0, torch.tensor(0))) < 1
        assert torch.isfinite(gumbel(0, torch.tensor(0)))


@pytest.mark.parametrize("axis", ["seed", "first", "second", "swapped"])
def test_neighbouring_keys_are_independent(axis):
    a, b = torch.arange(300)[:, None], torch.arange(300)
    x = uniform(4, a, b)
    y = {
        "seed": lambda: uniform(5, a, b),
        "first": lambda: uniform(4, a + 1, b),
        "second": lambda: uniform(4, a, b + 1),
        "swapped": lambda: uniform(4, b, a + 1000),
    }[axis]()
    cells = (x.flatten() * 8).long() * 8 + (y.flatten() * 8).long()
    assert stats.chisquare(cells.bincount(minlength=64).numpy()).pvalue > LEVEL
    assert stats.pearsonr(x.flatten().numpy(), y.flatten().numpy()).pvalue > LEVEL


def test_every_bit_is_fair():
    bits = random_bits(9, torch.arange(20000))
    ones = ((bits[:, None] >> torch.arange(64)) & 1).sum(0)
    pvalues = [stats.binomtest(int(n), 20000).pvalue for n in ones]
    assert min(pvalues) > LEVEL / 64


def test_gumbel_is_gumbel():
    assert stats.kstest(gumbel(2, torch.arange(50000)).numpy(), "gumbel_r").pvalue > LEVEL


def test_gumbel_argmax_samples_the_distribution():
    p = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    drawn = (p.log() + gumbel(3, torch.arange(20000)[:, None], torch.arange(4))).argmax(1)
    assert stats.chisquare(drawn.bincount(minlength=4).numpy(), (p * 20000).numpy()).pvalue > LEVEL


def test_a_draw_depends_on_its_key_only():
    whole = uniform(6, torch.arange(10)[:, None], torch.arange(7))
    assert torch.equal(uniform(6, torch.tensor([[8], [3]]), torch.arange(7)), whole[[8, 3]])
    assert uniform(6, torch.tensor(1, dtype=torch.int32), 2) == whole[1, 2]


@pytest.mark.parametrize(
    ("seed", "counters"),
    [(-1, (torch.tensor(0),)), (2**63, (torch.tensor(0),)), (0, (1, 2)), (0, (torch.tensor(0.5),))],
)
def test_bad_keys_are_refused(seed, counters):
    with pytest.raises(ValueError, match="seed|counter"):
        uniform(seed, *counters)
