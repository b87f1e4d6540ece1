import errno
import hashlib
import os
import sys
import textwrap

import pytest
import torch

from maskmi.artefacts import (
    Artefacts,
    code_digest,
    load_checkpoint,
    save_checkpoint,
    sha256,
    tensor_sha256,
    write_atomically,
)

TENSORS = {"mi": torch.arange(6.0).view(2, 3), "known": torch.tensor([True, False]), "half": torch.ones(3).bfloat16()}


class Maker:
    def __init__(self, content):
        self.content, self.calls = content, 0

    def __call__(self):
        self.calls += 1
        return self.content


def get(root, make, parameters=None, inputs=None, code=()):
    parameters = {"seed": 1} if parameters is None else parameters
    return Artefacts(root).get_or_make("thing", make, parameters=parameters, inputs=inputs or {}, code=code)


def assert_content(found, expected):
    if expected is not TENSORS:
        assert found == expected
        return
    assert found.keys() == expected.keys()
    for name in found:
        assert found[name].dtype == expected[name].dtype and torch.equal(found[name], expected[name])


@pytest.mark.parametrize(
    "content", [TENSORS, {"rate": 0.5, "list": [1, 2]}, [1.5, None, "x"]], ids=["t", "dict", "list"]
)
def test_made_once(tmp_path, content):
    make = Maker(content)
    first, second = get(tmp_path, make), get(tmp_path, make)
    assert make.calls == 1
    for found in (first, second):
        assert_content(found, content)
    assert [path.suffix for path in tmp_path.iterdir()] == [".safetensors" if content is TENSORS else ".json"]


def test_another_parameter_input_or_name_is_another_result(tmp_path):
    artefacts, tokens = Artefacts(tmp_path), torch.tensor([[1, 2]])
    keys = [
        artefacts.key("a", {"seed": 1}, {"data": "ab"}),
        artefacts.key("b", {"seed": 1}, {"data": "ab"}),
        artefacts.key("a", {"seed": 2}, {"data": "ab"}),
        artefacts.key("a", {"seed": 1}, {"data": "cd"}),
        artefacts.key("a", {"seed": 1}, {"data": tokens}),
        artefacts.key("a", {"seed": 1}, {"data": tokens + 1}),
        artefacts.key("a", {"seed": 1}, {"data": tokens.T}),
        artefacts.key("a", {"seed": 1}, {"data": "ab"}, ["maskmi.model"]),
    ]
    assert len(set(keys)) == len(keys)
    assert artefacts.key("a", {"x": 1, "y": 2}) == artefacts.key("a", {"y": 2, "x": 1})
    make = Maker([1])
    get(tmp_path, make)
    get(tmp_path, make, parameters={"seed": 2})
    assert make.calls == 2


@pytest.mark.parametrize("bad", [{"x": float("nan")}, {"x": torch.float32}])
def test_parameters_must_be_json(tmp_path, bad):
    with pytest.raises(ValueError, match="JSON"):
        get(tmp_path, Maker([1]), parameters=bad)


def test_metadata_say_what_made_it(tmp_path):
    artefacts = Artefacts(tmp_path)
    for content in (TENSORS, [1]):
        parameters = {"kind": type(content).__name__}
        get(tmp_path, Maker(content), parameters=parameters, inputs={"data": "ab"}, code=["maskmi.model"])
        found = artefacts.describe(artefacts.key("thing", parameters, {"data": "ab"}, ["maskmi.model"]))
        assert found["name"] == "thing" and found["parameters"] == parameters and found["inputs"] == {"data": "ab"}
        assert found["code"] == code_digest("maskmi.model")
        assert found["versions"]["torch"] == torch.__version__ and {"numpy", "maskmi"} <= found["versions"].keys()
        assert found["made"].startswith("20")
    with pytest.raises(FileNotFoundError, match="no result"):
        artefacts.describe("thing-0")


def cut(data):
    return data[: len(data) // 2]


def flip_last(data):
    return data[:-5] + bytes([data[-5] ^ 1]) + data[-4:]


@pytest.mark.parametrize("content", [TENSORS, {"rate": 0.515625}], ids=["tensors", "json"])
@pytest.mark.parametrize("damage", [cut, flip_last, lambda data: b"", lambda data: b"{}"])
def test_damaged_results_are_made_again(tmp_path, content, damage):
    make = Maker(content)
    get(tmp_path, make)
    (path,) = tmp_path.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    with pytest.warns(UserWarning, match="damaged"):
        get(tmp_path, make)
    assert make.calls == 2
    assert_content(get(tmp_path, make), content)
    assert make.calls == 2


def test_altered_json_content_is_noticed(tmp_path):
    make = Maker({"rate": 0.5})
    get(tmp_path, make)
    (path,) = tmp_path.iterdir()
    path.write_text(path.read_text().replace("0.5", "0.6"))
    with pytest.warns(UserWarning, match="checksum"):
        assert get(tmp_path, make) == {"rate": 0.5}


def test_an_interrupted_write_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(source, target):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            get(tmp_path, Maker(TENSORS))
    assert list(tmp_path.iterdir()) == []
    make = Maker(TENSORS)
    get(tmp_path, make)
    assert make.calls == 1


def test_leftovers_of_a_killed_run_are_harmless(tmp_path):
    key = Artefacts(tmp_path).key("thing", {"seed": 1})
    (tmp_path / f".{key}.safetensors.x1.tmp").write_bytes(b"half")
    make = Maker(TENSORS)
    get(tmp_path, make)
    assert make.calls == 1


def test_an_old_file_stays_until_the_new_one_is_complete(tmp_path, monkeypatch):
    path = tmp_path / "statistics.json"
    write_atomically(path, b"old")

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=f"no space left in {tmp_path}") as caught:
        write_atomically(path, b"new")
    assert caught.value.errno == errno.ENOSPC
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]
    monkeypatch.undo()
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new" and path.stat().st_mode & 0o777 == 0o644


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package on disk: ``toy.study`` imports ``toy.helper``, which imports ``toy.deep.inner``."""

    def write(name, text):
        path = tmp_path / "src" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))

    write("toy/__init__.py", "")
    write("toy/deep/__init__.py", "")
    write("toy/study.py", '"""Study."""\nimport math\nfrom toy.helper import f\n\ndef g():\n    return f(1)\n')
    write("toy/helper.py", "from .deep import inner\n\ndef f(x):\n    return inner.h(x)\n")
    write("toy/deep/inner.py", "def h(x):\n    return x + 1\n")
    write("toy/other.py", "A = 1\n")
    monkeypatch.syspath_prepend(tmp_path / "src")
    yield write
    for name in [name for name in sys.modules if name.split(".")[0] == "toy"]:
        del sys.modules[name]


def test_code_digest_follows_imports(package):
    first = code_digest("toy.study")
    package("toy/deep/inner.py", "def h(x):\n    return x + 2\n")
    second = code_digest("toy.study")
    package("toy/other.py", "A = 2\n")
    assert first != second == code_digest("toy.study")
    assert code_digest("toy.study", "toy.other") != second


def test_code_digest_ignores_comments_docstrings_and_type_checking(package):
    first = code_digest("toy.study")
    package(
        "toy/study.py",
        '''
        """Another text."""
        import math  # why

        from typing import TYPE_CHECKING
        from toy.helper import f
        if TYPE_CHECKING:
            from toy.other import A

        def g():
            """Doc."""
            return f(1)
        ''',
    )
    with_typing = code_digest("toy.study")
    package("toy/other.py", "A = 2\n")
    assert code_digest("toy.study") == with_typing
    package("toy/study.py", "import math\nfrom toy.helper import f\n\n\ndef g():\n    'Doc.'\n    return f(1)\n")
    assert code_digest("toy.study") == first
    package("toy/study.py", "import math\nfrom toy.helper import f\n\n\ndef g():\n    return f(2)\n")
    assert code_digest("toy.study") != first


def test_code_digest_of_relative_and_local_imports(package):
    package("toy/study.py", "def g():\n    from . import other\n    return other.A\n")
    first = code_digest("toy.study")
    package("toy/other.py", "A = 2\n")
    assert code_digest("toy.study") != first
    with pytest.raises(ValueError, match="no module 'toy.missing'"):
        code_digest("toy.missing")


def test_changed_code_makes_a_new_result(tmp_path, package):
    make = Maker([1])
    get(tmp_path / "results", make, code=["toy.study"])
    package("toy/helper.py", "from .deep import inner\n\ndef f(x):\n    return inner.h(x) + 1\n")
    get(tmp_path / "results", make, code=["toy.study"])
    assert make.calls == 2


def test_checkpoint_round_trip(tmp_path):
    path = tmp_path / "strong.safetensors"
    shared = torch.ones(4)
    save_checkpoint(path, {"a": torch.arange(6).view(2, 3).T, "b": shared, "c": shared[:2]}, {"width": 384})
    tensors, metadata = load_checkpoint(path)
    assert metadata == {"width": 384}
    assert torch.equal(tensors["a"], torch.arange(6).view(2, 3).T) and torch.equal(tensors["c"], torch.ones(2))
    assert sha256(path) == hashlib.sha256(path.read_bytes()).hexdigest()
    assert load_checkpoint(path, expected_sha256=sha256(path).upper())[1] == metadata
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_missing_checkpoint_says_what_makes_it(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"strong.safetensors is missing: `./run_all.sh --profile full`"):
        load_checkpoint(tmp_path / "strong.safetensors")


@pytest.mark.parametrize("damage", [cut, flip_last, lambda data: b""])
@pytest.mark.parametrize("line", ["{} strong.safetensors", "{}  strong.safetensors", "{} *strong.safetensors"])
def test_altered_checkpoint_is_refused_by_name_and_checksums(tmp_path, damage, line):
    path = tmp_path / "strong.safetensors"
    save_checkpoint(path, TENSORS, {})
    expected = sha256(path)
    (tmp_path / "SHA256SUMS").write_text(f"{'0' * 64}  other.safetensors\n{line.format(expected)}\n")
    load_checkpoint(path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError) as caught:
        load_checkpoint(path)
    for part in ("strong.safetensors", sha256(path), expected, "cut or altered"):
        assert part in str(caught.value)


def test_cut_checkpoint_without_a_listing(tmp_path):
    path = tmp_path / "own.safetensors"
    save_checkpoint(path, TENSORS, {})
    path.write_bytes(cut(path.read_bytes()))
    with pytest.raises(ValueError, match=f"own.safetensors can't be read.*{sha256(path)}, no expected one is known"):
        load_checkpoint(path)


def test_tensor_checksum_depends_on_name_type_shape_and_values():
    a = torch.zeros(2, 3)
    different = [{"a": a}, {"b": a}, {"a": a.T}, {"a": a.int()}, {"a": a + 1}, {"a": a[:0]}, {}]
    assert len({tensor_sha256(tensors) for tensors in different}) == len(different)
    assert tensor_sha256({"a": a, "b": a + 1}) == tensor_sha256({"b": a + 1, "a": a})
