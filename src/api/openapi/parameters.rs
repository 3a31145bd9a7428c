//! Parameters that several operations have. Handlers only name them, with their location.

use serde_json::json;
use utoipa::openapi::{
    Components, KnownFormat, Object, Ref, RefOr, Required, Schema, SchemaFormat, Type,
    path::{
        Parameter, ParameterBuilder,
        ParameterIn::{self, Header, Path, Query},
    },
};

use super::headers::{number, schema, text};
use crate::domain::id::{OrderId, PetId};

pub fn add_components(components: &mut Components) {
    let int32 = SchemaFormat::KnownFormat(KnownFormat::Int32);
    let cursor = Object::builder()
        .schema_type(Type::String)
        .format(Some(SchemaFormat::Custom("cursor".to_owned())))
        .min_length(Some(2))
        .max_length(Some(22));
    for parameter in [
        identifier("petId", "Identifier of the pet.", PetId::MAX),
        identifier("orderId", "Identifier of the order.", OrderId::MAX),
        ParameterBuilder::from(parameter(
            Path,
            "username",
            "Username of the account, in any case.",
            Ref::from_schema_name("Username"),
        ))
        .example(Some(json!("ada")))
        .build(),
        parameter(
            Path,
            "imageId",
            "Identifier of the image.",
            text("^[0-9a-f]{32}$", 32).min_length(Some(32)),
        ),
        parameter(
            Query,
            "limit",
            "Maximum number of matches in the response.",
            number(1, 1_000).format(Some(int32)),
        ),
        parameter(
            Query,
            "cursor",
            "Position of the page, from `Link` of the previous page.",
            cursor,
        ),
        parameter(
            Header,
            "Idempotency-Key",
            "1–255 characters chosen by the client, bare or in double quotes. The first response is stored for 24 \
             hours and replayed to the same request with the same key.",
            schema("Idempotency-Key"),
        ),
        parameter(
            Header,
            "If-Match",
            "Change or delete the pet only if it has one of these ETags.",
            schema("If-Match"),
        ),
        parameter(
            Header,
            "If-None-Match",
            "ETags that the client has. If one of them is current, the response is 304.",
            schema("If-None-Match"),
        ),
    ] {
        let name = parameter.name.clone();
        components.parameters.insert(name, parameter.into());
    }
}

/// Returns a reference to the shared parameter with this name.
pub fn reference(name: &str) -> RefOr<Parameter> {
    RefOr::Ref(Ref::new(format!("#/components/parameters/{name}")))
}

fn identifier(name: &str, description: &str, max: i64) -> Parameter {
    ParameterBuilder::from(parameter(Path, name, description, number(1, max)))
        .example(Some(json!(1)))
        .build()
}

fn parameter(
    parameter_in: ParameterIn,
    name: &str,
    description: &str,
    schema: impl Into<RefOr<Schema>>,
) -> Parameter {
    ParameterBuilder::new()
        .name(name)
        .parameter_in(parameter_in)
        // Ignored for `Path`, of which all are required.
        .required(Required::False)
        .description(Some(description))
        .schema(Some(schema))
        .build()
}
