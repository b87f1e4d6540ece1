"""What is wrong with an adapter: a masked model that was just written is tried on random sequences.

Only what can be seen through the interface (:mod:`maskmi.model`) is checked, so a model that passes can still be bad:
wrong special tokens at the ends, say, only make it predict worse.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from maskmi.model import MaskedModel, Output, mask_token, pad_token

# After these the rest can't be judged.
BLOCKING = {"attributes", "call", "shape", "device", "numbers", "repeat", "leak"}
MOST_VALUES = 64  # compared with one another
PRECISE = (torch.float64, torch.float32)
# By what share of the largest number outputs may differ: of one context, by rounding (hidden states in a precise type,
# in another one); of two contexts that are read alike.
EQUAL, ROUNDED, ALIKE = 1e-4, 0.05, 1e-5


class Finding(NamedTuple):
    """One thing that is wrong."""

    check: str  # of BLOCKING, or values, type, gradient, batch, padding, mask, attention
    problem: str
    remedy: str


def check_model(
    model: MaskedModel, *, length: int = 12, longer: int = 8, attention: bool = False, seed: int = 0
) -> list[Finding]:
    """Everything found wrong with ``model``, in the order in which to mend it; empty where nothing is.

    Where the model can't be called, or what it returns makes no sense, later checks are left out. It is best checked in
    float32: from bfloat16 only differences above a twentieth of the largest number count.

    Args:
        length: of the sequences of random values that are tried, at least 4.
        longer: how much longer the sequence is beside which the others are padded; 0 for a model that reads sequences
            of one length only, without padding.
        attention: whether attention maps are tried too.
        seed: of the values.

    Raises:
        ValueError: for numbers out of range.
    """
    if length < 4 or longer < 0:
        raise ValueError(f"length must be at least 4 and longer at least 0, not {length} and {longer}")
    found = list(_attributes(model))
    if BLOCKING & {finding.check for finding in found}:
        return found
    mask, generator = mask_token(model), torch.Generator().manual_seed(seed)
    other, mixed = torch.randint(mask, (2, 3, length + longer), generator=generator).to(model.device)
    mixed[:, 1::3] = mask
    mixed[1, : length - 1] = mask  # hardly any context
    other, masked = other[:, :length], mixed[:, :length].clone()
    mixed[:2, length:] = pad_token(model)  # the third sequence goes on
    for step in [_calls, _repeats, _batches, _tokens, *[_attention] * attention]:
        found += step(model, other, masked, mixed)
        if BLOCKING & {finding.check for finding in found}:
            break
    return found


def _attributes(model: MaskedModel) -> Iterator[Finding]:
    values = getattr(model, "values", None)
    if not isinstance(values, Sequence) or not len(values) or not all(isinstance(v, str) and v for v in values):
        yield Finding("attributes", "model.values names no values", "set it to their letters in token order: 'ACGT'")
        return
    for name, kind, what in ("hidden_size", int, "width of hidden states"), ("device", torch.device, "weights' device"):
        if not isinstance(getattr(model, name, None), kind):
            yield Finding("attributes", f"model.{name} is no {kind.__name__}", f"set it to the {what}")
    if len(set(values)) < len(values):
        yield Finding("values", "model.values names a value twice", "name each once, in token order")
    for value in values:
        if re.fullmatch(r"\[.+\]|<.+>|\0", value):
            yield Finding("values", f"the value {value!r} looks like a special token", "leave such tokens out")


def _calls(model: MaskedModel, other: Tensor, masked: Tensor, mixed: Tensor) -> Iterator[Finding]:
    """Whether it takes all tokens and returns numbers of the right shape and type, without gradients."""
    count = len(model.values)
    for tokens, what, remedy in [
        (other, "values", f"tokens 0 to {count - 1} are the values, in the order of model.values"),
        (masked, "MASK", f"token {count} is MASK: turn it into the network's own mask"),
        (mixed, "padding", f"token {count + 1} is padding: turn it into the network's own"),
    ]:
        given = tokens.clone()
        try:
            with torch.enable_grad():
                output = model(given)
        except Exception as error:  # whatever a network raises
            yield Finding("call", f"with {what} among the tokens it raises {type(error).__name__}: {error}", remedy)
            return
        if not given.equal(tokens):
            yield Finding("call", "it changes the tokens that it is given", "work on a copy: tokens.clone()")
            return
        if not isinstance(output, Output):
            yield Finding("shape", f"it returns {type(output).__name__}", "return maskmi.model.Output(logits, hidden)")
            return
    for name, size in {"logits": count, "hidden": model.hidden_size}.items():
        shape, wanted = list(getattr(output, name).shape), [*tokens.shape, size]
        if shape != wanted:
            problem = f"for tokens {list(tokens.shape)} {name} has the shape {shape}, not {wanted}"
            yield Finding("shape", problem, "leave out special tokens, at the ends and among the columns of logits")
            return
    devices = {part.device.type for part in output[:2]}
    if devices != {model.device.type}:
        problem = f"the output lies on {', '.join(devices)}, model.device is {model.device}"
        yield Finding("device", problem, "leave the output on the device of the weights")
        return
    real = tokens != pad_token(model)
    if not torch.isfinite(output.logits[real].amax(-1)).all():
        yield Finding("numbers", "logits are NaN, +inf, or all -inf somewhere", "-inf is for impossible values alone")
    if not torch.isfinite(output.hidden[real]).all():
        yield Finding("numbers", "hidden states are NaN or infinite", "look for overflow, or a softmax over nothing")
    if output.logits.dtype not in PRECISE:
        yield Finding("type", f"logits are {output.logits.dtype}: too coarse for entropies", "compute them in float32")
    if not output.hidden.is_floating_point():
        yield Finding("type", f"hidden states are {output.hidden.dtype}", "return floating-point numbers")
    if any(part.requires_grad for part in output[:2]):
        yield Finding("gradient", "the output carries gradients, which cost memory", "decorate it by @torch.no_grad()")


@torch.no_grad()
def _repeats(model: MaskedModel, other: Tensor, masked: Tensor, mixed: Tensor) -> Iterator[Finding]:
    model(other)
    first = model(masked)
    if not _same(first, model(masked)):
        yield Finding("repeat", "the same call twice gives other numbers", "turn dropout off: network.eval()")
        return
    model((other + 1) % len(model.values))
    if not _same(first, model(masked)):
        problem = "what a masked sequence gives depends on what was evaluated before it: hidden values may leak"
        yield Finding("leak", problem, "keep nothing on the model from one call to the next")


@torch.no_grad()
def _batches(model: MaskedModel, other: Tensor, masked: Tensor, mixed: Tensor) -> Iterator[Finding]:
    """Whether a sequence's output is its own: in a batch, and padded."""
    length, rows = masked.shape[1], range(2)
    together, padded = model(masked), model(mixed)
    alone = [model(masked[row : row + 1]) for row in rows]
    if not all(_same(_part(together, row), _part(alone[row], 0)) for row in rows):
        yield Finding("batch", "a sequence gives other numbers in a batch than alone", "let no layer mix sequences")
    elif not all(_same(_part(padded, row, length), _part(alone[row], 0)) for row in rows):
        remedy = "leave padding out of the attention mask; it stands on the right, after the special token at the end"
        yield Finding("padding", "a sequence gives other numbers when padded beside a longer one", remedy)


@torch.no_grad()
def _tokens(model: MaskedModel, other: Tensor, masked: Tensor, mixed: Tensor) -> Iterator[Finding]:
    """Whether values, MASK and padding are told apart."""
    values, length = model.values[: MOST_VALUES - 1], masked.shape[1]
    tokens = [*range(len(values)), mask_token(model)]
    versions = masked[:1].repeat(len(tokens), 1)
    versions[:, 0] = versions.new_tensor(tokens)
    output = model(versions)
    pairs = [(a, b) for b in range(len(tokens)) for a in range(b)]
    alike = [(a, b) for a, b in pairs if _same(_part(output, a), _part(output, b), ALIKE)]
    if alike == pairs:
        yield Finding("values", "it gives the same whatever stands at a position", "pass the tokens on to the network")
        return
    for a, b in alike:
        if b == len(values):
            yield Finding("mask", f"MASK is read as the value {values[a]!r} is", "turn it into the network's own mask")
        else:
            yield Finding("values", f"{values[a]!r} and {values[b]!r} are read alike", "give each value its own id")
    if mixed.shape[1] > length:
        versions = masked[:1].repeat(2, 1)
        versions[:, -1] = versions.new_tensor([mask_token(model), pad_token(model)])
        output = model(versions)
        if _same(_part(output, 0, length - 1), _part(output, 1, length - 1), ALIKE):
            yield Finding("mask", "MASK is read as padding is", "give it its own id and keep it in the attention mask")


@torch.no_grad()
def _attention(model: MaskedModel, other: Tensor, masked: Tensor, mixed: Tensor) -> Iterator[Finding]:
    try:
        maps = model(mixed, attention=True).attention
    except Exception as error:  # whatever a network raises
        problem = f"with attention=True it raises {type(error).__name__}: {error}"
        yield Finding("attention", problem, "take the argument, and return maps as the third part of Output")
        return
    (count, length), shape = mixed.shape, None if maps is None else list(maps.shape)
    if shape is None or len(shape) != 5 or [shape[0], *shape[3:]] != [count, length, length]:
        problem = f"attention is {shape or 'missing'} for tokens {list(mixed.shape)}"
        yield Finding("attention", problem, "return [B, layers, heads, L, L], without special tokens at the ends")
        return
    maps, real = maps.float(), mixed != pad_token(model)
    if not ((maps >= 0).all() and (maps.sum(-1) < 1.01).all()):
        yield Finding("attention", "attention is no result of a softmax", "return the weights after the softmax")
    elif (maps * (real[:, :, None] & ~real[:, None, :])[:, None, None]).any():
        yield Finding("attention", "tokens attend to padding", "leave padding out of the attention mask")


def _part(output: Output, row: int, length: int | None = None) -> Output:
    """Logits and hidden states of one sequence, of its first ``length`` tokens."""
    return Output(*(part[row, :length] for part in output[:2]))


def _same(a: Output, b: Output, share: float | None = None) -> bool:
    """Whether logits and hidden states agree up to a share of the largest number."""
    share = share or (EQUAL if a.hidden.dtype in PRECISE else ROUNDED)
    for x, y in zip(a[:2], b[:2], strict=True):
        x, y = x.double(), y.double()
        largest = x[x.isfinite()].abs().amax()
        if not torch.isclose(x, y, rtol=0, atol=share * largest.item(), equal_nan=True).all():
            return False
    return True
