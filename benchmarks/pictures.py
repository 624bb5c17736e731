"""Run a small sweep and draw its pictures, and the one of docs/PICTURES.md.

    python benchmarks/pictures.py FOLDER     the sweep, a minute or two, unless it is there, and its pictures

Writes FOLDER/pictures/ and docs/images/sweep.png.
"""

import subprocess
import sys
from pathlib import Path

from doc_figures import save
from PIL import Image

SWEEP = ("strategy=fedavg,fmcl,ifca", "partition=dirichlet,conventions", "seed=0,1", "rounds=12")


def main(folder: Path) -> None:
    """Run what is missing, and draw."""
    jobs = folder / "sweep"
    if not jobs.exists():
        swept = [sys.executable, "-m", "fedclust", "-m", *SWEEP, f"output_dir={jobs}"]
        if subprocess.run(swept).returncode not in (0, 3):  # 3: twelve rounds taught a job nothing
            sys.exit("the sweep failed")
    into = folder / "pictures"
    drawn = ["--plots", str(into), "--format", "svg,pdf,png", "--width", "page"]
    subprocess.run([sys.executable, "-m", "fedclust", "compare", str(jobs), *drawn], check=True)
    with Image.open(into / "accuracy_over_rounds.png") as image:
        save(image, "sweep")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python benchmarks/pictures.py FOLDER")
    main(Path(sys.argv[1]))
