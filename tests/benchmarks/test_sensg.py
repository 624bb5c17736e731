"""FedGMCC, Appendix B: whose reads are made, the rules by which they are, and what is written."""

import gzip
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest

from fedclust.data.source import SourceError

SCRIPT = "sensg"

ROOT = Path(__file__).parents[2]
FASTA = ">2 other\nTTTT\n>1 first\nACGTN\nacgta\n>3\nCCCC\n"
HEADER = "##fileformat=VCFv4.1\n#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\tFORMAT\tHG1\tHG2\tHG3\n"
RECORDS = [
    # position 1, A to G: HG1 on one copy, HG2 on both, HG3 not
    "1\t1\t.\tA\tG\t.\t.\t.\tGT\t0|1\t1|1\t0|0",
    # position 3, G to T or C: HG1 has the second, HG2 both, so the lower-numbered
    "1\t3\t.\tG\tT,C\t.\t.\t.\tGT:DP\t2|0:3\t2|1:4\t0/0:1",
    # positions 6 and 7, a deletion: reported, not put in place
    "1\t6\t.\tAC\tA\t.\t.\t.\tGT\t1|1\t0|0\t.|.",
    # position 10, an insertion
    "1\t10\t.\tA\tAT\t.\t.\t.\tGT\t1|1\t0|0\t0|0",
    # another chromosome
    "2\t2\t.\tT\tA\t.\t.\t.\tGT\t1|1\t1|1\t1|1",
]


def test_the_sets_have_the_individuals_of_the_appendix(script: ModuleType) -> None:
    drawn = script.chosen("R", 0)
    assert drawn.keys() == {"asian", "african", "european"}
    for name, individuals in drawn.items():
        assert set(individuals) < set(script.POPULATIONS[name])
        assert len(set(individuals)) == len(individuals) == 4
    assert sum(map(len, script.chosen("S", 0).values())) == 20
    assert script.shares(11, ["a", "b", "c"]) == {"a": 4, "b": 4, "c": 3}
    assert set(script.shares(7_500_000, [str(each) for each in range(12)]).values()) == {625_000}


def test_reads_of_all_individuals_are_written_with_a_label_per_base(
    script: ModuleType, tmp_path: Path
) -> None:
    populations = {"one": ["HG1", "HG2"], "two": ["HG3"]}
    fasta, vcf = tmp_path / "genome.fa", tmp_path / "variants.vcf"
    fasta.write_text(">1\n" + "ACGT" * 60 + "\n")
    # Position 121 of 240 is in every read of 150 bases.
    vcf.write_text(HEADER + "1\t121\t.\tA\tG\t.\t.\t.\tGT\t0|1\t1|1\t0|0\n")
    genome = script.read_reference(fasta, "1"), script.read_variants(vcf, "1", ["HG1", "HG2", "HG3"], 240)
    frame = pd.read_parquet(script.write(tmp_path / "reads", populations, 7, 0, *genome))
    assert frame["individual"].tolist() == ["HG1"] * 3 + ["HG2"] * 2 + ["HG3"] * 2
    assert frame["population"].tolist() == ["one"] * 5 + ["two"] * 2
    assert set(frame["read"].str.len()) == set(frame["labels"].str.len()) == {150}
    assert set("".join(frame["read"])) == set("ACGT")
    assert set(frame["labels"].str.count("1")) == {1}
    assert [path.name for path in (tmp_path / "reads").iterdir()] == ["reads.parquet"]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    fasta, vcf = tmp_path / "genome.fa", tmp_path / "variants.vcf.gz"
    fasta.write_text(FASTA)
    with gzip.open(vcf, "wt") as file:
        file.write(HEADER + "\n".join(RECORDS) + "\n")
    return fasta, vcf


def text(letters: np.ndarray) -> str:
    return letters.tobytes().decode()


def test_an_individual_is_the_reference_with_its_substitutions(
    script: ModuleType, files: tuple[Path, Path]
) -> None:
    reference = script.read_reference(files[0], "1")
    assert text(reference) == "ACGTNACGTA"
    found = script.read_variants(files[1], "1", ["HG1", "HG2", "HG3"], 10)
    assert text(script.sequence_of(reference, found.substitutions["HG1"])) == "GCCTNACGTA"
    assert text(script.sequence_of(reference, found.substitutions["HG2"])) == "GCTTNACGTA"
    assert text(script.sequence_of(reference, found.substitutions["HG3"])) == "ACGTNACGTA"
    assert text(reference) == "ACGTNACGTA"


def test_a_base_is_sensitive_if_anyone_varies_there(script: ModuleType, files: tuple[Path, Path]) -> None:
    found = script.read_variants(files[1], "1", ["HG3"], 10)  # also if the individual does not
    assert np.flatnonzero(found.reported).tolist() == [0, 2, 5, 6, 9]


def guessed(sequence: np.ndarray, reported: np.ndarray) -> float:
    """How often the more frequent label of the five bases around is right."""
    letters = text(sequence)
    seen = pd.Series(reported[2:-2]).groupby([letters[at : at + 5] for at in range(len(letters) - 4)])
    return float(np.average(np.maximum(seen.mean(), 1 - seen.mean()), weights=seen.size()))


def test_a_synthetic_genome_has_variants_by_the_bases_around_and_the_population(script: ModuleType) -> None:
    populations = {"one": ["A", "B"], "two": ["C"]}
    reference, found = script.synthetic(populations, 200_000, 0)
    assert set(text(reference)) == set("ACGT")
    assert found.substitutions.keys() == {"A", "B", "C"}
    for positions, bases in found.substitutions.values():
        assert found.reported[positions].all()  # and not only those that someone carries
        assert (bases != reference[positions]).all()
    assert 0.45 < found.reported.mean() < 0.55  # the mean of Beta(0.2, 0.2)
    # Guessing the more frequent label of each 5-mer is right for the mean of max(p, 1 - p), 0.90.
    assert guessed(reference, found.reported) == pytest.approx(0.90, abs=0.02)
    # An individual has a variation on either of two copies with a frequency of mean 0.1 / 5.1: in less than
    # 0.5 (2 x 0.1 / 5.1) = 0.020 of its bases; each is in five 5-mers, so nine of ten of these are as they
    # were.
    for name in "ABC":
        own = script.sequence_of(reference, found.substitutions[name])
        assert 0.01 < (own != reference).mean() < 0.022
        assert guessed(own, found.reported) > 0.85
    # Of one population, two share more variants than two of different ones.
    carried = {name: set(positions.tolist()) for name, (positions, _) in found.substitutions.items()}
    alike = {pair: len(carried[pair[0]] & carried[pair[1]]) for pair in ("AB", "AC", "BC")}
    assert alike["AB"] > 1.2 * max(alike["AC"], alike["BC"])
    again, _ = script.synthetic(populations, 200_000, 0)
    assert (again == reference).all()


@pytest.mark.parametrize("given", [[], ["--reference", "a"], ["--synthetic", "9", "--variants", "b"]])
def test_a_genome_is_given_or_synthetic(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], given: list[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["sensg.py", "folder", "S", *given])
    with pytest.raises(SystemExit):
        script.main()
    assert "must have --reference and --variants, or --synthetic alone" in capsys.readouterr().err


def test_reads_are_pieces_of_the_sequence_with_the_labels_of_their_positions(script: ModuleType) -> None:
    sequence = np.frombuffer(b"ACGTTGCAACCGGTTA", dtype=np.uint8)
    reported = np.arange(16) % 3 == 0
    bases, labels = script.draw_reads(sequence, reported, 200, 6, np.random.default_rng(0))
    starts = [text(sequence).index(text(row)) for row in bases]  # every piece of 6 occurs once
    assert set(starts) == set(range(11))
    for start, row in zip(starts, labels, strict=True):
        assert row.tolist() == reported[start : start + 6].tolist()


def test_reads_have_no_unknown_base(script: ModuleType) -> None:
    sequence = np.frombuffer(b"ACGNNTTGCANCGT", dtype=np.uint8)
    bases, _ = script.draw_reads(sequence, np.zeros(14, bool), 50, 3, np.random.default_rng(0))
    assert {text(row) for row in bases} == {"ACG", "TTG", "TGC", "GCA", "CGT"}


@pytest.mark.parametrize(
    ("sequence", "length", "said"),
    [(b"ACG", 4, "at most the 3 bases of the genome, got 4"), (b"NANAN", 2, "2 known bases in a row")],
)
def test_a_genome_without_room_for_a_read_is_refused(
    script: ModuleType, sequence: bytes, length: int, said: str
) -> None:
    letters = np.frombuffer(sequence, dtype=np.uint8)
    with pytest.raises(ValueError, match=said):
        script.draw_reads(letters, np.zeros(len(letters), bool), 3, length, np.random.default_rng(0))


def test_what_is_missing_is_named(script: ModuleType, files: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="must have chromosome 9, its sequences are 2, 1, 3"):
        script.read_reference(files[0], "9")
    with pytest.raises(SourceError, match="header line with .*HG9"):
        script.read_variants(files[1], "1", ["HG1", "HG9"], 10)
    with pytest.raises(SourceError, match="position 10 must be on the reference of 9 bases"):
        script.read_variants(files[1], "1", ["HG1"], 9)
    with pytest.raises(SourceError, match=r"none\.fa must be a file, there is none"):
        script.read_reference(tmp_path / "none.fa", "1")
    (tmp_path / "bad.vcf").write_text(RECORDS[0] + "\n")
    with pytest.raises(SourceError, match="must have a header line"):
        script.read_variants(tmp_path / "bad.vcf", "1", ["HG1"], 10)
