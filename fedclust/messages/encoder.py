"""How raw rows become a network's inputs, from a node to the server, for the run's folder."""

import json
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict

from fedclust.data.input_encoders import InputEncoder, encoder_from, to_values
from fedclust.messages.bounds import check_keys, only_records, record_of, short
from fedclust.messages.keys import CONFIG, BadReply

__all__ = ["encoder_content", "read_encoder"]

_ENCODER = "input-encoder"


def encoder_content(encoder: InputEncoder) -> RecordDict:
    """Make a node's reply with how it encodes its inputs."""
    return RecordDict({CONFIG: ConfigRecord({_ENCODER: json.dumps(to_values(encoder))})})


def read_encoder(message: Message) -> InputEncoder:
    """Read how a node encodes its inputs.

    Raises
    ------
    BadReply
        If it is no encoder.
    """
    where = f"client {message.metadata.src_node_id}"
    only_records(message.content, (CONFIG,), where)
    config = record_of(message.content, CONFIG, ConfigRecord, where)
    check_keys(config, (_ENCODER,), where, CONFIG)
    text: Any = config.get(_ENCODER)
    try:
        return encoder_from(json.loads(text) if isinstance(text, str) else text)
    except (ValueError, RecursionError) as error:
        raise BadReply(f"{where}: {_ENCODER} must be an encoder, got {short(text)}: {error}") from error
