//! Pets: the fields of Petstore's `Pet` and their rules.
//!
//! Invariants:
//! - Lengths are in characters (Unicode scalar values).
//! - No value is rewritten: `category`, `tags` and `photoUrls` are returned exactly as they were sent.

use url::Url;

use super::{Invalid, MAX_TEXT, Text, check_text, id::PetId};

/// Maximum number of characters of the name of a pet, category or tag.
pub const MAX_NAME: usize = MAX_TEXT;
/// Maximum number of characters of a photo URL.
pub const MAX_PHOTO_URL: usize = 2_048;
/// Maximum number of photo URLs, and of tags, of a pet.
pub const MAX_ITEMS: usize = 100;

texts! {
    /// Name of a pet: 1–[`MAX_NAME`] characters.
    PetName

    /// Absolute `http` or `https` URL, or relative reference (RFC 3986 §4.2), of 1–[`MAX_PHOTO_URL`] characters, exactly
    /// as it was sent. Never fetched by the service.
    PhotoUrl
}

impl PetName {
    /// Validates a name.
    pub fn new(name: String) -> Result<Self, Invalid> {
        if name.is_empty() {
            return Err(Invalid::because("must not be empty"));
        }
        check_name(&name)?;
        Ok(Self(name))
    }
}

/// Checks the name of a pet, category or tag: at most [`MAX_NAME`] characters, and no NUL.
pub fn check_name(name: &str) -> Result<(), Invalid> {
    check_text(name, MAX_NAME)
}

impl PhotoUrl {
    /// Validates a URL.
    pub fn new(text: String) -> Result<Self, Invalid> {
        const NOT_A_URL: Invalid =
            Invalid::because("must be an http or https URL or a relative reference");
        if text.is_empty() {
            return Err(Invalid::because("must not be empty"));
        }
        check_text(&text, MAX_PHOTO_URL)?;
        // RFC 3986 §2 excludes these characters, but the URL Standard's parser silently repairs them. Browsers read `\`
        // as `/`, which could turn a relative reference into one with another host.
        let foreign = |c: char| c.is_control() || c.is_whitespace() || r#"<>"{}|\^`"#.contains(c);
        if text.contains(foreign) {
            return Err(NOT_A_URL);
        }
        match Url::parse(&text) {
            Ok(url) if matches!(url.scheme(), "http" | "https") => Ok(Self(text)),
            Err(url::ParseError::RelativeUrlWithoutBase) => Ok(Self(text)),
            Ok(_) | Err(_) => Err(NOT_A_URL),
        }
    }
}

/// Status of a pet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
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
    "must be available, pending or sold",
    Available = "available",
    Pending = "pending",
    Sold = "sold",
);

/// Category or tag, which the service does not interpret.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Label {
    /// Number.
    pub id: Option<i64>,
    /// Name, by which pets are found by tag.
    pub name: Option<Text>,
}

/// Checks the number of photo URLs or of tags: at most [`MAX_ITEMS`].
pub const fn check_count(count: usize) -> Result<(), Invalid> {
    if count > MAX_ITEMS {
        return Err(Invalid::because("must have at most 100 elements"));
    }
    Ok(())
}

/// Fields of a pet, without its identifier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PetDetails {
    /// Name.
    pub name: PetName,
    /// Category.
    pub category: Option<Label>,
    /// URLs of pictures; see [`check_count`].
    pub photo_urls: Vec<PhotoUrl>,
    /// Tags; see [`check_count`].
    pub tags: Vec<Label>,
    /// Status.
    pub status: Status,
}

/// Change of a stored pet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Replaces all fields.
    Replace(PetDetails),
    /// Changes some fields.
    Patch(PetPatch),
    /// Deletes the pet.
    Delete,
}

impl Change {
    /// Returns the fields of the pet after the change, or `None` if it is deleted.
    pub fn apply(&self, current: &PetDetails) -> Option<PetDetails> {
        match self {
            Self::Replace(details) => Some(details.clone()),
            Self::Patch(patch) => Some(patch.apply(current)),
            Self::Delete => None,
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
    /// New URLs of pictures; see [`check_count`].
    pub photo_urls: Option<Vec<PhotoUrl>>,
    /// New tags; see [`check_count`].
    pub tags: Option<Vec<Label>>,
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
    /// Returns the changed fields.
    pub fn apply(&self, current: &PetDetails) -> PetDetails {
        let category = match &self.category {
            None => current.category.clone(),
            Some(None) => None,
            Some(Some(patch)) => Some(patch.apply(current.category.as_ref())),
        };
        PetDetails {
            name: changed(self.name.as_ref(), &current.name),
            category,
            photo_urls: changed(self.photo_urls.as_ref(), &current.photo_urls),
            tags: changed(self.tags.as_ref(), &current.tags),
            status: self.status.unwrap_or(current.status),
        }
    }
}

impl CategoryPatch {
    fn apply(&self, current: Option<&Label>) -> Label {
        let mut label = current.cloned().unwrap_or_default();
        if let Some(id) = self.id {
            label.id = id;
        }
        if let Some(name) = &self.name {
            label.name.clone_from(name);
        }
        label
    }
}

fn changed<T: Clone>(new: Option<&T>, current: &T) -> T {
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

/// Stored pet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pet {
    /// Identifier.
    pub id: PetId,
    /// Version, which changes with every write.
    pub version: Version,
    /// Other fields.
    pub details: PetDetails,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn photo_urls_are_http_or_relative() {
        let good = "https://example.com/a.png HTTP://EXAMPLE.com /images/1 a.png ../a.png?x=1#y \
                    //cdn.example.com/a bücher.png string";
        for good in good.split(' ') {
            assert!(PhotoUrl::new(good.to_owned()).is_ok(), "{good}");
        }
        let bad = "javascript:alert(1) data:text/html,x ftp://example.com/a file:///etc/passwd http:// \
                   http://[::1 \\\\evil.example\\a a\0b a\nb <script>";
        for bad in bad.split(' ').chain(["", "https://exa mple.com"]) {
            assert!(PhotoUrl::new(bad.to_owned()).is_err(), "{bad:?}");
        }
        assert!(PhotoUrl::new("a".repeat(MAX_PHOTO_URL)).is_ok());
        assert!(PhotoUrl::new("a".repeat(MAX_PHOTO_URL + 1)).is_err());
    }

    #[test]
    fn names_are_counted_in_characters() {
        assert!(PetName::new("é".repeat(MAX_NAME)).is_ok());
        assert!(PetName::new("é".repeat(MAX_NAME + 1)).is_err());
        assert!(PetName::new(String::new()).is_err());
        assert!(PetName::new("a\0b".to_owned()).is_err());
    }

    #[test]
    fn ids_are_what_javascript_reads_exactly() {
        assert!(PetId::new(1).is_ok());
        assert!(PetId::new(PetId::MAX).is_ok());
        for bad in [0, -1, PetId::MAX + 1, i64::MAX, i64::MIN] {
            assert!(PetId::new(bad).is_err(), "{bad}");
        }
    }

    fn text(text: &str) -> Text {
        Text::new(text.to_owned()).expect("a text")
    }

    #[test]
    fn patches_change_only_the_given_fields() {
        let name = |name: &str| PetName::new(name.to_owned()).expect("a name");
        let url = |url: &str| PhotoUrl::new(url.to_owned()).expect("a URL");
        let label = |id, name| Label { id, name };
        let rex = PetDetails {
            name: name("Rex"),
            category: Some(label(Some(1), Some(text("Dogs")))),
            photo_urls: vec![url("/a")],
            tags: vec![label(None, Some(text("friendly")))],
            status: Status::Sold,
        };
        let apply = |patch: PetPatch| Change::Patch(patch).apply(&rex);
        assert_eq!(apply(PetPatch::default()), Some(rex.clone()));
        let patched = apply(PetPatch {
            name: Some(name("Max")),
            photo_urls: Some(Vec::new()),
            tags: Some(vec![label(Some(2), None)]),
            status: Some(Status::Available),
            ..PetPatch::default()
        });
        let expected = PetDetails {
            name: name("Max"),
            photo_urls: Vec::new(),
            tags: vec![label(Some(2), None)],
            status: Status::Available,
            ..rex.clone()
        };
        assert_eq!(patched, Some(expected));
        assert_eq!(Change::Replace(rex.clone()).apply(&rex), Some(rex.clone()));
        assert_eq!(Change::Delete.apply(&rex), None);
    }

    #[test]
    fn category_patches_merge_members() {
        let dogs = Label {
            id: Some(1),
            name: Some(text("Dogs")),
        };
        let patch = |id, name| CategoryPatch { id, name };
        for (patch, of_dogs, of_none) in [
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
            for (current, (id, name)) in [(Some(&dogs), of_dogs), (None, of_none)] {
                let name = name.map(text);
                assert_eq!(patch.apply(current), Label { id, name }, "{patch:?}");
            }
        }
    }
}
