"""Any masked language model of Hugging Face's ``transformers`` as a masked model of this library.

For what ``AutoModelForMaskedLM`` loads and for networks built from a configuration: BERT and its relatives, with
absolute, relative or rotary positions. Its vocabulary is restricted to the tokens that are to be generated.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskmi.model import Output

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class HuggingFaceModel(nn.Module):
    """Maps tokens [B, L] to logits over the chosen values, last hidden states and attention. For inference only.

    With ``V`` values: tokens 0 to V-1 are ``values``, V is MASK, V+1 padding (only after the end of a sequence), from
    V+2 on the tokens of ``extra``, which may be seen and are never generated. The network gets the special tokens at
    both ends, an attention mask, and padding on the right; what comes back is without the ends, and zero at padding.

    Args:
        network: switched to evaluation (no dropout); its weights are not copied.
        vocabulary: the network's id of each of its tokens.
        values: the tokens that are generated, as the vocabulary spells them; a string where each is one character.
        mask, padding: what the vocabulary calls these.
        start, end: special tokens before and after each sequence, as the network was trained.
        extra: further tokens that a context may hold.
        max_length: most tokens of a sequence; None: what the table of absolute positions allows, if there is one.

    Raises:
        ValueError: for a token that the vocabulary lacks, that is named twice, or that is special and yet a value.
    """

    def __init__(
        self,
        network: "PreTrainedModel",
        vocabulary: Mapping[str, int],
        values: Sequence[str],
        *,
        mask: str,
        padding: str,
        start: Sequence[str] = (),
        end: Sequence[str] = (),
        extra: Sequence[str] = (),
        max_length: int | None = None,
    ):
        super().__init__()
        if isinstance(start, str) or isinstance(end, str):
            raise ValueError("start and end are sequences of tokens: ['[CLS]'], not '[CLS]'")
        names = [*values, mask, padding, *extra]
        for name in (*names, *start, *end):
            if name not in vocabulary:
                raise ValueError(f"the vocabulary has no token {name!r}; it begins with {', '.join([*vocabulary][:8])}")
        for name in (*values, *extra):
            if name in (mask, padding, *start, *end):
                raise ValueError(f"{name!r} is a special token: values and extra are what sequences are made of")
        ids = [vocabulary[name] for name in names]
        if not len(values) or len(set(ids)) < len(ids):
            raise ValueError(f"values, mask, padding and extra must name different tokens, not {' '.join(names)}")
        self.network = network
        self.values = "".join(values) if all(len(value) == 1 for value in values) else tuple(values)
        self.extra = tuple(extra)
        self.hidden_size = network.config.hidden_size
        self.max_length = max_length
        if max_length is None and (rows := _positions(network)) is not None:
            self.max_length = rows - len(start) - len(end)
        self.start, self.end = ([vocabulary[name] for name in part] for part in (start, end))
        self.register_buffer("ids", torch.tensor(ids, device=network.device), persistent=False)
        self.eval()

    @classmethod
    def from_tokenizer(
        cls, network: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", values: Sequence[str], **options
    ) -> "HuggingFaceModel":
        """The model with the vocabulary, mask, padding and special ends of its tokenizer.

        Args:
            options: ``extra``, ``max_length`` of the class itself.

        Raises:
            ValueError: also where the tokenizer has no mask or padding token, or counts one of the values as special.
        """
        for name in ("mask_token", "pad_token"):
            if getattr(tokenizer, name) is None:
                raise ValueError(f"this tokenizer has no {name}: it is none of a masked language model")
        for value in values:
            if value in tokenizer.all_special_tokens:
                raise ValueError(f"{value!r} is a special token: values are what sequences are made of")
        framed = tokenizer(tokenizer.mask_token)["input_ids"]  # the mask between what stands at both ends
        place = framed.index(tokenizer.mask_token_id)
        start, end = (tokenizer.convert_ids_to_tokens(part) for part in (framed[:place], framed[place + 1 :]))
        frame = {"mask": tokenizer.mask_token, "padding": tokenizer.pad_token, "start": start, "end": end}
        return cls(network, tokenizer.get_vocab(), values, **frame, **options)

    @property
    def device(self) -> torch.device:
        return self.ids.device

    @torch.no_grad()
    def forward(self, tokens: Tensor, attention: bool = False) -> Output:
        """Logits [B, L, V] in float32, hidden states [B, L, D] and, if asked for, attention [B, layers, heads, L, L].

        Hidden states and attention have the weights' type. Attention is each layer's softmax without the special
        tokens at both ends, so a row's sum falls short of one by what went to these.

        Raises:
            ValueError: if ``tokens`` are not integers [B, L] of this model, are too long, or have padding before
                another token; or where the network returns no attention.
        """
        ids, real = self._framed(tokens)
        found = self.network(ids, attention_mask=real.long(), output_hidden_states=True, output_attentions=attention)
        inner = slice(len(self.start), len(self.start) + tokens.shape[1])
        padded = tokens == len(self.values) + 1
        chosen = found.logits[:, inner].index_select(-1, self.ids[: len(self.values)]).float()
        logits, hidden = (x.masked_fill(padded[..., None], 0) for x in (chosen, found.hidden_states[-1][:, inner]))
        if not attention:
            return Output(logits, hidden)
        if not found.attentions or found.attentions[0] is None:
            raise ValueError("this network returns no attention: load it with attn_implementation='eager'")
        maps = torch.stack([layer[:, :, inner, inner] for layer in found.attentions], 1)
        either = padded[:, :, None] | padded[:, None, :]
        return Output(logits, hidden, maps.masked_fill(either[:, None, None], 0))

    def _framed(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The network's ids [B, W] of ``tokens`` with both special ends, and which of them are no padding."""
        if tokens.ndim != 2 or tokens.is_floating_point() or tokens.dtype == torch.bool:
            raise ValueError(f"tokens must be integers [B, L], not {tokens.dtype} {list(tokens.shape)}")
        if ((tokens < 0) | (tokens >= len(self.ids))).any():
            raise ValueError(f"tokens of this model lie in 0…{len(self.ids) - 1}: some don't")
        if self.max_length is not None and tokens.shape[1] > self.max_length:
            raise ValueError(f"this network reads at most {self.max_length} tokens, not {tokens.shape[1]}")
        real = tokens != len(self.values) + 1
        if (real[:, 1:] & ~real[:, :-1]).any():
            raise ValueError("padding stands before a token: it may only follow the end of a sequence")
        before, length = len(self.start), real.sum(1, keepdim=True)
        ids = F.pad(self.ids[tokens.long()], (before, len(self.end)), value=int(self.ids[len(self.values) + 1]))
        ids[:, :before] = ids.new_tensor(self.start)
        for place, special in enumerate(self.end):
            ids.scatter_(1, length + before + place, special)
        return ids, torch.arange(ids.shape[1], device=ids.device) < length + before + len(self.end)


def _positions(network: nn.Module) -> int | None:
    """Number of absolute positions that a network has a vector for; None where it has no such table."""
    for name, module in network.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            # RoBERTa and its kin count from the number after that of padding.
            return module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
    return None
