//! Table of rows: one for each operation of the OpenAPI document, and more where the parameters decide the cost.
//!
//! `accounts` and `admin` have the other parts of the table, and `images` the rows of `uploadFile` and `getImage`.

use crate::load::Credential::{self, ApiKey};

/// Row of the table.
pub struct Operation {
    /// `operationId`, and a suffix if the operation has several rows.
    pub name: &'static str,
    /// Method and path, in the form of [`crate::load::Template`].
    pub request: (&'static str, &'static str),
    pub credential: Credential,
    pub keys: Keys,
    pub content_type: &'static str,
    /// Body; `{client}` and `{secret}` are replaced by the identifier and the secret of an OAuth client, as in `against`.
    pub body: &'static str,
    pub connections: &'static [u32],
    /// Statements before each run, in the form of [`crate::stage::Row`]. With them, each request has its own number.
    pub prepare: &'static [&'static str],
    pub against: &'static [Against],
}

/// Credentials of a row.
#[derive(Clone, Copy)]
pub enum Keys {
    /// API keys of 8 Enterprise callers.
    Callers,
    /// API keys of 4,000 callers: each may request its limits 60 times per minute.
    ManyCallers,
    /// Login sessions, one for each request.
    Sessions,
    /// Access tokens, one for each request.
    Tokens,
}

/// What a row is compared with.
#[derive(Clone, Copy)]
pub enum Against {
    /// axum with a `PgPool`, on the same tables.
    Naive,
    /// A response from memory behind the service's layers.
    Static,
    /// GET by id by the service.
    Get,
    /// The same statements by pgbench.
    Pgbench(&'static str),
}

use Against::{Get, Naive, Pgbench, Static};

/// Body of a new pet, as small as those that a batch takes.
pub const NEW_PET: &str = r#"{"name":"Rex","category":{"id":1,"name":"Dogs"},"photoUrls":["https://example.com/rex.jpg"],"tags":[{"id":1,"name":"friendly"},{"id":2,"name":"young"}],"status":"available"}"#;
/// Body that replaces pet `n` and keeps its status and tags, so that the finds keep their matches.
pub const REPLACED_PET: &str = r#"{"id":<n>,"name":"Rex <math.random(1e9)>","category":{"id":1,"name":"Dogs"},"photoUrls":["https://example.com/rex.jpg"],"tags":[{"id":1,"name":"common"},{"id":2,"name":"group-<n%500>"}],"status":"<({'available','pending','sold'})[1+n%3]>"}"#;
/// Path of a page of 20 by status.
pub const PAGE: &str = "/api/v3/pet/findByStatus?status=available&limit=20&cursor=<cursor(n)>";

pub const ALL: &[u32] = &[1, 16, 64, 256];
/// For operations that few clients use at the same time.
pub const FEW: &[u32] = &[1, 64];
/// For operations that cannot sensibly be under load.
pub const ONE: &[u32] = &[1];

pub const JSON: &str = "application/json";
/// A GET with an API key at every number of connections.
pub const GET: Operation = Operation {
    name: "",
    request: ("GET", ""),
    credential: ApiKey,
    keys: Keys::Callers,
    content_type: "",
    body: "",
    connections: ALL,
    prepare: &[],
    against: &[],
};

const UPDATE: Against = Pgbench(
    "update pets
     set version = nextval('pet_versions'), status = (array['available', 'pending', 'sold'])[1 + :n % 3],
         folded_name = 'rex ' || :n::text,
         details = format('{\"category\":{\"id\":1,\"name\":\"Dogs\"},\"name\":\"Rex %s\",\"photoUrls\":[\"https://example.com/rex.jpg\"],'
                          '\"tags\":[{\"id\":1,\"name\":\"common\"},{\"id\":2,\"name\":\"group-%s\"}]}', :n, :n % 500)::json
     where id = :n
     returning version;",
);

/// The best statement for a page by one tag.
macro_rules! page_by_tag {
    ($tag:literal) => {
        Pgbench(concat!(
            "select p.id, p.version, p.status, p.details
             from (select pet_id from pet_tags where tag = '",
            $tag,
            "' and pet_id > :n order by pet_id limit 20) t join pets p on p.id = t.pet_id
             order by t.pet_id;"
        ))
    };
}

const NO_MORE_PETS: &str = "delete from pets where id >= {first}";
const NO_MORE_ORDERS: &str = "delete from orders where pet_id >= {first}";
/// Prepares one placed order for each number.
const PLACED_ORDERS: &[&str] = &[
    NO_MORE_ORDERS,
    NO_MORE_PETS,
    "{pending pets}",
    "insert into orders (id, owner, pet_id, held_pet, quantity, status, complete)
     select i, 0, i, i, 1, 'placed', false from generate_series({first}, {last}) i",
    "vacuum pets",
];

/// Operations on pets, orders and images.
pub const OPERATIONS: &[Operation] = &[
    Operation {
        name: "getPetById",
        request: ("GET", "/api/v3/pet/<n>"),
        against: &[
            Naive,
            Static,
            Pgbench(
                "select id, version, status, details from pets where id = :n;",
            ),
        ],
        ..GET
    },
    Operation {
        name: "findPetsByStatus",
        request: ("GET", PAGE),
        against: &[Pgbench(
            "select id, version, status, details from pets
             where status = 'available' and id > :n order by id limit 20;",
        )],
        ..GET
    },
    Operation {
        name: "listPets",
        request: ("GET", "/api/v3/pet?limit=20&cursor=<cursor(n)>"),
        against: &[Pgbench(
            "select id, version, status, details from pets
             where id > :n order by id limit 20;",
        )],
        ..GET
    },
    Operation {
        name: "listPets/name",
        request: ("GET", "/api/v3/pet?name=pet%20<n>"),
        connections: FEW,
        against: &[Get],
        ..GET
    },
    Operation {
        name: "findPetsByTags/common",
        request: (
            "GET",
            "/api/v3/pet/findByTags?tags=common&limit=20&cursor=<cursor(n)>",
        ),
        against: &[page_by_tag!("common")],
        ..GET
    },
    Operation {
        name: "findPetsByTags/rare",
        request: (
            "GET",
            "/api/v3/pet/findByTags?tags=group-7&limit=20&cursor=<cursor(n)>",
        ),
        against: &[page_by_tag!("group-7")],
        ..GET
    },
    Operation {
        name: "findPetsByTags/absent",
        request: (
            "GET",
            "/api/v3/pet/findByTags?tags=absent&limit=20&cursor=<cursor(n)>",
        ),
        against: &[page_by_tag!("absent")],
        ..GET
    },
    Operation {
        name: "findPetsByTags/two",
        request: (
            "GET",
            "/api/v3/pet/findByTags?tags=common,group-7&limit=20&cursor=<cursor(n)>",
        ),
        against: &[Pgbench(
            "select p.id, p.version, p.status, p.details
             from (select distinct pet_id
                   from ((select pet_id from pet_tags where tag = 'common' and pet_id > :n order by pet_id limit 20)
                         union all
                         (select pet_id from pet_tags where tag = 'group-7' and pet_id > :n order by pet_id limit 20)) u
                   order by pet_id limit 20) t
             join pets p on p.id = t.pet_id
             order by t.pet_id;",
        )],
        ..GET
    },
    Operation {
        name: "addPet",
        request: ("POST", "/api/v3/pet"),
        content_type: JSON,
        body: NEW_PET,
        against: &[Naive],
        ..GET
    },
    Operation {
        name: "updatePet",
        request: ("PUT", "/api/v3/pet"),
        content_type: JSON,
        body: REPLACED_PET,
        against: &[UPDATE],
        ..GET
    },
    Operation {
        name: "patchPet",
        request: ("PATCH", "/api/v3/pet/<n>"),
        content_type: "application/merge-patch+json",
        body: r#"{"name":"Max <math.random(1e9)>"}"#,
        against: &[UPDATE],
        ..GET
    },
    Operation {
        name: "updatePetWithForm",
        request: ("POST", "/api/v3/pet/<n>?name=Bo+<math.random(1e9)>"),
        against: &[UPDATE],
        ..GET
    },
    Operation {
        name: "deletePet",
        request: ("DELETE", "/api/v3/pet/<n>"),
        prepare: &[NO_MORE_ORDERS, NO_MORE_PETS, "{available pets}", "vacuum pets"],
        against: &[Pgbench("delete from pets where id = :n;")],
        ..GET
    },
    Operation {
        name: "placeOrder",
        request: ("POST", "/api/v3/store/order"),
        content_type: JSON,
        body: r#"{"petId":<n>,"quantity":1}"#,
        prepare: &[NO_MORE_ORDERS, NO_MORE_PETS, "{available pets}", "vacuum pets"],
        against: &[Pgbench(
            "begin;
             select id, version, status, details from pets where id = :n for update;
             select exists (select from orders where held_pet = :n);
             update pets set version = nextval('pet_versions'), status = 'pending' where id = :n;
             insert into orders (id, owner, pet_id, held_pet, quantity, status, complete)
             values (nextval('order_ids'), 0, :n, :n, 1, 'placed', false) returning id;
             commit;",
        )],
        ..GET
    },
    Operation {
        name: "deleteOrder",
        request: ("DELETE", "/api/v3/store/order/<n>"),
        prepare: PLACED_ORDERS,
        connections: FEW,
        against: &[Pgbench(
            "begin;
             select id, version, status, details from pets where id = :n for update;
             delete from orders where id = :n;
             update pets set version = nextval('pet_versions'), status = 'available' where id = :n;
             commit;",
        )],
        ..GET
    },
    Operation {
        name: "patchOrder",
        request: ("PATCH", "/api/v3/store/order/<n>"),
        content_type: JSON,
        body: r#"{"status":"approved"}"#,
        prepare: PLACED_ORDERS,
        connections: FEW,
        against: &[Pgbench(
            "begin;
             select id, pet_id, quantity, ship_date, status, complete from orders where id = :n for update;
             update orders set status = 'approved' where id = :n;
             commit;",
        )],
        ..GET
    },
    Operation {
        name: "getOrderById",
        request: ("GET", "/api/v3/store/order/<1+n%1000>"),
        connections: FEW,
        against: &[Pgbench(
            "select id, pet_id, quantity, ship_date, status, complete from orders where id = 1 + :n % 1000;",
        )],
        ..GET
    },
    Operation {
        name: "listOrders",
        request: (
            "GET",
            "/api/v3/store/orders?status=delivered&limit=20&cursor=<cursor(1+n%900)>",
        ),
        connections: FEW,
        against: &[Pgbench(
            "select id, pet_id, quantity, ship_date, status, complete from orders
             where status = 'delivered' and id > 1 + :n % 900 order by id limit 20;",
        )],
        ..GET
    },
    Operation {
        name: "getInventory",
        request: ("GET", "/api/v3/store/inventory"),
        against: &[
            Get,
            Pgbench(
                "select status, sum(pets)::bigint from inventory_changes group by status;",
            ),
        ],
        ..GET
    },
    Operation {
        name: "listImages",
        request: ("GET", "/api/v3/pet/<n>/images"),
        connections: FEW,
        against: &[Pgbench(
            "select id, created_at, sha256, key, media_type, size, width, height
             from images join image_contents using (sha256) where pet_id = :n order by created_at, id;",
        )],
        ..GET
    },
    Operation {
        name: "deleteImage",
        request: (
            "DELETE",
            "/api/v3/pet/<n>/images/<string.format('%032x',n)>",
        ),
        prepare: &[
            NO_MORE_PETS,
            "{available pets}",
            "insert into images (id, pet_id, sha256)
             select decode(lpad(to_hex(i), 32, '0'), 'hex'), i, sha256('bench')
             from generate_series({first}, {last}) i",
        ],
        connections: ONE,
        against: &[Pgbench(
            "delete from images where id = decode(lpad(to_hex(:n::bigint), 32, '0'), 'hex') and pet_id = :n;",
        )],
        ..GET
    },
];
