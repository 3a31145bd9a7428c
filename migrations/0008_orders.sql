-- Store orders, and the inventory: how many pets there are of each status.

-- Identifiers that the server gives; clients may choose any of the same range, as those of pets.
create sequence order_ids as bigint minvalue 1 maxvalue 9007199254740991;

create table orders (
    id         bigint  primary key,
    -- Whoever placed it: the number of a caller; 0 is all callers without a name. Not a foreign key: an
    -- order outlives its caller, whose number nobody else ever gets.
    owner      bigint  not null,
    -- What was ordered, whatever became of the pet.
    pet_id     bigint  not null,
    -- The same, while the order is open and the pet is there. Unique: no two orders ever hold one pet,
    -- whatever is written to pets meanwhile, and by whom.
    held_pet   bigint  references pets on delete set null,
    quantity   integer not null,
    ship_date  timestamptz,
    status     text    not null,
    complete   boolean not null,
    created_at timestamptz not null default now(),

    constraint orders_id_in_range check (id between 1 and 9007199254740991),
    constraint orders_quantity_positive check (quantity >= 1),
    constraint orders_status_known check (status in ('placed', 'approved', 'delivered')),
    constraint orders_held_pet_unique unique (held_pet),
    constraint orders_hold_their_own_pet check (held_pet = pet_id),
    constraint orders_hold_while_open check (held_pet is null or (status <> 'delivered' and not complete))
);

-- The list: one's own, everybody's, those for a pet; each in the order of id, a status at a time.
create index orders_by_owner on orders (owner, status, id);
create index orders_by_status on orders (status, id);
create index orders_by_pet on orders (pet_id, id);

-- The inventory. Counting a million pets takes some 50 ms even by an index alone, at each request; one
-- counter a status would be one row that every insert of a pet waits for, until the commit of the one
-- before. So each statement that changes pets leaves its differences here, in its own transaction: adding
-- a row waits for nobody, what is rolled back was never counted, and the sum is exact in every snapshot. The
-- service folds them together every few seconds, so that the sum reads few. By statement, not by row: a
-- COPY of a million pets leaves three.
create table inventory_changes (
    status text   not null,
    pets   bigint not null
);

create function count_added_pets() returns trigger language plpgsql as $$
begin
    insert into inventory_changes (status, pets) select status, count(*) from added group by status;
    return null;
end
$$;

create function count_deleted_pets() returns trigger language plpgsql as $$
begin
    insert into inventory_changes (status, pets) select status, -count(*) from deleted group by status;
    return null;
end
$$;

create function count_changed_pets() returns trigger language plpgsql as $$
begin
    insert into inventory_changes (status, pets)
    select status, sum(n)
    from (select status, 1 as n from added union all select status, -1 from deleted) change
    group by status
    having sum(n) <> 0;
    return null;
end
$$;

create function count_no_pets() returns trigger language plpgsql as $$
begin
    delete from inventory_changes;
    return null;
end
$$;

-- The first of these locks pets against changes until the migration ends: the count below misses none.
create trigger pets_added after insert on pets referencing new table as added
    for each statement execute function count_added_pets();
create trigger pets_deleted after delete on pets referencing old table as deleted
    for each statement execute function count_deleted_pets();
create trigger pets_changed after update on pets referencing old table as deleted new table as added
    for each statement execute function count_changed_pets();
create trigger pets_truncated after truncate on pets
    for each statement execute function count_no_pets();

insert into inventory_changes (status, pets) select status, count(*) from pets group by status;
