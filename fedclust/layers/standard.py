"""The layers of a run."""

from fedclust.aggregation.replies import ANY, Caps
from fedclust.layers.bounds import Bounds
from fedclust.layers.drift import Drift
from fedclust.layers.layer import Layer
from fedclust.layers.members import Attendance, Method, Newcomers
from fedclust.settings.run_options import RunOptions


def standard_layers(
    method: Method, options: RunOptions, *further: Layer, moves_clients: bool = False, private: bool = False
) -> tuple[Layer, ...]:
    """List the layers of a run in their order.

    Parameters
    ----------
    method
        Places newcomers.
    options
        Of the run.
    further
        Layers of the method's or the run's own.
    moves_clients
        Whether drift may move clients; else it is only reported.
    private
        Whether `further` has a layer that limits updates for privacy; no other limit then counts, and no
        model is taken back for what single clients say.
    """
    caps = ANY if private else Caps(options.update_norm_cap, options.update_pull_cap)
    drift = [Drift(options.drift_every, moves=moves_clients)] if options.drift_every else []
    return Newcomers(method), Bounds(caps, blames=not private), *further, *drift, Attendance()
