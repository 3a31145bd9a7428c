//! Requests that produce a sample of every metric.

use reqwest::Method;
use serde_json::json;

use crate::{Service, eventually};

impl Service {
    /// Sends requests of every kind that has a metric. Each call needs a new `round` and a new `image`, which must be
    /// wider than 300 pixels.
    pub async fn exercise_all_metrics(&self, round: u32, image: &[u8]) {
        let request = |method: Method, path: &str| self.request(method, path, "special-key");
        let pet = json!({"name": "Rex", "id": 1000 + round});
        for status in [201, 201] {
            let add = request(Method::POST, "/pet").header("idempotency-key", round);
            add.json(&pet).await.is(status);
        }
        request(Method::POST, "/pet")
            .json(&json!({"name": "Max"}))
            .is(201)
            .await;
        let path = format!("/pet/{}", 1000 + round);
        request(Method::GET, &path).is(200).await;
        request(Method::GET, "/pet/x").is(400).await;
        for find in [
            "pet/findByStatus?status=sold",
            "pet/findByTags?tags=none",
            "store/inventory",
        ] {
            let find = request(Method::GET, &format!("/{find}"));
            find.is(200).await;
        }
        let user = json!({"username": format!("ada{round}"), "password": "correct horse"});
        request(Method::POST, "/user").json(&user).is(201).await;
        request(Method::POST, "/user/login")
            .json(&user)
            .is(200)
            .await;
        let upload = request(Method::POST, &format!("{path}/uploadImage")).body(image.to_owned());
        let image = upload.is(200).await.image_path();
        let small = request(Method::GET, &format!("{image}?width=300"));
        small.is(200).await;
        let webhook = json!({"url": "https://localhost/"});
        let webhook = request(Method::POST, "/admin/webhooks").json(&webhook);
        let webhook = format!("/admin/webhooks/{}", webhook.is(201).await.id());
        let test = request(Method::POST, &format!("{webhook}/test"));
        test.is(200).await;
        // Its own creation is a delivery, which fails.
        let deliveries = format!("{webhook}/deliveries");
        let failed = async || request(Method::GET, &deliveries).is(200).await.json() != json!([]);
        eventually(failed).await;
        let gauge = format!("webhooks_parked{{webhook=\"{round}\"}}");
        eventually(async || self.metrics().await.contains(&gauge)).await;
        // The free plan has limits, so that this request needs a lease.
        self.request(Method::GET, &path, "free-key").is(200).await;
        self.request(Method::GET, &path, "wrong").is(401).await;
    }
}
