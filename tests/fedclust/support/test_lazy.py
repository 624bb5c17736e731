import ast
import importlib
import os
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
        "from fedclust.support.lazy import lazily\n"
        "NAMES = {'offers.first': 'one two', 'offers.second': 'three'}\n"
        "__getattr__, __dir__, __all__ = lazily(__name__, NAMES)\n"
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


def test_numpy_is_imported_after_its_threads_were_set() -> None:
    code = (
        "import os, sys, fedclust\n"
        "assert 'numpy' not in sys.modules and os.environ['OPENBLAS_THREAD_TIMEOUT'] == '4'\n"
    )
    own = {name: value for name, value in os.environ.items() if name != "OPENBLAS_THREAD_TIMEOUT"}
    code = f"import sys; sys.path = {sys.path!r}\n{code}"
    subprocess.run([sys.executable, "-c", code], env=own, check=True)


def test_a_name_that_is_not_offered_is_named() -> None:
    with pytest.raises(AttributeError, match=r"module 'fedclust.metrics' has no attribute 'fairnes'"):
        _ = fedclust.metrics.fairnes


ROOT = Path(__file__).parents[3]
LAZY = [path for path in ROOT.glob("[fs]*/**/__init__.py") if "lazily(__name__" in path.read_text()]


@pytest.mark.parametrize("path", LAZY, ids=lambda path: path.parent.name)
def test_a_package_offers_what_type_checkers_read_and_no_module_hides_it(path: Path) -> None:
    folders = path.parent.relative_to(ROOT).parts
    package = ".".join(folders if folders[0] == "fedclust" else ("fedclust", *folders))
    (told,) = (node for node in ast.parse(path.read_text()).body if isinstance(node, ast.If))
    read = {name.name: each.module for each in told.body for name in each.names}  # type: ignore[attr-defined]
    module = importlib.import_module(package)
    assert set(module.__all__) == read.keys()
    for name, source in read.items():
        assert getattr(module, name) is getattr(importlib.import_module(str(source)), name)
    for other in path.parent.glob("[a-z]*.py"):
        importlib.import_module(f"{package}.{other.stem}")
    assert module.__all__
    for each in module.__all__:
        assert not isinstance(getattr(module, each), ModuleType), each
