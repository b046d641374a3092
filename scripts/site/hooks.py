"""Pages that mkdocs adds to docs/: the reference, and those of the repository that docs/ links to.

Links that leave docs/ lead to copies under repository/, so that the same links work where the
repository is shown. Nothing may be loaded from other hosts.
"""

import posixpath
import re
import sys
from pathlib import Path

from mkdocs.exceptions import PluginError
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "scripts"), str(ROOT)]

import api_reference  # noqa: E402 - it lies beside this file
import cli_reference  # noqa: E402
from loads import loaded_from_elsewhere  # noqa: E402
from notebook import notebook_page  # noqa: E402
from repository import repository_url  # noqa: E402

log = get_plugin_logger("sa1bpack")
_LINK = re.compile(r"(?<=\]\()([^)\s]+)")
_CODE = {".py": "python", ".toml": "toml", ".json": "json"}


def on_config(config, **_):
    """Link to the repository, and put the generated pages and the decisions into the navigation."""
    if address := repository_url():
        config["repo_url"], config["repo_name"] = address, address.rpartition("/")[2]
        config["edit_uri"] = "-/edit/main/docs/" if "gitlab" in address else "edit/main/docs/"
    names = [path.name for path in (ROOT / "docs/decisions").glob("*.md")]
    names.sort(key=lambda name: (name != "README.md", name))
    _fill(config["nav"], "Decisions", [f"decisions/{name}" for name in names])
    _fill(config["nav"], "Python API", [name for name, _ in api_reference.pages()])
    return config


def _fill(nav: list, title: str, names: list[str]) -> None:
    for entry in nav:
        if isinstance(entry, dict):
            for key, value in entry.items():
                if key == title:
                    entry[key] = names
                elif isinstance(value, list):
                    _fill(value, title, names)


def on_files(files: Files, config, **_) -> Files:
    """Add generated pages, and copies of what lies outside docs/ and is linked to."""
    for name, text in (*api_reference.pages(), ("reference/cli.md", cli_reference.page())):
        files.append(File.generated(config, name, content=text))
    for problem in api_reference.undocumented():
        log.warning("%s has no docstring", problem)
    for path in (ROOT / "docs").glob("*.ipynb"):
        files.append(File.generated(config, site_path(path), content=notebook_page(path)))
    pending = {ROOT / "CHANGELOG.md", *_outside(files)}
    done: set[Path] = set()
    while pending:
        path = pending.pop()
        done.add(path)
        text = _brought(path, site_path(path))
        files.append(File.generated(config, site_path(path), content=text))
        pending |= {ROOT / name for name in re.findall(_LINK, path.read_text())
                    if path.suffix == ".md" and _leaves(ROOT / name)} - done  # fmt: skip
    return files


def on_page_markdown(markdown: str, page, **_) -> str:
    """Lead links that leave docs/ to the copies."""
    source = page.file.src_uri
    if source.startswith(("repository/", "reference/")):
        return markdown
    return _relinked(markdown, (ROOT / "docs" / source).parent, source)


def on_post_build(config, **_) -> None:
    """Refuse a site that loads anything from another host."""
    site = Path(config["site_dir"])
    found = [f"{path.relative_to(site)}: {what}" for path in sorted(site.rglob("*.html"))
             for what in loaded_from_elsewhere(path.read_text())]  # fmt: skip
    found += [f"{path.relative_to(site)}: {url}" for path in sorted(site.rglob("*.css"))
              for url in re.findall(r"url\([\"']?(https?:[^)\"']+)", path.read_text())]  # fmt: skip
    if found:
        raise PluginError("loaded from other hosts: " + "; ".join(found))


def site_path(path: Path) -> str:
    """The page of the site that a file of the repository becomes, as a path."""
    if path == ROOT / "README.md":
        return "index.md"
    if path.is_relative_to(ROOT / "docs"):
        inside = path.relative_to(ROOT / "docs").as_posix()
        inside = inside.replace(".ipynb", ".md")  # a page made of it, see notebook_page
        return f"{inside}/README.md" if path.is_dir() else inside
    name = path.relative_to(ROOT).as_posix()
    return f"repository/{name}" if name.endswith(".md") else f"repository/{name}.md"


def _outside(files: Files) -> set[Path]:
    """Files outside docs/ that its pages and the README link to."""
    pages = [ROOT / "README.md", *(Path(file.abs_src_path) for file in files.documentation_pages()
                                   if file.abs_src_path)]  # fmt: skip
    targets = {
        (page.parent / link.partition("#")[0]).resolve()
        for page in pages
        for link in re.findall(_LINK, page.read_text())
        if not re.match(r"[a-z]+:|#", link)
    }
    return {target for target in targets if _leaves(target)}


def _leaves(path: Path) -> bool:
    return path.is_file() and path != ROOT / "README.md" and not path.is_relative_to(ROOT / "docs")


def _brought(path: Path, page: str) -> str:
    text = path.read_text()
    if path.suffix != ".md":
        language = _CODE.get(path.suffix, "text")
        return f"# {path.relative_to(ROOT)}\n\n````{language}\n{text}````\n"
    return _relinked(text, path.parent, page)


def _relinked(text: str, folder: Path, page: str) -> str:
    """The links of a text in `folder` as they must be on a page of the site."""

    def led(found: re.Match) -> str:
        file, mark, heading = found[0].partition("#")
        target = (folder / file).resolve()
        if re.match(r"[a-z]+:", found[0]) or not file or not target.exists():
            return found[0]
        return posixpath.relpath(site_path(target), posixpath.dirname(page) or ".") + mark + heading

    parts = re.split(r"(^```.*?^```)", text, flags=re.S | re.M)
    return "".join(part if part.startswith("```") else _LINK.sub(led, part) for part in parts)
