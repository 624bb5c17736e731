"""Clients' descriptions, asked for through a grid."""

import numpy as np
import pytest
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedclust.federation import ClientGrid, Descriptions, Federation, FederationError, LocalGrid
from fedclust.federation.federation import imbalance_line, left_out_line
from fedclust.grids.client_grid import pack, unpack
from fedclust.grids.nodes import hosted_clients
from fedclust.messages.codec import encode
from fedclust.messages.description import Description, Hosted, Names


def described(names: list[str | None], classes: list[tuple[str, ...]], **more: object) -> Descriptions:
    """Ask a node per client, of these names and names of classes."""
    app, num_clients = ClientApp(), len(names)

    @app.query("clients")
    def clients(message: Message, context: Context) -> Message:
        hosted = hosted_clients(context.node_config, num_clients)
        return Message(encode(Hosted(hosted, num_clients)), reply_to=message)

    @app.query("description")
    def description(message: Message, context: Context) -> Message:
        counts = np.array([1, 2])
        answers = {
            client: encode(
                Description.of(counts, counts, name=names[client], names=Names(classes[client], **more))
            )
            for client in unpack(message.content)[0]
        }
        return Message(pack(answers), reply_to=message)

    grid = ClientGrid(LocalGrid(app, {}, num_clients))
    grid.connect()
    return Federation(grid).describe()


def test_names_of_classes_and_clients() -> None:
    found = described(["Mercy", "St. Anna"], [("ill", "well")] * 2, left_out={"Tiny Ward": 1})
    assert found.class_names == ("ill", "well")
    assert found.client_names == ("Mercy", "St. Anna")
    assert found.left_out == {"Tiny Ward": 1}
    np.testing.assert_array_equal(found.train_counts, [[1, 2], [1, 2]])


def test_no_names() -> None:
    found = described([None, None], [()] * 2)
    assert (found.class_names, found.client_names, found.left_out) == ((), None, {})
    assert described(["Mercy", None], [()] * 2).client_names is None


def test_nodes_that_disagree_on_the_classes_are_refused() -> None:
    with pytest.raises(
        FederationError, match="client 1 must have the class names of most, .'ill', 'well'., it"
    ):
        described([None, None], [("ill", "well"), ("well", "ill")])


def test_left_out_users_are_listed_and_counted() -> None:
    assert left_out_line({}) is None
    assert left_out_line({"Mercy": 1, "Lakeside": 1}) == (
        "left out, too few examples to be a client: 2, Mercy (1), Lakeside (1)"
    )
    many = left_out_line({f"w{number}": 1 for number in range(12)})
    assert many is not None
    assert many.startswith("left out, too few examples to be a client: 12, w0 (1)")
    assert many.endswith("w9 (1) and 2 more")


def test_the_line_by_hand() -> None:
    counts = np.array([[10, 30], [0, 50], [5, 5]])
    line = imbalance_line(counts, ("ill", "well"), ("north", "south", "west"))
    # 15 of 100 rows are ill, 85 well
    assert line == (
        "classes: largest well 85.0%, smallest ill 15.0% of 100 training rows; "
        "1 of 3 clients lack a class: south ill"
    )


def test_many_clients_and_classes_stay_one_line() -> None:
    line = imbalance_line(np.eye(6, dtype=int))
    assert line == (
        "classes: largest 0 16.7%, smallest 0 16.7% of 6 training rows; 6 of 6 clients lack a class: "
        "0 1, 2, 3 and 2 more; 1 0, 2, 3 and 2 more; 2 0, 1, 3 and 2 more and 3 more"
    )
    assert imbalance_line(np.ones((2, 2))).endswith("of 4 training rows; every client has every class")
