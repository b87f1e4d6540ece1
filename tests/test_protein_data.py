import gzip
import hashlib
import shutil
from collections import Counter

import numpy as np
import pytest
from Bio.Data.CodonTable import standard_dna_table

from maskmi.protein import data, make_data
from maskmi.protein.adapter import AMINO_ACIDS
from maskmi.protein.fasta import Record, write_fasta


@pytest.fixture(scope="module")
def splits():
    return {split: data.load_proteins(split) for split in data.SPLITS}


def test_committed_splits_are_what_the_readme_says(splits):
    sizes = {split: len(proteins) for split, proteins in splits.items()}
    readme = (data.FOLDER / "README.md").read_text()
    for split, proteins in splits.items():
        middle = sum(50 <= len(protein.sequence) <= 100 for protein in proteins)
        clusters = len({protein.cluster for protein in proteins})
        assert f"| `swissprot_{split}.fasta.gz` | {sizes[split]:,} | {middle:,} | {clusters:,} |" in readme
        assert data.SHA256[f"swissprot_{split}"] in readme
    assert sum(sizes.values()) == 51_734
    assert sizes["train"] > 0.85 * 51_734
    assert sum(50 <= len(protein.sequence) <= 100 for protein in splits["test"]) >= 1200


def test_no_cluster_no_sequence_and_no_accession_is_in_two_splits(splits):
    for field in ("cluster", "sequence", "name"):
        parts = [{getattr(protein, field) for protein in proteins} for proteins in splits.values()]
        assert sum(map(len, parts)) == len(set.union(*parts))
    assert set.union(*({protein.cluster for protein in proteins} for proteins in splits.values())) == set(range(7846))
    make_data.verify(splits, search=False)


def test_splits_are_alike(splits):
    """Mean length and share of each amino acid differ little: clusters of all sizes are held out alike."""
    for proteins in splits.values():
        letters = Counter("".join(protein.sequence for protein in proteins))
        assert letters.keys() == set(AMINO_ACIDS)
        assert 90 < np.mean([len(protein.sequence) for protein in proteins]) < 100
        assert 0.08 < letters["L"] / letters.total() < 0.11


def test_loading_by_length(splits):
    some = data.load_proteins("test", 50, 60)
    assert some == [protein for protein in splits["test"] if 50 <= len(protein.sequence) <= 60]
    assert {len(protein.sequence) for protein in some} == set(range(50, 61))
    for shortest, longest in ((129, 200), (10, 39), (60, 50)):
        with pytest.raises(ValueError, match=f"no protein has {shortest} to {longest} residues: all have 40 to 128"):
            data.load_proteins("test", shortest, longest)
    with pytest.raises(ValueError, match="no split 'tset': choose from train, validation, test"):
        data.load_proteins("tset")


def test_a_changed_or_missing_file_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="swissprot_test.fasta.gz is missing"):
        data.load_proteins("test", folder=tmp_path)
    shutil.copy(data.FOLDER / "swissprot_train.fasta.gz", tmp_path / "swissprot_test.fasta.gz")
    with pytest.raises(ValueError, match=r"swissprot_test.fasta.gz was changed \(SHA-256 differs\)"):
        data.load_proteins("test", folder=tmp_path)
    (tmp_path / "antibodies_repertoire.fasta.gz").write_bytes(b"")
    with pytest.raises(ValueError, match="antibodies_repertoire.fasta.gz was changed"):
        data.load_antibodies("repertoire", folder=tmp_path)


def test_antibodies():
    heavy = data.load_antibodies("repertoire", "H")
    assert len(heavy) == 1271 and heavy == data.load_antibodies("repertoire")
    assert all(antibody.complete and antibody.gene.startswith("IGHV") for antibody in heavy)
    swissprot = data.load_antibodies("swissprot")
    assert {antibody.chain for antibody in swissprot} == set("HKL")
    assert not {antibody.name for antibody in swissprot} & set(make_data.SURROGATES)
    (hv,) = [antibody for antibody in swissprot if antibody.name == "P01743"]  # its signal peptide is cut off
    assert hv.sequence.startswith("QVQLVQSGAEVKKPGASVKVSCKAS") and hv.chain == "H" and not hv.complete
    for antibodies in (heavy, swissprot):
        sequences = [antibody.sequence for antibody in antibodies]
        assert len(set(sequences)) == len(sequences) and set("".join(sequences)) == set(AMINO_ACIDS)
    assert data.load_antibodies("swissprot", "K") == [row for row in swissprot if row.chain == "K"] != []
    for source, chain, message in (
        ("oas", None, "no antibodies from 'oas': choose from swissprot, repertoire"),
        ("swissprot", "heavy", "no chain 'heavy': choose H, K or L"),
    ):
        with pytest.raises(ValueError, match=message):
            data.load_antibodies(source, chain)


def test_one_antibody_of_each_clone():
    heavy = data.load_antibodies("repertoire")
    sizes = Counter(antibody.clone for antibody in heavy)
    assert sizes.keys() == set(range(len(sizes))) and sizes.most_common(1)[0][1] > 0.15 * len(heavy)
    single = data.load_antibodies("repertoire", one_per_clone=True)
    assert [antibody.clone for antibody in single] == list(range(len(sizes)))
    assert all(antibody == next(row for row in heavy if row.clone == antibody.clone) for antibody in single)
    with pytest.raises(ValueError, match="clones of antibodies from swissprot are not known"):
        data.load_antibodies("swissprot", one_per_clone=True)


def blast_database(folder, sequences):
    """A BLAST protein database, version 4, written by hand. Terms may be long: their length then takes two bytes."""
    folder.mkdir(parents=True)
    headers, residues, header_starts, starts = b"", b"\0", [], []
    for title, sequence in sequences:
        header_starts.append(len(headers))
        starts.append(len(residues))
        text = title.encode()
        size = bytes([len(text)]) if len(text) < 128 else bytes([0x82]) + len(text).to_bytes(2, "big")
        headers += bytes([0x30, 0x80, 0x30, 0x80, 0xA0, 0x80, 0x1A]) + size + text + bytes(20)
        residues += bytes(make_data.NCBISTDAA.index(letter) for letter in sequence) + b"\0"
    numbers = [*header_starts, len(headers), *starts, len(residues)]
    index = bytes([0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0, 2]) + b"db" + bytes([0, 0, 0, 4]) + b"date"
    index += len(sequences).to_bytes(4, "big") + bytes(12) + b"".join(n.to_bytes(4, "big") for n in numbers)
    for end, content in ((".pin", index), (".psq", residues), (".phr", headers)):
        (folder / f"goasp.fasta{end}").write_bytes(content)
    return folder / "goasp.fasta"


def test_a_blast_database_is_read(tmp_path):
    long = "P3|" + ",".join(["GO:0006412"] * 50)
    stem = blast_database(tmp_path / "BPO", [("P1|GO:1", "MKV"), ("Q9UKI3|", AMINO_ACIDS + "BXZUOJ"), (long, "AC")])
    assert make_data.read_blast(stem) == {"P1": "MKV", "Q9UKI3": AMINO_ACIDS + "BXZUOJ", "P3": "AC"}
    (tmp_path / "BPO" / "goasp.fasta.psq").write_bytes(bytes(range(1, 29)) * 2)
    with pytest.raises(ValueError, match="don't fit their index"):
        make_data.read_blast(stem)
    (tmp_path / "BPO" / "goasp.fasta.pin").write_bytes(b"\0\0\0\5\0\0\0\1")
    with pytest.raises(ValueError, match="no BLAST protein database of version 4"):
        make_data.read_blast(stem)


def test_domains_are_cut_out_and_rearrangements_translated(tmp_path):
    heavy, kappa = (  # trastuzumab
        "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYC"
        "SRWGGDGFYAMDYWGQGTLVTVSS",
        "DIQMTQSPSSLSASVGDRVTITCRASQDVNTAVAWYQQKPGKAPKLLIYSASFLYSGVPSRFSGSRSGTDFTLTISSLQPEDFATYYCQQHYTTPPTFGQGTKVEIK",
    )
    # c is as b, d is cut in CDR3, x has no domain, P12018 is a surrogate light chain.
    sequences = {"b": "MEFGLSWVFLVAILKGVQC" + heavy, "c": heavy, "d": kappa[:95], "x": "M" * 120, "P12018": kappa}
    assert make_data.swissprot_antibodies(sequences) == [
        Record("b", heavy, "chain=H complete=yes"),
        Record("d", kappa[:95], "chain=K complete=no"),
    ]
    codon = {residue: bases for bases, residue in standard_dna_table.forward_table.items()}
    bases = "".join(codon[residue] for residue in heavy)
    other = bases.replace(codon["D"] + codon["G"] + codon["F"], codon["E"] + codon["G"] + codon["F"])  # in CDR3
    rows = [
        ("d", "T", other + "G", "IGHV3-66*02", "IGHJ4*01"),  # 12 of 13 residues of CDR3 as in a: its clone
        ("a", "T", bases[:30] + "..." + bases[30:], "IGHV3-66*01,IGHV3-66*04", "IGHJ4*02"),
        ("c", "T", bases, "IGHV3-66*01", "IGHJ4*02"),  # as a
        ("e", "F", codon["Q"] + bases[3:], "IGHV3-66*01", "IGHJ4*02"),
        ("f", "T", "CAN" + bases[3:], "IGHV3-66*01", "IGHJ4*02"),
        ("g", "T", bases[:3] + "TAA" + bases[6:], "IGHV3-66*01", "IGHJ4*02"),
        ("h", "T", bases[:-3], "IGHV3-66*01", "IGHJ4*02"),  # without the last residue
        ("i", "T", bases[3:], "IGHV3-66*01", "IGHJ4*02"),  # without the first
        ("k", "T", "".join(codon[residue] for residue in kappa), "IGKV1-39*01", "IGKJ1*01"),
    ]
    names = ("sequence_id", "productive", "sequence_alignment", "v_call", "j_call")
    text = "".join("\t".join(row) + "\n" for row in [names, *rows])
    (tmp_path / "a.tsv.gz").write_bytes(gzip.compress(text.encode()))
    changed = heavy.replace("GGDGF", "GGEGF")
    assert make_data.repertoire_antibodies(tmp_path / "a.tsv.gz") == [
        Record("a", heavy, "chain=H complete=yes gene=IGHV3-66*01 clone=0"),
        Record("d", changed, "chain=H complete=yes gene=IGHV3-66*02 clone=0"),
    ]


def test_selection():
    sequences = {"b": "A" * 40, "a": "A" * 40, "c": "C" * 39, "d": "D" * 129, "x": "X" + "A" * 50, "e": "E" * 128}
    assert make_data.select(sequences) == ({"a": "A" * 40, "e": "E" * 128}, 1)


def test_every_size_of_cluster_is_held_out_alike():
    clusters = {f"{size}.{i}.{j}": f"{size}.{i}" for size in (9, 3, 1) for i in range(200) for j in range(size)}
    first = make_data.split_clusters(clusters)
    assert first == make_data.split_clusters(dict(reversed(clusters.items())))
    for size in ("9", "3", "1"):
        counts = Counter(split for name, split in first.items() if name.split(".")[0] == size)
        assert counts == {"train": 175, "test": 20, "validation": 5}


def test_what_is_similar_to_another_split_goes_to_train_with_its_cluster():
    splits = {"A": "train", "B": "test", "C": "test", "D": "validation", "E": "test", "F": "test", "G": "validation"}
    clusters = {name.lower() + str(i): name for name in splits for i in range(2)}
    # B is similar to train, C to B, D to C: each has to follow. E and F are both in test, G is similar to F.
    pairs = [("b0", "a1"), ("b1", "c0"), ("c1", "d0"), ("e0", "e1"), ("e0", "f0")]
    moved = make_data.move_similar(splits, clusters, pairs)
    assert moved == splits | dict.fromkeys("BCD", "train")
    assert make_data.move_similar(splits, clusters, [("f0", "g0")]) == splits | dict.fromkeys("FG", "train")
    assert splits["B"] == "test"


def test_verification_finds_each_kind_of_fault():
    good = {
        "train": [data.Protein("a", "A" * 40, 0)],
        "validation": [data.Protein("c", "C" * 40, 1)],
        "test": [data.Protein("d", "D" * 40, 2), data.Protein("e", "E" * 128, 2)],
    }
    make_data.verify(good, search=False)
    for protein, message in (
        (data.Protein("f", "F" * 39, 3), "f in test has a letter or a length"),
        (data.Protein("f", "F" * 129, 3), "f in test has a letter or a length"),
        (data.Protein("f", "FX" * 20, 3), "f in test has a letter or a length"),
        (data.Protein("f", "A" * 40, 3), "the sequence of f in test occurs twice"),
        (data.Protein("f", "F" * 40, 0), "cluster 0 is in train and in test"),
    ):
        with pytest.raises(ValueError, match=message):
            make_data.verify(good | {"test": [*good["test"], protein]}, search=False)


@pytest.mark.skipif(shutil.which("mmseqs") is None, reason="MMseqs2 is not installed")
def test_searching_and_clustering_by_mmseqs(splits, monkeypatch):
    """Of a sequence, copies with a fifth and with four fifths of the residues replaced: similar, and not."""
    rng = np.random.default_rng(0)
    originals = [protein for protein in splits["test"] if len(protein.sequence) > 100][::100][:8]

    def copies(share, mark):
        made = {}
        for protein in originals:
            letters = np.array(list(protein.sequence))
            where = rng.random(len(letters)) < share
            letters[where] = rng.choice(list(AMINO_ACIDS), where.sum())
            made[protein.name + mark] = "".join(letters)
        return made

    queries = {protein.name: protein.sequence for protein in originals}
    near, far = copies(0.2, "x"), copies(0.8, "y")
    pairs = make_data.similar_pairs(queries, queries | near | far)
    assert pairs >= {(name, name + "x") for name in queries}
    assert not {pair for pair in pairs if pair[0] == pair[1] or pair[1].endswith("y")}
    run = make_data._mmseqs  # of the cascade, one step is enough for a few sequences, and faster
    monkeypatch.setattr(make_data, "_mmseqs", lambda *arguments: run(*arguments, "--single-step-clustering"))
    clusters = make_data.cluster(queries | near)
    assert clusters.keys() == (queries | near).keys()
    assert all(clusters[name] == clusters[name + "x"] for name in queries)
    assert len(set(clusters.values())) > 1


def test_verification_searches_each_split_against_the_others(monkeypatch):
    sequences = {"train": "A" * 40, "validation": "C" * 40, "test": "D" * 40}
    splits = {split: [data.Protein(split, sequence, i)] for i, (split, sequence) in enumerate(sequences.items())}
    for first, second in (("test", "train"), ("validation", "train"), ("validation", "test")):

        def similar(queries, targets, first=first, second=second):
            return {(first, second)} if first in queries and second in targets else set()

        monkeypatch.setattr(make_data, "similar_pairs", similar)
        with pytest.raises(ValueError, match=f"{first} and {second} are in different splits and similar"):
            make_data.verify(splits, search=True)
    monkeypatch.setattr(make_data, "similar_pairs", lambda queries, targets: set())
    make_data.verify(splits, search=True)


def test_the_command_checks_and_says_what_is_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    for name in data.SHA256:
        shutil.copy(data.FOLDER / f"{name}.fasta.gz", tmp_path)
    make_data.main(["--folder", str(tmp_path)])
    printed = capsys.readouterr().out
    assert printed.count(", as published") == 5 and "not searched: MMseqs2 is not installed" in printed
    doubled = [Record("a", "A" * 40, "cluster=9000"), Record("b", "A" * 40, "cluster=9001")]
    write_fasta(tmp_path / "swissprot_test.fasta.gz", doubled)
    with pytest.raises(SystemExit) as stop:
        make_data.main(["--folder", str(tmp_path)])
    assert stop.value.code == 1 and "the sequence of b in test occurs twice" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stop:
        make_data.main(["--write", str(tmp_path), "--folder", str(tmp_path / "new")])
    assert stop.value.code == 1 and "unpack r-cran-alakazam too" in capsys.readouterr().err


def test_files_hold_no_time_of_their_making():
    for name, digest in data.SHA256.items():
        content = (data.FOLDER / f"{name}.fasta.gz").read_bytes()
        assert content[4:8] == b"\0\0\0\0" and hashlib.sha256(content).hexdigest() == digest
