"""Samplers of masked diffusion that mask again at random (ReMDM, arXiv 2503.00307)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from maskmi.decoding.state import Decision, View

REMASK = 20  # noise stream


@dataclass(frozen=True)
class ReMDMCap:
    """A visible position is masked again with probability ``min(eta, (1 - alpha_s) / alpha_t)`` in every step.

    Source: ReMDM, arXiv 2503.00307, section 4.1 ("max-capped"), and the code published with it. Time runs from t = 1
    to 0 in ``steps`` equal steps, from t to s in one; ``alpha_t = 1 - t`` is the share of visible positions that the
    sampler aims at. With sigma the probability above, a masked position is committed with probability
    ``(alpha_s - (1 - sigma) alpha_t) / (1 - alpha_t)``, so the share is kept whatever ``eta``. ``eta=0`` is the plain
    sampler of masked diffusion. Published: eta 0.04 at best for 1,024 tokens and as many steps or more, at temperature
    1 with nucleus sampling (p = 0.9), which is left out here; sweep it.

    Caveats, of both samplers here: where chance commits nothing, the loop commits the most confident position; decoding
    ends as soon as nothing is masked, even before ``steps``; what is still masked in the last step is committed. Choose
    ``max_steps`` of ``decode`` no smaller than ``steps``, since it stops masking again after 4 L steps by default.
    """

    steps: int
    eta: float = 0.04

    def __post_init__(self):
        _require(self.steps, self.eta)

    def __call__(self, view: View) -> Decision:
        t, s = _times(view, self.steps)
        return _decide(view, 1 - t, 1 - s, torch.full_like(t, self.eta), s == 0)


@dataclass(frozen=True)
class ReMDMLoop:
    """Fill up to a share ``alpha_on``, then mask again and refill at that share, then fill the rest.

    Source: ReMDM, arXiv 2503.00307, section 4.2 ("loop"), and the code published with it; its defaults. Time runs from
    t = 1 to 0 in ``steps`` equal steps:

    - t > ``t_on``: the plain sampler, with the share of visible positions rising from 0 to ``alpha_on``;
    - ``t_off`` < t <= ``t_on``: the share stays ``alpha_on``. A visible position is masked again with probability
      ``eta`` and a masked one committed with ``eta alpha_on / (1 - alpha_on)``, so that as many come as go;
    - t <= ``t_off``: the plain sampler again, from ``alpha_on`` to 1.

    With few steps the last one of the first part would overshoot ``alpha_on`` in the published code (even reach 1): it
    ends there. ``eta`` is capped at ``(1 - alpha_on) / alpha_on``. Caveats as of :class:`ReMDMCap`.
    """

    steps: int
    eta: float = 0.02
    t_on: float = 0.55
    t_off: float = 0.05
    alpha_on: float = 0.9

    def __post_init__(self):
        _require(self.steps, self.eta)
        if not 0 < self.t_off < self.t_on < 1:
            raise ValueError(f"t_off and t_on must satisfy 0 < t_off < t_on < 1, not {self.t_off} and {self.t_on}")
        if not 0 < self.alpha_on < 1:
            raise ValueError(f"alpha_on must lie between 0 and 1, not {self.alpha_on}")

    def __call__(self, view: View) -> Decision:
        t, s = _times(view, self.steps)
        eta = self.eta * ((t <= self.t_on) & (t > self.t_off)).double()
        return _decide(view, self._share(t, t), self._share(t, s), eta, s == 0)

    def _share(self, part: Tensor, t: Tensor) -> Tensor:
        """The share of visible positions at time t, by the rule of the part that holds at time ``part``."""
        early = ((1 - t) * self.alpha_on / (1 - self.t_on)).clamp(max=self.alpha_on)
        late = 1 - t * (1 - self.alpha_on) / self.t_off
        return torch.where(part > self.t_on, early, torch.where(part <= self.t_off, late, self.alpha_on))


def _require(steps: int, eta: float) -> None:
    if steps < 1:
        raise ValueError(f"steps must be at least 1, not {steps}")
    if not 0 <= eta <= 1:
        raise ValueError(f"eta is a probability in 0 … 1, not {eta}")


def _times(view: View, steps: int) -> tuple[Tensor, Tensor]:
    """The times before and after the step, ``[B]`` each, in 0 … 1; those of the last step ever after."""
    left = steps - view.step.double().clamp(max=steps - 1)
    return left / steps, (left - 1) / steps


def _decide(view: View, now: Tensor, then: Tensor, eta: Tensor, last: Tensor) -> Decision:
    """Commit and mask again at random, for shares of visible positions ``now [B]`` (alpha_t) and ``then`` (alpha_s)."""
    sigma = torch.minimum((1 - then) / now, eta).masked_fill(last, 0)  # inf where nothing is to be visible yet
    commit = ((then - (1 - sigma) * now) / (1 - now)).masked_fill(last, 1)
    noise = view.noise(REMASK, every_step=True)  # one draw a position: it is either masked or visible
    visible = ~view.masked & ~view.given
    return Decision(view.masked & (noise < commit[:, None]), remask=visible & (noise < sigma[:, None]))
