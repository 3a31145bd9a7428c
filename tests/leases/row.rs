//! In-memory model of a caller's row.

use std::time::Duration;

use pet_inventory::db::limits::{Lease, LeaseRequest};

const SLICES: i64 = 61;
const DAY: i64 = 86_400;

/// Row of a caller, as `db::limits` keeps it.
#[derive(Debug, Clone)]
pub struct Row {
    pub day: i64,
    pub day_used: i64,
    pub slice: i64,
    pub slices: Vec<i64>,
}

impl Row {
    pub fn new(day: i64) -> Self {
        Self {
            day,
            day_used: 0,
            slice: 0,
            slices: vec![0; 61],
        }
    }

    /// Executes the statement at `micros` of the database's clock, in microseconds since 1970.
    pub fn lease(&mut self, request: &LeaseRequest, micros: i64) -> Lease {
        let (second, today) = (
            micros.div_euclid(1_000_000),
            micros.div_euclid(1_000_000 * DAY),
        );
        let limit = |limit: Option<u32>| limit.map_or(i64::MAX, i64::from);
        let (waiting, wanted) = (signed(request.waiting), signed(request.wanted));
        if let Some((slice, unused)) = request.returned {
            let unused = i64::from(unused);
            let place = SLICES - 1 - (self.slice - slice);
            if let Some(used) = usize::try_from(place)
                .ok()
                .and_then(|place| self.slices.get_mut(place))
            {
                *used = (*used - unused).max(0);
            }
            if slice.div_euclid(DAY) == self.day {
                self.day_used = (self.day_used - unused).max(0);
            }
        }
        let total = self.slices.iter().sum::<i64>();
        if self.slice > second + 1 {
            self.slices = vec![0; 60];
            self.slices.push(total);
            self.slice = second;
        }
        while self.slice < second {
            self.slices.remove(0);
            self.slices.push(0);
            self.slice += 1;
            if self.slices.iter().all(|used| *used == 0) {
                self.slice = second;
            }
        }
        if self.day < today {
            self.day_used = 0;
        }
        self.day = today;
        let used = self.slices.iter().sum::<i64>();
        let minute_left = limit(request.limits.per_minute).saturating_sub(used);
        let day_left = limit(request.limits.per_day).saturating_sub(self.day_used);
        let room = minute_left.min(day_left).max(0);
        let granted = room.min(waiting + (wanted - waiting).min((room - waiting).max(0) / 2));
        self.slices[60] += granted;
        self.day_used += granted;
        let minute_used = self.slices.iter().sum::<i64>();
        let mut gone = 0;
        let frees = (0..).zip(&self.slices).find(|(_, slice)| {
            gone += **slice;
            gone > 0 && minute_used - gone < limit(request.limits.per_minute)
        });
        let until = |second: i64| {
            let micros = (second * 1_000_000 - micros).max(0);
            Duration::from_micros(u64::try_from(micros).expect("not negative")).as_secs_f64()
        };
        let count = |used: i64| u32::try_from(used.max(0)).expect("small");
        Lease {
            granted: count(granted),
            slice: self.slice,
            slice_ends_in: until(self.slice + 1),
            slice_used: count(self.slices[60]),
            last_slice_used: count(self.slices[59]),
            minute_used: count(minute_used),
            minute_frees_in: frees.map_or(0.0, |(slices, _)| until(self.slice + 1 + slices)),
            day_used: count(self.day_used),
            day_ends_in: until((self.day + 1) * DAY),
        }
    }
}

pub fn signed(count: usize) -> i64 {
    i64::try_from(count).expect("small")
}
