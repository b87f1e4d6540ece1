"""AntiBERTy behind the model interface: the numbers of ``transformers``, padding, attention, how well it predicts."""

import importlib.util
import shutil
import sys
from importlib.machinery import ModuleSpec

import pytest
import torch
from protein_models import close, encode, run
from transformers import BertTokenizer

from maskmi.model import mask_token, pad_token
from maskmi.probing import probe
from maskmi.protein import antiberty
from maskmi.protein.adapter import ByLength
from maskmi.protein.antiberty import FOLDER, find_antiberty, load_antiberty

HEAVY = (
    "EVQLVESGGGLVQPGGSLRLSCAASGFTFSSYAMSWVRQAPGKGLEWVSAISGSGGSTYYADSVKGRFTISRDNSKNTLYLQMNSLRAEDTAVYYCAK"
    "DRLSITIRPRYYGLDVWGQGTTVTVSS"
)
MASK, PAD = 20, 21


@pytest.fixture(scope="module")
def model():
    return load_antiberty()


@pytest.fixture(scope="module")
def half():
    return load_antiberty(dtype=torch.bfloat16)


@pytest.fixture(scope="module")
def tokenizer():
    return BertTokenizer(str(find_antiberty() / "vocab.txt"), do_lower_case=False)


def test_size_and_tokens(model, tokenizer):
    assert sum(p.numel() for p in model.parameters()) == 25_759_769
    assert model.values == "ACDEFGHIKLMNPQRSTVWY" and model.extra == ""
    assert mask_token(model) == MASK and pad_token(model) == PAD
    golden = [*range(5, 25), 4, 0]
    assert model.ids.tolist() == golden
    assert golden == tokenizer.convert_tokens_to_ids([*model.values, "[MASK]", "[PAD]"])
    assert not set(golden[:20]) & set(tokenizer.all_special_ids)
    assert model.hidden_size == 512 and model.max_length == 510 and model.device == torch.device("cpu")
    assert not model.training


def test_the_package_is_found_and_not_run(model):
    assert "antiberty" not in sys.modules


def test_numbers_and_attention_are_those_of_transformers(model, tokenizer):
    masked = HEAVY[:30] + "_____" + HEAVY[35:60]
    read = tokenizer(" ".join(masked).replace("_", "[MASK]"), return_tensors="pt")
    with torch.no_grad():
        raw = model.bert(**read, output_hidden_states=True, output_attentions=True)
    output = run(model, encode(model, masked), attention=True)
    assert output.logits.shape == (1, 60, 20)
    for position, letter, token in [(0, "E", 8), (31, "S", 20), (34, "Y", 24), (59, "A", 5)]:
        mine = output.logits[0, position, model.values.index(letter)]
        assert mine.item() == pytest.approx(raw.logits[0, position + 1, token].item(), abs=2e-5)
    assert close(output.logits, raw.logits[:, 1:-1, 5:], 2e-5)
    assert close(output.hidden, raw.hidden_states[-1][:, 1:-1], 2e-5)
    own = torch.stack(raw.attentions, 1)
    assert output.attention.shape == (1, 8, 8, 60, 60)
    assert close(output.attention, own[..., 1:-1, 1:-1])
    rows = output.attention.sum(-1) + own[..., 1:-1, [0, -1]].sum(-1)  # the rest went to the special tokens
    assert close(rows, torch.ones(()))
    fused = run(model, encode(model, masked))
    assert fused.attention is None and close(fused.logits, output.logits, 1e-4)


@pytest.mark.parametrize("attention", [False, True])
def test_a_sequence_gives_the_same_alone_in_a_batch_and_beside_a_longer_one(model, attention):
    short = HEAVY[:20] + "___"
    sequences = [short, HEAVY[40:70], "A", HEAVY[:12]]
    alone = [run(model, encode(model, s), attention) for s in sequences]
    batch = run(model, torch.cat([encode(model, s, 30) for s in sequences]), attention)
    beside = run(model, torch.cat([encode(model, short, 115), encode(model, HEAVY[:115])]), attention)
    for row, single in [*enumerate(alone), (0, alone[0])]:
        length = single.logits.shape[1]
        for output in (batch, beside) if row == 0 else (batch,):
            assert close(output.logits[row, :length], single.logits[0], 1e-4)
            assert close(output.hidden[row, :length], single.hidden[0], 1e-4)
            assert not output.logits[row, length:].any() and not output.hidden[row, length:].any()
            if attention:
                assert close(output.attention[row, :, :, :length, :length], single.attention[0], 1e-4)
                assert not output.attention[row, :, :, length:].any() and not output.attention[row, ..., length:].any()


def test_probing_is_a_plain_loop_of_single_passes_and_the_same_beside_a_longer_chain(model):
    masked = [2, 3, 7]
    tokens = encode(model, "EV__VES_GGGLVQ")
    log_p = run(model, tokens).logits[0].double().log_softmax(-1)
    drop, mixture = torch.zeros(2, 14, 14).double()
    for i in masked:
        log_q = []
        for value in range(20):
            tokens[0, i] = value
            log_q.append(run(model, tokens).logits[0].double().log_softmax(-1))
        tokens[0, i] = MASK
        log_q, weight = torch.stack(log_q), log_p[i].exp()
        after = (weight[:, None] * -(log_q.exp() * log_q).sum(-1)).sum(0)
        mean = (weight[:, None, None] * log_q.exp()).sum(0)
        for j in set(masked) - {i}:
            drop[i, j] = -(log_p[j].exp() * log_p[j]).sum() - after[j]
            mixture[i, j] = -(mean[j] * mean[j].log()).sum() - after[j]
    assert mixture.max() > 0.01  # there is something to find
    alone = probe(model, tokens)
    both = torch.cat([encode(model, "EV__VES_GGGLVQ", 60), encode(model, HEAVY[:40] + "_" + HEAVY[41:60])])
    beside = probe(model, both)
    for found in (alone, beside):
        assert close(found.entropy_drop[0, :14, :14].double(), drop, 1e-4)
        assert close(found.mixture[0, :14, :14].double(), mixture, 1e-4)
    assert not beside.mixture[0, 14:].any() and not beside.mixture[0, :, 14:].any()
    assert beside.passes.tolist() == [61, 1]


def test_pseudo_perplexity_of_a_human_heavy_chain(half):
    """1.34 over all residues; its CDR H3, which germline genes tell little of, has 8.1. In float32 as in bfloat16."""
    tokens = encode(half, HEAVY)
    masked = tokens.repeat(len(HEAVY), 1).fill_diagonal_(MASK)
    logits = torch.cat([run(half, part).logits for part in masked.split(8)])
    nats = -logits.diagonal().T.log_softmax(-1).gather(1, tokens.T).squeeze(1)
    assert nats.mean().exp().item() == pytest.approx(1.34, abs=0.05)
    assert nats[98:113].mean() > 5 * nats[:98].mean()


def test_bfloat16_is_as_near_to_float32_as_in_transformers_and_gives_float32_logits(model, half, tokenizer):
    masked = HEAVY[:10] + "_" * 10 + HEAVY[20:60]
    tokens, read = encode(model, masked), tokenizer(" ".join(masked).replace("_", "[MASK]"), return_tensors="pt")
    exact, rounded = run(model, tokens), run(half, tokens)
    assert rounded.logits.dtype == torch.float32 and rounded.hidden.dtype == torch.bfloat16
    assert (rounded.logits.softmax(-1) - exact.logits.softmax(-1)).abs().max() < 0.05
    with torch.no_grad():
        raw = half.bert(**read).logits[:, 1:-1, 5:].float()
    errors = [(logits - exact.logits).square().mean().sqrt() for logits in (rounded.logits, raw)]
    assert errors[0] < 0.06 and errors[0] < 1.3 * errors[1]


def test_by_length_a_chain_gives_the_same_to_the_last_bit_in_bfloat16(half):
    short, long = encode(half, HEAVY[:30] + "___", 125), encode(half, HEAVY[:115] + "_" * 10)
    batch = torch.cat([short, long.repeat(3, 1), short.repeat(7, 1)])
    alone = ByLength(half)(short[:, :33])
    beside, reversed_ = ByLength(half)(batch), ByLength(half)(batch.flip(0))
    for found in (beside.logits[0], beside.logits[-1], reversed_.logits[0]):
        assert found[:33].equal(alone.logits[0])
    assert reversed_.logits.flip(0).equal(beside.logits) and reversed_.hidden.flip(0).equal(beside.hidden)


def test_gradients_flow(model):
    tokens = encode(model, HEAVY[:10] + "__")
    model(tokens).logits.log_softmax(-1)[0, 10:, 0].sum().backward()
    layer = model.bert.bert.encoder.layer[0]
    assert layer.attention.self.query.weight.grad.abs().sum() > 0
    model.zero_grad()


def test_what_are_no_tokens_is_refused(model):
    for tokens, message in [([[22]], "0…21"), ([[0.5]], "integers"), ([[PAD, 3]], "padding"), ([[0] * 511], "510")]:
        with pytest.raises(ValueError, match=message):
            model(torch.tensor(tokens))


# Weights that are missing or damaged.


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package ``antiberty`` in a folder of the test's own, with all but the weights."""
    source, target = find_antiberty(), tmp_path / "antiberty" / "trained_models"
    (target / FOLDER).mkdir(parents=True)
    shutil.copy(source / "vocab.txt", target)
    shutil.copy(source / FOLDER / "config.json", target / FOLDER)
    spec = ModuleSpec("antiberty", None, origin=str(tmp_path / "antiberty" / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    return target / FOLDER / "pytorch_model.bin"


def test_no_package(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="antiberty"):
        load_antiberty()


def test_a_package_without_weights(installed):
    with pytest.raises(FileNotFoundError, match=FOLDER):
        load_antiberty()


def test_weights_cut_to_half_are_refused_by_name_size_and_checksum(installed, monkeypatch):
    monkeypatch.undo()
    whole = (find_antiberty() / FOLDER / "pytorch_model.bin").read_bytes()
    installed.write_bytes(whole[: len(whole) // 2])
    monkeypatch.setattr(antiberty, "find_antiberty", lambda: installed.parents[1])
    with pytest.raises(ValueError) as error:
        load_antiberty()
    assert str(installed) in str(error.value) and f"{len(whole) // 2:,} bytes" in str(error.value)
    assert antiberty.SHA256 in str(error.value)
