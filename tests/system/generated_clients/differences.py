"""Compares the public Petstore v3 document with the service's own.

    differences.py PUBLIC.yaml OURS.json PETSTORE.md

Fails if the differences are not exactly those in the table of PETSTORE.md.
"""

import json
import re
import sys

import yaml

METHODS = ("get", "post", "put", "patch", "delete")


def operations(document):
    """Returns each operation with its method and path, by operationId."""
    found = {}
    for path, item in document["paths"].items():
        for method in METHODS:
            if method in item:
                found[item[method]["operationId"]] = (f"{method} {path}", item[method])
    return found


def resolved(document, value):
    while "$ref" in value:
        at = document
        for part in value["$ref"].removeprefix("#/").split("/"):
            at = at[part]
        value = at
    return value


def responses(document, operation):
    return {
        status: resolved(document, response)
        for status, response in operation["responses"].items()
        if status != "default"
    }


def success(document, operation):
    return next((s, r) for s, r in sorted(responses(document, operation).items()) if s.startswith("2"))


def shape(document, schema):
    """Returns the JSON type of a body: array, object, string or nothing."""
    if schema is None:
        return "nothing"
    kind = resolved(document, schema).get("type", "object")
    return kind[0] if isinstance(kind, list) else kind


def json_schema(body):
    return body.get("content", {}).get("application/json", {}).get("schema")


def parameters(document, operation):
    """Returns, for each parameter that is not a header, if it is required, and its JSON type."""
    found = [resolved(document, it) for it in operation.get("parameters", [])]
    return {it["name"]: (it.get("required", False), shape(document, it["schema"])) for it in found if it["in"] != "header"}


def required(document, operation):
    """Returns the required fields of a JSON body."""
    body = resolved(document, operation.get("requestBody", {}))
    schema = json_schema(body)
    if schema is None:
        return set()
    schema = resolved(document, schema)
    if schema.get("type") == "array":
        schema = resolved(document, schema["items"])
    fields = set(schema.get("required", []))
    for part in schema.get("allOf", []):
        fields |= set(resolved(document, part).get("required", []))
    return fields


def differences(public, ours):
    here = operations(ours)
    for name, (place, theirs) in operations(public).items():
        if name not in here:
            yield "Not here", name
            continue
        our_place, mine = here[name]
        assert place == our_place, (name, place, our_place)
        (their_status, their_body), (my_status, my_body) = success(public, theirs), success(ours, mine)
        if their_status != my_status:
            yield "Success status", name
        if shape(public, json_schema(their_body)) != shape(ours, json_schema(my_body)):
            yield "Response body", name
        sends = set(resolved(public, theirs.get("requestBody", {})).get("content", {}))
        if sends - set(resolved(ours, mine.get("requestBody", {})).get("content", {})):
            yield "Request media types", name
        if set(their_body.get("content", {})) - set(my_body.get("content", {})):
            yield "Response media types", name
        if not theirs.get("security") and any(mine["security"]):
            yield "Credential required", name
        if theirs.get("security") and not any("api_key" in way for way in theirs["security"]):
            yield "API key accepted", name
        if set(responses(public, theirs)) - set(responses(ours, mine)) - {their_status, "422"}:
            yield "Error statuses", name
        # The service uses 422 only for a reused Idempotency-Key.
        if "422" in theirs["responses"]:
            yield "Status of invalid input", name
        if parameters(public, theirs).items() - parameters(ours, mine).items():
            yield "Parameters", name
        if required(public, theirs) != required(ours, mine):
            yield "Required fields", name


def told(guide):
    """Yields the rows of the table: the difference and its operations."""
    section = guide.split("\n## ", 1)[0]
    for row in re.findall(r"^\| \*\*(.+?)\*\* \|([^|]*)\|", section, re.MULTILINE):
        yield row[0], set(re.findall(r"`(\w+)`", row[1]))


def main(public, ours, guide):
    with open(public) as public, open(ours) as ours, open(guide) as guide:
        public, ours, guide = yaml.safe_load(public), json.load(ours), guide.read()
    found = {}
    for what, name in differences(public, ours):
        found.setdefault(what, set()).add(name)
    said = {}
    for what, names in told(guide):
        said.setdefault(what, set()).update(names)
    wrong = []
    for what in sorted(found.keys() | said.keys()):
        missing = found.get(what, set()) - said.get(what, set())
        extra = said.get(what, set()) - found.get(what, set())
        if missing or extra:
            wrong.append(f"{what}: missing {sorted(missing)}, too many {sorted(extra)}")
    assert not wrong, ".github/PETSTORE.md:\n" + "\n".join(wrong)
    print(f"{sum(map(len, found.values()))} differences, all listed")


main(*sys.argv[1:])
