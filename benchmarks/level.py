"""How often the test of docs/PROOF.md errs, what gains it finds, and how often the printed interval covers.

    python benchmarks/level.py [--cases 600] [--only level coverage votes]

Prints three tables in Markdown. *Level*: the share of simulated comparisons in which B is called better at
5 %, by its true gain. Differences of Brier scores are normal with standard deviation 0.3, or skewed: in 2 %
of rows a loss of 1.2, else a small gain. *Coverage*: the share of 95 % intervals, on twice as many test rows,
that contain the true gain, where held-out rows called B better and where not: up to `cases` of each, of ten
times as many. *Votes*, of docs/ATTACKS.md: 30 clients with five rows each, some of whom say +2 for every row,
or −2 and +2; with every vote, and as :func:`fedclust.proof.compare` sets a tenth aside on either side.
"""

from collections.abc import Callable, Iterator

import numpy as np
from common import arguments, table

from fedclust.proof.figure import ENOUGH_ROWS, interval, margins
from fedclust.proof.paired import LARGEST_BRIER, Evidence, compare, evidence, most_rows, p_value, pooled

_LEVEL = 0.05
_LOGNORMAL = np.maximum(2, np.random.default_rng(0).lognormal(np.log(15), 1, 30)).astype(int).tolist()
SIZES = {
    "30 × 10": [10] * 30,
    "30 × 4": [4] * 30,
    "3 × 2 and 27 × 500": [2] * 3 + [500] * 27,
    "20 × 2 and 10 × 500": [2] * 20 + [500] * 10,
    "30, lognormal": _LOGNORMAL,
    "30, 130, 261, 303": [30, 130, 261, 303],
    "3, 300, 300, 300": [3, 300, 300, 300],
    "3 × 40": [40] * 3,
    "6 × 5": [5] * 6,
}
Draw = Callable[[np.random.Generator, int], np.ndarray]


def symmetric(draws: np.random.Generator, number: int) -> np.ndarray:
    """Draw differences of mean 0 that are symmetric."""
    return draws.normal(0, 0.3, number)


def skewed(draws: np.random.Generator, number: int) -> np.ndarray:
    """Draw differences of mean 0: in two of a hundred a loss of 1.2, else a gain."""
    return np.where(draws.random(number) < 0.02, -1.2, 0.024 / 0.98)


def rare(draws: np.random.Generator, number: int) -> np.ndarray:
    """Draw differences of mean 0 that are hardly any in five rows of six."""
    return np.where(draws.random(number) < 1 / 6, draws.normal(0, 0.6, number), draws.normal(0, 0.02, number))


KINDS: dict[str, Draw] = {"symmetric": symmetric, "skewed": skewed}


def told(draw: Draw, gain: float, sizes: list[int], draws: np.random.Generator) -> list[np.ndarray]:
    """Draw the differences of each client's rows that count."""
    counts = np.minimum(sizes, most_rows(np.array(sizes)))
    rows = (gain + draw(draws, int(counts.sum()))).clip(-LARGEST_BRIER, LARGEST_BRIER)
    return np.split(rows, np.cumsum(counts)[:-1])


def better(rows: list[np.ndarray]) -> bool:
    """Test whether B is better."""
    return compare([evidence(each) for each in rows]).p_value <= _LEVEL


def level(cases: int) -> Iterator[list[str]]:
    """Simulate how often B is called better, by its gain."""
    for kind, draw in KINDS.items():
        for name, sizes in SIZES.items():
            row = [f"{name}, {kind}"]
            for gain in (0.0, 0.02, 0.05, 0.1):
                draws = np.random.default_rng(1)
                row.append(f"{np.mean([better(told(draw, gain, sizes, draws)) for _ in range(cases)]):.3f}")
            yield row


def coverage(cases: int) -> Iterator[list[str]]:
    """Simulate how often the interval on test rows covers, by what held-out rows decided."""
    for kind, draw in KINDS.items():
        for name, sizes in SIZES.items():
            row = [f"{name}, {kind}"]
            for gain in (0.0, 0.02, 0.04):
                draws, covers = np.random.default_rng(2), {True: list[bool](), False: list[bool]()}
                for _ in range(10 * cases):
                    decided = better(told(draw, gain, sizes, draws))
                    if len(covers[decided]) == cases:
                        continue
                    rows = np.concatenate(told(draw, gain, [2 * each for each in sizes], draws))
                    tried = margins() if len(rows) < ENOUGH_ROWS else np.zeros(0)
                    low, high = interval(evidence(rows, tried), evidence(-rows, tried))
                    covers[decided].append(low <= gain <= high)
                    if min(map(len, covers.values())) == cases:
                        break
                shares = (f"{np.mean(each):.2f} of {len(each)}" if each else "–" for each in covers.values())
                row.append(" / ".join(shares))
            yield row


def votes(cases: int) -> Iterator[list[str]]:
    """Simulate how often groups pass, with invented votes; gains in standard errors of the honest mean."""
    sizes, error = [5] * 30, 1 / 150**0.5
    wide, sure = evidence(np.array([-2.0, 2.0])), evidence(np.full(5, 2.0))
    for title, gain, number, lie in (
        *((f"gain of {gain}" if gain else "no gain", gain, 0, sure) for gain in (0.0, 2.0, 2.5, 3.0, 4.0)),
        *(
            (f"{'loss of ' + str(loss) if loss else 'no gain'}, {number} of +2", -loss, number, sure)
            for loss, number in ((0.0, 1), (0.0, 3), (1.0, 1), (1.0, 3), (2.0, 3))
        ),
        ("gain of 4, three of −2 and +2", 4.0, 3, wide),
    ):
        row = [title]
        for draw, spread in ((symmetric, 0.3), (rare, 0.6 / 6**0.5)):
            draws, passed = np.random.default_rng(3), np.zeros(2)
            for _ in range(cases):
                honest = [evidence(each) for each in told(draw, gain * spread * error, sizes, draws)]
                reports: list[Evidence] = [*[lie] * number, *honest[number:]]
                passed += p_value(pooled(reports)) <= _LEVEL, compare(reports).p_value <= _LEVEL
            row += [f"{share:.2f}" for share in passed / cases]
        yield row


TABLES: dict[str, tuple[list[str], Callable[[int], Iterator[list[str]]]]] = {
    "level": (["rows of clients, differences", "gain 0", "0.02", "0.05", "0.1"], level),
    "coverage": (["rows of clients, differences", "gain 0: better / not", "0.02", "0.04"], coverage),
    "votes": (["", "normal: all", "normal: tenths aside", "rare: all", "rare: tenths aside"], votes),
}


def main() -> None:
    """Run the command line."""
    parser = arguments(__doc__)
    parser.add_argument("--cases", type=int, default=600)
    parser.add_argument("--only", nargs="+", choices=TABLES, default=list(TABLES))
    options = parser.parse_args()
    for name in options.only:
        header, rows = TABLES[name]
        print(f"{table(header, list(rows(options.cases)))}\n", flush=True)


if __name__ == "__main__":
    main()
