import pytest

from fedclust.settings import ConfigError, compose, run_settings


def test_defaults() -> None:
    settings = run_settings(compose())
    assert settings.compare == ("fedavg",)
    assert settings.task == "train"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("rounds=0", "rounds must be >= 1, got 0"),
        ("rounds=many", "rounds must be of type int, got 'many'"),
        ("rounds=1.5", "rounds must be of type int, got 1.5"),
        ("seed=-1", "seed must be >= 0, got -1"),
        ("participation=0", r"participation must be in \(0, 1\], got 0"),
        ("participation=1.1", r"participation must be in \(0, 1\], got 1.1"),
        ("evaluate_every=0", "evaluate_every must be >= 1"),
        ("checkpoint_every=-1", "checkpoint_every must be a number of rounds >= 0 or a time"),
        ("wait=0", "wait must be > 0"),
        ("timeout=0", "timeout must be > 0"),
        ("task=think", "task must be one of train, advise, inspect, partition, got think"),
    ],
)
def test_settings_outside_their_range(override: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        run_settings(compose([override]))


@pytest.mark.parametrize(
    ("text", "names"),
    [("fedavg", ("fedavg",)), ("[fmcl,fedavg]", ("fmcl", "fedavg")), ("[]", ()), ("null", ())],
)
def test_what_to_compare_with(text: str, names: tuple[str, ...]) -> None:
    assert run_settings(compose([f"compare={text}"])).compare == names
