"""FASTA files of any user: records, tokens of records and back, and writing.

In a record's sequence ``_`` is a position to fill. Files may write it ``_`` or ``<mask>``, and are read so only where
that is asked for.
"""

import gzip
import io
import re
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase
from typing import NamedTuple, TextIO

import numpy as np
from Bio.SeqIO.FastaIO import SimpleFastaParser
from torch import Tensor

from maskmi.artefacts import write_atomically
from maskmi.protein.adapter import AMBIGUOUS, AMINO_ACIDS, MASK, encode, lengths
from maskmi.text import decode_text

BLANK, GAPS = "_", "-."
UPPER = str.maketrans(ascii_lowercase, ascii_uppercase)  # str.upper would make residues of other letters (ß to SS)


class Record(NamedTuple):
    name: str  # first word of the header
    sequence: str  # upper case: amino acids, letters beyond them that were allowed, and BLANK
    description: str = ""  # the rest of the header


class Records(NamedTuple):
    records: list[Record]
    skipped: list[str]  # a sentence on each record left out


def read_fasta(
    source: str | Path | TextIO,
    extra: str = "",
    *,
    masks: bool = False,
    max_length: int | None = None,
    skip_invalid: bool = False,
) -> Records:
    """The records of a FASTA file, plain or gzip, or of an open text stream.

    Blank lines, spaces, any line ends and lower case are read as meant, and a ``*`` at the end is dropped. Gap
    characters (``-`` and ``.``) are removed, with one warning that counts them.

    Args:
        extra: letters allowed beyond the twenty amino acids: ``model.extra``.
        masks: read ``_`` and ``<mask>`` as positions to fill.
        max_length: of a sequence, ``model.max_length`` for instance.
        skip_invalid: leave out, and list, the records that would be refused. Of records with one name the first stays.

    Raises:
        ValueError: for a record that is empty, nameless, too long, named like an earlier one, or has a character that
            isn't allowed: tells its name and the position, counted from 1 in the sequence as it is in the file. Also
            for a text that isn't FASTA, and a damaged gzip file.
        FileNotFoundError: when there is no such file.
    """
    label, text = _text(source)
    if not text.lstrip().startswith(">"):
        what = "holds text before the first header" if text.strip() else "is empty"
        raise ValueError(f"{label} {what}: a FASTA file has a line `>name` above each sequence")
    records, skipped, names = [], [], set()
    gaps, gapped = 0, []
    # Biopython splits the text. Its checks stop there: it takes any character, empty records and repeated names.
    for number, (header, written) in enumerate(SimpleFastaParser(io.StringIO(text, newline=None)), 1):
        name, description = [*header.split(maxsplit=1), "", ""][:2]
        try:
            record = Record(name, _sequence(name, written, extra, masks, max_length), description.strip())
            if not name:
                raise ValueError(f"record {number} has no name: write one after its `>`")
            if name in names:
                raise ValueError(f"record {name!r} occurs twice: give each record a name of its own")
        except ValueError as error:
            if not skip_invalid:
                raise ValueError(f"{label}: {error}") from None
            skipped.append(str(error))
            continue
        names.add(name)
        records.append(record)
        found = sum(map(written.count, GAPS))
        gaps += found
        gapped += [name] * (found > 0)
    if gaps:
        warnings.warn(f"{label}: removed {gaps} gap characters, from {_some(gapped)}", stacklevel=2)
    return Records(records, skipped)


def to_tokens(sequences: Sequence[str], extra: str = "") -> Tensor:
    """Tokens int64 [N, L] of sequences, padded to the longest; ``_`` becomes MASK.

    Args:
        extra: ``model.extra``, in its order.

    Raises:
        ValueError: for another letter; tells the number of the sequence and the position, counted from 1.
    """
    tokens = encode([sequence.replace(BLANK, AMINO_ACIDS[0]) for sequence in sequences], extra)
    for row, sequence in zip(tokens, sequences, strict=True):
        row[[place for place, letter in enumerate(sequence) if letter == BLANK]] = MASK
    return tokens


def to_sequences(tokens: Tensor, extra: str = "") -> list[str]:
    """The inverse of :func:`to_tokens`, for tokens [N, L] of any integer type and device.

    Raises:
        ValueError: for tokens out of range, or padding before a residue.
    """
    length = lengths(tokens).tolist()
    letters = np.array(list(AMINO_ACIDS + BLANK + " " + extra))
    if ((tokens < 0) | (tokens >= len(letters))).any():
        raise ValueError(f"tokens of this model lie in 0…{len(letters) - 1}: some don't")
    rows = letters[tokens.cpu().numpy()]
    return ["".join(row[:n]) for row, n in zip(rows, length, strict=True)]


def write_fasta(target: str | Path | TextIO, records: Iterable[Record], width: int | None = 60) -> None:
    """Write records to an open text stream or to a file, which is compressed if its name ends in ``.gz``.

    A file is written all at once, and the same bytes for the same records.

    Args:
        width: letters a line; None for one line a sequence.

    Raises:
        ValueError: for a record that could not be read back: no name, a space in it, a repeated name, no residues, a
            line break.
    """
    lines, names = [], set()
    for name, sequence, description in records:
        if not name or name in names or re.search(r"\s", name) or re.search(r"[\r\n]", description):
            raise ValueError(f"record {name!r} can't be written: names must differ and have no space, headers one line")
        if not sequence or re.search(r"[\s>]", sequence):
            raise ValueError(f"record {name!r} can't be written: its sequence is empty or holds spaces")
        names.add(name)
        lines.append(f">{name} {description}".rstrip())
        step = width or len(sequence)
        lines += [sequence[start : start + step] for start in range(0, len(sequence), step)]
    text = "".join(f"{line}\n" for line in lines)
    if not isinstance(target, str | Path):
        target.write(text)
        return
    # No time and no name in the header, so that equal records make equal files.
    data = gzip.compress(text.encode(), 9, mtime=0) if str(target).endswith(".gz") else text.encode()
    write_atomically(target, data)


def _text(source: str | Path | TextIO) -> tuple[str, str]:
    """A name for messages, and all of the text."""
    if not isinstance(source, str | Path):
        return str(getattr(source, "name", "the input")), source.read()
    return str(source), decode_text(Path(source).read_bytes(), str(source))


def _sequence(name: str, written: str, extra: str, masks: bool, max_length: int | None) -> str:
    """The sequence meant by what was written."""
    letters = "".join(written.split()).translate(UPPER)
    if masks:
        letters = letters.replace("<MASK>", BLANK)
    letters = re.sub(r"\*([-.]*)$", r"\1", letters)
    allowed = AMINO_ACIDS + extra + GAPS + (BLANK if masks else "")
    wrong = re.search(f"[^{re.escape(allowed)}]", letters)
    if wrong:
        letter = wrong[0]
        if letter in AMBIGUOUS:
            why = "this model does not know that letter" + (f", only {', '.join(extra)} beside" if extra else ", only")
            why += " the twenty amino acids"
        elif letter in "<_":
            why = "no mask is read here" if not masks else "a mask is written _ or <mask>"
        else:
            why = "a stop inside the sequence" if letter == "*" else "no residue"
        raise ValueError(f"record {name!r} has {letter!r} at position {wrong.start() + 1}: {why}")
    sequence = letters.translate(str.maketrans("", "", GAPS))
    if not sequence:
        raise ValueError(f"record {name!r} is empty: it has no residues")
    if max_length is not None and len(sequence) > max_length:
        raise ValueError(f"record {name!r} has {len(sequence)} residues: at most {max_length} are read")
    return sequence


def _some(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:3]))
    return f"record {shown}" if len(names) == 1 else f"{len(names)} records ({shown}{', …' if len(names) > 3 else ''})"
