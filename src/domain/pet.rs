//! Pets: the fields of Petstore's `Pet` and the rules they keep.
//!
//! Text is counted in characters (Unicode scalar values). `category`, `tags` and `photoUrls` come
//! back exactly as they were sent: nothing in here rewrites a value.

use std::str::FromStr;

use url::Url;

use super::{Invalid, check_text, id::PetId};

/// How many characters a pet's, a category's or a tag's name has at most.
pub const MAX_NAME: usize = 255;
/// How many characters a photo URL has at most.
pub const MAX_PHOTO_URL: usize = 2_048;
/// How many photo URLs, and how many tags, a pet has at most.
pub const MAX_ITEMS: usize = 100;

/// The name of a pet: 1–[`MAX_NAME`] characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PetName(String);

impl PetName {
    /// Checks a name.
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

    /// A name that was checked when it was stored. Rules may have grown stricter since; what is
    /// stored stays readable.
    #[must_use]
    pub const fn from_stored(name: String) -> Self {
        Self(name)
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Where in the shop's hands a pet is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Status {
    /// For sale; what a pet is unless it says otherwise.
    #[default]
    Available,
    /// Ordered, not handed over yet.
    Pending,
    /// Gone to its new owner.
    Sold,
}

impl Status {
    /// Every status.
    pub const ALL: [Self; 3] = [Self::Available, Self::Pending, Self::Sold];

    /// The status as JSON and the database have it.
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

/// An optional number and an optional name: the shape of both a category and a tag.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Label {
    id: Option<i64>,
    name: Option<String>,
}

impl Label {
    /// Checks a label.
    ///
    /// # Errors
    /// [`Invalid`], about the name, when it is longer than [`MAX_NAME`] or holds NUL.
    pub fn new(id: Option<i64>, name: Option<String>) -> Result<Self, Invalid> {
        if let Some(name) = &name {
            check_name(name)?;
        }
        Ok(Self { id, name })
    }

    /// A label that was checked when it was stored.
    #[must_use]
    pub const fn from_stored(id: Option<i64>, name: Option<String>) -> Self {
        Self { id, name }
    }

    /// The number, whatever the client means by it.
    #[must_use]
    pub const fn id(&self) -> Option<i64> {
        self.id
    }

    /// The name; finding by tags goes by it.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }
}

/// Checks what a label is called.
///
/// # Errors
/// [`Invalid`] when it is longer than [`MAX_NAME`] or holds NUL.
pub fn check_name(name: &str) -> Result<(), Invalid> {
    check_text(name, MAX_NAME)
}

/// An absolute `http` or `https` URL, or a relative reference (RFC 3986 §4.2), of
/// 1–[`MAX_PHOTO_URL`] characters. Stored, never fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PhotoUrl(String);

impl PhotoUrl {
    /// Checks a URL.
    ///
    /// # Errors
    /// [`Invalid`] when it is empty, too long, of another scheme, or not a URL at all.
    pub fn new(text: String) -> Result<Self, Invalid> {
        const NOT_A_URL: Invalid =
            Invalid::because("must be an http or https URL or a relative reference");
        if text.is_empty() {
            return Err(Invalid::because("must not be empty"));
        }
        check_text(&text, MAX_PHOTO_URL)?;
        // The URL Standard's parser repairs these quietly; RFC 3986 §2 has no room for them, and a
        // `\` that a browser reads as `/` would make another host of a relative reference.
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

    /// A URL that was checked when it was stored.
    #[must_use]
    pub const fn from_stored(url: String) -> Self {
        Self(url)
    }

    /// The URL as it was sent.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Checks the number of photo URLs, or of tags.
///
/// # Errors
/// [`Invalid`] when there are more than [`MAX_ITEMS`].
pub const fn check_count(count: usize) -> Result<(), Invalid> {
    if count > MAX_ITEMS {
        return Err(Invalid::because("must have at most 100 elements"));
    }
    Ok(())
}

/// All that a client says of a pet, but its identifier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PetDetails {
    name: PetName,
    category: Option<Label>,
    photo_urls: Vec<PhotoUrl>,
    tags: Vec<Label>,
    status: Status,
}

impl PetDetails {
    /// Puts checked parts together.
    ///
    /// # Errors
    /// The name of the field and why, when `photo_urls` or `tags` are more than [`MAX_ITEMS`].
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

    /// Details that were checked when they were stored.
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

    /// What the pet is called.
    #[must_use]
    pub const fn name(&self) -> &PetName {
        &self.name
    }

    /// What kind of pet it is.
    #[must_use]
    pub const fn category(&self) -> Option<&Label> {
        self.category.as_ref()
    }

    /// Where its pictures are.
    #[must_use]
    pub fn photo_urls(&self) -> &[PhotoUrl] {
        &self.photo_urls
    }

    /// Words it can be found by.
    #[must_use]
    pub fn tags(&self) -> &[Label] {
        &self.tags
    }

    /// Where in the shop's hands it is.
    #[must_use]
    pub const fn status(&self) -> Status {
        self.status
    }

    /// The same pet with one more picture.
    ///
    /// # Errors
    /// [`Invalid`] when it has [`MAX_ITEMS`] already.
    pub fn with_photo_url(mut self, url: PhotoUrl) -> Result<Self, Invalid> {
        check_count(self.photo_urls.len() + 1)?;
        self.photo_urls.push(url);
        Ok(self)
    }

    /// The same pet without the pictures that are gone.
    #[must_use]
    pub fn without_photo_urls(mut self, are_gone: impl Fn(&str) -> bool) -> Self {
        self.photo_urls.retain(|url| !are_gone(url.as_str()));
        self
    }

    /// The same pet under another name.
    #[must_use]
    pub fn with_name(self, name: PetName) -> Self {
        Self { name, ..self }
    }

    /// The same pet in another status.
    #[must_use]
    pub fn with_status(self, status: Status) -> Self {
        Self { status, ..self }
    }
}

/// A pet that a client asks for: without an identifier the server gives one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewPet {
    /// The identifier that the client chose, if it did.
    pub id: Option<PetId>,
    /// The rest.
    pub details: PetDetails,
}

/// The version of a stored pet. No two writes, of this pet or another, ever give the same one,
/// so it is a strong validator (RFC 9110 §8.8.1) even for a pet that was deleted and made anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version(pub i64);

/// A pet as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pet {
    /// Identifier.
    pub id: PetId,
    /// Changes with every write.
    pub version: Version,
    /// The rest.
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
