"""Seconds of a round with layers that stay with clients, over FedAvg's: a table of docs/PERSONAL.md.

    python benchmarks/staying_speed.py [--turns 5] [--rounds 40] [--write]

The default run's digits and network, and FedBN's network; a run of each choice in every turn, and the ratio
of medians over its rounds within a turn. Rounds without an evaluation, a checkpoint or a proof.
"""

import json
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from common import arguments, in_turns, machine, show, table
from personal import NORMED

import fedclust

PLAIN = ("none", "fedper", "fedrep", "ditto", "apfl")
_WARM = 3  # rounds


def seconds(rounds: int, personal: str, further: tuple[str, ...], _: int) -> float:
    """Return the median of a run's rounds."""
    with tempfile.TemporaryDirectory() as folder:
        given = ["strategy=fedavg", f"personal={personal}", *further, f"rounds={rounds}", "proof=false"]
        given += ["evaluate_every=1000", "checkpoint_every=0", f"output_dir={folder}/run"]
        fedclust.run(given)
        lines = (Path(folder) / "run" / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
    return statistics.median(json.loads(line)["seconds"] for line in lines[_WARM:-1])


def main() -> None:
    """Run, and print the table."""
    parser = arguments(__doc__, page="PERSONAL")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=40)
    given = parser.parse_args()
    ways: dict[str, Callable[[int], float]] = {
        each: partial(seconds, given.rounds, each, ("compare=[]",)) for each in PLAIN
    }
    normed = tuple(each for each in NORMED if not each.startswith("partition"))
    ways |= {f"{each}, normed": partial(seconds, given.rounds, each, normed) for each in ("none", "fedbn")}
    found = in_turns(ways, given.turns)
    rows = []
    for name, values in found.items():
        base = found["none, normed" if name.endswith("normed") else "none"]
        ratios = sorted(own / of for own, of in zip(values, base, strict=True))
        ends = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        took = f"{1000 * statistics.median(values):.1f}"
        rows.append([f"`{name.partition(',')[0]}`", took, f"{statistics.median(ratios):.2f} ({ends})"])
    text = table(["`personal=`", "ms a round", "times FedAvg's (all turns)"], rows)
    show("speed", f"{machine()}, {given.turns} turns.\n\n{text}", given.write)


if __name__ == "__main__":
    main()
