"""Training esmc_small: what a step shows, that it learns, and that an interrupted run goes on exactly."""

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from maskmi.protein import pretrain
from maskmi.protein.adapter import encode
from maskmi.protein.esmc import ESMC_SMALL, Layout, load_esmc_small, new_esmc
from maskmi.protein.pretrain import Batches, Recipe, Validation, masked, train
from maskmi.training import optimizers_of

MASK, PAD, X = 20, 21, 22
TINY = Recipe(width=64, heads=2, layers=2, steps=3, micro_tokens=128, micro_batches=3, warmup_steps=1)
LETTERS = "ACDEFGHIKLMNPQRSTVWY"


def random_sequences(count, seed=0):
    rng = np.random.default_rng(seed)
    return ["".join(rng.choice(list(LETTERS), rng.integers(5, 60))) for _ in range(count)]


SEQUENCES = random_sequences(40)


def whole(tokens, targets):
    """The sequences of a micro-batch: what is visible from the tokens, what isn't from the targets."""
    return [tuple(row[row != PAD].tolist()) for row in torch.where(targets >= 0, targets, tokens)]


def test_each_epoch_shows_each_sequence_once_by_width_in_an_order_of_its_own():
    batches = Batches(encode(SEQUENCES), replace(TINY, micro_batches=1))
    epochs = []
    for epoch in range(2):
        parts = [batches(step) for step in range(epoch * batches.per_epoch, (epoch + 1) * batches.per_epoch)]
        for [(tokens, _)] in parts:
            framed = -(-((tokens != PAD).sum(1) + 2) // 16) * 16
            assert (framed == framed[0]).all() and tokens.shape[1] <= framed[0] - 2
            assert len(tokens) * framed[0] <= 128
        epochs.append([row for [part] in parts for row in whole(*part)])
    expected = sorted(tuple(LETTERS.index(a) for a in s) for s in SEQUENCES)
    assert sorted(epochs[0]) == sorted(epochs[1]) == expected
    assert epochs[0] != epochs[1]


def test_a_step_depends_on_seed_and_number_alone():
    batches = Batches(encode(SEQUENCES), TINY)
    first, fresh = batches(7), Batches(encode(SEQUENCES), TINY)(7)
    assert len(first) == 3
    assert all(a.equal(b) for pair in zip(first, fresh, strict=True) for a, b in zip(*pair, strict=True))
    for other in (batches(8), Batches(encode(SEQUENCES), replace(TINY, seed=1))(7)):
        assert not all(a.shape == b.shape and a.equal(b) for (a, _), (b, _) in zip(first, other, strict=True))


def test_all_mask_ratios_are_alike():
    tokens = encode(["ACDEFGHIKL" * 10] * 320)
    batches = Batches(tokens, replace(TINY, micro_tokens=112 * 16, micro_batches=20))
    ratio = torch.cat([(part == MASK).sum(1) / 100 for part, _ in batches(0)])
    counts = np.histogram(ratio, bins=4, range=(0, 1))[0]
    assert counts.sum() == 320 and counts.min() > 60 and counts.max() < 100  # 80 expected


def test_only_amino_acids_are_masked_and_predicted():
    tokens, targets = masked(torch.tensor([[3, X, 5, PAD]]), torch.tensor([[True, True, False, True]]))
    assert tokens.tolist() == [[MASK, X, 5, PAD]] and targets.tolist() == [[3, -100, -100, -100]]


def test_letters():
    assert encode(["AY", "CXA"], "XBUZO").tolist() == [[0, 19, PAD], [1, X, 0]]
    assert encode([]).shape == (0, 0)
    with pytest.raises(ValueError, match="sequence 2 has 'X' at position 3"):
        encode(["AC", "ACXJ"])


def test_validation_is_uniform_for_a_model_that_knows_nothing():
    model = new_esmc(Layout(64, 2, 1)).eval()
    torch.nn.init.zeros_(model.esmc.sequence_head[3].weight)
    torch.nn.init.zeros_(model.esmc.sequence_head[3].bias)
    validation = Validation(encode(SEQUENCES), 0)
    scores = validation(model)
    assert scores["validation_loss"] == pytest.approx(math.log(20), abs=1e-5)
    assert scores["validation_loss_by_mask_ratio"] == pytest.approx([math.log(20)] * 5, abs=1e-5)
    share = [(validation.targets[validation.bins == b] >= 0).sum().item() for b in range(5)]
    residues = sum(map(len, SEQUENCES))
    assert np.array(share) / residues == pytest.approx([0.1, 0.3, 0.5, 0.7, 0.9], abs=0.05)


def test_every_weight_has_one_optimizer_and_muon_only_gets_hidden_matrices():
    weights = dict(new_esmc(Layout(64, 2, 2)).named_parameters())
    name_of = {id(p): name.removeprefix("esmc.") for name, p in weights.items()}
    *muons, adam = optimizers_of(weights, ("esmc.transformer.blocks.", "esmc.sequence_head.0."), TINY)
    names = [[name_of[id(p)] for g in o.param_groups for p in g["params"]] for o in (*muons, adam)]
    assert sorted(sum(names, [])) == sorted(name_of.values())
    parts = ("attn.layernorm_qkv.1", "attn.out_proj", "ffn.1", "ffn.3")
    expected = [f"transformer.blocks.{i}.{part}.weight" for i in range(2) for part in parts]
    assert sorted(sum(names[:-1], [])) == sorted([*expected, "sequence_head.0.weight"])


def test_the_default_has_the_layout_of_esmc_small():
    assert Recipe().layout == ESMC_SMALL
    with pytest.raises(ValueError, match="at least 1"):
        Recipe(steps=0)
    for wrong in ({"width": 100, "heads": 3}, {"width": 130, "heads": 2}, {"layers": 0}):  # 130 = 2 · 65, which is odd
        with pytest.raises(ValueError, match="even multiple"):
            Recipe(**wrong)


class Interrupted(Exception):
    pass


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return train(TINY, SEQUENCES, SEQUENCES[:4], folder, "tiny", snapshot_every=2), folder


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """What a run leaves that was stopped after its second step, where the first snapshot is."""
    folder = tmp_path_factory.mktemp("part")
    shown = Batches.__call__

    def stops(self, step):
        if step == 2:
            raise Interrupted
        return shown(self, step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Batches, "__call__", stops)
        with pytest.raises(Interrupted):
            train(TINY, SEQUENCES, SEQUENCES[:4], folder, "tiny", snapshot_every=2)
    return folder


def rows_of(folder):
    rows = [json.loads(line) for line in (folder / "tiny.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def same(model, other):
    return all(a.equal(b) for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True))


def test_training_writes_weights_and_log(uninterrupted):
    model, folder = uninterrupted
    assert {path.name for path in folder.iterdir()} == {"tiny.safetensors", "tiny.jsonl"}
    assert same(model, load_esmc_small(folder / "tiny.safetensors", layout=TINY.layout))
    log = rows_of(folder)
    assert [row["step"] for row in log] == [2, 3]
    counts = [sum(len(part) for part, _ in Batches(encode(SEQUENCES), TINY)(step)) for step in range(3)]
    assert [row["shown"] for row in log] == [sum(counts[:2]), sum(counts)]
    assert len(log[1]["validation_loss_by_mask_ratio"]) == 5


def test_the_same_seed_gives_the_same_weights_and_another_one_does_not(uninterrupted, tmp_path):
    assert same(uninterrupted[0], train(TINY, SEQUENCES, SEQUENCES[:4], tmp_path / "a", "tiny", snapshot_every=2))
    assert not same(uninterrupted[0], train(replace(TINY, seed=1), SEQUENCES, SEQUENCES[:4], tmp_path / "b"))


def test_an_interrupted_run_ends_with_the_same_weights(uninterrupted, interrupted, tmp_path):
    assert {path.name for path in interrupted.iterdir()} == {"tiny.snapshot.pt", "tiny.jsonl"}
    shutil.copytree(interrupted, tmp_path, dirs_exist_ok=True)
    resumed = train(TINY, SEQUENCES, SEQUENCES[:4], tmp_path, "tiny", snapshot_every=2)
    assert same(uninterrupted[0], resumed) and rows_of(uninterrupted[1]) == rows_of(tmp_path)


def test_a_finished_run_is_read(uninterrupted, monkeypatch):
    model, folder = uninterrupted
    monkeypatch.setattr(pretrain, "fit", None)
    assert same(model, train(TINY, SEQUENCES, SEQUENCES[:4], folder, "tiny"))


def test_what_another_recipe_or_other_sequences_made_is_refused(uninterrupted, interrupted):
    for folder in (uninterrupted[1], interrupted):
        with pytest.raises(ValueError, match="another recipe or to other data"):
            train(replace(TINY, muon_rate=0.01), SEQUENCES, SEQUENCES[:4], folder, "tiny")
        with pytest.raises(ValueError, match="another recipe or to other data"):
            train(TINY, SEQUENCES[1:], SEQUENCES[:4], folder, "tiny")
    with pytest.raises(ValueError, match="at least one sequence"):
        train(TINY, [], SEQUENCES, interrupted, "tiny")


def test_it_learns_a_repeated_pattern(tmp_path):
    """Eight letters in turn, from any of them: their entropy is log 8, but one visible letter tells all."""
    pattern = "ACDEFGHI" * 5
    sequences = [pattern[start : start + length] for start in range(8) for length in (12, 20, 28)]
    recipe = replace(TINY, steps=80, micro_tokens=256, micro_batches=2, warmup_steps=5)
    train(recipe, sequences, sequences[::2], tmp_path, "tiny", snapshot_every=40)
    first, last = rows_of(tmp_path)
    assert last["validation_loss"] < first["validation_loss"]
    assert last["validation_loss"] < 0.7 * math.log(8)
    assert last["validation_loss_by_mask_ratio"][0] < last["validation_loss_by_mask_ratio"][-1]
