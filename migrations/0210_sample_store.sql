-- What the sample store has added and is still there, so that it can be removed again.

create table sample_pets (
    -- Number in the list of the program.
    number smallint primary key,
    -- Unique, so that the deletion of a pet finds its row.
    pet_id bigint not null unique references pets on delete cascade
);

create table sample_orders (
    id bigint primary key references orders on delete cascade
);
