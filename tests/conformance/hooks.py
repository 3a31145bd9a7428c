"""What schemathesis cannot know of this service: what only the service can make, or only a program draw."""

import base64
import os

import schemathesis
from hypothesis import strategies as st
from pictures import png


def cursor(after):
    """A cursor as `Link` gives it: the identifier that the page before ended with."""
    return base64.urlsafe_b64encode(str(after).encode()).decode().rstrip("=")


cursors = st.integers(min_value=1, max_value=2**53 - 1).map(cursor)
tags = st.builds('{}"{}"'.format, st.sampled_from(["", "W/"]), st.text("!#0azA~,", max_size=5) | st.integers(1, 9).map(str))
first_last = st.tuples(st.integers(0, 99), st.integers(0, 99)).map(sorted)
ranges = st.builds("{0[0]}-{0[1]}".format, first_last) | st.integers(0, 99).map("{}-".format) | st.integers(1, 99).map("-{}".format)
byte_ranges = st.lists(ranges, min_size=1, max_size=3).map(lambda ranges: "bytes=" + ", ".join(ranges))
entity_tags = st.just("*") | st.lists(tags, min_size=1, max_size=5).map(", ".join)
pictures = st.builds(png, st.integers(1, 64), st.integers(1, 64), st.integers(0, 255))

schemathesis.openapi.format("cursor", cursors)
schemathesis.openapi.format("entity-tags", entity_tags)
schemathesis.openapi.format("entity-tag", tags)
schemathesis.openapi.format("byte-ranges", byte_ranges)
schemathesis.openapi.media_type("application/octet-stream", pictures)
schemathesis.openapi.media_type("image/*", pictures)


@schemathesis.hook
def map_path_parameters(ctx, path_parameters):
    """JSON writes the integer 1 as 1.0, too. In a path it has its digits alone, so that a pet has one URL."""
    return {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in (path_parameters or {}).items()
    }


@schemathesis.deserializer("image/png", "image/jpeg", "image/gif", "image/webp")
def image(ctx, response):
    """An image's bytes are a string to OpenAPI; whether they are an image, the service's own tests tell."""
    return response.content.decode("latin-1")


@schemathesis.check
def refused_for_a_while(ctx, response, case):
    """A 429 is a problem that says when to come back, in whole seconds, and which limit is reached."""
    if response.status_code == 429:
        with open(os.environ["REFUSALS"], "a") as refusals:
            print(case.operation.label, file=refusals)
        assert int(response.headers["retry-after"][0]) >= 1
        assert response.headers["content-type"] == ["application/problem+json"]
        assert response.json()["violated-policies"]
