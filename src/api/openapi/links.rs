//! OpenAPI links from responses to the operations that can follow, for readers and for tools that traverse the API.

use std::collections::BTreeMap;

use utoipa::openapi::{RefOr, link::Link, path::Operation};

/// Each line has an operation, the status of a response, parameters with values, and the operations to call with them.
const LINKS: &str = "\
addPet 201 petId=$response.body#/id: getPetById patchPet updatePetWithForm deletePet uploadFile listImages
updatePet 200 petId=$response.body#/id: getPetById deletePet
findPetsByStatus 200 petId=$response.body#/0/id: getPetById patchPet updatePetWithForm deletePet uploadFile listImages
findPetsByTags 200 petId=$response.body#/0/id: getPetById patchPet updatePetWithForm deletePet uploadFile listImages
getPetById 200 petId=$response.body#/id If-Match=$response.header.ETag: patchPet updatePetWithForm
uploadFile 200 petId=$request.path.petId imageId=$response.body#/imageId: getImage deleteImage
listImages 200 petId=$request.path.petId imageId=$response.body#/0/id: getImage deleteImage
placeOrder 201 orderId=$response.body#/id: getOrderById patchOrder deleteOrder
listOrders 200 orderId=$response.body#/0/id: getOrderById patchOrder deleteOrder
listPets 200 petId=$response.body#/0/id: getPetById
listCallers 200 callerId=$response.body#/0/id: getCaller listKeys
createCaller 201 callerId=$response.body#/id: getCaller patchCaller deleteCaller listKeys createKey listClients createClient
createKey 201 keyId=$response.body#/id: rotateKey revokeKey
rotateKey 201 keyId=$response.body#/id: revokeKey
createClient 201 clientId=$response.body#/id: revokeClient
createWebhook 201 webhookId=$response.body#/id: getWebhook patchWebhook deleteWebhook listDeliveries testWebhook
listDeliveries 200 webhookId=$request.path.webhookId position=$response.body#/0/position: retryDelivery
listSessions 200 sessionId=$response.body#/0/id: revokeSession
createUser 201 username=$response.body#/username: getUserByName updateUser deleteUser
createUser 201 username=$request.body#/username password=$request.body#/password: loginUser
createUsersWithListInput 200 username=$response.body#/0/username: getUserByName updateUser deleteUser";

/// Adds the links to the `operations` of the document.
pub fn add<'a>(operations: impl Iterator<Item = &'a mut Operation>) {
    let mut operations: BTreeMap<String, &mut Operation> = operations
        .filter_map(|operation| Some((operation.operation_id.clone()?, operation)))
        .collect();
    // A test checks that no link is lost.
    let mut add = |source: &str, status: &str, target: &str, mut link: Link| {
        let operation = operations.get_mut(source);
        let response = operation.and_then(|it| it.responses.responses.get_mut(status));
        if let Some(RefOr::T(response)) = response {
            target.clone_into(&mut link.operation_id);
            response.links.insert(target.to_owned(), link.into());
        }
    };
    for (from, targets) in LINKS.lines().filter_map(|line| line.split_once(": ")) {
        let mut from = from.split(' ');
        let (source, status) = (from.next().unwrap_or(""), from.next().unwrap_or(""));
        let parameters = from.filter_map(|parameter| parameter.split_once('='));
        let mut link = Link::default();
        link.parameters
            .extend(parameters.map(|(name, value)| (name.to_owned(), value.into())));
        for target in targets.split(' ') {
            add(source, status, target, link.clone());
        }
    }
    // Fills the body of the target. The body is a string, since generators refuse a link with an object.
    let link = Link::builder().request_body(Some("$response.body"));
    add("addPet", "201", "updatePet", link.build());
}
