"""How a decoder works on proteins, measured on traces: how much a step writes, masking again, and in which order."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskmi.decoding.diagnostics import commitment_steps, flip_flop_rate
from maskmi.decoding.loop import Trace


def diagnose(masked: Tensor, trace: Trace) -> dict[str, Any]:
    """Measures of a trace from states that were ``masked`` (bool [N, L]); what has no value is left out.

    ``n``; ``committed``, mean number of residues a step writes; ``remasked``, how often a position is masked again, a
    mean over masked positions; ``flip_flop``, the share of these maskings after which the same residue came back;
    ``from_n_end``, the share of pairs of residues, among those written in different steps of one sequence, of which the
    one nearer to the N terminus came first: 1 from the N to the C terminus, 0 the other way, 0.5 for neither. A residue
    that was masked again counts by its last writing.
    """
    steps, again = len(trace.steps["step"]), len(trace.remasks["step"])
    found: dict[str, Any] = {"n": len(masked), "remasked": again / int(masked.sum())}
    if steps:
        found["committed"] = len(trace.commits["step"]) / steps
    if again and np.isfinite(rate := flip_flop_rate(trace)):
        found["flip_flop"] = rate
    written = commitment_steps(trace, *masked.shape)
    earlier = torch.zeros((), dtype=torch.int64)
    later = earlier.clone()
    for row in written:  # a matrix of pairs for one sequence at a time
        row = row[row >= 0]
        sign = torch.triu((row[None, :] - row[:, None]).sign(), 1)
        earlier += (sign > 0).sum()
        later += (sign < 0).sum()
    if earlier + later:
        found["from_n_end"] = (earlier / (earlier + later)).item()
    return found
