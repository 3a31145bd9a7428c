//! Bearer tokens of outside issuers, over real HTTP, with an issuer that is a real HTTP server.

use std::time::{Duration, Instant};

use pet_inventory::domain::clock::Clock;
use reqwest::Method;
use serde_json::json;
use tokio::task::JoinSet;
use wiremock::ResponseTemplate;

use crate::support::{
    Ask,
    issuer::{Issuer, SLOW, serve},
    signer::Signer,
};

#[tokio::test(flavor = "multi_thread")]
async fn each_algorithm_is_good_with_a_key_of_its_kind() {
    let signers = [Signer::rsa(), Signer::p256(), Signer::ed25519()];
    let issuer = Issuer::of(&signers.each_ref()).await;
    let app = serve(&[issuer.table("")], Clock::system()).await;
    for signer in &signers {
        let token = signer.token(&issuer.claims("somebody"));
        app.bearer(&token).await.is(404);
        // One and the same caller, whatever the key.
        let callers = "select count(*) from callers where name like 'jwt:%:somebody'";
        assert_eq!(app.database.number(callers).await, 1);
    }
    assert_eq!(issuer.asked().await, ["/keys"]);
}
