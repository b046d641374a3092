"""Who is let in: a token, which is random and known to those alone who were given the address.

The address that is printed has the token. The answer to it sets a cookie, which the browser sends
from then on to this server alone, and never with what another site asks for (SameSite=Strict).
Other users of the machine can reach a port on loopback, too, so it needs the token as well.

A page of another site could give its own name this machine's address (DNS rebinding), so a server
on loopback answers to the names of loopback alone. What changes anything must come from the page
itself: its `Origin` is this server.
"""

import ipaddress
import secrets
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

_TOKEN_BYTES = 24
_LOOPBACK_NAME = "localhost"


def is_loopback(host: str) -> bool:
    """True for a name or an address of loopback, which no other machine can reach."""
    if host.lower() == _LOOPBACK_NAME:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Access:
    """The rules of one server.

    Attributes:
        token: what the address must have, and the cookie.
        cookie_name: cookies belong to a host whatever its port, so the name has the port.
    """

    def __init__(self, host: str, port: int):
        self.token = secrets.token_urlsafe(_TOKEN_BYTES)
        self.cookie_name = f"sa1bpack-{port}"
        self._on_loopback = is_loopback(host)

    def is_host_allowed(self, host: str | None) -> bool:
        """True if a request's `Host` may be answered. The port may be that of an SSH tunnel."""
        name = _host_name(host or "")
        return bool(name) and (not self._on_loopback or is_loopback(name))

    def is_token(self, text: str | None) -> bool:
        """True for the token; the comparison takes as long for any other text of its length."""
        return text is not None and secrets.compare_digest(text.encode(), self.token.encode())

    def has_cookie(self, cookies: str | None) -> bool:
        """True if the `Cookie` of a request has the token."""
        try:
            morsel = SimpleCookie(cookies or "").get(self.cookie_name)
        except CookieError:
            return False
        return morsel is not None and self.is_token(morsel.value)

    def cookie(self) -> str:
        """The `Set-Cookie` that lets a browser in until it is closed."""
        return f"{self.cookie_name}={self.token}; Path=/; HttpOnly; SameSite=Strict"

    def is_own_origin(self, origin: str | None, host: str | None) -> bool:
        """True if a request comes from a page of this server, by its `Origin` and `Host`."""
        if not origin or not host:
            return False
        try:
            return urlsplit(origin).netloc.lower() == host.lower()
        except ValueError:
            return False


def _host_name(host: str) -> str:
    """The name in a `Host`, without its port; "" for none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
