//! Pets: the fields of Petstore's `Pet` and their rules.
//!
//! Invariants:
//! - Lengths are in characters (Unicode scalar values).
//! - No value is rewritten: `category`, `tags` and `photoUrls` are returned exactly as they were sent.

use std::str::FromStr;

use url::Url;

use super::{Invalid, check_text, id::PetId};

/// Maximum number of characters of the name of a pet, category or tag.
pub const MAX_NAME: usize = 255;
/// Maximum number of characters of a photo URL.
pub const MAX_PHOTO_URL: usize = 2_048;
/// Maximum number of photo URLs, and of tags, of a pet.
pub const MAX_ITEMS: usize = 100;

/// Name of a pet: 1–[`MAX_NAME`] characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PetName(String);

impl PetName {
    /// Validates a name.
    ///
    /// # Errors
    /// [`Invalid`] when it is empty, too long, or holds NUL.
    pub fn new(name: String) -> Result<Self, Invalid> {
        if name.is_empty() {
            return Err(Invalid::because("must not be empty"));
        }
        check_text(&name, MAX_NAME)?;
        Ok(Self(name))
    }

    /// Takes a stored name without validation, so that it stays readable if the rules become stricter.
    #[must_use]
    pub const fn from_stored(name: String) -> Self {
        Self(name)
    }

    /// Returns the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
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

impl Status {
    /// All statuses.
    pub const ALL: [Self; 3] = [Self::Available, Self::Pending, Self::Sold];

    /// Returns the name in JSON and in the database.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Available => "available",
            Self::Pending => "pending",
            Self::Sold => "sold",
        }
    }
}

impl FromStr for Status {
    type Err = Invalid;

    fn from_str(name: &str) -> Result<Self, Invalid> {
        Self::ALL
            .into_iter()
            .find(|status| status.as_str() == name)
            .ok_or(Invalid::because("must be available, pending or sold"))
    }
}

/// Category or tag: an optional number and an optional name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Label {
    id: Option<i64>,
    name: Option<String>,
}

impl Label {
    /// Validates a label.
    ///
    /// # Errors
    /// [`Invalid`] when the name is longer than [`MAX_NAME`] or holds NUL.
    pub fn new(id: Option<i64>, name: Option<String>) -> Result<Self, Invalid> {
        if let Some(name) = &name {
            check_name(name)?;
        }
        Ok(Self { id, name })
    }

    /// Takes a stored label without validation.
    #[must_use]
    pub const fn from_stored(id: Option<i64>, name: Option<String>) -> Self {
        Self { id, name }
    }

    /// Returns the number, which the service does not interpret.
    #[must_use]
    pub const fn id(&self) -> Option<i64> {
        self.id
    }

    /// Returns the name, by which pets are found by tag.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }
}

/// Validates the name of a label.
///
/// # Errors
/// [`Invalid`] when it is longer than [`MAX_NAME`] or holds NUL.
pub fn check_name(name: &str) -> Result<(), Invalid> {
    check_text(name, MAX_NAME)
}

/// Absolute `http` or `https` URL, or relative reference (RFC 3986 §4.2), of 1–[`MAX_PHOTO_URL`] characters. Never
/// fetched by the service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PhotoUrl(String);

impl PhotoUrl {
    /// Validates a URL.
    ///
    /// # Errors
    /// [`Invalid`] when it is empty, too long, of another scheme, or not a URL.
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

    /// Takes a stored URL without validation.
    #[must_use]
    pub const fn from_stored(url: String) -> Self {
        Self(url)
    }

    /// Returns the URL as it was sent.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Validates the number of photo URLs or of tags.
///
/// # Errors
/// [`Invalid`] when there are more than [`MAX_ITEMS`].
pub const fn check_count(count: usize) -> Result<(), Invalid> {
    if count > MAX_ITEMS {
        return Err(Invalid::because("must have at most 100 elements"));
    }
    Ok(())
}

/// Fields of a pet, without its identifier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PetDetails {
    name: PetName,
    category: Option<Label>,
    photo_urls: Vec<PhotoUrl>,
    tags: Vec<Label>,
    status: Status,
}

impl PetDetails {
    /// Combines validated fields.
    ///
    /// # Errors
    /// The name of the field and the reason, when there are more than [`MAX_ITEMS`] `photo_urls` or `tags`.
    pub fn new(
        name: PetName,
        category: Option<Label>,
        photo_urls: Vec<PhotoUrl>,
        tags: Vec<Label>,
        status: Status,
    ) -> Result<Self, (&'static str, Invalid)> {
        check_count(photo_urls.len()).map_err(|reason| ("photoUrls", reason))?;
        check_count(tags.len()).map_err(|reason| ("tags", reason))?;
        Ok(Self {
            name,
            category,
            photo_urls,
            tags,
            status,
        })
    }

    /// Takes stored fields without validation.
    #[must_use]
    pub const fn from_stored(
        name: PetName,
        category: Option<Label>,
        photo_urls: Vec<PhotoUrl>,
        tags: Vec<Label>,
        status: Status,
    ) -> Self {
        Self {
            name,
            category,
            photo_urls,
            tags,
            status,
        }
    }

    /// Returns the name.
    #[must_use]
    pub const fn name(&self) -> &PetName {
        &self.name
    }

    /// Returns the category.
    #[must_use]
    pub const fn category(&self) -> Option<&Label> {
        self.category.as_ref()
    }

    /// Returns the photo URLs.
    #[must_use]
    pub fn photo_urls(&self) -> &[PhotoUrl] {
        &self.photo_urls
    }

    /// Returns the tags.
    #[must_use]
    pub fn tags(&self) -> &[Label] {
        &self.tags
    }

    /// Returns the status.
    #[must_use]
    pub const fn status(&self) -> Status {
        self.status
    }

    /// Adds a photo URL.
    ///
    /// # Errors
    /// [`Invalid`] when the pet has [`MAX_ITEMS`] already.
    pub fn with_photo_url(mut self, url: PhotoUrl) -> Result<Self, Invalid> {
        check_count(self.photo_urls.len() + 1)?;
        self.photo_urls.push(url);
        Ok(self)
    }

    /// Removes the photo URLs for which `are_gone` returns true.
    #[must_use]
    pub fn without_photo_urls(mut self, are_gone: impl Fn(&str) -> bool) -> Self {
        self.photo_urls.retain(|url| !are_gone(url.as_str()));
        self
    }

    /// Replaces the name.
    #[must_use]
    pub fn with_name(self, name: PetName) -> Self {
        Self { name, ..self }
    }

    /// Replaces the status.
    #[must_use]
    pub fn with_status(self, status: Status) -> Self {
        Self { status, ..self }
    }
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
        for good in [
            "https://example.com/a.png",
            "HTTP://EXAMPLE.com",
            "/images/1",
            "a.png",
            "../a.png?x=1#y",
            "//cdn.example.com/a",
            "bücher.png",
            "string",
        ] {
            assert!(PhotoUrl::new(good.to_owned()).is_ok(), "{good}");
        }
        for bad in [
            "",
            "javascript:alert(1)",
            "data:text/html,x",
            "ftp://example.com/a",
            "file:///etc/passwd",
            "http://",
            "https://exa mple.com",
            "http://[::1",
            "\\\\evil.example\\a",
            "a\u{0}b",
            "a\nb",
            "<script>",
        ] {
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
}
