"""The generic adapter: the numbers of ``transformers``, for BERT, RoBERTa's positions, rotary ones, and AntiBERTy."""

import pytest
import torch
from protein_models import close, run
from transformers import AutoModelForMaskedLM, BertConfig, BertForMaskedLM, BertTokenizer, EsmConfig, RobertaConfig

from maskmi.check import check_model
from maskmi.hugging_face import HuggingFaceModel
from maskmi.model import mask_token, pad_token
from maskmi.protein.adapter import AMINO_ACIDS
from maskmi.protein.antiberty import FOLDER, find_antiberty, load_antiberty

# The values in another order than in the vocabulary, so that a mix-up shows.
VOCABULARY = {name: i for i, name in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "A", "C", "G", "T", "N"])}
NAMES = {"mask": "[MASK]", "padding": "[PAD]", "start": ["[CLS]"], "end": ["[SEP]"]}
VALUES, MASK, PAD, N = "TGCA", 4, 5, 6  # ids 8, 7, 6, 5; tokens of the adapter
SIZE = {"vocab_size": 10, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def build(config_class=BertConfig, **options):
    torch.manual_seed(0)
    config = config_class(**SIZE, **{"max_position_embeddings": 20, "initializer_range": 0.5} | options)
    return AutoModelForMaskedLM.from_config(config)


@pytest.fixture
def network():
    return build()


@pytest.fixture
def model(network):
    return HuggingFaceModel(network, VOCABULARY, VALUES, **NAMES, extra="N")


@pytest.fixture
def tokenizer(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY))
    return BertTokenizer(str(tmp_path / "vocab.txt"), do_lower_case=False)


def test_tokens_and_sizes(model, network):
    assert model.values == VALUES and mask_token(model) == MASK and pad_token(model) == PAD and model.extra == ("N",)
    assert model.hidden_size == 16 and model.device == torch.device("cpu")
    assert model.max_length == 18  # 20 positions less both ends
    assert not network.training  # a network built from a configuration has its dropout on


def test_numbers_and_attention_are_those_of_the_network(model, network):
    tokens = torch.tensor([[0, MASK, 2, N, MASK]])  # T _ C N _
    raw = run_raw(network, [[2, 8, 4, 6, 9, 4, 3]])
    output = run(model, tokens, attention=True)
    assert output.logits.dtype == torch.float32
    assert close(output.logits, raw.logits[:, 1:6, [8, 7, 6, 5]])
    assert close(output.hidden, raw.hidden_states[-1][:, 1:6])
    assert close(output.attention, torch.stack(raw.attentions, 1)[..., 1:6, 1:6])
    assert run(model, tokens).attention is None


def run_raw(network, ids):
    with torch.no_grad():
        return network(torch.tensor(ids), output_hidden_states=True, output_attentions=True)


def test_each_end_follows_its_sequence_and_padding_is_not_attended_to(model, network):
    raw = run_raw(network, [[2, 8, 4, 3]])
    output = run(model, torch.tensor([[0, MASK, PAD, PAD], [0, 1, 2, MASK]]), attention=True)
    assert close(output.logits[0, :2], raw.logits[0, 1:3][:, [8, 7, 6, 5]])
    assert close(output.hidden[0, :2], raw.hidden_states[-1][0, 1:3])
    assert not output.logits[0, 2:].any() and not output.hidden[0, 2:].any()
    assert not output.attention[0, ..., 2:].any() and not output.attention[0, :, :, 2:].any()


@pytest.mark.parametrize(
    "config_class, options, longest",
    [
        (BertConfig, {}, 18),
        # RoBERTa counts positions from the padding's id plus one: 20 vectors are enough for 19 ids.
        (RobertaConfig, {"pad_token_id": 0}, 17),
        (EsmConfig, {"pad_token_id": 0, "mask_token_id": 4, "position_embedding_type": "rotary"}, None),
    ],
)
def test_networks_of_several_kinds_pass_the_check_and_read_as_many_tokens_as_they_say(config_class, options, longest):
    model = HuggingFaceModel(build(config_class, **options), VOCABULARY, VALUES, **NAMES)
    assert check_model(model, length=10, longer=4, attention=True) == []
    if longest:
        assert model.max_length == longest
        assert run(model, torch.zeros(1, longest, dtype=torch.int64)).logits.isfinite().all()
        with pytest.raises(ValueError, match=f"at most {longest} tokens, not {longest + 1}"):
            model(torch.zeros(1, longest + 1, dtype=torch.int64))


def test_a_tokenizer_gives_the_same_model_as_the_names(model, network, tokenizer):
    other = HuggingFaceModel.from_tokenizer(network, tokenizer, VALUES, extra="N")
    assert other.ids.tolist() == model.ids.tolist() == [8, 7, 6, 5, 4, 0, 9]
    assert (other.start, other.end) == (model.start, model.end) == ([2], [3])


def test_values_may_be_of_several_characters_and_ends_may_be_missing(network):
    vocabulary = {"pad": 0, "mask": 1, "red": 2, "blue": 3}
    model = HuggingFaceModel(network, vocabulary, ["blue", "red"], mask="mask", padding="pad")
    assert model.values == ("blue", "red") and mask_token(model) == 2
    assert close(run(model, torch.tensor([[0, 2]])).logits, run_raw(network, [[3, 1]]).logits[..., [3, 2]])


def test_bfloat16_weights_give_float32_logits(model):
    output = run(model.to(dtype=torch.bfloat16), torch.tensor([[0, MASK]]), attention=True)
    dtypes = (output.logits.dtype, output.hidden.dtype, output.attention.dtype)
    assert dtypes == (torch.float32, torch.bfloat16, torch.bfloat16)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"values": "ACGU"}, r"no token 'U'; it begins with \[PAD\], "),
        ({"mask": "<mask>"}, "no token '<mask>'"),
        ({"start": ["<s>"]}, "no token '<s>'"),
        ({"values": ["A", "[SEP]"]}, r"'\[SEP\]' is a special token"),
        ({"extra": ["[MASK]"]}, r"'\[MASK\]' is a special token"),
        ({"values": "ACA"}, "different tokens, not A C A"),
        ({"values": ""}, "different tokens"),
        ({"extra": ["A"]}, "different tokens"),
        ({"start": "[CLS]"}, "sequences of tokens"),
    ],
)
def test_a_wrong_vocabulary_is_refused(network, change, message):
    with pytest.raises(ValueError, match=message):
        HuggingFaceModel(network, VOCABULARY, **{"values": VALUES, **NAMES} | change)


def test_a_tokenizer_that_does_not_fit_is_refused(network, tokenizer):
    with pytest.raises(ValueError, match=r"'\[UNK\]' is a special token"):
        HuggingFaceModel.from_tokenizer(network, tokenizer, ["A", "[UNK]"])
    tokenizer.mask_token = None
    with pytest.raises(ValueError, match="has no mask_token"):
        HuggingFaceModel.from_tokenizer(network, tokenizer, VALUES)


@pytest.mark.parametrize(
    "tokens, message",
    [([[7]], "0…6"), ([[-1]], "0…6"), ([[0.5]], "integers"), ([0], "integers"), ([[PAD, 0]], "padding stands before")],
)
def test_what_are_no_tokens_is_refused(model, tokens, message):
    with pytest.raises(ValueError, match=message):
        model(torch.tensor(tokens))


def test_a_network_without_attention_maps_is_told(model, network):
    whole = network.forward
    network.forward = lambda *args, **kwargs: whole(*args, **kwargs | {"output_attentions": False})
    with pytest.raises(ValueError, match="attn_implementation='eager'"):
        model(torch.tensor([[0]]), attention=True)


def test_antiberty_by_the_generic_adapter_is_the_studys_own():
    """Two implementations of one model: theirs is written for speed, this one runs the code of ``transformers``."""
    folder = find_antiberty()
    tokenizer = BertTokenizer(str(folder / "vocab.txt"), do_lower_case=False)
    network = BertForMaskedLM.from_pretrained(folder / FOLDER)
    generic, own = HuggingFaceModel.from_tokenizer(network, tokenizer, AMINO_ACIDS), load_antiberty()
    assert generic.max_length == own.max_length == 510
    tokens = torch.tensor([[3, 17, 13, 9, 17, 20, 15, 5, 21, 21], [3, 20, 20, 9, 17, 3, 15, 5, 5, 20]])
    mine, theirs = run(generic, tokens, attention=True), run(own, tokens, attention=True)
    for part, other in zip(mine, theirs, strict=True):
        assert close(part, other, 1e-4)
