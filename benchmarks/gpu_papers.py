"""Item `papers` of `benchmarks/gpu.py`: tables of the papers, with as many rounds as there is time for.

FMCL's runs need an encoder. The paper's, a ViT-Tiny trained on ImageNet, must be downloaded; ours is a
ResNet-9 that is trained on CIFAR-100 first, by `strategy=centralised`.
"""

import json
import re
import tempfile
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import cifar100
import paper_table
import papers
from gpu_clock import LATE, Found, in_time
from gpu_rows import affordable, again, cost_of, make_run

from fedclust.results import SavedRun

__all__ = ["TABLES", "affordable_seeds", "encoder_overrides", "paper"]

TABLES = {  # the datasets' folders
    "fmnist": ("fashion_mnist",),
    "cifar10": ("cifar10",),
    "fedgwc": ("cifar100",),
    "fmcl": ("imagenette64", "cifar100"),
}
FEDGWC = {
    "fedgwc_paper": ("strategy=fedgwc_paper",),
    "fedavg": ("strategy=fedavg",),
    "ifca_paper": ("strategy=ifca_paper", "strategy.parameters.num_clusters=5"),
    "fesem": ("strategy=fesem", "strategy.parameters.num_clusters=5"),
}
# All settings of the encoder are ours; a round is a pass over the training rows.
ENCODER = (
    "strategy=centralised", "compare=[]", "proof=false", "serve=cluster", "dataset=cifar100", "model=resnet9",
    "partition=iid", "partition.num_clients=10", "partition.test=holdout", "participation=1.0",
    "training.epochs=1", "training.steps=null", "training.batch_size=256", "training.learning_rate=0.1",
    "training.momentum=0.9", "training.weight_decay=0.0005", "training.schedule=cosine",
    "training.augmentation=crop_flip", "seed=0",
)  # fmt: skip
SMALL_ENCODER = ("training.batch_size=32", "dataset.input_shape=[3,16,16]", "dataset.resize=stretch")
PASSES = 30
SHARE = 0.25  # of the time, for the encoder
SMALL_FMCL = ("partition.num_clients=6", "dataset.input_shape=[3,32,32]")
SMALL_ROWS = ["FedAvg", "PACFL (FM)", "FMCL"]
SMALL_IMAGES = {"imagenette64": 120, "cifar100": 100}


def paper(options: Namespace, ends: float) -> str:
    """Make a table's runs, with as many rounds as there is time for."""
    for name in TABLES[options.table]:
        if not (options.data / name).is_dir():
            return f"Not measured: there is no folder {name} in {options.data.name}."
    with tempfile.TemporaryDirectory() as place:
        make = {"fedgwc": _fedgwc, "fmcl": _fmcl}.get(options.table, _clust_psi_pfl)
        return make(options, ends, Path(place))


def _clust_psi_pfl(options: Namespace, ends: float, folder: Path) -> str:
    asked = _asked(options, f"clust_psi_pfl_{options.table}", options.data / TABLES[options.table][0])
    made = paper_table.runs_of(asked, paper_table.data_of(asked, folder), folder)
    cost = in_time({"probe": (_probe(made[0], folder),)}, cost_of, ends)
    if "probe" not in cost.values:
        return cost.notes().strip()
    most = 2 if options.small else 40
    rounds, number = affordable(*cost.values["probe"], _seconds(options, ends), len(made), most)
    asked.set.append(f"rounds={rounds}")  # the table names what differs from the paper's setting
    made, found = _make(options, made, rounds, number, ends)
    return f"{rounds} of the paper's 40 rounds.\n\n{_table(asked, made, folder)}{found.notes()}"


def _fedgwc(options: Namespace, ends: float, folder: Path) -> str:
    few = papers.ITEMS["fedgwc-table-8"].small if options.small else ()
    made = []
    for row, overrides in FEDGWC.items():
        common = ["experiment=fedgwc_cifar100", *overrides, "compare=[]", "proof=false", *few]
        common += [f"device={options.device}", f"dataset.path={options.data / 'cifar100'}"]
        common += [f"seed={(options.seeds or [0])[0]}"]
        made.append(paper_table.Run(row, paper_table.Column("", ()), None, 0, tuple(common), folder / row))
    cost = in_time({"probe": (_probe(made[0], folder),)}, cost_of, ends)
    if "probe" not in cost.values:
        return cost.notes().strip()
    most = 2 if options.small else cifar100.ROUNDS
    rounds, number = affordable(*cost.values["probe"], _seconds(options, ends), len(made), most)
    made, found = _make(options, made, rounds, number, ends)
    item = papers.Item("FedGWC, Table 1", {}, (), "cifar100", "", key="share_weighted_accuracy")
    there = {run.row: SavedRun(run.folder) for run in made if paper_table.finished(run.folder)}
    text = papers.report(item, there, options.small).replace("# ", "#### ")
    return f"{rounds} of the paper's {cifar100.ROUNDS:,} rounds.\n\n{text}{found.notes()}"


def _fmcl(options: Namespace, ends: float, folder: Path) -> str:
    began = time.time()
    encoder, wrong = _train_encoder(options, began + SHARE * (ends - began), folder)
    if encoder is None:
        return wrong
    trained = SavedRun(encoder)
    asked = _asked(options, "fmcl_imagenette", _data(options, "imagenette64", folder))
    asked.seeds = options.seeds or ([0] if options.small else [0, 1, 2])
    # The small size of benchmarks/paper_table.py has no encoder.
    asked.columns, asked.small = None, False
    if options.small:
        asked.set += SMALL_FMCL
        asked.rows = options.rows or SMALL_ROWS
    made = paper_table.runs_of(asked, [f"dataset.path={asked.data}", *encoder_overrides(encoder)], folder)
    made.sort(key=lambda run: run.seed)  # a whole table before the next seed
    rows = len(made) // len(asked.seeds)
    # The last row has the encoder; FedAvg's has none.
    cost = in_time({"probe": (_probe(made[rows - 1], folder),)}, cost_of, ends)
    if "probe" not in cost.values:
        return cost.notes().strip()
    most = 2 if options.small else 100
    seeds, number, rounds = affordable_seeds(
        *cost.values["probe"], _seconds(options, ends), rows, len(asked.seeds), most
    )
    made, found = _make(options, made[: rows * seeds], rounds, number, ends)
    wanted, asked.seeds = len(asked.seeds), asked.seeds[:seeds]
    asked.set += [f"rounds={rounds}", "encoder=checkpoint"]
    return (
        f"Encoder: a ResNet-9 after {len(trained.rounds)} passes over CIFAR-100 (accuracy "
        f"{trained.summary['global_accuracy']:.3f} on held-out images); the paper's is a ViT-Tiny trained on "
        f"ImageNet. {rounds} of the paper's 100 rounds, {seeds} of {wanted} seeds.\n\n"
        f"{_table(asked, made, folder)}{found.notes()}"
    )


def _train_encoder(options: Namespace, ends: float, folder: Path) -> tuple[Path | None, str]:
    """Train the encoder; return the run's folder, or None and why there is none."""
    precision = () if options.device == "cpu" else ("training.precision=tf32",)
    data = _data(options, "cifar100", folder)
    small = SMALL_ENCODER if options.small else ()
    overrides = (*ENCODER, *precision, *small, f"device={options.device}", f"dataset.path={data}")
    run = paper_table.Run("encoder", paper_table.Column("", ()), None, 0, overrides, folder / "encoder")
    cost = in_time({"encoder": (_probe(run, folder / "encoder-probe"),)}, cost_of, ends, late=0)
    if "encoder" not in cost.values:
        return None, cost.notes().strip()
    most = 2 if options.small else PASSES
    rounds, number = affordable(*cost.values["encoder"], ends - time.time(), 1, most)
    if not number:
        return None, "Not measured: encoder: a pass over CIFAR-100 takes too long."
    _, found = _make(
        options, [run], rounds, 1, ends + 60
    )  # a run that was predicted badly is not thrown away
    return (run.folder, "") if not found.missing else (None, found.notes().strip())


def encoder_overrides(folder: Path) -> list[str]:
    """List what makes the network of a run that has ended, after its last round, the encoder of another run.

    Raises
    ------
    ValueError
        If the run has no checkpoint.
    """
    run, files = SavedRun(folder), sorted((folder / "checkpoints").glob("round-*.safetensors"))
    if not files:
        raise ValueError(f"folder must be of a run with a checkpoint, got {folder.name}")
    model = ",".join(f"{key}:{json.dumps(value)}" for key, value in run.config["model"].items())
    return [
        "encoder=checkpoint",
        f"encoder.path={json.dumps(str(files[-1]))}",
        f"encoder.model={{{model}}}",
        *(f"encoder.{name}={json.dumps(run.inputs[name])}" for name in ("mean", "std")),
    ]


def affordable_seeds(
    start: float, per_round: float, seconds: float, rows: int, seeds: int, most: int
) -> tuple[int, int, int]:
    """Divide time between rounds and seeds: rounds first, and a whole table before the next seed.

    Parameters
    ----------
    start, per_round, seconds, most
        See :func:`~gpu_rows.affordable`.
    rows
        Of the table.
    seeds
        That are wanted.

    Returns
    -------
    Seeds in [1, `seeds`], how many runs there is time for, and rounds of each.
    """
    rounds, number = affordable(start, per_round, seconds, rows, most)
    if number < rows:
        return 1, number, rounds
    whole = max(1, min(seeds, int(seconds / (rows * (start + rounds * per_round)))))
    return whole, rows * whole, rounds


def _asked(options: Namespace, experiment: str, data: Path) -> Namespace:
    """Write the options of `benchmarks/paper_table.py`."""
    return Namespace(
        experiment=experiment, stand_in=None, data=data, small=options.small, rows=options.rows,
        columns=options.columns, clients=None, seeds=options.seeds or [0], set=[f"device={options.device}"],
    )  # fmt: skip


def _data(options: Namespace, name: str, folder: Path) -> Path:
    place: Path = options.data / name
    if not options.small:
        return place
    return paper_table.part_of(place / "train.parquet", folder / "data" / name, SMALL_IMAGES[name])


def _probe(run: paper_table.Run, folder: Path) -> paper_table.Run:
    return again(run, ("rounds=2", "evaluate_every=2"), folder / "probe")


def _seconds(options: Namespace, ends: float) -> float:
    """Return the time there is, in seconds of one run after another."""
    # On one GPU runs at the same time take turns: two at most gain.
    return (ends - time.time() - LATE) * min(2, options.workers)


def _make(
    options: Namespace, made: Sequence[paper_table.Run], rounds: int, number: int, ends: float
) -> tuple[list[paper_table.Run], Found]:
    """Make the first `number` runs; return all of them, and what is missing."""
    final = (f"rounds={rounds}", f"evaluate_every={rounds}")
    chosen = [again(run, final, run.folder) for run in made]
    rows = {f"{run.row} {run.column.title} seed {run.seed}".replace("  ", " "): (run,) for run in chosen}
    found = in_time(
        dict(list(rows.items())[:number]), make_run, ends, options.workers, apart=not options.small
    )
    found.missing.update(dict.fromkeys(list(rows)[number:], "no time for it"))
    return chosen, found


def _table(asked: Namespace, made: Sequence[paper_table.Run], folder: Path) -> str:
    return re.sub(r"^#", "####", paper_table.write(asked, made, folder / "tables"), flags=re.MULTILINE)
