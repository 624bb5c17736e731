"""The folders beside the package are imported as its parts."""

import sys

from fedclust.support.layout import CONF, join_parts


def test_the_parts_beside_the_package_and_no_others_are_found() -> None:
    join_parts()
    join_parts()
    (finder,) = [each for each in sys.meta_path if type(each).__name__ == "_PartsBeside"]
    for part in ("strategies", "clients"):
        assert finder.find_spec(f"fedclust.{part}", None).origin.endswith(f"{part}/__init__.py")
    for name in ("fedclust.data", "fedclust.strategies.base", "other.clients", "clients"):
        assert finder.find_spec(name, None) is None
    assert (CONF / "config.yaml").is_file()
