"""Addresses that a page of HTML loads by itself."""

import re
from html.parser import HTMLParser


def loaded_from_elsewhere(html: str) -> list[str]:
    """Addresses of other hosts that a page loads: scripts, styles, pictures, frames, fonts."""
    found: list[str] = []

    class Loads(HTMLParser):
        def handle_starttag(self, tag, attributes):
            given = dict(attributes)
            if tag == "link" and given.get("rel") in ("canonical", "next", "prev"):
                return
            names = ("href",) if tag == "link" else () if tag == "a" else ("src", "srcset", "data")
            found.extend(
                f"<{tag} {name}={given[name]}>"
                for name in names
                if re.match(r"(https?:)?//", given.get(name) or "")
            )

    Loads().feed(html)
    return found
