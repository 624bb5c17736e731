"""Load from the Hugging Face hub or from a folder, and say clearly what to do when that fails."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

__all__ = ["load_pretrained"]

T = TypeVar("T")


def load_pretrained(loader: Callable[..., T], path: str, what: str, **options: Any) -> T:
    """Call a ``from_pretrained`` of transformers.

    What an earlier run has downloaded is used without asking the hub again, so that a machine without
    network neither waits nor fails.

    Parameters
    ----------
    loader
        The ``from_pretrained`` method.
    path
        Hub id, or local folder.
    what
        What is loaded, for the message.
    options
        Further arguments of the method.

    Raises
    ------
    ValueError
        If there is nothing fitting at `path`; the message names both ways to provide it.
    """
    rule = f"{what}: path must be a hub id, or a local folder written by save_pretrained, got {path!r}"
    if path.startswith(("/", ".", "~")):  # no hub id looks like that
        folder = Path(path).expanduser()
        if not folder.is_dir():
            raise ValueError(f"{rule}: there is no such folder")
        path = str(folder)
    try:
        try:
            return loader(path, local_files_only=True, **options)
        except OSError:
            return loader(path, **options)
    except (OSError, ValueError) as error:
        raise ValueError(f"{rule}: {str(error).strip().partition(chr(10))[0]}") from error
