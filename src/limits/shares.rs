//! Bounds a resource in total and by client address, so that one client cannot use it up.

use std::{
    collections::HashMap,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::domain::address::{AddressKey, Network};

/// Networks of an IPv6 address with a bounded use, and the number of addresses as which each counts.
const SHARED_NETWORKS: [(u8, u32); 2] = [(56, 1), (48, 2)];

/// A resource that client addresses share, such as memory in bytes or a number of connections. Clones share it.
#[derive(Debug, Clone)]
pub struct Shares(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    max: usize,
    max_per_address: usize,
    used: Mutex<Used>,
}

/// Amounts in use. A network without any is not in the map.
#[derive(Debug, Default)]
struct Used {
    total: usize,
    by_network: HashMap<Network, usize>,
}

/// Reason why an amount is not left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Exhausted {
    /// The client address, or its network, uses its share.
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
    /// Creates a resource of which `max` can be in use: `max_per_address` by one address, and three quarters by any
    /// network. The last quarter is only for addresses that use at most an eighth of their share.
    pub fn new(max: usize, max_per_address: usize) -> Self {
        Self(Arc::new(Inner {
            max,
            max_per_address,
            used: Mutex::default(),
        }))
    }

    /// Takes an amount, at most that of one address, if that much is left. An unknown address counts only in total.
    pub fn take(&self, address: Option<AddressKey>, amount: usize) -> Result<Share, Exhausted> {
        let Inner {
            max,
            max_per_address,
            ..
        } = *self.0;
        let amount = amount.min(max_per_address);
        let max_per_network = max - max / 4;
        let mut used = self.0.used();
        let total = used.total.checked_add(amount).filter(|it| *it <= max);
        let total = total.ok_or(Exhausted::InTotal)?;
        let is_scarce = total > max_per_network;
        for (network, addresses) in networks(address) {
            let used = used.by_network.get(&network).copied().unwrap_or_default() + amount;
            let max = max_per_address.saturating_mul(addresses as usize);
            if used > max.min(max_per_network) {
                return Err(Exhausted::ByClient);
            }
            if is_scarce && used > max_per_address.div_ceil(8) {
                return Err(Exhausted::InTotal);
            }
        }
        used.total = total;
        for (network, _) in networks(address) {
            *used.by_network.entry(network).or_default() += amount;
        }
        drop(used);
        Ok(Share {
            shares: self.clone(),
            address,
            amount,
        })
    }

    /// Returns the maximum amount of one address.
    pub fn max_per_address(&self) -> usize {
        self.0.max_per_address
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
    /// Increases the share to an amount, at most that of one address, if that much is left.
    pub fn grow_to(&mut self, amount: usize) -> Result<(), Exhausted> {
        let amount = amount.min(self.shares.0.max_per_address);
        let more = amount.saturating_sub(self.amount);
        let mut more = self.shares.take(self.address, more)?;
        // The other share is dropped without its amount.
        self.amount += mem::take(&mut more.amount);
        Ok(())
    }
}

impl Inner {
    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn networks(address: Option<AddressKey>) -> impl Iterator<Item = (Network, u32)> {
    (address.into_iter()).flat_map(|address| address.networks(&SHARED_NETWORKS))
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut used = self.shares.0.used();
        used.total -= self.amount;
        for (network, _) in networks(self.address) {
            if let Some(amount) = used.by_network.get_mut(&network) {
                *amount -= self.amount;
                if *amount == 0 {
                    used.by_network.remove(&network);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv6Addr};

    use super::*;

    #[test]
    fn bounds_hold_for_addresses_networks_and_in_total() {
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
        let mut growing = take("192.0.2.1", 3).expect("its share");
        assert!(growing.grow_to(9).is_ok(), "no more than its share");
        assert!(take("192.0.2.1", 1).is_err());
        drop(growing);
        assert!(take("192.0.2.1", 9).is_ok(), "no more than its share");

        // A /56 has the share of an address, and a /48 twice as much.
        let held: Vec<_> = (0..4)
            .map(|n| take(&format!("2001:db8:0:0:{n}::1"), 1).expect("its share"))
            .collect();
        assert!(take("2001:db8::9", 1).is_err());
        assert!(
            take("2001:db8:0:1::1", 1).is_err(),
            "another /64 of the /56"
        );
        let of_48 = take("2001:db8:0:100::1", 4).expect("another /56 of the /48");
        assert!(take("2001:db8:0:200::1", 1).is_err());
        let others = [1, 2, 3].map(|n| take(&format!("2001:db8:{n}::1"), 4));
        assert!(others.iter().all(Result::is_ok));

        // The last quarter is for addresses that use little.
        let exhausted = take("192.0.2.8", 4).map(drop);
        assert_eq!(exhausted, Err(Exhausted::InTotal));
        let last: Vec<_> = (0..8).map(|n| take(&format!("192.0.2.{n}"), 1)).collect();
        assert!(last.iter().all(Result::is_ok));
        let exhausted = take("192.0.2.9", 1).map(drop);
        assert_eq!(exhausted, Err(Exhausted::InTotal), "all 28 are in use");
        assert!(shares.take(None, 1).is_err());
        drop((held, of_48, others, last));
        assert!(shares.0.used().by_network.is_empty());
        assert_eq!(shares.in_use(), 0);
    }

    #[test]
    fn no_network_has_everything() {
        let shares = Shares::new(8, 4);
        let take = |network: u16| {
            let address = Ipv6Addr::new(0x2001, 0xdb8, 0, network, 0, 0, 0, 1);
            shares.take(Some(IpAddr::from(address).into()), 1)
        };
        let held: Vec<_> = (0..6).map(|number| take(number << 8)).collect();
        assert!(held.iter().all(Result::is_ok));
        assert!(take(6 << 8).is_err(), "three quarters are in use");
    }
}
