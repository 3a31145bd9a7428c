-- Large columns of pets are stored without compression, so that pg_column_size returns the size that a client gets, and
-- reads nothing. Finds end a page by it. A stored value keeps its compression until its pet is changed.
alter table pets
    alter column photo_urls set storage external,
    alter column tags set storage external;
