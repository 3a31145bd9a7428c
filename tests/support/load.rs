//! Mixed requests, for tests of the metrics.

use reqwest::Method;
use serde_json::json;

use crate::{Ask, Service};

impl Service {
    /// Sends requests that touch everything that is measured. Each call needs another `turn` and another
    /// `picture`, which must be wider than 300 pixels.
    pub async fn do_some_of_everything(&self, turn: u32, picture: &[u8]) {
        let ask = |method: Method, path: &str| self.request(method, path, "special-key");
        let pet = json!({"name": "Rex", "id": 1000 + turn});
        for status in [201, 201] {
            let add = ask(Method::POST, "/pet").header("idempotency-key", turn);
            add.json(&pet).answer().await.is(status);
        }
        ask(Method::POST, "/pet")
            .json(&json!({"name": "Max"}))
            .answer()
            .await
            .is(201);
        let path = format!("/pet/{}", 1000 + turn);
        ask(Method::GET, &path).answer().await.is(200);
        ask(Method::GET, "/pet/x").answer().await.is(400);
        let user = json!({"username": format!("ada{turn}"), "password": "correct horse"});
        ask(Method::POST, "/user")
            .json(&user)
            .answer()
            .await
            .is(201);
        ask(Method::POST, "/user/login")
            .json(&user)
            .answer()
            .await
            .is(200);
        let upload = ask(Method::POST, &format!("{path}/uploadImage")).body(picture.to_owned());
        let image = upload.answer().await.is(200).json();
        let image = image["imageId"].as_str().expect("an id");
        let small = ask(Method::GET, &format!("{path}/images/{image}?width=300"));
        small.answer().await.is(200);
        // The free plan has limits, so that this request needs a lease.
        self.request(Method::GET, &path, "free-key")
            .answer()
            .await
            .is(200);
        self.request(Method::GET, &path, "wrong")
            .answer()
            .await
            .is(401);
    }
}
