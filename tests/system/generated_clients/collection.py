"""Sends requests of the Postman collection that openapi-to-postmanv2 creates from the document, as Postman does.

    collection.py COLLECTION.json HOST KEY

The requests have the examples of the document, and all succeed in this order on a new database.
"""

import json
import sys
import urllib.parse
import urllib.request

path, host, key = sys.argv[1:]
ORDER = (
    "Add a pet",
    "Get a pet",
    "Find pets by status",
    "Find pets by tags",
    "List a pet's images",
    "Count the pets of each status",
    "Place an order for a pet",
    "Get an order",
    "List orders",
    "Change an order",
    "Delete an order",
    "Change parts of a pet",
    "Replace a pet",
    "Sign up",
    "Log in",
    "Log in with query parameters",
    "Get an account",
    "Change an account",
    "Delete an account",
    "Get the state of the limits",
    "Log out",
    "Delete a pet",
)


def requests(items):
    for item in items:
        if "item" in item:
            yield from requests(item["item"])
        else:
            yield item["name"], item["request"]


def enabled(parts):
    return {part["key"]: part["value"] for part in parts if not part.get("disabled")}


def send(request):
    address = request["url"]
    assert address["host"] == ["{{baseUrl}}"], address
    values = enabled(address["variable"])
    parts = [values[part[1:]] if part.startswith(":") else part for part in address["path"]]
    url = f"{host}/api/v3/{'/'.join(parts)}?{urllib.parse.urlencode(enabled(address['query']))}"
    headers = enabled(request["header"])
    if request["auth"]["type"] == "apikey":
        way = enabled(request["auth"]["apikey"])
        assert way == {"key": "api_key", "value": "{{apiKey}}", "in": "header"}, way
        headers[way["key"]] = key
    body = request["body"].get("raw")
    sent = urllib.request.Request(url, body and body.encode(), headers, method=request["method"])
    with urllib.request.urlopen(sent, timeout=30) as response:
        assert response.status in (200, 201), response.status


with open(path) as file:
    collection = dict(requests(json.load(file)["item"]))
with urllib.request.urlopen(f"{host}/api/v3/openapi.json") as response:
    items = json.load(response)["paths"].values()
operations = {it["summary"] for item in items for it in item.values()}
assert set(collection) == operations, set(collection) ^ operations
for name in ORDER:
    try:
        send(collection[name])
    except Exception as error:
        raise AssertionError(f"{name}: {error}") from error
