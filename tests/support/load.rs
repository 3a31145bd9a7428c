//! Requests that produce a sample of every metric.

use reqwest::Method;
use serde_json::json;

use crate::{RequestExt, Service};

impl Service {
    /// Sends requests of every kind that has a metric. Each call needs a new `round` and a new `image`, which must be
    /// wider than 300 pixels.
    pub async fn exercise_all_metrics(&self, round: u32, image: &[u8]) {
        let request = |method: Method, path: &str| self.request(method, path, "special-key");
        let pet = json!({"name": "Rex", "id": 1000 + round});
        for status in [201, 201] {
            let add = request(Method::POST, "/pet").header("idempotency-key", round);
            add.json(&pet).response().await.is(status);
        }
        request(Method::POST, "/pet")
            .json(&json!({"name": "Max"}))
            .response()
            .await
            .is(201);
        let path = format!("/pet/{}", 1000 + round);
        request(Method::GET, &path).response().await.is(200);
        request(Method::GET, "/pet/x").response().await.is(400);
        for find in [
            "pet/findByStatus?status=sold",
            "pet/findByTags?tags=none",
            "store/inventory",
        ] {
            let find = request(Method::GET, &format!("/{find}"));
            find.response().await.is(200);
        }
        let user = json!({"username": format!("ada{round}"), "password": "correct horse"});
        request(Method::POST, "/user")
            .json(&user)
            .response()
            .await
            .is(201);
        request(Method::POST, "/user/login")
            .json(&user)
            .response()
            .await
            .is(200);
        let upload = request(Method::POST, &format!("{path}/uploadImage")).body(image.to_owned());
        let image = upload.response().await.is(200).json();
        let image = image["imageId"].as_str().expect("an id");
        let small = request(Method::GET, &format!("{path}/images/{image}?width=300"));
        small.response().await.is(200);
        // The free plan has limits, so that this request needs a lease.
        self.request(Method::GET, &path, "free-key")
            .response()
            .await
            .is(200);
        self.request(Method::GET, &path, "wrong")
            .response()
            .await
            .is(401);
    }
}
