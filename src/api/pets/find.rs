//! Lists pets, finds them by status and by tags, and suggests tags.

use std::sync::Arc;

use axum::{extract::State, http::StatusCode, response::Response};
use serde::Serialize;

use crate::{
    api::{
        error::Error,
        extract::{Parameters, Query},
        fields::Violations,
        list_parameters::{Window, names, parse_distinct},
        paging::{Find, Lists},
        request_context::RequestContext,
        response,
    },
    db::{
        self, Connection, Cost, Database, Found, Part,
        pets::{
            CreationPosition, FoundByCreation, FoundByName, NamePosition, NameSearch, NewestPets,
            PetListing,
        },
    },
    domain::{
        Invalid,
        id::PetId,
        pet::{Pet, PetName, Status, StoredPet, check_name},
    },
};

/// Default of `limit` of the list of pets.
const DEFAULT_LIMIT: usize = 20;
/// Maximum number of tags that are suggested.
const MAX_SUGGESTED: i64 = 20;

/// Page of pets.
#[derive(utoipa::ToSchema)]
#[schema(max_items = 1_000)]
#[expect(dead_code, reason = "has a maximum; the pets are written one by one")]
struct PetPage(Vec<Pet>);

/// List pets
///
/// Returns a page of pets in the order of their identifiers, with the newest first or, with `name`, of those whose names begin with it, in the order of
/// the names. Upper and lower case are the same. A pet matches if all parameters match. While more remain, `Link` has the URL of the
/// next page. With `name` and `tag`, a page may end early, with fewer matches than `limit` and a `Link`. With `id`, all matches are
/// returned at once.
#[utoipa::path(
    get, path = "/pet", operation_id = "listPets", tag = "pet", security(("bearer" = ["read:pets"])),
    params(
        ("id" = inline(Option<Vec<PetNumber>>), Query, description = "Identifiers, repeated or separated by commas; those of no pet are ignored. Only with `status` and `tag`.", min_items = 1, max_items = 100),
        ("name" = Option<String>, Query, description = "Beginning of the name.", min_length = 1, max_length = 255, pattern = r"^[^\x00]*$", example = "Re"),
        ("status" = Option<Vec<Status>>, Query, description = "Statuses, repeated or separated by commas; a pet with any of them matches. Without this parameter, all pets match.", min_items = 1, max_items = 100, example = json!(["available"])),
        ("tag" = inline(Option<Vec<TagName>>), Query, description = "Tag names, repeated or separated by commas; a pet with any of them matches. A comma within a name is encoded: `%2C`.", min_items = 1, max_items = 100, example = json!(["friendly"])),
        ("sort" = inline(Option<PetOrder>), Query, description = "Order: `id`, which is the default, `-id` for the largest identifier first, or `-created` for the newest first, whatever their identifiers. Only without `name`."),
        ("limit" = Option<i32>, Query, description = "Maximum number of matches in the response; 20 if absent.", minimum = 1, maximum = 1_000, example = 20),
        ("cursor" = Option<String>, Query, description = "Position of the page, from `Link` of the previous page.", min_length = 2, max_length = 1_400, pattern = "^[A-Za-z0-9_-]+$"),
    ),
    responses((status = 200, description = "The pets; `[]` if none match.", body = PetPage, headers(("Link")))),
)]
pub(super) async fn list(lists: Lists, Query(query): Query) -> Result<Response, Error> {
    let mut violations = Violations::default();
    let name = query.optional(&mut violations, "name", str::parse::<PetName>);
    let mut statuses = parse_distinct(&mut violations, &query, "status");
    if statuses.len() == Status::ALL.len() {
        statuses.clear();
    }
    let tags = tag_names(&mut violations, &query, "tag");
    let order = query.optional(&mut violations, "sort", |sort| match sort {
        "id" => Ok(PetOrder::Ascending),
        "-id" => Ok(PetOrder::Descending),
        "-created" => Ok(PetOrder::NewestFirst),
        _ => Err(Invalid::because("must be id, -id or -created")),
    });
    if query.has_list("id") {
        let ids: Vec<PetId> = parse_distinct(&mut violations, &query, "id");
        for name in ["name", "sort", "limit", "cursor"] {
            if query.all(name).next().is_some() {
                violations.add(name, "must be absent where there is an id");
            }
        }
        violations.finish(Some(()))?;
        let window = Window {
            limit: Some(ids.len()),
            after: None,
        };
        let filter = Filter::Listing(PetListing {
            ids,
            statuses,
            tags,
            is_descending: false,
        });
        return lists.respond(("/pet", &[]), &query, window, filter).await;
    }
    let is_by_name = query.all("name").next().is_some();
    if order.is_some() && is_by_name {
        violations.add("sort", "must be absent where there is a name");
    }
    let next = ("/pet", &["name", "status", "tag", "sort"][..]);
    if order == Some(PetOrder::NewestFirst) {
        let window = Window::read(violations, &query)?.or_limit(DEFAULT_LIMIT);
        let newest = NewestPets {
            statuses: any_if_none(statuses),
            tags,
        };
        return lists.respond(next, &query, window, newest).await;
    }
    if !is_by_name {
        let window = Window::read(violations, &query)?.or_limit(DEFAULT_LIMIT);
        let filter = Filter::Listing(PetListing {
            ids: Vec::new(),
            statuses,
            tags,
            is_descending: order == Some(PetOrder::Descending),
        });
        return lists.respond(next, &query, window, filter).await;
    }
    // Without a valid name, there are violations.
    let window = Window::read(violations, &query)?.or_limit(DEFAULT_LIMIT);
    let prefix = name.map(|name| name.as_str().to_owned());
    let search = NameSearch {
        prefix: prefix.unwrap_or_default(),
        statuses: any_if_none(statuses),
        tags,
    };
    lists.respond(next, &query, window, search).await
}

fn any_if_none(statuses: Vec<Status>) -> Vec<Status> {
    if statuses.is_empty() {
        return Status::ALL.to_vec();
    }
    statuses
}

/// Suggest tags
///
/// Returns up to 20 names of tags that are in use and begin with the prefix, in the order of the names. Upper and lower case are the
/// same. A name that is new may come seconds later, and minutes later in a store with many thousand names.
#[utoipa::path(
    get, path = "/pet/tags", operation_id = "suggestTags", tag = "pet", security(("bearer" = ["read:pets"])),
    params(("prefix" = String, Query, description = "Beginning of the name.", min_length = 1, max_length = 255, pattern = r"^[^\x00]*$", example = "fr")),
    responses((status = 200, description = "The names; `[]` if there are none.", body = inline(SuggestedTags))),
)]
pub(super) async fn tags(
    State(database): State<Database>,
    context: RequestContext,
    Query(query): Query,
) -> Result<Response, Error> {
    let mut violations = Violations::default();
    let prefix = query.field("prefix", |prefix| match prefix {
        "" => Err(Invalid::because("must not be empty")),
        prefix => check_name(prefix).map(|()| prefix.to_owned()),
    });
    let prefix = violations.required("prefix", prefix);
    let prefix = violations.finish(prefix)?;
    // In turns: clients send one at each key, and drop the one before.
    let suggest = async |connection: &mut Connection| {
        db::pets::suggest_tags(connection, &prefix, MAX_SUGGESTED).await
    };
    let caller = context.caller_key();
    let names = database.read_large(Cost::Rows, caller, suggest).await?;
    response::json(StatusCode::OK, &SuggestedTags(names))
}

/// Find pets by status
///
/// Returns the matches in the order of their identifiers: all of them or, with `limit`, one page. While more remain,
/// `Link` has the URL of the next page.
#[utoipa::path(
    get, path = "/pet/findByStatus", operation_id = "findPetsByStatus", tag = "pet",
    security(("bearer" = ["read:pets"])),
    params(
        ("status" = Vec<Status>, Query, description = "Statuses, repeated or separated by commas; a pet with any of them matches.", min_items = 1, max_items = 100, example = json!(["available"])),
        ("limit", Query), ("cursor", Query),
    ),
    responses((status = 200, description = "The pets; `[]` if none match.", body = Vec<Pet>, headers(("Link")))),
)]
pub(super) async fn by_status(lists: Lists, Query(query): Query) -> Result<Response, Error> {
    let mut violations = Violations::default();
    if !query.has_list("status") {
        violations.add("status", "is required");
    }
    let statuses = parse_distinct(&mut violations, &query, "status");
    let window = Window::read(violations, &query)?;
    let next = ("/pet/findByStatus", &["status"][..]);
    let filter = Filter::Status(statuses);
    lists.respond(next, &query, window, filter).await
}

/// Find pets by tags
///
/// Returns the matches in the order of their identifiers: all of them or, with `limit`, one page. While more remain,
/// `Link` has the URL of the next page. With `match=all`, a page may end early, with fewer matches than `limit` and a
/// `Link`.
#[utoipa::path(
    get, path = "/pet/findByTags", operation_id = "findPetsByTags", tag = "pet", security(("bearer" = ["read:pets"])),
    params(
        ("tags" = inline(Vec<TagName>), Query, description = "Tag names, repeated or separated by commas. A comma within a name is encoded: `%2C`.", min_items = 1, max_items = 100, example = json!(["friendly"])),
        ("match" = inline(Option<TagMatchParameter>), Query, description = "`any` matches pets with at least one of the tags, `all` matches pets with all of them."),
        ("limit", Query), ("cursor", Query),
    ),
    responses((status = 200, description = "The pets, without duplicates; `[]` if none match.", body = Vec<Pet>, headers(("Link")))),
)]
pub(super) async fn by_tags(lists: Lists, Query(query): Query) -> Result<Response, Error> {
    let mut violations = Violations::default();
    if !query.has_list("tags") {
        violations.add("tags", "is required");
    }
    let names = tag_names(&mut violations, &query, "tags");
    let is_all = query.optional(&mut violations, "match", |value| match value {
        "any" => Ok(false),
        "all" => Ok(true),
        _ => Err(Invalid::because("must be any or all")),
    });
    let window = Window::read(violations, &query)?;
    let next = ("/pet/findByTags", &["tags", "match"][..]);
    let filter = if is_all.unwrap_or_default() && names.len() > 1 {
        Filter::AllTags(names)
    } else {
        Filter::AnyTag(names.into())
    };
    lists.respond(next, &query, window, filter).await
}

/// Reads the distinct names of tags in a list parameter.
fn tag_names(
    violations: &mut Violations,
    query: &Parameters,
    parameter: &'static str,
) -> Vec<String> {
    let mut names = names(violations, query, parameter);
    names.sort_unstable();
    names.dedup();
    // A name that no tag can have is reported, rather than matched with nothing.
    if let Some(reason) = names.iter().find_map(|name| check_name(name).err()) {
        violations.add(parameter, reason);
    }
    names
}

/// Order of the list of pets.
#[derive(PartialEq, Eq, utoipa::ToSchema)]
enum PetOrder {
    /// By identifier.
    #[schema(rename = "id")]
    Ascending,
    /// The largest identifier first.
    #[schema(rename = "-id")]
    Descending,
    /// The newest first.
    #[schema(rename = "-created")]
    NewestFirst,
}

/// Names of tags.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(max_items = 20, value_type = Vec<TagName>, example = json!(["friendly", "Frisky"]))]
struct SuggestedTags(Vec<String>);

/// Identifier of a pet, as text: Swagger UI 5.35 warns of the format of integers in a list, without which clients in Java have 32 bits. The
/// example is that of an element, since one of the list would be sent together with those of the parameters that exclude it.
#[derive(utoipa::ToSchema)]
#[schema(
    value_type = String, min_length = 1, max_length = 16,
    pattern = "^([1-9][0-9]{0,14}|[1-8][0-9]{15}|900[0-6][0-9]{12})$", example = "1"
)]
#[expect(dead_code, reason = "describes the parameter, which is read as text")]
struct PetNumber(String);

/// Name of a tag.
#[derive(utoipa::ToSchema)]
#[schema(value_type = String, min_length = 1, max_length = 255, pattern = r"^[^\x00]*$")]
#[expect(dead_code, reason = "describes the parameter, which is read as text")]
struct TagName(String);

/// Matching mode of `findByTags`.
#[derive(utoipa::ToSchema)]
#[schema(as = TagMatch, rename_all = "lowercase", default = "any")]
#[expect(dead_code, reason = "describes the parameter, which is read as text")]
enum TagMatchParameter {
    /// Any of the tags.
    Any,
    /// All of the tags.
    All,
}

enum Filter {
    Listing(PetListing),
    Status(Vec<Status>),
    AnyTag(Arc<[String]>),
    AllTags(Vec<String>),
}

impl Find for Filter {
    type Item = StoredPet;
    type Id = PetId;

    async fn find(&self, database: &Database, part: Part) -> Result<Found<StoredPet>, db::Error> {
        match self {
            Self::Listing(listing) => db::pets::list(database, listing, part).await,
            Self::Status(statuses) => db::pets::find_by_status(database, statuses, part).await,
            Self::AnyTag(names) => {
                db::pets::find_by_any_tag(database, Arc::clone(names), part).await
            }
            Self::AllTags(names) => db::pets::find_by_all_tags(database, names, part).await,
        }
    }

    fn id(pet: &StoredPet) -> PetId {
        pet.id
    }

    fn json(pet: &StoredPet) -> &[u8] {
        &pet.json
    }
}

impl Find for NewestPets {
    type Item = (CreationPosition, StoredPet);
    type Id = CreationPosition;

    async fn find(
        &self,
        database: &Database,
        part: Part<CreationPosition>,
    ) -> Result<FoundByCreation, db::Error> {
        db::pets::list_newest(database, self, part).await
    }

    fn id((position, _): &Self::Item) -> CreationPosition {
        *position
    }

    fn json((_, pet): &Self::Item) -> &[u8] {
        &pet.json
    }
}

impl Find for NameSearch {
    type Item = (NamePosition, StoredPet);
    type Id = NamePosition;

    async fn find(
        &self,
        database: &Database,
        part: Part<NamePosition>,
    ) -> Result<FoundByName, db::Error> {
        db::pets::find_by_name(database, self, part).await
    }

    fn id((position, _): &Self::Item) -> NamePosition {
        position.clone()
    }

    fn json((_, pet): &Self::Item) -> &[u8] {
        &pet.json
    }
}
