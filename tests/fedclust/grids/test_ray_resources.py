import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedclust.grids.ray_resources import Machine, Shares, share_out

LAPTOP = [Machine(cpus=4)]
SERVER = [Machine(cpus=16, gpus=2)]
MIXED = [Machine(cpus=8, gpus=1), Machine(cpus=4), Machine(cpus=16, gpus=2)]


@pytest.mark.parametrize(
    ("machines", "asked", "shares"),
    [
        (LAPTOP, {}, Shares(4, 1, 0)),
        ([Machine(cpus=64)], {}, Shares(8, 8, 0)),  # at most eight unless asked for
        ([Machine(cpus=64)], {"num_nodes": 32}, Shares(32, 2, 0)),
        (LAPTOP, {"num_nodes": 3}, Shares(3, 1, 0)),
        (LAPTOP, {"num_nodes": 6}, Shares(6, 0.5, 0)),  # of halves of CPUs eight would fit
        (LAPTOP, {"num_cpus": 2}, Shares(2, 2, 0)),
        (LAPTOP, {"num_cpus": 0.5}, Shares(8, 0.5, 0)),
        ([Machine(cpus=1)], {}, Shares(1, 1, 0)),
        (SERVER, {}, Shares(2, 8, 1)),
        (SERVER, {"num_gpus": 0.5}, Shares(4, 4, 0.5)),
        (SERVER, {"num_gpus": 1 / 3}, Shares(6, 2, 1 / 3)),
        (SERVER, {"num_gpus": 2}, Shares(1, 16, 2)),
        (SERVER, {"num_gpus": 0}, Shares(8, 2, 0)),
        (SERVER, {"num_nodes": 3}, Shares(3, 5, 0.5)),  # two on one GPU, so halves
        (SERVER, {"num_nodes": 1}, Shares(1, 16, 1)),
        # Nodes lie on one machine: 8 + 2 × 8 CPUs, and the machine without a GPU takes no part.
        (MIXED, {}, Shares(3, 8, 1)),
        # Without GPUs eight nodes need 2 CPUs each: 8 CPUs take 4 nodes, 4 take 2, 16 take 8; of 3 CPUs
        # they take 2 + 1 + 5 = 8 as well.
        (MIXED, {"num_gpus": 0}, Shares(8, 3, 0)),
    ],
)
def test_shares(machines, asked, shares) -> None:
    assert share_out(machines, **asked) == shares


@pytest.mark.parametrize(
    ("machines", "asked", "complaint"),
    [
        (
            LAPTOP,
            {"num_nodes": 3, "num_cpus": 2},
            "3 nodes of 2 CPUs and 0 GPUs must fit into the Ray cluster, 2 do; "
            "its machines have 4 CPUs, 0 GPUs",
        ),
        (LAPTOP, {"num_gpus": 1}, "1 nodes of 1 CPUs and 1 GPUs must fit into the Ray cluster, 0 do"),
        # Ten CPUs in all, but no machine of six.
        ([Machine(cpus=5)] * 2, {"num_cpus": 6}, "0 do; its machines have 5 CPUs, 0 GPUs; 5 CPUs, 0 GPUs"),
        # Two GPUs with a third left on each have no place for a third node.
        (SERVER, {"num_nodes": 3, "num_gpus": 2 / 3}, "2 do"),
        ([], {}, "its machines have nothing"),
        (LAPTOP, {"num_nodes": 0}, "num_nodes must be a whole number >= 1, got 0"),
        (LAPTOP, {"num_nodes": 1.5}, "num_nodes must be a whole number >= 1, got 1.5"),
        (LAPTOP, {"num_cpus": 0}, "num_cpus must be > 0, got 0"),
        (SERVER, {"num_gpus": -1}, r"num_gpus must be in \[0, 1\] or a whole number, got -1"),
        (SERVER, {"num_gpus": 1.5}, r"num_gpus must be in \[0, 1\] or a whole number, got 1.5"),
    ],
)
def test_what_cannot_be(machines, asked, complaint) -> None:
    with pytest.raises(ValueError, match=complaint):
        share_out(machines, **asked)


@given(
    st.lists(st.builds(Machine, st.integers(1, 32), st.integers(0, 8)), min_size=1, max_size=4),
    st.none() | st.integers(1, 24),
)
def test_all_nodes_find_a_place(machines, num_nodes) -> None:
    try:
        shares = share_out(machines, num_nodes)
    except ValueError:
        # Only where whole GPUs leave too few machines; with CPUs alone any number fits.
        assert any(machine.gpus for machine in machines)
        return
    # Place them one by one, each GPU with what is left of it.
    left = [(machine.cpus, [1.0] * machine.gpus) for machine in machines]
    for _ in range(shares.num_nodes):
        for place, (cpus, gpus) in enumerate(left):
            free = next((i for i, there in enumerate(gpus) if there >= shares.gpus - 1e-9), None)
            if cpus >= shares.cpus - 1e-9 and (free is not None or not shares.gpus):
                if shares.gpus:
                    gpus[free] -= shares.gpus
                left[place] = (cpus - shares.cpus, gpus)
                break
        else:
            pytest.fail(f"{shares} do not fit into {machines}")
