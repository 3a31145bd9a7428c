//! Clients that disconnect before the response.

use test_support::*;

/// Anyone can request images. A closed connection does not make the service close and open database connections: a look-up ends
/// although nobody waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn abandoned_image_requests_cost_no_database_connections() {
    let app = TestApp::with(&[("PET_INVENTORY__SERVER__WORKERS", "1")]).await;
    let pet = app.pet("a").await;
    let uploaded = app.upload(pet, png(30, 20)).is(200).await;
    let path = format!("/api/v3{}", uploaded.image_path());
    let number_of = async |what: &str| {
        let query = format!(
            "select ({what})::int8 from pg_stat_activity
             where datname = current_database() and application_name = 'pet-inventory'"
        );
        app.database.number(&query).await
    };
    let waiting = "count(*) filter (where wait_event_type = 'Lock')";
    let mut locker = app.database.connect().await;
    let mut newest = None;
    for round in 0..3 {
        let mut transaction = locker.begin().await.expect("a transaction");
        let lock = "lock table image_contents in access exclusive mode";
        transaction.execute(lock).await.expect("locked");
        let mut raws = Vec::new();
        for _ in 0..5 {
            let mut raw = RawConnection::connect(app.address).await;
            let head = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
            raw.send(head).await;
            raws.push(raw);
        }
        eventually(async || number_of(waiting).await == 5).await;
        drop(raws);
        tokio::time::sleep(Duration::from_millis(50)).await;
        transaction.rollback().await.expect("unlocked");
        for _ in 0..4 {
            app.bare(Method::GET, &path).is(200).await;
        }
        // The pool has five, and those of the first round serve the others.
        let opened = number_of("extract(epoch from max(backend_start)) * 1000000").await;
        assert!(opened <= *newest.get_or_insert(opened), "round {round}");
    }
}
