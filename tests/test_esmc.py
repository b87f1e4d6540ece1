"""ESM-C behind the model interface: the numbers of ``esm`` itself, padding, attention, and where weights come from."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from esm.models.esmc import ESMC
from esm.tokenization import get_esmc_model_tokenizers
from huggingface_hub import HfApi, constants
from huggingface_hub.utils import reset_sessions
from protein_models import close, encode, run

from maskmi import parallel
from maskmi.artefacts import save_checkpoint
from maskmi.decoding import Sequential, decode
from maskmi.model import mask_token, pad_token
from maskmi.protein import esmc
from maskmi.protein.adapter import ByLength
from maskmi.protein.esmc import ESMC_300M, ESMC_SMALL, FILE, SHA256, Layout, load_esmc_300m, load_esmc_small, new_esmc

TINY = Layout(64, 4, 3)
SEQUENCE = "MKTAYIAKQRXQISFVKSHFSRQLEERLGB"
MASK, PAD = 20, 21


@pytest.fixture(scope="module")
def model():
    """All weights random: as initialised, each layer is the identity."""
    torch.manual_seed(0)
    model = new_esmc(TINY).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    return model


@pytest.fixture(scope="module")
def tokenizer():
    return get_esmc_model_tokenizers()


@pytest.mark.parametrize("layout, parameters", [(ESMC_300M, 332_997_184), (ESMC_SMALL, 6_927_424)])
def test_number_of_parameters(layout, parameters, tokenizer):
    with torch.device("meta"):
        network = ESMC(*layout, tokenizer=tokenizer, use_flash_attn=False)
    assert sum(p.numel() for p in network.parameters()) == parameters


def test_tokens_are_those_of_the_alphabet(model, tokenizer):
    assert model.values == "ACDEFGHIKLMNPQRSTVWY" and model.extra == "XBUZO"
    assert mask_token(model) == MASK and pad_token(model) == PAD
    golden = [5, 23, 13, 9, 18, 6, 21, 12, 15, 4, 20, 17, 14, 16, 10, 8, 11, 7, 22, 19, 32, 1, 24, 25, 26, 27, 28]
    assert model.ids.tolist() == golden
    assert not set(golden[:20]) & set(tokenizer.special_token_ids)
    assert model.hidden_size == 64 and model.device == torch.device("cpu")


def test_numbers_are_those_of_esm_itself(model, tokenizer):
    masked = SEQUENCE[:3] + "__" + SEQUENCE[5:]
    ids = tokenizer.encode(masked.replace("_", "<mask>"), return_tensors="pt")
    with torch.no_grad():
        raw = model.esmc(ids)
    output = run(model, encode(model, masked))
    assert output.logits.shape == (1, 30, 20) and output.attention is None
    for position, letter, token in [(0, "A", 5), (3, "W", 22), (10, "L", 4), (29, "Y", 19)]:
        mine = output.logits[0, position, model.values.index(letter)]
        assert mine.item() == pytest.approx(raw.sequence_logits[0, position + 1, token].item(), abs=2e-5)
    assert close(output.logits, raw.sequence_logits[:, 1:-1, model.ids[:20]], 2e-5)
    assert close(output.hidden, raw.embeddings[:, 1:-1], 2e-5)


@pytest.mark.parametrize("gradients, attention", [(False, False), (False, True), (True, False)])
def test_a_sequence_gives_the_same_alone_in_a_batch_and_beside_a_longer_one(model, gradients, attention):
    sequences = [SEQUENCE[:20], SEQUENCE, "A", SEQUENCE[5:12] + "___"]
    with torch.set_grad_enabled(gradients):
        alone = [model(encode(model, s), attention) for s in sequences]
        batch = model(torch.cat([encode(model, s, 30) for s in sequences]), attention)
        beside = model(torch.cat([encode(model, sequences[0], 100), encode(model, (SEQUENCE * 4)[:100])]), attention)
    for row, single in [*enumerate(alone), (0, alone[0])]:
        length = single.logits.shape[1]
        for output in (batch, beside) if row == 0 else (batch,):
            assert close(output.logits[row, :length], single.logits[0], 1e-4)
            assert close(output.hidden[row, :length], single.hidden[0], 1e-4)
            assert not output.logits[row, length:].any() and not output.hidden[row, length:].any()
            if attention:
                assert close(output.attention[row, :, :, :length, :length], single.attention[0], 1e-4)
                assert not output.attention[row, :, :, length:].any() and not output.attention[row, ..., length:].any()


def test_attention_is_what_each_layer_of_esm_uses(model, tokenizer, monkeypatch):
    asked = []
    fused = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *a: asked.append(a[:2]) or fused(*a))
    with torch.no_grad():
        model.esmc(tokenizer.encode(SEQUENCE, return_tensors="pt"))
    monkeypatch.undo()
    own = torch.stack([torch.softmax(q @ k.mT / 4, -1) for q, k in asked], 1)  # heads are 16 wide
    assert close(own.sum(-1), torch.ones(()))
    with_maps, without = run(model, encode(model, SEQUENCE), True), run(model, encode(model, SEQUENCE))
    assert with_maps.attention.shape == (1, 3, 4, 30, 30)
    assert close(with_maps.attention, own[..., 1:-1, 1:-1])
    rows = with_maps.attention.sum(-1) + own[..., 1:-1, [0, -1]].sum(-1)  # the rest went to the special tokens
    assert close(rows, torch.ones(()))
    assert close(with_maps.logits, without.logits, 1e-4)


def test_no_residues_and_no_sequences(model):
    assert run(model, torch.zeros(2, 0, dtype=torch.long)).logits.shape == (2, 0, 20)
    assert run(model, torch.zeros(0, 5, dtype=torch.long), True).attention.shape == (0, 3, 4, 5, 5)
    assert not run(model, torch.tensor([[PAD, PAD], [0, 1]])).logits[0].any()


def test_bfloat16_is_as_near_to_float32_as_in_esm_and_gives_float32_logits(model, monkeypatch):
    half, exact = new_esmc(TINY).eval(), new_esmc(TINY).eval()
    for other in (half, exact):
        other.load_state_dict({name: tensor.bfloat16() for name, tensor in model.state_dict().items()})
    half.to(torch.bfloat16)
    tables = []
    rotate = esmc._rotate
    monkeypatch.setattr(esmc, "_rotate", lambda x, cos, sin: tables.append(cos) or rotate(x, cos, sin))
    tokens = encode(model, SEQUENCE * 8)
    output, reference = run(half, tokens), run(exact, tokens)
    assert output.logits.dtype == torch.float32 and output.hidden.dtype == torch.bfloat16
    for block in half.esmc.transformer.blocks:  # esm's own, but for its rounded frequencies
        block.attn.rotary.reset_parameters()
    with torch.no_grad():
        raw = half.esmc(F.pad(F.pad(half.ids[tokens], (1, 0), value=0), (0, 1), value=2)).sequence_logits
    spread = reference.logits.std()
    errors = [
        (logits.float() - reference.logits).square().mean().sqrt() / spread
        for logits in (output.logits, raw[:, 1:-1, half.ids[:20]])
    ]
    assert errors[0] < 0.03 and errors[0] < 1.2 * errors[1]
    # Of frequencies rounded to bfloat16, as in esm, the angles would be off by up to 0.04 here (0.1 in ESM-C 300M).
    angles = torch.arange(256)[:, None] / 10_000 ** (torch.arange(8) / 8).double()
    assert tables[0].dtype == torch.bfloat16
    assert close(tables[0][:, 0].double(), torch.cos(angles).repeat(1, 2), 4e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_by_length_a_sequence_gives_the_same_to_the_last_bit(model, dtype, monkeypatch):
    monkeypatch.setattr(parallel, "WORKERS", 2)
    monkeypatch.setattr(parallel, "_pool", None)
    network = new_esmc(TINY).eval()
    network.load_state_dict(model.state_dict())
    network.to(dtype)
    many = [(SEQUENCE * 6)[i : i + n] for i, n in enumerate([50, 9, 50, 150, 31, 50, 1] + [30] * 20)]
    batch = torch.cat([encode(model, s, 150) for s in many])
    whole = ByLength(network)(batch, attention=True)
    threaded = ByLength(parallel.InThreads(network, piece=8))(batch, attention=True)
    raw = run(network, batch)
    for row in range(0, len(many), 3):
        alone, size = ByLength(network)(encode(model, many[row]), attention=True), len(many[row])
        for both in (whole, threaded):
            assert alone.logits[0].equal(both.logits[row, :size]) and alone.hidden[0].equal(both.hidden[row, :size])
            assert alone.attention[0].equal(both.attention[row, :, :, :size, :size])
            assert not both.logits[row, size:].any() and not both.attention[row, :, :, size:].any()
    assert close(whole.logits, raw.logits, 1e-4 if dtype == torch.float32 else 0.5)
    assert ByLength(network)(batch[:0]).logits.shape == (0, 150, 20)


def test_threads_with_different_lengths_do_not_disturb_one_another(model):
    inputs = [encode(model, (SEQUENCE * 4)[:length]) for length in (100, 5, 60, 20, 90, 10)]
    expected = [run(model, tokens).logits for tokens in inputs]
    with ThreadPoolExecutor(3) as pool:
        for _ in range(3):
            found = list(pool.map(lambda tokens: run(model, tokens).logits, inputs))
            assert all(close(a, b, 1e-4) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sequence_is_decoded_alike_alone_in_a_batch_and_beside_one_five_times_longer(model, dtype):
    network = new_esmc(TINY).eval()
    network.load_state_dict(model.state_dict())
    network = ByLength(network.to(dtype))
    short, long = "_" * 12, ("__X" + SEQUENCE)[:10] * 6
    others = ["_" * 9, SEQUENCE[:9] + "_" * 3, "_X_B"]

    def sampled(sequences, ids):
        tokens = torch.cat([encode(model, s, max(map(len, sequences))) for s in sequences])
        found = decode(network, tokens, Sequential(), temperature=1.0, seed=3, sequence_ids=torch.tensor(ids))
        assert found.tokens[tokens != MASK].equal(tokens[tokens != MASK])  # extra letters and padding too
        assert (found.tokens[tokens == MASK] < 20).all() and found.passes.equal((tokens == MASK).sum(1))
        return found.tokens

    alone = sampled([short], [7])[0]
    assert len(alone.unique()) > 3
    for sequences, ids in [([short, *others], [7, 1, 2, 3]), ([short, long], [7, 9])]:
        assert sampled(sequences, ids)[0, :12].equal(alone)


def test_it_learns():
    torch.manual_seed(0)
    model = new_esmc(TINY)
    whole = encode(model, "ACDEFGHIKLMNPQRSTVWY" * 2).repeat(4, 1)
    tokens = torch.where(torch.rand(whole.shape) < 0.3, MASK, whole)
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    losses = []
    for _ in range(12):
        loss = F.cross_entropy(model(tokens).logits[tokens == MASK], whole[tokens == MASK])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize(
    "tokens, message",
    [
        ([[0, 27]], "0…26"),
        ([[0, -1]], "0…26"),
        ([[0.0, 1.0]], "integers"),
        ([0, 1], "integers"),
        ([[0, PAD, 1]], "padding"),
    ],
)
def test_what_are_no_tokens_is_refused(model, tokens, message):
    with pytest.raises(ValueError, match=message):
        model(torch.tensor(tokens))


# Weights from a file.


@pytest.fixture
def pth(model, tmp_path):
    path = tmp_path / "snapshots" / "c0ffee" / "data" / "weights" / FILE
    path.parent.mkdir(parents=True)
    torch.save(model.esmc.state_dict(), path)
    return path


def load_tiny(path, **options):
    return load_esmc_300m(path, expected_sha256=None, layout=TINY, **options)


def test_a_local_file_or_a_folder_that_holds_it_is_loaded(model, pth):
    tokens = encode(model, SEQUENCE)
    expected = run(model, tokens).logits
    for named in (pth, str(pth), pth.parent, pth.parents[2], pth.parents[4]):
        loaded = load_tiny(named)
        assert torch.equal(run(loaded, tokens).logits, expected)
    assert not loaded.training and all(p.requires_grad for p in loaded.parameters())
    with torch.no_grad():  # the rotary tables of esm's own forward came along
        assert loaded.esmc(loaded.ids[tokens]).sequence_logits.isfinite().all()
    half = load_tiny(pth, dtype=torch.bfloat16)
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}


def test_a_file_of_the_published_layout_is_loaded_and_runs(tmp_path, tokenizer):
    """All 332,997,184 numbers, but each row of a matrix is the same: the file holds one of them."""
    with torch.device("meta"):
        layout = ESMC(*ESMC_300M, tokenizer=tokenizer, use_flash_attn=False).state_dict()
    torch.manual_seed(0)
    state = {name: (torch.randn(t.shape[-1]) / 30).bfloat16().expand(t.shape) for name, t in layout.items()}
    torch.save(state, tmp_path / FILE)
    assert (tmp_path / FILE).stat().st_size < 2e6
    model = load_esmc_300m(tmp_path, expected_sha256=None, dtype=torch.bfloat16)
    assert sum(p.numel() for p in model.parameters()) == 332_997_184
    output = run(model, torch.tensor([[0, 5, MASK, 22, PAD]]), attention=True)
    assert output.logits.shape == (1, 5, 20) and output.hidden.shape == (1, 5, 960)
    assert output.attention.shape == (1, 30, 15, 5, 5)
    assert output.logits.isfinite().all() and output.attention.isfinite().all()


@pytest.mark.parametrize("expected", [SHA256, None])
def test_a_file_cut_to_half_is_refused_by_name_size_and_checksum(pth, expected):
    data = pth.read_bytes()
    pth.write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError) as error:
        load_esmc_300m(pth, expected_sha256=expected, layout=TINY)
    message = str(error.value)
    assert str(pth) in message and f"{len(data) // 2:,} bytes" in message and "SHA-256" in message
    assert "zip" not in message and "\n" not in message


def test_another_file_under_the_published_name_is_refused(pth):
    with pytest.raises(ValueError, match=SHA256):
        load_esmc_300m(pth.parent)


@pytest.mark.parametrize(
    "tensors, message",
    [
        (lambda state: state | {"embed.weight": torch.zeros(64, 960)}, r"embed.weight, expected \(64, 64\)"),
        (lambda state: {k: v for k, v in state.items() if "blocks.2" not in k}, "blocks.2.*found not at all"),
        (lambda state: state | {"head": torch.zeros(1)}, "head, expected not at all"),
        (lambda state: [1, 2], "embed.weight"),
    ],
)
def test_a_file_of_another_layout_is_refused(model, pth, tensors, message):
    torch.save(tensors(model.esmc.state_dict()), pth)
    with pytest.raises(ValueError, match=message) as error:
        load_tiny(pth)
    assert str(pth) in str(error.value) and "width 64 with 3 layers" in str(error.value)


def test_small_weights_are_kept_as_a_checkpoint_of_this_library(model, tmp_path):
    path = tmp_path / "esmc_small.safetensors"
    save_checkpoint(path, model.esmc.state_dict(), {"name": "tiny"})
    tokens = encode(model, SEQUENCE)
    assert torch.equal(run(load_esmc_small(path, layout=TINY), tokens).logits, run(model, tokens).logits)
    with pytest.raises(ValueError, match="width 256 with 8 layers"):
        load_esmc_small(path)
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(ValueError, match="esmc_small.*SHA-256"):
        load_esmc_small(path, layout=TINY)


# No weights.


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def refusal(*arguments):
    start = time.monotonic()
    with pytest.raises(FileNotFoundError) as error:
        load_esmc_300m(*arguments)
    message = str(error.value)
    assert time.monotonic() - start < 8
    assert "ESM-C 300M" in message and FILE in message and "`weights`" in message and "\n" not in message
    return message


def test_a_name_that_is_not_there(tmp_path):
    assert "doesn't exist" in refusal(tmp_path / "nothing.pth")
    assert "holds no" in refusal(tmp_path)


def test_no_network_and_an_empty_cache(empty_cache, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE" in refusal()


def test_a_hub_that_accepts_and_never_answers(empty_cache, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr(esmc, "PATIENCE", 0.5)
        reset_sessions()
        assert "Timeout" in refusal()
    reset_sessions()


def test_a_hub_whose_name_is_never_resolved(empty_cache, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(HfApi, "model_info", lambda *_, **__: time.sleep(60))
    monkeypatch.setattr(esmc, "PATIENCE", 0.5)
    assert "no answer" in refusal()


def test_a_repository_that_was_renamed_or_closed(empty_cache, monkeypatch):
    def refuse(*_, **__):
        raise OSError("gated")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(HfApi, "model_info", refuse)
    assert "asking the hub failed with OSError" in refusal()


def test_the_cache_of_the_hub_is_read_without_network(model, pth, empty_cache):
    folder = empty_cache / ("models--" + esmc.REPOSITORY.replace("/", "--"))
    folder.mkdir()
    (empty_cache / "snapshots").rename(folder / "snapshots")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("c0ffee")
    tokens = encode(model, SEQUENCE)
    assert torch.equal(run(load_tiny(None), tokens).logits, run(model, tokens).logits)
