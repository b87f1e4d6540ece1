"""Each finding, by a model that is wrong in that one way; and models that are right."""

import pytest
import torch
from torch import nn
from torch.nn.functional import pad

from maskmi.check import check_model
from maskmi.model import Output
from maskmi.tabular import TabularModel

MASK, PAD = 4, 5


class Tiny(nn.Module):
    """One layer of attention over four letters, with positions: a right model, for others to break."""

    values, hidden_size, device = "ACGT", 8, torch.device("cpu")

    def __init__(self, dropout=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.position = nn.Embedding(6, 8), nn.Embedding(64, 8)
        self.dropout, self.last = nn.Dropout(dropout), nn.Linear(8, 4)
        self.eval()

    @torch.no_grad()
    def forward(self, tokens, attention=False):
        return self.compute(tokens, attention, hidden_keys=tokens == PAD)

    def compute(self, tokens, attention, hidden_keys):
        x = self.embed(tokens) + self.position(torch.arange(tokens.shape[1]))
        scores = (x @ x.mT / 3).masked_fill(hidden_keys[:, None], -torch.inf)
        weights = scores.softmax(-1)
        hidden = self.dropout(x + weights @ x)
        return Output(self.last(hidden), hidden, weights[:, None, None] if attention else None)


def checks(model, **options):
    return [finding.check for finding in check_model(model, **options)]


def changed(change, **options):
    """The findings of a right model whose output is changed."""

    class Changed(Tiny):
        def forward(self, tokens, attention=False):
            return change(super().forward(tokens, attention))

    return check_model(Changed(), **options)


# Right models.


def test_a_right_model_has_no_findings():
    assert check_model(Tiny(), attention=True) == []
    assert check_model(Tiny().to(torch.bfloat16), longer=0)[0].check == "type"  # and nothing but its logits:
    rounded = changed(lambda o: o._replace(hidden=o.hidden.bfloat16()))
    assert rounded == []


@pytest.mark.parametrize(
    "model",
    [
        TabularModel.chain(5, 3),
        TabularModel.random(0, 5, 3),
        TabularModel.independent(torch.tensor([[0.25, 0.75]] * 5)),
    ],
)
def test_tabular_models_of_one_length_without_padding_have_no_findings(model):
    assert check_model(model, length=5, longer=0) == []


def test_impossible_values_are_right():
    def forbid(output):
        logits = output.logits.clone()
        logits[..., 1] = -torch.inf
        return output._replace(logits=logits)

    assert changed(forbid) == []


# Attributes.


@pytest.mark.parametrize(
    "name, value, check",
    [
        ("values", "", "attributes"),
        ("values", [0, 1, 2, 3], "attributes"),
        ("values", "ACGA", "values"),
        ("values", ["A", "C", "G", "[SEP]"], "values"),
        ("values", ["A", "C", "<mask>", "G"], "values"),
        ("values", "ACG\0", "values"),
        ("hidden_size", "8", "attributes"),
        ("device", "cpu", "attributes"),
    ],
)
def test_attributes(name, value, check):
    model = Tiny()
    object.__setattr__(model, name, value)
    assert checks(model) == [check]


# Calls and shapes.


def test_a_mask_beyond_the_vocabulary_is_told_by_its_call():
    model = Tiny()
    model.embed = nn.Embedding(4, 8)  # the values alone
    (finding,) = check_model(model)
    assert finding.check == "call" and "with MASK among the tokens it raises IndexError" in finding.problem


def test_a_model_without_padding_is_told_and_passes_where_there_is_none():
    model = Tiny()
    model.embed = nn.Embedding(5, 8)
    (finding,) = check_model(model)
    assert finding.check == "call" and "with padding" in finding.problem
    assert check_model(model, longer=0) == []


def test_tokens_changed_in_place():
    class InPlace(Tiny):
        def forward(self, tokens, attention=False):
            output = super().forward(tokens, attention)
            tokens[tokens == MASK] = 0
            return output

    assert checks(InPlace()) == ["call"]


@pytest.mark.parametrize(
    "change, problem",
    [
        (lambda o: o.logits, "it returns Tensor"),
        # 12 tokens and 8 more. The columns of MASK and padding left in: six instead of four.
        (lambda o: o._replace(logits=pad(o.logits, (0, 2))), "logits has the shape [3, 20, 6], not [3, 20, 4]"),
        (lambda o: o._replace(logits=pad(o.logits, (0, 0, 1, 1))), "logits has the shape [3, 22, 4], not [3, 20, 4]"),
        (lambda o: o._replace(hidden=pad(o.hidden, (0, 0, 1, 1))), "hidden has the shape [3, 22, 8], not [3, 20, 8]"),
        (lambda o: o._replace(hidden=o.hidden[..., :7]), "hidden has the shape [3, 20, 7], not [3, 20, 8]"),
    ],
)
def test_shapes(change, problem):
    (finding,) = changed(change)
    assert finding.check == "shape" and problem in finding.problem


# Types and numbers.


def test_types_and_gradients():
    assert [f.check for f in changed(lambda o: o._replace(logits=o.logits.half()))] == ["type"]
    assert [f.check for f in changed(lambda o: o._replace(hidden=(1000 * o.hidden).long()))] == ["type"]

    class WithGradient(Tiny):
        def forward(self, tokens, attention=False):
            return self.compute(tokens, attention, tokens == PAD)

    assert checks(WithGradient()) == ["gradient"]
    assert checks(WithGradient().requires_grad_(False)) == []


def test_another_device():
    (finding,) = changed(lambda o: o._replace(logits=o.logits.to("meta"), hidden=o.hidden.to("meta")))
    assert finding.check == "device" and "lies on meta, model.device is cpu" in finding.problem


@pytest.mark.parametrize(
    "part, value, found",
    [
        ("logits", torch.nan, ["numbers"]),
        ("logits", torch.inf, ["numbers"]),
        ("hidden", torch.nan, ["numbers"]),
        ("hidden", torch.inf, ["numbers"]),
    ],
)
def test_numbers_that_are_none(part, value, found):
    def spoil(output, where=(0, 3, 1)):
        tensor = getattr(output, part).clone()
        tensor[where] = value
        return output._replace(**{part: tensor})

    assert [f.check for f in changed(spoil)] == found
    assert changed(lambda output: spoil(output, (0, slice(12, None)))) == []  # padding: nobody reads it


def test_a_position_at_which_nothing_is_possible():
    def forbid(output):
        logits = output.logits.clone()
        logits[0, 1] = -torch.inf
        return output._replace(logits=logits)

    assert [f.check for f in changed(forbid)] == ["numbers"]


# What the output depends on.


def test_dropout_left_on():
    model = Tiny(dropout=0.1)
    assert checks(model) == []
    assert checks(model.train()) == ["repeat"]


def test_a_leak_by_what_was_evaluated_before():
    class Remembering(Tiny):
        """Fills masked positions with what it saw there last."""

        seen = None

        def forward(self, tokens, attention=False):
            if (tokens < MASK).all():
                self.seen = tokens
            elif self.seen is not None and self.seen.shape == tokens.shape:
                tokens = torch.where(tokens == MASK, self.seen, tokens)
            return super().forward(tokens, attention)

    assert checks(Remembering()) == ["leak"]


def test_a_mean_over_the_batch():
    class Mixing(Tiny):
        def forward(self, tokens, attention=False):
            output = super().forward(tokens, attention)
            return output._replace(hidden=output.hidden + output.hidden.mean(0))

    assert checks(Mixing()) == ["batch"]


@pytest.mark.parametrize("attention", [False, True])
def test_a_padding_leak(attention):
    class Leaking(Tiny):
        @torch.no_grad()
        def forward(self, tokens, attention=False):
            return self.compute(tokens, attention, hidden_keys=tokens < 0)

    expected = ["padding"] + ["attention"] * attention
    found = check_model(Leaking(), attention=attention)
    assert [finding.check for finding in found] == expected
    assert "attention mask" in found[0].remedy


def remapped(mapping, **options):
    """The findings of a right model whose network gets other ids."""

    class Remapped(Tiny):
        def forward(self, tokens, attention=False):
            return super().forward(torch.tensor(mapping)[tokens], attention)

    return check_model(Remapped(), **options)


def test_tokens_read_alike():
    mask_as_g, c_as_t, all_alike = [0, 1, 2, 3, 2, PAD], [0, 3, 2, 3, MASK, PAD], [0, 0, 0, 0, 0, PAD]
    (finding,) = remapped(mask_as_g)
    assert finding.check == "mask" and "value 'G'" in finding.problem
    (finding,) = remapped(c_as_t)
    assert finding.check == "values" and "'C' and 'T'" in finding.problem
    (finding,) = remapped(all_alike)
    assert finding.check == "values" and "whatever stands" in finding.problem


def test_mask_left_out_of_the_attention_mask_as_padding_is():
    assert [f.check for f in remapped([0, 1, 2, 3, PAD, PAD], longer=0)] == []  # told apart from the values all right
    found = remapped([0, 1, 2, 3, PAD, PAD])
    assert [finding.check for finding in found] == ["mask"] and "padding" in found[0].problem


# Attention.


@pytest.mark.parametrize(
    "change, problem",
    [
        (lambda o: o._replace(attention=None), "attention is missing"),
        (lambda o: o._replace(attention=o.attention[:, 0]), "attention is [3, 1, 20, 20]"),
        (lambda o: o._replace(attention=o.attention[..., 1:-1, 1:-1]), "attention is [3, 1, 1, 18, 18]"),
        (lambda o: o._replace(attention=o.attention.log()), "softmax"),
        (lambda o: o._replace(attention=2 * o.attention), "softmax"),
        (lambda o: o._replace(attention=torch.full_like(o.attention, 0.05)), "attend to padding"),
    ],
)
def test_attention(change, problem):
    def when_asked(output):
        return output if output.attention is None else change(output)

    (finding,) = changed(when_asked, attention=True)
    assert finding.check == "attention" and problem in finding.problem
    assert changed(when_asked) == []  # only where it is asked for


def test_no_attention_to_be_had():
    (finding,) = check_model(TabularModel.chain(5, 3), length=5, longer=0, attention=True)
    assert finding.check == "attention" and "raises ValueError" in finding.problem


@pytest.mark.parametrize("options", [{"length": 3}, {"longer": -1}])
def test_sizes_out_of_range(options):
    with pytest.raises(ValueError, match="at least"):
        check_model(Tiny(), **options)
