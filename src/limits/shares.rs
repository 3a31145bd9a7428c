//! Bounds a resource in total and by client address, so that one client cannot use it up.

use std::{
    collections::HashMap,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::domain::address::{AddressKey, Network};

/// Networks of an IPv6 address whose use is bounded, and the number of addresses as which each counts.
const NETWORKS: [(u8, u32); 2] = [(56, 1), (48, 2)];

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

/// Amount of a resource, which is returned on drop.
#[derive(Debug)]
pub struct Share {
    shares: Shares,
    address: Option<AddressKey>,
    amount: usize,
}

impl Shares {
    /// Creates a resource of which `max` can be in use: `max_per_address` by one address, and three quarters by any
    /// network.
    pub fn new(max: usize, max_per_address: usize) -> Self {
        Self(Arc::new(Inner {
            max,
            max_per_address,
            used: Mutex::default(),
        }))
    }

    /// Takes an amount, at most that of one address, or returns `None` if that much is not left. An unknown address
    /// counts only in total.
    pub fn take(&self, address: Option<AddressKey>, amount: usize) -> Option<Share> {
        let Inner {
            max,
            max_per_address,
            ..
        } = *self.0;
        let amount = amount.min(max_per_address);
        let max_per_network = max - max / 4;
        let mut used = self.0.used();
        let total = used.total.checked_add(amount).filter(|it| *it <= max)?;
        let is_left = |(network, addresses): (Network, u32)| {
            let used = used.by_network.get(&network).copied().unwrap_or_default();
            let max = max_per_address.saturating_mul(addresses as usize);
            used + amount <= max.min(max_per_network)
        };
        if !networks(address).all(is_left) {
            return None;
        }
        used.total = total;
        for (network, _) in networks(address) {
            *used.by_network.entry(network).or_default() += amount;
        }
        drop(used);
        Some(Share {
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
    /// Increases the share to an amount, at most that of one address. Returns false if that much is not left.
    pub fn grow_to(&mut self, amount: usize) -> bool {
        let amount = amount.min(self.shares.0.max_per_address);
        let more = self
            .shares
            .take(self.address, amount.saturating_sub(self.amount));
        // The other share is dropped without its amount.
        more.is_some_and(|mut more| {
            self.amount += mem::take(&mut more.amount);
            true
        })
    }
}

impl Inner {
    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn networks(address: Option<AddressKey>) -> impl Iterator<Item = (Network, u32)> {
    let networks = |address: AddressKey| address.networks(&NETWORKS);
    address.into_iter().flat_map(networks)
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
        let shares = Shares::new(20, 4);
        let take = |address: &str, amount| {
            let address: IpAddr = address.parse().expect("an address");
            shares.take(Some(address.into()), amount)
        };
        let all = take("192.0.2.1", 4).expect("its share");
        assert!(take("192.0.2.1", 1).is_none());
        assert!(take("192.0.2.2", 1).is_some());
        drop(all);
        let mut growing = take("192.0.2.1", 3).expect("its share");
        assert!(growing.grow_to(9), "no more than its share");
        assert!(take("192.0.2.1", 1).is_none());
        drop(growing);
        assert!(take("192.0.2.1", 9).is_some(), "no more than its share");

        // A /56 has the share of an address, and a /48 twice as much.
        let held: Vec<_> = (0..4)
            .map(|n| take(&format!("2001:db8:0:0:{n}::1"), 1).expect("its share"))
            .collect();
        assert!(take("2001:db8::9", 1).is_none());
        assert!(
            take("2001:db8:0:1::1", 1).is_none(),
            "another /64 of the /56"
        );
        let of_48 = take("2001:db8:0:100::1", 4).expect("another /56 of the /48");
        assert!(take("2001:db8:0:200::1", 1).is_none());
        let others = [1, 2, 3].map(|n| take(&format!("2001:db8:{n}::1"), 4));
        assert!(others.iter().all(Option::is_some));
        assert!(take("192.0.2.9", 1).is_none(), "all 20 are in use");
        assert!(shares.take(None, 1).is_none());
        drop((held, of_48, others));
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
        assert!(held.iter().all(Option::is_some));
        assert!(take(6 << 8).is_none(), "three quarters are in use");
    }
}
