"""What a decoder sees of one step, and what it answers.

A decoder is any callable ``View -> Decision``; here each is a frozen dataclass in a file of its own. It may also have
an attribute ``pairwise``, a source of a matrix over pairs of positions (:mod:`maskmi.decoding.sources`), which the loop
then calls before every step, and an attribute ``needs_attention``, true where it reads ``view.output.attention``.

A decoder keeps nothing on itself: what it must remember of a sequence goes into ``view.memory``, randomness comes from
:meth:`View.noise`, and passes beyond the step's own are made through ``view.evaluate``, which counts them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from maskmi.model import Output
from maskmi.noise import uniform

# Noise streams: draws for different purposes never share a key. A new decoder takes the next number.
VALUES, ORDER = 0, 1


class Evaluate(Protocol):
    """Counted extra passes: tokens ``[R, L]``, and ``rows [R]``, the batch row that each pass is charged to."""

    def __call__(self, tokens: Tensor, rows: Tensor, attention: bool = False, model: Callable | None = None) -> Output:
        """Output with leading ``R``, evaluated in chunks; ``model`` names another model than the one decoded with."""


@dataclass
class View:
    """The ``B`` active sequences of one step. Entropies in nats; nothing here is tempered but ``proposal``.

    A visible position has a distribution too (what the model says of it with its value in sight); decoders that
    commit look at ``masked`` positions only.
    """

    tokens: Tensor  # [B, L] int64, the state this step starts from
    masked: Tensor  # [B, L] bool
    given: Tensor  # [B, L] bool, visible from the start (padding too): never to be changed
    step: Tensor  # [B] int64, counted for each sequence from 0
    log_probs: Tensor  # [B, L, V] float32 (float64 from a float64 model), may hold -inf
    entropy: Tensor  # [B, L]
    confidence: Tensor  # [B, L], the largest probability
    margin: Tensor  # [B, L], largest minus second largest probability
    output: Output  # the model's own output, with hidden states and perhaps attention
    ids: Tensor  # [B] int64, sequence ids, which key the noise
    seed: int
    mask: int  # the MASK token
    memory: dict[str, Tensor]  # what the decoder stored at earlier steps, [B, …] each; see recall
    evaluate: Evaluate
    proposal: Tensor | None = None  # [B, L] int64, the value that a commitment would write; the loop fills it in
    proposal_log_prob: Tensor | None = None  # [B, L], untempered
    pairwise: Tensor | None = None  # [B, L, L] symmetric, zero diagonal, on masked pairs; only with a source

    def recall(self, name: str, initial: Tensor) -> Tensor:
        """Memory ``name``, with the rows of ``initial [B, …]`` for sequences at their first step.

        Store by ``view.memory[name] = tensor``. The loop drops a finished sequence's row and adds a row of zeros for
        one that enters, so a decoder reads through this method rather than from the dictionary.
        """
        if name not in self.memory:
            return initial
        fresh = (self.step == 0).view(-1, *[1] * (initial.dim() - 1))
        return torch.where(fresh, initial, self.memory[name])

    def noise(self, stream: int, every_step: bool = False) -> Tensor:
        """Uniform noise ``[B, L]`` in (0, 1), keyed by sequence and position, and by the step too if asked."""
        positions = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        step = self.step[:, None] if every_step else -1
        return uniform(self.seed, stream, self.ids[:, None], positions, step)


@dataclass
class Decision:
    """A decoder's answer for ``B`` sequences.

    ``commit`` may be true at masked positions only, ``remask`` at visible ones that aren't given. A sequence for which
    nothing is committed gets its most confident position committed by the loop.
    """

    commit: Tensor  # [B, L] bool
    values: Tensor | None = None  # [B, L] int64; the view's proposal unless stated
    remask: Tensor | None = None  # [B, L] bool, to be masked again after this step
    spent: Tensor | None = None  # [B], what the step used of the decoder's budget; kept in traces
