"""The settings that ways of training are compared in have the samples that the tables name."""

import pytest


@pytest.mark.parametrize("name", ["digits", "cnn"])
def test_each_client_trains_on_as_many_samples_as_the_title_says(name: str, scripts) -> None:
    setting = scripts("settings").SETTINGS[name]
    federation = setting.federation()
    assert {len(rows) - setting.examples for rows in federation.train} <= {0, 1}  # a rounded division
    assert federation.validation == ()
    assert f"{setting.examples} samples each" in setting.title
