"""Proxies of the environment: HTTP_PROXY, HTTPS_PROXY and ALL_PROXY, except for NO_PROXY."""

from __future__ import annotations

from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from diffuspec.core.addresses import is_loopback


def proxy_of(url: str) -> str | None:
    """Return the proxy by which a URL is to be reached; None for none, as always for loopback."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:  # the client of the URL raises a better error
        return None
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or is_loopback(host) or proxy_bypass(host if port is None else f"{host}:{port}"):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"
