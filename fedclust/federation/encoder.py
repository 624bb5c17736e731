"""Ask how the clients' raw rows become inputs, for the run's folder."""

import logging
from typing import Any

from flwr.app import Message, RecordDict

from fedclust.data.input_encoders import to_values
from fedclust.federation.federation import Federation
from fedclust.messages import QUERY_ENCODER, BadReply, read_encoder

__all__ = ["ask_encoder"]

logger = logging.getLogger(__name__)

_MOST_ASKED = 3


def ask_encoder(federation: Federation) -> dict[str, Any] | None:
    """Ask the first client how it encodes its inputs; all have the same encoder.

    It is for the run's folder only and counts towards no round: a client that fails is not recorded, and the
    next one is asked.

    Returns
    -------
    Its values, see :mod:`fedclust.data.input_encoders`; None if three clients in a row did not answer.
    """
    for client in range(min(_MOST_ASKED, federation.num_clients)):
        question = Message(RecordDict(), dst_node_id=client, message_type=QUERY_ENCODER)
        for reply in federation.grid.send_and_receive([question], timeout=federation.timeout):
            try:
                if not reply.has_error():
                    return to_values(read_encoder(reply))
            except BadReply as error:
                logger.warning("%s", error)
    return None
