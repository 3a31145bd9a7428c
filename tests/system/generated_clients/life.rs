//! Manages a pet, an image, an order and a user with a client that openapi-generator makes for Rust.

use std::{env, fmt::Debug, fs};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use openapi::{
    apis::{
        Error,
        configuration::{ApiKey, Configuration},
        pet_api, store_api, user_api,
    },
    models::{
        Login, OrderInput, OrderPatch, OrderStatus, PetInput, PetReplacement, Tag, UserDetails,
        UserInput,
    },
};

fn fails<T: Debug, E: Debug>(status: u16, result: Result<T, Error<E>>) {
    match result {
        Err(Error::ResponseError(response)) if response.status == status => {}
        other => panic!("no {status}: {other:?}"),
    }
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = env::args().collect();
    let [_, host, key, image] = &arguments[..] else {
        panic!("the host, a key and an image");
    };
    let anonymous = Configuration {
        base_path: format!("{host}/api/v3"),
        ..Configuration::new()
    };
    let key = ApiKey {
        prefix: None,
        key: key.clone(),
    };
    let admin = Configuration {
        api_key: Some(key),
        ..anonymous.clone()
    };

    let tag = Tag {
        name: Some(Some("rust".into())),
        ..Tag::default()
    };
    let mut rex = PetInput::new("Rex".into());
    rex.tags = Some(Some(vec![tag.clone()]));
    let pet = pet_api::add_pet(&admin, rex, None).await.expect("a pet");
    let mut max = PetReplacement::new(pet.id, "Max".into());
    max.tags = Some(Some(vec![tag]));
    let replaced = pet_api::update_pet(&admin, max, None, None)
        .await
        .expect("replaced");
    assert_eq!(replaced.name, "Max");
    let named = pet_api::update_pet_with_form(
        &admin,
        pet.id,
        Some("Ada"),
        None,
        None,
        None,
        None,
        None,
        None,
    );
    assert_eq!(named.await.expect("named").name, "Ada");
    let tags = vec!["rust".to_owned(), "none".to_owned()];
    let found = pet_api::find_pets_by_tags(&admin, tags, None, None, None)
        .await
        .expect("pets");
    assert_eq!(found.iter().map(|it| it.id).collect::<Vec<_>>(), [pet.id]);

    let image = BASE64_STANDARD.decode(image).expect("base64");
    let path = env::temp_dir().join(format!("life-{}.png", std::process::id()));
    fs::write(&path, &image).expect("a file");
    let uploaded = pet_api::upload_file(&admin, pet.id, path.clone(), None, None, None, None)
        .await
        .expect("an image");
    fs::remove_file(path).expect("a file");
    let got = pet_api::get_image(
        &admin,
        pet.id,
        &uploaded.image_id,
        None,
        None,
        None,
        None,
        None,
    )
    .await
    .expect("an image");
    assert_eq!(got.bytes().await.expect("bytes"), image);
    pet_api::delete_image(&admin, pet.id, &uploaded.image_id, None, None)
        .await
        .expect("deleted");

    let order = store_api::place_order(&admin, OrderInput::new(pet.id), None)
        .await
        .expect("an order");
    assert_eq!((order.quantity, order.status), (1, OrderStatus::Placed));
    let patch = OrderPatch {
        status: Some(Some(OrderStatus::Approved)),
        ..OrderPatch::default()
    };
    let approved = store_api::patch_order(&admin, order.id, patch)
        .await
        .expect("approved");
    assert_eq!(approved.status, OrderStatus::Approved);
    store_api::delete_order(&admin, order.id)
        .await
        .expect("deleted");
    fails(404, store_api::get_order_by_id(&admin, order.id).await);

    let password = "correct horse battery staple".to_owned();
    let mut account = UserInput::new("rust-Adä".into());
    account.password = Some(Some(password.clone()));
    let user = user_api::create_user(&anonymous, account)
        .await
        .expect("a user");
    let login = Login::new(password, user.username.clone());
    let token = user_api::create_session(&anonymous, login)
        .await
        .expect("a session");
    let own = Configuration {
        bearer_access_token: Some(token),
        ..anonymous
    };
    let details = UserDetails {
        first_name: Some(Some("Ada".into())),
        ..UserDetails::default()
    };
    let changed = user_api::update_user(&own, &user.username, details)
        .await
        .expect("changed");
    assert_eq!(changed.first_name, Some("Ada".into()));
    user_api::logout_user(&own).await.expect("logged out");
    fails(401, user_api::get_user_by_name(&own, &user.username).await);
    user_api::delete_user(&admin, &user.username)
        .await
        .expect("deleted");
    pet_api::delete_pet(&admin, pet.id, None, None)
        .await
        .expect("deleted");
    fails(
        404,
        pet_api::get_pet_by_id(&admin, pet.id, None, None).await,
    );
}
