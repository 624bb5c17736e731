"""Break runs in every way that this machine allows, and write docs/RELIABILITY.md of what happened.

python benchmarks/faults.py --out outputs/faults [--only TEXT]    run the faults that are not done yet
python benchmarks/faults.py --out outputs/faults --write docs/RELIABILITY.md    write the page

Each fault is a small real run in processes of its own: 30 clients on the digits. What was done is kept in
``faults.jsonl`` below the folder; delete a line to do it again. A fault that is not in it keeps its line of
the page, and the page keeps what digests.py wrote into it. Faults of full and read-only disks need the right
to mount a tmpfs. Figures are compared with those of the same run without a fault.
"""

import argparse
import json
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from faults_cache import CACHE_FAULTS
from faults_deployed import DEPLOYED_FAULTS
from faults_local import LOCAL_FAULTS
from faults_runs import Fault, Place

_ROW = re.compile(r"\| (.*?) \| (`.*`|nothing) \| (\d+) \| (.*) \|")
_DIGESTS = re.compile(r"<!-- digests -->\n.*?<!-- /digests -->", re.DOTALL)
FAULTS: tuple[Fault, ...] = (*LOCAL_FAULTS, *CACHE_FAULTS, *DEPLOYED_FAULTS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs and of faults.jsonl")
    parser.add_argument("--only", default="", help="only faults whose engine and name contain this")
    parser.add_argument("--write", type=Path, help="write the page from what was done, and run nothing")
    options = parser.parse_args(arguments)
    results = options.out / "faults.jsonl"
    done = read(results)
    if options.write:
        options.write.write_text(
            page({**written(options.write), **done}, digests(options.write)), encoding="utf-8"
        )
        return 0
    place = Place(options.out.resolve())
    for fault in FAULTS:
        if fault.key in done or options.only not in fault.key:
            continue
        began = time.monotonic()
        row = {"key": fault.key, "engine": fault.engine, "fault": fault.name, **fault.run(place)}
        row["seconds"] = round(time.monotonic() - began)
        with results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
        print(json.dumps(row, ensure_ascii=False), flush=True)
    return 0


def read(results: Path) -> dict[str, dict]:
    """Read what was done, by key; the last line of a key counts."""
    if not results.is_file():
        return {}
    rows = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    return {row["key"]: row for row in rows}


def written(path: Path) -> dict[str, dict]:
    """Read the faults that a page has, by key."""
    rows: dict[str, dict] = {}
    engine = ""
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        if line.startswith("## "):
            engine = line.removeprefix("## ")
        elif found := _ROW.fullmatch(line):
            fault, saw, code, lost = found.groups()
            saw = "" if saw == "nothing" else saw.strip("`")
            rows[f"{engine}: {fault}"] = {"fault": fault, "saw": saw, "exit": int(code), "lost": lost}
    return rows


def digests(path: Path) -> str:
    """Read what digests.py wrote into a page, with its markers."""
    found = _DIGESTS.search(path.read_text(encoding="utf-8")) if path.is_file() else None
    return found[0] if found else ""


def page(done: dict[str, dict], kept: str) -> str:
    """Write the page, with what is `kept` of it."""
    text = (Path(__file__).parent / "faults_text.md").read_text(encoding="utf-8")
    tables = []
    for engine in dict.fromkeys(fault.engine for fault in FAULTS):
        rows = [done[fault.key] for fault in FAULTS if fault.engine == engine and fault.key in done]
        if not rows:
            continue
        tables += [f"## {engine}", "", "| fault | what the user saw | exit code | what was lost |"]
        tables += ["| --- | --- | --- | --- |"]
        tables += [
            f"| {row['fault']} | {_code(row['saw'])} | {_status(row['exit'])} | {row['lost']} |"
            for row in rows
        ]
        tables.append("")
    not_done = [fault.key for fault in FAULTS if fault.key not in done]
    if not_done:
        tables += ["Not run for this page: " + "; ".join(not_done) + ".", ""]
    text = text.replace("TABLES\n", "\n".join(tables))
    return _DIGESTS.sub(lambda _: kept, text) if kept else text


def _status(code: int) -> int:
    """Return an exit code as a shell shows it: 137 for a process that was killed."""
    return 128 - code if code < 0 else code


def _code(line: str) -> str:
    return "`" + line.replace("|", "/").replace("`", "'") + "`" if line else "nothing"


if __name__ == "__main__":
    sys.exit(main())
