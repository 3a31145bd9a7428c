# Two images. `runtime`, the default, contains only the service. It needs a PostgreSQL (13 or newer):
#
#   docker build --build-arg COMMIT="$(git log -1 --format='%h %cs')" -t pet-inventory .
#   docker run -p 8080:8080 -e DATABASE_URL=postgres://pets:secret@db.example/pets -e BOOTSTRAP_API_KEY=… pet-inventory
#
# `demo` also contains PostgreSQL and serves at once, with public demo keys. Do not expose it to a network:
#
#   docker build --target demo -t pet-inventory-demo .
#   docker run -p 127.0.0.1:8080:8080 pet-inventory-demo

FROM rust:1.95-slim-bookworm AS build
RUN cargo install --locked --debug cargo-cyclonedx@0.5.9
WORKDIR /build

# Builds the dependencies for an empty crate, in a layer that changes only with these five files. Cargo reads the
# manifest of each package of the workspace, also that of the tests.
COPY Cargo.toml Cargo.lock build.rs ./
COPY tests/support/Cargo.toml tests/support/Cargo.toml
COPY tests/system/Cargo.toml tests/system/Cargo.toml
RUN mkdir src \
    && touch src/lib.rs \
    && echo 'fn main() {}' > src/main.rs \
    && cargo build --locked --release \
    && rm -r src

# The migrations and the default configuration are compiled in. The symbols are not stripped (3 of 27 MB), so that
# backtraces have names.
COPY config/default.toml config/default.toml
COPY migrations migrations
COPY src src
# Commit and date, which --version and the metrics show.
ARG COMMIT
# Cargo compares modification times: these files may be older than the empty crate built above.
RUN touch src/lib.rs src/main.rs \
    && PET_INVENTORY_COMMIT="$COMMIT" cargo build --locked --release \
    && cargo cyclonedx --format json --spec-version 1.5 --no-build-deps --describe binaries

FROM debian:bookworm-slim AS demo
LABEL org.opencontainers.image.title="pet-inventory demo" \
      org.opencontainers.image.description="pet-inventory with a PostgreSQL and demo keys, for a first look" \
      org.opencontainers.image.licenses="MIT OR Apache-2.0"

# PostgreSQL's programs, without the cluster that Debian creates. initdb requires a user with a name.
RUN apt-get update \
    && mkdir -p /etc/postgresql-common \
    && echo 'create_main_cluster = false' > /etc/postgresql-common/createcluster.conf \
    && apt-get install --yes --no-install-recommends postgresql-15 \
    && apt-get clean \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --create-home --home-dir /var/lib/pet-inventory pet-inventory
COPY --from=build /build/target/release/pet-inventory /usr/local/bin/pet-inventory
# Software bill of materials (CycloneDX): each crate in the program, with its version, licence and hash.
COPY --from=build /build/pet-inventory_bin.cdx.json /usr/share/doc/pet-inventory/sbom.cdx.json
COPY LICENSE-MIT LICENSE-APACHE /usr/share/doc/pet-inventory/
USER 10001:10001
WORKDIR /var/lib/pet-inventory
# The data, and the socket of PostgreSQL. Nothing else is written, so the root file system may be read-only.
VOLUME ["/var/lib/pet-inventory", "/tmp"]

# Requests from outside the container do not arrive over its loopback, so the demo keys must be valid beyond it.
ENV PET_INVENTORY__SERVER__LISTEN=0.0.0.0:8080 \
    PET_INVENTORY__OPERATIONS__LISTEN=127.0.0.1:9090 \
    PET_INVENTORY__LOCAL_POSTGRES__DEMO_KEYS=always
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 \
    CMD ["pet-inventory", "healthcheck"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["pet-inventory"]
CMD ["serve"]

FROM debian:bookworm-slim AS runtime
LABEL org.opencontainers.image.title="pet-inventory" \
      org.opencontainers.image.description="A pet store's inventory as a REST API on PostgreSQL" \
      org.opencontainers.image.licenses="MIT OR Apache-2.0"

# The TLS roots are compiled in. A numeric user needs no passwd entry.
COPY --from=build /build/target/release/pet-inventory /usr/local/bin/pet-inventory
# Software bill of materials (CycloneDX): each crate in the program, with its version, licence and hash.
COPY --from=build /build/pet-inventory_bin.cdx.json /usr/share/doc/pet-inventory/sbom.cdx.json
COPY LICENSE-MIT LICENSE-APACHE /usr/share/doc/pet-inventory/
RUN install --directory --mode=0700 --owner=10001 --group=10001 /var/lib/pet-inventory/images
USER 10001:10001

# Listens on all addresses of the container. Publish 8080 only: 9090 serves the metrics.
ENV PET_INVENTORY__SERVER__LISTEN=0.0.0.0:8080 \
    PET_INVENTORY__OPERATIONS__LISTEN=0.0.0.0:9090
# Images, unless they are stored in a bucket: mount durable storage here. Uploads to a bucket are staged here, too.
# Nothing else is written, so the root file system may be read-only.
ENV PET_INVENTORY__IMAGES__URL=file:///var/lib/pet-inventory/images \
    TMPDIR=/var/lib/pet-inventory/images
VOLUME /var/lib/pet-inventory/images
EXPOSE 8080 9090

HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 \
    CMD ["pet-inventory", "healthcheck"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["pet-inventory"]
CMD ["serve"]
