"""MCP server on standard input and output, with a tool for each operation that its API key permits.

PET_INVENTORY_KEY is the key, and PET_INVENTORY_URL the service, http://localhost:8080 by default. It needs FastMCP:
pip install fastmcp==4.2.3
"""

import os
import sys

import httpx2
from fastmcp import FastMCP

# FastMCP sends a body as JSON: it can neither upload a file nor send a form.
SENT = {"application/json", "application/merge-patch+json"}


def main():
    base = os.environ.get("PET_INVENTORY_URL", "http://localhost:8080").rstrip("/") + "/api/v3"
    key = os.environ.get("PET_INVENTORY_KEY", "").strip()
    if not key:
        sys.exit("mcp_bridge: no key; set PET_INVENTORY_KEY to an API key of the service")
    if not (key.isascii() and key.isprintable()) or " " in key:
        sys.exit("mcp_bridge: PET_INVENTORY_KEY is not an API key: it contains invalid characters")
    headers = {"api_key": key}
    document = read(base, "/openapi.json", headers)
    granted = set(read(base, "/limits", headers)["scopes"])
    # Models choose better among few tools.
    for item in document["paths"].values():
        for method, operation in list(item.items()):
            needed = [way["api_key"] for way in operation["security"] if "api_key" in way]
            body = operation.get("requestBody", {}).get("content", SENT)
            if not any(granted.issuperset(scopes) for scopes in needed) or SENT.isdisjoint(body):
                del item[method]
    api = httpx2.AsyncClient(base_url=base, headers=headers, timeout=60)
    FastMCP.from_openapi(document, client=api, name="pet-inventory").run(show_banner=False)


def read(base, path, headers):
    """Returns the JSON at a path, or ends the program with the reason in one line."""
    try:
        response = httpx2.get(base + path, headers=headers)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        sys.exit(f"mcp_bridge: no response from {base} ({type(error).__name__}); set PET_INVENTORY_URL to the URL of the service")
    if response.status_code == 401:
        sys.exit("mcp_bridge: PET_INVENTORY_KEY is not valid: it is mistyped, expired or revoked")
    try:
        content = response.json()
    except ValueError:
        content = None
    if response.status_code == 404 or not isinstance(content, dict):
        sys.exit(f"mcp_bridge: {base} is not the service; set PET_INVENTORY_URL to its URL")
    if response.status_code != 200:
        sys.exit(f"mcp_bridge: the service responded with {response.status_code}: {content.get('detail')}")
    return content


main()
