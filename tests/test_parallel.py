"""Batches in pieces on worker threads: the numbers of the bare model, its options and its errors."""

import pytest
import torch

from maskmi import parallel
from maskmi.model import Output
from maskmi.parallel import SMALLEST_PIECE, InThreads, threaded_map
from maskmi.sudoku.mdm import SudokuMDM

VALUES = 3


class Recording:
    """A model that notes the size of each call, whether gradients were on, and on how many threads it ran."""

    values, hidden_size, device = "123", 2, torch.device("cpu")

    def __init__(self):
        self.sizes, self.gradients, self.threads = [], [], []

    def __call__(self, tokens, attention=False):
        if (tokens > VALUES).any():
            raise ValueError("a token that isn't one")
        self.sizes.append(len(tokens))
        self.gradients.append(torch.is_grad_enabled())
        self.threads.append(torch.get_num_threads())
        logits = tokens[..., None] * torch.tensor([1.0, 10.0, 100.0])
        maps = tokens[:, None, None, :].float() if attention else None
        return Output(logits, tokens[..., None].expand(-1, -1, 2).float(), maps)


@pytest.fixture
def two_workers(monkeypatch):
    """Two workers, whatever the machine has, so that pieces are the same everywhere."""
    monkeypatch.setattr(parallel, "WORKERS", 2)
    monkeypatch.setattr(parallel, "_pool", None)
    yield
    if parallel._pool is not None:
        parallel._pool.shutdown()


def sudoku_model(dtype, confined_heads=0):
    torch.manual_seed(0)
    model = SudokuMDM(confined_heads)
    for layer in model.layers:  # zero at the start: each layer would be the identity, and nothing could go wrong
        for part in (layer.out, layer.down):
            torch.nn.init.normal_(part.weight, std=0.05)
    return model.to(dtype).eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_same_bits_as_the_bare_model(dtype, two_workers):
    model = sudoku_model(dtype)
    threaded = InThreads(model)
    tokens = torch.randint(0, 10, (100, 81), generator=torch.Generator().manual_seed(1))
    for count in (8, 33, 64, 100):
        with torch.no_grad():
            bare = model(tokens[:count])
        mine = threaded(tokens[:count])
        assert torch.equal(mine.logits, bare.logits), count
        assert torch.equal(mine.hidden, bare.hidden), count
        assert mine.attention is None
    assert bare.logits.std() > 0.1  # not all alike
    assert bare.hidden.dtype == dtype


def test_attention_is_passed_through_with_the_same_bits(two_workers):
    model = sudoku_model(torch.float32, confined_heads=2)
    tokens = torch.randint(0, 10, (20, 81), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        bare = model(tokens, attention=True)
    mine = InThreads(model, piece=8)(tokens, attention=True)
    assert torch.equal(mine.attention, bare.attention)
    assert torch.equal(mine.logits, bare.logits)


@pytest.mark.parametrize(
    ("count", "sizes"),
    [(1, [1]), (8, [8]), (9, [9]), (16, [8, 8]), (17, [8, 9]), (20, [10, 10]), (64, [32, 32]), (100, [32, 32, 36])],
)
def test_no_piece_is_so_small_that_it_rounds_otherwise(count, sizes, two_workers):
    model = Recording()
    tokens = torch.arange(count)[:, None] % (VALUES + 1)
    output = InThreads(model)(tokens, attention=True)
    assert sorted(model.sizes) == sizes
    assert min(model.sizes) >= min(count, SMALLEST_PIECE)
    assert torch.equal(output.logits[:, 0, 0], tokens[:, 0].float())  # in order
    assert torch.equal(output.attention[:, 0, 0], tokens.float())
    assert not any(model.gradients)
    if len(sizes) > 1:
        assert set(model.threads) == {1}


@pytest.mark.parametrize("count", [2, 100])
def test_no_gradients_whatever_the_caller_asks(count):
    model = sudoku_model(torch.float32)
    assert all(weight.requires_grad for weight in model.parameters())
    with torch.enable_grad():
        output = InThreads(model)(torch.zeros(count, 81, dtype=torch.int64))
        assert torch.is_grad_enabled()  # the caller's own setting stays
    assert not output.logits.requires_grad and not output.hidden.requires_grad


def test_an_error_in_a_worker_reaches_the_caller(two_workers):
    tokens = torch.zeros(64, 4, dtype=torch.int64)
    tokens[50, 2] = VALUES + 5
    threaded = InThreads(Recording())
    with pytest.raises(ValueError, match="a token that isn't one"):
        threaded(tokens)
    assert len(threaded(tokens[:50]).logits) == 50  # and the workers go on


def test_map_keeps_the_order_and_takes_nothing(two_workers):
    assert threaded_map(lambda x: x * x, [3, 1, 2]) == [9, 1, 4]
    assert threaded_map(lambda x: x * x, []) == []


def test_looks_like_its_model():
    model = Recording()
    threaded = InThreads(model)
    assert (threaded.values, threaded.hidden_size, threaded.device) == ("123", 2, torch.device("cpu"))


def test_piece_too_small_is_refused():
    with pytest.raises(ValueError, match="at least 8"):
        InThreads(Recording(), piece=4)
