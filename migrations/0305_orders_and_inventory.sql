-- Store orders, and the inventory: the number of pets of each status.

-- Ids that the service assigns. Clients may choose any id of the same range.
create sequence order_ids as bigint minvalue 1 maxvalue 9007199254740991;

create table orders (
    id         bigint  primary key,
    -- Caller; 0 for anonymous ones. No foreign key: an order outlives its caller, whose id is never given again.
    owner      bigint  not null,
    -- Ordered pet, also after its deletion.
    pet_id     bigint  not null,
    -- The same pet while the order is open and the pet exists. Unique: a pet has at most one open order.
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

-- For lists: the orders of a caller, all orders, and the orders of a pet.
create index orders_by_owner on orders (owner, status, id);
create index orders_by_status on orders (status, id);
create index orders_by_pet on orders (pet_id, id);

-- The inventory is the sum of these rows. Counting a million pets takes some 50 ms, and with one counter per status an
-- insert of a pet would wait for the commit of the one before. A statement adds its differences in its own transaction:
-- it does not wait, and the sum is exact in every snapshot. The service merges the rows every few seconds. The triggers
-- are per statement, so that a COPY of a million pets adds three rows.
create table inventory_changes (status text not null, pets bigint not null);

create function count_added_pets() returns trigger language plpgsql as $$ begin
    insert into inventory_changes (status, pets) select status, count(*) from added group by status;
    return null;
end $$;
create function count_deleted_pets() returns trigger language plpgsql as $$ begin
    insert into inventory_changes (status, pets) select status, -count(*) from deleted group by status;
    return null;
end $$;
create function count_changed_pets() returns trigger language plpgsql as $$ begin
    insert into inventory_changes (status, pets)
    select status, sum(n) from (select status, 1 as n from added union all select status, -1 from deleted) change
    group by status having sum(n) <> 0;
    return null;
end $$;
create function count_no_pets() returns trigger language plpgsql as $$ begin
    delete from inventory_changes;
    return null;
end $$;

create trigger pets_added after insert on pets referencing new table as added
    for each statement execute function count_added_pets();
create trigger pets_deleted after delete on pets referencing old table as deleted
    for each statement execute function count_deleted_pets();
create trigger pets_changed after update on pets referencing old table as deleted new table as added
    for each statement execute function count_changed_pets();
create trigger pets_truncated after truncate on pets for each statement execute function count_no_pets();
