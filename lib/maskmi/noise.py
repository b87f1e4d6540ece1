"""Noise as a pure function of a seed and integer counters, with no generator state.

A draw is keyed by what it is for (say sequence, position, visit, value). So it is the same in whatever batch, order or
device a sequence is decoded, and whatever was drawn before. The hash is the splitmix64 finaliser (Steele, Lea and
Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014), chained over the counters.
"""

import torch
from torch import Tensor


def _signed(word: int) -> int:
    """An unsigned 64-bit constant as the int64 of the same bits, for torch has no unsigned arithmetic."""
    return word - (1 << 64) if word >= 1 << 63 else word


_INCREMENT = _signed(0x9E3779B97F4A7C15)
_FIRST = _signed(0xBF58476D1CE4E5B9)
_SECOND = _signed(0x94D049BB133111EB)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical shift: torch's ``>>`` on int64 copies the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    """The splitmix64 output of state ``x``; a bijection of the 64-bit words. Products wrap around."""
    x = x + _INCREMENT
    x = (x ^ _shift_right(x, 30)) * _FIRST
    x = (x ^ _shift_right(x, 27)) * _SECOND
    return x ^ _shift_right(x, 31)


def random_bits(seed: int, *counters: Tensor | int) -> Tensor:
    """Hash of ``(seed, *counters)`` as int64 words, all 64 bits random, of the counters' broadcast shape.

    Args:
        seed: ``0 … 2**63 - 1``.
        counters: integer tensors (or Python integers beside at least one tensor) that broadcast; their order matters.

    Raises:
        ValueError: for a seed out of range, no tensor among the counters, or a counter that isn't an integer.
    """
    if not 0 <= seed < 1 << 63:
        raise ValueError(f"the seed must lie in 0 … 2**63 - 1, not {seed}")
    tensors = [c for c in counters if isinstance(c, Tensor)]
    if not tensors:
        raise ValueError("noise needs at least one counter that is a tensor: it gives the shape and the device")
    if any(c.dtype == torch.bool or c.is_floating_point() or c.is_complex() for c in tensors):
        raise ValueError("noise counters must be integer tensors")
    state = _mix(torch.tensor(seed, dtype=torch.int64, device=tensors[0].device))
    for counter in counters:
        # For a given state this is a bijection of the counter: two counters never collide.
        state = _mix(state ^ (counter.long() if isinstance(counter, Tensor) else counter))
    return state


def uniform(seed: int, *counters: Tensor | int) -> Tensor:
    """Independent uniform draws in the open interval (0, 1), float64, of the counters' broadcast shape.

    Arguments and errors as in :func:`random_bits`.
    """
    # 52 bits and a half: the largest is 1 - 2**-53, which float64 still holds; 53 bits and a half would round to 1.
    return (_shift_right(random_bits(seed, *counters), 12).double() + 0.5) * 2.0**-52


def gumbel(seed: int, *counters: Tensor | int) -> Tensor:
    """Independent standard Gumbel draws, float64: ``argmax(log p + gumbel)`` over values is a sample from p.

    Arguments and errors as in :func:`random_bits`.
    """
    return -torch.log(-torch.log(uniform(seed, *counters)))
