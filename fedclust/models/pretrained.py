"""Load models from the Hugging Face hub or a folder, with a clear message on failure."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

__all__ = ["load_pretrained"]

T = TypeVar("T")


def load_pretrained(loader: Callable[..., T], path: str, what: str, **options: Any) -> T:
    """Call a ``from_pretrained`` of transformers.

    Files that are already downloaded are used without contacting the hub, so that a machine without network
    neither waits nor fails. A model that needs code of its own is refused; transformers would ask on the
    terminal whether to run it.

    Parameters
    ----------
    loader
        The ``from_pretrained`` method.
    path
        Hub id, or local folder.
    what
        Name of the model, for the message.
    options
        Further arguments of the method.

    Raises
    ------
    ValueError
        If nothing at `path` can be loaded; the message names both ways to provide it.
    """
    rule = f"{what}: path must be a hub id, or a local folder written by save_pretrained, got {path!r}"
    if path.startswith(("/", ".", "~")):  # never a hub id
        folder = Path(path).expanduser()
        if not folder.is_dir():
            raise ValueError(f"{rule}: there is no such folder")
        path = str(folder)
    options["trust_remote_code"] = False
    try:
        try:
            return loader(path, local_files_only=True, **options)
        except OSError:
            return loader(path, **options)
    except (OSError, ValueError) as error:
        raise ValueError(f"{rule}: {str(error).strip().partition(chr(10))[0]}") from error
