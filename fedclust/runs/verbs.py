"""The verbs of the command line, and the helps that they print; imports only the standard library."""

import argparse
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from textwrap import shorten, wrap

from fedclust.support.checks import none_of
from fedclust.support.layout import CONF

VERBS = {
    "run": "run a federation, or with -m a sweep; this word may be left out",
    "check": "check a site's tables before they are used",
    "compare": "tabulate finished runs, and test whether the methods differ",
    "report": "print every figure of a run, draw its pictures, and write its page again",
    "predict": "predict with the models of a run or of an export",
    "place": "find the cluster of a client that was not in a run",
    "export": "write a run's models into a folder that can be used without the run",
    "watch": "show a run or a sweep in a browser while it is running",
    "help": "show the help of a verb, or the choices of a group of settings",
}
"""What each verb does. All but run and help are modules of :mod:`fedclust.runs` with a ``main``."""

_WIDTH = 100
_CODES = (
    "0; 1 if the run, or a job of a sweep, fails after it has started; 2 if a setting is wrong; 3 if the "
    "models predict no better than each client's class shares after five passes over a client's rows or "
    "more, which a sweep's jobs only print; 130 or 143 if it is interrupted"
)
_EXAMPLES = {
    "run": """
  fedclust                                      handwritten digits: groups, or one model for all?
  fedclust strategy=fmcl partition=dirichlet partition.alpha=0.1 seed=3
  fedclust -m strategy=fedavg,fmcl seed=0,1,2   a sweep: every strategy with every seed
  fedclust resume=outputs/2026-01-31/12-00-00 rounds=300
  fedclust --cfg job                            every setting with its value; nothing is run
  fedclust help strategy                        the choices of strategy=""",
    "help": """
  fedclust help compare
  fedclust help strategy                        the choices of strategy=""",
}


class Parser(argparse.ArgumentParser):
    """A verb's arguments; its help begins with examples, and is as wide as a screen.

    Parameters
    ----------
    verb
        One of :data:`VERBS`.
    examples
        Commands, a line each.
    note
        What else to know, below the arguments.
    """

    def __init__(self, verb: str, examples: str, note: str | None = None) -> None:
        form = partial(argparse.RawDescriptionHelpFormatter, width=_WIDTH, max_help_position=32)
        wrapped = note and "\n".join(wrap(note, _WIDTH))
        hidden = argparse.SUPPRESS  # the examples show it, and an error is one line
        super().__init__(f"fedclust {verb}", hidden, formatter_class=form, epilog=wrapped)
        self._head = f"fedclust {verb}: {VERBS[verb]}\n{examples.rstrip()}\n\n"

    def format_help(self) -> str:
        """Return the verb's purpose, its examples and its arguments."""
        return self._head + super().format_help()


def settings_parser() -> Parser:
    """Describe the arguments of ``run``, which Hydra reads."""
    note = f"groups: {', '.join(_groups())}; exit code: {_CODES}"
    parser = Parser("run", _EXAMPLES["run"], note)
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="a group's choice, or a value")
    parser.add_argument("-m", "--multirun", action="store_true", help="run every combination of a,b,c")
    parser.add_argument("--cfg", choices=["job"], help="print the settings, run nothing")
    parser.add_argument("--config-dir", metavar="FOLDER", help="your own choices, beside fedclust's")
    parser.add_argument("--hydra-help", action="store_true", help="the other options, which are Hydra's")
    return parser


def show_help(arguments: Sequence[str] = ()) -> int:
    """Print what there is: all verbs, a verb's own help, or the choices of a group of settings.

    Returns
    -------
    Exit status 0.

    Raises
    ------
    ValueError
        If there is no such verb or group.
    """
    name = arguments[0] if arguments else ""
    if name in ("", "help", "-h", "--help"):
        verbs = "\n".join(f"  {verb:9} {what}" for verb, what in VERBS.items())
        how = "fedclust VERB --help shows more, fedclust help GROUP the choices of a group of settings: "
        how = "\n".join(wrap(how + ", ".join(_groups()), _WIDTH))
        examples = "\n".join(_EXAMPLES["run"].splitlines()[1:5])
        print(f"fedclust [VERB] …: clustered federated learning on Flower\n\n{examples}\n\n{verbs}\n\n{how}")
    elif name == "run":
        print(settings_parser().format_help(), end="")
    elif name in VERBS:
        import_module(f"fedclust.runs.{name}").main(["--help"])
    elif name in _groups():
        for path in sorted((CONF / name).glob("*.yaml")):
            comments = [line for line in path.read_text("utf-8").splitlines() if line.startswith("# ")]
            what = next((line[2:] for line in comments if not line.startswith("# @")), "")
            what = shorten(what, _WIDTH - 26 - len(name), placeholder=" …")
            print(f"{name}={path.stem:24} {what}".rstrip())
    else:
        raise ValueError(none_of("help", name, [*VERBS, *_groups()]))
    return 0


def _groups() -> list[str]:
    return sorted({path.parent.name for path in CONF.glob("*/*.yaml")})
