"""Make and check the files of :mod:`maskmi.protein.data`.

``python -m maskmi.protein.make_data`` checks them; with ``--write PATH...`` it makes them again from the unpacked
packages ``metastudent-data`` and ``r-cran-alakazam``, by MMseqs2 and immunum.
"""

import argparse
import csv
import gzip
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable
from hashlib import sha256 as digest
from pathlib import Path

import numpy as np
from Bio.Seq import Seq

from maskmi.artefacts import sha256
from maskmi.protein.adapter import AMINO_ACIDS
from maskmi.protein.antibodies import ANTIBODY, LAST_FRAMEWORK, cdr3, clones, has, variable_domain
from maskmi.protein.data import (
    ANTIBODIES,
    FOLDER,
    MAX_LENGTH,
    MIN_LENGTH,
    SHA256,
    SPLITS,
    Protein,
    as_antibodies,
    as_proteins,
)
from maskmi.protein.fasta import Record, read_fasta, write_fasta

DATABASES = ("BPO", "CCO", "MFO")  # the sequences with terms of each of the three gene ontologies
NCBISTDAA = "-ABCDEFGHIKLMNPQRSTVWXYZU*OJ"  # the letter of each byte of a BLAST protein database
CLUSTER_IDENTITY, LEAK_IDENTITY, COVERAGE = 0.3, 0.5, 0.8
#: Of every 40 clusters in order of size, those at these places are held out. The others are for training.
PERIOD, HELD_OUT = 40, {4: "test", 14: "test", 24: "test", 34: "test", 19: "validation"}
SURROGATES = ("P12018", "P13373", "Q9UKI3")  # VPREB, which stands in for a light chain, is no antibody


# Proteins.


def read_blast(stem: Path) -> dict[str, str]:
    """Sequences by accession of a BLAST protein database, version 4: ``stem`` and the endings .pin, .psq, .phr.

    Raises:
        FileNotFoundError: when one of the three files is missing.
        ValueError: when they are no such database.
    """
    index, residues, headers = (stem.with_name(stem.name + end).read_bytes() for end in (".pin", ".psq", ".phr"))
    if index[:8] != bytes([0, 0, 0, 4, 0, 0, 0, 1]):
        raise ValueError(f"{stem}.pin is no BLAST protein database of version 4")
    place = 8
    for _ in range(2):  # title and date, each after its length
        place += 4 + int.from_bytes(index[place : place + 4], "big")
    number = int.from_bytes(index[place : place + 4], "big")
    starts = np.frombuffer(index, ">u4", 2 * (number + 1), place + 16).reshape(2, -1).tolist()
    letters = residues.translate(NCBISTDAA.encode().ljust(256, b"?")).decode()
    sequences = {}
    for header, first, after in zip(starts[0][:-1], starts[1][:-1], starts[1][1:], strict=True):
        # ASN.1: seven bytes open the title, a visible string (0x1a). Its length is one byte, or as many as that tells.
        if headers[header + 6] != 0x1A or residues[after - 1] != 0:
            raise ValueError(f"{stem}.phr and .psq don't fit their index: unpack the package again")
        text = header + 8 + max(0, headers[header + 7] - 128)
        accession = headers[text : headers.index(b"|", text)].decode()  # then its terms, after a bar
        sequences[accession] = letters[first : after - 1]  # a NUL parts the sequences
    return sequences


def select(sequences: dict[str, str]) -> tuple[dict[str, str], int]:
    """Distinct sequences of the right length by accession, sorted; and how many had other letters and were dropped.

    Of the accessions of one sequence, the first in alphabetical order stays.
    """
    distinct = {}
    for accession in sorted(sequences):
        if MIN_LENGTH <= len(sequences[accession]) <= MAX_LENGTH:
            distinct.setdefault(sequences[accession], accession)
    standard = {name: sequence for sequence, name in distinct.items() if set(sequence) <= set(AMINO_ACIDS)}
    return standard, len(distinct) - len(standard)


def cluster(sequences: dict[str, str]) -> dict[str, str]:
    """The name of its cluster's representative for each sequence; see the README for the criteria."""
    with tempfile.TemporaryDirectory() as folder:
        source, result = Path(folder, "all.fasta"), Path(folder, "result")
        source.write_text("".join(f">{name}\n{sequence}\n" for name, sequence in sequences.items()))
        options = ["--min-seq-id", str(CLUSTER_IDENTITY), "-c", str(COVERAGE), "-s", "7.5"]
        _mmseqs("easy-cluster", source, result, Path(folder, "tmp"), *options)
        lines = Path(f"{result}_cluster.tsv").read_text().splitlines()
    return {member: representative for representative, member in (line.split("\t") for line in lines)}


def similar_pairs(queries: dict[str, str], targets: dict[str, str]) -> set[tuple[str, str]]:
    """Pairs of different names, from ``queries`` and ``targets``, with at least 50 % identity in an alignment that
    covers at least 80 % of both."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, name) for name in ("queries", "targets", "hits")]
        for path, sequences in zip(paths, (queries, targets), strict=False):
            path.write_text("".join(f">{name}\n{sequence}\n" for name, sequence in sequences.items()))
        options = ["--min-seq-id", str(LEAK_IDENTITY), "-c", str(COVERAGE), "-s", "7.5", "--max-seqs", "1000"]
        _mmseqs("easy-search", *paths, Path(folder, "tmp"), *options, "--format-output", "query,target")
        hits = {tuple(line.split("\t")) for line in paths[2].read_text().splitlines()}
    return {(query, target) for query, target in hits if query != target}


def _mmseqs(*arguments: str | Path) -> None:
    if shutil.which("mmseqs") is None:
        raise FileNotFoundError("MMseqs2 is not installed: sequences are compared by its command `mmseqs`")
    subprocess.run(["mmseqs", *map(str, arguments), "--threads", "1", "-v", "1"], check=True)


def split_clusters(clusters: dict[str, str]) -> dict[str, str]:
    """The split of each cluster, by its representative: every so many in order of size, so that all are alike."""
    sizes = Counter(clusters.values())
    # Among clusters of one size the order is that of a digest, as good as random.
    order = sorted(sizes, key=lambda name: (-sizes[name], digest(name.encode()).hexdigest()))
    return {name: HELD_OUT.get(place % PERIOD, "train") for place, name in enumerate(order)}


def move_similar(splits: dict[str, str], clusters: dict[str, str], pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """``splits`` after each held-out cluster that is similar to another split has gone to train, whole.

    Args:
        pairs: of similar sequences, for every sequence held out.
    """
    links = {tuple(sorted((clusters[a], clusters[b]))) for a, b in pairs}
    splits = dict(splits)
    moving = True
    while moving:  # a cluster that moved may be similar to one that is still held out
        moving = {name for link in links if splits[link[0]] != splits[link[1]] for name in link} - {
            name for name, split in splits.items() if split == "train"
        }
        splits |= dict.fromkeys(moving, "train")
    return splits


def make_proteins(sequences: dict[str, str]) -> tuple[dict[str, list[Record]], str]:
    """The records of each split, from all sequences by accession; and a line on how they came about."""
    chosen, dropped = select(sequences)
    clusters = cluster(chosen)
    first = split_clusters(clusters)
    held_out = {name: sequence for name, sequence in chosen.items() if first[clusters[name]] != "train"}
    splits = move_similar(first, clusters, similar_pairs(held_out, chosen))
    moved = sum(first[clusters[name]] != splits[clusters[name]] for name in chosen)
    numbers = {name: number for number, name in enumerate(sorted(splits))}
    made = {split: [] for split in SPLITS}
    # Neighbours are alike, which compresses better.
    for name in sorted(chosen, key=lambda name: (numbers[clusters[name]], name)):
        made[splits[clusters[name]]].append(Record(name, chosen[name], f"cluster={numbers[clusters[name]]}"))
    return made, f"{dropped} with other letters dropped; {moved} moved to train, whose cluster is similar to another's"


# Antibodies.


def swissprot_antibodies(sequences: dict[str, str]) -> list[Record]:
    """Variable domains of antibodies, without what stands before and after them; equal ones once."""
    likely = re.compile("C.{8,24}W.{45,80}C")  # numbering all takes minutes
    found = {}
    for name in sorted(sequences.keys() - SURROGATES):
        if not 80 <= len(sequences[name]) <= 200 or not likely.search(sequences[name]):
            continue
        domain = variable_domain(sequences[name])
        if domain is None or domain.chain not in ANTIBODY:
            continue
        sequence = sequences[name][domain.query_start : domain.query_end + 1]
        if set(sequence) <= set(AMINO_ACIDS):
            complete = "yes" if has(domain.numbering, LAST_FRAMEWORK) else "no"
            found.setdefault(sequence, Record(name, sequence, f"chain={domain.chain} complete={complete}"))
    return sorted(found.values())


def repertoire_antibodies(table: Path) -> list[Record]:
    """Translated heavy chains of an AIRR table that have the domain's first residue and last; equal ones once."""
    found = {}
    with gzip.open(table, "rt", newline="") as file:
        for row in sorted(csv.DictReader(file, delimiter="\t"), key=lambda row: row["sequence_id"]):
            bases = row["sequence_alignment"].replace(".", "")
            if row["productive"] != "T" or not set(bases) <= set("ACGT"):
                continue
            sequence = str(Seq(bases[: len(bases) // 3 * 3]).translate())
            domain = variable_domain(sequence) if "*" not in sequence else None
            if domain is None or domain.chain != "H":
                continue
            positions = list(domain.numbering)
            if (positions[0], positions[-1]) == ("1", "128"):
                sequence = sequence[domain.query_start : domain.query_end + 1]
                loop = cdr3(domain.numbering)
                genes = [row[call].split(",")[0] for call in ("v_call", "j_call")]
                found.setdefault(sequence, (row["sequence_id"], genes[0], [gene.split("*")[0] for gene in genes], loop))
    clone = clones([(*genes, loop) for _, _, genes, loop in found.values()])
    return [
        Record(name, sequence, f"chain=H complete=yes gene={gene} clone={number}")
        for (sequence, (name, gene, _, _)), number in zip(found.items(), clone, strict=True)
    ]


# The command.


def write(packages: list[Path], folder: Path = FOLDER) -> str:
    """Write all files from the folders that the packages were unpacked to; a line on how they came about.

    Raises:
        FileNotFoundError: when a package or MMseqs2 is missing.
        ModuleNotFoundError: when immunum is.
    """

    def find(name: str, package: str) -> Path:
        found = [path for root in packages for path in sorted(root.rglob(Path(name).name)) if path.match(name)]
        if not found:
            raise FileNotFoundError(f"{name} is in none of the folders: unpack {package} too")
        return found[0]

    repertoire = find("alakazam/extdata/example_airr.tsv.gz", "r-cran-alakazam")
    sequences = {}
    for name in DATABASES:
        sequences |= read_blast(find(f"{name}/goasp.fasta.pin", "metastudent-data").with_suffix(""))
    files = {  # first, so that it is soon seen if immunum is missing
        "antibodies_repertoire": repertoire_antibodies(repertoire),
        "antibodies_swissprot": swissprot_antibodies(sequences),
    }
    splits, how = make_proteins(sequences)
    files |= {f"swissprot_{split}": records for split, records in splits.items()}
    folder.mkdir(parents=True, exist_ok=True)
    for name, records in files.items():
        write_fasta(folder / f"{name}.fasta.gz", records, width=None)
    return how


def verify(splits: dict[str, list[Protein]], search: bool) -> None:
    """Check what this module says of the splits; with ``search`` also by MMseqs2 that no two of them are similar.

    Raises:
        ValueError: says what is wrong.
    """
    home, seen = {}, set()
    for split, proteins in splits.items():
        for name, sequence, number in proteins:
            if not MIN_LENGTH <= len(sequence) <= MAX_LENGTH or not set(sequence) <= set(AMINO_ACIDS):
                raise ValueError(f"{name} in {split} has a letter or a length that it shouldn't")
            if sequence in seen:
                raise ValueError(f"the sequence of {name} in {split} occurs twice")
            if home.setdefault(number, split) != split:
                raise ValueError(f"cluster {number} is in {home[number]} and in {split}")
            seen.add(sequence)
    if search:
        train, validation, test = ({p.name: p.sequence for p in splits[split]} for split in SPLITS)
        for pair in similar_pairs(validation | test, train) | similar_pairs(validation, test):
            raise ValueError(f"{pair[0]} and {pair[1]} are in different splits and similar")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m maskmi.protein.make_data",
        description="Check the sequences, or write them again. Where MMseqs2 is installed, the splits are searched for "
        "similar sequences, which takes some minutes.",
    )
    parser.add_argument("--write", nargs="+", type=Path, metavar="PATH", help="folders of the unpacked packages")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the files are (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        if options.write:
            print(write(options.write, options.folder), flush=True)
        paths = {name: options.folder / f"{name}.fasta.gz" for name in SHA256}
        records = {name: read_fasta(path).records for name, path in paths.items()}
        splits = {split: as_proteins(records[f"swissprot_{split}"]) for split in SPLITS}
        searched = shutil.which("mmseqs") is not None
        verify(splits, searched)
    except (FileNotFoundError, ModuleNotFoundError, ValueError) as error:
        parser.exit(1, f"{error}\n")
    for split, proteins in splits.items():
        middle = sum(50 <= len(protein.sequence) <= 100 for protein in proteins)
        clusters = len({protein.cluster for protein in proteins})
        print(f"{split}: {len(proteins)} sequences, {middle} of 50 to 100 residues, {clusters} clusters")
    for source in ANTIBODIES:
        antibodies = as_antibodies(records[f"antibodies_{source}"])
        chains = Counter(antibody.chain + " complete" * antibody.complete for antibody in antibodies)
        clone_count = len({antibody.clone for antibody in antibodies} - {None})
        print(f"antibodies, {source}: {', '.join(f'{n} {c}' for c, n in sorted(chains.items()))}; {clone_count} clones")
    print("no similar sequences in different splits" if searched else "not searched: MMseqs2 is not installed")
    for name, path in paths.items():
        published = "as published" if sha256(path) == SHA256[name] else "not as published"
        print(f"{sha256(path)}  {path.name}, {published}")


if __name__ == "__main__":
    main()
