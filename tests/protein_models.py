"""What the tests of both protein adapters share."""

import torch


def encode(model, sequence, length=None):
    """Tokens [1, L] of a sequence in which ``_`` is MASK, padded to ``length``."""
    letters = model.values + "_\0" + model.extra
    return torch.tensor([[letters.index(letter) for letter in sequence.ljust(length or 0, "\0")]])


@torch.no_grad()
def run(model, tokens, attention=False):
    return model(tokens, attention)


def close(a, b, atol=1e-5):
    return torch.allclose(a, b, rtol=0, atol=atol)
