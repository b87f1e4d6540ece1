"""The pair head: from a frozen model's last hidden states to the MI of every pair of masked positions, in one pass.

Source: arXiv 2605.20187, the estimator. The paper gives its size (99,969 parameters on the Sudoku model) and its loss,
not its layers; these are our choice.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskmi.parallel import threaded_map

PAIR_WIDTH = 128
CHUNK = 2048  # pairs evaluated at a time without gradients: their features stay in cache
ROWS = 32  # work comes in multiples of this: a vector unit treats what is left over apart, and rounds it otherwise


class PairHead(nn.Module):
    """``LayerNorm → Linear → GELU`` at each position, then an MLP on what two positions share.

    A pair is described by ``a_i + a_j``, ``a_i · a_j`` and ``flags`` of their relation, all symmetric, so the matrix is
    symmetric too. The first layer is linear in the sum, which is why that half of it is computed once a position.

    Args:
        hidden_size: width D of the hidden states.
        relations: float or bool [L, L, flags], what is known of two positions without looking (same row, column, box),
            or a function from a length to that, for sequences of many lengths.
        width: of the position features and the MLP.
    """

    def __init__(self, hidden_size: int, relations: Tensor | Callable[[int], Tensor], width: int = PAIR_WIDTH):
        super().__init__()
        self._relations = relations
        flags = self.relations(2).shape[-1] if callable(relations) else relations.shape[-1]
        self.norm = nn.LayerNorm(hidden_size)
        self.position = nn.Linear(hidden_size, width)
        self.pair = nn.Linear(2 * width + flags, width)
        self.mix = nn.Linear(width, width)
        self.out = nn.Linear(width, 1)
        nn.init.constant_(self.out.bias, -2.0)  # most pairs are nearly independent: start at 0.016, not at 0.48

    def relations(self, length: int) -> Tensor:
        return self._relations(length) if callable(self._relations) else self._relations

    def pairs(
        self, hidden: Tensor, masked: Tensor, asked: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        """Square roots of the predicted values [P], at the P pairs ``i < j`` of masked positions ``(b, i, j)``.

        ``asked``, bool [B, L, L], leaves out all other pairs.

        Computed in the weights' own type with gradients, else in that of ``hidden``: on a processor with bfloat16
        products that takes under half the time, and rounds a row alike in every batch.
        """
        dtype = self.position.weight.dtype if torch.is_grad_enabled() else hidden.dtype
        wanted = masked[:, :, None] & masked[:, None, :]
        wanted = wanted if asked is None else wanted & asked
        sequence, first, second = wanted.triu(1).nonzero(as_tuple=True)
        flags = self.relations(masked.shape[1]).flatten(0, 1)

        def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
            return F.linear(x, weight.to(dtype), None if bias is None else bias.to(dtype))

        # At each masked position: what it brings to all its pairs. Index -> row among those.
        rows = masked.flatten().nonzero().squeeze(1)
        row_of = masked.flatten().cumsum(0) - 1
        x = hidden.flatten(0, 1).index_select(0, _filled(rows)).to(dtype)
        norm = self.norm
        x = F.layer_norm(x, norm.normalized_shape, norm.weight.to(dtype), norm.bias.to(dtype), norm.eps)
        position = F.gelu(linear(x, self.position.weight, self.position.bias))
        width = self.position.out_features
        by_sum, by_product, by_flags = self.pair.weight.split([width, width, self.pair.in_features - 2 * width], dim=1)
        summed = linear(position, by_sum)

        def chunk(part: slice) -> Tensor:
            start = sequence[part] * masked.shape[1]
            i = _filled(row_of.index_select(0, start + first[part]))
            j = _filled(row_of.index_select(0, start + second[part]))
            between = _filled(first[part] * masked.shape[1] + second[part]).to(flags.device)
            between = flags.index_select(0, between).to(hidden.device, dtype)
            x = linear(position.index_select(0, i) * position.index_select(0, j), by_product, self.pair.bias)
            x += linear(between, by_flags)
            x += summed.index_select(0, i)
            x += summed.index_select(0, j)
            x = F.gelu(linear(F.gelu(x), self.mix.weight, self.mix.bias))
            return F.softplus(linear(x, self.out.weight, self.out.bias).squeeze(-1).float())[: len(start)]

        size = max(1, len(sequence)) if torch.is_grad_enabled() else CHUNK
        parts = [chunk(slice(start, start + size)) for start in range(0, len(sequence), size)]
        return torch.cat(parts) if parts else hidden.new_zeros(0).float(), (sequence, first, second)

    def forward(self, hidden: Tensor, masked: Tensor) -> Tensor:
        """Predicted values [B, L, L] in the unit of the labels (nats for MI): symmetric, not negative, zero elsewhere.

        Args:
            hidden: last hidden states [B, L, D].
            masked: bool [B, L].
        """
        root, (sequence, first, second) = self.pairs(hidden, masked)
        matrix = torch.zeros(*masked.shape, masked.shape[1], device=hidden.device)
        value = root.square()
        matrix[sequence, first, second] = value
        matrix[sequence, second, first] = value
        return matrix


def _filled(index: Tensor) -> Tensor:
    """``index``, its first entry repeated up to a multiple of ``ROWS``: a row is rounded alike in every batch."""
    return torch.cat([index, index[:1].expand(-len(index) % ROWS)])


def predict(head: Callable[[Tensor, Tensor], Tensor], hidden: Tensor, masked: Tensor, piece: int = 16) -> Tensor:
    """The head's matrices [N, L, L] for hidden states [N, L, D] and masked [N, L], on all processor threads."""
    if hidden.device.type != "cpu" or len(hidden) <= piece:
        with torch.no_grad():
            return head(hidden, masked)
    pieces = list(zip(hidden.split(piece), masked.split(piece), strict=True))
    return torch.cat(threaded_map(lambda part: head(*part), pieces))
