"""Check the device that nodes of this process shall compute on."""

import torch

__all__ = ["check_device"]


def check_device(device: str | int) -> None:
    """Check that this machine has a device.

    Parameters
    ----------
    device
        ``"auto"``, a name that PyTorch knows, such as ``"cuda:1"``, or the number of an accelerator.

    Raises
    ------
    ValueError
        If PyTorch knows no such device, or cannot reach it.
    """
    try:
        torch.empty(0, device="cpu" if device == "auto" else device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"device must be auto or a device of this machine, got {device!r}: {reason}"
        ) from error
