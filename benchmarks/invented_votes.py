"""What invented votes do to the test of docs/PROOF.md, and what guarding against them costs: its last table.

    python benchmarks/invented_votes.py [--draws 2000]

Prints, in Markdown, how often groups are called better: 30 clients with 5 held-out rows each, differences of
Brier scores that are normal with standard deviation 0.3, or that hardly differ in five rows of six and have
standard deviation 0.6 in the sixth. Liars vote +2 with variance 0; a wide vote is 0 with variance 8, of two
rows. Compared: no votes set aside; the most and the least favourable tenth, which is what fedclust does; and
the most favourable tenth alone. Where votes are set aside, so many of the largest variances are limited.
"""

import numpy as np
from common import arguments, table

from fedclust.proof import limited, num_set_aside, p_values, statistic

_CLIENTS, _ROWS, _LEVEL = 30, 5, 0.05
# Titles; gain of the honest in standard errors of their mean; liars.
_CASES = (
    ("no gain", 0.0, 0),
    ("gain of 2 standard errors", 2.0, 0),
    ("gain of 2.5", 2.5, 0),
    ("gain of 3", 3.0, 0),
    ("gain of 4", 4.0, 0),
    ("no gain, one liar", 0.0, 1),
    ("no gain, three liars", 0.0, 3),
    ("loss of 1, one liar", -1.0, 1),
    ("loss of 1, three liars", -1.0, 3),
    ("loss of 2, three liars", -2.0, 3),
)
_WIDE = (("no gain, three wide votes", 0.0, 3), ("gain of 4, one", 4.0, 1), ("gain of 4, three", 4.0, 3))


def votes(
    gain: float, liars: int, rare: bool, number: int, draws: np.random.Generator, wide: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw each client's mean, variance and rows, shape (number, clients); the gain is in standard errors."""
    shape, spread = (number, _CLIENTS, _ROWS), 0.6 / 6**0.5 if rare else 0.3
    shift = gain * spread / (_CLIENTS * _ROWS) ** 0.5
    if rare:
        differ = draws.random(shape) < 1 / 6
        rows = np.where(differ, draws.normal(6 * shift, 0.6, shape), draws.normal(0, 0.02, shape))
    else:
        rows = draws.normal(shift, 0.3, shape)
    means, variances = rows.clip(-2, 2).mean(axis=-1), rows.clip(-2, 2).var(axis=-1, ddof=1)
    counts = np.full(means.shape, float(_ROWS))
    means[:, :liars], variances[:, :liars] = (0.0, 8.0) if wide else (2.0, 0.0)
    counts[:, :liars] = 2.0 if wide else _ROWS
    return means, variances, counts


def passed(means: np.ndarray, variances: np.ndarray, counts: np.ndarray, worst: int, best: int) -> np.ndarray:
    """Say which federations' groups pass, with all votes and without the worst and the best ones."""
    order = np.argsort(means, axis=-1)
    of_mean = np.stack([limited(row, max(worst, best)) for row in variances / counts])
    found = np.ones(len(means), dtype=bool)
    for kept in (order, order[:, worst : means.shape[-1] - best]):
        own = (np.take_along_axis(each, kept, axis=-1) for each in (means, of_mean * counts, counts))
        found &= p_values(statistic(*own)) <= _LEVEL
    return found


def main() -> None:
    """Run the command line."""
    parser = arguments(__doc__)
    parser.add_argument("--draws", type=int, default=4000)
    options = parser.parse_args()
    tenth = num_set_aside(_CLIENTS)
    rules = {"none": (0, 0), "both tenths": (tenth, tenth), "best tenth": (0, tenth)}
    rows = []
    for title, gain, liars in (*_CASES, *_WIDE):
        row = [title]
        for rare in (False, True):
            wide = (title, gain, liars) in _WIDE
            told = votes(gain, liars, rare, options.draws, np.random.default_rng(7), wide)
            row += [f"{passed(*told, *rule).mean():.2f}" for rule in rules.values()]
        rows.append(row)
    header = ["", *(f"{kind}: {rule}" for kind in ("normal", "rare") for rule in rules)]
    print(table(header, rows))


if __name__ == "__main__":
    main()
