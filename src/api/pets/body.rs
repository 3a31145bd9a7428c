//! JSON representation of pets.

use serde::Deserialize;
use utoipa::ToSchema;

use crate::{
    api::{
        error::Error,
        fields::{Array, Field, FieldType, Member, Violations, present},
    },
    domain::{
        Invalid, Text,
        id::{PetId, check_label_id},
        pet::{
            Category, CategoryPatch, Change, MAX_ITEMS, NewPet, PetDetails, PetName, PetPatch,
            PhotoUrl, Status, Tag, check_count,
        },
    },
};

/// Pet to add, or to replace another with, of at most 16,384 bytes as compact JSON with an identifier of 16 digits. Unknown fields are
/// ignored.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = PetInput, example = json!({
    "category": {"id": 1, "name": "Dogs"},
    "name": "Rex",
    "photoUrls": ["https://example.com/rex.jpg"],
    "tags": [{"id": 1, "name": "friendly"}],
    "status": "available"
}))]
pub struct NewPetBody {
    /// Identifier; if absent or 0, the server assigns one.
    #[schema(value_type = i64, required = false, nullable, minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    id: Field<i64>,
    /// Category of the pet.
    #[schema(value_type = Category, required = false, nullable)]
    category: Field<LabelBody>,
    /// Name of the pet.
    #[schema(value_type = String, required = true, min_length = 1, max_length = 255, pattern = r"^[^\x00]*$")]
    name: Field<String>,
    /// URLs of its pictures: absolute http or https URLs, or relative references.
    #[schema(value_type = Vec<PhotoUrl>, inline, required = false, nullable, max_items = 100)]
    photo_urls: Field<Array<String, MAX_ITEMS>>,
    /// Tags that the pet can be found by.
    #[schema(value_type = Vec<Tag>, required = false, nullable, max_items = 100)]
    tags: Field<Array<LabelBody, MAX_ITEMS>>,
    /// Status of the pet in the store; `available` if absent.
    #[schema(value_type = Status, required = false, nullable)]
    status: Field<String>,
}

/// New state of a pet.
#[derive(ToSchema)]
#[schema(as = PetReplacement, example = json!({
    "id": 1,
    "name": "Rex",
    "photoUrls": ["https://example.com/rex.jpg"],
    "status": "sold"
}))]
#[expect(dead_code, reason = "has an id, but is read as NewPetBody")]
pub struct ReplacementBody {
    /// Identifier of the pet to replace.
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    id: i64,
    #[serde(flatten)]
    pet: NewPetBody,
}

/// Changes to a pet, as a JSON Merge Patch: `null` removes a field. The pet has at most 16,384 bytes as JSON afterwards.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = PetPatch, example = json!({"status": "sold"}))]
pub struct PatchBody {
    #[serde(default, deserialize_with = "present")]
    #[schema(ignore)]
    id: Member<i64>,
    /// Category of the pet.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<Category>)]
    category: Member<CategoryPatchBody>,
    /// Name of the pet.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<String>, nullable = false, min_length = 1, max_length = 255, pattern = r"^[^\x00]*$")]
    name: Member<String>,
    /// URLs of its pictures: absolute http or https URLs, or relative references.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<Vec<PhotoUrl>>, inline, max_items = 100)]
    photo_urls: Member<Array<String, MAX_ITEMS>>,
    /// Tags that the pet can be found by.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<Vec<Tag>>, max_items = 100)]
    tags: Member<Array<LabelBody, MAX_ITEMS>>,
    /// Status of the pet in the store.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<Status>)]
    status: Member<String>,
}

/// Changes to a category, merged member by member.
#[derive(Debug, Deserialize)]
struct CategoryPatchBody {
    #[serde(default, deserialize_with = "present")]
    id: Member<i64>,
    #[serde(default, deserialize_with = "present")]
    name: Member<String>,
}

/// Category or tag in a request.
#[derive(Debug, Default, Deserialize)]
pub struct LabelBody {
    id: Field<i64>,
    name: Field<String>,
}

impl FieldType for CategoryPatchBody {}
impl FieldType for LabelBody {}
impl FieldType for NewPetBody {}
impl FieldType for PatchBody {}

impl NewPetBody {
    /// Checks the body of `POST /pet`.
    pub fn into_new_pet(mut self) -> Result<NewPet, Error> {
        let mut violations = Violations::default();
        // Petstore clients send 0 for no identifier.
        let id = match std::mem::take(&mut self.id) {
            Field::Value(0) => None,
            id => violations.optional("id", id, PetId::new),
        };
        let details = self.into_details(&mut violations);
        violations.finish(details.map(|details| NewPet { id, details }))
    }

    /// Checks the body of `PUT /pet`, which has the identifier of the pet to replace.
    pub fn into_replacement(mut self) -> Result<(PetId, Change), Error> {
        let mut violations = Violations::default();
        let has_status = !matches!(self.status, Field::Absent);
        let id = violations.required("id", std::mem::take(&mut self.id), PetId::new);
        let details = self.into_details(&mut violations);
        let change = details.map(|details| Change::Replace {
            details,
            has_status,
        });
        violations.finish(id.zip(change))
    }

    fn into_details(self, violations: &mut Violations) -> Option<PetDetails> {
        let category = match self.category {
            Field::Absent => None,
            category => {
                label(violations, "category", category).map(|(id, name)| Category { id, name })
            }
        };
        let name = violations.required("name", self.name, PetName::new);
        let photo_urls = photo_urls(violations, self.photo_urls);
        let tags = tags(violations, self.tags);
        let status = violations.optional("status", self.status, |status| status.parse());
        let details = PetDetails {
            category,
            name: name?,
            photo_urls,
            tags,
            status: status.unwrap_or_default(),
        };
        if let Err(reason) = details.check_size() {
            violations.add("body", reason);
        }
        Some(details)
    }
}

impl PatchBody {
    /// Checks the body of `PATCH /pet/{petId}`.
    pub fn into_patch(self, id: PetId) -> Result<PetPatch, Error> {
        const OTHER_ID: Invalid =
            Invalid::because("must be the id in the path: it cannot be changed");
        let mut violations = Violations::default();
        if let Some(given) = self.id {
            violations.required("id", given, |given| {
                (PetId::new(given)? == id).then_some(()).ok_or(OTHER_ID)
            });
        }
        let category = self.category.map(|category| {
            let CategoryPatchBody { id, name } = violations.optional("category", category, Ok)?;
            Some(CategoryPatch {
                id: id.map(|id| violations.optional("category.id", id, check_label_id)),
                name: name.map(|name| violations.optional("category.name", name, Text::new)),
            })
        });
        let name = self.name;
        let name = name.and_then(|name| violations.required("name", name, PetName::new));
        let photo_urls = self
            .photo_urls
            .map(|urls| photo_urls(&mut violations, urls));
        let tags = self.tags.map(|given| tags(&mut violations, given));
        let status = self.status.map(|status| {
            let status = violations.optional("status", status, |status| status.parse());
            status.unwrap_or_default()
        });
        violations.finish(Some(PetPatch {
            name,
            category,
            photo_urls,
            tags,
            status,
        }))
    }
}

fn photo_urls(violations: &mut Violations, urls: Field<Array<String, MAX_ITEMS>>) -> Vec<PhotoUrl> {
    violations.array("photoUrls", urls, check_count, |violations, at, url| {
        violations.required(at, url, PhotoUrl::new)
    })
}

fn tags(violations: &mut Violations, tags: Field<Array<LabelBody, MAX_ITEMS>>) -> Vec<Tag> {
    violations.array("tags", tags, check_count, |violations, at, tag| {
        label(violations, &at, tag).map(|(id, name)| Tag { id, name })
    })
}

/// Reads the members of a category or tag.
fn label(
    violations: &mut Violations,
    at: &str,
    label: Field<LabelBody>,
) -> Option<(Option<i64>, Option<Text>)> {
    let LabelBody { id, name } = violations.required(at, label, Ok)?;
    Some((
        violations.optional(format_args!("{at}.id"), id, check_label_id),
        violations.optional(format_args!("{at}.name"), name, Text::new),
    ))
}
