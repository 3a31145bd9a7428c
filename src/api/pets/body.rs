//! JSON representation of pets.

use serde::{
    Deserialize,
    de::{MapAccess, value::MapAccessDeserializer},
};
use utoipa::ToSchema;

use crate::{
    api::{
        error::Error,
        fields::{ChosenId, Field, Input, List, Object, Violations, integers},
    },
    domain::{
        Invalid, Text,
        id::{PetId, check_label_id},
        pet::{
            Category, CategoryPatch, Change, MAX_ITEMS, NewPet, PetDetails, PetName, PetPatch,
            PhotoUrl, Status, Tag,
        },
    },
};

/// Pet to add, or to replace another with, of at most 16,384 bytes as compact JSON with an identifier of 16 digits. Unknown fields are
/// ignored.
#[derive(Debug, Deserialize, ToSchema)]
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
    id: Field<ChosenId<PetId>>,
    /// Category of the pet.
    #[schema(value_type = Category, required = false, nullable)]
    category: Field<Category>,
    /// Name of the pet.
    #[schema(value_type = String, required = true, min_length = 1, max_length = 255, pattern = r"^[^\x00]*$")]
    name: Field<PetName>,
    /// URLs of its pictures: absolute http or https URLs, or relative references.
    #[schema(value_type = Vec<PhotoUrl>, inline, required = false, nullable, max_items = 100)]
    photo_urls: Field<List<PhotoUrl, MAX_ITEMS>>,
    /// Tags that the pet can be found by.
    #[schema(value_type = Vec<Tag>, required = false, nullable, max_items = 100)]
    tags: Field<List<Tag, MAX_ITEMS>>,
    /// Status of the pet in the store; `available` if absent.
    #[schema(value_type = Status, required = false, nullable)]
    status: Field<Status>,
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
    #[serde(default)]
    #[schema(ignore)]
    id: Field<PetId>,
    /// Category of the pet.
    #[serde(default)]
    #[schema(value_type = Option<Category>)]
    category: Field<CategoryPatch>,
    /// Name of the pet.
    #[serde(default)]
    #[schema(value_type = Option<String>, nullable = false, min_length = 1, max_length = 255, pattern = r"^[^\x00]*$")]
    name: Field<PetName>,
    /// URLs of its pictures: absolute http or https URLs, or relative references.
    #[serde(default)]
    #[schema(value_type = Option<Vec<PhotoUrl>>, inline, max_items = 100)]
    photo_urls: Field<List<PhotoUrl, MAX_ITEMS>>,
    /// Tags that the pet can be found by.
    #[serde(default)]
    #[schema(value_type = Option<Vec<Tag>>, max_items = 100)]
    tags: Field<List<Tag, MAX_ITEMS>>,
    /// Status of the pet in the store.
    #[serde(default)]
    #[schema(value_type = Option<Status>)]
    status: Field<Status>,
}

/// Category or tag in a request.
#[derive(Deserialize)]
struct LabelBody {
    id: Field<LabelId>,
    name: Field<Text>,
}

/// Changes to a category, merged member by member.
#[derive(Deserialize)]
struct CategoryPatchBody {
    #[serde(default)]
    id: Field<LabelId>,
    #[serde(default)]
    name: Field<Text>,
}

/// Identifier of a category or tag.
struct LabelId(i64);

impl Object for NewPetBody {}
impl Object for PatchBody {}

integers! {
    LabelId: |id| check_label_id(id).map(Self);
}

/// Implements [`Input`] for parts of a pet that are objects, by a function that reads the members.
macro_rules! parts {
    ($($type:ty: $read:expr;)+) => {$(
        impl Input for $type {
            fn wrong_type() -> Invalid {
                Invalid::because("must be an object")
            }

            fn from_members<'de, A: MapAccess<'de>>(members: A) -> Result<Field<Self>, A::Error> {
                let members = Deserialize::deserialize(MapAccessDeserializer::new(members))?;
                let mut violations = Violations::default();
                let part = $read(&mut violations, members);
                Ok(violations.field(Some(part)))
            }
        }
    )+};
}

parts! {
    Category: |violations: &mut Violations, body: LabelBody| Self {
        id: violations.optional("id", body.id).map(|LabelId(id)| id),
        name: violations.optional("name", body.name),
    };
    Tag: |violations: &mut Violations, body: LabelBody| Self {
        id: violations.optional("id", body.id).map(|LabelId(id)| id),
        name: violations.optional("name", body.name),
    };
    CategoryPatch: |violations: &mut Violations, body: CategoryPatchBody| Self {
        id: violations.removable("id", body.id).map(|id| id.map(|LabelId(id)| id)),
        name: violations.removable("name", body.name),
    };
}

impl NewPetBody {
    /// Checks the body of `POST /pet`.
    pub fn into_new_pet(mut self) -> Result<NewPet, Error> {
        let mut violations = Violations::default();
        let id = violations.optional("id", std::mem::take(&mut self.id));
        let id = id.and_then(|ChosenId(id)| id);
        let details = self.into_details(&mut violations);
        violations.finish(details.map(|details| NewPet { id, details }))
    }

    /// Checks the body of `PUT /pet`, which has the identifier of the pet to replace.
    pub fn into_replacement(mut self) -> Result<(PetId, Change), Error> {
        let mut violations = Violations::default();
        let has_status = !matches!(self.status, Field::Null);
        let id = violations.required("id", std::mem::take(&mut self.id));
        let id =
            id.and_then(|ChosenId(id)| violations.check("id", id.ok_or_else(PetId::wrong_type)));
        let details = self.into_details(&mut violations);
        let change = details.map(|details| Change::Replace {
            details,
            has_status,
        });
        violations.finish(id.zip(change))
    }

    fn into_details(self, violations: &mut Violations) -> Option<PetDetails> {
        let category = violations.optional("category", self.category);
        let name = violations.required("name", self.name);
        let photo_urls = violations.optional("photoUrls", self.photo_urls);
        let tags = violations.optional("tags", self.tags);
        let status = violations.optional("status", self.status);
        let details = PetDetails {
            category,
            name: name?,
            photo_urls: photo_urls.unwrap_or_default().0,
            tags: tags.unwrap_or_default().0,
            status: status.unwrap_or_default(),
        };
        violations.check("body", details.check_size());
        Some(details)
    }
}

impl PatchBody {
    /// Checks the body of `PATCH /pet/{petId}`.
    pub fn into_patch(self, id: PetId) -> Result<PetPatch, Error> {
        let mut violations = Violations::default();
        if violations
            .patched("id", self.id)
            .is_some_and(|given| given != id)
        {
            violations.add("id", "must be the id in the path: it cannot be changed");
        }
        let category = violations.removable("category", self.category);
        let name = violations.patched("name", self.name);
        let photo_urls = violations.removable("photoUrls", self.photo_urls);
        let tags = violations.removable("tags", self.tags);
        let status = violations.removable("status", self.status);
        violations.finish(Some(PetPatch {
            name,
            category,
            photo_urls: photo_urls.map(|urls| urls.unwrap_or_default().0),
            tags: tags.map(|tags| tags.unwrap_or_default().0),
            status: status.map(Option::unwrap_or_default),
        }))
    }
}
