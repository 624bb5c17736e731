import pytest

from fedclust.privacy import ClientDP, NoPrivacy, named


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ({"noise_multiplier": 0}, "noise_multiplier must be > 0 and finite, got 0"),
        ({"clip": float("inf")}, "clip must be > 0 and finite, got inf"),
        ({"clip": "1"}, "clip must be > 0 and finite, got '1'"),
        ({"delta": 1.0}, r"delta must be in \(0, 1\), got 1.0"),
        ({"quantile": 1.5}, r"quantile must be in \[0, 1\], got 1.5"),
        ({"clip_rate": -1}, "clip_rate must be >= 0 and finite, got -1"),
        ({"adaptive": 1}, "adaptive must be True or False, got 1"),
        ({"evaluation": "none"}, "evaluation must be one of auto, exact, noised, got 'none'"),
    ],
)
def test_values_out_of_range(argument: dict, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}$"):
        ClientDP(**argument)


def test_names() -> None:
    assert named("none") == NoPrivacy()
    assert named("client_dp") == ClientDP()
    assert named(ClientDP(clip=2.0)).clip == 2.0
    with pytest.raises(ValueError, match="^privacy must be one of none, client_dp, or made by"):
        named("dp")


def test_what_is_said_of_rows() -> None:
    told = [NoPrivacy().tells, NoPrivacy(label_counts=False).tells, ClientDP().tells]
    assert told == ["labels", "sizes", "nothing"]
