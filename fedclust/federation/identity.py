"""The one place that touches Flower below its public surface.

``flwr.app.Message`` reads the run, node and task it belongs to from a process-wide identity that Flower
sets in its own processes. A grid of ours runs outside of them and sets it here.
"""

from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.supercore.task_identity import TaskIdentity

__all__ = ["assume_identity"]


def assume_identity(run_id: int = 1, node_id: int = SUPERLINK_NODE_ID) -> None:
    """Let this process create Flower messages.

    Parameters
    ----------
    run_id
        The run that messages belong to.
    node_id
        The node that sends them; by default the server.
    """
    TaskIdentity.task_id = 1
    TaskIdentity.run_id = run_id
    TaskIdentity.node_id = node_id
