"""The site of these pages: `make docs` builds it into build/docs, and a warning fails the build."""

from __future__ import annotations

import os
from importlib import metadata

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

from sparsyedge.edge.commands.completion_command import pages
from sparsyedge.edge.commands.installed_commands import installed_commands

project = "sparsyedge"
project_copyright = "the sparsyedge contributors"
release = metadata.version("sparsyedge")

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["conf.py"]
highlight_language = "text"  # of indented blocks, which are commands and what they print
myst_heading_anchors = 3

# Docstrings are short prose with `code` in single backticks.
default_role = "code"
autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True

nitpicky = True
# The types of a signature need no page: most are numpy's or the standard library's, whose pages are out of reach.
nitpick_ignore_regex = [("py:(class|data|obj|exc)", ".*")]

html_theme = "furo"
html_title = "sparsyedge"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False

COMMANDS_PAGE = "reference/commands"


def write_help_pages(app: Sphinx, name: str, source: list[str]) -> None:
    """Append every help page of `sparsyedge` to the page about them, as a terminal of 80 columns shows it."""
    if name != COMMANDS_PAGE:
        return
    os.environ["COLUMNS"] = "80"
    for page in pages(installed_commands()):
        level = "#" * min(len(page.words) + 1, 3)
        source[0] += f"\n{level} `sparsyedge {page.place}`\n\n```text\n{page.parser.format_help()}```\n"


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.add_lexer("hex", TextLexer)  # annotated frames, byte by byte
    app.connect("source-read", write_help_pages)
