"""``python -m fedclust``: the same as ``fedclust``."""

from fedclust.runs.command_line import main

if __name__ == "__main__":
    main()
