import csv
import io

import numpy as np
import pytest

from maskmi.artefacts import sha256
from maskmi.protein import structures
from maskmi.protein.adapter import AMINO_ACIDS
from maskmi.protein.contacts import contact_map


def atom(number, name, residue, chain, place, at, insertion=" ", alternative=" ", record="ATOM"):
    x, y, z = at
    return (
        f"{record:6}{number:5} {name:^4}{alternative}{residue} {chain}{place:4}{insertion}   "
        f"{x:8.3f}{y:8.3f}{z:8.3f}{1:6.2f}{0:6.2f}          {name[0]:>2}"
    )


def pdb(*lines):
    return io.StringIO("\n".join(lines) + "\nEND\n")


CHAIN = (
    atom(1, "CA", "ALA", "A", 1, (0, 0, 0)),
    atom(2, "CB", "ALA", "A", 1, (0, 1.5, 0)),
    atom(3, "CA", "GLY", "A", 2, (3.8, 0, 0)),
    atom(4, "CA", "MSE", "A", 3, (7.6, 0, 0), record="HETATM"),
    atom(5, "CB", "MSE", "A", 3, (7.6, 1.5, 0.125), record="HETATM"),
    atom(6, "CA", "TRP", "B", 1, (0, 9, 9)),
    atom(7, "O", "HOH", "A", 99, (50, 50, 50), record="HETATM"),
)


def test_beta_carbons_by_hand():
    sequence, coordinates = structures.read_chain(pdb(*CHAIN), "A")
    assert sequence == "AGM"
    np.testing.assert_array_equal(coordinates, np.array([[0, 1.5, 0], [3.8, 0, 0], [7.6, 1.5, 0.125]], np.float32))
    sequence, coordinates = structures.read_chain(pdb(*CHAIN), "A", first=2, last=2)
    assert sequence == "G" and coordinates.shape == (1, 3)


def test_first_alternative_and_a_missing_side_chain():
    lines = (
        atom(1, "CA", "SER", "A", 1, (0, 0, 0)),
        atom(2, "CB", "SER", "A", 1, (1, 0, 0), alternative="A"),
        atom(3, "CB", "SER", "A", 1, (2, 0, 0), alternative="B"),
        atom(4, "CA", "LEU", "A", 2, (3.8, 0, 0)),
    )
    sequence, coordinates = structures.read_chain(pdb(*lines), "A")
    assert sequence == "SL" and coordinates[0].tolist() == [1, 0, 0] and np.isnan(coordinates[1]).all()


def test_residues_listed_as_missing_keep_their_place():
    # 52, (52A, 53 not located), 54; the listed ends are left out, another chain's residue too
    lines = (
        "REMARK 465     MET H  51",
        "REMARK 465     LYS H  52A",
        "REMARK 465   1 PRO H  53",
        "REMARK 465     TRP L  53",
        "REMARK 465     TRP H  55",
        atom(1, "CA", "GLY", "H", 52, (0, 0, 0)),
        atom(2, "CA", "GLY", "H", 54, (9, 0, 0)),
    )
    sequence, coordinates = structures.read_chain(pdb(*lines), "H")
    assert sequence == "GKPG"
    assert np.isnan(coordinates).all(1).tolist() == [False, True, True, False]


def test_bad_chains_are_refused():
    with pytest.raises(ValueError, match="no residue of chain C"):
        structures.read_chain(pdb(*CHAIN), "C")
    with pytest.raises(ValueError, match="beyond the twenty: M3L"):
        structures.read_chain(pdb(*CHAIN, atom(8, "CA", "M3L", "A", 4, (11.4, 0, 0), record="HETATM")), "A")
    with pytest.raises(ValueError, match="breaks off after residue 3"):
        structures.read_chain(pdb(*CHAIN, atom(8, "CA", "GLY", "A", 8, (20, 0, 0))), "A")


def test_what_is_shipped():
    everything = structures.load_structures()
    assert [s.id for s in everything] == [chain.id for chain in structures.CHAINS]
    assert len({s.sequence for s in everything}) == len(everything) == 28
    for s in everything:
        assert set(s.sequence) <= set(AMINO_ACIDS) and s.coordinates.shape == (len(s.sequence), 3)
        assert 40 <= len(s.sequence) <= 130 and np.isfinite(s.coordinates).all(1).mean() > 0.95
        contacts, known = contact_map(s.coordinates)
        assert 1 < contacts.triu(6).sum() / len(s.sequence) < 3  # folded, and in angstrom
        assert known.diagonal().sum() == np.isfinite(s.coordinates[:, 0]).sum()
    heavy, light = structures.load_structures("antibody")
    assert (heavy.id, light.id) == ("1a0q_H", "1a0q_L") and len(structures.load_structures("protein")) == 26
    assert "KASGYTFTDHVIHWVKQ" in heavy.sequence and heavy.sequence.endswith("WGQGTTLTVSS")
    ubiquitin = everything[2]
    assert ubiquitin.sequence.startswith("MQIFVKTLTGKTITLEVEPSDTIENVKAKIQDKEG")
    # Its first two strands are antiparallel: 3 and 15, 5 and 13 (counted from 1) face each other.
    contacts, _ = contact_map(ubiquitin.coordinates)
    assert contacts[2, 14] and contacts[4, 12] and not contacts[2, 60 - 20]


def test_readme_and_index_agree():
    readme = (structures.FOLDER / "README.md").read_text()
    with (structures.FOLDER / "index.csv").open() as file:
        for entry in csv.DictReader(file):
            assert f"| {entry['id']} | {entry['length']} |" in readme and entry["sha256"] in readme


def write_one(folder, monkeypatch):
    source = folder / "unpacked" / "some" / "x.pdb"
    source.parent.mkdir(parents=True)
    source.write_text(pdb(*CHAIN).getvalue())
    chain = structures.Chain("9xyz_A", "protein", "some-package", "some/x.pdb", "A", "toy")
    monkeypatch.setattr(structures, "CHAINS", (chain,))
    structures.write([folder / "unpacked"], folder / "out")
    return folder / "out"


def test_written_files_are_read_back(tmp_path, monkeypatch):
    out = write_one(tmp_path, monkeypatch)
    assert (out / "9xyz_A.csv").read_text() == (
        "residue,x,y,z\nA,0.000,1.500,0.000\nG,3.800,0.000,0.000\nM,7.600,1.500,0.125\n"
    )
    (found,) = structures.load_structures("protein", out)
    assert found[:4] == ("9xyz_A", "protein", "toy", "AGM") and found.coordinates[2].tolist() == [7.6, 1.5, 0.125]
    with (out / "index.csv").open() as file:
        (entry,) = csv.DictReader(file)
    assert entry["source_sha256"] == sha256(tmp_path / "unpacked" / "some" / "x.pdb")
    with pytest.raises(FileNotFoundError, match="unpack some-package too"):
        structures.write([tmp_path / "elsewhere"], out)


def test_altered_files_and_unknown_kinds_are_refused(tmp_path, monkeypatch, capsys):
    out = write_one(tmp_path, monkeypatch)
    path = out / "9xyz_A.csv"
    path.write_text(path.read_text().replace("7.600", "7.601"))
    with pytest.raises(ValueError, match="9xyz_A.csv was altered"):
        structures.load_structures(folder=out)
    with pytest.raises(SystemExit):
        structures.main(["--folder", str(out)])
    assert "altered" in capsys.readouterr().err
    with pytest.raises(ValueError, match="choose from protein, antibody"):
        structures.load_structures("rna", out)
