"""Extends schemathesis with generators of values that the OpenAPI document cannot express, and with a check of 429."""

import base64
import os

import schemathesis
from hypothesis import strategies as st
from images import png


def cursor(after):
    """Returns a cursor as in `Link`: the last identifier of the previous page."""
    return base64.urlsafe_b64encode(str(after).encode()).decode().rstrip("=")


cursors = st.integers(min_value=1, max_value=2**53 - 1).map(cursor)
tags = st.builds('{}"{}"'.format, st.sampled_from(["", "W/"]), st.text("!#0azA~,", max_size=5) | st.integers(1, 9).map(str))
first_last = st.tuples(st.integers(0, 99), st.integers(0, 99)).map(sorted)
ranges = st.builds("{0[0]}-{0[1]}".format, first_last) | st.integers(0, 99).map("{}-".format) | st.integers(1, 99).map("-{}".format)
byte_ranges = st.lists(ranges, min_size=1, max_size=3).map(lambda ranges: "bytes=" + ", ".join(ranges))
entity_tags = st.just("*") | st.lists(tags, min_size=1, max_size=5).map(", ".join)
images = st.builds(png, st.integers(1, 64), st.integers(1, 64), st.integers(0, 255))

schemathesis.openapi.format("cursor", cursors)
schemathesis.openapi.format("entity-tags", entity_tags)
schemathesis.openapi.format("entity-tag", tags)
schemathesis.openapi.format("byte-ranges", byte_ranges)
schemathesis.openapi.media_type("application/octet-stream", images)


# Links that fill a body with an object, which the document cannot have: openapi-generator refuses them.
BODIES = [
    ("/pet", "placeOrder", {"petId": "$response.body#/id"}),
    ("/store/order", "updatePet", {"id": "$response.body#/petId", "name": "Rex"}),
]


@schemathesis.hook
def before_load_schema(ctx, raw_schema):
    """Adds links, so that orders are placed for pets that exist, and pets with orders are changed."""
    for path, target, body in BODIES:
        created = raw_schema["paths"][path]["post"]["responses"]["201"]
        created.setdefault("links", {})[target] = {"operationId": target, "requestBody": body}


@schemathesis.hook
def map_path_parameters(ctx, path_parameters):
    """Writes 1.0, which is an integer in JSON, as 1: in a path, an integer consists of digits only. Keeps the callers, keys
    and clients of the run itself, which were created first: disabled or revoked, they would end it."""
    parameters = {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in (path_parameters or {}).items()
    }
    for name in ("callerId", "keyId", "clientId"):
        value = parameters.get(name)
        if isinstance(value, int) and 1 <= value < 7:
            parameters[name] = value + 7
    return parameters


@schemathesis.deserializer("image/png", "image/jpeg", "image/gif", "image/webp")
def image(ctx, response):
    """Returns an image as a string, which it is in OpenAPI. The service's own tests check the content."""
    return response.content.decode("latin-1")


@schemathesis.check
def rate_limit_problem(ctx, response, case):
    """Checks that a 429 is a problem document with Retry-After in whole seconds and the reached limit."""
    if response.status_code == 429:
        with open(os.environ["REFUSALS"], "a") as refusals:
            print(case.operation.label, file=refusals)
        assert int(response.headers["retry-after"][0]) >= 1
        assert response.headers["content-type"] == ["application/problem+json"]
        assert response.json()["violated-policies"]
