"""Training the Sudoku model: what a batch holds, how the rates go, and that an interrupted run goes on exactly."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from maskmi.artefacts import load_checkpoint
from maskmi.sudoku import pretrain
from maskmi.sudoku.grading import after_singles
from maskmi.sudoku.grid import violations
from maskmi.sudoku.mdm import MASK, SudokuMDM
from maskmi.sudoku.pretrain import MATRICES, RECIPES, Recipe, masked_batch, train
from maskmi.sudoku.solver import count_solutions, random_grids, solve
from maskmi.training import learning_rate_factor, optimizers_of

GRIDS = random_grids(48, 7)
PLAIN = Recipe(grids=48, batch_size=12, augment=False, puzzle_share=0.0)
TINY = Recipe(grids=64, presentations=96, batch_size=32, micro_batch=16, warmup_steps=1)  # three steps


def grids_of(tokens, targets):
    """The full grids of a batch: what is visible from the tokens, what isn't from the targets."""
    return torch.where(tokens == MASK, targets, tokens).numpy().astype(np.uint8)


@pytest.mark.parametrize("recipe", [PLAIN, replace(PLAIN, augment=True, puzzle_share=0.5)])
def test_a_batch_depends_on_seed_and_step_alone(recipe):
    later, _ = masked_batch(GRIDS, recipe, 3)
    again, _ = masked_batch(GRIDS, recipe, 3)
    assert later.equal(again) and later.shape == (12, 81)
    assert not later.equal(masked_batch(GRIDS, recipe, 2)[0])
    assert not later.equal(masked_batch(GRIDS, replace(recipe, seed=1), 3)[0])


def test_each_epoch_shows_each_grid_once_in_an_order_of_its_own():
    batches = [grids_of(*masked_batch(GRIDS, PLAIN, step)) for step in range(8)]
    epochs = [np.concatenate(batches[:4]), np.concatenate(batches[4:])]
    for epoch in epochs:
        assert np.unique(epoch, axis=0).tolist() == np.unique(GRIDS, axis=0).tolist()
    assert (epochs[0] != epochs[1]).any()


def test_an_epoch_may_end_within_a_batch():
    recipe = replace(PLAIN, batch_size=32)
    shown = np.concatenate([grids_of(*masked_batch(GRIDS, recipe, step)) for step in range(3)])
    for epoch in (shown[:48], shown[48:]):
        assert len(np.unique(epoch, axis=0)) == 48


@pytest.mark.parametrize("recipe", [PLAIN, replace(PLAIN, augment=True, puzzle_share=0.5)])
def test_targets_are_the_digits_of_masked_cells_and_nothing_elsewhere(recipe):
    tokens, targets = masked_batch(GRIDS, recipe, 0)
    masked = tokens == MASK
    assert (targets[~masked] == -100).all()
    assert ((targets[masked] >= 0) & (targets[masked] < 9)).all()
    assert tokens.dtype == targets.dtype == torch.int64


def test_augmented_grids_are_valid_and_not_those_given():
    grids = grids_of(*masked_batch(GRIDS, replace(PLAIN, augment=True), 0))
    assert (violations(grids) == 0).all()
    given = {grid.tobytes() for grid in GRIDS}
    assert not any(grid.tobytes() in given for grid in grids)


def test_uniform_masking_has_every_ratio_alike():
    tokens, _ = masked_batch(GRIDS, replace(PLAIN, batch_size=480), 0)
    ratios = (tokens == MASK).double().mean(1)
    counts = np.histogram(ratios, bins=4, range=(0, 1))[0]
    assert counts.min() > 80 and counts.max() < 160  # 120 expected, standard deviation 9.5


def test_puzzle_rows_have_one_solution_and_the_others_are_masked_uniformly():
    recipe = replace(PLAIN, batch_size=48, augment=True, puzzle_share=0.5)
    tokens, targets = masked_batch(GRIDS, recipe, 0)
    puzzles = tokens.numpy().astype(np.uint8)[:24]
    # Revealing cells of a puzzle leaves its one solution, so all of these rows have it.
    assert (count_solutions(puzzles) == 1).all()
    assert (solve(puzzles) == grids_of(tokens, targets)[:24]).all()
    blanks = (puzzles == MASK).sum(1)
    assert blanks.max() <= 60
    # About half are as given, which a random state on the way to the solution (0 to 60 blanks) seldom looks like.
    assert 5 <= (blanks >= 44).sum() <= 22 and (blanks < 40).any()
    assert (count_solutions(tokens.numpy().astype(np.uint8)[24:]) > 1).any()


def test_stuck_puzzles_stand_where_singles_end():
    recipe = replace(PLAIN, batch_size=48, puzzle_share=1.0, min_blanks=54, stuck_share=1.0)
    tokens, targets = masked_batch(GRIDS, recipe, 0)
    puzzles = tokens.numpy().astype(np.uint8)
    assert (solve(puzzles) == grids_of(tokens, targets)).all()
    filled = after_singles(puzzles)
    # Where singles solve a puzzle it stays as it is; what is left of the others they do not change.
    stuck = (filled == MASK).any(1)
    assert stuck.any() and (filled[stuck] == puzzles[stuck]).all()


def test_a_stage_goes_on_from_the_one_before(tmp_path, monkeypatch):
    first = replace(TINY, presentations=64)
    second = replace(TINY, presentations=32, shown=64, continues="first", muon_rate=0.0, adam_rate=0.0)
    monkeypatch.setitem(RECIPES, "first", first)
    model = train(second, tmp_path, "second", snapshot_every=1)
    before = load_checkpoint(tmp_path / "first.safetensors")[0]
    assert all(value.equal(before[name].float()) for name, value in model.state_dict().items())  # its rates are zero
    log = [json.loads(line) for line in (tmp_path / "second.jsonl").read_text().splitlines()]
    assert [(row["step"], row["grids"]) for row in log] == [(1, 32), (2, 64), (3, 96)]
    assert masked_batch(GRIDS, second, 0)[0].equal(masked_batch(GRIDS, replace(TINY, presentations=96), 2)[0])


def test_learning_rates_rise_stay_and_fall_to_zero():
    recipe = Recipe(presentations=1000, batch_size=10, warmup_steps=10, decay_share=0.2)  # 100 steps, the last 20 fall
    by_hand = {0: 0.1, 4: 0.5, 9: 1.0, 50: 1.0, 80: 1.0, 90: 0.5, 99: 0.05}
    assert recipe.steps == 100
    assert {step: learning_rate_factor(step, recipe) for step in by_hand} == pytest.approx(by_hand)


def test_the_papers_budget_is_ten_epochs_of_a_hundred_thousand_grids():
    first, strong = RECIPES["strong_first"], RECIPES["strong"]
    assert strong.continues == "strong_first" and strong.shown == first.presentations
    assert first.presentations + strong.presentations == 10 * strong.grids
    weak = RECIPES["paper_strength"]
    assert (weak.confined_heads, weak.augment, weak.puzzle_share) == (0, False, 0.0)


@pytest.mark.parametrize("confined_heads", [0, 2])
def test_every_parameter_has_one_optimizer_and_muon_only_gets_hidden_matrices(confined_heads):
    masters = dict(SudokuMDM(confined_heads).named_parameters())
    name_of = {id(p): name for name, p in masters.items()}
    *muons, adam = optimizers_of(masters, MATRICES, TINY)
    names = [[name_of[id(p)] for g in o.param_groups for p in g["params"]] for o in (*muons, adam)]
    assert sorted(sum(names, [])) == sorted(masters)
    assert sorted(sum(names[:-1], [])) == sorted(
        ["head_in.weight", *(f"layers.{i}.{part}.weight" for i in range(4) for part in ("qkv", "out", "up", "down"))]
    )
    assert {"token.weight", "row.weight", "head_out.weight", "layers.0.qkv.bias", "norm.weight"} <= set(names[-1])


class Interrupted(Exception):
    pass


@pytest.fixture(scope="module", autouse=True)
def few_puzzles_to_validate_with():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretrain, "HELD_OUT", 16)
        yield


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return train(TINY, folder, "tiny", snapshot_every=2), folder


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """What a run leaves that was stopped after its second step, where the first snapshot is."""
    folder = tmp_path_factory.mktemp("part")

    def stops(grids, recipe, step):
        if step == 2:
            raise Interrupted
        return masked_batch(grids, recipe, step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretrain, "masked_batch", stops)
        with pytest.raises(Interrupted):
            train(TINY, folder, "tiny", snapshot_every=2)
    return folder


def test_training_writes_weights_and_log_and_lowers_the_loss(uninterrupted):
    model, folder = uninterrupted
    assert {path.name for path in folder.iterdir()} == {"tiny.safetensors", "tiny.jsonl"}
    weights, metadata = load_checkpoint(folder / "tiny.safetensors")
    assert all(weights[name].float().equal(tensor) for name, tensor in model.state_dict().items())
    assert all(tensor.dtype == torch.bfloat16 for tensor in weights.values())
    log = [json.loads(line) for line in (folder / "tiny.jsonl").read_text().splitlines()]
    assert [(row["step"], row["grids"]) for row in log] == [(2, 64), (3, 96)]
    assert metadata["log"] == log[-1] and Recipe(**metadata["recipe"]) == TINY
    assert log[1]["loss"] < log[0]["loss"] and log[1]["puzzle_loss"] > 0
    assert 0 <= log[1]["puzzle_accuracy"] <= 1 and log[1]["seconds"] > log[0]["seconds"]


def test_an_interrupted_run_ends_with_the_same_weights(uninterrupted, interrupted, tmp_path, monkeypatch):
    model, folder = uninterrupted
    assert {path.name for path in interrupted.iterdir()} == {"tiny.snapshot.pt", "tiny.jsonl"}
    shutil.copytree(interrupted, tmp_path, dirs_exist_ok=True)
    steps = []
    monkeypatch.setattr(pretrain, "masked_batch", lambda *args: steps.append(args[2]) or masked_batch(*args))
    resumed = train(TINY, tmp_path, "tiny", snapshot_every=2)
    assert steps == [2]
    assert all(a.equal(b) for a, b in zip(model.state_dict().values(), resumed.state_dict().values(), strict=True))
    logs = [[json.loads(line) for line in (f / "tiny.jsonl").read_text().splitlines()] for f in (folder, tmp_path)]
    for row in sum(logs, []):
        del row["seconds"]
    assert logs[0] == logs[1]


def test_a_finished_run_is_read(uninterrupted, monkeypatch):
    model, folder = uninterrupted
    monkeypatch.setattr(pretrain, "masked_batch", None)
    again = train(TINY, folder, "tiny")
    assert all(a.equal(b) for a, b in zip(model.state_dict().values(), again.state_dict().values(), strict=True))


def test_what_another_recipe_made_is_refused(uninterrupted, interrupted):
    with pytest.raises(ValueError, match="trained by another recipe"):
        train(replace(TINY, seed=1), uninterrupted[1], "tiny")
    with pytest.raises(ValueError, match="belongs to another recipe"):
        train(replace(TINY, muon_rate=0.01), interrupted, "tiny")


def test_a_batch_may_be_a_single_micro_batch(tmp_path):
    recipe = replace(TINY, presentations=8, batch_size=8, micro_batch=8, warmup_steps=1, decay_share=0.0)
    before = SudokuMDM(recipe.confined_heads).state_dict()
    after = train(recipe, tmp_path, "small").state_dict()
    assert all(after[name].isfinite().all() for name in before)
    assert (after["layers.0.out.weight"] != 0).any()  # starts at zero
