import math

import pytest
import torch

from maskmi.model import entropy, entropy_of, kl_divergence, log_probabilities

INF = math.inf


def test_log_probabilities_by_hand():
    # softmax of (log 1, log 2, log 5) is (1/8, 2/8, 5/8); a shift changes nothing
    logits = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64).log() + 300
    expected = torch.tensor([0.125, 0.25, 0.625], dtype=torch.float64)
    torch.testing.assert_close(log_probabilities(logits).exp(), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_low_precision_is_computed_in_float32(dtype):
    logits = (5 * torch.randn(50, 9, generator=torch.Generator().manual_seed(0))).to(dtype)
    log_p = log_probabilities(logits)
    assert log_p.dtype == torch.float32
    torch.testing.assert_close(log_p, torch.log_softmax(logits.double(), -1).float())
    torch.testing.assert_close(log_p.exp().sum(-1), torch.ones(50))


def test_gradient_is_that_of_log_softmax():
    logits = torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    weight = torch.arange(20.0, dtype=torch.float64).view(4, 5)
    (ours,) = torch.autograd.grad((log_probabilities(logits) * weight).sum(), logits)
    (theirs,) = torch.autograd.grad((torch.log_softmax(logits, -1) * weight).sum(), logits)
    torch.testing.assert_close(ours, theirs)


def test_impossible_values():
    log_p = log_probabilities(torch.tensor([[0.0, -INF, 0.0], [-INF, 7.0, -INF]]))
    torch.testing.assert_close(log_p.exp(), torch.tensor([[0.5, 0.0, 0.5], [0.0, 1.0, 0.0]]))
    torch.testing.assert_close(entropy(log_p), torch.tensor([math.log(2), 0.0]))


@pytest.mark.parametrize("bad", [[math.nan, 0.0], [INF, 0.0], [-INF, -INF]])
def test_no_distribution_is_refused(bad):
    logits = torch.tensor([[0.0, 1.0], bad])
    with pytest.raises(ValueError, match="NaN"):
        log_probabilities(logits)
    log_p = log_probabilities(logits, where=torch.tensor([True, False]))  # the bad row doesn't matter
    torch.testing.assert_close(log_p[0], torch.log_softmax(logits[0], 0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1e4])
def test_entropy_is_finite_and_not_negative(dtype, scale):
    logits = (scale * torch.randn(200, 9, generator=torch.Generator().manual_seed(1))).to(dtype)
    logits[::3, 2] = -INF
    log_p = log_probabilities(logits)
    for h in (entropy(log_p), entropy_of(log_p.exp())):
        assert torch.isfinite(h).all() and (h >= 0).all() and (h <= math.log(9) + 1e-5).all()
    torch.testing.assert_close(entropy(log_p), entropy_of(log_p.exp()), atol=1e-5, rtol=1e-4)


def test_entropy_by_hand():
    p = torch.tensor([[0.25, 0.25, 0.5], [1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3]], dtype=torch.float64)
    expected = torch.tensor([1.5 * math.log(2), 0.0, math.log(3)], dtype=torch.float64)
    torch.testing.assert_close(entropy_of(p), expected)
    torch.testing.assert_close(entropy(p.log()), expected)


def test_kl_by_hand():
    p, q = torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0.25, 0.75, 0.0])
    assert kl_divergence(p.log(), q.log()).item() == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3))
    assert kl_divergence(q.log(), q.log()).item() == 0
    assert kl_divergence(p.log(), torch.tensor([1.0, 0.0, 0.0]).log()).item() == INF
    assert kl_divergence(torch.tensor([1.0, 0.0, 0.0]).log(), p.log()).item() == pytest.approx(math.log(2))


def test_kl_where_float32_has_no_such_small_probability():
    log_p = log_probabilities(torch.tensor([0.0, -200.0]))
    assert kl_divergence(log_p, torch.tensor([0.0, -INF])).item() == 0


def test_kl_of_two_equal_rows_in_bfloat16_is_zero():
    logits = torch.randn(9, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert kl_divergence(log_probabilities(logits), log_probabilities(logits.clone())).item() == 0
