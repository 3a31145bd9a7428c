"""MCP server on standard input and output, with a tool for each operation that its API key permits.

PET_INVENTORY_KEY is the key, and PET_INVENTORY_URL the service, http://localhost:8080 by default. It needs FastMCP:
pip install fastmcp==4.2.3
"""

import os

import httpx2
from fastmcp import FastMCP

base = os.environ.get("PET_INVENTORY_URL", "http://localhost:8080").rstrip("/") + "/api/v3"
headers = {"api_key": os.environ["PET_INVENTORY_KEY"]}


def read(path):
    return httpx2.get(base + path, headers=headers).raise_for_status().json()


document = read("/openapi.json")
granted = set(read("/limits")["scopes"])
# Models choose better among few tools.
for item in document["paths"].values():
    for method, operation in list(item.items()):
        needed = [way["api_key"] for way in operation["security"] if "api_key" in way]
        if not any(granted.issuperset(scopes) for scopes in needed):
            del item[method]
api = httpx2.AsyncClient(base_url=base, headers=headers, timeout=60)
FastMCP.from_openapi(document, client=api, name="pet-inventory").run(show_banner=False)
