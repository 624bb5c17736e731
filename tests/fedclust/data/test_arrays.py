"""Clients' own arrays: who holds which rows, how inputs are read, and what is refused."""

import numpy as np
import pandas as pd
import pytest
import torch

from fedclust.data.arrays import from_arrays, to_inputs, to_truth

X = np.arange(20, dtype=np.float64).reshape(10, 2)
Y = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 0])


def held(data, client: int, part: str) -> set[float]:
    """The first columns of the rows of a client's part; they name the rows."""
    return set(data.inputs[getattr(data, part)[client]][:, 0].tolist())


def test_a_fifth_of_a_pair_is_its_test_part() -> None:
    data = from_arrays([(X, Y), (X[:3] + 100, Y[:3])], seed=1)
    assert (data.num_clients, data.num_classes, data.input_shape) == (2, 3, (2,))
    # 10 rows: 2 to test on. 3 rows: 0.6 rounds to 1.
    assert [len(rows) for rows in data.test] == [2, 1]
    assert [len(rows) for rows in data.train] == [8, 2]
    assert [len(rows) for rows in data.validation] == [0, 0]
    assert held(data, 0, "train") | held(data, 0, "test") == set(range(0, 20, 2))
    assert held(data, 1, "train") | held(data, 1, "test") == {100.0, 102.0, 104.0}
    # A row keeps its label: row r of client 0 begins with 2 r and has class r mod 3.
    rows = np.concatenate([data.train[0], data.test[0]])
    assert [int(value) // 2 % 3 for value in data.inputs[rows, 0]] == data.labels[rows].tolist()


def test_the_seed_draws_the_test_parts_of_a_client_whoever_else_is_there() -> None:
    one, same, other = (from_arrays([(X, Y)] * 2, seed=seed) for seed in (1, 1, 2))
    assert held(one, 0, "test") == held(same, 0, "test")
    assert any(held(one, client, "test") != held(other, client, "test") for client in (0, 1))
    assert held(from_arrays([(X, Y)] * 5, seed=1), 1, "test") == held(one, 1, "test")
    assert one.fingerprint == same.fingerprint != other.fingerprint


@pytest.mark.parametrize("validation", [None, (), ([], []), (X[:0], Y[:0]), (X[4:6], Y[4:6])])
def test_a_triple_gives_the_three_parts(validation) -> None:
    data = from_arrays([((X[:4], Y[:4]), validation, (X[6:], Y[6:])), (X + 100, Y)])
    assert held(data, 0, "train") == {0.0, 2.0, 4.0, 6.0}
    assert held(data, 0, "validation") == ({8.0, 10.0} if validation and len(validation[0]) else set())
    assert held(data, 0, "test") == {12.0, 14.0, 16.0, 18.0}


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor, lambda values: values.tolist()])
def test_arrays_tensors_and_lists_are_the_same(kind) -> None:
    data, expected = from_arrays([(kind(X), kind(Y))]), from_arrays([(X, Y)])
    assert data.inputs.dtype == torch.float32
    torch.testing.assert_close(data.inputs, expected.inputs)
    assert data.labels.tolist() == expected.labels.tolist()
    assert data.fingerprint == expected.fingerprint


def test_images_are_kept_as_bytes_with_the_statistics_of_training_pixels() -> None:
    train = np.zeros((2, 2, 1, 2), dtype=np.uint8)
    train[:, 0] = [[0, 255]]  # channel 0: half black, half white; channel 1: all black
    test = np.full((1, 2, 1, 2), 255, dtype=np.uint8)
    data = from_arrays([((train, [0, 1]), None, (test, [1]))])
    assert data.inputs.dtype == torch.uint8
    # Mean of 0, 1, 0, 1 is 1/2, and so is the deviation; a channel that never changes is divided by 1.
    assert (data.mean, data.std) == ((0.5, 0.0), (0.5, 1.0))


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([[1.5]], torch.float32),
        (np.ones((1, 2), dtype=np.float16), torch.float32),
        (np.ones((1, 2), dtype=">f8"), torch.float32),
        (np.ones((1, 2), dtype=bool), torch.float32),
        (np.ones((1, 2), dtype=np.uint8), torch.float32),
        (np.ones((1, 1, 2, 2), dtype=np.uint8), torch.uint8),
        (np.ones((1, 2), dtype=np.int16), torch.int64),
        ([[3, 4]], torch.int64),
        (pd.DataFrame({"age": [1.5], "smokes": [True]}), torch.float32),  # NumPy has objects
        (pd.DataFrame({"age": [1.5], "visits": [2]}, dtype="Float64"), torch.float32),
    ],
)
def test_how_inputs_are_read(values, dtype: torch.dtype) -> None:
    assert to_inputs(values).dtype == dtype
    np.testing.assert_array_equal(to_inputs(values).numpy(), np.asarray(values).astype(float))


def test_what_is_read_is_a_copy_and_what_is_given_stays() -> None:
    given = X.astype(np.float32)
    given.flags.writeable = False
    data = from_arrays([(given, Y)])
    data.inputs.zero_()
    assert given[1, 0] == 2.0
    assert to_truth(np.array([True, False]), "classes").tolist() == [1, 0]
    assert to_truth([1.0, 2.0], "classes").tolist() == [1, 2]


def test_the_number_of_classes() -> None:
    tokens = np.arange(12).reshape(4, 3)
    data = from_arrays([(tokens, tokens % 2)])  # a label for each position
    assert (data.labels.shape, data.num_classes) == ((4, 3), 2)
    assert from_arrays([(X, Y)], num_classes=7).class_names == tuple("0123456")
    assert from_arrays([(X, np.zeros(10, dtype=int))]).num_classes == 2  # a lone class is one of two


GOOD, INDICES = (X, Y), "targets must be class indices, whole numbers >= 0"


@pytest.mark.parametrize(
    ("clients", "said"),
    [
        ([], "clients must be a list with a pair or a triple per client, got 0 values"),
        (None, "clients must be a list .* per client, got NoneType"),
        ((pair for pair in [GOOD]), "clients must be a list .* per client, got generator"),
        ([GOOD, 3], r"client 1 must be \(inputs, targets\) or \(train, validation, test\), got int"),
        ([3], r"client 0 must be \(inputs, targets\) or \(train, validation, test\), got int"),
        ([(None, None, GOOD)], "client 0 must have at least one training row, got none"),
        ([(X, list("abcabcabca"))], "client 0: arrays must hold numbers, got <U1; np.unique"),
        ([GOOD, (X, Y + 10**9)], "targets must be .* classes at most 1000000, got 1000000003; np.unique"),
        ([GOOD, (X,)], r"client 1 must be \(inputs, targets\) or .*, got 1 values"),
        ([GOOD, (X, Y, Y)], r"client 1 must have \(inputs, targets\) in each part, got ndarray"),
        ([GOOD, (X, Y[:3])], r"client 1 must have inputs .*, got \(10, 2\) and \(3,\)"),
        ([GOOD, (X[:, 0], Y)], r"client 1 must have inputs \(N, \*shape\) .*, got \(10,\) and \(10,\)"),
        ([GOOD, (X[:1], Y[:1])], "client 1 must have at least 2 rows, .*, got 1"),
        ([GOOD, (X[:, :1], Y)], r"client 1 must have rows like client 0's, .*\(2,\).*\(1,\)"),
        ([GOOD, (X.astype(int), Y)], r"client 1 must have .* like client 0's, torch.float32 .*torch.int64"),
        ([GOOD, (X * np.nan, Y)], "client 1: inputs must be finite as float32, got nan"),
        (
            [GOOD, (pd.DataFrame(X, dtype="Float64").shift(), Y)],
            "client 1: inputs must be finite .*, got nan",
        ),
        (
            [(pd.DataFrame({"age": Y, "name": ["x"] * 10}), Y)],
            "client 0: arrays must hold numbers, got object",
        ),
        ([GOOD, (X * 1e38 + 1e39, Y)], "client 1: inputs must be finite as float32, got inf"),
        ([GOOD, (X, Y - 1)], f"client 1: {INDICES}, got -1"),
        ([GOOD, (X, Y + 0.5)], f"client 1: {INDICES}, got 0.5"),
        ([GOOD, (X, np.full(10, np.nan))], f"client 1: {INDICES}, got nan"),
        (
            [GOOD, (X, list("abcabcabca"))],
            r"client 1: arrays must hold numbers, got <U1; np.unique\(labels, ",
        ),
        ([GOOD, (X.astype(complex), Y)], "client 1: arrays must hold numbers, got complex128"),
        ([GOOD, ([[1.0], [2.0, 3.0]], [0, 1])], "client 1: must be arrays, setting an array element"),
        ([(np.zeros((10, 4, 4), np.uint8), Y)], r"client 0: inputs of type uint8 must be .* \(10, 4, 4\)"),
        ([GOOD, ((X[:0], Y[:0]), None, GOOD)], "client 1 must have at least one training row, got none"),
        ([GOOD, (GOOD, None, ([], []))], "client 1 must have at least one test row, got none"),
        ([GOOD, (GOOD, None, None)], "client 1 must have at least one test row, got none"),
    ],
)
def test_what_is_refused_names_the_client(clients, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}"):
        from_arrays(clients)


def test_too_few_classes() -> None:
    with pytest.raises(ValueError, match="^client 1 must have targets below num_classes, 2, got 2$"):
        from_arrays([(X, Y % 2), GOOD], num_classes=2)
    with pytest.raises(ValueError, match="^num_classes must be >= 2 or None, got 1$"):
        from_arrays([GOOD], num_classes=1)
