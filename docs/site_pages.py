"""Pages of the site from outside of docs/: files of the repository, the reference of commands and Python modules.

mkdocs calls the functions `on_...`, mkdocstrings the class `DocstringLists` (mkdocs.yml).
"""

from __future__ import annotations

import ast
import json
import logging
import posixpath
import re
from collections.abc import Iterator
from importlib import import_module
from inspect import getdoc, signature
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from typer import Context
from typer.main import get_command

from docs import benchmark_plots, gallery
from sublet import nn
from sublet.cli import app as commands

log = logging.getLogger("mkdocs.site_pages")
ROOT = Path(__file__).resolve().parent.parent
OUTSIDE = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "project/architecture.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "RELEASING.md": "project/releasing.md",
    "CHANGELOG.md": "project/changes.md",
    "LICENSE": "project/license.md",
}
"""Files of the repository outside of docs/, and their pages."""

PLAN_SCHEMA = ROOT / "src" / "sublet" / "plan" / "plan.schema.json"

SOURCES = {page: source for source, page in OUTSIDE.items()}
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)")
"""The path of a Markdown link or picture, without the anchor."""

PLAN_FILE_INTRODUCTION = """\
`sublet plan --out plan.json` and `sublet.save` write a plan as one JSON object. This page lists the fields of
format version {version}. Sublet also reads older versions, and writes the newest version only.

The [JSON Schema](plan.schema.json) of the format is part of the package:

```python
from importlib.resources import files

schema = (files("sublet.plan") / "plan.schema.json").read_text()
```

A file accepted by the schema has the right form. `sublet check` proves the content.

Every field is required, and other fields are refused. An integer lies between -1 and 2^62. A type in parentheses is a
list of fixed length."""

QUOTED_TYPE = re.compile(r"(: |-> )'([^']+)'")
"""A type in a signature, as text."""


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pages from outside of docs/."""
    pages = {page: (ROOT / source).read_text(encoding="utf-8") for source, page in OUTSIDE.items()}
    pages["project/license.md"] = f"# License\n\n```text\n{pages['project/license.md']}```\n"
    pages["reference/command_line.md"] = "\n\n".join(command_line())
    for title, page in re.findall(r"'([^']+)': '(reference/python/[^']+)'", str(config.nav)):
        pages[page] = f"# {title}\n\n::: {Path(page).stem}\n"
    pages["reference/plan_file.md"] = "\n\n".join(plan_file())
    pages["reference/python/sublet.nn.md"] = "\n\n".join(nn_functions())
    for page, text in pages.items():
        if page.startswith("reference/"):
            text = f"---\nsearch: {{boost: 0.3}}\n---\n{text}"  # pages with an explanation come first
        files.append(File.generated(config, page, content=text))
    files.append(File.generated(config, "gallery.md", content=gallery.gallery_markdown()))
    for name, text in gallery.plan_pages().items():
        files.append(File.generated(config, f"gallery/{name}.html", content=text))
    files.append(File.generated(config, "reference/plan.schema.json", content=PLAN_SCHEMA.read_text(encoding="utf-8")))


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Return the text with links between files of the repository as links between pages, and with the plots."""
    here = page.file.src_uri
    folder = posixpath.dirname(SOURCES.get(here, f"docs/{here}"))

    def link(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, match[1]))
        target = OUTSIDE.get(target, target.removeprefix("docs/"))
        return posixpath.relpath(target, posixpath.dirname(here) or ".")

    text = LINK.sub(link, markdown)
    marker = benchmark_plots.MARKER
    return text.replace(marker, benchmark_plots.plots_markdown()) if marker in text else text


def on_post_page(output: str, page: Page, **_: Any) -> None:
    """Warn of public classes and functions that the page of a module lacks; a warning ends the build."""
    if page.file.src_uri.startswith("reference/python/"):
        module = import_module(Path(page.file.src_uri).stem)
        for name in getattr(module, "__all__", ()):
            if callable(getattr(module, name)) and f'id="{module.__name__}.{name}"' not in output:
                log.warning("%s: the page lacks %s", module.__name__, name)


def command_line() -> Iterator[str]:
    """Yield the paragraphs of the reference of all commands: arguments, options, defaults and exit statuses."""
    yield "# All options of all commands"
    yield "[Commands](../commands.md) explains the commands. The texts below are those of `sublet COMMAND --help`."
    yield exit_statuses((commands.__doc__ or "").partition("\n\n")[2])
    for name, command in get_command(commands.app).commands.items():
        context = Context(command, info_name=f"sublet {name}")
        yield f"## sublet {name}"
        yield f"    {command.get_usage(context).removeprefix('Usage: ')}"
        yield exit_statuses(command.help)
        for parameter in command.params:
            names, text = parameter.get_help_record(context)
            yield f"`{names}`\n:   {text}"


def plan_file() -> Iterator[str]:
    """Yield the paragraphs of the reference of plan files, from the JSON Schema of the package."""
    schema = json.loads(PLAN_SCHEMA.read_text(encoding="utf-8"))
    yield "# Plan files"
    yield PLAN_FILE_INTRODUCTION.format(version=schema["properties"]["version"]["const"])
    for name, record in {schema["title"]: schema, **schema["$defs"]}.items():
        yield f"## {name}"
        yield record["description"].replace("[", r"\[")
        for key, each in record["properties"].items():
            yield f"`{key}`\n:   {': '.join((json_type(each), *filter(None, [each.get('description')])))}"


def json_type(schema: dict[str, Any]) -> str:
    """Return the type of a field in words, with links to records."""
    if "$ref" in schema:
        record = schema["$ref"].rpartition("/")[2]
        return f"[{record}](#{record.lower()})"
    if "const" in schema:
        return f"the number {schema['const']}"
    if schema["type"] == "object":
        return f"object of {json_type(schema['additionalProperties'])}"
    if "prefixItems" in schema:
        return f"({', '.join(map(json_type, schema['prefixItems']))})"
    return f"list of {json_type(schema['items'])}" if schema["type"] == "array" else str(schema["type"])


def nn_functions() -> Iterator[str]:
    """Yield the paragraphs of the reference of `sublet.nn`, whose functions exist at run time only."""
    yield "# sublet.nn"
    yield nn.__doc__ or ""
    for name in nn.__all__:
        function = getattr(nn, name)
        yield f"## {name} {{ #sublet.nn.{name} }}"
        types = QUOTED_TYPE.sub(r"\1\2", str(signature(function)))
        yield f"```python\n{name}{types}\n```"
        yield "\n\n".join(map(markdown_paragraph, (getdoc(function) or "").split("\n\n")))


def exit_statuses(text: str) -> str:
    """Return the text with its exit statuses as a list."""
    head, found, statuses = text.partition("Exit status: ")
    items = re.split(r"[;,]\s+(?=\d+ )", statuses.rstrip().rstrip("."))
    return f"{head}{found}\n\n" + "\n".join(re.sub(r"^(\d+)", r"- `\1`:", " ".join(each.split())) for each in items)


class DocstringLists(griffe.Extension):
    """Markdown for two habits of the docstrings: aligned columns of names and texts, and lines of code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of an object."""
        if obj.docstring:
            obj.docstring.value = "\n\n".join(map(markdown_paragraph, obj.docstring.value.split("\n\n")))


def markdown_paragraph(text: str) -> str:
    """Return a paragraph of a docstring as Markdown: columns as a list, code as a block."""
    if re.match(r"\S.*[=(]", text) and is_code(text):
        return f"```python\n{text}\n```"
    if not re.match(r"[\w`][\w`.*, ]*? {2,}\S", text):
        return text
    return "\n".join(map(field_item, re.split(r"\n(?! )", text)))


def field_item(text: str) -> str:
    """Return a name and its text, in columns, as an item of a list."""
    name, _, rest = text.partition("  " if "  " in text.partition("\n")[0] else " ")
    return f"- `{name}`: {' '.join(rest.split())}"


def is_code(text: str) -> bool:
    """True if the text is Python code."""
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True
