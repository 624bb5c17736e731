"""Serve a handful of sites without one of them: fedclust leave FOLDER SITE TARGET."""

from collections.abc import Sequence
from pathlib import Path

from fedclust.runs.verbs import Parser

_EXAMPLES = """
  fedclust leave outputs/2026-01-31/12-00-00 west served-without-west"""


def main(argv: Sequence[str]) -> int:
    """Export what serves the other sites when one leaves, and print what of it remains where.

    Returns
    -------
    Exit status 0.

    Raises
    ------
    ValueError, OSError
        If the folder holds no finished run of a handful of sites, the site is none of these, or the target is
        not a new or an empty folder.
    """
    given = parser().parse_args(argv)
    from fedclust.runs.library import load  # imports PyTorch

    result = load(given.folder, allow=given.allow)
    left = result.without(given.site)
    result.export(given.target, formats=given.formats, without=left)
    for line in left.lines:
        print(line)
    print(f"models without {left.label}: {given.target / 'README.md'}")
    return 0


def parser() -> Parser:
    """Describe the verb's arguments."""
    parser = Parser("leave", _EXAMPLES)
    parser.add_argument("folder", type=Path, help="the folder of a finished run of a handful of sites")
    parser.add_argument("site", help="name of the site that leaves, with all its clients; or of one client")
    parser.add_argument("target", type=Path, help="where to write; a new or an empty folder")
    parser.add_argument("--formats", nargs="+", default=[], choices=("onnx", "torch"), help="further formats")
    parser.add_argument("--allow", default="", help="further names to build, separated by commas")
    return parser
