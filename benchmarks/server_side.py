"""Time of the server's clustering by number of clients: runs all scripts for it, one after the other.

python benchmarks/server_side.py [--write]
"""

import argparse
import subprocess
import sys
from pathlib import Path

from tables import machine, show

SCRIPTS = {
    "FedGWC": ["fedgwc_scale.py"],
    "FedGWC, 10,000 clients": ["fedgwc_scale.py", "--clients", "10000", "--repeats", "3"],
    "Clust-PSI-PFL": ["label_clustering_scale.py"],
    "FMCL": ["prototype_distances_scale.py"],
}


def main() -> None:
    """Run the scripts and print their output."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="into docs/PERFORMANCE.md")
    arguments = parser.parse_args()
    parts = []
    for name, (script, *options) in SCRIPTS.items():
        path = Path(__file__).with_name(script)
        output = subprocess.run(
            [sys.executable, str(path), *options], stdout=subprocess.PIPE, text=True, check=True
        ).stdout
        command = " ".join([f"benchmarks/{script}", *options])
        parts.append(f"{name} (`{command}`):\n\n```text\n{output.rstrip()}\n```")
    show("server", f"{machine()}.\n\n" + "\n\n".join(parts), arguments.write)


if __name__ == "__main__":
    main()
