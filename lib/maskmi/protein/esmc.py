"""ESM-C as a masked model: the published 300M weights, or the same architecture at a size that trains on a CPU.

The layers are those of the package ``esm`` (class ``ESMC``). Its own ``forward`` is not called, since it returns no
attention, keeps the rotary tables in each layer, where two threads spoil them for one another, and rounds the rotary
frequencies when a model is turned to bfloat16. Here the tables are made once a call, in float32.
"""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from maskmi.artefacts import load_checkpoint, sha256
from maskmi.model import Output
from maskmi.protein.adapter import AMINO_ACIDS, attend, token_ids, value_logits, with_ends, without_padding

if TYPE_CHECKING:
    from esm.models.esmc import ESMC

REPOSITORY = "EvolutionaryScale/esmc-300m-2024-12"
FILE = "esmc_300m_2024_12_v0.pth"
FOLDER = "data/weights"  # where the repository keeps it
SHA256 = "323dff9fbf3fef297a74f4f18b6528e6f2e599b0bcf72b6927516804015becea"  # of the published file
PATIENCE = 5.0  # seconds that the hub has to answer


class Layout(NamedTuple):
    """What the size of an ESM-C follows from."""

    width: int
    heads: int
    layers: int


ESMC_300M = Layout(960, 15, 30)  # 332,997,184 parameters
ESMC_SMALL = Layout(256, 4, 8)  # 6,927,424 parameters; heads as wide as in ESM-C


class ESMCModel(nn.Module):
    """Maps tokens [B, L] to logits over the amino acids, hidden states and attention. Differentiable.

    Tokens: 0–19 are ``values``, 20 is MASK, 21 padding, from 22 on the letters of ``extra``. Weights are ``.esmc``.
    """

    values = AMINO_ACIDS

    def __init__(self, esmc: "ESMC"):
        super().__init__()
        self.esmc = esmc
        self.hidden_size = esmc.embed.embedding_dim
        tokenizer = esmc.tokenizer
        self.extra, ids = token_ids(tokenizer.get_vocab(), tokenizer.mask_token, tokenizer.pad_token)
        self.ends = (tokenizer.cls_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id)
        self.register_buffer("ids", ids, persistent=False)

    @property
    def device(self) -> torch.device:
        return self.ids.device

    def forward(self, tokens: Tensor, attention: bool = False) -> Output:
        """Logits [B, L, 20], hidden states after the last norm [B, L, D], and attention [B, layers, heads, L, L].

        Logits are float32, the others of the weights' type; all are zero at padding. Attention is each layer's softmax
        without the special tokens at both ends, so a row's sum falls short of one by what went to these.

        Raises:
            ValueError: if ``tokens`` are not integers [B, L] of this model, or padding stands before a residue.
        """
        ids, real = with_ends(tokens, self.ids, *self.ends)
        x = self.esmc.embed(ids)
        rotary = self.esmc.transformer.blocks[0].attn.rotary
        frequencies = 1 / rotary.base ** (torch.arange(0, rotary.dim, 2, device=x.device).float() / rotary.dim)
        angles = torch.outer(torch.arange(ids.shape[1], device=x.device).float(), frequencies)[:, None]
        cos = torch.cat([angles.cos()] * 2, -1).to(x.dtype)
        sin = torch.cat([-angles.sin(), angles.sin()], -1).to(x.dtype)
        maps = []
        for block in self.esmc.transformer.blocks:
            layer = block.attn
            q, k, v = layer.layernorm_qkv(x).chunk(3, -1)
            heads = (layer.n_heads, layer.d_head)
            q = _rotate(layer.q_ln(q).to(v.dtype).unflatten(-1, heads), cos, sin)
            k = _rotate(layer.k_ln(k).to(v.dtype).unflatten(-1, heads), cos, sin)
            mixed, weights = attend(*(y.transpose(1, 2) for y in (q, k, v.unflatten(-1, heads))), real, attention)
            maps.append(weights)
            x = torch.add(x, layer.out_proj(mixed), alpha=1 / block.scaling_factor)
            x = torch.add(x, block.ffn(x), alpha=1 / block.scaling_factor)
        hidden = self.esmc.transformer.norm(x)
        head = self.esmc.sequence_head
        logits = value_logits(head[:-1](hidden), head[-1], self.ids[: len(AMINO_ACIDS)])
        return without_padding(logits, hidden, maps, tokens)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of ``x`` [B, W, heads, d]; ``cos``, and ``sin`` with its first half negated, are [W, 1, d]."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([second, first], -1) * sin


# Weights.


def new_esmc(layout: Layout = ESMC_SMALL) -> ESMCModel:
    """An untrained model, from torch's global random state. Each layer starts as the identity."""
    model = ESMCModel(_build(layout, "cpu"))
    for block in model.esmc.transformer.blocks:
        nn.init.zeros_(block.attn.out_proj.weight)
        nn.init.zeros_(block.ffn[-1].weight)
    return model


def load_esmc_small(
    path: Path | str,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    expected_sha256: str | None = None,
    layout: Layout = ESMC_SMALL,
) -> ESMCModel:
    """The model whose ``.esmc.state_dict()`` was written by :func:`maskmi.artefacts.save_checkpoint`; for inference.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when it was cut or altered, or holds other tensors than ``layout`` has.
    """
    tensors, _ = load_checkpoint(path, expected_sha256)
    return _assemble(tensors, path, layout, device, dtype)


def load_esmc_300m(
    weights: Path | str | None = None,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    expected_sha256: str | None = SHA256,
    layout: Layout = ESMC_300M,
) -> ESMCModel:
    """ESM-C 300M for inference, in float32 or bfloat16.

    Args:
        weights: the published ``.pth`` file or a folder that holds it; None: the hub's cache, else a download.
        expected_sha256: of the file; None accepts any that fits ``layout``.

    Raises:
        FileNotFoundError: when there are no weights; says where a local file may be named. Takes seconds.
        ValueError: when the file was cut or altered, or holds other tensors; names it, its size and checksum.
        ImportError: when the package ``esm`` is missing.
    """
    path = find_esmc_300m(weights)
    digest = sha256(path)
    known = f"{path.stat().st_size:,} bytes, SHA-256 {digest}"
    if expected_sha256 and digest != expected_sha256.lower():
        raise ValueError(f"checkpoint {path} was cut or altered: it has {known}, expected {expected_sha256}")
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever an unpickler makes of a damaged file
        raise ValueError(f"checkpoint {path} can't be read as weights of PyTorch: it has {known}") from error
    return _assemble(tensors, path, layout, device, dtype)


def find_esmc_300m(weights: Path | str | None = None) -> Path:
    """The file of ESM-C 300M: the one named, the one in the hub's cache, or one fetched by the loader of ``esm``.

    Raises:
        FileNotFoundError: as ``load_esmc_300m``.
    """
    local = f"the path of a local {FILE}, or of a folder that holds it, can be given as `weights`"
    if weights is not None:
        path = Path(weights).expanduser()
        found = [path] if path.is_file() else [p for f in ("", FOLDER) for p in [path / f / FILE] if p.is_file()]
        found += sorted(path.glob(f"snapshots/*/{FOLDER}/{FILE}"))  # a folder of the hub's cache
        if not found:
            what = f"holds no {FILE}" if path.is_dir() else "doesn't exist"
            raise FileNotFoundError(f"the weights of ESM-C 300M are missing, for {path} {what}: {local}")
        return found[0]

    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(REPOSITORY, f"{FOLDER}/{FILE}")
    if isinstance(cached, str):
        return Path(cached)
    reason = _why_no_answer()
    if reason is None:
        from esm.utils.constants.esm3 import data_root

        try:
            return find_esmc_300m(data_root("esmc-300"))
        except OSError as error:  # every error of the hub is one
            reason = f"fetching them failed with {type(error).__name__}"
    raise FileNotFoundError(
        f"the weights of ESM-C 300M ({REPOSITORY}) are missing: they are not in the hub's cache and {reason}; {local}"
    )


def _why_no_answer() -> str | None:
    """Why the hub can't be asked for the weights, or None. The hub's client alone may wait for minutes."""
    from huggingface_hub import HfApi, constants

    if constants.HF_HUB_OFFLINE:
        return "the hub is switched off (HF_HUB_OFFLINE)"
    reasons: list[str | None] = []

    def ask() -> None:
        try:
            HfApi().model_info(REPOSITORY, timeout=PATIENCE)
            reasons.append(None)
        except Exception as error:
            reasons.append(f"asking the hub failed with {type(error).__name__}")  # no network, or no such repository

    asking = threading.Thread(target=ask, daemon=True)  # looking up a name knows no time limit
    asking.start()
    asking.join(PATIENCE + 1)
    return reasons[0] if reasons else f"the hub gave no answer in {PATIENCE:.0f} seconds"


def _build(layout: Layout, device: str) -> "ESMC":
    try:
        from esm.models.esmc import ESMC
        from esm.tokenization import get_esmc_model_tokenizers
    except ImportError as error:
        raise ImportError(f"ESM-C needs the package `esm` 3.2.1 (`fair-esm` is another one): {error}") from error
    with torch.device(device):
        return ESMC(*layout, tokenizer=get_esmc_model_tokenizers(), use_flash_attn=False)


def _assemble(
    tensors: Mapping[str, Tensor], path: Path | str, layout: Layout, device: torch.device | str, dtype: torch.dtype
) -> ESMCModel:
    """A model of these tensors, which are taken over, not copied; ``path`` is for messages."""
    esmc = _build(layout, "meta")
    expected = {name: tuple(tensor.shape) for name, tensor in esmc.state_dict().items()}
    found = {k: tuple(getattr(v, "shape", ())) for k, v in tensors.items()} if isinstance(tensors, Mapping) else {}
    if found != expected:
        wrong = next(name for name in [*expected, *found] if expected.get(name) != found.get(name))
        raise ValueError(
            f"{path} holds no ESM-C of width {layout.width} with {layout.layers} layers: the first difference is "
            f"{wrong}, expected {expected.get(wrong, 'not at all')}, found {found.get(wrong, 'not at all')}"
        )
    esmc.load_state_dict({name: tensor.to(dtype) for name, tensor in tensors.items()}, assign=True)
    for block in esmc.transformer.blocks:
        block.attn.rotary.reset_parameters()  # no part of the weights, so still on the meta device
    return ESMCModel(esmc).to(device).eval()
