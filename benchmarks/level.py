"""How often the test of docs/PROOF.md errs, what gains it finds, and how often the printed interval covers.

    python benchmarks/level.py [--cases 600] [--write]
    … --times    the same level with scores of times until an event, in docs/TARGETS.md

A table. First the share of simulated comparisons in which B is called better at 5 %, by
its true gain. Differences of Brier scores are normal with standard deviation 0.3; or skewed: in 2 % of rows
a loss of 1.2, else a small gain; or nearly alike: in 0.5 % of rows a loss of 2, else a tiny gain. Then the
share of 95 % intervals, on twice as many test rows, that contain the true gain, where held-out rows called B
better and where not: up to `cases` of each, of ten times as many.
"""

import sys
from collections.abc import Callable

import numpy as np
from common import arguments, show, table

from fedclust.data.targets.times import Times
from fedclust.proof.figure import ENOUGH_ROWS, interval, margins
from fedclust.proof.paired import LARGEST_BRIER, compare, evidence, most_rows

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


def rare(share: float, loss: float, deviation: float) -> Draw:
    """Make differences of mean 0: losses in a share of rows, else gains of a standard deviation."""
    gain = loss * share / (1 - share)
    return lambda draws, number: np.where(
        draws.random(number) < share, -loss, draws.normal(gain, deviation, number)
    )


KINDS: dict[str, Draw] = {
    "symmetric": symmetric,
    "skewed": rare(0.02, 1.2, 0.02),
    "nearly alike": rare(0.005, 2.0, 0.01),
}


CUTS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
CENSORED = (0.25, 1.5, 9.0)  # rates of censoring: a fifth, three fifths and nine tenths of rows


class Censored:
    """Differences of the scores of two models of exponential times whose expected scores are equal.

    One has all log-odds of the hazards too high, the other too low, so that who is better differs between
    rows with and without an event.
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate
        low, high = 0.0, 2.0
        for _ in range(20):
            self.below = (low + high) / 2
            more = (
                self.draw(np.random.default_rng(3), 200_000)[0].mean() > 0
            )  # the higher one has the lower score
            low, high = (low, self.below) if more else (self.below, high)

    def draw(self, draws: np.random.Generator, number: int) -> tuple[np.ndarray, float]:
        """Return by how much the higher model is better in each row, and the share of censored rows."""
        risks = np.exp(draws.normal(size=number) / 2)
        until, seen = draws.exponential(1 / risks), draws.exponential(1 / self.rate, number)
        values = np.stack([np.minimum(until, seen), until <= seen], axis=1)
        times = Times(CUTS, 6.0)
        lengths = np.diff([0.0, *CUTS, 6.0])
        odds = np.log(np.expm1(risks[:, None] * lengths))  # of 1 − exp(−risk · length)
        higher, lower = (times.scores(odds + shift, values) for shift in (0.5, -self.below))
        return lower - higher, 1 - float(values[:, 1].mean())


def censored_table(cases: int) -> str:
    """Simulate how often either of two equally good models of times is called better."""
    lines = []
    for rate in CENSORED:
        pair, draws = Censored(rate), np.random.default_rng(4)
        share = pair.draw(np.random.default_rng(5), 100_000)[1]
        cells = [f"{share:.0%} censored"]
        for clients, rows in ((30, 10), (30, 40), (3, 40), (3, 150)):
            found = [np.split(pair.draw(draws, clients * rows)[0], clients) for _ in range(cases)]
            cells += [
                f"{np.mean([better([way * each for each in one]) for one in found]):.3f}" for way in (1, -1)
            ]
        lines.append(cells)
    sizes = [
        f"{clients} × {rows}, {which}"
        for clients, rows in ((30, 10), (30, 40), (3, 40), (3, 150))
        for which in ("higher", "lower")
    ]
    return table(["rows of clients, better", *sizes], lines)


def told(draw: Draw, gain: float, sizes: list[int], draws: np.random.Generator) -> list[np.ndarray]:
    """Draw the differences of each client's rows that count."""
    counts = np.minimum(sizes, most_rows(np.array(sizes)))
    rows = (gain + draw(draws, int(counts.sum()))).clip(-LARGEST_BRIER, LARGEST_BRIER)
    return np.split(rows, np.cumsum(counts)[:-1])


def better(rows: list[np.ndarray]) -> bool:
    """Test whether B is better."""
    return compare([evidence(each) for each in rows]).p_value <= _LEVEL


def level(draw: Draw, gain: float, sizes: list[int], cases: int) -> str:
    """Simulate how often B is called better."""
    draws = np.random.default_rng(1)
    return f"{np.mean([better(told(draw, gain, sizes, draws)) for _ in range(cases)]):.2f}"


def coverage(draw: Draw, gain: float, sizes: list[int], cases: int) -> str:
    """Simulate how often the interval on test rows covers, by what held-out rows decided."""
    draws, covers = np.random.default_rng(2), {True: list[bool](), False: list[bool]()}
    for _ in range(10 * cases):
        decided = better(told(draw, gain, sizes, draws))
        if len(covers[decided]) < cases:
            rows = np.concatenate(told(draw, gain, [2 * each for each in sizes], draws))
            tried = margins() if len(rows) < ENOUGH_ROWS else np.zeros(0)
            low, high = interval(evidence(rows, tried), evidence(-rows, tried))
            covers[decided].append(low <= gain <= high)
    return " / ".join(f"{np.mean(each):.2f} of {len(each)}" if each else "–" for each in covers.values())


def main() -> None:
    """Run the command line."""
    times = "--times" in sys.argv
    parser = arguments(__doc__, page="TARGETS" if times else "PROOF")
    parser.add_argument("--cases", type=int, default=600)
    parser.add_argument("--times", action="store_true")
    given = parser.parse_args()
    cases = given.cases
    if times:
        show("level", f"{censored_table(cases)}\n\n{cases:,} cases each.", given.write)
        return
    header = ["rows of clients, differences", "better at a gain of 0", "0.02", "0.05", "0.1"]
    rows = [
        [
            f"{name}, {kind}",
            *(level(draw, gain, sizes, cases) for gain in (0.0, 0.02, 0.05, 0.1)),
            *(coverage(draw, gain, sizes, cases) for gain in (0.0, 0.02, 0.04)),
        ]
        for kind, draw in KINDS.items()
        for name, sizes in SIZES.items()
    ]
    text = table([*header, "interval covers a gain of 0: better / not", "0.02", "0.04"], rows)
    show("level", text, given.write)


if __name__ == "__main__":
    main()
