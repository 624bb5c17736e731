"""What a node's own sites say of their data before round 1, and the encoding that they are told."""

from flwr.app import Context, Message

from fedclust.clients.app import app
from fedclust.clients.own_data import OwnSites, own_sites
from fedclust.messages import refused_content, stated_content

__all__ = ["agree", "state"]


@app.query("statement")
def state(message: Message, context: Context) -> Message:
    """Say of each site's data what all must know to encode theirs alike."""
    return Message(stated_content(_sites(context).stated()), reply_to=message)


@app.query("agreement")
def agree(message: Message, context: Context) -> Message:
    """Encode each site's rows as agreed."""
    refused = _sites(context).agree(context, message.content)
    return Message(refused_content(refused), reply_to=message)


def _sites(context: Context) -> OwnSites:
    sites = own_sites(context)
    if sites is None:
        raise ValueError("partition must be own, for a node to be asked for its own data")
    return sites
