"""How Sphinx builds the site: ``make docs``. It needs no network, neither to be built nor to be read."""

import re
import sys
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
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_class_signature = "separated"
autodoc_preserve_defaults = True
napoleon_google_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False


def escape_marks(_app: Sphinx, _what: str, _name: str, _obj: Any, _options: Any, lines: list[str]) -> None:
    """Keep the bars of |∂L/∂u| and the star of (n, *shape) in docstrings; to Sphinx they are marks."""
    for number, line in enumerate(lines):
        parts = re.split(r"(``.*?``)", line)
        lines[number] = "".join(
            part if part.startswith("``") else re.sub(r"\||\*(?=\w[\w ]*\))", r"\\\g<0>", part) for part in parts
        )


def write_math(writer: Any, node: nodes.Element) -> None:
    """Write an equation as MathML, which browsers draw by themselves."""
    block = isinstance(node, nodes.math_block)
    writer.body.append(latex2mathml.tex2mathml(node.astext(), as_block=block))
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Connect the two functions above."""
    app.connect("autodoc-process-docstring", escape_marks)
    app.add_html_math_renderer("mathml", (write_math, None), (write_math, None))
