-- İ is found by i, and ı no longer. The service folds these names again, a thousand at a time: what is null it folds, and names of tags
-- that are missing it adds. U+0307 is the dot of an İ in two characters.

update pets set folded_name = null where details ->> 'name' ~ '[\u0130\u0131\u0307]';
delete from tag_names where name ~ '[\u0130\u0131\u0307]';
