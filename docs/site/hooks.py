"""What the site needs beyond Markdown: formulas as MathML, each command's own help, links out of docs/."""

from __future__ import annotations

import html
import os
import posixpath
import re
import subprocess
import sys
from typing import Any

from latex2mathml.converter import convert

_OUTSIDE = {"../ARCHITECTURE.md": "architecture.md", "../data/README.md": "formats.md"}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put ``teal X --help`` in the place of ``<!-- help: X -->``, and the reference of columns in that of its comment.

    Links to files of the repository outside ``docs/`` become names.
    """
    if "<!-- columns -->" in markdown:
        sys.path.insert(0, os.path.dirname(__file__))
        from columns import reference

        markdown = markdown.replace("<!-- columns -->", reference())
    markdown = re.sub(r"<!-- help: ([a-z -]+) -->", lambda found: _help(found[1]), markdown)
    markdown = re.sub(r"\]\(docs/", "](", markdown)  # of pages that are included from outside

    def link(found: re.Match[str]) -> str:
        text, target = found[1], found[2]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), target))
        if not path.startswith("../"):
            return found[0]
        return f"[{text}]({_OUTSIDE[path]})" if path in _OUTSIDE else f"`{text}`"

    return re.sub(r"(?<!!)\[([^\]]+)\]\((\.\./[^)]+)\)", link, markdown)


def on_page_content(content: str, **_: Any) -> str:
    """Formulas, which arithmatex has put between brackets, as MathML: browsers draw it without any script.

    In tables elsewhere a bar in a code span must be escaped; here the escape would be shown.
    """
    content = content.replace("\\|", "|")
    content = re.sub(
        r'<span class="arithmatex">\\\((.*?)\\\)</span>',
        lambda m: _formula(m[1], "inline"),
        content,
    )
    return re.sub(
        r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>',
        lambda m: _formula(m[1], "block"),
        content,
        flags=re.S,
    )


def _formula(latex: str, display: str) -> str:
    return convert(html.unescape(latex).strip(), display=display)


def _help(command: str) -> str:
    plain = {**os.environ, "COLUMNS": "88", "NO_COLOR": "1", "TERM": "dumb"}
    run = subprocess.run(
        [sys.executable, "-m", "teal", *command.split(), "--help-all"],
        capture_output=True,
        text=True,
        env=plain,
        check=True,
    )
    return f"```text\n{run.stdout.rstrip()}\n```"
