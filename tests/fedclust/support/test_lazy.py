import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import fedclust.metrics


def test_a_name_is_imported_when_it_is_asked_for(tmp_path: Path) -> None:
    package = tmp_path / "offers"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "from fedclust.support.lazy import lazily\n"
        "if TYPE_CHECKING:\n"
        "    from offers.first import one, two\n"
        "    from offers.second import three\n"
        "else:\n"
        "    __getattr__, __dir__ = lazily(__name__)\n"
        "__all__ = ['one', 'three', 'two']\n"
    )
    (package / "first.py").write_text("one, two = 1, 2\n")
    (package / "second.py").write_text("three = 3\n")
    code = (
        "import sys, offers\n"
        "assert {'one', 'two', 'three'} <= set(dir(offers))\n"
        "assert not {'offers.first', 'offers.second'} & sys.modules.keys()\n"
        "assert offers.two == 2 and 'offers.second' not in sys.modules\n"
        "from offers import *\n"
        "assert (one, two, three) == (1, 2, 3)\n"
    )
    path = [str(tmp_path), *sys.path]
    subprocess.run([sys.executable, "-c", f"import sys; sys.path = {path!r}\n{code}"], check=True)


def test_a_name_that_is_not_offered_is_named() -> None:
    with pytest.raises(AttributeError, match=r"module 'fedclust.metrics' has no attribute 'fairnes'"):
        _ = fedclust.metrics.fairnes


PACKAGES = [
    *("clustering.clust_psi_pfl", "clustering.fmcl", "federation", "metrics", "results", "selection"),
    *("strategies", "training"),
]


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_of_a_package_hides_what_it_offers(package) -> None:
    name = f"fedclust.{package}"
    module = importlib.import_module(name)
    for path in Path(str(module.__file__)).parent.glob("[a-z]*.py"):
        importlib.import_module(f"{name}.{path.stem}")
    assert module.__all__
    for each in module.__all__:
        assert not isinstance(getattr(module, each), ModuleType), each
