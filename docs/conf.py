"""Configure Sphinx, which builds the site with ``make docs``; building and reading it need no network."""

import re
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math import latex2mathml
from sphinx.application import Sphinx

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import fedclust  # noqa: E402

project = "fedclust"
author = "the fedclust authors"
copyright = author  # Sphinx's name
version = release = fedclust.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"fedclust {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
toctree_object_entries = False  # functions are in the page's own contents, not in the list of pages
html_math_renderer = "mathml"

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_fence_as_directive = ["math"]  # so that GitHub shows the same equations
myst_heading_anchors = 3

default_role = "literal"  # docstrings name arguments in single backticks
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True}
autodoc_preserve_defaults = True
napoleon_google_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
napoleon_attr_annotations = False  # the signature has them
napoleon_custom_sections = ["Returns", "Yields"]  # ours are sentences, without types


def prepare(_app: Sphinx, _what: str, _name: str, _obj: Any, _options: Any, lines: list[str]) -> None:
    """Change a docstring's lines in place where Sphinx would misread them.

    Sphinx reads the bars of |∂L/∂u| and the star of (n, *shape) as markup, and all but the last of several
    attributes with one description as types.
    """
    section = ""
    for number, line in enumerate(lines):
        if set(line) == {"-"}:
            section = lines[number - 1]
        elif section == "Attributes" and re.fullmatch(r"\w+(, \w+)+", line):
            line = line.replace(", ", "/")
        parts = re.split(r"(``.*?``)", line)
        lines[number] = "".join(
            part if part.startswith("``") else re.sub(r"\||\*(?=\w[\w ]*\))", r"\\\g<0>", part)
            for part in parts
        )


def name_arrays(
    _app: Sphinx,
    _what: str,
    _name: str,
    _obj: Any,
    _options: Any,
    signature: str | None,
    returned: str | None,
) -> tuple[str | None, str | None]:
    """Replace array types in signatures by their names in the code."""
    array = re.compile(r"~?[\w.]*ndarray\[tuple\[~?[\w.]*Any, \.\.\.\], ~?[\w.]*dtype\[~?[\w.]*?(\w+)\]\]")
    names = {"integer": "IntArray", "floating": "FloatArray", "bool": "BoolArray"}

    def named(text: str | None) -> str | None:
        return text and array.sub(lambda found: names.get(found[1], found[0]), text)

    return named(signature), named(returned)


def list_modules(_app: Sphinx, page: str, source: list[str]) -> None:
    """Add a section per algorithm to the page on the mathematics, so that no list needs maintaining."""
    if page != "api/clustering":
        return
    folder = ROOT / "fedclust" / "clustering"
    modules = sorted(path.relative_to(folder).with_suffix("").parts for path in folder.rglob("*.py"))
    for name, group in groupby(
        (parts for parts in modules if parts[-1] != "__init__"), key=lambda parts: parts[0]
    ):
        listed = "\n".join(f".. automodule:: fedclust.clustering.{'.'.join(parts)}" for parts in group)
        source[0] += f"\n## {name}\n\n```{{eval-rst}}\n{listed}\n```\n"


def write_math(writer: Any, node: nodes.Element) -> None:
    """Write an equation as MathML, which browsers display without a script."""
    block = isinstance(node, nodes.math_block)
    writer.body.append(latex2mathml.tex2mathml(node.astext(), as_block=block))
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Connect the functions above."""
    app.connect("source-read", list_modules)
    app.connect("autodoc-process-docstring", prepare, priority=100)  # before napoleon
    app.connect("autodoc-process-signature", name_arrays)
    app.add_html_math_renderer("mathml", (write_math, None), (write_math, None))
