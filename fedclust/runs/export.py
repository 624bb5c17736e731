"""Write the models of a finished run into a folder of their own: fedclust export FOLDER TARGET."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from fedclust.runs.verbs import Parser

_EXAMPLES = """
  fedclust export outputs/2026-01-31/12-00-00 served
  fedclust export outputs/2026-01-31/12-00-00 served --formats onnx torch"""


def main(argv: Sequence[str]) -> int:
    """Export each cluster's model with its model card, and print how to use them.

    Returns
    -------
    Exit status 0.

    Raises
    ------
    ValueError, OSError
        If the folder holds no finished run, or the target is not a new or an empty folder.
    """
    given = parser().parse_args(argv)
    from fedclust.runs.library import load  # imports PyTorch
    from fedclust.serving import load_export
    from fedclust.support.checks import plural

    result = load(given.folder, allow=given.allow)
    target = result.export(given.target, formats=given.formats, sites=given.sites)
    served = load_export(target, allow=given.allow)
    models, clients = plural(len(served.clusters), "model"), plural(len(served.sites), "client")
    tuned = sum(site.is_tuned for site in served.sites)
    own = f", and {plural(tuned, 'fine-tuned model')}" if tuned else ""
    print(f"{models} for {clients}{own}: {given.target / 'README.md'}")
    if left := [site for site in served.sites if site.note]:
        print(f"{plural(len(left), 'client')} such as {left[0].label}: {left[0].note}")
    # Where layers stay with each client, only a client whose own are here.
    if ready := [site for site in served.sites if site.is_tuned or not served.stays]:
        first = shlex.join([str(given.target), "ROWS", "--site", ready[0].label])
        print(f"to predict: fedclust predict {first}")
    return 0


def parser() -> Parser:
    """Describe the verb's arguments."""
    parser = Parser("export", _EXAMPLES)
    parser.add_argument("folder", type=Path, help="the folder of a finished run")
    parser.add_argument("target", type=Path, help="where to write; a new or an empty folder")
    parser.add_argument("--formats", nargs="+", default=[], choices=("onnx", "torch"), help="further formats")
    parser.add_argument("--sites", nargs="*", help="whose fine-tuned models; all, if at most 50")
    parser.add_argument("--allow", default="", help="further names to build, separated by commas")
    return parser
