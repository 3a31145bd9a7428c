//! The parts of a list are all of its items once, and what is held in memory is counted.

use std::sync::Mutex;

use http_body_util::BodyExt as _;
use proptest::{collection::vec, prelude::*, test_runner::TestCaseError};
use serde_json::Value;

use super::*;
use crate::limits::shares::Shares;
use crate::{config::Config, db::ConnectOptions};

/// Items of these sizes in bytes, whose identifiers are their positions, from 1.
#[derive(Debug, Clone)]
struct InMemory {
    sizes: Arc<[usize]>,
    /// Number of items after which each search ends early.
    cost: Option<usize>,
    memory: Shares,
    /// Bytes of the parts so far, and the largest of them.
    found: Arc<Mutex<(usize, usize)>>,
}

impl Find for InMemory {
    type Item = (usize, String);
    type Id = usize;

    async fn find(
        &self,
        _: &Database,
        part: Part<usize>,
    ) -> Result<Found<Self::Item, usize>, db::Error> {
        let (of_all, largest) = &mut *self.found.lock().expect("a lock");
        assert!(self.memory.in_use() >= PART, "counted before it is read");
        assert!(self.memory.in_use() <= *of_all + PART.max(STREAMED));
        let start = part.after.unwrap_or_default();
        let (mut matches, mut bytes) = (Vec::new(), 0);
        let mut rest = Rest::None;
        for (number, size) in self.sizes.iter().enumerate().skip(start) {
            if part.max_size.is_some_and(|max| *size > max) {
                rest = Rest::Larger(matches.last().map(Self::id));
                break;
            }
            bytes += size;
            let id = number + 1;
            // With the comma behind it, as many bytes as the item has.
            matches.push((id, format!("\"{id:x<width$}\"", width = size - 3)));
            if matches.len() == part.limit {
                rest = Rest::After(number + 1);
                break;
            }
            if self.cost == Some(matches.len()) {
                rest = Rest::Later(number + 1);
                break;
            }
        }
        *of_all += bytes;
        *largest = bytes.max(*largest);
        Ok(Found { matches, rest })
    }

    fn id((id, _): &Self::Item) -> usize {
        *id
    }

    fn json((_, json): &Self::Item) -> &[u8] {
        json.as_bytes()
    }
}

/// Reads a list, all pages or as a whole. Returns the identifiers in it.
async fn read(find: InMemory, limit: Option<usize>) -> Result<Vec<usize>, TestCaseError> {
    let config = Config::defaults().expect("a configuration").database;
    let database = Database::new(ConnectOptions::new_without_pgpass(), &config);
    let (mut ids, mut after) = (Vec::new(), None);
    loop {
        let lists = Lists {
            database: database.clone(),
            links: Links::new(None),
            memory: ListMemory {
                shares: find.memory.clone(),
                address: None,
                encoder: 0,
            },
            caller: CallerKey::Anonymous(None),
        };
        find.found.lock().expect("a lock").0 = 0;
        let parts = ListParts::new(lists, find.clone(), after, limit);
        let (response, end) = if limit.is_some() {
            let (lists, pieces, end) = parts.page().await.expect("a page");
            prop_assert_eq!(find.memory.in_use(), pieces.length);
            (lists.memory.respond(pieces).expect("a page"), end)
        } else {
            (parts.stream().await.expect("a list"), None)
        };
        let body = response.into_body().collect().await.expect("a body");
        let list: Vec<Value> = serde_json::from_slice(&body.to_bytes()).expect("JSON");
        prop_assert!(limit.is_none_or(|limit| list.len() <= limit));
        ids.extend(list.iter().map(|it| {
            let text = it.as_str().expect("a text").trim_end_matches('x');
            text.parse::<usize>().expect("a number")
        }));
        if end.is_none() {
            break;
        }
        prop_assert_ne!(&end, &after);
        after = end;
    }
    // Tasks end, and bodies are dropped.
    tokio::task::yield_now().await;
    prop_assert_eq!(find.memory.in_use(), 0);
    let largest = find.found.lock().expect("a lock").1;
    prop_assert!(largest <= PART);
    Ok(ids)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn parts_are_all_items_once(
        sizes in vec(prop_oneof![12_usize..200, 12..=LARGE], 0..700),
        limit in prop_oneof![Just(None), (1_usize..=40).prop_map(Some), (41_usize..=1_000).prop_map(Some)],
        cost in prop_oneof![3 => Just(None), 1 => (1_usize..50).prop_map(Some)],
    ) {
        let find = InMemory {
            sizes: sizes.clone().into(),
            cost,
            memory: Shares::new(1 << 30, 1 << 30),
            found: Arc::default(),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let ids = runtime.expect("a runtime").block_on(read(find, limit))?;
        prop_assert_eq!(ids, (1..=sizes.len()).collect::<Vec<_>>());
    }
}
