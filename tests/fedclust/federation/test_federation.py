from types import SimpleNamespace

import numpy as np
import pytest
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedclust.data.targets import CLASSES, Amounts
from fedclust.federation import Descriptions, Federation, FederationError
from fedclust.federation.federation import capped_lines, few_passes_line, imbalance_line, left_out_line
from fedclust.grids.client_grid import ClientGrid, WrappedGrid, pack, unpack
from fedclust.grids.local_grid import LocalGrid
from fedclust.grids.nodes import hosted_clients
from fedclust.messages.codec import encode
from fedclust.messages.description import Description, DescriptionQuestion, Hosted, Names
from fedclust.messages.evaluation import LossesQuestion
from fedclust.messages.models import from_state
from fedclust.messages.training import UpdateQuestion


class Nodes(WrappedGrid):
    """A grid that notes the kinds of messages; one node never answers one kind."""

    def __init__(self, grid, hangs: int = -1, kind: str = "") -> None:
        super().__init__(grid)
        self.hangs, self.kind, self.waited, self.sent = hangs, kind, [], []

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        self.sent += [message.metadata.message_type for message in messages]
        for reply in super().send_and_receive(messages, timeout=timeout):
            if (reply.metadata.src_node_id, reply.metadata.message_type) == (self.hangs, self.kind):
                self.waited.append(timeout)
            else:
                yield reply


def test_clients_describe_themselves_once_for_all_runs(toy) -> None:
    grid = Nodes(toy(num_clients=4).grid())
    federation = Federation(grid)
    assert federation.describe().train_counts.tolist() == [[1, 1], [2, 1], [3, 1], [4, 1]]
    assert federation.describe() is federation.run(5, 10.0).describe()
    assert grid.sent == [DescriptionQuestion.kind] * 4


def _gone(client: int, _: int) -> str | None:
    return "gone" if client == 1 else None


def test_a_failure_is_the_clients_own_and_recorded(toy) -> None:
    federation = Federation(toy(num_clients=3, error=_gone).grid())
    losses = federation.losses((toy.model(), toy.model()), [1, 2])
    assert list(losses) == [2]
    assert federation.take_failures() == [{"client": 1, "phase": "query.losses", "reason": "gone"}]
    assert federation.take_failures() == []
    answers = federation.ask(LossesQuestion((toy.model(),)))
    assert (list(answers.replies), dict(answers.failures)) == ([0, 2], {1: "gone"})
    with pytest.raises(FederationError, match="client 1 must answer before round 1, it failed: gone"):
        answers.all()


def test_a_node_that_hangs_excludes_its_clients_after_the_timeout(toy) -> None:
    nodes = toy(num_clients=4).grid(2)._grid  # of clients 0 and 2, and of 1 and 3
    first = min(nodes.get_node_ids())
    hanging = Nodes(nodes, first, LossesQuestion.kind)
    grid = ClientGrid(hanging)
    grid.connect()
    federation = Federation(grid, timeout=7.5)
    assert list(federation.losses((toy.model(),), range(4))) == [1, 3]
    assert hanging.waited == [7.5]
    assert federation.take_failures() == [
        {"client": client, "phase": "query.losses", "reason": "no reply within 7.5 s"} for client in (0, 2)
    ]


def test_content_per_client(toy) -> None:
    one, two = toy.model(), toy.model()
    two["w"] = from_state({"w": torch.ones(2)})["w"]
    questions = {0: LossesQuestion((one,)), 1: LossesQuestion((two,))}
    answers = Federation(toy(num_clients=2).grid()).ask(questions)
    assert [answer.losses.tolist() for answer in answers.all()] == [[0.0], [0.0]]


class _Two(WrappedGrid):
    """A grid of two nodes that are no clients."""

    num_clients = None

    def get_node_ids(self) -> list[int]:
        return [3, 2]


def test_a_grid_of_anything_but_clients_is_refused(toy) -> None:
    with pytest.raises(ValueError, match=r"grid must have clients 0..K-1, got \[2, 3\]"):
        Federation(_Two(toy().grid()))


def test_a_client_that_goes_offline_still_counts(toy) -> None:
    grid = toy(num_clients=4).grid()
    federation = Federation(grid)
    del grid._nodes.node_of[3]  # as when its node leaves; the grid asks again only when nodes change
    assert grid.get_node_ids() == [0, 1, 2]
    assert Federation(grid).num_clients == federation.run(3, 1.0).num_clients == 4


def test_updates_many_times_as_long_as_the_others_are_left_out(toy) -> None:
    # Of two equal numbers: lengths 1, 1, 1, 1 and 100 times the root of 2; the median is that root.
    moves = dict.fromkeys(range(4), 1.0) | {4: 100.0}
    federation = Federation(toy(num_clients=5, move=lambda client, _: moves[client]).grid())
    found = federation.updates(toy.model(), range(5), 1, names=["w"])
    assert list(found) == [0, 1, 2, 3]
    assert [update.norm for update in found.values()] == pytest.approx([2**0.5] * 4)
    (failure,) = federation.take_failures()
    assert (failure["client"], failure["phase"]) == (4, UpdateQuestion.kind)
    assert failure["reason"] == (
        "client 4: update must be at most 30 times as long as the median of 1.41, got length 141"
    )
    assert list(federation.updates(toy.model(), range(5), 1, names=["w"], cap=None)) == [0, 1, 2, 3, 4]


# -- Descriptions -------------------------------------------------------------------------------------------


def federation_of(names: list[str | None], classes: list[tuple[str, ...]], **more: object) -> Federation:
    """Ask a node per client, of these names and names of classes."""
    app, num_clients = ClientApp(), len(names)

    @app.query("clients")
    def clients(message: Message, context: Context) -> Message:
        hosted = hosted_clients(context.node_config, num_clients)
        return Message(encode(Hosted(hosted, num_clients)), reply_to=message)

    @app.query("description")
    def description(message: Message, context: Context) -> Message:
        counts = np.array([1, 2])

        def described(client: int):
            return encode(
                Description.of(counts, counts, name=names[client], names=Names(classes[client], **more))
            )

        answers = {client: described(client) for client in unpack(message.content)[0]}
        return Message(pack(answers), reply_to=message)

    grid = ClientGrid(LocalGrid(app, {}, num_clients))
    grid.connect()
    return Federation(grid)


def described(*arguments, **more) -> Descriptions:
    return federation_of(*arguments, **more).describe()


def test_clients_may_report_the_figures_of_what_is_predicted() -> None:
    for target in (Amounts(0.0, 9.0, (5.0,)), CLASSES):
        federation = federation_of(["a", "b"], [("low", "high")] * 2, target=target)
        assert federation.describe().target == target
        assert federation.bounds.target == target


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
    with pytest.raises(FederationError, match="client 1 must have the class names of most, .'ill', 'well'."):
        described([None, None], [("ill", "well"), ("well", "ill")])


def test_left_out_users_are_listed_and_counted() -> None:
    assert left_out_line({}) is None
    assert left_out_line({"Mercy": 1, "Lakeside": 1}) == (
        "left out, too few examples for a client: 2, Mercy (1), Lakeside (1)"
    )
    nobodys = "left out, without the name of a client: 2,000 examples"
    assert left_out_line({"": 2000}) == nobodys
    many = left_out_line({f"w{number}": 1 for number in range(12)})
    assert many.startswith("left out, too few examples for a client: 12, w0 (1)")
    assert many.endswith("w9 (1) and 2 more")


def test_the_line_by_hand() -> None:
    counts = np.array([[10, 30], [0, 50], [5, 5]])
    line = imbalance_line(counts, ("ill", "well"), ("north", "south", "west"))
    # 15 of 100 rows are ill, 85 well
    assert line == (
        "classes: largest well 85.0%, smallest ill 15.0% of 100 training rows; "
        "1 of 3 clients lack a class: south: ill"
    )


def test_who_says_to_have_many_rows_is_named() -> None:
    rows = np.array([43, 43, 10**6, 12, 129])
    described = SimpleNamespace(num_train=rows, num_test=np.array([0, 5, 5, 5, 16]), client_names=None)
    steps = {"epochs": None, "steps": 3, "batch_size": 32}
    assert capped_lines(described, 3.0, steps) == [
        "client 2 says 1,000,000 training rows, the median 43; a mean by rows counts 129 (row_cap=3)",
        "client 4 says 16 test rows, the median 5; a mean by rows counts 15 (row_cap=3)",
    ]
    assert capped_lines(described, None, {"epochs": 1, "batch_size": 8}) == []
    # 1,000,000 / 32 = 31,250 batches, twice
    trained, tested = capped_lines(described, 3.0, {"epochs": 2, "batch_size": 32})
    assert trained.endswith(
        "; client 2 trains on all of them, 62,500 steps a round: training.steps= bounds it"
    )
    assert tested.endswith("counts 15 (row_cap=3)")


@pytest.mark.parametrize(
    ("rows", "rounds", "participation", "length", "line"),
    [
        # 624 / 8 = 78 batches; 60 · 3 / 78 = 2.3
        (
            (624, 0, 624),
            60,
            1.0,
            {"steps": 3},
            "60 rounds of 3 steps of 8 rows: 2.3 passes over the median client's 624 training rows",
        ),
        ((20, 20), 5, 1.0, {"steps": 3}, None),  # 20 rows are 3 batches, so 5 passes
        (
            (20, 25),  # the median, 22.5 rows, has 3 batches
            4,
            1.0,
            {"steps": 3},
            "4 rounds of 3 steps of 8 rows: 4 passes over the median client's 22.5 training rows",
        ),
        (
            (20,),
            10,
            0.1,
            {"epochs": 4},
            "10 rounds of 4 epochs: 4 passes over the median client's 20 training rows "
            "(a client trains in 10% of the rounds)",
        ),
        ((20,), 10, 0.5, {"epochs": 1}, None),
        ((0, 0), 1, 1.0, {"steps": 3}, None),  # nobody says how many rows it has
    ],
)
def test_few_passes_are_counted_by_hand(rows, rounds, participation, length, line) -> None:
    described = SimpleNamespace(num_train=np.array(rows))
    training = {"steps": None, "epochs": None, "batch_size": 8} | length
    expected = None if line is None else f"{line}; rounds= adds more"
    assert few_passes_line(described, rounds, participation, training) == expected


def test_many_clients_and_classes_stay_one_line() -> None:
    line = imbalance_line(np.eye(6, dtype=int))
    assert line == (
        "classes: 6 of equal size, training rows of each: 1; 6 of 6 clients lack a class: "
        "client 0: 1, 2, 3 and 2 more; client 1: 0, 2, 3 and 2 more; client 2: 0, 1, 3 and 2 more; and 3 more"
    )
    assert imbalance_line(np.ones((2, 2))).endswith("training rows of each: 2; every client has every class")
