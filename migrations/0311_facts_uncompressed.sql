-- The record has the values of pets. They are stored uncompressed, so that `pg_column_size` tells their size without reading them:
-- what reads changes ends at a number of bytes.

alter table new_changes alter column data set storage external;
alter table changes alter column data set storage external;
