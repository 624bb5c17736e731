"""Groups and their vote with ``privacy=client_dp`` on three SuperNodes, compared with the same run simulated.

    python benchmarks/private_vote.py FOLDER [--noise 1e-3] [--write]

Starts a SuperLink and three SuperNodes on this machine, with 30 clients of the digits, and runs
``private_groups`` for three rounds: one of the warm-up, two with groups, and the vote. Noise is from the
operating system where clients are deployed, so figures of two runs differ by it: with ``--noise 1e-3`` there
is next to none (and ε protects nobody), and what differs then, simulation and deployment do differently.
"""

from pathlib import Path

from common import arguments, show, table
from faults_runs import Place, deployment

from fedclust.results import SavedRun

COMMON = (
    "strategy=private_groups",
    "strategy.parameters.warmup=1",
    "compare=[]",
    "proof=false",
    "rounds=3",
    "participation=1",
    "partition=conventions",
    "partition.groups=[20,10]",
    "model=mlp",
    "model.hidden=[]",
    "training.mode=sequential",
    "checkpoint_every=1",
    "privacy=client_dp",
    "privacy.delta=1e-4",
)


def settings(noise: float) -> list[str]:
    """List the overrides of both runs; `noise` is that of all releases, in units of their sensitivity."""
    names = ("noise_multiplier", "count_noise", "evaluation_noise")
    return [*COMMON, *(f"privacy.{name}={noise}" for name in names)]


def deployed(place: Place, folder: Path, noise: float) -> None:
    """Run on three SuperNodes."""
    with deployment(place, None, 3) as flower:
        asked = (*settings(noise), "engine=superlink", f"engine.connection={flower.connection}")
        code, printed = place.finish(place.start(folder, *asked, env=flower.env))
    if code:
        raise RuntimeError(printed)


def simulated(place: Place, folder: Path, noise: float) -> None:
    """Run in one process."""
    asked = (*settings(noise), "privacy.evaluation=noised", "engine=local")
    code, printed = place.run(folder, *asked, env=place.environment())
    if code:
        raise RuntimeError(printed)


def page(folders: dict[str, Path]) -> str:
    """Write what both runs recorded of each round and of the vote."""
    rows = []
    for name, folder in folders.items():
        run = SavedRun(folder)
        last = run.rounds[-1]["strategy"]
        told = [each["strategy"].get("group_sizes") for each in run.rounds]
        sizes = "; ".join(str(each) for each in told if each)
        figures = (last["gain"], last["gain_needed"], run.summary["mean_client_accuracy"])
        kept = "yes" if last["groups_kept"] else "no"
        failed = str(run.summary["failed_replies"])
        rows.append([name, sizes, *(f"{each:.4f}" for each in figures), kept, failed])
    return table(
        ["", "sizes of groups, rounds 2 and 3", "gain", "gain needed", "accuracy", "kept", "failures"], rows
    )


def main() -> None:
    """Run the command line."""
    parser = arguments(__doc__, page="PRIVACY", folder=True)
    parser.add_argument("--noise", type=float, default=1e-3, help="multiplier of every release")
    given = parser.parse_args()
    place = Place(given.folder.resolve())
    folders = {}
    for name, run in (("one process", simulated), ("three SuperNodes", deployed)):
        folders[name] = place.root / f"{name.replace(' ', '-')}-{given.noise:g}"
        if not (folders[name] / "summary.json").is_file():
            run(place, folders[name], given.noise)
    show("vote", page(folders), given.write)


if __name__ == "__main__":
    main()
