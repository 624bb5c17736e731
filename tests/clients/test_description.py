import numpy as np
from flwr.app import RecordDict

from fedclust.messages.codec import encode
from fedclust.messages.description import DescriptionQuestion


def test_a_client_counts_its_labels_and_names_its_group(node, federation) -> None:
    said = node({"clients": "4"}).told({4: DescriptionQuestion()})[0][4]
    for counts, rows in ((said.train_counts, federation.train[4]), (said.test_counts, federation.test[4])):
        expected = np.zeros(10, dtype=int)
        for row in rows:
            expected[int(federation.labels[row])] += 1
        np.testing.assert_array_equal(counts, expected)
    assert said.group == 1  # groups of 4 and 2
    assert said.names.classes == tuple("0123456789")
    assert said.name is None


def test_several_clients_each_have_their_own_answer(node, federation) -> None:
    contents, errors = node({"clients": "0,5"}).ask_clients(
        "query.description", {0: RecordDict(), 5: RecordDict()}
    )
    assert errors == {}
    assert contents[0]["names"] is contents[5]["names"]  # so it travels once
    assert [contents[client]["config"]["group"] for client in (0, 5)] == [0, 1]
    assert [sum(contents[client]["config"]["train-counts"]) for client in (0, 5)] == [
        len(federation.train[0]),
        len(federation.train[5]),
    ]


def test_what_is_said_of_rows(node, federation) -> None:
    asked = node({"clients": "0-2"})
    for tells, known in (
        ("sizes", {"num-train", "num-test", "num-classes", "validation"}),
        ("nothing", {"num-classes"}),
    ):
        contents, errors = asked.ask_clients(
            "query.description", dict.fromkeys(range(3), encode(DescriptionQuestion(tells)))
        )
        assert errors == {}
        for client, content in contents.items():
            config = content.config_records["config"]
            assert set(config) - {"group", "mean", "std"} == known
            assert config["num-classes"] == 10
            if tells == "sizes":
                assert config["num-train"] == len(federation.train[client])
