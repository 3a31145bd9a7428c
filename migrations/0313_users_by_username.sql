-- Users by the beginning of their usernames, compared by bytes: the names of callers find those of accounts.

create index users_by_folded_username on users (folded collate "C");
