"""Configuration of the documentation site."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

from normstorm import __version__

project = "normstorm"
author = "normstorm contributors"
project_copyright = f"2026, {author}"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "mathml", "plaintext"]
myst_enable_extensions = ["dollarmath", "deflist"]
myst_dmath_double_inline = True
myst_heading_anchors = 3
exclude_patterns = ["_build"]
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
autodoc_type_aliases = {"Tree": "Tree", "Known": "Known", "Loss": "Loss"}
add_module_names = False

html_theme = "furo"
html_title = f"normstorm {version}"
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["formulas.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
