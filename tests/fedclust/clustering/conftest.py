from collections.abc import Iterator

import pytest
from threadpoolctl import threadpool_limits


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Use one thread for small matrices, which is faster on a busy machine."""
    with threadpool_limits(1):
        yield
