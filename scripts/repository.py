"""The repository's public address, for the links of the site and the metadata of the package.

It is REPOSITORY_URL, or else the remote `origin` of this clone, if that is on the web. A clone of a
folder has no public address: its site and its wheel are built without such links.
"""

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def repository_url() -> str | None:
    """The address of the repository's page, without user, password and `.git`, or None.

    A REPOSITORY_URL that is no address on the web is a ValueError.
    """
    chosen = os.environ.get("REPOSITORY_URL", "").strip()
    given = chosen or _origin().strip()
    found = re.fullmatch(
        r"(?:https://|ssh://|(?=[\w.-]+@[\w.-]+:))(?:[^@/]+@)?([\w.-]+)(?::\d+)?[:/](.+?)(?:\.git)?/?",
        given,
    )
    if chosen and not found:
        raise ValueError(f"REPOSITORY_URL={chosen!r} is no address such as https://HOST/OWNER/NAME")
    return f"https://{found[1]}/{found[2]}" if found else None


def project_urls(repository: str) -> str:
    """The table [project.urls] of pyproject.toml."""
    return (
        "\n[project.urls]\n"
        f'Repository = "{repository}"\n'
        f'Issues = "{repository}/issues"\n'
        f'Changelog = "{repository}/blob/main/CHANGELOG.md"\n'
    )


def _origin() -> str:
    command = ["git", "config", "--get", "remote.origin.url"]
    return subprocess.run(command, cwd=ROOT, text=True, capture_output=True).stdout
