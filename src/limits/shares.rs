//! Bounds a resource in total and by client address, so that one client cannot use it up.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::domain::address::AddressKey;

/// A resource that client addresses share, such as memory in bytes or a number of connections. Clones share it.
#[derive(Debug, Clone)]
pub struct Shares(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    max: usize,
    max_per_address: usize,
    used: Mutex<Used>,
}

/// Amounts in use. An address without any is not in the map.
#[derive(Debug, Default)]
struct Used {
    total: usize,
    by_address: HashMap<AddressKey, usize>,
}

/// Reason why an amount is not left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Exhausted {
    /// The client address uses its share.
    #[error("the client address uses its share")]
    ByClient,
    /// All of the resource is in use.
    #[error("all is in use")]
    InTotal,
}

/// Amount of a resource, which is returned on drop.
#[derive(Debug)]
pub struct Share {
    shares: Shares,
    address: Option<AddressKey>,
    amount: usize,
}

impl Shares {
    /// Creates a resource of which `max` can be in use: `max_per_address` by one address, and no more than three
    /// quarters. The last quarter is only for addresses that use at most an eighth of their share.
    pub fn new(max: usize, max_per_address: usize) -> Self {
        Self(Arc::new(Inner {
            max,
            max_per_address,
            used: Mutex::default(),
        }))
    }

    /// Takes an amount, at most that of one address, if that much is left. An unknown address counts only in total.
    pub fn take(&self, address: Option<AddressKey>, amount: usize) -> Result<Share, Exhausted> {
        let amount = amount.min(self.0.max_per_address);
        self.0.add(address, amount)?;
        Ok(Share {
            shares: self.clone(),
            address,
            amount,
        })
    }

    /// Returns the amount in use.
    pub fn in_use(&self) -> usize {
        self.0.used().total
    }

    /// Returns the maximum amount in use.
    pub fn max(&self) -> usize {
        self.0.max
    }
}

impl Share {
    /// Changes the amount. If more is not left, it stays as it is.
    pub fn resize(&mut self, amount: usize) -> Result<(), Exhausted> {
        match amount.checked_sub(self.amount) {
            Some(more) => self.shares.0.add(self.address, more)?,
            None => self.shares.0.remove(self.address, self.amount - amount),
        }
        self.amount = amount;
        Ok(())
    }
}

impl Inner {
    fn add(&self, address: Option<AddressKey>, amount: usize) -> Result<(), Exhausted> {
        let Self {
            max,
            max_per_address,
            ..
        } = *self;
        let most = max - max / 4;
        let mut used = self.used();
        let total = used.total.checked_add(amount).filter(|it| *it <= max);
        let total = total.ok_or(Exhausted::InTotal)?;
        if let Some(address) = address {
            let of_address = used.by_address.get(&address).copied().unwrap_or_default() + amount;
            if of_address > max_per_address.min(most) {
                return Err(Exhausted::ByClient);
            }
            if total > most && of_address > max_per_address.div_ceil(8) {
                return Err(Exhausted::InTotal);
            }
            used.by_address.insert(address, of_address);
        }
        used.total = total;
        Ok(())
    }

    fn remove(&self, address: Option<AddressKey>, amount: usize) {
        let mut used = self.used();
        used.total -= amount;
        if let Some(address) = address
            && let Some(of_address) = used.by_address.get_mut(&address)
        {
            *of_address -= amount;
            if *of_address == 0 {
                used.by_address.remove(&address);
            }
        }
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shares.0.remove(self.address, self.amount);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv6Addr};

    use super::*;

    #[test]
    fn bounds_hold_for_addresses_and_in_total() {
        let shares = Shares::new(28, 4);
        let take = |address: &str, amount| {
            let address: IpAddr = address.parse().expect("an address");
            shares.take(Some(address.into()), amount)
        };
        let all = take("192.0.2.1", 4).expect("its share");
        let exhausted = take("192.0.2.1", 1).map(drop);
        assert_eq!(exhausted, Err(Exhausted::ByClient));
        assert!(take("192.0.2.2", 1).is_ok());
        drop(all);
        assert!(take("192.0.2.1", 9).is_ok(), "no more than its share");

        // A /56 has the share of an address.
        let held: Vec<_> = (0..4)
            .map(|n| take(&format!("2001:db8:0:{n}::1"), 1).expect("its share"))
            .collect();
        assert!(take("2001:db8::9", 1).is_err());
        let others = [1, 2, 3, 4].map(|n| take(&format!("2001:db8:0:{n}00::1"), 4));
        assert!(others.iter().all(Result::is_ok));

        // The last quarter is for addresses that use little.
        let exhausted = take("192.0.2.8", 4).map(drop);
        assert_eq!(exhausted, Err(Exhausted::InTotal));
        let last: Vec<_> = (0..8).map(|n| take(&format!("192.0.2.{n}"), 1)).collect();
        assert!(last.iter().all(Result::is_ok));
        let exhausted = take("192.0.2.9", 1).map(drop);
        assert_eq!(exhausted, Err(Exhausted::InTotal), "all 28 are in use");
        assert!(shares.take(None, 1).is_err());
        drop((held, others, last));
        assert!(shares.0.used().by_address.is_empty());
        assert_eq!(shares.in_use(), 0);
    }

    #[test]
    fn addresses_that_use_much_leave_the_last_quarter() {
        let shares = Shares::new(64, 8);
        let take = |network: u16, amount| {
            let address = Ipv6Addr::new(0x2001, 0xdb8, 0, network << 8, 0, 0, 0, 1);
            shares.take(Some(IpAddr::from(address).into()), amount)
        };
        // Sixteen networks of size /56 of one /48, each of which takes what it can.
        let held: Vec<_> = (0..16).map(|number| take(number, 8)).collect();
        assert_eq!(held.iter().filter(|it| it.is_ok()).count(), 6);
        let one = take(255, 1);
        assert!(one.is_ok(), "a client that uses little");
    }
}
