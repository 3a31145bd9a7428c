//! The attacks, and what they need: a customer with large pets and hostile images, a user, and a revoked key.

use test_support::images::{gif_with_large_frame, png_with};
use test_support::*;

use super::attack::Attack;
use crate::{bodies::chunked, renderings::bombs, stage::*};

const FORM: &str = "Content-Type: application/x-www-form-urlencoded\r\n";
const JSON: &str = "Content-Type: application/json\r\n";
const CHUNKED: &str = "Transfer-Encoding: chunked\r\n\r\n";
const SECOND: Duration = Duration::from_secs(1);

/// Credentials and targets of the attacks.
pub struct Means {
    /// Header field with the key of a caller on the plan Enterprise, and that of a revoked one.
    key: String,
    revoked: String,
    /// Header field with the token of a user.
    token: String,
    /// Paths of hostile images, and of an image that is not.
    images: Vec<String>,
    image: String,
    /// Number of the pet with those images.
    pet: i64,
}

/// Returns the tags of many pets.
fn many_tags() -> Vec<String> {
    (0..25).map(|number| format!("tag-{number}")).collect()
}

/// Adds a pet and returns its number.
async fn add(target: &Target, pet: &Value) -> i64 {
    let added = target.request(Method::POST, "/pet").json(pet);
    added.await.is(201).id()
}

/// Uploads images to pets of 50 images each; returns their paths.
async fn upload(target: &Target, images: Vec<Vec<u8>>) -> Vec<String> {
    let mut paths = Vec::new();
    for images in images.chunks(50) {
        let pet = add(target, &json!({"name": "hostile"})).await;
        for image in images {
            let path = format!("/pet/{pet}/uploadImage");
            let upload = target.request(Method::POST, &path).body(image.clone());
            let image = upload.is(200).await.image_path();
            paths.push(format!("/api/v3{image}"));
        }
    }
    paths
}

impl Means {
    /// Adds a customer with large pets and hostile images, and a user. `target` has the customer's key.
    pub async fn prepare(stage: &Stage, target: &Target) -> Self {
        let revoked = stage.cluster.make_key("attacker").await;
        let revoke = format!(
            "update credentials set revoked_at = now() where id = {}",
            revoked.id
        );
        stage.cluster.run(&revoke).await;
        for _ in 0..600 {
            add(target, &pet_of_size("large", 16 << 10)).await;
        }
        let tags: Value = many_tags().iter().map(|tag| json!({"name": tag})).collect();
        let insert = format!(
            "insert into pets (id, status, details)
             select 1000000 + n, 'pending',
                    json_build_object('name', 'with many tags', 'photoUrls', '[]'::json, 'tags', '{tags}'::json)
             from generate_series(1, 5000) as n"
        );
        stage.cluster.run(&insert).await;
        let mut images: Vec<_> = bombs().into_iter().map(|(_, image)| image).collect();
        // Images that take much time to decode. Each has other bytes, since a rendering is stored.
        let large = png(2_048, 2_048);
        images.extend((0..short_or_full(10_u32, 60)).map(|number| {
            let text = png_chunk(*b"tEXt", &[b"a\0", number.to_string().as_bytes()]);
            let mut image = large.clone();
            image.splice(33..33, text);
            image
        }));
        let images = upload(target, images).await;
        let image = upload(target, vec![large_jpeg(300_000)]).await.remove(0);
        let user = json!({"username": "mallory", "password": "correct horse"});
        let sign_up = target.anonymous(Method::POST, "/user").json(&user);
        sign_up.is(201).await;
        let log_in = target.anonymous(Method::POST, "/user/login").json(&user);
        let token = log_in.is(200).await.json();
        let token = token.as_str().expect("a token");
        Self {
            key: format!("api_key: {}\r\n", target.key),
            revoked: format!("api_key: {}\r\n", revoked.secret),
            token: format!("Authorization: Bearer {token}\r\n"),
            images,
            image,
            pet: add(target, &json!({"name": "hostile"})).await,
        }
    }

    /// Returns all attacks. `victim` is the username of an account.
    pub fn attacks(&self, victim: &str) -> Vec<Attack> {
        [
            self.unread(),
            vec![self.searches()],
            self.slow_bodies(),
            Self::connections(),
            self.renderings(),
            self.credentials(victim),
            self.malformed(),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// Responses that are not read.
    fn unread(&self) -> Vec<Attack> {
        let list = "/api/v3/pet/findByStatus?status=available";
        let large = "/api/v3/pet/findByTags?tags=large&limit=1000";
        [
            ("unread images", 6, &*self.image, ""),
            ("unread lists", 6, list, &*self.key),
            ("unread pages of large pets", 16, large, &*self.key),
        ]
        .map(|(name, connections, path, fields)| Attack {
            reads: false,
            ..Attack::of_silence(name, connections, SECOND, request("GET", path, fields, ""))
        })
        .into()
    }

    /// Searches that cost PostgreSQL much CPU.
    fn searches(&self) -> Attack {
        let path = format!(
            "/api/v3/pet/findByTags?match=all&tags={}",
            many_tags().join(",")
        );
        let search = request("GET", &path, &self.key, "");
        Attack::of_requests("searches for many tags", 8, SECOND, move |_, _| {
            search.clone()
        })
    }

    /// Bodies in small pieces.
    fn slow_bodies(&self) -> Vec<Attack> {
        let pieces = chunked(&vec![b'x'; 500_000], 1);
        let chunks = |name, count, path: &str, fields: &str, body: &[u8]| {
            let head = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\n{fields}{CHUNKED}");
            let opening = [head.as_bytes(), body].concat();
            Attack::of_silence(name, count, 2 * SECOND, opening)
        };
        let key = &self.key;
        let upload = format!("/api/v3/pet/{}/uploadImage", self.pet);
        let jpeg = large_jpeg(200_000);
        let image = chunked(&jpeg, 1);
        let drip = |name, count, path: &str, fields: &str, start: &[u8]| {
            let head = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\n{fields}");
            let head = format!("{head}Content-Length: 1000\r\n\r\n");
            let opening = [head.as_bytes(), start].concat();
            Attack {
                next: Box::new(|_, _| b"x".to_vec()),
                ..Attack::of_silence(name, count, SECOND, opening)
            }
        };
        vec![
            chunks(
                "sign-ups in 1-byte chunks",
                6,
                "/api/v3/user",
                JSON,
                &pieces,
            ),
            chunks(
                "logins in 1-byte chunks",
                6,
                "/api/v3/user/login",
                JSON,
                &pieces,
            ),
            chunks("tokens in 1-byte chunks", 6, "/oauth/token", FORM, &pieces),
            chunks(
                "pets in 1-byte chunks",
                6,
                "/api/v3/pet",
                &format!("{key}{JSON}"),
                &pieces,
            ),
            chunks(
                "uploads in 1-byte chunks",
                4,
                &upload,
                &format!("{key}Content-Type: image/jpeg\r\n"),
                &image,
            ),
            drip("slow logins", 200, "/api/v3/user/login", JSON, b"{"),
            drip(
                "slow pets",
                200,
                "/api/v3/pet",
                &format!("{key}{JSON}"),
                b"{",
            ),
            drip(
                "slow uploads",
                40,
                &upload,
                &format!("{key}Content-Type: image/jpeg\r\n"),
                &jpeg[..100],
            ),
        ]
    }

    /// Connections without a whole request, and probes.
    fn connections() -> Vec<Attack> {
        let head = "GET /livez HTTP/1.1\r\nHost: localhost\r\nX: ";
        let heads = Attack::of_silence("slow heads", 300, SECOND, head);
        vec![
            Attack::of_silence("idle connections", 1_500, 5 * SECOND, ""),
            Attack {
                next: Box::new(|_, _| b"x".to_vec()),
                ..heads
            },
            Attack::of_requests("readiness probes", 900, 2 * SECOND, |_, _| {
                request("GET", "/readyz", "", "")
            }),
        ]
    }

    /// Renderings of hostile images, and uploads of others.
    fn renderings(&self) -> Vec<Attack> {
        const WIDTHS: [u32; 8] = [16, 64, 128, 300, 512, 1_024, 1_536, 2_048];
        let images = self.images.clone();
        let path = format!("/api/v3/pet/{}/uploadImage", self.pet);
        let frame = gif_with_large_frame(2_048, 2_048);
        let bytes = [frame, png_with(16, 16, b"\0\0\0\x04IDATxxxx")];
        let key = self.key.clone();
        vec![
            Attack::of_requests(
                "renderings of hostile images",
                4,
                SECOND,
                move |connection, number| {
                    let number = (connection + 4 * number) as usize;
                    let image = &images[number % images.len()];
                    let width = WIDTHS[number / images.len() % WIDTHS.len()];
                    request("GET", &format!("{image}?width={width}"), "", "")
                },
            ),
            Attack::of_requests("uploads of hostile images", 2, SECOND, move |_, number| {
                let image = &bytes[number as usize % bytes.len()];
                let fields = format!("{key}Content-Length: {}\r\n", image.len());
                let head = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n");
                [head.as_bytes(), image].concat()
            }),
        ]
    }

    /// Wrong credentials and names, and operations that are forbidden.
    fn credentials(&self, victim: &str) -> Vec<Attack> {
        const NAMES: [&str; 3] = ["ad\\u0430", "ada\\u202e", "ada\\u2060"];
        let (victim, token, revoked) =
            (victim.to_owned(), self.token.clone(), self.revoked.clone());
        let pet = self.pet;
        vec![
            Attack::of_requests("wrong passwords", 4, SECOND / 4, move |_, number| {
                let name = match number % 2 {
                    0 => victim.clone(),
                    _ => format!("no-{number}"),
                };
                let pair = format!("username={name}&password=guess-{number}");
                request("POST", "/api/v3/user/login", FORM, &pair)
            }),
            Attack::of_requests("names that look like another", 2, SECOND, |_, number| {
                let name = NAMES[number as usize % NAMES.len()];
                let user = format!(r#"{{"username": "{name}", "password": "correct horse"}}"#);
                request("POST", "/api/v3/user", JSON, &user)
            }),
            Attack::of_requests("orders that are complete", 2, 2 * SECOND, move |_, _| {
                let order = format!(r#"{{"petId": {pet}, "complete": true}}"#);
                request(
                    "POST",
                    "/api/v3/store/order",
                    &format!("{token}{JSON}"),
                    &order,
                )
            }),
            Attack::of_requests("revoked and wrong keys", 4, SECOND / 4, move |_, number| {
                let wrong = format!("api_key: pk_{number}\r\n");
                let key = if number % 2 == 0 { &revoked } else { &wrong };
                request("DELETE", "/api/v3/pet/1", key, "")
            }),
            Attack::of_requests("demo keys", 2, SECOND / 4, |_, _| {
                let foreign = "X-Forwarded-For: 192.0.2.1\r\napi_key: special-key\r\n";
                request("DELETE", "/api/v3/pet/1", foreign, "")
            }),
        ]
    }

    /// Malformed requests.
    fn malformed(&self) -> Vec<Attack> {
        let list = format!(r#"{{"name": {}"#, "[".repeat(100_000));
        let messages = [
            "GET http://u:p@evil.example/api/v3/pet/1 HTTP/1.1\r\nHost: localhost\r\n\r\n"
                .to_owned(),
            format!(
                "GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n",
                "q".repeat(20_000)
            ),
            format!(
                "GET /livez HTTP/1.1\r\nHost: localhost\r\n{}\r\n",
                "X: y\r\n".repeat(101)
            ),
            "GET /livez HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n".to_owned(),
        ];
        let key = self.key.clone();
        vec![
            Attack::of_requests("malformed requests", 4, SECOND / 4, move |connection, _| {
                messages[connection as usize % messages.len()]
                    .clone()
                    .into_bytes()
            }),
            Attack::of_requests("deep JSON", 2, SECOND / 2, move |_, _| {
                request("POST", "/api/v3/pet", &format!("{key}{JSON}"), &list)
            }),
        ]
    }
}

/// Returns a request over HTTP/1.
fn request(method: &str, path: &str, fields: &str, body: &str) -> Vec<u8> {
    let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n{fields}");
    format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}
