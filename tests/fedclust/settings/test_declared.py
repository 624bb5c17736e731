import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Literal

import pytest

import fedclust
from fedclust.settings.declared import NOT_PLAIN, REQUIRED, _spec, declared_fields, declared_types

SHAPES = """
from dataclasses import dataclass

raise RuntimeError("this module must not be imported")

SIDES = (3, 4)

class Plain:
    pass

@dataclass(frozen=True)
class Shape(Plain):
    name: str
    sides: tuple[int, ...] = SIDES

def area(shape):
    return 0.0
"""
FORMS = """
from dataclasses import dataclass, field
import typing
from typing import ClassVar, TYPE_CHECKING

import a_library_that_is_not_there
import shapes_to_read
from shapes_to_read import Shape, area as measure

@dataclass(kw_only=True)
class Form(Shape):
    kind: ClassVar[str] = "form"
    name: str = "square"
    scale: float = -1e-3
    measure: object = measure
    inner: object = shapes_to_read.Shape
    made: object = field(default_factory=lambda: [1, 2])
    empty: dict = field(default_factory=dict)
    child: Shape | None = field(default_factory=Shape)
    given: int = field(repr=False)

@dataclass
class Computed:
    size: int = 2 ** 10

@dataclass
class Called:
    made: object = field(default_factory=measure)

@dataclass
class Twice:
    value: int = VALUE

VALUE = 1
VALUE = 2

@dataclass
class Hidden:
    value: int = field(default=1, init=False)

@dataclass
class Heir(a_library_that_is_not_there.Parent):
    value: int = 1

class NoDataclass:
    value: int = 1
"""
TYPED = """
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Optional

import a_library_that_is_not_there as lib
from forms_to_read import Form

raise RuntimeError("this module must not be imported")

Size = Literal["small", "large"]

class Typed(lib.Parent):
    def __init__(
        self, count: int, *, rate: float | None = None, size: "Size" = "small", widths: Sequence[int] = (),
        pair: tuple[int, ...] = (), maybe: Optional[bool] = None, named: typing.Union[str, None] = None,
        form: Form | None = None, act: Callable[[int], int] = abs, module: lib.nn.Module = None, bare=3,
        table: dict[str, int] = {}, **others: int,
    ) -> None: ...

class Heir(Typed):
    pass

@lib.changed
class Changed:
    def __init__(self, count: int) -> None: ...

@dataclass
class Base:
    first: int

@dataclass
class Child(Base):
    second: float = 0.5

def loss(weight: float, name: str) -> float: ...

@lib.changed
def wrapped(weight: float) -> float: ...
"""
OTHERS = """
from pydantic.dataclasses import dataclass

@dataclass
class Checked:
    value: int = 1
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules that cannot be imported, only read."""
    texts = {"shapes": SHAPES, "forms": FORMS, "others": OTHERS, "typed": TYPED}
    for name, text in texts.items():
        (tmp_path / f"{name}_to_read.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()


def test_fields_come_in_the_order_of_the_constructor(modules) -> None:
    fields = declared_fields("forms_to_read.Form")
    assert fields == {
        "name": "square",
        "sides": (3, 4),
        "scale": -0.001,
        "measure": NOT_PLAIN,
        "inner": NOT_PLAIN,
        "made": [1, 2],
        "empty": {},
        "child": NOT_PLAIN,
        "given": REQUIRED,
    }
    assert list(fields)[:3] == ["name", "sides", "scale"]


@pytest.mark.parametrize(
    "name",
    [
        *("forms_to_read.Computed", "forms_to_read.Called", "forms_to_read.Twice", "forms_to_read.Hidden"),
        *("forms_to_read.Heir", "forms_to_read.NoDataclass", "forms_to_read.Missing", "no_such_module.Form"),
        *("others_to_read.Checked", "forms_to_read"),
    ],
)
def test_what_the_source_does_not_say_is_not_guessed(modules, name) -> None:
    assert declared_fields(name) is None


@pytest.mark.parametrize("name", ["Typed", "Heir"])
def test_types_of_a_constructor(modules, name) -> None:
    assert declared_types(f"typed_to_read.{name}") == {
        "count": int,
        "rate": float | None,
        "size": Literal["small", "large"],
        "widths": Sequence[int],
        "pair": tuple[int, ...],
        "maybe": bool | None,
        "named": str | None,
    }


def test_types_of_a_dataclass_and_of_a_function(modules) -> None:
    assert declared_types("typed_to_read.Child") == {"first": int, "second": float}
    assert declared_types("typed_to_read.loss") == {"weight": float, "name": str}


@pytest.mark.parametrize("name", ["Changed", "wrapped", "Missing", "lib"])
def test_types_that_the_source_does_not_say_are_not_guessed(modules, name) -> None:
    assert declared_types(f"typed_to_read.{name}") == {}


def test_a_module_that_is_loaded_is_not_read() -> None:
    import fedclust.clustering.ifca  # noqa: F401

    assert "fedclust.clustering.ifca" in sys.modules
    assert declared_fields("fedclust.clustering.ifca.Parameters") is None


def test_a_package_that_only_an_editable_install_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """``pip install --editable`` finds ``fedclust`` by a finder of its own, not by a folder of the path."""
    outside = [path for path in sys.path if not (Path(path) / "fedclust").is_dir()]
    monkeypatch.setattr(sys, "path", outside)
    assert PathFinder.find_spec("fedclust") is None
    found = _spec("fedclust.clustering.fmcl")
    assert found is not None
    assert found.origin == str(Path(fedclust.__path__[0]) / "clustering" / "fmcl" / "__init__.py")
