//! Pets: the fields of Petstore's `Pet` and their rules.
//!
//! Invariants:
//! - Lengths are in characters (Unicode scalar values).
//! - A change by a client leaves a pet with at most [`MAX_SIZE`] bytes as JSON. One that was stored before there was this bound may
//!   be larger, and one whose status an order has changed, by a few.
//! - No value is rewritten: `category`, `tags` and `photoUrls` are returned exactly as they were sent.

use std::io::Write as _;

use bytes::Bytes;
use icu_properties::{
    CodePointSetData, CodePointSetDataBorrowed, props::DefaultIgnorableCodePoint,
};
use serde::{Deserialize, Serialize};
use unicode_normalization::UnicodeNormalization as _;
use url::Url;
use utoipa::ToSchema;

use super::{
    Invalid, MAX_TEXT, Text,
    change::{Values, changed},
    check_text,
    id::PetId,
};

/// Maximum number of characters of the name of a pet, category or tag.
pub const MAX_NAME: usize = MAX_TEXT;
/// Maximum number of characters of a photo URL.
pub const MAX_PHOTO_URL: usize = 2_048;
/// Maximum number of photo URLs, and of tags, of a pet.
pub const MAX_ITEMS: usize = 100;
/// Maximum size of a pet in bytes, as compact JSON with an identifier of 16 digits. The kernel takes so many bytes of a response
/// at once.
pub const MAX_SIZE: usize = 16 << 10;
/// Size in bytes of what [`MAX_SIZE`] counts beside the stored JSON and the status: the longest identifier, and names.
pub const SIZE_WITHOUT_DETAILS: usize = r#""id":9007199254740991,,"status":"""#.len();

texts! {
    /// Name of a pet: 1–[`MAX_NAME`] characters, of which one is visible. It is read from stored JSON without validation.
    #[derive(Deserialize)]
    PetName: check_pet_name;

    /// Absolute `http` or `https` URL, or relative reference (RFC 3986 §4.2), of 1–[`MAX_PHOTO_URL`] characters, exactly
    /// as it was sent. Never fetched by the service. It is read from stored JSON without validation.
    #[derive(Deserialize, ToSchema)]
    #[schema(description = "An absolute http or https URL, or a relative reference.", value_type = String, format = "iri-reference", min_length = 1, max_length = 2_048, pattern = r#"^([Hh][Tt][Tt][Pp][Ss]?:[^\x00-\x20<>"{}|\\^`]+|[^\x00-\x20<>"{}|\\^`:]+|[^\x00-\x20<>"{}|\\^`:]*[/?#][^\x00-\x20<>"{}|\\^`]*)$"#)]
    PhotoUrl: check_photo_url;
}

fn check_pet_name(name: &str) -> Result<(), Invalid> {
    if name.is_empty() {
        return Err(Invalid::because("must not be empty"));
    }
    check_name(name)?;
    if !name.chars().any(is_visible) {
        return Err(Invalid::because("must have a visible character"));
    }
    Ok(())
}

/// Returns false for white space, control characters, and characters that are not shown (Default_Ignorable_Code_Point of Unicode).
fn is_visible(character: char) -> bool {
    const IGNORABLE: CodePointSetDataBorrowed<'static> =
        CodePointSetData::new::<DefaultIgnorableCodePoint>();
    !(character.is_whitespace() || character.is_control() || IGNORABLE.contains(character))
}

/// Returns the name of a pet, or the beginning of one, in the form in which names are compared: without case (as of
/// usernames), in NFC, cut to [`MAX_NAME`] characters. Each character is folded by itself, so that the form of a beginning is
/// the beginning of the form. Of the letters of Turkish, İ becomes i, and ı stays.
pub fn fold_name(name: &str) -> String {
    let mut folded = String::with_capacity(name.len());
    for character in name.nfc() {
        match character {
            'İ' => folded.push('i'),
            'ı' => folded.push('ı'),
            // The lower case of İ where the language is not known.
            '\u{307}' if folded.ends_with('i') => {}
            _ => {
                let upper = character.to_lowercase().flat_map(char::to_uppercase);
                folded.extend(upper.flat_map(char::to_lowercase));
            }
        }
    }
    folded.nfc().take(MAX_NAME).collect()
}

/// Checks the name of a pet, category or tag: at most [`MAX_NAME`] characters, and no NUL.
pub fn check_name(name: &str) -> Result<(), Invalid> {
    check_text(name, MAX_NAME)
}

fn check_photo_url(text: &str) -> Result<(), Invalid> {
    const NOT_A_URL: Invalid =
        Invalid::because("must be an http or https URL or a relative reference");
    if text.is_empty() {
        return Err(Invalid::because("must not be empty"));
    }
    check_text(text, MAX_PHOTO_URL)?;
    // RFC 3986 §2 excludes these characters, but the URL Standard's parser silently repairs them. Browsers read `\`
    // as `/`, which could turn a relative reference into one with another host.
    if text.contains(|c: char| c.is_control() || c.is_whitespace() || r#"<>"{}|\^`"#.contains(c)) {
        return Err(NOT_A_URL);
    }
    // What is before a colon there is a scheme, or a mistake (RFC 3986 §4.2).
    let first_segment = text.split(['/', '?', '#']).next().unwrap_or(text);
    match Url::parse(text) {
        Ok(url) if matches!(url.scheme(), "http" | "https") => Ok(()),
        Err(url::ParseError::RelativeUrlWithoutBase) if !first_segment.contains(':') => Ok(()),
        Ok(_) | Err(_) => Err(NOT_A_URL),
    }
}

/// Status of a pet in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ToSchema)]
#[schema(as = PetStatus, rename_all = "lowercase", example = "available")]
pub enum Status {
    /// For sale; the default.
    #[default]
    Available,
    /// Ordered or reserved, not handed over yet.
    Pending,
    /// Handed over.
    Sold,
}

impl_names!(
    Status,
    Available = "available",
    Pending = "pending",
    Sold = "sold",
);

/// Category of pets. A `null` member means the same as an absent one; responses omit it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"id": 1, "name": "Dogs"}))]
pub struct Category {
    /// Identifier that the client chooses.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = -9_007_199_254_740_991_i64, maximum = 9_007_199_254_740_991_i64)]
    pub id: Option<i64>,
    /// Name of the category.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, max_length = 255, pattern = r"^[^\x00]*$")]
    pub name: Option<Text>,
}

/// Tag that pets can be found by. A `null` member means the same as an absent one; responses omit it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"id": 1, "name": "friendly"}))]
pub struct Tag {
    /// Identifier that the client chooses.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = -9_007_199_254_740_991_i64, maximum = 9_007_199_254_740_991_i64)]
    pub id: Option<i64>,
    /// Name of the tag.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, max_length = 255, pattern = r"^[^\x00]*$")]
    pub name: Option<Text>,
}

/// Fields of a pet, without its identifier. As JSON, they are without the status, too: so they are stored, and so [`StoredPet::new`] takes
/// them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PetDetails {
    /// Category of the pet.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub category: Option<Category>,
    /// Name of the pet.
    #[schema(value_type = String, min_length = 1, max_length = 255, pattern = r"^[^\x00]*$")]
    pub name: PetName,
    /// URLs of its pictures: absolute http or https URLs, or relative references.
    #[schema(inline, max_items = 100)]
    pub photo_urls: Vec<PhotoUrl>,
    /// Tags that the pet can be found by.
    #[schema(max_items = 100)]
    pub tags: Vec<Tag>,
    /// Status of the pet in the store, which orders change, too.
    #[serde(skip)]
    pub status: Status,
}

impl PetDetails {
    /// Creates the fields of an available pet that has only a name.
    pub const fn new(name: PetName) -> Self {
        Self {
            name,
            category: None,
            photo_urls: Vec::new(),
            tags: Vec::new(),
            status: Status::Available,
        }
    }

    /// Returns the size in bytes of the fields that can be large.
    pub fn text_size(&self) -> usize {
        let tags = self.tags.iter().filter_map(|tag| tag.name.as_ref());
        text_size(&self.photo_urls) + tags.map(|name| name.as_str().len()).sum::<usize>()
    }

    /// Returns the fields but the status as compact JSON.
    pub fn to_json(&self) -> String {
        // It cannot fail: all keys are texts.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads the fields of a pet with this status from the JSON of the others.
    pub fn from_json(json: &[u8], status: Status) -> serde_json::Result<Self> {
        let details = serde_json::from_slice(json)?;
        Ok(Self { status, ..details })
    }

    /// Checks that the pet has at most [`MAX_SIZE`] bytes.
    pub fn check_size(&self) -> Result<(), Invalid> {
        let size = SIZE_WITHOUT_DETAILS + self.to_json().len() + self.status.as_str().len();
        if size > MAX_SIZE {
            let reason = format!("must have at most {MAX_SIZE} bytes as JSON");
            return Err(Invalid(reason.into()));
        }
        Ok(())
    }
}

/// Values of the fields of a pet that differ before and after a change. As JSON, they are `[old, new]` by field.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PetValues<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    category: Option<Values<&'a Category>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<Values<&'a PetName>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    photo_urls: Option<Values<&'a [PhotoUrl]>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tags: Option<Values<&'a [Tag]>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Values<Status>>,
}

impl<'a> PetValues<'a> {
    /// Compares a pet before a change, `None` if it is new, and after it.
    pub fn new(old: Option<&'a PetDetails>, new: &'a PetDetails) -> Self {
        let category = old.and_then(|old| old.category.as_ref());
        Self {
            category: changed(category, new.category.as_ref()),
            name: changed(old.map(|old| &old.name), Some(&new.name)),
            photo_urls: changed(old.map(|old| &*old.photo_urls), Some(&*new.photo_urls)),
            tags: changed(old.map(|old| &*old.tags), Some(&*new.tags)),
            status: changed(old.map(|old| old.status), Some(new.status)),
        }
    }
}

/// Returns the size of URLs in bytes.
pub fn text_size(urls: &[PhotoUrl]) -> usize {
    urls.iter().map(|url| url.as_str().len()).sum()
}

/// Change of a stored pet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Replaces all fields.
    Replace {
        /// New values.
        details: PetDetails,
        /// False if `details.status` is the default, because the client gave none.
        has_status: bool,
    },
    /// Changes some fields.
    Patch(PetPatch),
    /// Sets the photo URLs, because images were added or deleted.
    PhotoUrls(Vec<PhotoUrl>),
    /// Deletes the pet.
    Delete,
}

/// Refusal of a change; the text follows the name of the pet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The pet cannot be made available while an open order holds it.
    #[error("has an open order")]
    Held,
    /// The pet would have more than [`MAX_SIZE`] bytes.
    #[error(transparent)]
    TooLarge(#[from] Invalid),
}

impl Change {
    /// Returns the fields of the pet after the change, or `None` if it is deleted. If an open order holds the pet, the
    /// change cannot make it available, and one without a status leaves the status as it is.
    pub fn apply(&self, current: &PetDetails, held: bool) -> Result<Option<PetDetails>, Refusal> {
        let (mut details, has_status) = match self {
            // Its size was checked with its other properties.
            Self::Replace {
                details,
                has_status,
            } => (details.clone(), *has_status),
            Self::Patch(patch) => {
                let details = patch.apply(current);
                details.check_size()?;
                (details, patch.status.is_some())
            }
            Self::PhotoUrls(urls) => {
                let photo_urls = urls.clone();
                let current = current.clone();
                (
                    PetDetails {
                        photo_urls,
                        ..current
                    },
                    false,
                )
            }
            Self::Delete => return Ok(None),
        };
        if held && details.status == Status::Available {
            if has_status {
                return Err(Refusal::Held);
            }
            details.status = current.status;
        }
        Ok(Some(details))
    }

    /// Returns true if the change may make a pet available, unless an order holds it.
    pub fn may_make_available(&self) -> bool {
        match self {
            Self::Replace { details, .. } => details.status == Status::Available,
            Self::Patch(patch) => patch.status == Some(Status::Available),
            Self::PhotoUrls(_) | Self::Delete => false,
        }
    }
}

/// Changes to some fields of a pet, with the result of a JSON Merge Patch (RFC 7396). `None` leaves a field as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PetPatch {
    /// New name.
    pub name: Option<PetName>,
    /// Changes to the category; `Some(None)` removes it.
    pub category: Option<Option<CategoryPatch>>,
    /// New URLs of pictures, at most [`MAX_ITEMS`].
    pub photo_urls: Option<Vec<PhotoUrl>>,
    /// New tags, at most [`MAX_ITEMS`].
    pub tags: Option<Vec<Tag>>,
    /// New status.
    pub status: Option<Status>,
}

/// Changes to the members of a category, which is created if the pet has none. `None` leaves a member as it is, and
/// `Some(None)` removes it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CategoryPatch {
    /// New number.
    pub id: Option<Option<i64>>,
    /// New name.
    pub name: Option<Option<Text>>,
}

impl PetPatch {
    /// Returns all fields of `current`, with the patch applied.
    pub fn apply(&self, current: &PetDetails) -> PetDetails {
        let category = match &self.category {
            None => current.category.clone(),
            Some(None) => None,
            Some(Some(patch)) => Some(patch.apply(current.category.as_ref())),
        };
        PetDetails {
            category,
            name: patched(self.name.as_ref(), &current.name),
            photo_urls: patched(self.photo_urls.as_ref(), &current.photo_urls),
            tags: patched(self.tags.as_ref(), &current.tags),
            status: self.status.unwrap_or(current.status),
        }
    }
}

impl CategoryPatch {
    fn apply(&self, current: Option<&Category>) -> Category {
        let mut category = current.cloned().unwrap_or_default();
        if let Some(id) = self.id {
            category.id = id;
        }
        if let Some(name) = &self.name {
            category.name.clone_from(name);
        }
        category
    }
}

fn patched<T: Clone>(new: Option<&T>, current: &T) -> T {
    new.unwrap_or(current).clone()
}

/// Pet to be created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewPet {
    /// Identifier chosen by the client; `None` if the server assigns one.
    pub id: Option<PetId>,
    /// Other fields.
    pub details: PetDetails,
}

/// Version of a stored pet. Unique across all writes to all pets, and so a strong validator (RFC 9110 §8.8.1) even if a
/// pet is deleted and created again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version(pub i64);

/// A pet of the store, as clients read it.
#[derive(Debug, Clone)]
pub struct StoredPet {
    /// Identifier.
    pub id: PetId,
    /// Version, which changes with every write that alters the pet.
    pub version: Version,
    /// The pet as compact JSON.
    pub json: Bytes,
}

impl StoredPet {
    /// Puts the identifier before the fields of `details`, and the status behind them. The JSON is not parsed: an object is enough.
    pub fn new(id: PetId, version: Version, status: Status, details: &[u8]) -> Self {
        /// Length of the members that are added, at most.
        const ROOM: usize = 64;
        let object = details.trim_ascii();
        let members = object.get(1..object.len().saturating_sub(1));
        let members = members.unwrap_or_default().trim_ascii();
        let mut json = Vec::with_capacity(details.len() + ROOM);
        json.extend_from_slice(b"{\"id\":");
        json.extend_from_slice(itoa::Buffer::new().format(id.get()).as_bytes());
        if !members.is_empty() {
            json.push(b',');
            json.extend_from_slice(members);
        }
        // To write to memory cannot fail.
        let _written = write!(json, ",\"status\":\"{}\"}}", status.as_str());
        Self {
            id,
            version,
            json: json.into(),
        }
    }
}

/// A pet of the store.
#[derive(ToSchema)]
#[schema(example = json!({
    "id": 1,
    "category": {"id": 1, "name": "Dogs"},
    "name": "Rex",
    "photoUrls": ["https://example.com/rex.jpg"],
    "tags": [{"id": 1, "name": "friendly"}],
    "status": "available"
}))]
#[expect(dead_code, reason = "describes the JSON of a stored pet")]
pub struct Pet {
    /// Identifier.
    #[schema(value_type = i64, minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    id: PetId,
    #[serde(flatten)]
    details: PetDetails,
    /// Status of the pet in the store.
    status: Status,
}
