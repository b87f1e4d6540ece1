"""How probable a visible value is: exactly, with its own position masked, or with the value in sight.

For decoders that mask again. A model that was trained on masked positions only has learned nothing of visible ones, so
the exact way is the one that means something; it takes a pass for each position asked for.
"""

import torch
from torch import Tensor

from maskmi.decoding.state import View
from maskmi.model import log_probabilities

ROWS_AT_ONCE = 1024  # bounds the hidden states that are held at a time


def require_check(check: str) -> None:
    """Raises ValueError unless ``check`` names a way to see the probability of a visible value."""
    if check not in ("leave_one_out", "in_place"):
        raise ValueError(f"check must be 'leave_one_out' or 'in_place', not {check!r}")


def own_log_prob(view: View, which: Tensor, check: str) -> Tensor:
    """Log-probability ``[B, L]`` of the values at the visible positions ``which [B, L]``, 0 (certain) elsewhere.

    ``check='leave_one_out'``: by :func:`leave_one_out`; ``'in_place'``: from the step's own pass, the value in sight.
    """
    if check == "leave_one_out":
        return leave_one_out(view, which)
    value = view.tokens.masked_fill(~which, 0)
    return view.log_probs.gather(2, value[:, :, None]).squeeze(2).masked_fill(~which, 0)


def leave_one_out(view: View, which: Tensor, tokens: Tensor | None = None) -> Tensor:
    """Log-probability ``[B, L]`` of the values at the positions ``which [B, L]``, each with itself alone masked.

    One pass, counted, for each position of ``which``; elsewhere 0 (certain), at no pass. The state is ``tokens
    [B, L]``, by default that of the view; it must hold values at ``which``.
    """
    tokens = view.tokens if tokens is None else tokens
    found = torch.zeros_like(view.entropy)
    row, position = which.nonzero(as_tuple=True)
    for rows, positions in zip(row.split(ROWS_AT_ONCE), position.split(ROWS_AT_ONCE), strict=True):
        if len(rows):
            each = torch.arange(len(rows), device=rows.device)
            without = tokens[rows].index_put((each, positions), rows.new_tensor(view.mask))
            log_probs = log_probabilities(view.evaluate(without, rows).logits[each, positions])
            value = tokens[rows, positions]
            found[rows, positions] = log_probs.gather(1, value[:, None]).squeeze(1).to(found)
    return found
