import time

import pytest
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedclust.federation import RunFailed
from fedclust.grids.local_grid import LocalGrid


def _grid(do: object) -> LocalGrid:
    app = ClientApp()

    @app.query("do")
    def act(message: Message, context: Context) -> Message:
        do()
        return Message(RecordDict(), reply_to=message)

    return LocalGrid(app, {})


def test_a_node_that_hangs_ends_the_run() -> None:
    grid = _grid(lambda: time.sleep(60))
    (node,) = grid.get_node_ids()
    with pytest.raises(RunFailed, match=r"a node's work on a message of type query.do must end within"):
        grid.send_and_receive([Message(RecordDict(), node, "query.do")], timeout=0.1)


MADE = None, "a text", GeneratorExit("of theirs"), SystemExit(0), BaseException("x")


@pytest.mark.parametrize("made", MADE, ids=repr)
def test_whatever_a_clients_code_makes_or_raises_is_its_own_failure(made: object) -> None:
    def app(_: Message, __: Context) -> object:
        if isinstance(made, BaseException):
            raise made
        return made

    grid = LocalGrid(app, {})  # type: ignore[arg-type]
    (node,) = grid.get_node_ids()
    (reply,) = grid.send_and_receive([Message(RecordDict(), node, "train")])
    raised = f"{type(made).__name__}: {made}" if isinstance(made, BaseException) else "TypeError: a Client"
    assert reply.error.reason.startswith(raised)
