from dataclasses import fields

import pytest
import torch

from maskmi.artefacts import Artefacts
from maskmi.model import Output
from maskmi.probing import Probes, inconsistency_report, probe
from maskmi.shards import probe_shards
from maskmi.tabular import TabularModel

MASK = 3


class Counting:
    """Counts rows, and stops like Ctrl-C when it has answered ``stop_after`` calls."""

    def __init__(self, model, stop_after=None):
        self.model, self.rows, self.calls, self.stop_after = model, 0, 0, stop_after
        self.values, self.hidden_size, self.device = model.values, model.hidden_size, model.device

    def __call__(self, tokens, attention=False) -> Output:
        if self.calls == self.stop_after:
            raise KeyboardInterrupt
        self.rows += len(tokens)
        self.calls += 1
        return self.model(tokens)


@pytest.fixture
def table():
    return TabularModel.random(0, 4, 3)


@pytest.fixture
def tokens():
    g = torch.Generator().manual_seed(0)
    values = torch.randint(3, (10, 4), generator=g)
    return values.masked_fill(torch.rand(10, 4, generator=g) < 0.7, MASK)


def run(model, tokens, root, **options):
    options = {"inputs": {"backbone": "abc"}, "shard_size": 4, "progress": False} | options
    model = model if isinstance(model, Counting) else Counting(model)  # the model's code is part of the key
    return probe_shards(model, tokens, Artefacts(root), **options)


def assert_same(a, b):
    for field in fields(Probes):
        left, right = getattr(a, field.name), getattr(b, field.name)
        assert (left is None) == (right is None), field.name
        if left is not None:
            assert torch.equal(left, right), field.name


def test_shards_together_are_the_whole(table, tokens, tmp_path):
    probes = run(table, tokens, tmp_path)
    assert_same(probes, probe(table, tokens))
    assert len(list(tmp_path.iterdir())) == 3
    assert inconsistency_report(probes)["pairs"] == int(probes.defined.sum()) > 20


def test_second_time_is_read_from_disk(table, tokens, tmp_path):
    first, model = run(table, tokens, tmp_path, jacobian=True), Counting(table)
    assert_same(run(model, tokens.to(torch.uint8), tmp_path, jacobian=True, batch_size=3), first)
    assert model.rows == 0
    assert first.jacobian.abs().max() > 0


def test_killed_and_started_again(table, tokens, tmp_path):
    uninterrupted = Counting(table)
    whole = run(uninterrupted, tokens, tmp_path / "a")
    with pytest.raises(KeyboardInterrupt):
        run(Counting(table, stop_after=3), tokens, tmp_path / "b")  # two calls a shard: in the second one
    assert len(list((tmp_path / "b").iterdir())) == 1
    again = Counting(table)
    assert_same(run(again, tokens, tmp_path / "b"), whole)
    assert again.rows == whole.passes[4:].sum() < uninterrupted.rows


def test_two_machines_share_the_work(table, tokens, tmp_path):
    second = run(table, tokens, tmp_path, shards=[1, 2])
    assert_same(second, probe(table, tokens[4:]))
    model = Counting(table)
    whole = run(model, tokens, tmp_path)
    assert model.rows == whole.passes[:4].sum()
    with pytest.raises(ValueError, match="0 to 2"):
        run(table, tokens, tmp_path, shards=range(2, 4))


@pytest.mark.parametrize(
    "change",
    [
        {"tolerance": 0.1},
        {"jacobian": True},
        {"inputs": {"backbone": "abd"}},
        {"parameters": {"dtype": "bfloat16"}},
        {"rows": torch.ones(10, 4, dtype=torch.bool)},
        {"name": "other"},
    ],
)
def test_changed_options_are_probed_anew(table, tokens, tmp_path, change):
    run(table, tokens, tmp_path)
    model = Counting(table)
    run(model, tokens, tmp_path, **change)
    assert model.rows > 0 and len(list(tmp_path.iterdir())) == 6


def test_changed_context_touches_its_own_shard_only(table, tokens, tmp_path):
    run(table, tokens, tmp_path)
    tokens[5] = MASK
    model = Counting(table)
    probes = run(model, tokens, tmp_path)
    assert model.rows == probes.passes[4:8].sum() and len(list(tmp_path.iterdir())) == 4


def test_changed_code_is_probed_anew(table, tokens, tmp_path, monkeypatch):
    asked = []

    def digest(*modules):
        asked.append(modules)
        return str(len(modules))

    monkeypatch.setattr("maskmi.artefacts.code_digest", digest)
    run(table, tokens, tmp_path)
    assert set(asked) == {("maskmi.probing",)}
    probe_shards(table, tokens, Artefacts(tmp_path), inputs={"backbone": "abc"}, shard_size=4, progress=False)
    assert asked[-1] == ("maskmi.probing", "maskmi.tabular")  # a model of the library counts too
    assert len(list(tmp_path.iterdir())) == 6


def test_rows_and_chosen_matrices(table, tokens, tmp_path):
    rows = torch.rand(10, 4, generator=torch.Generator().manual_seed(1)) < 0.5
    probes = run(table, tokens, tmp_path, rows=rows, matrices=["mixture"])
    expected = probe(table, tokens, rows=rows)
    assert torch.equal(probes.mixture, expected.mixture) and torch.equal(probes.probed, expected.probed)
    assert probes.entropy_drop is None and probes.tv is None
    assert torch.equal(run(table, tokens, tmp_path, rows=rows).tv, expected.tv)
    with pytest.raises(ValueError, match="no matrix 'mi'"):
        run(table, tokens, tmp_path, matrices=["mi"])


def test_model_without_provenance_is_refused(table, tokens, tmp_path):
    with pytest.raises(ValueError, match="inputs"):
        run(table, tokens, tmp_path, inputs={})
