-- The record of changes names the command line `operator`, so no caller may have that name. Callers with all scopes of the
-- builds before get the scope of the record, which is one of all scopes now.

update callers set name = 'operator-' || id where name = 'operator';

update callers set scopes = scopes || '{read:changes}'
where scopes @> '{read:pets,write:pets,read:orders,write:orders,admin}' and not scopes @> '{read:changes}';
