-- 'user:' and a number is the caller of an account. Before there were accounts an operator could give that name to
-- a caller of their own, and then the account of that number could not be made: such a caller is renamed.

update callers
set name = rtrim(left('caller:' || id || ':' || name, 64))
where name like 'user:%' and not exists (select from users where caller_id = callers.id);
