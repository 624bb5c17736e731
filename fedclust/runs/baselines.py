"""In a sweep, take a compared strategy's run from an earlier job that had the same configuration.

``fedclust -m strategy=fedavg,fedgwc,fmcl`` compares each method with FedAvg. FedAvg's own job comes first, so
it is trained once and the other jobs copy its results. If FedAvg is not in the sweep, the first job trains
it, and the others copy it from there.
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from fedclust.results import SavedRun
from fedclust.support.strict_json import dumps_by_key, replace_file

__all__ = ["take_from_sweep"]

_SWEEP = "multirun.yaml"  # Hydra's file in the folder of a sweep
# What does not change the results of a strategy.
_IRRELEVANT = ("checkpoint_every", "compare", "output_dir", "overrides", "resume", "serve")
_OF_THE_WHOLE_JOB = ("compare",)  # in a summary
_NOT_COPIED = (".lock", "compare", "plots", "tensorboard", "tracker.json", "wandb")


def take_from_sweep(name: str, config: DictConfig, job: Path) -> dict[str, Any] | None:
    """Copy a strategy's finished run from an earlier job of the sweep, if there is one.

    Parameters
    ----------
    name
        The strategy to compare with.
    config
        Its configuration; only a run with the same one, seed included, is copied.
    job
        Folder of the current job. It belongs to a sweep if Hydra's ``multirun.yaml`` lies beside it.

    Returns
    -------
    The run's summary, in which ``taken_from`` is its folder, seen from `job`; the run itself is then in
    ``compare/<name>/`` of `job`. None where there is none, and where `job` began to train its own.
    """
    beside = job / "compare" / name
    if beside.exists():  # a job that is resumed
        return _taken_before(beside, int(config.rounds))
    if not (job.parent / _SWEEP).is_file():
        return None
    wanted = _relevant(yaml.safe_load(OmegaConf.to_yaml(config, resolve=True)))
    for run in _finished(name, job):
        # Held-out rows compare models, which a run without its checkpoint no longer has.
        usable = not config.get("proof") or any((run.folder / "checkpoints").glob("round-*"))
        if usable and _relevant(run.config) == wanted:
            summary = {key: value for key, value in run.summary.items() if key not in _OF_THE_WHOLE_JOB}
            summary.setdefault("taken_from", Path(os.path.relpath(run.folder, job)).as_posix())
            # Links: a run that has finished is not written to again, and models can be large.
            ignored = shutil.ignore_patterns(*_NOT_COPIED)
            shutil.copytree(run.folder, beside, ignore=ignored, copy_function=_link)
            replace_file(beside / "summary.json", dumps_by_key(summary))
            return summary
    return None


def _taken_before(beside: Path, rounds: int) -> dict[str, Any] | None:
    """Get the summary of a run that was taken earlier, unless it now has more rounds."""
    run = SavedRun(beside)
    if not (beside / "summary.json").is_file() or "taken_from" not in run.summary:
        return None
    return dict(run.summary) if run.summary["rounds"] == rounds else None


def _finished(name: str, job: Path) -> Iterator[SavedRun]:
    """Yield the other jobs' own runs, then those that they were compared with."""
    places = ("*/summary.json", f"*/compare/{name}/summary.json")
    for path in (path for place in places for path in sorted(job.parent.glob(place))):
        run = SavedRun(path.parent)
        own = path.parent == job or job in path.parents
        if not own and run.strategy == name and len(run.rounds) == run.summary.get("rounds"):
            yield run


def _relevant(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in _IRRELEVANT}


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)
