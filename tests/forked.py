"""Run the command line in processes that are forked, so that only the first pays for the imports.

Each line of standard input is a JSON list of arguments. The child's process id is printed when it starts and
its exit status when it is over: negative for the signal that killed it.
"""

import json
import os
import sys

import fedclust.results.charts.run
import fedclust.runs.server  # noqa: F401
from fedclust import clients  # noqa: F401
from fedclust.runs.command_line import main
from fedclust.strategies import FedGWC  # noqa: F401


def _child(arguments: list[str]) -> None:
    sys.argv = ["fedclust", *arguments]
    log = os.open(os.devnull, os.O_WRONLY)
    os.dup2(log, 1)
    status = 0
    try:
        main()
    except SystemExit as error:
        status = int(error.code or 0)
    os._exit(status)


if __name__ == "__main__":
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _child(json.loads(line))
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
