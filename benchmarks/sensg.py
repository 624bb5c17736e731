"""Make FedGMCC's reads SENSG-R or SENSG-S (Appendix B), for `dataset=genomic_reads`.

    python benchmarks/sensg.py FOLDER R --reference FASTA --variants VCF
    python benchmarks/sensg.py FOLDER S --synthetic 100000 --reads 20000     a random genome of 100,000 bases

The paper's files are chromosome 1 of the reference GRCh37 and the variants of the 1000 Genomes Project, phase
3 (ALL.chr1.phase3_shapeit2_mvncall_integrated_v5b.20130502.genotypes.vcf.gz); both may be gzipped. R: four
individuals of each population of Table III, drawn at random, 7,500,000 reads. S: twenty individuals,
1,000,000 reads (the paper also says 100,000 of each, which would be two million). SENSG-A is S, partitioned
artificially, with flipped labels: experiment=fedgmcc_sensg_a; SENSG-R by population:
experiment=fedgmcc_sensg_r.

Step 1: the sequence of an individual is the reference with the individual's variants in place, and reads are
150 bases from random positions on. Step 2: a base is sensitive (1) if a variation is reported at its position
in anyone, else 0. (Step 3, the encoding as 5-mers, is :class:`fedclust.data.dna.Dna`.)

Choices where the paper is not specific:

- Only single-base substitutions are put in place, so that positions stay those of the reference; wherever
  either copy of the chromosome has one, the individual's sequence has it, of two the lower-numbered.
- Every base of the reference that a record replaces counts as varied, also of insertions and deletions.
- Reads with unknown bases (N) are drawn again.

A synthetic genome has random bases. Variations occur by the five bases around a position, as mutations do:
each 5-mer has a rate from Beta(0.2, 0.2), so that half of all bases are sensitive, and knowing the rates
predicts 90 % of them. A population has each variation with a frequency of its own, and its individuals by
that frequency on either copy. Most variations are rare, as real ones are: Beta(0.1, 5), so that an
individual's sequence differs from the reference in 2 % of its bases, and its own 5-mers still predict 87 %.
"""

import gzip
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from common import arguments
from numpy.typing import NDArray

from fedclust.data.source import SourceError
from fedclust.support.rng import generator
from fedclust.typing import BoolArray, IntArray

CHROMOSOME = "1"
LENGTH = 150
CHUNK = 20_000
PER_POPULATION = 4

# Table III
POPULATIONS = {
    "asian": [
        "HG00543", "HG00559", "HG00566", "HG00578", "HG00581",
        "HG00580", "HG00593", "HG00598", "HG00592", "HG00613",
    ],
    "african": [
        "HG02703", "HG02769", "HG02715", "HG02771", "HG02722",
        "HG02676", "HG02808", "HG02810", "HG02614", "HG02839",
    ],
    "european": [
        "HG00315", "HG00327", "HG00334", "HG00339", "HG00341",
        "HG00346", "HG00353", "HG00358", "HG00360", "HG00365",
    ],
}  # fmt: skip
# Appendix B; those from HG00096 on are British, those from NA21128 on Gujarati.
INDIVIDUALS = {
    "british": [
        "HG00096", "HG00097", "HG00099", "HG00100", "HG00101",
        "HG00102", "HG00103", "HG00105", "HG00106", "HG00107",
    ],
    "gujarati": [
        "NA21128", "NA21129", "NA21130", "NA21133", "NA21135",
        "NA21137", "NA21141", "NA21142", "NA21143", "NA21144",
    ],
}  # fmt: skip
READS = {"R": 7_500_000, "S": 1_000_000}


def chosen(which: str, seed: int) -> dict[str, list[str]]:
    """Return the individuals of a set by population; those of R are drawn."""
    if which == "S":
        return INDIVIDUALS
    draws = generator(seed, "individuals")
    return {
        name: sorted(draws.permutation(individuals)[:PER_POPULATION].tolist())
        for name, individuals in POPULATIONS.items()
    }


def shares(reads: int, individuals: Sequence[str]) -> dict[str, int]:
    """Divide reads evenly; the first individuals get one more if they do not divide."""
    each, rest = divmod(reads, len(individuals))
    return {name: each + (place < rest) for place, name in enumerate(individuals)}


Letters = NDArray[np.uint8]
"""Bases as ASCII codes of A, C, G, T and N, shape (L,)."""

_BASES = np.frombuffer(b"ACGT", dtype=np.uint8)
_UNKNOWN = ord("N")
_MOST_DRAWS = 1000
_RECORDS = 100_000  # of a VCF file, read at once


@dataclass(frozen=True, eq=False)
class Variants:
    """The variants of a chromosome.

    Attributes
    ----------
    reported
        Whether a variation is reported at each position in anyone, shape (L,).
    substitutions
        By individual, positions from 0, ascending, and the bases that it has there, both of shape (n,).
    """

    reported: BoolArray
    substitutions: Mapping[str, tuple[IntArray, Letters]]


def read_reference(path: Path, chromosome: str) -> Letters:
    """Read a chromosome from a FASTA file, plain or gzipped; lower case counts as upper case.

    Raises
    ------
    SourceError
        If the file is missing or does not have the chromosome.
    """
    lines: list[bytes] = []
    names = []
    with _opened(path) as file:
        for line in file:
            if line.startswith(b">"):
                if lines:
                    break
                names.append(line[1:].split()[0].decode() if line[1:].split() else "")
            elif names and names[-1] in (chromosome, f"chr{chromosome}"):
                lines.append(line.strip())
    if not lines:
        raise SourceError(
            f"{path} must have chromosome {chromosome}, its sequences are {', '.join(names[:5])}"
        )
    letters = np.frombuffer(b"".join(lines).upper(), dtype=np.uint8)
    return np.where(np.isin(letters, _BASES), letters, _UNKNOWN).astype(np.uint8)


def read_variants(path: Path, chromosome: str, individuals: Sequence[str], length: int) -> Variants:
    """Read a chromosome's variants from a VCF file, plain or gzipped.

    Parameters
    ----------
    path
        The file, such as the 1000 Genomes Project's of chromosome 1.
    chromosome
        Name of the chromosome; records of others are left out.
    individuals
        Ids of the individuals whose genotypes are read.
    length
        Number of bases L of the chromosome.

    Raises
    ------
    SourceError
        If the file is missing, has no header, or lacks an individual, or a record is beyond the chromosome.
    """
    with _opened(path) as file:
        above = next((place for place, line in enumerate(file) if not line.startswith(b"##")), 0)
    columns = ["#CHROM", "POS", "REF", "ALT", *individuals]
    try:
        parts = pd.read_csv(path, sep="\t", skiprows=above, usecols=columns, dtype=str, chunksize=_RECORDS)
    except ValueError as error:
        raise SourceError(f"{path} must have a header line with {', '.join(columns)}: {error}") from None
    reported = np.zeros(length, dtype=bool)
    found: dict[str, list[pd.Series]] = {name: [] for name in individuals}
    for part in parts:
        own = part[part["#CHROM"].isin([chromosome, f"chr{chromosome}"])]
        starts, widths = own["POS"].astype(int).to_numpy() - 1, own["REF"].str.len().to_numpy()
        if len(beyond := starts[(starts < 0) | (starts + widths > length)]):
            raise SourceError(f"{path}: position {beyond[0] + 1} must be on the reference of {length} bases")
        for offset in range(widths.max(initial=0)):
            reported[starts[widths > offset] + offset] = True
        single = own[widths == 1].set_index(starts[widths == 1])
        bases = single["ALT"].str.upper().str.split(",", expand=True)
        for name in individuals:
            numbers = single[name].str.extract(r"^([0-9]+)[|/]?([0-9]*)").apply(pd.to_numeric)
            # The lower-numbered of the two copies that is a single base and not the reference's.
            for copy in (numbers.max(axis=1), numbers.min(axis=1)):
                for place in bases.columns:
                    chosen = bases.loc[copy == place + 1, place]
                    found[name].append(chosen[chosen.isin([*"ACGT"])])
    return Variants(reported, {name: _last(each) for name, each in found.items()})


def synthetic(populations: Mapping[str, Sequence[str]], length: int, seed: int) -> tuple[Letters, Variants]:
    """Draw a chromosome and its variants; see above.

    Parameters
    ----------
    populations
        Individuals by population.
    length
        Number of bases L, at least five.
    seed
        Of all draws.
    """
    draws = generator(seed, "genome")
    codes = draws.integers(4, size=length)
    rates = draws.beta(0.2, 0.2, size=4**5)
    around = np.lib.stride_tricks.sliding_window_view(np.pad(codes, 2, mode="wrap"), 5)
    reported = draws.random(length) < rates[around @ 4 ** np.arange(5)]
    positions = np.flatnonzero(reported)
    others = _BASES[(codes[positions] + draws.integers(1, 4, size=len(positions))) % 4]
    substitutions = {}
    for individuals in populations.values():
        frequencies = draws.beta(0.1, 5, size=len(positions))
        for name in individuals:
            has = (draws.random((2, len(positions))) < frequencies).any(axis=0)
            substitutions[name] = positions[has], others[has]
    return _BASES[codes], Variants(reported, substitutions)


def sequence_of(reference: Letters, substitutions: tuple[IntArray, Letters]) -> Letters:
    """Put an individual's variants into the reference."""
    sequence = reference.copy()
    positions, bases = substitutions
    sequence[positions] = bases
    return sequence


def draw_reads(
    sequence: Letters, reported: BoolArray, number: int, length: int, draws: np.random.Generator
) -> tuple[Letters, BoolArray]:
    """Draw reads of an individual, with a label per base.

    Parameters
    ----------
    sequence
        The individual's sequence, shape (L,).
    reported
        As in :class:`Variants`.
    number, length
        Number of reads, and their bases.
    draws
        Random generator of the positions.

    Returns
    -------
    Bases, and whether a variation is reported there, both of shape (number, length).

    Raises
    ------
    ValueError
        If the sequence is shorter than a read, or no read without unknown bases is found.
    """
    places = len(sequence) - length + 1
    if places < 1:
        raise ValueError(
            f"a read's length must be at most the {len(sequence)} bases of the genome, got {length}"
        )
    unknown = np.concatenate([[0], np.cumsum(sequence == _UNKNOWN)])
    starts = np.empty(0, dtype=np.int64)
    for _ in range(_MOST_DRAWS):
        more = draws.integers(places, size=number - len(starts))
        starts = np.concatenate([starts, more[unknown[more + length] == unknown[more]]])
        if len(starts) == number:
            break
    else:
        raise ValueError(f"reads must have {length} known bases in a row, the genome has none or too few")
    rows = starts[:, None] + np.arange(length)
    return sequence[rows], reported[rows]


def _opened(path: Path) -> IO[bytes]:
    if not path.is_file():
        raise SourceError(f"{path} must be a file, there is none")
    with path.open("rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rb") if zipped else path.open("rb")  # type: ignore[return-value]


def _last(found: Sequence[pd.Series]) -> tuple[IntArray, Letters]:
    """Put together the bases at each position; of several, the last."""
    every = pd.concat(found)
    every = every[~every.index.duplicated(keep="last")].sort_index()
    return every.index.to_numpy(dtype=np.int64), np.frombuffer("".join(every).encode(), dtype=np.uint8)


def write(
    folder: Path,
    populations: Mapping[str, Sequence[str]],
    reads: int,
    seed: int,
    genome: Letters,
    found: Variants,
) -> Path:
    """Write the reads of all individuals into ``reads.parquet``: read, labels, population, individual.

    Raises
    ------
    ValueError
        If the genome is too short for a read.
    """
    individuals = [name for names in populations.values() for name in names]
    numbers = shares(reads, individuals)
    folder.mkdir(parents=True, exist_ok=True)
    path, partial = folder / "reads.parquet", folder / "reads.parquet.partial"
    schema = pa.schema([(name, pa.string()) for name in ("read", "labels", "population", "individual")])
    with pq.ParquetWriter(partial, schema) as writer:
        for population, names in populations.items():
            for name in names:
                sequence = sequence_of(genome, found.substitutions[name])
                draws = generator(seed, "reads", individuals.index(name))
                for start in range(0, numbers[name], CHUNK):
                    size = min(CHUNK, numbers[name] - start)
                    bases, labels = draw_reads(sequence, found.reported, size, LENGTH, draws)
                    columns = {
                        "read": [row.tobytes().decode() for row in bases],
                        "labels": [row.tobytes().decode() for row in labels.astype("u1") + ord("0")],
                        "population": [population] * size,
                        "individual": [name] * size,
                    }
                    writer.write_table(pa.table(columns, schema=schema))
    return partial.rename(path)


def main() -> int:
    """Run the command line; return 1 if the files are not as they must be."""
    parser = arguments(__doc__, folder=True)
    parser.add_argument("set", choices=READS)
    parser.add_argument("--reference", type=Path)
    parser.add_argument("--variants", type=Path)
    parser.add_argument("--synthetic", type=int, metavar="BASES", help="a random genome in their place")
    parser.add_argument("--reads", type=int)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    reads = READS[options.set] if options.reads is None else options.reads
    populations = chosen(options.set, options.seed)
    if reads < (least := sum(map(len, populations.values()))):
        parser.error(f"--reads must be >= {least}, one of each individual, got {reads}")
    files, made = (options.reference, options.variants), options.synthetic is not None
    if any(files) if made else None in files:
        parser.error("must have --reference and --variants, or --synthetic alone")
    try:
        if made:
            genome, found = synthetic(populations, options.synthetic, options.seed)
        else:
            genome = read_reference(options.reference, CHROMOSOME)
            individuals = [name for names in populations.values() for name in names]
            found = read_variants(options.variants, CHROMOSOME, individuals, len(genome))
        path = write(options.folder, populations, reads, options.seed, genome, found)
    except (SourceError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
