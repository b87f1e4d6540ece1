"""AntiBERTy, a BERT over antibody chains (Ruffolo et al. 2021, arXiv 2112.07782), as a masked model.

The package ``antiberty`` carries the weights. Its code isn't run: the files are read by ``transformers``. Its heads for
species, chain and graft are left out.
"""

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from maskmi.artefacts import sha256
from maskmi.model import Output
from maskmi.protein.adapter import AMINO_ACIDS, attend, token_ids, value_logits, with_ends, without_padding

if TYPE_CHECKING:
    from transformers import BertForMaskedLM

FOLDER = "AntiBERTy_md_smooth"
SHA256 = "f1ae33eac8cc8784a7d4be5a600141d2fa7bc7d8d5b3f5324d64a6a63bd0f137"  # of pytorch_model.bin in antiberty 0.1.3


class AntiBERTyModel(nn.Module):
    """Maps tokens [B, L] to logits over the amino acids, hidden states and attention; at most ``max_length`` residues.

    Tokens: 0–19 are ``values``, 20 is MASK, 21 padding, from 22 on the letters of ``extra``, of which there are none.

    Args:
        bert: in the published size, or a smaller one.
        vocabulary: id of each of its tokens.
    """

    values = AMINO_ACIDS

    def __init__(self, bert: "BertForMaskedLM", vocabulary: dict[str, int]):
        super().__init__()
        self.bert = bert
        self.hidden_size = bert.config.hidden_size
        self.max_length = bert.config.max_position_embeddings - 2
        self.extra, ids = token_ids(vocabulary, "[MASK]", "[PAD]")
        self.ends = tuple(vocabulary[token] for token in ("[CLS]", "[SEP]", "[PAD]"))
        self.register_buffer("ids", ids, persistent=False)

    @property
    def device(self) -> torch.device:
        return self.ids.device

    def forward(self, tokens: Tensor, attention: bool = False) -> Output:
        """Logits [B, L, 20], last hidden states [B, L, D] and, if asked for, attention [B, layers, heads, L, L].

        Logits are float32, the others of the weights' type; all are zero at padding. Attention is each layer's softmax
        without the special tokens at both ends, so a row's sum falls short of one by what went to these.

        Raises:
            ValueError: if ``tokens`` are not integers [B, L] of this model, are too long, or have padding before a
                residue.
        """
        if tokens.shape[-1] > self.max_length:
            raise ValueError(f"AntiBERTy reads at most {self.max_length} residues, not {tokens.shape[-1]}")
        ids, real = with_ends(tokens, self.ids, *self.ends)
        x = self.bert.bert.embeddings(ids)
        maps = []
        # Not transformers' own loop: there fused attention returns no weights, and unfused attention is slower.
        for layer in self.bert.bert.encoder.layer:
            inner = layer.attention.self
            q, k, v = (inner.transpose_for_scores(part(x)) for part in (inner.query, inner.key, inner.value))
            mixed, weights = attend(q, k, v, real, attention)
            maps.append(weights)
            x = layer.attention.output(mixed, x)
            x = layer.output(layer.intermediate(x), x)
        head = self.bert.cls.predictions
        logits = value_logits(head.transform(x), head.decoder, self.ids[: len(AMINO_ACIDS)])
        return without_padding(logits, x, maps, tokens)


def load_antiberty(device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> AntiBERTyModel:
    """The published AntiBERTy (25,759,769 parameters) for inference, in float32 or bfloat16.

    Raises:
        ImportError: when the package ``antiberty`` is not installed.
        FileNotFoundError: when it is, but without its weights.
        ValueError: when these were cut or altered.
    """
    folder = find_antiberty()
    weights = folder / FOLDER / "pytorch_model.bin"
    digest = sha256(weights)
    if digest != SHA256:
        size = weights.stat().st_size
        raise ValueError(
            f"checkpoint {weights} was cut or altered: it has {size:,} bytes, SHA-256 {digest}, expected {SHA256}"
        )
    from transformers import BertConfig, BertForMaskedLM, logging

    config = BertConfig.from_dict(json.loads((folder / FOLDER / "config.json").read_text()))
    vocabulary = {token: i for i, token in enumerate((folder / "vocab.txt").read_text().split())}
    tensors = torch.load(weights, map_location="cpu", weights_only=True)
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # it would speak of generating text, whatever the use
    try:
        bert = BertForMaskedLM(config)
    finally:
        logging.set_verbosity(verbosity)
    own = bert.state_dict().keys()  # the rest of the file are the pooler and the heads that are left out
    bert.load_state_dict({name: tensor for name, tensor in tensors.items() if name in own})
    return AntiBERTyModel(bert, vocabulary).to(device, dtype).eval()


def find_antiberty() -> Path:
    """The folder with ``vocab.txt`` and the weights, found without running the package ``antiberty``.

    Raises:
        ImportError: when the package is not installed.
        FileNotFoundError: when it has no weights.
    """
    spec = importlib.util.find_spec("antiberty")
    if spec is None or spec.origin is None:
        raise ImportError("AntiBERTy's weights come with the package `antiberty` 0.1.3, which is not installed")
    folder = Path(spec.origin).parent / "trained_models"
    if not (folder / FOLDER / "pytorch_model.bin").is_file():
        raise FileNotFoundError(f"the package `antiberty` holds no weights in {folder / FOLDER}: install it again")
    return folder
