//! Rules of the resources, through their public constructors and transitions.

#![expect(clippy::expect_used, reason = "a failed test panics with the reason")]

use std::net::IpAddr;

use chrono::{DateTime, FixedOffset};
use pet_inventory::domain::{
    Text,
    address::AddressKey,
    caller::{CallerName, Scope, Scopes},
    id::PetId,
    order::{OrderDetails, OrderPatch, Quantity, ShipDate, Standing, Status},
    pet::{
        self, Category, CategoryPatch, Change, MAX_NAME, MAX_PHOTO_URL, PetDetails, PetName,
        PetPatch, PhotoUrl, StoredPet, Tag,
    },
    user::{Password, Username},
};
use proptest::{prelude::*, sample::select};

fn pet_name(name: &str) -> PetName {
    name.parse().expect("a name")
}

fn text(text: &str) -> Text {
    text.parse().expect("a text")
}

#[test]
fn address_key_is_one_per_ipv6_network_of_56_bits() {
    let key = |address: &str| AddressKey::from(address.parse::<IpAddr>().expect("an address"));
    assert_eq!(key("2001:db8::1"), key("2001:db8:0:ff::ffff:1"));
    assert_ne!(key("2001:db8::1"), key("2001:db8:0:100::1"));
    assert_eq!(key("::ffff:192.0.2.1"), key("192.0.2.1"));
}

#[test]
fn scopes_contain_what_was_put_in() {
    for scope in Scope::ALL {
        let one: Scopes = [scope].into_iter().collect();
        assert_eq!(one.iter().collect::<Vec<_>>(), [scope]);
        assert!(Scopes::all().contains_all(one));
        assert_eq!(scope.as_str().parse(), Ok(scope));
    }
    assert!(!Scopes::default().contains(Scope::ReadPets));
}

#[test]
fn caller_names_are_bounded() {
    assert!("acme".parse::<CallerName>().is_ok());
    for bad in ["", " acme", "a\nb", "a\0b", &"x".repeat(65)] {
        assert!(bad.parse::<CallerName>().is_err(), "{bad:?}");
    }
}

#[test]
fn usernames_that_differ_only_in_case_are_one() {
    let fold = |name: &str| Username::from_stored(name.to_owned()).folded();
    for character in '\0'..=char::MAX {
        let name = character.to_string();
        let folded = fold(&name);
        for same in [name.to_uppercase(), name.to_lowercase(), folded.clone()] {
            assert!(same == name || fold(&same) == folded, "{name}");
        }
    }
    for pair in [
        "Bob bOB",
        "ΟΔΟΣ οδος",
        "STRASSE straße",
        "É é",
        "É e\u{301}",
        "ｂｏｂ BOB",
        "ΐ Ϊ\u{301}",
    ] {
        let (one, other) = pair.split_once(' ').expect("two names");
        assert_eq!(fold(one), fold(other));
    }
    assert_ne!(fold("bob"), fold("bo b"));
}

#[test]
fn new_usernames_are_canonical_and_of_one_script() {
    let new = |name: &str| Username::new(name).map(|name| name.as_str().to_owned());
    for (name, canonical) in [
        ("Ada", "Ada"),
        ("O'Neil/Äda?100%", "O'Neil/Äda?100%"),
        ("e\u{301}lan", "élan"),
        ("A\u{30a}ngström", "Ångström"),
        ("ａｄａ＿１", "ada_1"),
        ("ｱﾀﾞ", "アダ"),
        ("Ольга", "Ольга"),
        ("Νίκος", "Νίκος"),
        ("בתיה", "בתיה"),
        ("فاطمة", "فاطمة"),
        ("さくら花子", "さくら花子"),
        ("김영희2", "김영희2"),
        ("...", "..."),
        ("007", "007"),
    ] {
        assert_eq!(new(name).as_deref(), Ok(canonical), "{name}");
        assert_eq!(new(canonical).as_deref(), Ok(canonical), "{name}");
    }
    let reserved = ["Login", "ｌｏｇｉｎ", "logout", "createWithList", ".", ".."];
    for bad in [
        "",
        " a",
        "a b",
        "a\u{a0}b",
        "a\u{3000}b",
        "a\u{202e}",
        "\u{202e}a",
        "a\u{2066}b",
        "a\u{200f}",
        "a\u{2060}b",
        "a\u{200b}b",
        "a\u{200d}b",
        "a\u{200c}b",
        "a\u{ad}b",
        "a\u{feff}",
        "a\u{fe0f}",
        "a\u{e0041}",
        "a\u{34f}b",
        "a\u{115f}",
        "a\n",
        "a\0",
        "🦊",
        "ﬁn",
        "ℌ",
        "Ⅷ",
        "a\u{e000}",
        "a\u{378}",
        "אa",
        "1א",
        // Cyrillic а and о, Greek ο, and Cherokee Ꭺ, among Latin letters.
        "аda",
        "adа",
        "bоb",
        "bοb",
        "Ꭺda",
        "PаyPаl",
        "aあ",
        "Ольгаa",
        "a김",
    ]
    .into_iter()
    .chain(reserved)
    {
        assert!(new(bad).is_err(), "{bad:?}");
    }
    assert!(new(&"é".repeat(64)).is_ok());
    assert!(new(&"é".repeat(65)).is_err());
    // Its canonical form is longer.
    assert!(new(&"\u{958}".repeat(40)).is_err());
}

#[test]
fn canonical_usernames_stay_as_they_are() {
    for character in '\0'..=char::MAX {
        let Ok(name) = Username::new(&character.to_string()) else {
            continue;
        };
        assert_eq!(
            Username::new(name.as_str()).as_ref(),
            Ok(&name),
            "{character:?}"
        );
    }
}

#[test]
fn usernames_of_earlier_releases_are_bounded() {
    for good in ["a", "O'Neil, Äda 🦊", "a/b?c#d", "...", &"é".repeat(64)] {
        assert!(good.parse::<Username>().is_ok(), "{good}");
    }
    let too_long = "é".repeat(65);
    let reserved = ["Login", "logout", "createWithList", ".", ".."];
    for bad in ["", " a", "a ", "a\nb", "a\0", &too_long]
        .into_iter()
        .chain(reserved)
    {
        assert!(bad.parse::<Username>().is_err(), "{bad:?}");
    }
}

#[test]
fn passwords_are_prepared_of_a_length_and_cannot_be_printed() {
    let long = "🦊".repeat(128);
    let decomposed = "e\u{301}".repeat(128);
    for (good, prepared) in [
        ("12345678", "12345678"),
        ("ä 🦊 ñß¡ＡΩ", "ä 🦊 ñß¡ＡΩ"),
        (&long, &long),
        ("a\u{308}bcdefgh", "äbcdefgh"),
        ("abcd\u{3000}\u{a0}efgh", "abcd  efgh"),
        (&decomposed, &"é".repeat(128)),
    ] {
        let password = Password::new(good).expect("good");
        assert_eq!(password.expose(), prepared);
        assert!(!format!("{password:?}").contains(good));
        let claimed = Password::claimed(good.to_owned()).expect("claimed");
        let mut expected = vec![prepared];
        let is_other = good != prepared && good != decomposed;
        expected.extend(is_other.then_some(good));
        assert_eq!(claimed.candidates().collect::<Vec<_>>(), expected);
        assert!(!format!("{claimed:?}").contains(good));
    }
    let seven = "e\u{301}".repeat(7);
    for bad in ["", "1234567", &seven, &"🦊".repeat(129)] {
        let reason = Password::new(bad).expect_err("bad").to_string();
        assert!(bad.is_empty() || !reason.contains(bad));
    }
    // Control, invisible, unassigned and private characters.
    for refused in ["\n", "\0", "\u{202e}", "\u{200b}", "\u{378}", "\u{e000}"] {
        let text = format!("12345678{refused}");
        assert!(Password::new(&text).is_err(), "{text:?}");
        let claimed = Password::claimed(text.clone()).expect("as sent");
        assert_eq!(claimed.candidates().collect::<Vec<_>>(), [&text]);
    }
    assert!(Password::claimed("1".to_owned()).is_some());
    assert!(Password::claimed("1".repeat(129)).is_none());
}

#[test]
fn photo_urls_are_http_or_relative() {
    let good = "https://example.com/a.png HTTP://EXAMPLE.com /images/1 a.png ../a.png?x=1#y \
                //cdn.example.com/a bücher.png string";
    for good in good.split(' ') {
        assert!(good.parse::<PhotoUrl>().is_ok(), "{good}");
    }
    let bad = "javascript:alert(1) data:text/html,x ftp://example.com/a file:///etc/passwd http:// \
               http://[::1 ht;p://example.com/a 1:a \\\\evil.example\\a a\0b a\nb <script>";
    for bad in bad.split(' ').chain(["", "https://exa mple.com"]) {
        assert!(bad.parse::<PhotoUrl>().is_err(), "{bad:?}");
    }
    assert!("a".repeat(MAX_PHOTO_URL).parse::<PhotoUrl>().is_ok());
    assert!("a".repeat(MAX_PHOTO_URL + 1).parse::<PhotoUrl>().is_err());
}

#[test]
fn pet_names_are_counted_in_characters() {
    assert!("é".repeat(MAX_NAME).parse::<PetName>().is_ok());
    assert!("é".repeat(MAX_NAME + 1).parse::<PetName>().is_err());
    assert!("".parse::<PetName>().is_err());
    assert!("a\0b".parse::<PetName>().is_err());
}

#[test]
fn pet_ids_are_those_that_javascript_reads_exactly() {
    assert!(PetId::new(1).is_ok());
    assert!(PetId::new(PetId::MAX).is_ok());
    for bad in [0, -1, PetId::MAX + 1, i64::MAX, i64::MIN] {
        assert!(PetId::new(bad).is_err(), "{bad}");
    }
}

fn rex() -> PetDetails {
    PetDetails {
        category: Some(Category {
            id: Some(1),
            name: Some(text("Dogs")),
        }),
        photo_urls: vec!["/a".parse().expect("a URL")],
        tags: vec![Tag {
            id: None,
            name: Some(text("friendly")),
        }],
        status: pet::Status::Sold,
        ..PetDetails::new(pet_name("Rex"))
    }
}

#[test]
fn stored_pet_has_its_identifier_first_and_its_status_last() {
    let id = PetId::new(PetId::MAX).expect("an id");
    let stored = |details: &str| {
        let pet = StoredPet::new(id, pet::Version(1), pet::Status::Sold, details.as_bytes());
        String::from_utf8(pet.json.to_vec()).expect("a text")
    };
    let with = |members: &str| format!(r#"{{"id":9007199254740991,{members}"status":"sold"}}"#);
    let fields = r#""category":{"id":1,"name":"Dogs"},"name":"Rex","photoUrls":["/a"],"tags":[{"name":"friendly"}]"#;
    assert_eq!(rex().to_json(), format!("{{{fields}}}"));
    assert_eq!(stored(&rex().to_json()), with(&format!("{fields},")));
    let read = PetDetails::from_json(rex().to_json().as_bytes(), pet::Status::Sold);
    assert_eq!(read.expect("a pet"), rex());
    // As plain SQL may have stored them.
    for blank in ["{}", " { } ", "{\n}"] {
        assert_eq!(stored(blank), with(""), "{blank:?}");
    }
    let spread = stored("\n{ \"name\": \"}\" }\t");
    assert_eq!(spread, with(r#""name": "}","#));
}

#[test]
fn change_applies_only_the_given_fields() {
    let rex = rex();
    let tag = Tag {
        id: Some(2),
        name: None,
    };
    let apply = |patch: PetPatch| Change::Patch(patch).apply(&rex, false).expect("free");
    assert_eq!(apply(PetPatch::default()), Some(rex.clone()));
    let patched = apply(PetPatch {
        name: Some(pet_name("Max")),
        photo_urls: Some(Vec::new()),
        tags: Some(vec![tag.clone()]),
        status: Some(pet::Status::Available),
        ..PetPatch::default()
    });
    let expected = PetDetails {
        name: pet_name("Max"),
        photo_urls: Vec::new(),
        tags: vec![tag],
        status: pet::Status::Available,
        ..rex.clone()
    };
    assert_eq!(patched, Some(expected));
    let replace = Change::Replace {
        details: rex.clone(),
        has_status: true,
    };
    assert_eq!(replace.apply(&rex, false), Ok(Some(rex.clone())));
    assert_eq!(Change::Delete.apply(&rex, false), Ok(None));
}

#[test]
fn held_pet_is_not_made_available() {
    for before in pet::Status::ALL {
        let current = PetDetails {
            status: before,
            ..rex()
        };
        for status in pet::Status::ALL {
            let patch = |status| {
                Change::Patch(PetPatch {
                    status,
                    ..PetPatch::default()
                })
            };
            let replace = |has_status| Change::Replace {
                details: PetDetails { status, ..rex() },
                has_status,
            };
            let after = |change: Change| {
                let after = change.apply(&current, true);
                after.map(|details| details.expect("not deleted").status)
            };
            let refused = match status {
                pet::Status::Available => Err(pet::Refusal::Held),
                status => Ok(status),
            };
            assert_eq!(after(patch(Some(status))), refused);
            assert_eq!(after(replace(true)), refused);
            assert_eq!(after(patch(None)), Ok(before));
            if status == pet::Status::Available {
                assert_eq!(after(replace(false)), Ok(before));
            }
        }
        assert_eq!(Change::Delete.apply(&current, true), Ok(None));
    }
}

#[test]
fn order_patch_moves_forward_only() {
    for before in Status::ALL {
        for after in Status::ALL {
            for (was_complete, complete) in
                [(false, false), (false, true), (true, true), (true, false)]
            {
                let patch = OrderPatch {
                    status: Some(after),
                    complete: Some(complete),
                    ship_date: None,
                };
                let is_forward = before as u8 <= after as u8 && (complete || !was_complete);
                let patched = patch.apply(order(before, was_complete), true);
                let expected = is_forward.then(|| order(after, complete));
                assert_eq!(
                    patched.ok(),
                    expected,
                    "{before} {after} {was_complete} {complete}"
                );
            }
        }
        let same = OrderPatch::default().apply(order(before, false), false);
        assert_eq!(same, Ok(order(before, false)));
    }
}

#[test]
fn category_patch_merges_members() {
    let dogs = rex();
    let none = PetDetails {
        category: None,
        ..rex()
    };
    let patch = |id, name| CategoryPatch { id, name };
    for (category, of_dogs, of_none) in [
        (patch(None, None), (Some(1), Some("Dogs")), (None, None)),
        (patch(Some(None), None), (None, Some("Dogs")), (None, None)),
        (
            patch(Some(Some(2)), Some(None)),
            (Some(2), None),
            (Some(2), None),
        ),
        (
            patch(None, Some(Some(text("Cats")))),
            (Some(1), Some("Cats")),
            (None, Some("Cats")),
        ),
    ] {
        let patch = PetPatch {
            category: Some(Some(category)),
            ..PetPatch::default()
        };
        for (current, (id, name)) in [(&dogs, of_dogs), (&none, of_none)] {
            let name = name.map(text);
            let expected = Some(Category { id, name });
            assert_eq!(patch.apply(current).category, expected, "{patch:?}");
        }
    }
}

#[derive(Debug, Clone)]
enum Event {
    Order(Status, bool),
    /// Index of the order, modulo the number of orders.
    Delete(usize),
    ByHand(pet::Status),
}

fn event() -> impl Strategy<Value = Event> {
    let status = select(Status::ALL.to_vec());
    prop_oneof![
        4 => (status, any::<bool>()).prop_map(|(status, complete)| Event::Order(status, complete)),
        3 => any::<usize>().prop_map(Event::Delete),
        2 => select(pet::Status::ALL.to_vec()).prop_map(Event::ByHand),
    ]
}

fn order(status: Status, complete: bool) -> OrderDetails {
    OrderDetails {
        pet_id: PetId::new(1).expect("an id"),
        quantity: Quantity::default(),
        ship_date: None,
        status,
        complete,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// After any sequence of events: at most one order is open, only pets for sale are ordered, and only the
    /// deletion of an order or a change by hand makes a pet available.
    #[test]
    fn ordering_gives_a_pet_to_one_order_at_a_time(events in prop::collection::vec(event(), 0..60)) {
        let mut pet = Standing { status: pet::Status::Available, held: false };
        let mut orders: Vec<OrderDetails> = Vec::new();
        for event in events {
            let before = pet;
            match event {
                Event::Order(status, complete) => {
                    let order = order(status, complete);
                    match before.ordered(&order) {
                        Ok(after) => {
                            prop_assert_eq!(before.status, pet::Status::Available);
                            prop_assert!(!orders.iter().any(OrderDetails::is_open));
                            prop_assert_eq!(after.held, order.is_open());
                            let gone = after.status == pet::Status::Sold;
                            prop_assert_eq!(gone, !order.is_open());
                            prop_assert_ne!(after.status, pet::Status::Available);
                            orders.push(order);
                            pet = after;
                        }
                        Err(_) => {
                            let for_sale = before.status == pet::Status::Available && !before.held;
                            prop_assert!(!for_sale, "a pet for sale is refused");
                        }
                    }
                }
                Event::Delete(which) if !orders.is_empty() => {
                    let order = orders.remove(which % orders.len());
                    if order.is_open() {
                        pet = before.released();
                        prop_assert_ne!(pet.status, pet::Status::Pending);
                        let sold = before.status == pet::Status::Sold;
                        prop_assert_eq!(pet.status == pet::Status::Sold, sold);
                    }
                }
                Event::Delete(_) => {}
                Event::ByHand(status) => pet.status = status,
            }
            let open = orders.iter().filter(|order| order.is_open()).count();
            prop_assert_eq!(open, usize::from(pet.held));
        }
    }

    #[test]
    fn ship_date_is_the_same_instant_in_any_time_zone(
        micros in -62_135_596_800_000_000_i64..253_402_300_800_000_000, hours in -14_i32..=14,
    ) {
        let instant = DateTime::from_timestamp_micros(micros).expect("an instant");
        let zone = FixedOffset::east_opt(hours * 3_600).expect("an offset");
        let text = instant.with_timezone(&zone).to_rfc3339();
        // An offset can move the local year outside 0–9999, which is written with a sign.
        if let Ok(read) = text.parse::<ShipDate>() {
            prop_assert_eq!(read.get(), instant);
        } else {
            prop_assert!(text.starts_with(['+', '-']), "{}", text);
        }
    }
}

#[test]
fn ship_date_may_have_no_seconds() {
    for (text, read) in [
        ("2024-03-01T00:00Z", "2024-03-01T00:00:00Z"),
        ("2024-03-01t00:00z", "2024-03-01T00:00:00Z"),
        ("2024-03-01T00:00+01:30", "2024-02-29T22:30:00Z"),
        ("2024-03-01T00:00-0800", "2024-03-01T08:00:00Z"),
    ] {
        let date: ShipDate = text.parse().expect(text);
        assert_eq!(date.to_string(), read);
    }
}

#[test]
fn ship_date_may_have_an_offset_without_a_colon() {
    for (text, read) in [
        ("2026-01-31T12:00:00+0000", "2026-01-31T12:00:00Z"),
        ("2026-01-31T12:00:00.250+0130", "2026-01-31T10:30:00.250Z"),
        ("2026-01-31T12:00:00-0800", "2026-01-31T20:00:00Z"),
    ] {
        let date: ShipDate = text.parse().expect(text);
        assert_eq!(date.to_string(), read);
    }
}

#[test]
fn ship_date_and_quantity_refuse_other_texts_and_numbers() {
    let bad = "2026-01-31 2026-01-31T12:00:00 2026-02-30T12:00:00Z 1 now é 2026-01-31T12:0000Z \
               2026-01-31T12:00:00+00 2026-01-31T12:00:00+000 2026-01-31T12:00:00+00000 2026-01-31T12:00:000000 \
               0000-12-31T23:59:59Z 9999-12-31T23:59:60Z 9999-12-31T23:59:59-00:01 0001-01-01T00:00:00+00:01 \
               2026-01-31T12:00 2026-01-31T12Z 2026-01-31T12:00.5Z 2026-01-31T24:00Z 2026-01-31T12:00:Z 2026-01-31T12:00+00 +026-01-31T12:00Z";
    for bad in bad.split(' ').chain([""]) {
        assert!(bad.parse::<ShipDate>().is_err(), "{bad}");
    }
    for bad in [0, -1, 1 << 31, i64::MIN, i64::MAX] {
        assert!(Quantity::new(bad).is_err(), "{bad}");
    }
    assert!(Quantity::new((1 << 31) - 1).is_ok());
}
