"""The verbs of the command line, and the helps that they print; quick to import."""

import argparse
import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from itertools import takewhile
from pkgutil import resolve_name
from textwrap import fill, wrap
from typing import Any, NoReturn

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
    "leave": "write the models of a handful of sites without one that leaves",
    "watch": "show a run or a sweep in a browser while it is running",
    "help": "show the help of a verb, the choices of a group of settings, or one of them",
}
"""What each verb does. All but run and help are modules of :mod:`fedclust.runs` with a ``main``."""

CSV_FLAGS = {"sep": "','", "decimal": "'.'", "encoding": "'utf-8'"}
"""Options of CSV files with a flag of their own, and what holds unless given; others are --csv NAME=VALUE."""

_WORDS = {"true": True, "false": False, "null": None}
_WIDTH = 100
_CODES = (
    "0; 1 if the run, or a job of a sweep, fails after it has started; 2 if a setting is wrong; 3 if the "
    "models predict no better than each client's class shares after five passes over a client's rows or "
    "more, or those of a sweep's job, and no job fails; 130 or 143 if it is interrupted"
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
  fedclust help strategy                        the choices of strategy=
  fedclust help strategy=auto                   one choice, and its settings""",
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

    def add_csv_options(self, usual: Mapping[str, str] = CSV_FLAGS) -> None:
        """Add how a CSV file is read, which :func:`csv_options` returns."""
        for name in CSV_FLAGS:
            self.add_argument(
                f"--{name}", help=f"of a CSV file; {usual.get(name, 'as in training')} unless given"
            )
        options = "another of dataset.csv_options, such as thousands= (also at a node)"
        self.add_argument("--csv", metavar="NAME=VALUE", action="append", default=[], help=options)

    def error(self, message: str) -> NoReturn:
        """End with an error in one line, and how to see what there is."""
        super().error(f"{message}; {self.prog} --help lists the arguments")

    def format_help(self) -> str:
        """Return the verb's purpose, its examples and its arguments."""
        return self._head + super().format_help()


def csv_options(given: argparse.Namespace) -> dict[str, Any]:
    """Return how a CSV file is read, as in ``dataset.csv_options``, from a verb's arguments.

    Raises
    ------
    ValueError
        If one is not NAME=VALUE.
    """
    named = {name: getattr(given, name) for name in CSV_FLAGS}
    options = {name: value for name, value in named.items() if value is not None}
    for name, equals, value in (each.partition("=") for each in given.csv):
        if not equals:
            raise ValueError(f"--csv takes NAME=VALUE, got {name}")
        options[name] = _WORDS.get(value, int(value) if value.isdecimal() else value)
    return options


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
    """Print all verbs, a verb's own help, the choices of a group of settings, or one of them.

    Parameters
    ----------
    arguments
        Nothing, a verb, a group, or a choice as ``["strategy=auto"]`` or ``["strategy", "auto"]``.

    Returns
    -------
    Exit status 0.

    Raises
    ------
    ValueError
        If there is no such verb, group or choice.
    """
    name, _, choice = (arguments[0] if arguments else "").partition("=")
    choice = choice or next((each for each in arguments[1:] if not each.startswith("-")), "")
    if name in ("", "help", "-h", "--help"):
        verbs = "\n".join(f"  {verb:9} {what}" for verb, what in VERBS.items())
        how = "fedclust VERB --help shows more, fedclust help GROUP the choices of a group of settings, and "
        how = "\n".join(wrap(f"{how}fedclust help GROUP=CHOICE one of them: {', '.join(_groups())}", _WIDTH))
        examples = "\n".join(_EXAMPLES["run"].splitlines()[1:5])
        print(f"fedclust [VERB] …: clustered federated learning on Flower\n\n{examples}\n\n{verbs}\n\n{how}")
    elif name == "run":
        print(settings_parser().format_help(), end="")
    elif name in VERBS:
        import_module(f"fedclust.runs.{name}").main(["--help"])
    elif name in _groups():
        choices = sorted(path.stem for path in (CONF / name).glob("*.yaml"))
        if choice and choice not in choices:
            raise ValueError(none_of(name, choice, choices))
        indent = " " * (len(name) + 26)
        for each in () if choice else choices:
            lines = [line[2:] for line in takewhile(_is_comment, _text(name, each).splitlines())]
            lines = lines[:1] if lines and lines[0].startswith("python ") else lines
            first = re.split(r"(?<=\.) (?=[A-Z])", " ".join(lines))[0]
            print(fill(first, _WIDTH, initial_indent=f"{name}={each:24} ", subsequent_indent=indent).rstrip())
        if choice:
            text = _text(name, choice)
            print("\n".join([text, *_settings(name, text)]).rstrip())
    else:
        raise ValueError(none_of("help", name, [*VERBS, *_groups()]) + _of_setting(name))
    return 0


def _of_setting(name: str) -> str:
    """Write which help lists a setting, such as ``rounds`` or ``training.steps``; nothing if none does."""
    group, dot, _ = name.partition(".")
    if dot and group in _groups():
        return f"; fedclust help {group} lists its choices, fedclust help {group}=CHOICE the settings of one"
    known = re.findall(r"^(\w+):", (CONF / "config.yaml").read_text("utf-8"), re.M)
    return "; fedclust --cfg job prints every setting" if name in known else ""


def _text(group: str, choice: str) -> str:
    return (CONF / group / f"{choice}.yaml").read_text("utf-8").removeprefix("# @package _global_\n")


def _is_comment(line: str) -> bool:
    return line.startswith("# ")


def _settings(group: str, text: str) -> Iterator[str]:
    """Write what a choice's YAML takes from dataclasses: each setting with its value, and what it is."""
    import yaml

    from fedclust.settings.choices import defaults_of

    node = yaml.safe_load(text)
    for target, where in re.findall(r"- /defaults_of/([\w.]+)@(\w+)", text):
        key, own = (group, node) if where == "_here_" else (f"{group}.{where}", node.get(where) or {})
        entries = re.findall(r"^(\w.*)\n((?: .+\n?|\n)+)", inspect.getdoc(resolve_name(target)) or "", re.M)
        about = {name: what for names, what in entries for name in names.split(", ")}
        for name, value in defaults_of(target).items():
            if name != "_target_":
                yield f"{key}.{name}={json.dumps(own.get(name, value), ensure_ascii=False)}"
                what = " ".join(re.sub("``|:[a-z]+:", "", about.get(name, "")).split())
                yield from wrap(what, _WIDTH, initial_indent="  ", subsequent_indent="  ")


def _groups() -> list[str]:
    return sorted({path.parent.name for path in CONF.glob("*/*.yaml")})
