"""The steps of the Sudoku study: what is loaded, what is stored and made once, and what makes a result another one."""

from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from maskmi import study
from maskmi.artefacts import Artefacts, save_checkpoint, sha256
from maskmi.decoding import MIGuided, Naive, Sequential
from maskmi.decoding.sources import HeadMatrix
from maskmi.metrics import bootstrap_interval, wilson_interval
from maskmi.precision import find_dtype
from maskmi.probing import probe
from maskmi.sudoku import study as sudoku
from maskmi.sudoku.data import PuzzleSet, load_test_set
from maskmi.sudoku.grid import is_valid_solution
from maskmi.sudoku.mdm import MASK, SudokuMDM
from maskmi.sudoku.pretrain import RECIPES
from maskmi.sudoku.solver import random_grids
from maskmi.sudoku.symmetry import form_keys
from maskmi.train_head import HeadRecipe

LOG = {"step": 4, "grids": 128, "loss": 2.0, "seconds": 1.5}
HEAD_RECIPE = HeadRecipe(epochs=1, batch_size=3)


def write_backbone(path, seed, recipe="strong"):
    """A checkpoint of random weights, none of which is idle."""
    torch.manual_seed(seed)
    model = SudokuMDM(RECIPES[recipe].confined_heads)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.05)
    save_checkpoint(path, model.state_dict(), {"recipe": asdict(RECIPES[recipe]), "name": recipe, "log": LOG})
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    names = {"strong": "strong", "paper_strength": "paper_strength", "other": "strong"}
    return {name: write_backbone(folder / f"{name}.safetensors", i, names[name]) for i, name in enumerate(names)}


@pytest.fixture(scope="module")
def backbone(files):
    return sudoku.load_backbone("sudoku", checkpoint=files["strong"], dtype=torch.float32)


@pytest.fixture(scope="module")
def other(files):
    return sudoku.load_backbone("sudoku", checkpoint=files["other"], dtype=torch.float32)


@pytest.fixture
def store(tmp_path):
    return Artefacts(tmp_path / "store")


@pytest.fixture
def no_passes(backbone, monkeypatch):
    """From its call on, the model may not be evaluated any more."""

    def fail(*_):
        raise AssertionError("a stored result was made again")

    return lambda: monkeypatch.setattr(backbone.network, "forward", fail)


def nearly_full(count, blanks, seed=0):
    """Grids [count, 81] with a few cells masked."""
    grids = random_grids(count, 11)
    masked = np.random.default_rng(seed).random(grids.shape).argsort(1) < blanks
    return grids, np.where(masked, MASK, grids).astype(np.uint8)


@pytest.fixture(scope="module")
def puzzles():
    grids, masked = nearly_full(9, 6)
    return PuzzleSet(masked, grids, *(np.zeros(9, dtype=np.int64) for _ in range(4)))


@pytest.fixture(scope="module")
def labelled():
    """Masked contexts with made-up labels, and which pairs are known."""
    tokens = torch.from_numpy(nearly_full(6, 5)[1].astype(np.int64))
    masked = tokens == MASK
    known = masked[:, :, None] & masked[:, None, :] & ~torch.eye(81, dtype=torch.bool)
    labels = torch.rand(6, 81, 81, generator=torch.Generator().manual_seed(0))
    return tokens, (labels + labels.mT) * known, known


def same(first, second):
    return first.keys() == second.keys() and all(
        first[k].allclose(second[k], equal_nan=True, atol=1e-4) for k in first if k != "seconds"
    )


# Backbones and heads


def test_the_shipped_trained_and_named_checkpoints_are_loaded(files, tmp_path, monkeypatch):
    monkeypatch.setattr(study, "CHECKPOINTS", files["strong"].parent)
    shipped = sudoku.load_backbone("sudoku")
    assert shipped.name == "strong" and shipped.parameters == 4_158_346 and shipped.sha256 == sha256(files["strong"])
    assert shipped.network.confined_heads == 2 and shipped.metadata["log"] == LOG
    assert shipped.identity["dtype"] == shipped.dtype and shipped.identity["backbone"] == shipped.sha256
    assert shipped.dtype == str(find_dtype()).removeprefix("torch.")
    assert sudoku.load_backbone("sudoku", dtype="bfloat16").identity != shipped.identity or shipped.dtype == "bfloat16"
    assert not shipped.network.training and not any(p.requires_grad for p in shipped.network.parameters())
    plain = sudoku.load_backbone("sudoku_paper_strength")
    assert plain.network.confined_heads == 0 and plain.sha256 == sha256(files["paper_strength"])

    trained = write_backbone(tmp_path / "pretrained" / "strong.safetensors", 5)
    found = sudoku.load_backbone("sudoku", checkpoint="trained", artefacts=tmp_path)
    assert found.sha256 == sha256(trained) == sudoku.load_backbone("sudoku", checkpoint=trained).sha256
    assert found.sha256 != shipped.sha256


def test_bad_checkpoints_are_refused(files, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="no study 'chess'; choose among sudoku, sudoku_paper_strength"):
        sudoku.load_backbone("chess")
    with pytest.raises(ValueError, match="needs the folder of artefacts"):
        sudoku.load_backbone("sudoku", checkpoint="trained")
    monkeypatch.setattr(study, "CHECKPOINTS", tmp_path)
    with pytest.raises(FileNotFoundError, match="run_all.sh --profile full --study sudoku"):
        sudoku.load_backbone("sudoku")
    (tmp_path / "cut.safetensors").write_bytes(files["strong"].read_bytes()[:-1000])
    with pytest.raises(ValueError, match="cut.safetensors can't be read"):
        sudoku.load_backbone("sudoku", checkpoint=tmp_path / "cut.safetensors")
    save_checkpoint(tmp_path / "head.safetensors", {"weight": torch.zeros(2)}, {"study": "sudoku"})
    with pytest.raises(ValueError, match="is no Sudoku backbone"):
        sudoku.load_backbone("sudoku", checkpoint=tmp_path / "head.safetensors")


def test_a_checkpoint_listed_with_another_checksum_is_refused(files, tmp_path):
    path = tmp_path / "strong.safetensors"
    path.write_bytes(files["strong"].read_bytes())
    (tmp_path / "SHA256SUMS").write_text(f"{'0' * 64}  strong.safetensors\n")
    with pytest.raises(ValueError, match="was cut or altered"):
        sudoku.load_backbone("sudoku", checkpoint=path)


def test_the_training_log_or_its_last_row(files, tmp_path):
    path = tmp_path / "strong.safetensors"
    path.write_bytes(files["strong"].read_bytes())
    assert study.training_log(path).to_dict("records") == [LOG]
    path.with_suffix(".jsonl").write_text('{"step": 2, "loss": 3.0}\n{"step": 4, "loss": 2.0}\n')
    assert study.training_log(path)["loss"].tolist() == [3.0, 2.0]


def test_a_shipped_head_is_loaded_for_its_own_backbone_only(backbone, other, tmp_path, monkeypatch):
    monkeypatch.setattr(study, "CHECKPOINTS", tmp_path)
    head = study.new_head(backbone, 3)
    assert study.save_head(tmp_path, backbone, head, "tv").name == "strong.head.tv.safetensors"
    loaded = study.load_head(backbone, "tv")
    assert all(a.equal(b) for a, b in zip(loaded.parameters(), head.parameters(), strict=True))
    assert not any(p.requires_grad for p in loaded.parameters())
    with pytest.raises(ValueError, match="strong.head.tv.safetensors belongs to another backbone"):
        study.load_head(other, "tv")
    with pytest.raises(FileNotFoundError, match="entropy_drop"):
        study.load_head(backbone)


def test_a_new_head_depends_on_its_seed_alone_and_leaves_the_generator_as_it_was(backbone):
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    first = study.new_head(backbone, 4)
    assert torch.rand(1).equal(expected)
    assert sum(p.numel() for p in first.parameters()) == 99_969
    assert study.new_head(backbone, 4).position.weight.equal(first.position.weight)
    assert not study.new_head(backbone, 5).position.weight.equal(first.position.weight)


# Contexts


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_the_first_contexts_are_the_same_whatever_the_count(split):
    few, many = sudoku.contexts(5, split), sudoku.contexts(40, split)
    assert few.equal(many[:5]) and many.shape == (40, 81)
    masked = many == MASK
    assert (masked.sum(1) >= 2).all() and masked.sum(1).unique().numel() > 15
    grids = torch.from_numpy(random_grids(40, sudoku.CONTEXT_SEEDS[split]).astype(np.int64))
    assert many.equal(grids.masked_fill(masked, MASK))


def test_contexts_of_an_unknown_split_are_refused():
    with pytest.raises(ValueError, match="choose among train, held_out"):
        sudoku.contexts(2, "test")


def test_training_held_out_and_test_grids_are_not_equivalent():
    parts = [random_grids(100, seed) for seed in sudoku.CONTEXT_SEEDS.values()]
    parts += [load_test_set(name).solutions[:500] for name in ("unique", "random")]
    keys = [key for part in parts for key in form_keys(part)]
    assert len(set(keys)) == len(keys) == 1200


def test_a_set_of_puzzles_begins_alike_and_has_an_end():
    few = sudoku.puzzle_set("unique", 3)
    assert all(len(column) == 3 for column in few)
    assert (few.puzzles == load_test_set("unique").puzzles[:3]).all()
    for count in (0, 1001):
        with pytest.raises(ValueError, match=f"has 1000 puzzles: n_puzzles cannot be {count}"):
            sudoku.puzzle_set("unique", count)


# Stored steps


def test_probes_are_made_once_and_are_those_of_the_model(backbone, other, store, no_passes):
    tokens = torch.from_numpy(nearly_full(2, 3)[1].astype(np.int64))
    probes = study.probed(backbone, store, tokens, tolerance=0.0, progress=False)
    expected = probe(backbone.model, tokens)
    assert probes.entropy_drop.allclose(expected.entropy_drop, atol=1e-4)
    study.probed(other, store, tokens, tolerance=0.0, progress=False)
    assert len(list(store.root.iterdir())) == 2
    no_passes()
    again = study.probed(backbone, store, tokens, tolerance=0.0, matrices=("tv",), progress=False)
    assert again.tv.equal(probes.tv) and again.mixture is None
    labels, known = study.labels_of(again, "tv")
    assert known.sum(dim=(1, 2)).tolist() == [3 * 2] * 2 and labels.equal(labels.mT)
    for tolerance, contexts in ((0.1, tokens), (0.0, tokens.flip(0))):
        with pytest.raises(AssertionError, match="made again"):
            study.probed(backbone, store, contexts, tolerance=tolerance, progress=False)


def test_a_head_is_fitted_once_for_each_recipe_labels_and_backbone(backbone, other, store, labelled, no_passes):
    tokens, labels, known = labelled
    head, about = study.fitted_head(backbone, store, tokens, labels, known, HEAD_RECIPE, progress=False)
    assert about["parameters"] == 99_969 and len(about["losses"]) == 1
    assert not any(p.requires_grad for p in head.parameters())
    assert not head.position.weight.equal(study.new_head(backbone, HEAD_RECIPE.seed).position.weight)
    changed = [
        (backbone, labels, replace(HEAD_RECIPE, seed=1)),
        (backbone, labels * 2, HEAD_RECIPE),
        (other, labels, HEAD_RECIPE),
    ]
    digests = {about["sha256"]} | {
        study.fitted_head(by, store, tokens, wanted, known, recipe, progress=False)[1]["sha256"]
        for by, wanted, recipe in changed
    }
    assert len(digests) == 4
    no_passes()
    again, told = study.fitted_head(backbone, store, tokens, labels, known, HEAD_RECIPE, progress=False)
    assert told == about and again.out.weight.equal(head.out.weight)


@pytest.fixture(scope="module")
def decoding(puzzles):
    """``decoding(backbone, store, decoder, …)``: decode the few puzzles."""

    def run(backbone, store, decoder, settings=None, **options):
        settings = settings or {"decoder": "any"}
        states = torch.from_numpy(puzzles.puzzles).long()

        def judge(tokens):
            return sudoku.judged(tokens, puzzles)

        return study.decoded(backbone, store, states, decoder, settings, judge=judge, progress=False, **options)

    return run


def test_a_sequential_decoding_takes_a_pass_a_cell(backbone, store, decoding, puzzles):
    outcome = decoding(backbone, store, Sequential())
    assert outcome["passes"].tolist() == outcome["steps"].tolist() == [6] * 9
    assert outcome["matrix_passes"].tolist() == [0] * 9 and len(outcome["joint_error"]) == 0
    assert outcome["solved"].equal(outcome["violations"] == 0)
    assert not (outcome["solution"] & ~outcome["solved"]).any()


def test_decoding_reports_what_became_of_each_puzzle(backbone, store, decoding, puzzles, monkeypatch):
    """With a model that knows the solutions of all but one, and of that one a false digit."""
    told = torch.from_numpy(puzzles.solutions.astype(np.int64))
    told[4, puzzles.puzzles[4] == MASK] = (told[4, puzzles.puzzles[4] == MASK] + 1) % 9
    forward = backbone.network.forward

    def knowing(tokens, attention=False):
        visible = tokens != MASK
        which = ((tokens[:, None] == told) | ~visible[:, None]).all(-1).float().argmax(1)
        output = forward(tokens, attention)
        return output._replace(logits=20.0 * torch.nn.functional.one_hot(told[which], 9))

    monkeypatch.setattr(backbone.network, "forward", knowing)
    outcome = decoding(backbone, store, Naive(3), n_joint_error=5)
    right = [i != 4 for i in range(9)]
    assert outcome["solved"].tolist() == outcome["solution"].tolist() == right
    assert [v > 0 for v in outcome["violations"].tolist()] == [not r for r in right]
    assert outcome["passes"].tolist() == [2] * 9
    # Two steps of three cells for each of the first five; certain digits ignore nothing.
    assert outcome["joint_sequence"].tolist() == [0, 1, 2, 3, 4] * 2 and outcome["joint_members"].tolist() == [3] * 10
    assert outcome["joint_error"].abs().max() < 1e-6
    grids = told.numpy().astype(np.uint8)
    assert is_valid_solution(grids, puzzles.puzzles).tolist() == right


def test_decoding_is_stored(backbone, store, decoding, no_passes):
    first = decoding(backbone, store, Naive(3), {"decoder": "naive", "k": 3})
    no_passes()
    again = decoding(backbone, store, Naive(3), {"decoder": "naive", "k": 3}, batch_size=3)
    assert same(first, again) and first["seconds"] == again["seconds"]
    assert len(first["joint_error"]) == 18


def test_another_setting_seed_head_or_backbone_is_another_result(backbone, other, store, decoding):
    guided = [MIGuided(3.0, pairwise=HeadMatrix(study.new_head(backbone, seed))) for seed in range(2)]
    settings = {"decoder": "mi_guided", "budget": 3.0}
    runs = [
        lambda: decoding(backbone, store, guided[0], settings),
        lambda: decoding(backbone, store, guided[1], settings),
        lambda: decoding(other, store, guided[0], settings),
        lambda: decoding(backbone, store, MIGuided(4.0, pairwise=guided[0].pairwise), settings | {"budget": 4.0}),
        lambda: decoding(backbone, store, guided[0], settings, seed=1),
        lambda: decoding(backbone, store, guided[0], settings, temperature=1.0),
        lambda: decoding(backbone, store, guided[0], settings, n_joint_error=2),
    ]
    for count, run in enumerate(runs, start=1):
        run()
        assert len(list(store.root.iterdir())) == count, count
    runs[0]()
    assert len(list(store.root.iterdir())) == len(runs)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_size_of_a_batch_changes_nothing(backbone, decoding, tmp_path, temperature):
    decoder = MIGuided(3.0, pairwise=HeadMatrix(study.new_head(backbone)))
    outcomes = [
        decoding(backbone, Artefacts(tmp_path / str(size)), decoder, batch_size=size, temperature=temperature)
        for size in (4, 512)
    ]
    calls = [outcome.pop("batched_calls") for outcome in outcomes]
    assert calls[0] > calls[1]
    assert same(*outcomes) and len(outcomes[0]["joint_error"]) > 0


def test_a_sweep_names_its_set_and_temperature(backbone, store, puzzles, monkeypatch):
    monkeypatch.setattr(sudoku, "puzzle_set", lambda name, n: PuzzleSet(*(column[:n] for column in puzzles)))
    sweep = [({"decoder": "naive", "k": k}, Naive(k)) for k in (3, 6)]
    results = sudoku.run_sweep(backbone, store, sweep, "unique", 2, progress=False)
    assert [settings for settings, _ in results] == [{"decoder": "naive", "k": k, "test_set": "unique"} for k in (3, 6)]
    assert [outcome["passes"].tolist() for _, outcome in results] == [[2, 2], [1, 1]]
    (settings, _), *_ = sudoku.run_sweep(backbone, store, sweep[:1], "random", 2, temperature=1.0, progress=False)
    assert settings == {"decoder": "naive", "k": 3, "test_set": "random", "temperature": 1.0}


# Summary


def made_up_outcome():
    return {
        "solved": torch.tensor([True, False, True, True]),
        "violations": torch.tensor([0, 4, 0, 0]),
        "passes": torch.tensor([10, 20, 30, 40]),
        "matrix_passes": torch.tensor([0, 0, 0, 0]),
        "steps": torch.tensor([1, 2, 3, 4]),
        "batched_calls": torch.tensor(40),
        "seconds": torch.tensor(2.0, dtype=torch.float64),
        "joint_error": torch.tensor([0.1, 0.3, float("inf"), -0.1], dtype=torch.float64),
    }


def test_a_summary_by_hand():
    settings = {"decoder": "naive", "k": 4, "test_set": "unique"}
    row = sudoku.summary(made_up_outcome(), settings)
    assert {k: row[k] for k in ("decoder", "settings", "test_set", "n", "passes", "steps", "batched_calls")} == {
        "decoder": "naive",
        "settings": {"k": 4},
        "test_set": "unique",
        "n": 4,
        "passes": 25.0,
        "steps": 2.5,
        "batched_calls": 40,
    }
    assert row["seconds_per_sequence"] == 0.5 and row["joint_error_nats"] == pytest.approx(0.1)
    assert row["metrics"]["solved"] == wilson_interval(3, 4)._asdict() and row["metrics"]["solved"]["value"] == 0.75
    assert row["metrics"]["violations"] == bootstrap_interval([0, 4, 0, 0])._asdict()
    assert row["metrics"]["violations"]["value"] == 1.0 and "matrix_passes" not in row


def test_a_summary_leaves_out_what_was_not_measured_and_tells_the_matrix_passes():
    outcome = made_up_outcome() | {"joint_error": torch.empty(0), "matrix_passes": torch.tensor([0, 100, 100, 200])}
    row = sudoku.summary(outcome, {"decoder": "sequential", "test_set": "random"})
    assert "joint_error_nats" not in row and row["matrix_passes"] == 100.0 and row["settings"] == {}
