//! Changes that a client wants to read, and may.

use crate::{
    db::changes::Filter,
    domain::{
        caller::{Caller, Scope},
        change::{Kind, Position},
    },
};

/// What a client wants to read.
pub struct Wanted {
    pub kinds: Vec<Kind>,
    pub resource: Option<(Kind, String)>,
    pub actor: Option<String>,
    /// Position behind which the changes begin.
    pub after: Option<Position>,
}

impl Wanted {
    /// Returns the wanted changes that a caller sees.
    pub fn filter(&self, caller: &Caller) -> Filter {
        let filter = Filter {
            resource: self.resource.clone(),
            actor: self.actor.clone(),
            ..visible(caller, &self.kinds)
        };
        match &self.actor {
            Some(actor) if filter.hides(actor) => Filter::default(),
            _ => filter,
        }
    }
}

/// Returns the changes of `kinds` that a caller sees.
fn visible(caller: &Caller, kinds: &[Kind]) -> Filter {
    let mut filter = Filter {
        owner: caller.id,
        hides_accounts_from: (!caller.scopes.contains(Scope::Admin)).then(|| caller.name.clone()),
        ..Filter::default()
    };
    let scopes = caller.scopes;
    for kind in kinds {
        match kind {
            _ if scopes.contains(Scope::Admin) => filter.kinds.push(*kind),
            Kind::Pet | Kind::Image | Kind::Import if scopes.contains(Scope::ReadPets) => {
                filter.kinds.push(*kind);
            }
            Kind::Order if scopes.contains(Scope::ReadOrders) => filter.own_kinds.push(*kind),
            Kind::User => filter.own_kinds.push(*kind),
            _ => {}
        }
    }
    filter
}
