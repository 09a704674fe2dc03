"""The way to an endpoint: its address, the query behind every path, and the proxy in between."""

from __future__ import annotations

import ipaddress
import re
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, parse_qsl, urlsplit

from paw_train.policies.endpoint.retry import EndpointError

if TYPE_CHECKING:
    import httpx

_PATHS = re.compile(r"/(chat/)?completions/?$")


@dataclass(frozen=True, slots=True)
class Route:
    """The way to an endpoint."""

    base: str
    """the address, to which paths such as ``/chat/completions`` are appended"""
    query: tuple[tuple[str, str], ...]
    """goes behind each path (``api-version`` of Azure)"""
    shown: str
    """the address for messages and results: without a password and without the query"""
    proxy: str | None = None
    """the proxy's address; ``None``: the server is asked directly"""
    proxy_name: str | None = None
    """the proxy for messages, with the environment variable that names it"""
    host: str = ""
    """the server's, as ``NO_PROXY`` would name it"""

    def client(self) -> httpx.AsyncClient:
        """A client that goes this way.

        Raises:
            EndpointError: the proxy's address cannot be read, or it needs a package that is not there.
        """
        import httpx
        from openai import DefaultAsyncHttpxClient
        from openai._constants import DEFAULT_CONNECTION_LIMITS

        try:
            transport = httpx.AsyncHTTPTransport(proxy=self.proxy, limits=DEFAULT_CONNECTION_LIMITS)
        except (ValueError, ImportError, httpx.InvalidURL) as error:
            raise EndpointError(
                f"{self.shown} cannot be asked by {self.proxy_name}: {error} "
                f"NO_PROXY={self.host} asks it directly."
            ) from error
        # a transport of its own: httpx else reads the proxies itself, and fails on entries of NO_PROXY
        return DefaultAsyncHttpxClient(transport=transport, params=self.query)


def route_to(url: str) -> Route:
    """The way to an address.

    Raises:
        EndpointError: it is not an address.
    """
    import httpx

    try:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            raise ValueError("a scheme or a host is missing")
        httpx.URL(url)
    except (ValueError, httpx.InvalidURL) as error:
        raise EndpointError(
            f"endpoint.url={url!r} is not an address ({error}): expected http://HOST:PORT/v1 or "
            "https://HOST/v1."
        ) from error
    bare = parts._replace(path=_PATHS.sub("", parts.path).rstrip("/"), query="", fragment="")
    proxy, variable = _proxy(parts)
    name = f"the proxy {_without_password(proxy)} ({variable})" if proxy else None
    base, query = bare.geturl(), tuple(parse_qsl(parts.query, keep_blank_values=True))
    return Route(base, query, _without_password(base), proxy, name, parts.hostname or "")


def _without_password(url: str) -> str:
    return re.sub(r"//[^/]*@", "//", url)


def _proxy(parts: SplitResult) -> tuple[str | None, str]:
    """The proxy that the environment names for an address, if it is to be used, and its variable."""
    proxies = urllib.request.getproxies()
    key = parts.scheme if parts.scheme in proxies else "all"
    proxy = proxies.get(key)
    if not proxy or _direct(parts, proxies.get("no", "")):
        return None, ""
    return (proxy if "://" in proxy else f"http://{proxy}"), f"{key}_proxy"


def _direct(parts: SplitResult, exempt: str) -> bool:
    """Whether an address is asked without a proxy: on loopback always, else by ``NO_PROXY``.

    ``NO_PROXY`` names hosts, domains, addresses and networks; what is none of these is passed over.
    """
    host = parts.hostname or ""
    if host == "localhost" or urllib.request.proxy_bypass(parts.netloc.rpartition("@")[2]):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or any(address in network for network in _networks(exempt))


def _networks(exempt: str) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    found = []
    for entry in exempt.split(","):
        try:
            found.append(ipaddress.ip_network(re.sub(r"[\[\]\s]", "", entry), strict=False))
        except ValueError:
            continue  # a name
    return found
