//! Tests of forged and malformed tokens: each gets the same 401, and no URL that a token names is requested.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use test_support::*;
use test_support::{
    issuer::{AUDIENCE, now, serve},
    signer::{base64, der, hs256},
};

use super::merge;

/// Invalid tokens with descriptions, made from public data, keys of the attacker and tokens for other subjects.
struct Table {
    issuer: Issuer,
    attacker: Issuer,
    rows: Vec<(String, String)>,
}

impl Table {
    fn add(&mut self, what: impl Into<String>, token: String) {
        self.rows.push((what.into(), token));
    }

    fn claims(&self) -> Value {
        self.issuer.claims("victim")
    }

    /// Adds a correctly signed token with these members set in the header.
    fn header(&mut self, signer: &Signer, members: &Value) {
        let mut header = signer.header();
        merge(&mut header, members);
        let token = signer.token_of(&header.to_string(), &self.claims().to_string());
        self.add(format!("{} header {members}", signer.id), token);
    }

    /// Adds a correctly signed token with these members set in the claims.
    fn claim(&mut self, members: &Value) {
        let mut claims = self.claims();
        merge(&mut claims, members);
        let token = Signer::ed25519().token(&claims);
        self.add(format!("claims {members}"), token);
    }

    /// Adds a token with a valid header, valid claims and this signature.
    fn signature(&mut self, what: &str, signer: &Signer, signature: &str) {
        let header = signer.header().to_string();
        let token = format!(
            "{}.{}.{signature}",
            base64(header),
            base64(self.claims().to_string())
        );
        self.add(what, token);
    }

    fn algorithms(&mut self) {
        let claims = base64(self.claims().to_string());
        for none in ["none", "None", "NONE", "nOnE", "", "null"] {
            for signature in ["", "AA", "."] {
                for kid in ["rsa", "ed25519", "none"] {
                    let header = base64(json!({"alg": none, "kid": kid, "typ": "JWT"}).to_string());
                    self.add(
                        format!("alg {none:?}, signature {signature:?}"),
                        format!("{header}.{claims}.{signature}"),
                    );
                }
            }
            self.header(&Signer::ed25519(), &json!({ "alg": none }));
        }
        let rsa = Signer::rsa();
        let pem = include_str!("../../support/keys/test_rsa_public.pem");
        let modulus = rsa.jwk()["n"].as_str().map(str::to_owned).expect("n");
        let jwk = rsa.jwk().to_string();
        let secrets: [&[u8]; 8] = [
            pem.as_bytes(),
            pem.trim_end().as_bytes(),
            &der(pem),
            &URL_SAFE_NO_PAD.decode(&modulus).expect("base64url"),
            modulus.as_bytes(),
            jwk.as_bytes(),
            b"secret",
            b"",
        ];
        for secret in secrets {
            for kid in [json!("rsa"), json!("oct"), Value::Null] {
                let mut header = json!({"alg": "HS256", "typ": "JWT"});
                merge(&mut header, &json!({ "kid": kid }));
                let token = hs256(&header, &self.claims(), secret);
                self.add(format!("HS256 of {} bytes, {header}", secret.len()), token);
            }
        }
        // The token names another algorithm than its key has.
        for alg in [
            "HS256", "RS384", "RS512", "PS256", "ES256", "EdDSA", "rs256",
        ] {
            self.header(&rsa, &json!({ "alg": alg }));
        }
        for alg in ["RS256", "ES384", "ES256K", "EdDSA", "es256"] {
            self.header(&Signer::p256(), &json!({ "alg": alg }));
        }
        for alg in ["RS256", "ES256", "Ed25519", "eddsa", "HS256"] {
            self.header(&Signer::ed25519(), &json!({ "alg": alg }));
        }
        for alg in [json!(["EdDSA"]), json!(null), json!(5), json!(true)] {
            self.header(&Signer::ed25519(), &json!({ "alg": alg }));
        }
        self.header(&Signer::ed25519(), &json!({"kid": "rsa"}));
        self.header(&Signer::p384(), &json!({}));
        self.header(&Signer::p384(), &json!({"alg": "ES256"}));
        self.header(&Signer::p384(), &json!({"alg": "ES256", "kid": "p256"}));
        self.header(&Signer::rsa_tiny(), &json!({}));
    }

    fn keys(&mut self) {
        for kid in [
            "../../../../dev/null",
            "/proc/sys/kernel/randomize_va_space",
            "file:///dev/null",
            "' or '1'='1",
            "ed25519'; drop table callers; --",
            "x' union select 'c2VjcmV0'",
            "ed25519\0",
            "ED25519",
            " ed25519",
            "",
            "${jndi:ldap://127.0.0.1/x}",
            &"k".repeat(4_000),
            &format!("{}/keys", self.attacker.url()),
        ] {
            let attackers = Signer::ed25519_other();
            self.header(&attackers, &json!({ "kid": kid }));
            self.header(&Signer::ed25519(), &json!({ "kid": kid }));
            let header = json!({"alg": "HS256", "kid": kid});
            let token = hs256(&header, &self.claims(), b"");
            self.add(format!("HS256 kid {header}"), token);
        }
        for kid in [json!(5), json!(["ed25519"]), json!({"$ne": null})] {
            self.header(&Signer::ed25519(), &json!({ "kid": kid }));
        }
        // Keys that the token itself carries or links to.
        let url = self.attacker.url();
        for signer in [Signer::ed25519_other(), Signer::rsa_other()] {
            let known = if signer.id.starts_with("rsa") {
                "rsa"
            } else {
                "ed25519"
            };
            let keys = [
                json!({"jwk": signer.jwk()}),
                json!({"jku": format!("{url}/keys")}),
                json!({"x5u": format!("{url}/keys")}),
                json!({"x5c": [signer.jwk()["x"], signer.jwk()["n"]]}),
                json!({"jwk": signer.jwk(), "jku": format!("{url}/keys"), "x5u": format!("{url}/keys")}),
            ];
            for mut members in keys {
                for kid in [json!(known), json!(signer.id), Value::Null] {
                    merge(&mut members, &json!({ "kid": "placeholder" }));
                    members["kid"] = kid;
                    self.header(&signer, &members);
                }
            }
        }
    }

    fn headers(&mut self) {
        for members in [
            json!({"crit": ["unheard-of"], "unheard-of": 1}),
            json!({"crit": ["exp"]}),
            json!({"crit": []}),
            json!({"crit": "b64"}),
            json!({"b64": false}),
            json!({"b64": true}),
            json!({"b64": false, "crit": ["b64"]}),
            json!({"zip": "DEF"}),
            json!({"enc": "A128GCM"}),
            json!({"typ": "JWE"}),
            json!({"typ": "dpop+jwt"}),
            json!({"typ": "logout+jwt"}),
            json!({"typ": ""}),
            json!({"typ": ["JWT"]}),
        ] {
            self.header(&Signer::ed25519(), &members);
        }
    }

    fn claims_for_other_services(&mut self) {
        let now = now();
        let (issuer, attacker) = (self.issuer.url(), self.attacker.url());
        for members in [
            json!({"iss": null}),
            json!({"iss": attacker}),
            json!({"iss": format!("{issuer}/")}),
            json!({"iss": issuer.to_uppercase()}),
            json!({"iss": [issuer]}),
            json!({"aud": null}),
            json!({"aud": "other"}),
            json!({"aud": ""}),
            json!({"aud": []}),
            json!({"aud": ["other", "another"]}),
            json!({"aud": [AUDIENCE, 5]}),
            json!({"aud": {"0": AUDIENCE}}),
            json!({"aud": AUDIENCE.to_uppercase()}),
            json!({"aud": format!("{AUDIENCE} other")}),
            json!({"exp": null}),
            json!({"exp": now - 31}),
            json!({"exp": 0}),
            json!({"exp": -1}),
            json!({"exp": (now + 600).to_string()}),
            json!({"exp": [now + 600]}),
            json!({"exp": true}),
            json!({"nbf": now + 45}),
            json!({"nbf": (now - 5).to_string()}),
            json!({"nbf": u64::MAX}),
            json!({"iat": now + 45}),
            json!({"iat": "now"}),
            json!({"sub": null}),
            json!({"sub": ""}),
            json!({"sub": 5}),
            json!({"sub": ["victim"]}),
            json!({"sub": "x".repeat(256)}),
            json!({"sub": "victim\0"}),
            json!({"sub": "victim\n"}),
            json!({"sub": "\u{85}victim"}),
        ] {
            self.claim(&members);
        }
        // Claims with the value `null`; `merge` would remove them.
        for name in ["iss", "aud", "exp", "nbf", "iat", "sub"] {
            let mut claims = self.claims();
            claims[name] = Value::Null;
            let token = Signer::ed25519().token(&claims);
            self.add(format!("claim {name}: null"), token);
        }
        // A configured issuer cannot sign for subjects of another one.
        for kid in [json!("ed25519_other"), json!("ed25519"), Value::Null] {
            self.header(&Signer::ed25519_other(), &json!({ "kid": kid }));
        }
        let mut claims = self.attacker.claims("victim");
        claims["aud"] = json!("of another service");
        let token = Signer::ed25519_other().token(&claims);
        self.add("another issuer's token for somebody else", token);
    }

    fn signatures(&mut self) {
        let (p256, ed25519) = (Signer::p256(), Signer::ed25519());
        for length in [0, 1, 32, 63, 64, 65, 96, 128] {
            let zeros = base64(vec![0; length]);
            self.signature(&format!("ES256 of {length} zeros"), &p256, &zeros);
            self.signature(&format!("EdDSA of {length} zeros"), &ed25519, &zeros);
            self.signature(&format!("RS256 of {length} zeros"), &Signer::rsa(), &zeros);
        }
        // r or s is out of range: zero, or the order of the group.
        let order = [
            0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
            0xbc, 0xe6, 0xfa, 0xad, 0xa7, 0x17, 0x9e, 0x84, 0xf3, 0xb9, 0xca, 0xc2, 0xfc, 0x63,
            0x25, 0x51,
        ];
        let one: [u8; 32] = std::array::from_fn(|at| u8::from(at == 31));
        for (r, s) in [
            ([0; 32], one),
            (one, [0; 32]),
            (order, order),
            (one, order),
            (order, one),
        ] {
            self.signature("ES256 at a bound", &p256, &base64([r, s].concat()));
        }
        for signer in [&p256, &ed25519, &Signer::rsa()] {
            let good = signer.token(&self.claims());
            let (signed, signature) = good.rsplit_once('.').expect("three parts");
            let bytes = URL_SAFE_NO_PAD.decode(signature).expect("base64url");
            let (last, rest) = bytes.split_last().expect("bytes");
            let first = &bytes[1..];
            for (what, wrong) in [
                ("a byte less", base64(rest)),
                ("a byte more", base64([bytes.as_slice(), &[0]].concat())),
                ("a zero before", base64([&[0], bytes.as_slice()].concat())),
                ("the first byte gone", base64(first)),
                ("a bit turned", base64([rest, &[last ^ 1]].concat())),
                ("padded", format!("{signature}==")),
                ("a line break", format!("{signature}%0A")),
                ("the other alphabet", format!("{}+/", &signature[2..])),
                ("unused bits set", with_unused_bits(signature)),
            ] {
                self.add(
                    format!("{}: {what}", signer.id),
                    format!("{signed}.{wrong}"),
                );
            }
            let other = signer.token(&self.issuer.claims("attacker"));
            let (_, stolen) = other.rsplit_once('.').expect("three parts");
            self.add(
                format!("{}: of another token", signer.id),
                format!("{signed}.{stolen}"),
            );
        }
        // Imitates the DER encoding of other software; JWS has the bytes of r and s only (RFC 7518 §3.4).
        let good = p256.signature("x");
        let (r, s) = good.split_at(good.len() / 2);
        let der = format!("0E\x02 {r}\x02 {s}");
        self.signature("ES256 in ASN.1", &p256, &base64(der));
    }

    fn forms(&mut self) {
        let ed25519 = Signer::ed25519();
        let good = ed25519.token(&self.claims());
        let parts: Vec<&str> = good.split('.').collect();
        let [header, claims, signature] = parts[..] else {
            panic!("{good}");
        };
        for wrong in [
            format!("{good}.{signature}"),
            format!("{good}."),
            format!(".{good}"),
            format!("{header}..{claims}.{signature}"),
            format!("{header}.{claims}"),
            format!("{header}.{claims}."),
            format!("{header}..{signature}"),
            format!(".{claims}.{signature}"),
            format!("{claims}.{header}.{signature}"),
            format!("{good}A"),
            format!("{good},{good}"),
            format!("{header}=.{claims}.{signature}"),
            format!("{header}.{claims}==.{signature}"),
            format!("{header} .{claims}.{signature}"),
            format!("!{}", &good[1..]),
            "..".to_owned(),
            "a.b.c".to_owned(),
            good.to_lowercase(),
            good.replace('.', ":"),
        ] {
            self.add("form", wrong);
        }
        let (header, claims) = (ed25519.header().to_string(), self.claims().to_string());
        let inner = claims.trim_matches(['{', '}']);
        for (header, claims) in [
            (header.clone(), format!("{{{inner},\"sub\":\"victim\"}}")),
            (header.clone(), format!("{{\"sub\":\"attacker\",{inner}}}")),
            (header.clone(), format!("{{{inner},\"x\":1,\"x\":1}}")),
            (
                header.clone(),
                format!("{{{inner},\"s\\u0075b\":\"victim\"}}"),
            ),
            (header.replace('{', "{\"alg\":\"EdDSA\","), claims.clone()),
            (header.replace('{', "{\"alg\":\"none\","), claims.clone()),
            (format!("{header}{header}"), claims.clone()),
            (format!("{header}x"), claims.clone()),
            (header.clone(), format!("{claims}{{}}")),
            (header.clone(), format!("{claims}\0")),
            (header.clone(), format!("\u{feff}{claims}")),
            (header.clone(), format!("[{claims}]")),
            (header.clone(), format!("\"{}\"", base64(&claims))),
            (header.clone(), "null".to_owned()),
            (header.clone(), String::new()),
            (header.clone(), good.clone()),
            (format!("[{header}]"), claims.clone()),
            (
                header.clone(),
                format!(
                    "{{{inner},\"deep\":{}1{}}}",
                    "[".repeat(500),
                    "]".repeat(500)
                ),
            ),
            (header.clone(), format!("{{{inner},\"exp\":1e999}}")),
            (
                header.clone(),
                format!("{{{inner},\"padding\":\"{}\"}}", "x".repeat(7_500)),
            ),
        ] {
            self.add(
                format!("{header} {claims}"),
                ed25519.token_of(&header, &claims),
            );
        }
    }
}

/// Returns non-canonical base64 of the same bytes, with unused bits of the last character set.
fn with_unused_bits(base64: &str) -> String {
    const ALPHABET: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let (rest, last) = base64.split_at(base64.len() - 1);
    let at = ALPHABET.find(last).expect("base64url");
    format!("{rest}{}", &ALPHABET[at + 1..at + 2])
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_tokens_all_get_the_same_401() {
    let published = [
        Signer::rsa(),
        Signer::p256(),
        Signer::p256().named("p256_too"),
        Signer::ed25519(),
        Signer::p384(),
        Signer::rsa_tiny(),
    ];
    let issuer = Issuer::start(&published.each_ref()).await;
    let other = Issuer::start(&[&Signer::ed25519_other()]).await;
    let attacker = Issuer::start(&[&Signer::ed25519_other(), &Signer::rsa_other()]).await;
    let app = serve(&[issuer.table(""), other.table("")]).await;
    let good = Signer::ed25519().token(&issuer.claims("victim"));

    let mut table = Table {
        issuer,
        attacker,
        rows: Vec::new(),
    };
    table.algorithms();
    table.keys();
    table.headers();
    table.claims_for_other_services();
    table.signatures();
    table.forms();
    for (what, token) in &table.rows {
        let response = app.bearer(token).await;
        assert_eq!(response.status, 401, "{what}: {token}\n{response}");
        let problem = response.problem(401);
        assert_eq!(problem["detail"], "the credential is not valid", "{what}");
        let challenge = response.header("www-authenticate");
        assert!(challenge.contains(r#"error="invalid_token""#), "{response}");
    }
    assert!(table.rows.len() > 250, "{}", table.rows.len());
    // Checks that the service accepts a valid token, so that the refusals above mean something.
    app.bearer(&good).await.is(404);
    assert_eq!(table.attacker.requested_paths().await, [""; 0]);
    assert_eq!(table.issuer.requested_paths().await, ["/keys"]);
    let callers = "select count(*) from callers where name like 'jwt:%'";
    assert_eq!(app.database.number(callers).await, 1);
}
