# The service in an image of its own. It needs a PostgreSQL (13 or newer) given by DATABASE_URL:
#
#   docker run -p 8080:8080 -e DATABASE_URL=postgres://pets:secret@db.example/pets -e BOOTSTRAP_API_KEY=… pet-inventory

FROM rust:1.95-slim-bookworm AS build
WORKDIR /build

# The dependencies, in a layer that changes only with these two files: built for an empty crate.
COPY Cargo.toml Cargo.lock ./
RUN mkdir src \
    && touch src/lib.rs \
    && echo 'fn main() {}' > src/main.rs \
    && cargo build --locked --release \
    && rm -r src

# The crate. The migrations and the default configuration are compiled in.
COPY config config
COPY migrations migrations
COPY src src
# Cargo compares times: these files may be older than the empty crate just built.
RUN touch src/lib.rs src/main.rs \
    && cargo build --locked --release

FROM debian:bookworm-slim
LABEL org.opencontainers.image.title="pet-inventory" \
      org.opencontainers.image.description="A pet store's inventory as a REST API on PostgreSQL" \
      org.opencontainers.image.licenses="MIT OR Apache-2.0"

# One program and nothing else: the TLS roots are compiled in, and a number needs no passwd entry.
COPY --from=build /build/target/release/pet-inventory /usr/local/bin/pet-inventory
RUN install --directory --owner=10001 --group=10001 /var/lib/pet-inventory/images
USER 10001:10001

# Inside a container listen on all of its addresses. Publish 8080; keep 9090 (metrics) to yourself.
ENV PET_INVENTORY__SERVER__LISTEN=0.0.0.0:8080 \
    PET_INVENTORY__OPERATIONS__LISTEN=0.0.0.0:9090
# Images, unless they are in a bucket: mount something that lasts here.
ENV PET_INVENTORY__IMAGES__URL=file:///var/lib/pet-inventory/images
VOLUME /var/lib/pet-inventory/images
EXPOSE 8080 9090

HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 \
    CMD ["pet-inventory", "healthcheck"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["pet-inventory"]
CMD ["serve"]
