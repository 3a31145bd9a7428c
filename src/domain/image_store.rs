//! Owner of the image store: which database may delete blobs in it.
//!
//! The marker of a store names its owner: `DATABASE`, or `DATABASE/NONCE` once it was swept. A physical copy of a database has its name,
//! so each sweep advances a nonce in the database and in the marker, and one that finds another nonce than its own deletes nothing.

/// In place of the nonce in the marker of a store that copies of a database share. None of them sweeps it.
const SHARED: &str = "shared";

/// Owner of the image store from the point of view of a database.
#[derive(Debug, Clone)]
pub struct StoreOwner {
    /// Name of the database in the store. It includes the server, so that a dump restored elsewhere is another database.
    pub database: String,
    /// Nonce of the last completed sweep.
    pub nonce: Option<String>,
    /// Nonce of the next sweep, or of one that has begun.
    pub next_nonce: String,
    /// True if the next nonce was generated just now, so that no copy of the database has it.
    pub is_new: bool,
}

/// What follows for a database from the marker of the store.
#[derive(Debug, PartialEq, Eq)]
pub enum Claim {
    /// The store is that of another database, or of a copy: it deletes nothing, and writes this marker, so that the copy deletes nothing
    /// either.
    Refused(Option<String>),
    /// Another replica of the database has claimed the store since this claim began, also for this one.
    Held,
    /// It writes this marker, unless the store has it already, and then completes the nonce.
    Advance {
        /// New marker.
        marker: String,
        /// True if the store has it already.
        is_written: bool,
        /// True if the store is claimed then. A nonce from before this claim, as after an interruption, may be in a copy of the database,
        /// too: the next one is not.
        is_last: bool,
    },
}

impl StoreOwner {
    /// Returns true if the store with this marker belongs to the database: if only this database has swept it.
    pub fn matches(&self, marker: &str) -> bool {
        match self.nonce_in(marker) {
            Some(nonce) => nonce == self.next_nonce || Some(nonce) == self.nonce.as_deref(),
            None => marker == self.database,
        }
    }

    /// Decides what follows from a marker that was found together with `self`; `first` is the owner when the claim began.
    pub fn claim(&self, first: &Self, marker: &str) -> Claim {
        if !self.matches(marker) {
            let nonce = self.nonce_in(marker).filter(|nonce| *nonce != SHARED);
            return Claim::Refused(nonce.map(|_| self.marker(SHARED)));
        }
        let is_new = |marker: &str| {
            !first.matches(marker) || first.is_new && marker == first.marker(&first.next_nonce)
        };
        if is_new(marker) {
            return Claim::Held;
        }
        let next = self.marker(&self.next_nonce);
        Claim::Advance {
            is_written: marker == next,
            is_last: is_new(&next),
            marker: next,
        }
    }

    /// Returns the nonce in the marker of a store that this database or a physical copy of it has swept.
    fn nonce_in<'a>(&self, marker: &'a str) -> Option<&'a str> {
        marker.strip_prefix(&self.database)?.strip_prefix('/')
    }

    fn marker(&self, nonce: &str) -> String {
        format!("{}/{nonce}", self.database)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(nonce: Option<&str>, next_nonce: &str, is_new: bool) -> StoreOwner {
        StoreOwner {
            database: "pets".to_owned(),
            nonce: nonce.map(str::to_owned),
            next_nonce: next_nonce.to_owned(),
            is_new,
        }
    }

    fn advance(marker: &str, is_written: bool, is_last: bool) -> Claim {
        Claim::Advance {
            marker: marker.to_owned(),
            is_written,
            is_last,
        }
    }

    #[test]
    fn claims_follow_from_the_marker_and_the_owner() {
        let refused = |marker: Option<&str>| Claim::Refused(marker.map(str::to_owned));
        // Before the first sweep, with and without an interrupted one; after the sweep with nonce 1.
        let (fresh, resumed) = (owner(None, "1", true), owner(None, "1", false));
        let (swept, again) = (owner(Some("1"), "2", true), owner(Some("1"), "2", false));
        #[rustfmt::skip]
        let cases = [
            ("another database",              &fresh,   &fresh,   "other",       refused(None)),
            ("another that was swept",        &fresh,   &fresh,   "other/1",     refused(None)),
            ("a name that begins alike",      &fresh,   &fresh,   "pets2",       refused(None)),
            ("a copy that has swept",         &fresh,   &fresh,   "pets/9",      refused(Some("pets/shared"))),
            ("a copy that is ahead",          &swept,   &swept,   "pets/3",      refused(Some("pets/shared"))),
            ("shared, as found before",       &swept,   &swept,   "pets/shared", refused(None)),
            ("never swept",                   &fresh,   &fresh,   "pets",        advance("pets/1", false, true)),
            ("interrupted before the marker", &resumed, &resumed, "pets",        advance("pets/1", false, false)),
            ("interrupted after the marker",  &resumed, &resumed, "pets/1",      advance("pets/1", true, false)),
            ("swept before",                  &swept,   &swept,   "pets/1",      advance("pets/2", false, true)),
            ("with an older marker",          &swept,   &swept,   "pets",        advance("pets/2", false, true)),
            ("after the interrupted one",     &resumed, &swept,   "pets/1",      advance("pets/2", false, true)),
            ("by another replica, meanwhile", &fresh,   &again,   "pets/1",      Claim::Held),
            ("by several, meanwhile",         &fresh,   &owner(Some("2"), "3", false), "pets/2", Claim::Held),
            ("by one, of the older nonce",    &resumed, &again,   "pets/2",      Claim::Held),
        ];
        for (case, first, now, marker, expected) in cases {
            assert_eq!(now.claim(first, marker), expected, "{case}");
        }
    }
}
