import gzip
import io
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maskmi.protein.adapter import AMBIGUOUS, AMINO_ACIDS, encode
from maskmi.protein.fasta import Record, read_fasta, to_sequences, to_tokens, write_fasta

MESSY = (  # one of its lines ends in CRLF
    b">sp|ok1 normal record\nMKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQAPILSRVGDGTQDNLSGAEKAVQ\n\n"
    b">lower case\nmktayiakqrqisfvkshf\r\n>dup\nMKV\n>dup\nMKVL\n>empty\n"
    b">gaps and stop\nMK-TAY..IAK*\n>rare\nMXBZUOJK\n>one\nM\n>digits\nMK7L\n"
)
OK1 = "MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQAPILSRVGDGTQDNLSGAEKAVQ"
GOOD = [
    Record("sp|ok1", OK1, "normal record"),
    Record("lower", "MKTAYIAKQRQISFVKSHF", "case"),
    Record("dup", "MKV"),
    Record("gaps", "MKTAYIAK", "and stop"),
    Record("rare", "MXBZUOJK"),
    Record("one", "M"),
]
GAPS = r"removed 3 gap characters, from record 'gaps'$"


def fasta(text: str, **options):
    return read_fasta(io.StringIO(text), **options)


@pytest.fixture
def messy(tmp_path):
    (tmp_path / "messy.fasta").write_bytes(MESSY)
    return tmp_path / "messy.fasta"


def test_messy_file_with_invalid_records_skipped_and_listed(messy):
    with pytest.warns(UserWarning, match=GAPS) as warned:
        records, skipped = read_fasta(messy, extra=AMBIGUOUS, skip_invalid=True)
    assert len(warned) == 1
    assert records == GOOD
    assert skipped == [
        "record 'dup' occurs twice: give each record a name of its own",
        "record 'empty' is empty: it has no residues",
        "record 'digits' has '7' at position 3: no residue",
    ]


def test_letters_that_a_model_does_not_know_are_refused_by_position(messy):
    with pytest.warns(UserWarning, match=GAPS):
        records, skipped = read_fasta(messy, skip_invalid=True)
    assert records == [record for record in GOOD if record.name != "rare"]
    assert skipped[2] == (
        "record 'rare' has 'X' at position 2: this model does not know that letter, only the twenty amino acids"
    )
    with pytest.raises(ValueError, match="'Z' at position 3: .* only X, B beside the twenty amino acids"):
        fasta(">a\nXbz", extra="XB")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (">dup\nMKV\n>dup\nMKVL\n", "record 'dup' occurs twice: give each"),
        (">dup first\nMKV\n>dup\tsecond\nMKVL\n", "record 'dup' occurs twice: give each"),
        (">empty\n>a\nM", "record 'empty' is empty: it has no residues"),
        (">stop\n-*\n", "record 'stop' is empty"),
        (">digits\nMK7L\n", "record 'digits' has '7' at position 3: no residue"),
        (">a\nM-\n\nK\r\nmü\n", "record 'a' has 'ü' at position 5: no residue"),  # the gap counts, the ends don't
        (">a\nMß\n", "record 'a' has 'ß' at position 2: no residue"),  # str.upper makes it SS
        (">a\nMK*V\n", r"record 'a' has '\*' at position 3: a stop inside the sequence"),
        (">a\nMK**\n", r"record 'a' has '\*' at position 3"),
        (">a\nM_K\n", "record 'a' has '_' at position 2: no mask is read here"),
        (">a\nM<mask>K\n", "record 'a' has '<' at position 2: no mask is read here"),
        (">a\nM>K\n", "record 'a' has '>' at position 2"),
        (">\nMK\n", "record 1 has no name: write one"),
        (">a\nM\n> b\nMK\n>\n\n", "record '' is empty"),
        ("MKV\n", "the input holds text before the first header: a FASTA file has a line `>name`"),
        ("; old comment\n>a\nM", "the input holds text before the first header"),
        ("\r\n \n", "the input is empty: a FASTA file"),
    ],
)
def test_refusals(text, message):
    with pytest.raises(ValueError, match=message):
        fasta(text)


def test_a_record_longer_than_the_model_reads():
    with pytest.raises(ValueError, match="record 'a' has 4 residues: at most 3 are read"):
        fasta(">a\nM--KVL", max_length=3)
    with pytest.warns(UserWarning, match="removed 2"):
        assert fasta(">a\nM--KV*", max_length=3).records == [Record("a", "MKV")]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_blank_lines_spaces_any_line_ends_and_wrapping(end, tmp_path):
    text = end.join(["", " ", ">a  some\twords ", "mk v", "", "\tL* ", "", ">b", "Ac", ""])
    path = tmp_path / "a.fasta"
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())  # with the mark that some editors put first
    for source in (path, str(path), io.StringIO(text, newline="")):
        assert read_fasta(source).records == [Record("a", "MKVL", "some\twords"), Record("b", "AC")]


def test_gaps_of_several_records_make_one_warning_and_those_of_skipped_records_do_not_count():
    with pytest.warns(UserWarning) as warned:
        fasta("".join(f">{name}\nM-.K\n" for name in "abcd") + ">e\n-7\n", skip_invalid=True)
    (only,) = warned
    assert str(only.message) == "the input: removed 8 gap characters, from 4 records ('a', 'b', 'c', …)"
    assert only.filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fasta(">a-b.c\nMK*\n")


def test_gzip_is_recognised_whatever_the_name_and_a_cut_one_refused(tmp_path):
    data = gzip.compress(b">a\nMK\n>b\nMV\n")
    for name in ("a.fasta.gz", "a.fasta"):
        (tmp_path / name).write_bytes(data)
        assert [record.name for record in read_fasta(tmp_path / name).records] == ["a", "b"]
    for cut in (data[:-9], data[:12], b"\x1f\x8bMK"):
        (tmp_path / "cut.gz").write_bytes(cut)
        with pytest.raises(ValueError, match=r"cut.gz is damaged or was cut"):
            read_fasta(tmp_path / "cut.gz")
    with pytest.raises(FileNotFoundError):
        read_fasta(tmp_path / "none.fasta")


def test_masks_are_read_on_request():
    with pytest.warns(UserWarning, match="removed 1 gap"):
        (record,) = fasta(">a\nM_<mask>k\n<MASK>-_*\n", masks=True).records
    assert record.sequence == "M__K__"
    assert to_tokens([record.sequence]).tolist() == [[10, 20, 20, 8, 20, 20]]
    with pytest.raises(ValueError, match="'<' at position 3: a mask is written _ or <mask>"):
        fasta(">a\n__<msk>", masks=True)


def test_tokens_by_hand():
    tokens = to_tokens(["ACDY", "W", "Z_X"], extra="XBZ")
    assert tokens.dtype == torch.int64
    assert tokens.tolist() == [[0, 1, 2, 19], [18, 21, 21, 21], [24, 20, 22, 21]]
    assert to_sequences(tokens.int(), extra="XBZ") == ["ACDY", "W", "Z_X"]
    assert to_tokens([]).shape == (0, 0) and to_sequences(to_tokens([])) == []
    assert to_tokens(["", "A"]).tolist() == [[21], [0]]


def test_tokens_out_of_the_alphabet():
    for sequence, letter in (("AX", "X"), ("Aa", "a"), ("A-", "-"), ("A😀", "😀")):
        with pytest.raises(ValueError, match=f"sequence 2 has '{letter}' at position 2: no letter of this model"):
            to_tokens(["A", sequence])
    with pytest.raises(ValueError, match=r"lie in 0…21: some don't"):
        to_sequences(torch.tensor([[0, 22]]))
    with pytest.raises(ValueError, match="padding stands before a residue"):
        to_sequences(torch.tensor([[21, 0]]))


letters = st.text(AMINO_ACIDS + AMBIGUOUS, min_size=1, max_size=130)


@settings(max_examples=60, deadline=None)
@given(st.lists(letters, min_size=1, max_size=5), st.sampled_from([1, 60, None]))
def test_sequences_survive_tokens_and_files(sequences, width):
    tokens = to_tokens(sequences, AMBIGUOUS)
    assert torch.equal(tokens, encode(sequences, AMBIGUOUS))
    assert to_sequences(tokens, AMBIGUOUS) == sequences
    records = [Record(f"s{i}", sequence, "a  b" * (i % 2)) for i, sequence in enumerate(sequences)]
    file = io.StringIO()
    write_fasta(file, records, width)
    file.seek(0)
    assert read_fasta(file, AMBIGUOUS).records == records


@settings(max_examples=100, deadline=None)
@given(st.text(">\n\r\t MKxab*-._<7éß😀\x0b\u2028", max_size=30).map(">".__add__), st.booleans())
def test_any_text_is_read_or_refused(text, masks):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            records = fasta(text, extra=AMBIGUOUS, masks=masks).records
        except ValueError:
            return
    assert records and len({record.name for record in records}) == len(records)
    assert all(set(record.sequence) <= set(AMINO_ACIDS + AMBIGUOUS + "_" * masks) for record in records)
    to_tokens([record.sequence for record in records], AMBIGUOUS)


def test_written_files(tmp_path):
    write_fasta(tmp_path / "a.fasta", [Record("a", "ACDEF", "x=1"), Record("b", "M_")], width=3)
    assert (tmp_path / "a.fasta").read_text() == ">a x=1\nACD\nEF\n>b\nM_\n"
    for name in ("b.fasta.gz", "c.fasta.gz"):
        write_fasta(tmp_path / name, GOOD)
    assert (tmp_path / "b.fasta.gz").read_bytes() == (tmp_path / "c.fasta.gz").read_bytes()
    assert (tmp_path / "b.fasta.gz").read_bytes()[4:8] == b"\0\0\0\0"  # no time
    assert read_fasta(tmp_path / "b.fasta.gz", AMBIGUOUS).records == GOOD


@pytest.mark.parametrize(
    "records",
    [
        [Record("", "M")],
        [Record("a b", "M")],
        [Record("a", "M", "x\ny")],
        [Record("a", "M"), Record("a", "K")],
        [Record("a", "")],
        [Record("a", "M\n>b")],
    ],
)
def test_what_could_not_be_read_back_is_not_written(records, tmp_path):
    with pytest.raises(ValueError, match="record .* can't be written"):
        write_fasta(tmp_path / "a.fasta", records)
    assert not list(tmp_path.iterdir())
