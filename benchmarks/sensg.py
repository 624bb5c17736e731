"""Make FedGMCC's reads SENSG-R or SENSG-S (Appendix B), for `dataset=genomic_reads`.

    python benchmarks/sensg.py FOLDER R --reference FASTA --variants VCF
    python benchmarks/sensg.py FOLDER S --invented 20000 --reads 2000

The paper's files are chromosome 1 of the reference GRCh37 and the variants of the 1000 Genomes Project, phase
3 (ALL.chr1.phase3_shapeit2_mvncall_integrated_v5b.20130502.genotypes.vcf.gz); both may be gzipped.
`--invented BASES` makes up a genome instead: a trial, not the paper's data. R: four individuals of each
population of Table III, drawn at random, 7,500,000 reads. S: twenty individuals, 1,000,000 reads (the paper
also says 100,000 of each, which would be two million). SENSG-A is S, partitioned artificially, with flipped
labels: experiment=fedgmcc_sensg_a; SENSG-R by population: experiment=fedgmcc_sensg_r.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from common import arguments
from genomes import draw_reads, invent, read_reference, read_variants, sequence_of

from fedclust.data.source import SourceError
from fedclust.support.rng import generator

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


def write(
    folder: Path,
    populations: Mapping[str, Sequence[str]],
    reads: int,
    seed: int,
    reference: Path | None = None,
    variants: Path | None = None,
    invented: int = 0,
) -> Path:
    """Write the reads of all individuals into ``reads.parquet``: read, labels, population, individual.

    Raises
    ------
    SourceError
        If a file is missing or is not as expected.
    ValueError
        If the genome is too short for a read.
    """
    individuals = [name for names in populations.values() for name in names]
    if reference is not None and variants is not None:
        genome = read_reference(reference, CHROMOSOME)
        found = read_variants(variants, CHROMOSOME, individuals, len(genome))
    else:
        genome, found = invent(invented, populations, generator(seed, "genome"))
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
    parser.add_argument("--invented", type=int, metavar="BASES", default=0)
    parser.add_argument("--reads", type=int)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    real = options.reference is not None and options.variants is not None
    if real == bool(options.invented) or options.invented < 0:
        parser.error("either --reference and --variants must be given, or --invented with a number of bases")
    reads = READS[options.set] if options.reads is None else options.reads
    populations = chosen(options.set, options.seed)
    if reads < (least := sum(map(len, populations.values()))):
        parser.error(f"--reads must be >= {least}, one of each individual, got {reads}")
    try:
        path = write(
            options.folder,
            populations,
            reads,
            options.seed,
            options.reference,
            options.variants,
            options.invented,
        )
    except (SourceError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
