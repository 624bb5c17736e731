"""What starting costs: CPU seconds of each way into the package, and the libraries that take most of them.

    python benchmarks/startup.py

CPU time, because other work on the machine changes it little; the least of three runs. tests/test_startup.py
holds what each way may import.
"""

import os
import subprocess
import sys

WAYS = {
    "import fedclust": ["-c", "import fedclust"],
    "fedclust --help": ["-m", "fedclust", "--help"],
    "fedclust stratgy=fmcl": ["-m", "fedclust", "stratgy=fmcl"],
    "fedclust strategy=fmlc": ["-m", "fedclust", "strategy=fmlc"],
    "fedclust rounds=-1": ["-m", "fedclust", "rounds=-1"],
    "fedclust training.learning_rate=fast": ["-m", "fedclust", "training.learning_rate=fast"],
    "import fedclust.clients.app": ["-c", "import fedclust.clients.app"],
    "import fedclust.strategies.base": ["-c", "import fedclust.strategies.base"],
    "import fedclust.runs.server": ["-c", "import fedclust.runs.server"],
}
_MOST = 4


def cpu_seconds(arguments: list[str]) -> float:
    """Run Python once; return its CPU seconds."""
    process = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, _, usage = os.wait4(process.pid, 0)
    return usage.ru_utime + usage.ru_stime


def libraries(arguments: list[str]) -> dict[str, float]:
    """Sum up the seconds that importing each library's modules took, without what they import in turn."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments], capture_output=True, text=True, check=False
    )
    seconds: dict[str, float] = {}
    for line in done.stderr.splitlines():
        parts = line.removeprefix("import time:").split("|")
        if len(parts) == 3 and parts[0].strip().isdigit():
            library = parts[2].strip().partition(".")[0]
            seconds[library] = seconds.get(library, 0.0) + int(parts[0]) / 1e6
    return dict(sorted(seconds.items(), key=lambda item: -item[1])[:_MOST])


def main() -> None:
    """Print the table."""
    print("| | CPU seconds | of them importing |\n| --- | --- | --- |")
    for way, arguments in WAYS.items():
        least = min(cpu_seconds(arguments) for _ in range(3))
        named = ", ".join(f"{name} {seconds:.2f}" for name, seconds in libraries(arguments).items())
        print(f"| `{way}` | {least:.2f} | {named} |", flush=True)


if __name__ == "__main__":
    main()
