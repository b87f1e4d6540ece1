"""The decoding loop: its rules, counts, determinism and edge cases."""

import pytest
import torch

from maskmi.decoding import ConfidenceThreshold, Decision, EntropyBounded, MIGuided, Naive, Sequential, decode
from maskmi.decoding.select import first
from maskmi.model import Output
from maskmi.tabular import TabularModel

MASK, PAD = 9, 10


class Scripted:
    """Logits over nine values that are a fixed function of the position and of the visible tokens."""

    values, hidden_size, device = "123456789", 2, torch.device("cpu")

    def __init__(self, length, dtype=torch.float32, seed=0):
        draw = torch.Generator().manual_seed(seed)
        self.base = torch.randn(length, 9, generator=draw, dtype=torch.float64)
        self.effect = torch.randn(11, 9, generator=draw, dtype=torch.float64)
        self.effect[MASK:] = 0
        self.dtype = dtype
        self.batches = []

    def __call__(self, tokens, attention=False):
        self.batches.append(len(tokens))
        length = tokens.shape[1]
        context = self.effect[tokens].sum(1, keepdim=True)
        return Output((self.base[:length] + context).to(self.dtype), torch.zeros(len(tokens), length, 2))


def puzzles(count, length, seed=0, masked=0.6):
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 9, (count, length), generator=draw)
    return tokens.masked_fill(torch.rand(count, length, generator=draw) < masked, MASK)


def mi_source(model, view):
    """Any matrix that depends on the sequence: what is shared must not leak between sequences."""
    p = view.log_probs.exp()
    matrix = (p @ p.mT).float()
    return matrix - torch.diag_embed(matrix.diagonal(dim1=1, dim2=2)), torch.full_like(view.step, 3)


DECODERS = [
    Sequential(),
    Sequential("random"),
    Naive(3),
    ConfidenceThreshold(0.7),
    EntropyBounded(1.0),
    MIGuided(2.0, lam=0.5, pairwise=mi_source, reading="cumulative", order="least_cost"),
]


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda d: type(d).__name__)
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_a_result_does_not_depend_on_batch_or_order(decoder, temperature):
    tokens = puzzles(20, 12)
    model = Scripted(12, torch.float64)
    reference = decode(model, tokens, decoder, seed=3, temperature=temperature)
    for size in (1, 7, 256):
        other = decode(model, tokens, decoder, seed=3, temperature=temperature, batch_size=size)
        for name in ("tokens", "passes", "matrix_passes", "steps"):
            assert torch.equal(getattr(other, name), getattr(reference, name))
    shuffled = torch.randperm(20, generator=torch.Generator().manual_seed(1))
    other = decode(
        model, tokens[shuffled], decoder, seed=3, temperature=temperature, sequence_ids=shuffled, batch_size=7
    )
    assert torch.equal(other.tokens, reference.tokens[shuffled])
    assert torch.equal(other.steps, reference.steps[shuffled])


def test_seed_and_id_matter_only_when_sampling():
    tokens, model = puzzles(20, 12), Scripted(12)
    greedy = decode(model, tokens, Naive(2)).tokens
    assert torch.equal(decode(model, tokens, Naive(2), seed=1).tokens, greedy)
    sampled = decode(model, tokens, Naive(2), temperature=1.0).tokens
    assert not torch.equal(sampled, decode(model, tokens, Naive(2), temperature=1.0, seed=1).tokens)
    ids = torch.arange(20) + 100
    assert not torch.equal(sampled, decode(model, tokens, Naive(2), temperature=1.0, sequence_ids=ids).tokens)


def test_visible_tokens_stay_and_nothing_stays_masked():
    tokens = puzzles(20, 12)
    done = decode(Scripted(12), tokens, Naive(4), temperature=2.0).tokens
    assert torch.equal(done[tokens != MASK], tokens[tokens != MASK])
    assert (done < 9).all()


def test_the_batch_is_kept_full_and_passes_are_counted():
    tokens = torch.full((5, 6), MASK)
    for row, blanks in enumerate((6, 1, 0, 4, 3)):
        tokens[row, blanks:] = 0
    model = Scripted(6)
    result = decode(model, tokens, Sequential(), batch_size=2)
    # Rows 0 and 1 start; 3 replaces 1 after one step, 4 replaces 3 after four more, and ends two steps after 0.
    assert result.batched_calls == len(model.batches) == 8
    assert result.passes.tolist() == result.steps.tolist() == [6, 1, 0, 4, 3]
    assert result.matrix_passes.tolist() == [0] * 5


def test_all_blank_finished_and_one_of_each():
    model = Scripted(81)
    blank, finished = torch.full((1, 81), MASK), torch.zeros(1, 81, dtype=torch.long)
    both = decode(model, torch.cat([blank, finished]), Naive(10))
    assert both.passes.tolist() == [9, 0]
    assert torch.equal(both.tokens[1:], finished)
    assert torch.equal(decode(model, blank, Naive(10)).tokens, both.tokens[:1])
    calls = len(model.batches)
    alone = decode(model, finished, Naive(10), keep_trace=True)
    assert len(model.batches) == calls and alone.passes.tolist() == [0] and alone.batched_calls == 0
    assert len(alone.trace.commits["step"]) == 0
    assert decode(model, blank[:0], Naive(10)).tokens.shape == (0, 81)


def test_temperature_of_nearly_zero_is_greedy():
    tokens, model = puzzles(20, 12), Scripted(12)
    greedy = decode(model, tokens, Naive(2)).tokens
    for temperature in (0.0, 1e-8, 1e-300):
        assert torch.equal(decode(model, tokens, Naive(2), temperature=temperature).tokens, greedy)


@pytest.mark.parametrize(
    "arguments",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"batch_size": 0},
        {"sequence_ids": torch.arange(3)},
    ],
)
def test_bad_arguments_are_refused(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        decode(Scripted(12), puzzles(2, 12), Sequential(), **arguments)


def test_tokens_must_be_integers_in_rows():
    for tokens in (torch.full((6,), MASK), torch.full((2, 6), 9.0)):
        with pytest.raises(ValueError, match="tokens must be integers"):
            decode(Scripted(6), tokens, Sequential())


class Fixed(Scripted):
    """The same logits in every context."""

    def __init__(self, logits):
        self.logits = logits

    def __call__(self, tokens, attention=False):
        return Output(self.logits.expand(len(tokens), -1, -1), torch.zeros(*tokens.shape, 2))


def test_impossible_values_give_finite_entropies_and_are_never_drawn():
    logits = torch.full((4, 9), -torch.inf)
    logits[:, 2:4] = 0
    logits[3, 3] = -torch.inf  # one value left: entropy 0
    result = decode(Fixed(logits), torch.full((50, 4), MASK), Naive(2), temperature=5.0, keep_trace=True)
    assert set(result.tokens[:, :3].flatten().tolist()) == {2, 3} and (result.tokens[:, 3] == 2).all()
    entropy = result.trace.commits["entropy"]
    assert torch.isfinite(entropy).all() and entropy.min() == 0


def test_equal_rows_in_bfloat16_are_taken_by_position():
    logits = torch.randn(1, 9, generator=torch.Generator().manual_seed(0)).bfloat16().expand(5, -1)
    for decoder in (Sequential(), Naive(2), EntropyBounded(0.0), ConfidenceThreshold(1.0)):
        trace = decode(Fixed(logits), torch.full((3, 5), MASK), decoder, keep_trace=True).trace
        for row in range(3):
            assert trace.commits["position"][trace.commits["sequence"] == row].tolist() == [0, 1, 2, 3, 4]
        assert trace.commits["entropy"].dtype == torch.float32 and (trace.commits["entropy"] >= 0).all()


def test_padding_is_left_alone():
    long = puzzles(1, 30, seed=1)
    short = torch.cat([puzzles(1, 6, seed=2), torch.full((1, 24), PAD)], dim=1)

    class NanOnPadding(Scripted):
        def __call__(self, tokens, attention=False):
            out = super().__call__(tokens)
            return out._replace(logits=out.logits.masked_fill((tokens == PAD)[:, :, None], torch.nan))

    model = NanOnPadding(30, torch.float64)
    both = decode(model, torch.cat([long, short]), Naive(2), temperature=1.0, sequence_ids=torch.tensor([4, 5]))
    alone = decode(model, short[:, :6], Naive(2), temperature=1.0, sequence_ids=torch.tensor([5]))
    assert torch.equal(both.tokens[1, :6], alone.tokens[0]) and (both.tokens[1, 6:] == PAD).all()


def test_where_nothing_is_committed_the_most_confident_is():
    def idle(view):
        return Decision(torch.zeros_like(view.masked))

    logits = torch.zeros(3, 9)
    logits[0, 1], logits[1, 5], logits[2, 7] = 1, 3, 2
    result = decode(Fixed(logits), torch.full((2, 3), MASK), idle, keep_trace=True)
    assert result.tokens.tolist() == [[1, 5, 7]] * 2
    assert result.trace.commits["position"][result.trace.commits["sequence"] == 0].tolist() == [1, 2, 0]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda v: Decision(~v.masked), "only masked positions"),
        (lambda v: Decision(torch.ones_like(v.masked)), "only masked positions"),
        (lambda v: Decision(v.masked, torch.full_like(v.tokens, MASK)), "values must lie in 0 … 8"),
        (lambda v: Decision(v.masked, torch.full_like(v.tokens, -1)), "values must lie in 0 … 8"),
        (lambda v: Decision(first(v.entropy, v.masked, 1), remask=v.given), "masked again"),
        (lambda v: Decision(first(v.entropy, v.masked, 1), remask=v.masked), "masked again"),
        (lambda v: Decision(v.masked[:, :3]), "shape"),
        (lambda v: Decision(v.masked.long()), "boolean"),
        (lambda v: v.memory.update(x=torch.zeros(99)) or Decision(v.masked), "memory 'x'"),
    ],
)
def test_a_decoder_that_breaks_the_rules_is_refused(answer, message):
    with pytest.raises(ValueError, match=message):
        decode(Scripted(12), puzzles(4, 12), answer)


def test_values_of_the_decoder_are_written():
    def counting(view):
        return Decision(view.masked, values=torch.where(view.masked, view.step[:, None] + 5, -7))

    assert decode(Scripted(4), torch.full((1, 4), MASK), counting).tokens.tolist() == [[5] * 4]


def remask_all(view):
    """Commits one position and masks everything else again: never ends by itself."""
    return Decision(first(view.entropy, view.masked, 1), remask=~view.masked & ~view.given)


def test_remasking_for_ever_ends():
    tokens = puzzles(6, 8, seed=5)
    blanks = (tokens == MASK).sum(1)
    result = decode(Scripted(8), tokens, remask_all, batch_size=4, keep_trace=True)
    assert torch.equal(result.tokens[tokens != MASK], tokens[tokens != MASK]) and (result.tokens < 9).all()
    # Masking again is heeded in steps 0 … 31. A sequence of two blanks or more has all but one left by then.
    assert torch.equal(result.steps[blanks > 1], 32 + blanks[blanks > 1] - 1)
    assert result.trace.remasks["step"].max() == 31
    early = decode(Scripted(8), tokens, remask_all, max_steps=3)
    assert torch.equal(early.steps[blanks > 1], 3 + blanks[blanks > 1] - 1)


def test_noise_is_fresh_only_after_masking_again():
    proposals = []

    def decoder(view):
        proposals.append(view.proposal.clone())
        commit = torch.zeros_like(view.masked)
        commit[:, 0] = view.masked[:, 0]
        remask = (view.step == 1)[:, None] & ~view.masked
        return Decision(commit, remask=remask)

    # Steps: 0 commits position 0; 1 commits the surest other (forced) and masks 0 again; 2 proposes at 0 afresh.
    decode(Fixed(torch.zeros(4, 9)), torch.full((200, 4), MASK), decoder, temperature=1.0)
    assert torch.equal(proposals[0][:, 2:], proposals[1][:, 2:])
    repeats = (proposals[2][:, 0] == proposals[0][:, 0]).float().mean()
    assert 0.03 < repeats < 0.25  # 1/9 by chance; four standard deviations of 200 draws


def test_memory_follows_its_sequence():
    def remembering(view):
        initial = view.ids.double() * 100
        kept = view.recall("count", initial)
        assert torch.equal(kept, initial + view.step)
        seen = view.recall("seen", torch.full((len(view.ids), 3), -1))
        assert torch.equal(seen, torch.where(view.step[:, None] == 0, -1, view.ids[:, None]).expand(-1, 3))
        view.memory["count"] = kept + 1
        view.memory["seen"] = view.ids[:, None].expand(-1, 3)
        return Sequential()(view)

    result = decode(Scripted(10), puzzles(30, 10), remembering, batch_size=4)
    assert (result.tokens < 9).all()


def test_extra_passes_are_counted_where_they_belong():
    def looking(view):
        rows = torch.arange(len(view.ids)).repeat_interleave(view.ids)  # sequence i looks i times a step
        filled = torch.where(view.masked, view.proposal, view.tokens)[rows]
        output = view.evaluate(filled, rows)
        assert output.logits.shape == (len(rows), 12, 9) and output.hidden.shape == (len(rows), 12, 2)
        return Sequential()(view)

    tokens = puzzles(6, 12)
    result = decode(Scripted(12), tokens, looking, batch_size=4)
    blanks = (tokens == MASK).sum(1)
    assert torch.equal(result.steps, blanks)
    assert torch.equal(result.passes, blanks * (1 + torch.arange(6)))
    assert torch.equal(decode(Scripted(12), tokens[:1], looking).passes, blanks[:1])  # no look at all


def test_another_model_is_evaluated_and_counted():
    other = Scripted(12, seed=9)

    def ensemble(view):
        output = view.evaluate(view.tokens, torch.arange(len(view.tokens)), model=other)
        assert torch.equal(output.logits, other(view.tokens).logits)
        return Sequential()(view)

    tokens = puzzles(3, 12)
    assert torch.equal(decode(Scripted(12), tokens, ensemble).passes, 2 * (tokens == MASK).sum(1))


def test_matrix_passes_are_counted_apart():
    tokens = puzzles(5, 12)
    result = decode(Scripted(12), tokens, MIGuided(1.0, pairwise=mi_source), batch_size=2)
    assert torch.equal(result.matrix_passes, 3 * result.steps)
    assert torch.equal(result.passes, result.steps)


def test_the_trace_retells_the_decoding():
    tokens = puzzles(5, 12)
    decoder = MIGuided(1.0, pairwise=mi_source)
    result = decode(Scripted(12), tokens, decoder, batch_size=2, keep_trace=True, keep_matrix=True)
    commits, steps = result.trace.commits, result.trace.steps
    retold = tokens.clone()
    retold[commits["sequence"], commits["position"]] = commits["value"]
    assert torch.equal(retold, result.tokens)
    assert torch.equal(commits["sequence"].bincount(minlength=5), (tokens == MASK).sum(1))
    assert torch.equal(steps["sequence"].bincount(minlength=5), result.steps)
    assert steps["matrix"].shape == (int(result.steps.sum()), 12, 12)
    assert torch.allclose(commits["log_prob"].exp(), commits["confidence"])  # greedy values
    assert decode(Scripted(12), tokens, decoder).trace is None


def test_nan_logits_are_refused():
    with pytest.raises(ValueError, match="NaN"):
        decode(Fixed(torch.full((4, 9), torch.nan)), torch.full((1, 4), MASK), Sequential())


def test_an_unusable_matrix_is_refused():
    def nan(model, view):
        return torch.full((*view.tokens.shape, view.tokens.shape[1]), torch.nan), torch.zeros_like(view.step)

    with pytest.raises(ValueError, match="pairwise"):
        decode(Scripted(4), torch.full((1, 4), MASK), MIGuided(1.0, pairwise=nan))


def test_two_values_are_enough():
    model = TabularModel.parity(3)
    assert (decode(model, torch.full((4, 3), 2), Sequential(), temperature=1.0).tokens.sum(1) % 2 == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_transformer_decodes_a_sequence_alone_as_in_a_batch(dtype):
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, norm_first=True)
    body = (
        torch.nn.Sequential(
            torch.nn.Embedding(11, 64), torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        )
        .to(dtype)
        .eval()
    )
    head = torch.nn.Linear(64, 9).to(dtype)
    rows = []

    class Transformer(Scripted):
        def __init__(self):
            pass

        def __call__(self, tokens, attention=False):
            rows.append(len(tokens))
            hidden = body(tokens)
            return Output(head(hidden) * 3, hidden)

    tokens = puzzles(12, 40)
    whole = decode(Transformer(), tokens, EntropyBounded(3.0), temperature=1.0)
    for size in (1, 5):
        other = decode(Transformer(), tokens, EntropyBounded(3.0), temperature=1.0, batch_size=size)
        assert torch.equal(other.tokens, whole.tokens) and torch.equal(other.steps, whole.steps)
    assert min(rows) >= 8  # small batches take other kernels; see SMALLEST_BATCH
