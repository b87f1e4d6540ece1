"""The number format in which a network runs fastest."""

import torch

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def find_dtype(name: str | torch.dtype = "auto", device: torch.device | str = "cpu") -> torch.dtype:
    """The format called ``name``; ``auto`` is bfloat16 where ``device`` multiplies in it, else float32.

    Processors without such units emulate bfloat16, four times slower than they do float32. Weights are stored in
    bfloat16, so both formats run the same network; their probabilities differ by rounding.

    Raises:
        ValueError: for another name.
    """
    if isinstance(name, torch.dtype):
        return name
    if name == "auto":
        fast = torch.cpu.get_capabilities()
        native = (
            any(fast.get(unit) for unit in ("amx_bf16", "avx512_bf16", "bf16")) or torch.device(device).type != "cpu"
        )
        return torch.bfloat16 if native else torch.float32
    if name not in DTYPES:
        raise ValueError(f"dtype must be auto, {' or '.join(DTYPES)}, not {name!r}")
    return DTYPES[name]
