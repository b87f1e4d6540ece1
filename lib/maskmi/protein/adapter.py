"""What the adapters of protein language models share: the alphabet, special tokens at both ends, attention, padding."""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskmi.model import MaskedModel, Output

AMINO_ACIDS = "ACDEFGHIKLMNPQRSTVWY"  # the values, in token order
MASK, PADDING = len(AMINO_ACIDS), len(AMINO_ACIDS) + 1
AMBIGUOUS = "XBZUOJ"  # letters of sequence files beyond the twenty: visible context where a vocabulary has them

# Networks see a multiple of this many tokens: at others, bfloat16 attention on a CPU takes two to three times as long.
WIDTH_STEP = 16
# On a CPU bfloat16 products of fewer rows (sequences times tokens) are rounded otherwise, depending on their number.
FEWEST_ROWS = 512


class ByLength:
    """A protein model that evaluates sequences of like length together, each group cut to its own width.

    So short sequences don't pay for a long one beside them, and a sequence's output is the same whatever it is beside,
    to the last bit and in bfloat16 too (there, attention over other numbers of keys changes probabilities by some
    hundredths). For inference, around the model or around :class:`maskmi.parallel.InThreads` of it, whose threads
    then share each group.
    """

    def __init__(self, model: MaskedModel):
        self.model = model
        self.values, self.hidden_size = model.values, model.hidden_size

    @property
    def device(self) -> torch.device:
        return self.model.device

    @torch.no_grad()
    def __call__(self, tokens: Tensor, attention: bool = False) -> Output:
        """As the model itself; see :class:`maskmi.model.MaskedModel`."""
        width = network_width(lengths(tokens))
        if not len(tokens):
            return self.model(tokens, attention)
        groups, parts = [], []
        for size in width.unique().tolist():
            rows = (width == size).nonzero().squeeze(1)
            group = tokens[rows, : size - 2]
            filler = group[-1:].expand(max(0, -(-FEWEST_ROWS // size) - len(group)), -1)
            output = self.model(torch.cat([group, filler]), attention)
            logits, hidden, maps = (None if part is None else part[: len(rows)] for part in output)
            missing = tokens.shape[1] - group.shape[1]
            maps = None if maps is None else F.pad(maps, (0, missing, 0, missing))
            groups.append(rows)
            parts.append((F.pad(logits, (0, 0, 0, missing)), F.pad(hidden, (0, 0, 0, missing)), maps))
        back = torch.cat(groups).argsort()
        return Output(*(None if column[0] is None else torch.cat(column)[back] for column in zip(*parts, strict=True)))


def token_ids(vocabulary: Mapping[str, int], mask: str, padding: str) -> tuple[str, Tensor]:
    """The ambiguous letters that a network's vocabulary has, in its order, and its id for each token of the adapter.

    Args:
        mask, padding: what the vocabulary calls these.
    """
    extra = "".join(sorted(set(AMBIGUOUS) & vocabulary.keys(), key=vocabulary.get))
    return extra, torch.tensor([vocabulary[letter] for letter in [*AMINO_ACIDS, mask, padding, *extra]])


def encode(sequences: Sequence[str], extra: str = "") -> Tensor:
    """Tokens [N, L] of sequences, padded to the longest.

    Args:
        extra: the letters that a model reads beyond the amino acids, ``model.extra``.

    Raises:
        ValueError: for any other letter; names the sequence's number and the position, both counted from 1.
    """
    token = {letter: i for i, letter in enumerate(AMINO_ACIDS)}
    token |= {letter: PADDING + 1 + i for i, letter in enumerate(extra)}
    rows = []
    for number, sequence in enumerate(sequences, 1):
        wrong = next((i for i, letter in enumerate(sequence, 1) if letter not in token), None)
        if wrong:
            raise ValueError(
                f"sequence {number} has {sequence[wrong - 1]!r} at position {wrong}: no letter of this model"
            )
        rows.append(torch.tensor([token[letter] for letter in sequence], dtype=torch.int64))
    return (
        nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PADDING) if rows else torch.zeros(0, 0).long()
    )


def lengths(tokens: Tensor) -> Tensor:
    """Number of residues [B] of ``tokens`` [B, L], which are integers with padding after the residues only.

    Raises:
        ValueError: if they aren't.
    """
    if tokens.ndim != 2 or tokens.is_floating_point() or tokens.dtype == torch.bool:
        raise ValueError(f"tokens must be integers [B, L], not {tokens.dtype} {list(tokens.shape)}")
    padded = tokens == PADDING
    if (padded[:, :-1] & ~padded[:, 1:]).any():
        raise ValueError("padding stands before a residue: it may only follow the end of a sequence")
    return (~padded).sum(1)


def with_ends(tokens: Tensor, ids: Tensor, start: int, end: int, padding: int) -> tuple[Tensor, Tensor]:
    """A network's token ids [B, W] with both special ends, W a multiple of ``WIDTH_STEP``, and which are no padding.

    Args:
        tokens: [B, L] in the convention of :mod:`maskmi.model`.
        ids: the network's id for each token.

    Raises:
        ValueError: if ``tokens`` are not integers [B, L] in range, or padding stands before a residue.
    """
    length = lengths(tokens)
    if ((tokens < 0) | (tokens >= len(ids))).any():
        raise ValueError(f"tokens of this model lie in 0…{len(ids) - 1}: some don't")
    missing = int(network_width(tokens.shape[1])) - tokens.shape[1] - 1
    framed = F.pad(ids[tokens.long()], (1, missing), value=padding)
    framed[:, 0] = start
    framed.scatter_(1, length[:, None] + 1, end)
    return framed, framed != padding


def network_width(length: Tensor | int) -> Tensor | int:
    """Tokens that a network sees of this many residues."""
    return -(-(length + 2) // WIDTH_STEP) * WIDTH_STEP


def attend(q: Tensor, k: Tensor, v: Tensor, real: Tensor, keep: bool) -> tuple[Tensor, Tensor | None]:
    """Scaled dot-product attention of [B, heads, W, d] over the ``real`` keys [B, W]: mixed values [B, W, heads · d].

    With ``keep`` also the weights [B, heads, W, W].
    """
    mask = real[:, None, None, :]
    if keep or (torch.is_grad_enabled() and q.device.type == "cpu"):  # the fused kernel is slow backwards on a CPU
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
        weights = torch.softmax(scores.masked_fill(~mask, -torch.inf), -1)
        mixed = weights @ v
    else:
        weights, mixed = None, F.scaled_dot_product_attention(q, k, v, mask)
    return mixed.transpose(1, 2).flatten(2), weights if keep else None


def value_logits(features: Tensor, last: nn.Linear, ids: Tensor) -> Tensor:
    """Logits [B, L, values] by the rows ``ids`` of the last layer, in float32: bfloat16 has 3 digits."""
    return F.linear(features.float(), last.weight[ids].float(), last.bias[ids].float())


def without_padding(logits: Tensor, hidden: Tensor, maps: Sequence[Tensor | None], tokens: Tensor) -> Output:
    """Output for ``tokens`` [B, L] of what a network says of W tokens [B, W, …]: residues only, all zero at padding.

    Args:
        maps: attention [B, heads, W, W] of each layer, or None for each.
    """
    padded, residues = tokens == PADDING, slice(1, tokens.shape[1] + 1)
    logits, hidden = (part[:, residues].masked_fill(padded[..., None], 0) for part in (logits, hidden))
    if not maps or maps[0] is None:
        return Output(logits, hidden)
    attention = torch.stack([weights[:, :, residues, residues] for weights in maps], 1)
    either = padded[:, :, None] | padded[:, None, :]
    return Output(logits, hidden, attention.masked_fill(either[:, None, None], 0))


def complete(tokens: Tensor, mask: int = MASK, pad: int = PADDING) -> Tensor:
    """``tokens`` as int64 on the processor, after a check that they are sequences without MASK.

    Raises:
        ValueError: for other tokens.
    """
    if tokens.ndim != 2 or tokens.is_floating_point() or tokens.dtype == torch.bool or not tokens.numel():
        raise ValueError(f"sequences must be integer tokens [N, L], not {tokens.dtype} {list(tokens.shape)}")
    tokens = tokens.long().cpu()
    if (tokens == mask).any() or (tokens < 0).any():
        raise ValueError("a sequence holds MASK or a negative token: give complete sequences")
    if (tokens[:, 0] == pad).any() or ((tokens[:, :-1] == pad) & (tokens[:, 1:] != pad)).any():
        raise ValueError("a sequence is empty or has padding before a residue: padding may only follow the end")
    return tokens
