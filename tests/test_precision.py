import pytest
import torch

from maskmi.precision import find_dtype


@pytest.mark.parametrize(
    ("units", "expected"),
    [
        ({"amx_bf16": True}, torch.bfloat16),
        ({"avx512_bf16": True, "amx_bf16": False}, torch.bfloat16),
        ({"avx512_f": True, "amx_bf16": False, "avx512_bf16": False}, torch.float32),
        ({}, torch.float32),
    ],
)
def test_auto_takes_bfloat16_where_the_processor_multiplies_in_it(monkeypatch, units, expected):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: units)
    assert find_dtype() == find_dtype("auto", "cpu") == expected
    assert find_dtype("auto", "cuda") == torch.bfloat16


def test_a_named_format_is_taken_as_it_is():
    assert find_dtype("float32", "cuda") == find_dtype(torch.float32) == torch.float32
    assert find_dtype("bfloat16") == torch.bfloat16
    with pytest.raises(ValueError, match="dtype must be auto, bfloat16 or float32, not 'half'"):
        find_dtype("half")
