"""The protein studies: states to generate from, what a head is told of two residues, the sweeps, a backbone."""

import json

import pytest
import torch

from maskmi.artefacts import Artefacts
from maskmi.decoding import Naive, Sequential
from maskmi.head import PairHead
from maskmi.protein import study, sweep
from maskmi.protein.adapter import PADDING
from maskmi.protein.data import load_antibodies
from maskmi.protein.fasta import to_sequences
from maskmi.protein.pretrain import Recipe, train
from maskmi.protein.relations import relations, separation_classes
from maskmi.settings import label_of


def test_states_are_all_masked_and_padded():
    states = study.all_masked(torch.tensor([2, 4]))
    assert states.tolist() == [[study.MASK, study.MASK, PADDING, PADDING], [study.MASK] * 4]


def test_lengths_are_even_over_their_range_and_the_same_in_a_part():
    lengths = study.random_lengths(20_000, seed=3)
    assert lengths.min() == 50 and lengths.max() == 100
    # Each of 51 lengths with probability 1/51: 392 of 20,000, standard deviation 20.
    assert (lengths.bincount(minlength=101)[50:] - 392).abs().max() < 100
    assert study.random_lengths(7, seed=3).equal(lengths[:7])


def test_separations_fall_into_bins_that_widen():
    classes = separation_classes(60)
    assert classes[0, [0, 1, 2, 3, 4, 5, 6, 7, 49, 50, 59]].tolist() == [-1, 0, 1, 2, 3, 4, 4, 5, 8, 9, 9]
    flags = relations(60)
    assert flags.sum(-1).equal(1 - torch.eye(60, dtype=torch.int64)) and flags.equal(flags.transpose(0, 1))


def test_the_head_of_the_papers_backbone_has_about_the_papers_parameters():
    head = PairHead(960, relations, study.HEAD_WIDTH["esmc_300m"])
    assert sum(p.numel() for p in head.parameters()) == 818_305


def test_half_of_each_sequence_is_masked_or_the_loops_of_an_antibody():
    truth = study.natural("esmc_small", "reference")[:6]
    half = study.half_of(truth, seed=1)
    assert half.sum(1).tolist() == ((truth != PADDING).sum(1) // 2).tolist() and not half[truth == PADDING].any()
    assert half.equal(study.half_of(truth, seed=1)) and not half.equal(study.half_of(truth, seed=2))
    chains = study.natural("antiberty", "reference")[:6]
    loops = study.loops_of(chains)
    assert loops.shape == chains.shape and not loops[chains == PADDING].any()
    assert ((loops.sum(1) > 20) & (loops.sum(1) < 50)).all()


def test_the_v_genes_are_those_of_the_natural_chains():
    genes, chains = study.v_genes(), to_sequences(study.natural("antiberty", "reference"))
    gene_of = {a.sequence: a.gene for a in load_antibodies("repertoire", "H", one_per_clone=True)}
    assert [gene_of[chain].split("*")[0] for chain in chains] == genes


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A folder of artefacts with a trained esmc_small of one layer."""
    folder = tmp_path_factory.mktemp("tiny")
    recipe = Recipe(width=32, heads=1, layers=1, steps=1, micro_tokens=64, micro_batches=1, warmup_steps=1)
    train(recipe, ["ACDEFGHIKL"] * 3, ["ACDEFGHIKL"], folder / "pretrained")
    return folder


def test_a_checkpoint_is_read_at_the_size_it_was_trained_at(tiny, tmp_path):
    backbone = study.load_backbone("esmc_small", checkpoint="trained", artefacts=tiny)
    assert backbone.model.hidden_size == 32 and backbone.metadata["recipe"]["layers"] == 1
    with pytest.raises(FileNotFoundError, match="`./run_all.sh --profile full --study esmc_small` makes it"):
        study.load_backbone("esmc_small", checkpoint="trained", artefacts=tmp_path)


def test_gaps_are_filled_from_the_same_states_by_each_decoder(tiny, tmp_path):
    backbone = study.load_backbone("esmc_small", checkpoint="trained", artefacts=tiny)
    sweep = iter([({"decoder": "naive", "k": k}, Naive(k)) for k in (20, 60)])
    results = study.infilled(backbone, Artefacts(tmp_path), sweep, 2, n_joint_error=1)
    assert [settings["test_set"] for settings, _ in results] == ["infilling"] * 2
    half = ((study.natural("esmc_small", "reference")[:2] != PADDING).sum(1) // 2).tolist()
    assert [outcome["passes"].tolist() for _, outcome in results] == [[-(-n // k) for n in half] for k in (20, 60)]
    assert all(outcome["recovery"].shape == (2,) for _, outcome in results)


def test_slow_samples_have_other_noise_than_the_sweep(tiny, tmp_path, monkeypatch):
    backbone = study.load_backbone("esmc_small", checkpoint="trained", artefacts=tiny)
    monkeypatch.setattr(study, "LENGTHS", (8, 12))
    monkeypatch.setattr(study, "starting_lengths", lambda name, count, seed: study.random_lengths(count, seed, 8, 12))
    store = Artefacts(tmp_path / "store")
    slow = study.slow_samples(backbone, store, 3, 5)
    assert len(slow["entropy"]) == 3 and len(slow["random"]) == 3  # of 5 contexts each second is a visited state
    sweep = [({"decoder": "sequential", "order": "entropy"}, Sequential("entropy"))]
    ((_, outcome),) = study.generated(backbone, store, sweep, 3, n_scored=0, n_joint_error=1)
    assert to_sequences(outcome["tokens"]) != to_sequences(slow["entropy"])
    own = study.own_samples(backbone, store, 3, study.CONTEXT_SEEDS["train"])[0]
    assert slow["random"].equal(own)


@pytest.fixture(scope="module")
def heads():
    return {name: PairHead(8, relations, 4) for name in ("entropy_drop", "mixture", "tv")}


def test_the_whole_sweep_begins_with_the_short_one_and_has_each_setting_once(heads):
    short, whole = list(sweep.short_sweep(heads)), list(sweep.whole_sweep(heads))
    names = [label_of(settings) + settings.get("order", "") for settings, _ in whole]
    assert [settings for settings, _ in whole[: len(short)]] == [settings for settings, _ in short]
    assert len(set(names)) == len(names) > len(short)
    for settings, decoder in whole:
        assert json.loads(json.dumps(settings)) == settings
        assert type(decoder).__name__.lower() == settings["decoder"].replace("_", "")


def test_antiberty_is_a_backbone_and_an_unknown_study_is_refused():
    backbone = study.load_backbone("antiberty", dtype=torch.float32)
    assert backbone.parameters == 25_759_769 and backbone.identity["backbone"] == study.ANTIBERTY_SHA256
    assert not any(weight.requires_grad for weight in backbone.network.parameters())
    output = backbone.model(study.all_masked(torch.tensor([3, 5])))
    assert output.logits.shape == (2, 5, 20) and output.hidden.shape == (2, 5, 512)
    with pytest.raises(ValueError, match="no study 'esm'; choose among esmc_small, antiberty, esmc_300m"):
        study.load_backbone("esm")
