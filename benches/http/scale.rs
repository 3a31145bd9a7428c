//! Rows with up to 10^6 pets: ratios to 10^3 pets, and pages with fresh, stale and no statistics.

use crate::{
    Options,
    data::{Database, Postgres},
    load::{Load, Template},
    operations::{NEW_PET, PAGE, REPLACED_PET},
    stage::{Setup, Stage, Variant, relate},
};

const FEW_PETS: u32 = 1_000;
/// Number of pets at the time of the stale statistics, before any pet has a tag of the finds.
const PETS_WHEN_STALE: u32 = 400;

/// Pages of 20 after a random pet, each with its name in the figures.
const PAGES: [(&str, &str); 6] = [
    ("status", PAGE),
    (
        "common",
        "/api/v3/pet/findByTags?tags=common&limit=20&cursor=<cursor(n)>",
    ),
    (
        "rare",
        "/api/v3/pet/findByTags?tags=group-7&limit=20&cursor=<cursor(n)>",
    ),
    (
        "absent",
        "/api/v3/pet/findByTags?tags=absent&limit=20&cursor=<cursor(n)>",
    ),
    (
        "two",
        "/api/v3/pet/findByTags?tags=common,group-7&limit=20&cursor=<cursor(n)>",
    ),
    ("name", "/api/v3/pet?name=pet%20<n>"),
];

/// Statements that remove the statistics of the tables of pets, as if they had never been analyzed.
const FORGET: [&str; 2] = [
    "delete from pg_statistic where starelid in (select oid from pg_class where relname in ('pets', 'pet_tags', 'pets_by_name'))",
    "update pg_class set reltuples = -1, relpages = 0
     where relname in ('pets', 'pet_tags') or oid in (
         select indexrelid from pg_index where indrelid in (
             select oid from pg_class where relname in ('pets', 'pet_tags')))",
];
/// Statement that folds the names of pets, which the service does later. An earlier schema has no such column.
const FOLD_NAMES: &str = "
    do $$ begin
        if exists (select from information_schema.columns where column_name = 'folded_name') then
            update pets set folded_name = lower(details ->> 'name');
        end if;
    end $$";
/// Statement that keeps statistics as they are, and updates which pages all transactions see.
const VACUUM: &str = "vacuum";
/// Statement that stops automatic analysis. An earlier schema has no table `pet_tags`.
const NO_AUTOVACUUM: &str = "
    do $$
    declare name text;
    begin
        for name in select relname from pg_class where relname in ('pets', 'pet_tags') loop
            execute format('alter table %I set (autovacuum_enabled = off)', name);
        end loop;
    end $$";

/// Measures the rows `statistics` and `sizes`.
pub async fn rows(options: &Options, postgres: &Postgres) {
    let pets = options.many_pets();
    let many = postgres.empty_database(options, "many").await;
    many.run(NO_AUTOVACUUM).await;
    many.fill(PETS_WHEN_STALE).await;
    many.run("update pets set details = jsonb_set(details::jsonb, '{tags}', '[]')::json")
        .await;
    many.run("analyze").await;
    many.run("delete from pets").await;
    many.fill(pets).await;
    many.run(FOLD_NAMES).await;
    many.run(VACUUM).await;
    let many = stage(options, postgres, (&many, pets), 8).await;
    if options.wants("statistics") {
        statistics(&many).await;
    }
    many.database.settle(pets).await;
    if options.wants("sizes") {
        sizes(options, postgres, many).await;
    }
}

async fn stage<'a>(
    options: &'a Options,
    postgres: &'a Postgres,
    (database, pets): (&'a Database, u32),
    callers: usize,
) -> Stage<'a> {
    let keys = database.callers("bench", "enterprise", callers).await;
    let pets = (database, pets);
    Stage::start(options, postgres, pets, keys, Setup::default()).await
}

/// Measures the latency of pages in ratio to GET by id.
async fn statistics(stage: &Stage<'_>) {
    for state in ["stale", "none", "fresh"] {
        let statements: &[&str] = match state {
            "stale" => &[],
            "none" => &FORGET,
            _ => &["analyze"],
        };
        for statement in statements {
            stage.database.run(statement).await;
        }
        let paths = [("getPetById", "/api/v3/pet/<n>")];
        let variants = paths.iter().chain(&PAGES).map(|(name, path)| Variant {
            name: (*name).to_owned(),
            stage,
            load: stage.get(&format!("many {name}"), path, &stage.keys),
            connections: 1,
        });
        let variants: Vec<_> = variants.collect();
        relate(&format!("pages, {state} statistics"), "p50", &variants).await;
    }
}

/// Measures GET, a page, POST and PUT with many pets and with many callers, in ratio to few.
async fn sizes(options: &Options, postgres: &Postgres, many: Stage<'_>) {
    let few = postgres.database(options, "few", FEW_PETS).await;
    let few_stage = stage(options, postgres, (&few, FEW_PETS), 8).await;
    let callers = postgres.database(options, "callers", FEW_PETS).await;
    let callers_stage = stage(options, postgres, (&callers, FEW_PETS), 10_000).await;
    let json = r#"["content-type"] = "application/json""#;
    let stages = [
        ("few pets", &few_stage),
        ("many pets", &many),
        ("many callers", &callers_stage),
    ];
    for (name, method, path, body) in [
        ("getPetById", "GET", "/api/v3/pet/<n>", ""),
        ("findPetsByStatus", "GET", PAGE, ""),
        ("updatePet", "PUT", "/api/v3/pet", REPLACED_PET),
        ("addPet", "POST", "/api/v3/pet", NEW_PET),
    ] {
        let variants = stages.map(|(size, stage)| {
            let template = Template {
                method,
                headers: if body.is_empty() { "" } else { json },
                body,
                ..Template::get(path, &stage.keys, stage.pets)
            };
            Variant {
                name: size.to_owned(),
                stage,
                load: Load::new(stage.folder(), &format!("{size} {name}"), &template),
                connections: 64,
            }
        });
        relate(&format!("sizes, {name}@64"), "rate", &variants).await;
    }
}
