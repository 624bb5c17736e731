"""TensorBoard: event files in the run's folder."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedclust.results.trackers.protocol import TrackedRun, optional

__all__ = ["TensorBoard"]


class TensorBoard:
    """Write event files to ``<run's folder>/tensorboard``.

    Pictures and the summary are copied into them; the other results are files beside them.

    Raises
    ------
    ModuleNotFoundError
        If ``tensorboard`` is not installed.
    """

    def __init__(self) -> None:
        self._module = optional("torch.utils.tensorboard", "tensorboard")
        self._writer: Any = None
        self._run: TrackedRun | None = None
        self._last = 0

    def start(self, run: TrackedRun) -> tuple[str, int]:
        """Open the event files; those of a resumed run are continued, and its later rounds are hidden."""
        self._run = run
        folder = run.folder / "tensorboard"
        has = run.rounds if run.kept is not None and any(folder.glob("events.*")) else 0
        # Without this mark TensorBoard would show the rounds after the checkpoint twice.
        purge = has + 1 if run.kept is not None else None
        self._writer = self._module.SummaryWriter(str(folder), purge_step=purge)
        self._last = has
        rows = [f"| {key} | {_cell(value)} |" for key, value in run.settings.items()]
        self._writer.add_text("config", "\n".join(["| setting | value |", "| --- | --- |", *rows]), has)
        return "tensorboard", has

    def log(self, server_round: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of a round; they are on disk when this returns."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, server_round)
        self._writer.flush()
        self._last = server_round

    def finish(self, figures: Mapping[str, float], files: Sequence[Path], failed: bool) -> None:  # noqa: ARG002
        """Write the final figures, the hyperparameters, the pictures and the summary."""
        last = self._last
        final = {f"final/{name}": value for name, value in figures.items()}
        for name, value in final.items():
            self._writer.add_scalar(name, value, last)
        if final and self._run is not None:
            from torch.utils.tensorboard.summary import hparams

            for part in hparams(dict(self._run.settings), final):
                self._writer.file_writer.add_summary(part)
        for path in files:
            if path.name == "summary.json":
                text = json.dumps(json.loads(path.read_text(encoding="utf-8")), indent=1)
                self._writer.add_text("summary", f"```\n{text}\n```", last)
            for picture in sorted(path.glob("*.png")) if path.is_dir() else ():
                self._writer.add_image(f"plots/{picture.stem}", _pixels(picture), last, dataformats="HWC")
        self._writer.close()


def _pixels(path: Path) -> Any:
    import numpy as np
    from PIL import Image

    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB"))


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")
