"""The only module that uses Flower's private API.

``flwr.app.Message`` reads the run, node and task it belongs to from a process-wide identity that Flower
sets in its own processes. Our grids run outside of them and set it here.
"""

from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.supercore.task_identity import TaskIdentity

__all__ = ["assume_identity"]


def assume_identity(run_id: int = 1, node_id: int = SUPERLINK_NODE_ID) -> None:
    """Allow this process to create Flower messages.

    Parameters
    ----------
    run_id
        Id of the messages' run.
    node_id
        Id of the node that sends them; by default the server.
    """
    TaskIdentity.task_id = 1
    TaskIdentity.run_id = run_id
    TaskIdentity.node_id = node_id
