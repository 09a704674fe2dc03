"""MkDocs hook: writes ``llms.txt``, the list of pages for language models, and the pages' Markdown beside it.

The format is that of llmstxt.org: a title, a summary, and a link with a sentence for each page.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any


def summary(text: str) -> str:
    """The first sentence of a page's first paragraph, without links and markup."""
    prose = re.sub(r"^```.*?^```|<!--.*?-->", "", text, flags=re.MULTILINE | re.DOTALL)
    blocks = (block.strip() for block in prose.split("\n\n"))
    first = next((b for b in blocks if b and b[0] not in "#|!"), "")
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(first.split()))
    return re.split(r"(?<=[.?]) (?=[A-Z])", re.sub("[*`]", "", plain), maxsplit=1)[0]


def lines(entries: Sequence[dict[str, Any]], docs: Path) -> Iterator[str]:
    """Links to the pages of MkDocs's ``nav``; a group is a heading."""
    for entry in entries:
        ((title, target),) = entry.items()
        if isinstance(target, str):
            yield f"- [{title}]({target}): {summary((docs / target).read_text(encoding='utf-8'))}"
        else:
            yield f"\n## {title}\n"
            yield from lines(target, docs)


def on_post_build(config: Any) -> None:
    """Called by MkDocs when all pages are written."""
    docs, site = Path(config["docs_dir"]), Path(config["site_dir"])
    head = f"# {config['site_name']}\n\n> {config['site_description']}\n"
    text = "\n".join([head, *lines(config["nav"], docs)])
    (site / "llms.txt").write_text(text + "\n", encoding="utf-8")
    for page in docs.rglob("*.md"):
        (site / page.relative_to(docs)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(page, site / page.relative_to(docs))
