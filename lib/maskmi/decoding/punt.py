"""The positions that don't influence one another, found by testing halves against halves (PUNT, arXiv 2510.21961)."""

from dataclasses import dataclass

import torch

from maskmi.decoding.select import rising
from maskmi.decoding.state import Decision, View
from maskmi.model import kl_divergence, log_probabilities


@dataclass(frozen=True)
class PUNT:
    """Commit the masked positions that pass every test of influence by more confident ones.

    Masked positions are numbered by falling confidence, from 0, and all are candidates. For every binary digit of the
    numbers, the highest first, one pass is made with the candidates whose digit is 0 filled in; the other candidates
    stay only where ``KL(p_j ‖ p_j with those filled in) <= epsilon`` nats. What remains is committed; the most
    confident position always does. With m masked positions a step takes ``1 + ceil(log2 m)`` passes, also where
    earlier tests have left nothing to test.

    Source: arXiv 2510.21961, section 3; it sweeps epsilon from 0.01 to 0.32. Each test fills in the values that would
    be committed, so for sampled values it tests independence of those very values.
    """

    epsilon: float

    def __post_init__(self):
        if not self.epsilon >= 0:
            raise ValueError(f"epsilon must be 0 nats or more, not {self.epsilon}")

    def __call__(self, view: View) -> Decision:
        number = rising(-view.confidence, view.masked).argsort(1)
        highest = view.masked.sum(1) - 1
        candidates = view.masked.clone()
        for digit in reversed(range(int(highest.max()).bit_length())):
            rows = (highest >> digit > 0).nonzero().squeeze(1)
            anchors = candidates & (number >> digit & 1 == 0)
            filled = torch.where(anchors, view.proposal, view.tokens)[rows]
            after = log_probabilities(view.evaluate(filled, rows).logits, where=view.masked[rows])
            influenced = kl_divergence(view.log_probs[rows], after) > self.epsilon
            candidates[rows] &= anchors[rows] | ~influenced
        return Decision(candidates)
