//! OpenAPI links from responses to the operations that can follow, for readers and for tools that traverse the API.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use utoipa::openapi::{OpenApi, RefOr, link::LinkBuilder, path::Operation};

use super::operations::operations;

/// Links between operations: source operations, response status, parameters with their values, target operations.
type Lead = (
    &'static [&'static str],
    &'static str,
    &'static [(&'static str, &'static str)],
    &'static [&'static str],
);

const OF_A_PET: &[&str] = &[
    "getPetById",
    "patchPet",
    "updatePetWithForm",
    "deletePet",
    "uploadFile",
    "listImages",
];

const LEADS: &[Lead] = &[
    (
        &["addPet"],
        "201",
        &[("petId", "$response.body#/id")],
        OF_A_PET,
    ),
    (
        &["updatePet"],
        "200",
        &[("petId", "$response.body#/id")],
        &["getPetById", "deletePet"],
    ),
    (
        &["findPetsByStatus", "findPetsByTags"],
        "200",
        &[("petId", "$response.body#/0/id")],
        OF_A_PET,
    ),
    (
        &["getPetById"],
        "200",
        &[
            ("petId", "$response.body#/id"),
            ("If-Match", "$response.header.ETag"),
        ],
        &["patchPet", "updatePetWithForm"],
    ),
    (
        &["uploadFile"],
        "200",
        &[
            ("petId", "$request.path.petId"),
            ("imageId", "$response.body#/imageId"),
        ],
        &["getImage", "deleteImage"],
    ),
    (
        &["listImages"],
        "200",
        &[
            ("petId", "$request.path.petId"),
            ("imageId", "$response.body#/0/id"),
        ],
        &["getImage", "deleteImage"],
    ),
    (
        &["placeOrder"],
        "201",
        &[("orderId", "$response.body#/id")],
        &["getOrderById", "deleteOrder"],
    ),
    (
        &["listOrders"],
        "200",
        &[("orderId", "$response.body#/0/id")],
        &["getOrderById", "deleteOrder"],
    ),
    (
        &["createUser"],
        "201",
        &[("username", "$response.body#/username")],
        &["getUserByName", "updateUser", "deleteUser"],
    ),
    (
        &["createUsersWithListInput"],
        "200",
        &[("username", "$response.body#/0/username")],
        &["getUserByName", "updateUser", "deleteUser"],
    ),
    (
        &["createUser"],
        "201",
        &[
            ("username", "$request.body#/username"),
            ("password", "$request.body#/password"),
        ],
        &["loginUser"],
    ),
];

/// Returns links that fill the body of the target: source operation, response status, target operation, body.
fn into_bodies() -> [(&'static str, &'static str, &'static str, Value); 3] {
    let pet = json!({"petId": "$response.body#/id"});
    let order = json!({"id": "$response.body#/petId", "name": "Rex"});
    [
        ("addPet", "201", "placeOrder", pet),
        ("addPet", "201", "updatePet", json!("$response.body")),
        ("placeOrder", "201", "updatePet", order),
    ]
}

pub fn add(document: &mut OpenApi) {
    let mut all: BTreeMap<String, &mut Operation> = document
        .paths
        .paths
        .values_mut()
        .flat_map(operations)
        .filter_map(|(_, operation)| Some((operation.operation_id.clone()?, operation)))
        .collect();
    for (sources, status, carried, targets) in LEADS {
        for (source, target) in sources
            .iter()
            .flat_map(|source| targets.iter().map(move |target| (source, target)))
        {
            let mut link = LinkBuilder::new().operation_id(*target);
            for (parameter, expression) in *carried {
                link = link.parameter(*parameter, *expression);
            }
            add_link(&mut all, source, status, target, link);
        }
    }
    for (source, status, target, body) in into_bodies() {
        let link = LinkBuilder::new()
            .operation_id(target)
            .request_body(Some(body));
        add_link(&mut all, source, status, target, link);
    }
}

fn add_link(
    all: &mut BTreeMap<String, &mut Operation>,
    source: &str,
    status: &str,
    target: &str,
    link: LinkBuilder,
) {
    let response = all
        .get_mut(source)
        .and_then(|operation| operation.responses.responses.get_mut(status));
    // A test checks that no link is lost.
    if let Some(RefOr::T(response)) = response {
        response
            .links
            .insert(target.to_owned(), link.build().into());
    }
}
